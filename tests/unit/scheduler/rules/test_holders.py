"""In which order apps lose executors to claims (semantics E4)."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

from scheduler.rules.holders import Holders

TURNS, WINDOW_MS = 3, 400


def app(admitted: int, priority: int) -> Any:
    return SimpleNamespace(spec=SimpleNamespace(company="acme"), admitted=admitted, priority=priority, losses=())


def test_the_order_is_that_of_a_sort_whatever_changes_and_however_often_it_is_asked() -> None:
    chance, holders, apps = Random(7), Holders(), dict[int, Any]()
    for at in range(1, 3000):
        name = chance.choice(list(apps)) if apps else 0
        match chance.randrange(5):
            case 0 | 1 if len(apps) < 30:
                apps[at] = app(at, chance.randrange(-1, 2))
                holders.add(apps[at])
            case 2 if apps and len(apps) > 20:
                holders.drop(apps.pop(name))
            case 3 if apps:
                apps[name].losses = (*apps[name].losses, at)[-TURNS:]
                holders.move(apps[name])
            case _ if apps:
                apps[name].priority = chance.randrange(-1, 2)
                holders.move(apps[name])
        if chance.randrange(3) and apps:
            after = at - WINDOW_MS - chance.choice((0, 0, 90))  # a turn that logs nothing may be later than the next
            ranked = sorted(
                apps.values(),
                key=lambda one: (sum(when > after for when in one.losses) >= TURNS, one.priority, -one.admitted),
            )
            assert list(holders.in_order("acme", after, TURNS)) == ranked
            some = {str(one.admitted): one for one in chance.sample(list(apps.values()), len(apps) // 2)}
            kept = [one for one in ranked if str(one.admitted) in some]
            assert list(holders.in_order("acme", after, TURNS, some)) == kept


def test_a_company_without_executors_is_not_among_those_that_could_lose_one() -> None:
    holders, only = Holders(), app(1, 0)
    holders.add(only)
    assert list(holders.companies) == ["acme"]
    holders.drop(only)
    holders.drop(only)
    assert not holders.companies
    assert only not in holders
