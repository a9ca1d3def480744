"""Who serves: lease, standby, take-over, snapshots by a standby. It may import archive and replay."""
