"""Answers for the log: audit, explain, figures, what-if. It may import everything below it and never writes."""
