"""Which size executors and drivers get, and on which workers.

It may import `model` and the rest of `rules`, but not `admission`. Who enters, and when, does not belong here.
"""
