"""The machines that run executors, drivers and tasks: they converge on what the log grants them.

It may import every room of `scheduler`. What decides who is granted what does not belong here.
"""
