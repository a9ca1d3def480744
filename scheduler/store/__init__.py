"""The log and all else that lies in Redis. It imports model alone, never rules."""
