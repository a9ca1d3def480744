"""Everything that re-reads the log."""
