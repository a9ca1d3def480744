"""What follows from the facts and is kept at every event, so that a decision does not grow with the cluster.

It imports `entities`, `placement` and `admission`. It states no fact.
"""
