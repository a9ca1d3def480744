"""Promises about further kinds of resources, over random histories (semantics R)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.model.commands import (
    Command,
    RegisterCompany,
    RegisterKind,
    RegisterWorker,
    SubmitApp,
)
from scheduler.model.errors import CommandRejected
from scheduler.model.events import (
    Computed,
    DriverAllocated,
    DriverRemoved,
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
    OnePerWorker,
    WorkerChanged,
    WorkerRegistered,
    WorkerRemoved,
)
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities.apps import App
from scheduler.rules.invariants import check
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from tests.property import reference
from tests.property.given import Cluster, decides_nothing_more, rests
from tests.property.histories import HISTORIES, WHAT, History, Step, command_for

KINDS = ("gpu", "gpu.a100", "fpga")
OFFERS: Sequence[Mapping[str, tuple[str, ...]]] = (
    {"gpu": ("0", "1", "2")},
    {},
    {"gpu": ("1", "0")},
    {"fpga": ("a",), "gpu": ("0",)},
    {"gpu.a100": ("x", "y", "z")},
    {},
    {"gpu": ("2", "3", "0", "1"), "fpga": ("b", "a")},
)
EXECUTORS: Sequence[dict[str, int]] = ({}, {"gpu": 1}, {"gpu": 2}, {"gpu": 1, "fpga": 1}, {"gpu.a100": 1}, {"gpuu": 1})
TASKS: Sequence[dict[str, str]] = ({}, {"gpu": "1/4"}, {"gpu": "1/8", "fpga": "1/4"}, {"gpu.a100": "1/3"}, {"gpu": "1"})
QUOTAS: Sequence[dict[str, int]] = ({"gpu": 2}, {"gpu": 0}, {"fpga": 1, "gpu": 4}, {"gpu.a100": 9})


def with_kinds(command: Command, number: int) -> Command:
    """The command, naming kinds where it can."""
    match command:
        case RegisterWorker():
            return replace(command, resources=dict(OFFERS[number % len(OFFERS)]))
        case RegisterCompany() if command.cores is not None:
            return replace(command, resources=QUOTAS[number % len(QUOTAS)])
        case SubmitApp():
            sized = command.executor_cores or command.executor_memory_mb or command.elastic
            driver = {"gpu": 1} if command.driver and number % 3 == 0 else {}
            asked = replace(command, driver_resources=driver)
            if sized:
                return replace(asked, executor_resources=EXECUTORS[number % len(EXECUTORS)])
            return replace(asked, task_resources=TASKS[number % len(TASKS)])
    return command


class Addresses:
    """Who holds which address, by what the events say alone."""

    def __init__(self) -> None:
        self.offered: dict[str, list[tuple[str, str]]] = {}
        self.held: dict[str, tuple[str, list[tuple[str, str]]]] = {}

    def see(self, state: ClusterState, event: Event) -> None:
        """Note the event that is about to be folded, and check it against those before."""
        match event:
            case WorkerRegistered() | WorkerChanged():
                self.offered[event.worker] = _pairs(event.addresses)
                taken = [one for worker, held in self.held.values() if worker == event.worker for one in held]
                assert set(taken) <= set(self.offered[event.worker]), "a granted address left the offer"
            case WorkerRemoved():
                del self.offered[event.worker]
            case ExecutorAllocated(executor=name) | DriverAllocated(driver=name):
                self.grant(name, event)
                if isinstance(event, ExecutorAllocated):
                    spares_others(state, event)
            case ExecutorRemoved(executor=name) | DriverRemoved(driver=name):
                del self.held[name]

    def grant(self, name: str, event: ExecutorAllocated | DriverAllocated) -> None:
        """The first free addresses are granted, in the order of the offer."""
        taken = {one for worker, held in self.held.values() if worker == event.worker for one in held}
        free = [one for one in self.offered[event.worker] if one not in taken]
        for kind, number in event.resources.others:
            assert [(kind, one) for one in event.addresses[kind]] == [one for one in free if one[0] == kind][:number]
        self.held[name] = event.worker, _pairs(event.addresses)


def _pairs(named: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    return [(kind, address) for kind, found in named.items() for address in found]


def spares_others(state: ClusterState, event: ExecutorAllocated) -> None:
    """Semantics P1: workers that offer fewer kinds which the executor does not need had no room; exact for `pack`."""
    if not state.sparing or state.settings.placement != "pack" or event.locality is not None or state.holds:
        return
    wanted = {kind for kind, _ in event.resources.others}
    spare = {name: len(one.addresses.keys() - wanted) for name, one in state.workers.items() if one.status == "alive"}
    failed = state.apps[event.app].troubles  # other workers go first (W7)
    better = [name for name, number in spare.items() if number < spare[event.worker] and name not in failed]
    assert not any(state.workers[name].open_to(event.app).covers(event.resources) for name in better)


def played(history: History, settings: dict[str, object]) -> Cluster:
    """The cluster of the history, in which workers, companies and apps name kinds; checked event by event."""
    ledger = Addresses()
    cluster = Cluster(settings, before=ledger.see, each_refusal=False)
    cluster.turn(*(RegisterKind(kind=kind) for kind in KINDS))
    build_up: History = (
        [Step(WHAT.index("company"), number, number) for number in range(3)],
        [Step(WHAT.index("worker"), number, number) for number in range(7)],
    )
    for turn in (*build_up, *history):
        commands = [with_kinds(command_for(cluster.state, step), step.how + step.whom) for step in turn]
        with suppress(CommandRejected):
            cluster.turn(*commands)
        if not rests(commands):
            at_rest(cluster.state)
    return cluster


def at_rest(state: ClusterState) -> None:
    """No app of a company that may borrow is owed what a live worker has room for; a second turn decides nothing (H5).

    A cap counts what other apps of the company are below, too (H1).
    """
    if state.settings.admission == "fair" and not state.settings.placement.startswith("classic"):
        for app in state.waiting.values():
            lends = state.companies[app.spec.company].spec.may_borrow
            if lends and state.wants_executors(app) and not app.demand.wanted and (size := smallest(state, app)):
                trusted = (one for one in reference.live(state) if one.suspicion is None and one.id not in app.troubles)
                assert not any(one.open_to(app.id).covers(size) for one in trusted), f"{app.id} is owed an executor"
    decides_nothing_more(state)


def smallest(state: ClusterState, app: App) -> Resources | None:
    """The smallest executor of the app with its further kinds (A7, R3), None if its request leaves less (A2)."""
    cores, memory_mb = reference.smallest(state, app)
    others: dict[str, int] = {}
    if isinstance(app.sizing, Computed):
        tasks = cores // app.spec.cores_per_task
        others = {kind: -(-tasks * amount // of) for kind, amount, of in app.sizing.per_task}
    else:
        others = dict(app.sizing.others if isinstance(app.sizing, OnePerWorker) else app.sizing.each.others)
    size = Resources(cores, memory_mb, tuple(sorted(others.items())))
    held = sum((one.resources for one in app.executors.values()), app.spec.driver or NOTHING)
    left = app.requested - held - Resources(app.done_cores)
    return size if left.covers(size) else None


@given(
    HISTORIES,
    st.fixed_dictionaries(
        {
            "placement": st.sampled_from(["pack", "spread", "classic-spread", "classic-pack"]),
            "admission": st.sampled_from(["fair", "fair", "open"]),
            "reclaim_patience_s": st.sampled_from([None, 0, 5]),
        }
    ),
)
def test_no_address_is_granted_twice_and_none_leaves_an_offer(history: History, settings: dict[str, object]) -> None:
    """Semantics R1, R5, P1; ledgers, parts and claims of every kind are recomputed at each event (O2)."""
    cluster = played(history, settings)
    cluster.check_replay()
    again = restored(lines(cluster.state))
    check(again)
    assert again.digest() == cluster.state.digest()
