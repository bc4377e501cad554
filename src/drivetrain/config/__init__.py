"""What a run is told: options, files, the environment. Plain data, no torch."""
