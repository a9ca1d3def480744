"""Decides, and keeps the log of what was decided: model <- {rules, store} <- service.

It imports no other package of fairlog. What brings the state back belongs to `recovery`, what runs tasks to `workers`.
"""
