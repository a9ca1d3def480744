"""Engines: work of other systems on executors that run a program: Python functions, Dask, RQ, Spark.

They reach the cluster through the API alone. What the cluster decides does not belong here.
"""
