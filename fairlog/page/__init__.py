"""The live page: its files, and the sessions of those who look at it. The API serves both, and all data.

It may import everything below `fairlog`. What the page shows of a state belongs to `witness.board`.
"""
