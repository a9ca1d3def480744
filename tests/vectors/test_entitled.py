"""Entitlements and targets of small clusters, as an independent reading of the rules has them (semantics H1-H7)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from scheduler.model.commands import command_of
from scheduler.model.errors import CommandRejected
from scheduler.model.events import Event, ExecutorAllocated, ExecutorRevoked, TargetSet
from scheduler.rules.share.entitlement import entitlement
from scheduler.rules.state.cluster import ClusterState
from tests.property.given import Cluster

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("entitled.json").read_text())["cases"]


def played(case: dict[str, Any]) -> tuple[ClusterState, list[list[Any]]]:
    """The state after the turns of a case, and the targets that were set in them."""
    events: list[Event] = []
    cluster = Cluster(
        case["settings"], before=lambda _, event: events.append(event), each_event=False, each_refusal=False
    )
    for after_s, *commands in case["turns"]:
        with suppress(CommandRejected):
            cluster.turn(*[command_of({"type": name, **values}) for name, values in commands], after_s=after_s)
    return cluster.state, targets(events)


def targets(events: Sequence[Event]) -> list[list[Any]]:
    """Each target with who is told to leave for it, and where the app of whoever moves gets the same first."""
    found: list[list[Any]] = []
    for event, following in zip(events, [*events[1:], None], strict=True):
        if isinstance(event, TargetSet):
            found.append([event.app, event.worker, event.why, []])
        elif isinstance(event, ExecutorRevoked) and event.why is not None:
            to = following.worker if event.why == "move" and isinstance(following, ExecutorAllocated) else ""
            found[-1][3].append([event.executor, to])
    return [[app, worker, why, sorted(leaving)] for app, worker, why, leaving in found]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in CASES])
def test_apps_are_entitled_and_needs_get_targets_as_the_case_says(case: dict[str, Any]) -> None:
    state, found = played(case)
    entitled = entitlement(state)
    assert {name: entitled.units(state.apps[name]) for name in case["entitled"]} == case["entitled"]
    others = [app for app in state.apps.values() if app.ended is None and app.id not in case["entitled"]]
    assert [app.id for app in others if entitled.units(app)] == []
    assert sorted(app.id for app in state.apps.values() if entitled.is_driven(app)) == case["drivers"]
    assert found == case["targets"]
