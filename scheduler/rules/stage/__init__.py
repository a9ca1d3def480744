"""The stages of a turn: who enters, what is placed, what leaves for whom (semantics T2, H, P).

`turn` has their order. It decides, and folds nothing.
"""
