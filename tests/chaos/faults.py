"""The faults of a run and their times, drawn from a seed before the run."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

Deed = Literal["kill", "pause", "stop"]
"""SIGKILL; SIGSTOP and later SIGCONT; SIGTERM."""

EVERY_S = 0.9
"""The average time between two faults."""
SINGLE: dict[tuple[str, Deed], tuple[int, float]] = {
    ("serving master", "kill"): (5, 2),
    ("serving master", "pause"): (4, 5),
    ("serving master", "stop"): (2, 1),
    ("standby", "kill"): (3, 3),
    ("standby", "pause"): (2, 5),
    ("agent", "kill"): (5, 7),
    ("agent", "pause"): (4, 8),
    ("agent", "stop"): (2, 3),
    ("forkserver", "kill"): (2, 0),
    ("forkserver", "pause"): (1, 3),
    ("executor", "kill"): (6, 0),
    ("executor", "pause"): (4, 4),
    ("api", "kill"): (5, 3),
    ("api", "pause"): (3, 5),
    ("api", "stop"): (1, 1),
    ("client", "kill"): (5, 1),
    ("client", "pause"): (2, 3),
    ("store", "kill"): (4, 2),
    ("store", "pause"): (2, 3),
    ("store", "stop"): (1, 1),
}
"""Fault -> its weight, and the longest time (s) until the victim continues or is restarted."""
REPLICATED: dict[tuple[str, Deed], tuple[int, float]] = {
    **{what: odds for what, odds in SINGLE.items() if what[0] != "store"},
    ("store", "kill"): (8, 6),
    ("store", "pause"): (4, 5),
    ("replica", "kill"): (3, 3),
    ("replica", "pause"): (2, 3),
    ("sentinel", "kill"): (2, 3),
}


class Fault(NamedTuple):
    """`deed` to one process of `kind`, chosen by `pick` in [0, 1). The victim continues after `hold_s`."""

    at_s: float
    kind: str
    deed: Deed
    pick: float
    hold_s: float

    def __str__(self) -> str:
        """The fault as the report counts it."""
        return f"{self.deed} {self.kind}"


def draw(seed: int, seconds: float, *, replicated: bool = False) -> list[Fault]:
    """The faults of a run, in their order; the same ones for the same seed."""
    source = random.Random(seed)
    table = REPLICATED if replicated else SINGLE
    what = list(table)
    weights = [table[key][0] for key in what]
    faults: list[Fault] = []
    at_s = source.expovariate(1 / EVERY_S)
    while at_s < seconds:
        kind, deed = source.choices(what, weights)[0]
        faults.append(Fault(at_s, kind, deed, source.random(), source.uniform(0, table[kind, deed][1])))
        at_s += source.expovariate(1 / EVERY_S)
    return faults
