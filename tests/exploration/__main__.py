"""`python -m tests.exploration --seconds 600` explores small clusters on all cores, spread over all that there are."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from random import Random

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.exploration.explore import Explored, explore
from tests.exploration.worlds import World, worlds


def main() -> int:
    """0 if nothing went wrong in what was explored."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration")
    parser.add_argument("--worlds", type=int, default=2000, help="how many clusters, drawn from all; 0: all of them")
    parser.add_argument("--states", type=int, default=400, help="how many states of a cluster at most")
    parser.add_argument("--seconds", type=int, default=0, help="begin no cluster after so long; 0: no limit")
    parser.add_argument("--seed", type=int, default=1, help="another draw")
    asked = parser.parse_args()
    console = Console(stderr=True)
    every = sum(1 for _ in worlds())
    chosen = range(every) if not asked.worlds else sorted(Random(asked.seed).sample(range(every), asked.worlds))
    seen = states = steps = cut = wrong = 0
    until = time.monotonic() + asked.seconds if asked.seconds else float("inf")
    columns = TextColumn("clusters"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with ProcessPoolExecutor() as processes, Progress(*columns, console=console) as shown:
        under_way = shown.add_task("clusters", total=len(chosen))
        left = _drawn(chosen)
        while time.monotonic() < until and (batch := list(islice(left, 64))):
            asked_for = {processes.submit(explore, world, asked.states): world for world in batch}
            for answer in as_completed(asked_for):
                found: Explored = answer.result()
                seen, states, steps, cut = seen + 1, states + found.states, steps + found.steps, cut + found.cut
                shown.advance(under_way)
                for each in found.wrong[:1]:
                    wrong += 1
                    console.print(f"{each.what}, in {asked_for[answer]}", highlight=False, markup=False, soft_wrap=True)
                    console.print(json.dumps(each.scenario), highlight=False, markup=False, soft_wrap=True)
    print(  # noqa: T201 - what was asked for
        f"{seen} of {every} clusters, {states} states and {steps} steps were looked at; {cut} clusters have more than "
        f"{asked.states} states, of which the nearest were; something went wrong in {wrong} clusters"
    )
    return 1 if wrong else 0


def _drawn(chosen: range | list[int]) -> Iterator[World]:
    wanted = iter(chosen)
    place = next(wanted, None)
    for number, world in enumerate(worlds()):
        if place is None:
            return
        if number == place:
            yield world
            place = next(wanted, None)


if __name__ == "__main__":
    sys.exit(main())
