"""The machines that run executors: they converge on what the log grants them."""
