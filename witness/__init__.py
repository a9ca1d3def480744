"""Answers for the log: explanations, fairness figures, statements, what-if.

It may import `scheduler` and `recovery`. It only reads: nothing here writes to the log or the store.
"""
