"""A long log as a busy cluster would have written it: apps come, get executors, end, others follow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from scheduler.commands import (
    Command,
    ConfigureCluster,
    EndApp,
    EndedExecutor,
    RegisterCompany,
    RegisterWorker,
    StartedExecutor,
    SubmitApp,
)
from scheduler.eventlog import GENESIS, EventLog, Position
from scheduler.events import ExecutorAllocated, Record, encode
from scheduler.state import ClusterState
from scheduler.turn import Turn

COMPANIES, USERS_PER_COMPANY = 8, 10
APPS_PER_TURN = 50
APP_CORES = 8
MS_PER_TURN = 100


class History:
    """A cluster of `workers` with 16 cores each that holds `queued` pending apps and ends the oldest running ones."""

    def __init__(self, *, workers: int, queued: int, retained: int = 10_000) -> None:
        self.state = ClusterState()
        self.position = GENESIS
        self._workers, self._queued, self._retained = workers, queued, retained
        self._number = 0
        self._started: deque[str] = deque()

    def records(self, until: int) -> Iterator[list[Record]]:
        """The records of one turn after the other, until the log has `until` of them or some more."""
        if not self.state.head:
            yield self._turn(ConfigureCluster(settings={"retained_apps": self._retained}))
            yield self._turn(*(RegisterCompany(company=f"company{number}") for number in range(COMPANIES)))
            for first in range(0, self._workers, 1000):
                numbers = range(first, min(first + 1000, self._workers))
                yield self._turn(*map(_worker, numbers))
            for _ in range(self._workers * 16 // APP_CORES + self._queued):
                yield self._turn(self._submission())
        while self.state.head < until:
            yield self._turn(*self._ends(), *(self._submission() for _ in range(APPS_PER_TURN)))
            started, self._started = list(self._started), deque()
            yield self._turn(*(StartedExecutor(executor=name) for name in started if name in self.state.executors))

    def _ends(self) -> Iterator[Command]:
        for name in list(self.state.waiting)[:APPS_PER_TURN]:
            for executor in self.state.apps[name].executors:
                yield EndedExecutor(executor=executor, reason="exited", exit_code=0, done=True)
            yield EndApp(app=name, reason="finished")

    def _submission(self) -> SubmitApp:
        self._number += 1
        return SubmitApp(
            app=f"app-{self._number}",
            company=f"company{self._number % COMPANIES}",
            user=f"user{self._number // COMPANIES % USERS_PER_COMPANY}",
            cores=APP_CORES,
            memory_per_task_mb=1024,
            command=("python", "-m", "report", "--day", str(self._number)),
        )

    def _turn(self, *commands: Command) -> list[Record]:
        turn = Turn(self.state, self.state.at + MS_PER_TURN)
        for number, command in enumerate(commands):
            turn.take(command, f"{turn.first:x}-{number}")
        turn.settle()
        records: list[Record] = []
        seq, digest = self.position
        for event, cause in turn.entries:
            seq += 1
            record = encode(event, seq=seq, at=turn.at, turn=turn.first, cause=cause, previous=digest)
            digest = record.digest
            records.append(record)
            if isinstance(event, ExecutorAllocated):
                self._started.append(event.executor)
        self.position = Position(seq, digest)
        return records


def write(log: EventLog, history: History, until: int) -> None:
    """Let the log hold `until` entries of the history, or some more."""
    after = history.position
    for records in history.records(until):
        log.commit(after, records)
        after = history.position


def _worker(number: int) -> RegisterWorker:
    return RegisterWorker(worker=f"w{number:05}", node="node", host=f"h{number}", cores=16, memory_mb=65_536)
