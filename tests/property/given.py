"""A cluster for tests: events or commands in, events out, every ledger recomputed at log positions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import count
from typing import NamedTuple

from hypothesis import settings
from msgspec.json import decode, encode

from scheduler.model.commands import (
    ChangeEdition,
    Command,
    ConfigureCluster,
    DecommissionWorker,
    EndedExecutor,
    Private,
    RegisterCompany,
    RegisterWorker,
    SubmitApp,
)
from scheduler.model.errors import CommandRejected
from scheduler.model.events import (
    AppAdmitted,
    AppRegistered,
    CompanyRegistered,
    Computed,
    Event,
    ExecutorAllocated,
    WorkerRegistered,
)
from scheduler.model.resources import Resources
from scheduler.model.sender import NOBODY, By
from scheduler.rules.invariants import check, parts_of_gangs
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.preconditions import EDITIONS
from scheduler.store.codec import GENESIS_DIGEST, Record, encode_turn, told

GIB = 1024


def examples(usual: int) -> settings:
    """The settings of a property that is tried on so many examples, or on as many as the variable EXAMPLES says."""
    return settings(max_examples=int(os.environ.get("EXAMPLES", usual)))


class Logged(NamedTuple):
    """What the log says of one event."""

    event: Event
    at: int
    cause: str
    private: Private | None = None
    by: By = NOBODY


Watch = Callable[[ClusterState, Event], None]
"""Sees each event of a turn just before it is folded."""


class Cluster:
    """A cluster under these settings that takes commands, a second apart, and remembers what the log would say.

    That a refused command changes nothing is seen at each of them, or by `check_replay` at the end of a long history.
    The ledgers are recomputed after each event, or after each turn. It has `begun` once its log says the edition.
    """

    def __init__(
        self,
        settings: dict[str, object] | None = None,
        *,
        before: Watch = lambda _, __: None,
        each_refusal: bool = True,
        each_event: bool = True,
        begun: bool = True,
    ) -> None:
        self.state = ClusterState()
        self.log: list[Logged] = []
        self.records: list[Record] = []
        """The same, as it is stored: each turn has a time of its own."""
        self.before = before
        self.each_refusal = each_refusal
        self.each_event = each_event
        if begun:
            self.turn(ChangeEdition(edition=EDITIONS[-1]), after_s=0)
        if settings:
            self.turn(ConfigureCluster(settings=settings))

    def turn(self, *commands: Command, after_s: int = 1, by: By = NOBODY) -> list[Event]:
        """The events of one turn that takes these commands of the sender `by` so many seconds after the one before.

        Raises: CommandRejected of the first refused one, once the others have been taken.
        """
        turn = self.begin(after_s)
        refused: list[CommandRejected] = []
        for command in commands:
            untouched = self.state.digest() if self.each_refusal else ""
            try:
                turn.take(command, f"command-{len(self.log) + len(turn.entries)}", by)
            except CommandRejected as error:
                assert not untouched or self.state.digest() == untouched, "a refused command changed something"
                refused.append(error)
        turn.settle()
        if not self.each_event:
            check(self.state)
        assert list(parts_of_gangs(self.state)) == []
        self._note(turn)
        if refused:
            raise refused[0]
        return [entry.event for entry in turn.entries]

    def begin(self, after_s: int = 1) -> Turn:
        """A turn so many seconds after the one before, each of whose events is checked."""
        after = self._check if self.each_event else None
        return Turn(self.state, self.state.at + after_s * 1000, before=self._see, after=after)

    def _see(self, event: Event, _: str) -> None:
        assert decode(encode(event), type=type(event)) == event
        self.before(self.state, event)

    def _check(self, _: Event, __: str) -> None:
        check(self.state)

    def _note(self, turn: Turn) -> None:
        if not turn.entries:
            return
        previous = self.records[-1].digest if self.records else GENESIS_DIGEST
        salts = (f"{number:032x}" for number in count(turn.first))
        record = encode_turn(
            turn.entries, turn.commands, first=turn.first, at=turn.at, previous=previous, salt=salts.__next__
        )
        self.records.append(record)
        self.log += [Logged(fact.event, fact.at, fact.cause, fact.private, fact.by) for fact in told(record)]

    def check_replay(self) -> None:
        """Fail unless the state is what its log tells: nothing but events has changed it."""
        again = ClusterState()
        for event, at, cause, private, by in self.log:
            again.apply(event, at=at, cause=cause, private=private, by=by)
        assert again.digest() == self.state.digest(), "something that is not in the log changed the state"

    def company(
        self,
        name: str,
        cores: int | None = None,
        memory_mb: int | None = None,
        *,
        part: str | None = None,
        borrow: bool | None = None,
    ) -> list[Event]:
        """What the registration of a company causes."""
        return self.turn(RegisterCompany(company=name, cores=cores, memory_mb=memory_mb, part=part, borrow=borrow))

    def worker(self, name: str, cores: int, memory_mb: int = 64 * GIB) -> list[Event]:
        """What the registration of a worker causes."""
        return self.turn(worker(name, cores, memory_mb))

    def submit(
        self,
        app: str,
        cores: int | None = 8,
        *,
        company: str = "acme",
        user: str = "ann",
        per_task_mb: int | None = 512,
        kind: str = "batch",
    ) -> list[Event]:
        """What the submission of an app causes."""
        return self.turn(submission(app, cores, company=company, user=user, per_task_mb=per_task_mb, kind=kind))

    def ended(self, executor: str, *, done: bool = False, failed: bool = False) -> list[Event]:
        """What the end of an executor causes."""
        return self.turn(
            EndedExecutor(executor=executor, reason="failed" if failed else "exited", exit_code=int(failed), done=done)
        )


def rests(commands: Iterable[Command]) -> bool:
    """Whether a turn with these commands may decide nothing: a decommission starts no placement (semantics W3)."""
    return any(isinstance(command, DecommissionWorker) for command in commands)


def decides_nothing_more(state: ClusterState) -> None:
    """Fail if a second turn at the same time, without an input, decides anything (semantics E6)."""
    again = Turn(state, state.at)
    again.settle()
    assert not again.entries, f"semantics E6: a second turn without an input decides {again.entries[0].event}"


def recorded(cluster: Cluster) -> list[Record]:
    """The log of the cluster, a turn a record."""
    return list(cluster.records)


def worker(name: str, cores: int, memory_mb: int = 64 * GIB) -> RegisterWorker:
    """The offer of a worker on a node of its own."""
    return RegisterWorker(worker=name, node=name, host=f"{name}.example", cores=cores, memory_mb=memory_mb)


def submission(
    app: str,
    cores: int | None = 8,
    *,
    company: str = "acme",
    user: str = "ann",
    per_task_mb: int | None = 512,
    kind: str = "batch",
) -> SubmitApp:
    """The submission of an app that runs `true`."""
    return SubmitApp(
        app=app, company=company, user=user, kind=kind, cores=cores, memory_per_task_mb=per_task_mb, command=("true",)
    )


def shared(settings: dict[str, object] | None = None, **offers: int) -> Cluster:
    """A cluster of the company `acme` with workers of so many cores and 64 GiB each."""
    cluster = Cluster(settings)
    cluster.company("acme")
    for name, cores in offers.items():
        cluster.worker(name, cores)
    return cluster


def fold(events: Iterable[Event], state: ClusterState | None = None) -> ClusterState:
    """The state after these events, a millisecond apart, checked at every one."""
    folded = ClusterState() if state is None else state
    for event in events:
        folded.apply(event, at=folded.at + 1)
        check(folded)
    return folded


def admitted(events: Iterable[Event]) -> list[str]:
    """The apps that were admitted, in order."""
    return [event.app for event in events if isinstance(event, AppAdmitted)]


def allocated(events: Iterable[Event]) -> list[tuple[str, int, int]]:
    """(worker, cores, MiB) of each executor that was allocated, in order."""
    granted = [event for event in events if isinstance(event, ExecutorAllocated)]
    return [(event.worker, event.resources.cores, event.resources.memory_mb) for event in granted]


def joined(name: str = "w1", cores: int = 16, memory_mb: int = 64 * GIB) -> WorkerRegistered:
    """The event of a worker that joined."""
    return WorkerRegistered(worker=name, node=name, host=f"{name}.example", rack="", offer=Resources(cores, memory_mb))


def queued(
    app: str = "a1",
    cores: int = 8,
    *,
    company: str = "acme",
    user: str = "ann",
    memory_mb: int | None = None,
    per_task_mb: int | None = 512,
) -> AppRegistered:
    """The event of an app of whole minimum executors that joined its user's queue."""
    return AppRegistered(
        app=app,
        company=company,
        user=user,
        kind="batch",
        cores=cores,
        requested=Resources(cores, cores * 512 if memory_mb is None else memory_mb),
        tasks=cores,
        sizing=Computed(per_task_mb),
    )


def entered(app: str = "a1", *, company: str = "acme", user: str = "ann", share: str = "0/1") -> AppAdmitted:
    """The event of an app that was admitted."""
    return AppAdmitted(app=app, company=company, user=user, share=share)


def granted(executor: str = "a1.0", worker: str = "w1", cores: int = 4, memory_mb: int = 2048) -> ExecutorAllocated:
    """The event of an executor that was allocated."""
    app = executor.rpartition(".")[0]
    return ExecutorAllocated(app=app, executor=executor, worker=worker, resources=Resources(cores, memory_mb))


ACME = CompanyRegistered(company="acme")
"""The event of a tenant with a default quota."""
