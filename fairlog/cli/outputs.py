"""The tasks of apps and their output, from the store or through the API."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from scheduler.store.tails import Tail
from scheduler.store.task_states import Progress, TaskState

if TYPE_CHECKING:
    from fairlog.api.client import ApiClient
    from fairlog.cli.session import Session
    from scheduler.store.task_queue import Worklist

FEW = 10
"""So many outputs are asked for together, because each request counts."""
LOOK_S = 0.3
LOOK_THROUGH_API_S = 1.0


class RemoteTasks:
    """The tasks as the API shows them, with the methods of a `Worklist`; `reason` is why an operator reads output."""

    def __init__(self, api: ApiClient, reason: str) -> None:
        self._api, self._reason = api, reason

    def states(self, app: str) -> list[TaskState]:
        """The states of the app's tasks, by index; empty before its first executor."""
        return [TaskState(**task) for task in self._api.states(app)]

    def progress(self, app: str) -> Progress:
        """The numbers of the app's tasks by state."""
        states = self.states(app)
        if not states:  # its executors run programs
            return Progress(**self._api.read(f"/v1/apps/{quote(app, safe='')}/card").get("used", {}))
        number = Counter(task.state for task in states)
        counts = {state: number[state] for state in ("queued", "running", "succeeded", "failed", "cancelled")}
        cpu_ms, peak_mb = sum(task.cpu_ms for task in states), max((task.peak_mb for task in states), default=0)
        return Progress(len(states), **counts, cpu_ms=cpu_ms, peak_mb=peak_mb)

    def tail(self, app: str, task: int | None) -> Tail:
        """The end of the output of the task, or of the driver (None)."""
        name = "driver" if task is None else str(task)
        return self._api.tails(app, name, reason=self._reason).get(task, Tail())

    def tails(self, app: str, tasks: Sequence[int]) -> Iterator[Tail]:
        """As `tail`, of each of these tasks."""
        if len(tasks) < FEW:
            return (self.tail(app, task) for task in tasks)
        found = self._api.tails(app, reason=self._reason)
        return (found.get(task, Tail()) for task in tasks)


def measured(progress: Progress) -> dict[str, int]:
    """What executors have measured of an app's tasks that ended: CPU time (ms) in all, the largest peak memory (MiB).

    Nothing if nothing was measured.
    """
    if not progress.cpu_ms and not progress.peak_mb:
        return {}
    return {"cpuMs": progress.cpu_ms, "peakMemory": progress.peak_mb}


def tasks_of(session: Session, reason: str = "") -> Worklist | RemoteTasks:
    """The tasks of the cluster's apps."""
    if session.api is not None:
        return RemoteTasks(session.api, reason)
    from scheduler.store.task_queue import Worklist  # noqa: PLC0415 (loads RQ, which an API server does without)

    return Worklist(session.store, session.cluster)


def shown_tasks(session: Session, reason: str = "") -> Worklist | RemoteTasks:
    """As `tasks_of`, for who looks once: an API server that is there anyway is reached faster than the store."""
    server = session.server
    return tasks_of(session, reason) if server is None else RemoteTasks(server, reason)


def links_of(session: Session, app: str) -> dict[str, str]:
    """The addresses of the app's user interfaces, by name."""
    if (server := session.server) is not None:
        return server.links(app)
    from scheduler.store.keys import Keys  # noqa: PLC0415 (an API server answers as a rule)
    from scheduler.store.mailbox import Mailboxes  # noqa: PLC0415 (likewise)

    return Mailboxes(session.store, Keys(session.cluster)).links(app)


def is_over(session: Session, app: str) -> bool:
    """Whether the app has ended, and all that it ran: what is told to stop may write something more."""
    found = session.ask("app", app=app)
    return found["endedAt"] is not None and not found["executors"] and found["driver"] is None


def looks(session: Session, app: str) -> Iterator[bool]:
    """Yield without end, after a short wait each, whether the app is over."""
    while session.api is not None:
        time.sleep(LOOK_THROUGH_API_S)
        yield is_over(session, app)
    from fairlog.cli.follow import follow  # noqa: PLC0415 (loads what folds the log)
    from scheduler.model.events import AppRemoved  # noqa: PLC0415 (likewise)
    from scheduler.store.codec import told  # noqa: PLC0415 (likewise)

    ended = session.ask("app", app=app)["endedAt"] is not None
    for record in follow(session.log, session.log.head(), wait_s=LOOK_S):
        if record is None:
            yield ended and is_over(session, app)
        else:
            ended |= any(isinstance(fact.event, AppRemoved) and fact.event.app == app for fact in told(record))
