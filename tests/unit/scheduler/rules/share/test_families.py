"""Rooms with further kinds and classes are found as by a look at each of them (semantics P1, P9, H2)."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from scheduler.model.resources import Amounts, Resources
from scheduler.rules.entities.labels import class_of, demand_of, may_use, sought, spare_demands
from scheduler.rules.share.fill import Rooms

KINDS = ("fpga", "gpu", "gpu.a100")
LABELS: tuple[dict[str, str], ...] = (
    {},
    {"zone": "north"},
    {"zone": "south"},
    {"zone": "north", "disk": "ssd"},
    {"disk": "ssd"},
)
DEMANDS = (
    "",
    demand_of(("zone",), (), ()),
    demand_of(("zone=north",), (), ()),
    demand_of((), ("zone=south",), ()),
    demand_of((), ("disk",), ("spot",)),
    demand_of((), (), ("spot",)),
)


def naively(rooms: dict[Resources, int], size: Resources) -> Resources | None:
    """The best room, by looking at each of them."""

    def spare(room: Resources) -> int:
        kinds, demands = spare_demands([kind for kind, _ in room.others], size)
        return sum(size.amount(kind) == 0 for kind in kinds) + demands

    fitting = [room for room in rooms if may_use(room, size) and room.covers(size)]
    plain = [room for room in fitting if not room.others]
    return min(plain or fitting, key=lambda room: (spare(room), room - size), default=None)


def _amounts(random: Random, *numbers: int) -> Amounts:
    return tuple([(kind, random.choice(numbers)) for kind in KINDS if random.random() < 0.4])


def _rooms(random: Random) -> Counter[Resources]:
    """Offers of workers, of which each names all kinds that it offers, even with 0."""
    used = random.sample(DEMANDS[1:], random.randint(0, len(DEMANDS) - 1))
    found: Counter[Resources] = Counter()
    for _ in range(random.randint(1, 12)):
        taints = random.choice(((), (), ("spot",)))
        met = class_of(used, random.choice(LABELS), taints)
        kinds = _amounts(random, 0, 1, 2, 4) if random.random() < 0.6 else ()
        found[Resources(random.choice((4, 8, 8, 12)), random.choice((4096, 8192)), (*kinds, *met))] += 1
    return found


def _size(random: Random) -> Resources:
    kinds = _amounts(random, 1, 2) if random.random() < 0.5 else ()
    size = Resources(random.choice((1, 2, 4, 5)), random.choice((0, 256, 4096)), kinds)
    return sought(size, random.choice(DEMANDS))


@pytest.mark.parametrize("seed", range(300))
def test_the_best_room_is_found_as_by_a_look_at_each(seed: int) -> None:
    random = Random(seed)
    rooms, sizes = Rooms(_rooms(random)), [_size(random) for _ in range(5)]
    for _ in range(40):
        size = random.choice(sizes)
        best = naively(rooms.number, size)
        assert rooms.best(size) == best
        if random.random() < 0.2:
            before, pair = rooms.number.copy(), random.choices(sizes, k=2)
            could = rooms.take_all(pair, back=True)
            assert rooms.number == before
            assert rooms.take_all(pair) == could
            assert could or rooms.number == before
        elif best is not None:
            assert rooms.take(size) == best
    assert {size: rooms.best(size) for size in sizes} == {size: naively(rooms.number, size) for size in sizes}
