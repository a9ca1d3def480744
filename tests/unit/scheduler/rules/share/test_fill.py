"""The filling, by the examples of the rules and beside a plain reading of them (semantics H1-H3)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random

import pytest

from scheduler.model.quota import Quota
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.share.fill import CompanyNode, Filling, Leaf, Rooms, UserNode, level_of, may_start


def filled(
    offers: list[Resources],
    demands: list[tuple[str, Resources, int]],
    weights: dict[str, tuple[int, int]] | None = None,
    *,
    capped: str = "",
    held: dict[str, int] | None = None,
) -> dict[str, int]:
    """Company -> executors, where each wants so many of one size in one app; weights are cores and MiB."""
    total = sum(offers, NOTHING)
    companies = []
    for number, (name, size, most) in enumerate(demands):
        leaf = Leaf(name, size, most, most, held=(held or {}).get(name, 0), rank=(0, number))
        quota = Quota(Resources(*weights[name])) if weights else Quota(total, len(demands))
        companies.append(CompanyNode(name, quota=quota, capped=name == capped, users=[UserNode("ann", leaves=[leaf])]))
    filling = Filling(Counter(offers), companies, total)
    filling.run()
    return {company.name: company.users[0].leaves[0].units for company in companies}


GIB = 1024


def test_weights_share_a_cluster_that_both_want() -> None:
    offers, one = [Resources(32, 64 * GIB)] * 10, Resources(4, 1 * GIB)
    weights = {"a": (512, 1 << 20), "b": (128, 1 << 18)}
    assert filled(offers, [("a", one, 200), ("b", one, 200)], weights) == {"a": 64, "b": 16}
    assert filled(offers, [("a", one, 200)], weights) == {"a": 80}


def test_whole_executors_and_not_cores_are_handed_out() -> None:
    offers = [Resources(64, 64 * GIB)] * 2
    demands = [("a", Resources(60, GIB), 2), ("b", Resources(4, GIB), 16)]
    assert filled(offers, demands) == {"a": 1, "b": 16}


def test_room_that_nobody_can_use_never_counts() -> None:
    offers, one = [Resources(8, 64 * GIB), Resources(16, 1 * GIB)], Resources(4, 2 * GIB)
    assert filled(offers, [("a", one, 9), ("b", one, 9)]) == {"a": 1, "b": 1}


def test_a_tie_stays_with_who_holds_the_executor() -> None:
    offers, one = [Resources(12, 64 * GIB)], Resources(4, GIB)
    demands = [("a", one, 3), ("b", one, 3)]
    assert filled(offers, demands) == {"a": 2, "b": 1}
    assert filled(offers, demands, held={"b": 3}) == {"a": 1, "b": 2}


def test_gangs_that_demand_other_labels_come_in_the_same_order_whoever_holds() -> None:
    """What is left for others depends on that order, and nothing else would change with who holds it."""
    rooms = [Resources(8, 64 * GIB, (("~+zone=a\n-zone=b", 1),)), Resources(8, 64 * GIB, (("gpu", 2), ("~-zone=b", 1)))]
    orders = []
    for held in ({}, {"a": 2}, {"b": 2}):
        companies = []
        for number, (name, demand) in enumerate((("a", "~-zone=b"), ("b", "~+zone=a"))):
            leaf = Leaf(
                name, Resources(2, GIB, ((demand, 0),)), 2, 2, held=held.get(name, 0), rank=(0, number), gang=True
            )
            companies.append(
                CompanyNode(name, quota=Quota(Resources(8, 64 * GIB)), users=[UserNode("u", leaves=[leaf])])
            )
        filling = Filling(Counter(rooms), companies, sum(rooms, NOTHING))
        filling.run()
        orders.append([app for app, _ in filling.handed])
    assert orders == [["b", "a"]] * 3


def test_of_equal_shares_the_smaller_unit_goes_first() -> None:
    demands = [("a", Resources(4, 256), 1), ("b", Resources(2, 256), 1)]
    assert filled([Resources(4, 64 * GIB)], demands, held={"a": 1}) == {"a": 0, "b": 1}


def test_a_cap_is_not_passed_and_a_quota_of_nothing_comes_last() -> None:
    offers, one = [Resources(16, 64 * GIB)], Resources(4, GIB)
    weights = {"a": (8, 1 << 20), "b": (0, 0)}
    assert filled(offers, [("a", one, 4), ("b", one, 4)], weights, capped="a") == {"a": 2, "b": 2}


def test_a_unit_takes_the_room_that_fits_best() -> None:
    offers = [Resources(8, 64 * GIB), Resources(4, 64 * GIB)]
    assert filled(offers, [("a", Resources(4, GIB), 1), ("b", Resources(8, GIB), 1)]) == {"a": 1, "b": 1}


def test_a_kind_that_a_quota_does_not_name_has_the_default_weight() -> None:
    quota = Quota(Resources(40, 65536), named=())
    unnamed = Quota(Resources(80, 1 << 20, (("gpu", 16),)), 2)
    used = Resources(4, 256, (("gpu", 4),))
    assert level_of(quota, unnamed, used, used.others) == level_of(unnamed, unnamed, used, used.others)


def test_drivers_hold_half_of_a_quota_or_are_one() -> None:
    quota, driver = Quota(Resources(16, 16 * GIB)), Resources(4, GIB)
    assert may_start(quota, NOTHING, Resources(16, GIB))
    assert may_start(quota, driver, driver)
    assert not may_start(quota, driver * 2, driver)


@pytest.mark.parametrize("number", [1, 5, 9])
def test_many_units_take_the_rooms_that_one_after_the_other_takes(number: int) -> None:
    offers = Counter({Resources(16, 4 * GIB): 2, Resources(10, 64 * GIB): 1, Resources(3, 64 * GIB): 4})
    one_by_one, at_once, size = Rooms(offers), Rooms(offers), Resources(3, GIB)
    assert all(one_by_one.take(size) for _ in range(number))
    assert at_once.take_many(size, number)
    assert at_once.number == one_by_one.number


def vector(amounts: list[int]) -> Resources:
    """Cores and MiB as resources."""
    return Resources(amounts[0], amounts[1])


@dataclass
class Plain:
    """A company of the plain reading."""

    weight: list[int]
    cap: bool
    apps: list[tuple[list[int], int]]
    held: list[int]
    used: list[int] = field(default_factory=lambda: [0, 0])
    got: list[int] = field(default_factory=list)
    out: set[int] = field(default_factory=set)

    def next(self) -> int | None:
        """Its first app that can use one more."""
        able = [app for app, (_, most) in enumerate(self.apps) if app not in self.out and self.got[app] < most]
        return able[0] if able else None


def plainly(offers: list[list[int]], companies: list[Plain]) -> list[list[int]]:
    """One unit after the other, as the rule says it, in fractions."""
    rooms = [list(offer) for offer in offers]
    while True:
        keys = []
        for number, company in enumerate(companies):
            app = company.next()
            if app is not None:
                size = company.apps[app][0]
                share = max(Fraction(used, weight) for used, weight in zip(company.used, company.weight, strict=True))
                keys.append((share, size, company.got[app] >= company.held[app], (number, app), number, app))
        if not keys:
            return [company.got for company in companies]
        *_, number, app = min(keys)
        company, size = companies[number], companies[number].apps[app][0]
        fits = [room for room in rooms if room[0] >= size[0] and room[1] >= size[1]]
        over = any(used + more > cap for used, more, cap in zip(company.used, size, company.weight, strict=True))
        if not fits or (company.cap and over):
            company.out.add(app)
            continue
        room = min(fits)
        room[:] = [room[0] - size[0], room[1] - size[1]]
        company.used = [company.used[0] + size[0], company.used[1] + size[1]]
        company.got[app] += 1


@pytest.mark.parametrize("seed", range(200))
def test_the_filling_is_its_plain_reading(seed: int) -> None:
    random = Random(seed)
    offers = [[random.choice([4, 8, 16]), random.choice([4096, 16384])] for _ in range(random.randint(1, 5))]
    total = [sum(offer[kind] for offer in offers) for kind in (0, 1)]
    plain: list[Plain] = []
    for _ in range(random.randint(2, 4)):
        apps = [
            ([random.randint(1, 6), random.choice([256, 1024, 4096])], random.randint(1, 20))
            for _ in range(random.randint(1, 3))
        ]
        weight = [max(1, total[0] // random.randint(1, 4)), max(1, total[1] // random.randint(1, 4))]
        held = [random.randint(0, 3) for _ in apps]
        plain.append(Plain(weight, random.random() < 0.4, apps, held, got=[0] * len(apps)))
    nodes = [
        CompanyNode(
            str(number),
            quota=Quota(vector(one.weight)),
            capped=one.cap,
            users=[
                UserNode(
                    "ann",
                    leaves=[
                        Leaf(str(app), vector(size), most, most, held=one.held[app], rank=(number, app))
                        for app, (size, most) in enumerate(one.apps)
                    ],
                )
            ],
        )
        for number, one in enumerate(plain)
    ]
    Filling(Counter(map(vector, offers)), nodes, vector(total)).run()
    found = [[leaf.units for leaf in node.users[0].leaves] for node in nodes]
    assert found == plainly(offers, plain)
