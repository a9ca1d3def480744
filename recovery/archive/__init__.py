"""Old entries in files outside the store, and copies of a whole log: archive, backup, restore, import.

May import `scheduler` and `replay`. Decisions about which master archives belong to `failover`.
"""
