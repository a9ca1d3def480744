"""Who is entitled to what: the filling of an empty cluster, and what follows from it (semantics H).

It imports the facts and indexes of `rules`; it decides nothing by itself.
"""
