"""Everything that decides, and the log the decisions are kept in."""
