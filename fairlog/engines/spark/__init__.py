"""Apache Spark: a driver's executors are executors of an app, granted by fairlog. No Spark Master, no Spark Workers.

The jar here makes Spark speak lines with `helper`, which owns the app through the API. Spark itself is the user's.
"""
