"""Calls a second of `fairlog.Executor` beside `ProcessPoolExecutor`: `python -m benchmarks.functions COMPANY USER`.

Uses the running cluster. Prints JSON: medians of several rounds, in which the two take turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor

import fairlog

CALLS, ROUNDS = 3_000, 5


def calls_a_second(pool: Executor) -> float:
    """How many short calls the pool answers in a second."""
    began_s = time.perf_counter()
    if list(pool.map(abs, range(CALLS))) != list(range(CALLS)):
        raise SystemExit("a call was answered wrongly")
    return CALLS / (time.perf_counter() - began_s)


def main(company: str, user: str, cores: int = 2) -> None:
    """Measure both with as many workers."""
    found: dict[str, list[float]] = {"fairlog": [], "processPool": []}
    with (
        fairlog.Executor(company=company, user=user, cores=cores) as ours,
        ProcessPoolExecutor(cores) as theirs,
    ):
        for pool in (ours, theirs):
            calls_a_second(pool)
        for _ in range(ROUNDS):
            found["fairlog"].append(calls_a_second(ours))
            found["processPool"].append(calls_a_second(theirs))
    rates = {name: round(statistics.median(each)) for name, each in found.items()}
    print(json.dumps({**rates, "ratio": round(rates["fairlog"] / rates["processPool"], 2)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
