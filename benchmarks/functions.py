"""Calls a second of `fairlog.Executor` beside `ProcessPoolExecutor`, as JSON: medians of rounds, taken in turns.

Short calls, and calls with an argument or a result of a megabyte.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fairlog
from benchmarks._common import arguments

ROUNDS, CORES = 5, 2
LARGE = 1 << 20
CALLS: dict[str, tuple[Callable[[Any], Any], list[Any], list[Any]]] = {
    "short": (abs, [*range(3_000)], [*range(3_000)]),
    "argumentsOf1MiB": (len, [b"x" * LARGE] * 300, [LARGE] * 300),
    "resultsOf1MiB": (bytes, [LARGE] * 300, [bytes(LARGE)] * 300),
}
"""Kind -> a function, its arguments, and its results."""


def calls_a_second(pool: Executor, kind: str) -> float:
    """How many calls of the kind the pool answers in a second."""
    function, arguments, results = CALLS[kind]
    began_s = time.perf_counter()
    if list(pool.map(function, arguments)) != results:
        raise SystemExit("a call was answered wrongly")
    return len(arguments) / (time.perf_counter() - began_s)


def measured(api: str) -> dict[str, dict[str, float]]:
    """Both with as many workers, taking turns."""
    found: dict[str, dict[str, list[float]]] = {kind: {"fairlog": [], "processPool": []} for kind in CALLS}
    with (
        fairlog.Executor(company="acme", user="ann", cores=CORES, api=api) as ours,
        ProcessPoolExecutor(CORES) as theirs,
    ):
        for kind, rates in found.items():
            for pool in (ours, theirs):
                calls_a_second(pool, kind)
            for _ in range(ROUNDS):
                rates["fairlog"].append(calls_a_second(ours, kind))
                rates["processPool"].append(calls_a_second(theirs, kind))
    return {kind: _compared(rates) for kind, rates in found.items()}


def _compared(rates: dict[str, list[float]]) -> dict[str, float]:
    medians = {name: statistics.median(each) for name, each in rates.items()}
    ratio = round(medians["fairlog"] / medians["processPool"], 2)
    return {**{name: round(rate) for name, rate in medians.items()}, "ratio": ratio}


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
