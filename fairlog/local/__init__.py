"""A whole cluster on this machine: its store, its processes and where they are. The command line stays out."""
