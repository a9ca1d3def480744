"""Calls a second of `fairlog.Executor` beside `ProcessPoolExecutor`, as JSON: medians of rounds, taken in turns."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import fairlog
from benchmarks._common import arguments

CALLS, ROUNDS, CORES = 3_000, 5, 2


def calls_a_second(pool: Executor) -> float:
    """How many short calls the pool answers in a second."""
    began_s = time.perf_counter()
    if list(pool.map(abs, range(CALLS))) != list(range(CALLS)):
        raise SystemExit("a call was answered wrongly")
    return CALLS / (time.perf_counter() - began_s)


def measured(api: str) -> dict[str, float]:
    """Both with as many workers, taking turns."""
    found: dict[str, list[float]] = {"fairlog": [], "processPool": []}
    with (
        fairlog.Executor(company="acme", user="ann", cores=CORES, api=api) as ours,
        ProcessPoolExecutor(CORES) as theirs,
    ):
        for pool in (ours, theirs):
            calls_a_second(pool)
        for _ in range(ROUNDS):
            found["fairlog"].append(calls_a_second(ours))
            found["processPool"].append(calls_a_second(theirs))
    rates = {name: round(statistics.median(each)) for name, each in found.items()}
    return {**rates, "ratio": round(rates["fairlog"] / rates["processPool"], 2)}


def main() -> None:
    """Measure on a cluster of its own."""
    arguments(__doc__)
    with TemporaryDirectory() as home:
        environment, data = {**os.environ, "HOME": home, "XDG_DATA_HOME": home}, Path(home) / "up"

        def verb(*arguments: str) -> None:
            command = [sys.executable, "-m", "fairlog", "--data", str(data), *arguments]
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)

        verb("up", "--detach", "--workers", "1", "--cores", str(2 * CORES), "--memory", "4G")
        try:
            verb("company", "add", "acme")
            socket = json.loads((data / "up.json").read_text())["socket"]
            print(json.dumps(measured(f"http+unix:{socket}")))
        finally:
            verb("down")


if __name__ == "__main__":
    main()
