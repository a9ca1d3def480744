"""Records the histories of this folder: `python -m tests.golden.record NAME…`, with this version's decisions.

One that is there is never recorded again because decisions changed: that they would differ is what it is for. A new
one is added before a change of what the log holds. Those in `earlier` are by the second edition of the rules, which
decides nothing any more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from scheduler.store.codec import Record
from tests.property.given import recorded
from tests.property.histories import played, seeded
from tests.simulation.world import running
from tests.unit.recorded import exported

HERE = Path(__file__).parent


def _played(seed: int, **settings: object) -> Callable[[], list[Record]]:
    return lambda: recorded(played(seeded(seed, 200), settings))


def _failover() -> list[Record]:
    """Masters are killed and take over from each other, answers get lost, workers restart."""
    with running(14) as world:
        world.found()
        for _ in range(70):
            world.happen()
        world.settle()
        return world.witness.records


HISTORIES: dict[str, Callable[[], list[Record]]] = {
    "fair-spread": _played(8),
    "fair-pack-by-usage": _played(2, placement="pack", company_policy="pay-as-you-go", user_policy="balanced"),
    "open-as-spark": _played(3, admission="open", worker_selection="memory-free-desc"),
    "classic-least-occupied": _played(4, placement="classic-spread", user_policy="least-occupied"),
    "failover": _failover,
}


def main(names: list[str]) -> None:
    """Record these histories."""
    for name in names:
        (HERE / f"{name}.jsonl").write_text(exported(HISTORIES[name]()))


if __name__ == "__main__":
    main(sys.argv[1:])
