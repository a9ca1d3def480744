"""Jobs for `fairlog rq --url URL work`: `python examples/rq_jobs.py URL`."""

from __future__ import annotations

import sys
import time

from redis import Redis
from rq import Queue


def main(url: str) -> None:
    """Put ten jobs into the queue, and wait for their results."""
    jobs = [Queue("work", connection=Redis.from_url(url)).enqueue(pow, number, 2) for number in range(10)]
    while not all(bool(job.is_finished) for job in jobs):
        time.sleep(0.1)
    print(sum(job.return_value() for job in jobs), "is the sum of the squares")  # noqa: T201 (what it is for)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/rq_jobs.py URL")
    main(sys.argv[1])
