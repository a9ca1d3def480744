"""Which sizes executors get, and which workers come first for them.

It imports `entities`. Who enters, and when, does not belong here.
"""
