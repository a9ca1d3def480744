"""Which master is active: lease, standby, take-over, and snapshots.

It may import `scheduler`, `replay` and `archive`. How a turn is decided does not belong here.
"""
