"""The stages that follow from entitlements: who enters, what is placed, what leaves for whom (semantics H).

It imports the facts, indexes and `share`; it decides, and folds nothing.
"""
