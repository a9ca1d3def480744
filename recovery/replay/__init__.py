"""Rebuilds the state of a cluster from its log or a snapshot.

It may import `scheduler`, but neither `archive` nor `failover`. What judges decisions belongs to `witness`.
"""
