"""Old entries in files outside of the store, and copies of a whole log: archive, backup, restore, import.

It may import `scheduler` and `replay`, but not `failover`. Who archives when a cluster is idle is `failover`'s to say.
"""
