"""The inputs of a turn, each held against what the command behind it comes to by the rules.

Commands are not in the log, but what they cause follows from the state: a lost worker takes its executors along, the
end of a driver ends its app, and a command that would change nothing causes nothing. So each command is told from
its first entry and decided again. What somebody only reports (that an app ended, how much work there is) is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from msgspec.structs import asdict, replace

from scheduler.model.commands import (
    ChangeCompany,
    Command,
    ConfigureCluster,
    DecommissionWorker,
    DrainWorker,
    EndedDriver,
    EndedExecutor,
    LoseWorker,
    RegisterWorker,
    RemoveCompany,
    RemoveWorker,
    UndrainWorker,
)
from scheduler.model.errors import CommandRejected
from scheduler.model.events import (
    AppChanged,
    AppRegistered,
    AppRemoved,
    ClusterConfigured,
    CompanyChanged,
    CompanyRemoved,
    DriverRemoved,
    Event,
    ExecutorChanged,
    ExecutorRemoved,
    ExecutorRevoked,
    MasterElected,
    WorkerChanged,
    WorkerRemoved,
)
from scheduler.rules.decide import decide
from scheduler.rules.demand import demand
from scheduler.rules.submission import check_purchase, request_of

if TYPE_CHECKING:
    from scheduler.rules.state import ClusterState
    from scheduler.store.codec import Fact


class Odd(NamedTuple):
    """The rule that an input breaks, and what was due: an event, or why there was none."""

    rule: str
    due: Event | str


class Inputs:
    """The inputs of one turn; `state` is folded by the caller, entry by entry."""

    def __init__(self, state: ClusterState, facts: Sequence[Fact]) -> None:
        self._state, self._facts = state, facts
        self._cause = ""
        """That of the input before."""
        self._command: Command | None = None
        self._due: list[Event] = []
        """What the command under way has still to cause."""
        self._strange: str | None = None
        """The cause of the inputs that nobody can say anything of, because one before was not as due."""

    def odd(self, number: int, fact: Fact) -> Odd | None:
        """What is wrong with the input of that number, which is about to be folded; None if nothing is."""
        cause, event = fact.cause, fact.event
        before, self._cause = self._cause, cause
        if self._due:
            due = self._due.pop(0)
            if event == due and cause == before:
                return None
            self._due.clear()
            self._strange = before
            return Odd(_rule(self._command, due), due)
        if self._strange is not None:
            if self._strange == cause:
                return None
            self._strange = None
        told = self._told.get(type(event))
        found = None if told is None else told(self, number, event)
        if found is None and cause and (cause == before or type(event) in _LAST):
            found = self._out_of_place(number, fact)
        if found is not None:
            self._due.clear()
            self._strange = cause
        return found

    def _out_of_place(self, number: int, fact: Fact) -> Odd | None:
        """Where a command begins, nothing of it comes before, and nothing else behind what ends what it causes."""
        kind = type(fact.event)
        if number and (before := self._facts[number - 1]).cause == fact.cause:
            together = (type(before.event), kind) in _TOGETHER
            return None if together else Odd("O2", f"nothing more of command {fact.cause}")
        if number + 1 < len(self._facts) and (behind := self._facts[number + 1]).cause == fact.cause:
            return None if type(behind.event) is kind else Odd("O2", f"the last entry of command {fact.cause}")
        return None

    def missing(self) -> Odd | None:
        """What had to come behind the last input."""
        return Odd(_rule(self._command, self._due[0]), self._due[0]) if self._due else None

    def _together(self, number: int) -> list[Event]:
        """The events from that one on that have one cause."""
        cause = self._facts[number].cause
        return [fact.event for fact in takewhile(lambda fact: fact.cause == cause, self._facts[number:])]

    def _decided(self, number: int, commands: Sequence[Command]) -> Odd | None:
        """Hold what came against what that one of these commands causes which has most in common with it.

        What came without a cause may be of several commands.
        """
        came, whole = self._together(number), bool(self._facts[number].cause)
        best, closest, refusal = (False, -1), commands[0], ""
        for command in commands:
            try:
                events = decide(self._state, command)
            except CommandRejected as error:
                refusal = str(error)
                continue
            as_due = bool(events) and events == (came if whole else came[: len(events)])
            alike = as_due, sum(event in came for event in events)
            if alike > best:
                best, closest, self._due = alike, command, list(events)
        self._command = closest
        if not self._due:
            return Odd("O2", f"nothing: {refusal or 'this would change nothing'}")
        due = self._due.pop(0)
        return None if due == came[0] else Odd(_rule(closest, due), due)

    def _master(self, number: int, _: MasterElected) -> Odd | None:
        return Odd("T2", "an election at the beginning of a turn alone") if number else None

    def _settings(self, number: int, event: ClusterConfigured) -> Odd | None:
        if not self._state.configured:
            return None
        return self._decided(number, [ConfigureCluster(settings=asdict(event))])

    def _company(self, number: int, event: CompanyChanged) -> Odd | None:
        if event.company not in self._state.companies:
            return None
        stated = asdict(event)
        return self._decided(number, [ChangeCompany(**stated), ChangeCompany(**{**stated, "borrow": None})])

    def _company_removed(self, number: int, event: CompanyRemoved) -> Odd | None:
        known = event.company in self._state.companies
        return self._decided(number, [RemoveCompany(company=event.company)]) if known else None

    def _worker(self, number: int, event: WorkerChanged) -> Odd | None:
        known = self._state.workers.get(event.worker)
        if known is None:
            return None
        if known.offer != (event.cores, event.memory_mb):
            offer = RegisterWorker(
                worker=known.id,
                node=known.node,
                host=known.host,
                rack=known.rack,
                cores=event.cores,
                memory_mb=event.memory_mb,
            )
            return self._decided(number, [offer])
        return self._decided(number, [status_command(event)])

    def _worker_removed(self, number: int, event: WorkerRemoved) -> Odd | None:
        known = event.worker in self._state.workers
        return self._decided(number, [_departure(event)]) if known else None

    def _executor(self, number: int, event: ExecutorRemoved) -> Odd | None:
        """It alone, where nothing follows: no task of it is left, or its app is over, and its worker stays."""
        state = self._state
        executor = state.executors.get(event.executor)
        if executor is None or (executor.app, executor.worker) != (event.app, event.worker):
            return None
        app, worker = state.apps[executor.app], state.workers[executor.worker]
        over = app.spec.sizing == "computed" if event.done else app.ended is not None
        if over and event.reason == "exited" and worker.status != "leaving":
            return None
        if event.reason == "lost":
            return self._decided(number, [self._departure(number, event.worker)])
        ended = EndedExecutor(
            executor=event.executor,
            reason="killed" if event.reason == "idle" else event.reason,
            exit_code=event.exit_code,
            done=event.done,
        )
        commands: list[Command] = [
            ended,
            DecommissionWorker(worker=event.worker),
            self._departure(number, event.worker),
        ]
        return self._decided(number, commands)

    def _driver(self, number: int, event: DriverRemoved) -> Odd | None:
        driver = self._state.drivers.get(event.driver)
        if driver is None or (driver.app, driver.worker) != (event.app, event.worker):
            return None
        if event.reason == "lost":
            return self._decided(number, [self._departure(number, event.worker)])
        why = next((one.detail for one in self._together(number) if isinstance(one, AppRemoved)), "")
        ended = EndedDriver(driver=event.driver, reason=event.reason, exit_code=event.exit_code, detail=why)
        return self._decided(number, [ended])

    def _departure(self, number: int, worker: str) -> Command:
        """How the worker left that took executors along; it is taken for lost where nothing says."""
        left = (
            event for event in self._together(number) if isinstance(event, WorkerRemoved) and event.worker == worker
        )
        return _departure(next(left, WorkerRemoved(worker=worker, reason="lost")))

    def _app(self, _: int, event: AppRegistered) -> Odd | None:
        """What it asks for makes what it holds (A1, A2, S5), within what its company bought (C4)."""
        state = self._state
        company = state.companies.get(event.company)
        if company is None:
            return Odd("O2", f"a company that is registered, which {event.company!r} is not")
        request = request_of(
            state,
            cores=event.cores,
            memory_per_task_mb=event.memory_per_task_mb,
            executor_cores=event.executor_cores,
            executor_memory_mb=event.executor_memory_mb,
            driver_cores=event.driver_cores,
            driver_memory_mb=event.driver_memory_mb,
            unlimited=event.unlimited,
        )
        if request != (event.requested_cores, event.requested_memory_mb):
            rule = "S5" if event.sizing != "computed" else "A1" if request.cores != event.requested_cores else "A2"
            return Odd(rule, replace(event, requested_cores=request.cores, requested_memory_mb=request.memory_mb))
        if state.settings.admission == "fair":
            try:
                check_purchase(company, *request)
            except CommandRejected as error:
                return Odd("C4", f"nothing: {error}")
        return None

    def _app_removed(self, _: int, event: AppRemoved) -> Odd | None:
        app = self._state.apps.get(event.app)
        if app is None or event.reason == "killed" or not app.spec.driver:
            return None
        return Odd("D3", f"nothing: app {event.app!r} ends when its driver ends")

    def _demand(self, _: int, event: AppChanged) -> Odd | None:
        app = self._state.apps.get(event.app)
        same = app is not None and event == demand(app)
        return Odd("O2", "nothing: this would change nothing") if same else None

    _told: ClassVar[dict[type[Event], Callable[[Inputs, int, Any], Odd | None]]] = {
        MasterElected: _master,
        ClusterConfigured: _settings,
        CompanyChanged: _company,
        CompanyRemoved: _company_removed,
        WorkerChanged: _worker,
        WorkerRemoved: _worker_removed,
        AppRegistered: _app,
        AppChanged: _demand,
        AppRemoved: _app_removed,
        ExecutorRemoved: _executor,
        DriverRemoved: _driver,
    }
    """What looks at the first entry of a command; any other type is believed, or held against by the audit itself."""


def _rule(command: Command | None, due: Event) -> str:
    """The rule that says that this comes of the command."""
    if isinstance(command, EndedExecutor):
        return _OF_AN_END[type(due)]
    return "O2" if command is None else _RULES.get(type(command), "O2")


def _departure(event: WorkerRemoved) -> Command:
    if event.reason == "lost":
        return LoseWorker(worker=event.worker, last_seen=event.last_seen)
    return RemoveWorker(worker=event.worker, force=True)


_RULES: dict[type[Command], str] = {
    RegisterWorker: "W1",
    LoseWorker: "W2",
    DrainWorker: "W3",
    UndrainWorker: "W3",
    RemoveWorker: "W3",
    DecommissionWorker: "W6",
    EndedDriver: "D3",
    ChangeCompany: "C2",
}
_OF_AN_END: dict[type[Event], str] = {ExecutorRemoved: "A5", AppChanged: "S6", AppRemoved: "W5", WorkerRemoved: "W3"}
_TOGETHER = {(ExecutorChanged, AppChanged), (ExecutorRevoked, ExecutorRevoked)}
"""What may stand side by side and come of one command that is not decided again: of a backlog, and of kills."""
_LAST = {AppChanged, AppRemoved}
"""What stands alone, or behind what else a command causes."""


def status_command(event: WorkerChanged) -> Command:
    """What gave the worker that status, its offer being what it was."""
    match event.status:
        case "alive":
            return UndrainWorker(worker=event.worker)
        case "draining":
            return DrainWorker(worker=event.worker)
        case "leaving":
            return RemoveWorker(worker=event.worker)
        case "decommissioned":
            return DecommissionWorker(worker=event.worker)
