"""Decides what happens and folds what happened: pure functions of a state, its inputs and their time.

Its rooms, each of which may import from those before it: `entities`, `placement`, `admission`, `index`, `checks`,
`state`, `command`, `share`, `stage`, `view`. No clock, no randomness, no store: what reads or writes Redis does not
belong here.
"""
