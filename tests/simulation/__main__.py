"""`python -m tests.simulation 5000` runs 5000 seeds on all cores, `1000-2000` a range; `--seed 7` traces one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.sweep import pool, sweep, told


def main() -> int:
    """0 if every seed kept every promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("seeds", nargs="?", type=_seeds, default="2000", help="a count, or FIRST-LAST")
    parser.add_argument("--seed", type=int, help="run this one alone, and tell what went on")
    asked = parser.parse_args()
    return _run_one(asked.seed) if asked.seed is not None else _run_many(asked.seeds)


def _seeds(text: str) -> Sequence[int]:
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise argparse.ArgumentTypeError(f"seeds are a count like 5000 or a range like 1000-2000, not {text!r}")
    return range(int(first), int(last) + 1) if dash else range(int(first))


def _run_one(seed: int) -> int:
    story, failure = told(seed)
    print(story)  # noqa: T201 - what was asked for
    print(failure or f"seed {seed} keeps every promise")  # noqa: T201 - likewise
    return 1 if failure else 0


def _run_many(seeds: Sequence[int]) -> int:
    failed = 0
    columns = TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with pool() as processes, Progress(*columns, console=console) as shown:
        under_way = shown.add_task("seeds", total=len(seeds))
        for chunk in sweep(seeds, processes):
            shown.advance(under_way, chunk.seeds)
            for failure in chunk.failures:
                failed += 1
                console.print(failure, highlight=False, markup=False, soft_wrap=True)
    print(f"{len(seeds) - failed} of {len(seeds)} seeds keep every promise")  # noqa: T201 - likewise
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
