"""The state of a cluster from its log or a snapshot, and the checks of the chain on the way.

It may import `scheduler`, but neither `archive` nor `failover`. What judges decisions belongs to `witness`.
"""
