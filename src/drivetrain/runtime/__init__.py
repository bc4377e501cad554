"""Facts about this process and its peers: topology, collectives, windows of accumulation, process control."""
