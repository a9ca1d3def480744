"""Whether each entry of a log is what the rules make of the entries before it.

It may import `scheduler` and `recovery`, and nothing of `witness` outside. Figures and explanations do not belong here.
"""
