"""The plan hands out equal units at once, as one after the other would be (semantics H6)."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.share.fill import Handed, Rooms
from scheduler.rules.share.plan import AsPlanned, _matched, _packed

OFFERS = (
    Resources(8, 8192),
    Resources(16, 8192),
    Resources(16, 16384),
    Resources(16, 16384, (("gpu", 2),)),
    Resources(12, 4096),
)
SIZES = (
    Resources(1, 256),
    Resources(2, 4096),
    Resources(4, 0),
    Resources(3, 1024),
    Resources(2, 512, (("gpu", 1),)),
    Resources(4, 0, (("gpu", 1),)),
    Resources(16, 2048),
)


def one_after_the_other(
    handed: list[Handed], offers: list[Resources]
) -> tuple[dict[Resources, list[Counter[Resources]]], Counter[str]]:
    """What stands on the workers of each offer, and what found no room; of equal ones the one used last comes first."""
    rooms, missed = Rooms(Counter(offers)), Counter[str]()
    standing: list[Counter[Resources]] = [Counter() for _ in offers]
    free: dict[Resources, list[int]] = {}
    for number in reversed(range(len(offers))):
        free.setdefault(offers[number], []).append(number)
    for app, unit in handed:
        for size in unit:
            room = rooms.take(size)
            if room is None:
                missed[app] += 1
                continue
            number = free[room].pop()
            free.setdefault(room - size, []).append(number)
            standing[number][size] += 1
    found: dict[Resources, list[Counter[Resources]]] = {}
    for offer, content in zip(offers, standing, strict=True):
        found.setdefault(offer, []).append(content)
    return found, missed


@pytest.mark.parametrize("seed", range(100))
def test_equal_units_are_handed_out_at_once(seed: int) -> None:
    random = Random(seed)
    offers = [random.choice(OFFERS) for _ in range(random.randint(1, 8))]
    handed: list[Handed] = []
    while len(handed) < 60:
        unit = tuple(random.choice(SIZES) for _ in range(random.choice((1, 1, 1, 2))))
        handed += [(f"app{random.randrange(3)}", unit)] * random.randint(1, 9)
    assert _packed(handed, offers) == one_after_the_other(handed, offers)


def test_growing_executors_agree_only_with_what_leaves_their_memory() -> None:
    offer, fixed, core = Resources(16, 4096), Resources(2, 1024), Resources(1, 0)
    beside, alone = Counter({core: 14, fixed: 1}), Counter({core: 14})
    seen = AsPlanned(offer, NOTHING, lingers=False, offer=offer, standing=Counter({core: 12}), grown_mb=4096)
    looked = {"w1": seen, "w2": seen._replace(standing=Counter({core: 4}), grown_mb=2048)}
    assert _matched(offer, [beside, alone], ["w1", "w2"], looked) == {"w1": alone, "w2": beside}
    looked["w2"] = looked["w2"]._replace(grown_mb=4096)
    assert _matched(offer, [beside, alone], ["w2", "w1"], looked) == {"w1": alone, "w2": beside}
