"""The vocabulary that every room shares: errors, resources, ids, commands, events, grants.

It imports no other room. What decides or keeps state belongs to `rules`, what knows Redis to `store`.
"""
