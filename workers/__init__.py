"""Agents, executors, drivers and tasks: workers converge on what the log grants them.

May import every room of `scheduler`. Decisions about who is granted what do not belong here.
"""
