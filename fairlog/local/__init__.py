"""A whole cluster on this machine: its store, its processes and where they are found again.

It may import `scheduler`, `workers` and `recovery`. Options and output belong to `fairlog.cli`.
"""
