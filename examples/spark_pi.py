"""Pi by Spark: `fairlog spark-submit --executor-cores 1 --num-executors 2 examples/spark_pi.py`."""

from __future__ import annotations

import random

from pyspark.sql import SparkSession


def inside(_: int) -> bool:
    """Whether a random point of the square lies in the circle."""
    return random.random() ** 2 + random.random() ** 2 < 1  # noqa: S311 (not for security)


def main() -> None:
    """Count points."""
    spark = SparkSession.builder.appName("pi").getOrCreate()
    points = 100_000
    found = spark.sparkContext.parallelize(range(points), 4).filter(inside).count()
    print(f"Pi is roughly {4 * found / points:.2f}")  # noqa: T201 (what it is for)
    spark.stop()


if __name__ == "__main__":
    main()
