"""Checks of values, before they become facts; each refusal is one sentence that names what would be right.

It imports the names of policies and placements, to name them. What depends on the state is checked by `state`.
"""
