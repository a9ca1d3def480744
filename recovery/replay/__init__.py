"""The state of a cluster from its log or a snapshot. It imports neither archive nor failover."""
