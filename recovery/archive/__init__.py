"""Old entries in files outside of the store, and copies of the whole log. It may import replay, never failover."""
