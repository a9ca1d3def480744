"""What an app is told of its waiting is so: what it names as the cause is in the way, and what it advises helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from msgspec.json import encode

from scheduler.model.answers import WaitReason
from scheduler.model.commands import (
    ChangeCompany,
    ChangeDepartment,
    Command,
    KillApp,
    RegisterWorker,
    ReleaseApp,
    RemoveWindow,
    SetLimit,
)
from scheduler.model.errors import CommandRejected
from scheduler.rules.entities.apps import App
from scheduler.rules.entities.labels import MARK
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from tests.property.given import Cluster
from tests.property.histories import BUILD_UP, RULES_BY_NAME, command_for, seeded
from witness.pending_reasons import waits_for

SETTINGS = {**RULES_BY_NAME, "admission": ["fair", "fair", "fair", "open"]}
MORE = 100_000_000


def released(app: App, _: dict[str, Any]) -> list[Command]:
    return [ReleaseApp(app=app.id)]


def raised(_: App, facts: dict[str, Any]) -> list[Command]:
    """The limit that is named does not bind any more."""
    department, user = facts.get("department"), facts.get("user")
    scope = "department" if department else "user" if user else "company"
    company = None if department else facts["company"]
    of: dict[str, Any] = {"scope": scope, "company": company, "user": user, "department": department}
    return [SetLimit(name=facts["limit"], value=MORE, **of)]


def without_windows(_: App, facts: dict[str, Any]) -> list[Command]:
    return [RemoveWindow(window=each["window"]) for each in facts["windows"]]


def first_in_line(_: App, facts: dict[str, Any]) -> list[Command]:
    return [KillApp(app=each) for each in facts["ahead"]]


def with_a_larger_quota(app: App, facts: dict[str, Any]) -> list[Command]:
    """Of the company, or of the department that is named, which then keeps nothing for itself either."""
    if department := facts.get("department"):
        return [ChangeDepartment(department=department, cores=MORE, memory_mb=MORE, lend_limit="100%")]
    return [ChangeCompany(company=app.spec.company, cores=MORE, memory_mb=MORE)]


def with_a_worker(app: App, facts: dict[str, Any]) -> list[Command]:
    """One that has just the room that is named, once for each executor of a gang, and the driver's."""
    times, driver = max(1, app.need.gang), app.need.driver
    labels = {name: value or "x" for name, _, value in (term.partition("=") for term in app.spec.require)}
    kinds = {
        kind: tuple(map(str, range(amount * times)))
        for kind, amount in dict(app.need.least.others).items()
        if not kind.startswith(MARK)
    }
    each, memory_mb = facts.get("cores", app.need.least.cores), facts.get("memory", app.need.least.memory_mb)
    size = each * times + driver.cores, memory_mb * times + driver.memory_mb
    named: dict[str, Any] = {"worker": "more", "node": "more", "host": "more", "labels": labels, "resources": kinds}
    return [RegisterWorker(cores=size[0], memory_mb=size[1], **named)]


HELPS: dict[str, Callable[[App, dict[str, Any]], list[Command]]] = {
    "hold": released,
    "beyond-limit": raised,
    "window": without_windows,
    "queue": first_in_line,
    "cap": with_a_larger_quota,
    "no-worker-large-enough": with_a_worker,
}
"""Cause -> what ends it."""
NAMES = {
    "beyond-limit": ("limit", "company", "user", "department"),
    "cap": ("company", "department"),
    "window": ("windows",),
}
"""The facts that tell which limit, cap or window it is: an app may wait for another one afterwards."""


def after(state: ClusterState, commands: list[Command]) -> ClusterState:
    """Another state, a second and a turn with these commands later."""
    then = restored(list(lines(state)))
    turn = Turn(then, then.at + 1000)
    for number, command in enumerate(commands):
        turn.take(command, f"help-{number}")
    turn.settle()
    return then


def told(state: ClusterState, app: App) -> WaitReason | None:
    wait = waits_for(state, app)
    return None if wait is None else wait.told()


def check_told(state: ClusterState, app: App, seen: Counter[str]) -> None:
    """Nothing is due in a turn of which nothing is left to do, and what helps against a cause ends it."""
    reason = told(state, app)
    if reason is None:
        return
    assert encode(reason)
    assert "()" not in reason.text, reason.text
    assert reason.cause != "next-turn", f"{app.id}: {reason.text}, but nothing is due"
    seen[reason.cause] += 1
    if reason.cause not in HELPS:
        return
    try:
        then = after(state, HELPS[reason.cause](app, reason.facts))
    except CommandRejected:
        return
    later = then.apps.get(app.id)
    if later is None or later.ended is not None:
        return
    seen[f"{reason.cause} ended"] += 1
    now = told(then, later)
    if now is None or now.cause != reason.cause:
        return
    names = NAMES.get(reason.cause, ())
    others = any(now.facts.get(each) != reason.facts.get(each) for each in names)
    assert others, f"{app.id}: {reason.text}; once that is mended: {now.text}"


def lived(seed: int, seen: Counter[str]) -> None:
    """A random history, at some turns of which each app that waits is asked why."""
    random = Random(f"told {seed}")
    settings: dict[str, object] = {name: random.choice(values) for name, values in SETTINGS.items()}
    cluster = Cluster(settings, each_refusal=False, each_event=False)
    history = seeded(seed, random.randrange(15, 60), later=seed % 2 > 0, trees=seed % 3 > 0)
    for number, steps in enumerate((*BUILD_UP, *history)):
        with suppress(CommandRejected):
            cluster.turn(*(command_for(cluster.state, step) for step in steps))
        if number % 9 == 8:
            again = Turn(cluster.state, cluster.state.at)
            again.settle()
            for app in [] if again.entries else [*cluster.state.apps.values()]:
                check_told(cluster.state, app, seen)


@pytest.mark.parametrize("first", range(200, 230, 10))
def test_what_an_app_is_told_of_its_waiting_is_so(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 10):
        lived(seed, seen)
    assert len(seen) > 10, seen
    assert seen["hold ended"] > 0, seen
    assert seen["no-worker-large-enough ended"] > 0, seen
