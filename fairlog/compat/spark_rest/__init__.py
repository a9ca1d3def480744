"""The REST protocol of Spark's standalone Master, by which `spark-submit` and others submit, watch and kill drivers.

What a request means is an app with a driver, as `fairlog spark-submit` makes it; its id names the submission.
"""
