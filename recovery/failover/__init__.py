"""Which master serves: lease, standby, take-over, and the snapshots that a standby writes.

It may import `scheduler`, `replay` and `archive`. How a turn is decided does not belong here.
"""
