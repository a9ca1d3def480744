"""The cluster as the log tells it: its facts, what must hold before each event, and what each event changes.

`cluster` has the state; `fold` is the one place where anything changes.
"""
