"""Starting processes: one, several on this machine, several machines, and from inside a notebook."""
