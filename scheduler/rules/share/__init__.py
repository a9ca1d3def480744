"""Who is entitled to what: the filling of an empty cluster, and what follows from it (semantics H).

It reads the state; it decides nothing by itself.
"""
