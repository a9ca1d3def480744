"""The tasks of apps and their output through the API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fairlog.api.addresses import of_app
from scheduler.store.tails import Tail
from scheduler.store.task_states import Progress, TaskState

if TYPE_CHECKING:
    from fairlog.api.client import ApiClient

FEW = 10
"""So many outputs are asked for together, because each request counts."""


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
            return Progress(**self._api.read(f"{of_app(app)}/card").get("used", {}))
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
