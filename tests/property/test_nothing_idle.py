"""No core is idle at the end of a turn that an eligible app could use (semantics Z1: P6, A3, A9)."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.commands import Command, DecommissionWorker
from scheduler.model.errors import CommandRejected
from scheduler.rules.admission.company import COMPANY_POLICIES
from scheduler.rules.admission.user import USER_POLICIES
from scheduler.rules.entities import App
from scheduler.rules.state import ClusterState
from tests.property import reference
from tests.property.given import Cluster
from tests.property.histories import BUILD_UP, HISTORIES, History, command_for

CHOICES = st.fixed_dictionaries(
    {
        "company_policy": st.sampled_from(sorted(COMPANY_POLICIES)),
        "user_policy": st.sampled_from(sorted(USER_POLICIES)),
        "placement": st.sampled_from(["spread", "pack"]),
        "reclaim": st.sampled_from(["none", "gentle", "firm"]),
        "max_driver_share": st.just("1/1"),
    }
)


@given(history=HISTORIES, chosen=CHOICES)
@settings(max_examples=60)
def test_no_core_is_idle_that_an_eligible_app_could_use(history: History, chosen: dict[str, object]) -> None:
    past = reference.Past()
    cluster = Cluster(chosen, before=lambda state, _: past.note(state), each_refusal=False)
    for turn in (*BUILD_UP, *history):
        commands: list[Command] = [command_for(cluster.state, step) for step in turn]
        with suppress(CommandRejected):
            cluster.turn(*commands)
        if not any(isinstance(command, DecommissionWorker) for command in commands):  # it starts no placement (W6)
            cluster.turn()
            past.note(cluster.state)
            nothing_is_idle(cluster.state, past)


def nothing_is_idle(state: ClusterState, past: reference.Past) -> None:
    """Nobody admitted is owed an executor that fits, and no eligible app that waits could get one."""
    if state.settings.admission == "open":
        return
    for app in state.waiting.values():
        if app.owed and not app.wanted and reference.still(state, app)[0]:
            assert not has_room(state, reference.smallest(state, app), app), f"{app.spec.app} is owed an executor"
    eligible = {name: reference.heads(state, company, past, borrows=False) for name, company in state.companies.items()}
    able = {name for name, apps in eligible.items() if any(could_use(state, app) for app in apps)}
    assert not able, f"an app of {able} passes its quota and could get an executor"
    for name, company in state.companies.items():
        if company.spec.may_borrow:
            beyond = reference.heads(state, company, past, borrows=True)
            assert not any(could_use(state, app) for app in beyond), f"an app of {name} could use what nobody else can"


def could_use(state: ClusterState, app: App) -> bool:
    """Whether each of what the app needs of a worker fits on a live one now."""
    needs = reference.needs(state, app)
    drivers = state.settings.max_drivers is None or len(state.drivers) < state.settings.max_drivers
    return bool(needs) and (app.spec.driver is None or drivers) and all(has_room(state, need) for need in needs)


def has_room(state: ClusterState, size: tuple[int, int], app: App | None = None) -> bool:
    """Whether a live worker has that much free that is not held for another app, one without its own by P7."""
    one_each = app is not None and state.settings.placement.startswith("classic")
    own = {executor.worker for executor in app.executors.values()} if app is not None and one_each else set()
    workers = (worker for worker in reference.live(state) if worker.id not in own)
    rooms = (worker.open_to(None if app is None else app.spec.app) for worker in workers)
    return any(room.cores >= size[0] and room.memory_mb >= size[1] for room in rooms)
