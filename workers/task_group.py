"""The running tasks of an executor: reaped, held to their limits, and stopped with all their processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from scheduler.store.task_queue import Completion
from workers.memory import TaskCgroup, excess
from workers.processes import children, descendants, environment_value, kill_until_gone, reaped, send_signal
from workers.tasks import INDEX_VARIABLE, Task

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler.model.grants import Grant

_MEMORY_CHECK_S = 0.5


class TaskGroup:
    """The running tasks of the executor with that lock file; `ended` holds the completions not reported yet."""

    def __init__(self, grant: Grant, grace_s: float, lock: Path) -> None:
        self._grant = grant
        self._grace_s = grace_s
        self._tasks: dict[int, Task] = {}
        self._cgroup = TaskCgroup.make(lock, grant.memory_mb)
        self._next_check_s = 0.0
        self.ended: list[Completion] = []

    def __len__(self) -> int:
        """The number of running tasks."""
        return len(self._tasks)

    def __contains__(self, index: int) -> bool:
        """Whether the task is running."""
        return index in self._tasks

    def add(self, started: Task | Completion) -> None:
        """Add a running task, or the completion of one that could not start."""
        if isinstance(started, Completion):
            self.ended.append(started)
            return
        if self._cgroup is not None:
            self._cgroup.add(started.process.pid)
        self._tasks[started.index] = started

    def reap(self) -> None:
        """Collect all ended children, and kill the processes that ended tasks left behind."""
        by_pid = {task.process.pid: task for task in self._tasks.values()}
        ended = list(reaped())
        for task, status in ((by_pid[pid], status) for pid, status in ended if pid in by_pid):
            if os.WIFSIGNALED(status) and self._cgroup is not None and self._cgroup.has_killed():
                task.why = task.why or self._too_much_memory(self._grant.memory_mb)
            del self._tasks[task.index]
            self.ended.append(task.end(status))
        if ended:
            self._kill_leftovers()

    def enforce(self) -> None:
        """Enforce the time limit and the memory limit."""
        now_s = time.monotonic()
        limit_s = self._grant.time_limit_s
        for task in self._tasks.values():
            if task.kill_at_s is not None:
                if now_s >= task.kill_at_s:
                    task.stop()
            elif limit_s is not None and now_s >= task.began_s + limit_s:
                why = f"{task.name} exceeded its time limit of {limit_s} s"
                task.stop(why, number=signal.SIGTERM, again_s=self._grace_s)
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + _MEMORY_CHECK_S
            pids = {index: task.process.pid for index, task in self._tasks.items()}
            found = excess({index: [pid, *descendants(pid)] for index, pid in pids.items()}, self._grant.memory_mb)
            if found is not None:
                self._tasks[found.task].stop(self._too_much_memory(found.used_mb))

    def pass_on(self, number: signal.Signals) -> None:
        """Send a signal to the processes of the tasks, not to their children."""
        send_signal([task.process.pid for task in self._tasks.values()], number)

    def quiet_s(self) -> float:
        """Seconds until `enforce` is due."""
        due_s = [self._next_check_s]
        limit_s = self._grant.time_limit_s
        for task in self._tasks.values():
            if task.kill_at_s is not None:
                due_s.append(task.kill_at_s)
            elif limit_s is not None:
                due_s.append(task.began_s + limit_s)
        return max(0.0, min(due_s) - time.monotonic())

    def news(self) -> dict[int, bytes]:
        """The output tail of each task that has printed anything since the last call."""
        return {index: task.tail() for index, task in self._tasks.items() if task.has_news()}

    def stop(self, wait: Callable[[float], object], grace_s: float | None = None) -> None:
        """Send SIGTERM to all descendants of this process and, after the grace period, SIGKILL to the rest.

        `wait` waits the given number of seconds, less if a signal arrives.
        """
        deadline_s = time.monotonic() + (self._grace_s if grace_s is None else grace_s)
        send_signal(descendants(os.getpid()), signal.SIGTERM)
        while _still_running() and time.monotonic() < deadline_s:
            wait(0.05)
        kill_until_gone(_still_running)
        for task in self._tasks.values():
            task.abandon()
        self._tasks.clear()
        if self._cgroup is not None:
            self._cgroup.remove()

    def _kill_leftovers(self) -> None:
        mains = {task.process.pid for task in self._tasks.values()}
        for orphan in children(os.getpid()):
            if orphan not in mains:
                index = environment_value(orphan, INDEX_VARIABLE)
                if index is not None and index.isdecimal() and int(index) not in self._tasks:
                    send_signal([orphan, *descendants(orphan)], signal.SIGKILL)

    def _too_much_memory(self, used_mb: int) -> str:
        grant = self._grant
        if grant.program:
            return f"used {used_mb} MiB, above the {grant.memory_mb} MiB granted"
        return f"the tasks of {grant.role} {grant.executor} used {used_mb} MiB; {grant.memory_mb} MiB are granted"


def _still_running() -> list[int]:
    """The descendants of this process; reaps ended children."""
    for _ in reaped():
        pass
    return descendants(os.getpid())
