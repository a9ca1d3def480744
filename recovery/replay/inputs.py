"""The inputs that the log tells of: who submitted what, which workers came and went, what was set.

What follows from how apps ran (executors that started and ended, apps that finished, demand that moved) stays a
fact: it holds in another world only for an app that fared the same there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import asdict

from scheduler.model.commands import (
    Command,
    ConfigureCluster,
    DecommissionWorker,
    DrainWorker,
    KillApp,
    LoseWorker,
    RegisterCompany,
    RegisterWorker,
    RemoveCompany,
    RemoveWorker,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.events import (
    ClusterConfigured,
    Event,
    ExecutorsRequested,
    MasterElected,
    RoomReserved,
    WorkerRemoved,
)

if TYPE_CHECKING:
    from scheduler.store.codec import Fact

_HOLDS_ANYWHERE = (
    ConfigureCluster,
    DecommissionWorker,
    DrainWorker,
    KillApp,
    LoseWorker,
    RegisterCompany,
    RegisterWorker,
    RemoveCompany,
    RemoveWorker,
    SubmitApp,
    UndrainWorker,
)
"""Commands that are given in any world, whatever became of the apps there."""


class Input(NamedTuple):
    """A command, or a fact about how an app ran, and the id of the command that caused it."""

    what: Command | Event
    cause: str = ""


class LoggedTurn(NamedTuple):
    """What came in at `at` (ms), and every event that the log has of that turn."""

    at: int
    inputs: list[Input]
    events: list[Event]
    causes: list[str]


def turns(facts: Iterable[Fact]) -> Iterator[LoggedTurn]:
    """The turns of the log."""
    for _, group in groupby(facts, key=lambda fact: fact.turn):
        entries = list(group)
        events, causes = [fact.event for fact in entries], [fact.cause for fact in entries]
        yield LoggedTurn(entries[0].at, list(_inputs(entries)), events, causes)


def _inputs(turn: Sequence[Fact]) -> Iterator[Input]:
    for number, fact in enumerate(turn):
        if isinstance(fact.command, _HOLDS_ANYWHERE):
            yield Input(fact.command, fact.cause)
        elif fact.command is not None:
            for event in (caused.event for caused in turn[number : number + fact.caused]):
                if isinstance(event, ExecutorsRequested | RoomReserved):
                    continue
                what = RemoveWorker(worker=event.worker) if isinstance(event, WorkerRemoved) else event
                yield Input(what, fact.cause)
        elif isinstance(fact.event, MasterElected):
            yield Input(fact.event)
        elif isinstance(fact.event, ClusterConfigured) and not fact.cause:
            yield Input(ConfigureCluster(settings=asdict(fact.event)))
