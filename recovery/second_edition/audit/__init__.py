"""Checks that each entry of a log follows from the entries before it by the rules.

It may import `scheduler` and `recovery`, and nothing of `witness` outside. Figures and explanations do not belong here.
"""
