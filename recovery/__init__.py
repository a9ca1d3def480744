"""Brings the state back: replay from the log, archive outside of the store, failover to another master.

It may import every room of `scheduler`; within it, replay <- archive <- failover. What answers for the log belongs to
`witness`.
"""
