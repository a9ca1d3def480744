"""A Spark driver that does what the file of its argument says, one line each, and prints what came out."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import RDD
from pyspark.serializers import UTF8Deserializer
from pyspark.sql import SparkSession, functions
from pyspark.sql.types import LongType


def inside(number: int) -> bool:
    """Whether a point drawn for the number lies in the circle."""
    drawn = random.Random(number)
    return drawn.random() ** 2 + drawn.random() ** 2 < 1


def nap(number: int) -> int:
    """Return the number, after a while."""
    time.sleep(0.5)
    return number


def eat(number: int) -> int:
    """Use a GiB in the process of Python beside the executor's JVM."""
    held = bytearray(1 << 30)
    for start in range(0, len(held), 4096):
        held[start] = 1
    time.sleep(60)
    return number


def results(spark: SparkSession) -> list[object]:
    """Pi, a shuffle, an aggregation of a DataFrame and a Python UDF."""
    context, frame = spark.sparkContext, spark.range(0, 1000, 1, 2)
    pairs = context.parallelize(range(1000), 2).map(lambda number: (number % 7, number))
    sums = frame.groupBy((functions.col("id") % 5).alias("k")).agg(functions.sum("id"), functions.avg("id"))
    square = functions.udf(lambda number: number * number, LongType())
    return [
        context.parallelize(range(5000), 2).filter(inside).count(),
        sorted(pairs.reduceByKey(lambda one, other: one + other, 2).collect()),
        [tuple(row) for row in sums.orderBy("k").collect()],
        frame.select(square("id").alias("s")).agg(functions.sum("s")).collect()[0][0],
    ]


def naps(spark: SparkSession) -> object:
    """Tasks of half a second, in two stages with a shuffle between them."""
    numbers = spark.sparkContext.parallelize(range(80), 20).map(nap).map(lambda number: (number % 4, number))
    return sorted(numbers.reduceByKey(lambda one, other: one + other, 8).map(lambda pair: (*pair, nap(0))).collect())


HOSTS = [f"127.0.0.{number}" for number in range(2, 6)]


def near(spark: SparkSession) -> object:
    """Where tasks ran of which each prefers a host, and the host."""
    context = spark.sparkContext
    java: Any = context._jvm
    sequence = java.org.apache.spark.api.python.PythonUtils.toSeq
    pairs = java.java.util.ArrayList()
    for host in HOSTS * 3:
        pairs.add(java.scala.Tuple2(host, sequence(java.java.util.ArrayList([host]))))
    kind = java.scala.reflect.ClassTag.apply(java.java.lang.Class.forName("java.lang.String"))
    found: Any = context._jsc.sc().makeRDD(sequence(pairs), kind)
    preferring: RDD[str] = RDD(found.toJavaRDD(), context, UTF8Deserializer())
    return preferring.map(lambda host: (nap(0), host, os.environ["FAIRLOG_HOST"])[1:]).collect()


def meal(spark: SparkSession) -> object:
    """The error of a task that needs more memory than was granted."""
    try:
        return spark.sparkContext.parallelize([1], 1).map(eat).collect()
    except Exception as error:  # noqa: BLE001 (whatever Spark raises)
        return str(error).replace("\n", " ")


def main() -> None:
    """Do what is asked for until there is nothing more."""
    spark = SparkSession.builder.appName("story").getOrCreate()
    parts: dict[str, Callable[[SparkSession], object]] = {"results": results, "naps": naps, "near": near, "meal": meal}
    print("READY", spark.sparkContext.applicationId, flush=True)  # noqa: T201 (read by the test)
    with Path(sys.argv[1]).open() as lines:
        for line in lines:
            print("ANSWER", repr(parts[line.strip()](spark)), flush=True)  # noqa: T201 (likewise)
    spark.stop()


if __name__ == "__main__":
    main()
