"""Decides what happens and folds what happened: pure functions of a state, its inputs and their time.

It imports `model` alone: no clock, no randomness, no store. What reads or writes Redis does not belong here.
"""
