"""The log and everything else in Redis: keys, codec, commits, task queues, doorbells.

It imports `model` alone, never `rules`: it stores what was decided and decides nothing.
"""
