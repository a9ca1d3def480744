"""The running tasks of an executor: reaped, held to their limits, and stopped with all their processes."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from scheduler.model.commands import Measured
from scheduler.model.grants import PUT_BACK
from scheduler.store.task_queue import Completion
from workers.cell import Cell, EndedTask
from workers.memory import Peak, excess
from workers.processes import (
    Wakeup,
    descendants,
    environment_value,
    kill_until_gone,
    reaped,
    resident_mb,
    started_s,
)
from workers.tasks import INDEX_VARIABLE, Task
from workers.unused import Unused, cpu_ms_of

if TYPE_CHECKING:
    from scheduler.model.grants import Grant, SentSignal
    from workers.visits import ExecutorVisits

_MEMORY_CHECK_S = 0.5
_SAME_TIME_S = 0.5
"""How precise the start times of processes are, with room to spare."""
_TOLD_S = 1.0
"""How long to wait for what the cell says about tasks that were killed: what they took."""
_DEFIANT = 10
"""After so many SIGKILLs to a task its whole cell is killed."""


class TaskGroup:
    """The running tasks of an executor, in its cell; `ended` holds the completions not reported yet."""

    def __init__(
        self,
        grant: Grant,
        grace_s: float,
        cell: Cell,
        visits: ExecutorVisits | None = None,
        gpus: Callable[[], Mapping[str, float] | None] = lambda: None,
    ) -> None:
        self._grant = grant
        self._grace_s = grace_s
        self._cell = cell
        self._visits = visits
        self._tasks: dict[int, Task] = {}
        self._next_check_s = 0.0
        self._cpu_ms = 0
        """The CPU time of the tasks that have ended."""
        self._unused = Unused(grant.idle_end_s, gpus)
        self._peak = Peak()
        """The memory of all of them together."""
        self._may_have_left = False
        """Whether a task has ended since leftovers were looked for."""
        self._news = select.epoll()
        self._watched = -1
        self.ended: list[Completion] = []
        self.unwritten, self.why_unwritten = 0, ""
        """How many bytes of the output of ended tasks the worker's disk has not taken, and why."""

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
        self._tasks[started.index] = started
        self._unused.begin()
        if len(self._tasks) == 1:
            started.cpu_before_ms = self._cell.cpu_ms()
        else:
            for task in self._tasks.values():
                task.cpu_before_ms = None
        for descriptor in started.output.descriptors:
            self._news.register(descriptor, select.EPOLLIN)

    def wait(self, wakeup: Wakeup, timeout_s: float) -> None:
        """Wait for a signal to this process or news of the cell, and take in what tasks print meanwhile."""
        if self._watched != self._cell.fileno():
            self._watched = self._cell.fileno()
            if self._watched >= 0:
                self._news.register(self._watched, select.EPOLLIN)
        if self._cell.has_news():
            return
        deadline_s = time.monotonic() + timeout_s
        while wakeup.wait(max(0.0, deadline_s - time.monotonic()), self._news.fileno()):
            outputs = {each: task.output for task in self._tasks.values() for each in task.output.descriptors}
            for descriptor, _ in self._news.poll(0):
                if descriptor not in outputs:
                    return
                if not outputs[descriptor].take(descriptor):
                    self._news.unregister(descriptor)
            if wakeup.signalled or time.monotonic() >= deadline_s:
                return

    def reap(self) -> None:
        """Collect the tasks that have ended, and kill the processes that they left behind."""
        by_pid = {task.pid: task for task in self._tasks.values()}
        ends = self._cell.ended()
        if self._visits is not None:
            self._visits.ended(ends)
        ended = [(by_pid[end.pid], end) for end in ends if end.pid in by_pid]
        for task, end in ended:
            if os.WIFSIGNALED(end.status) and self._cell.out_of_memory():
                task.why = task.why or self._too_much_memory(self._grant.memory_mb)
            self._end(task, end)
        for _ in reaped():
            pass
        if not self._cell.alive and self._tasks:
            why = "the executor's cell has ended"
            why = self._too_much_memory(self._grant.memory_mb) if self._cell.out_of_memory() else why
            kill_until_gone(_our_descendants)
            for task in list(self._tasks.values()):
                task.why = task.why or why
                self._end(task, EndedTask(task.pid, int(signal.SIGKILL), 0, 0))
        elif ended:
            self._may_have_left = True
            if self._cell.has_more_than(len(self._tasks)):
                self._kill_leftovers()

    @property
    def used(self) -> Measured:
        """The CPU time of all that has ended, also of what no task waited for, and the most memory in use at once."""
        return Measured(max(self._cpu_ms, self._cell.cpu_ms()), self._peak.mb)

    @property
    def unused(self) -> tuple[str, int] | None:
        """What the tasks that run do not use, `cores` or `GPUs`, and for how long (s); None = all is in use (W13)."""
        return self._unused.of if self._tasks else None

    def enforce(self) -> None:
        """Enforce the time limit and the memory limit, end what is unused if it is to be, and begin visits."""
        if self._visits is not None:
            self._visits.begin()
        if self._tasks:
            self._look_for_use()
        now_s = time.monotonic()
        limit_s = self._grant.time_limit_s
        for task in self._tasks.values():
            if task.kill_at_s is not None:
                if now_s >= task.kill_at_s:
                    self._stop(task)
            elif limit_s is not None and now_s >= task.began_s + limit_s:
                why = f"{task.name} exceeded its time limit of {limit_s} s"
                self._stop(task, why, number=signal.SIGTERM, again_s=self._grace_s)
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + _MEMORY_CHECK_S
            if self._may_have_left:
                self._may_have_left = False
                self._kill_leftovers()
            self._check_memory()

    def pass_on(self, number: signal.Signals) -> None:
        """Send a signal to the processes of the tasks, not to their children."""
        self._cell.signal(self._mains().values(), number)

    def send(self, sent: SentSignal) -> None:
        """Pass on a signal that somebody has sent, to the task that is meant or to all (semantics X4)."""
        if sent.signal == PUT_BACK:
            self._put_back(sent.task)
            return
        number = signal.Signals[f"SIG{sent.signal}"]
        mains = [pid for task, pid in self._mains().items() if sent.task in {None, task}]
        pids = [each for main in mains for each in (main, *(descendants(main) if sent.whole else ()))]
        self._cell.signal(pids, number)

    def _put_back(self, index: int | None) -> None:
        """Stop the task if it runs and was not stopped before; it counts as returned then (semantics X6)."""
        task = None if index is None else self._tasks.get(index)
        if task is not None and task.kill_at_s is None:
            task.returns = True
            self._stop(task, f"{task.name} was put back", number=signal.SIGTERM, again_s=self._grace_s)

    def cancel(self, tasks: Collection[int]) -> None:
        """Stop those of the tasks that run and were not stopped before (semantics X4)."""
        for index in self._tasks.keys() & set(tasks):
            task = self._tasks[index]
            if task.kill_at_s is None:
                self._stop(task, cancelled_why(task.name), number=signal.SIGTERM, again_s=self._grace_s)

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
        return {index: task.output.tail() for index, task in self._tasks.items() if task.output.has_news()}

    def stop(self, wakeup: Wakeup, grace_s: float | None = None) -> None:
        """Send SIGTERM to all processes of the tasks and, after the grace period, end the cell with all in it.

        Tasks that were running are among those that `ended`, as stopped.
        """
        if self._visits is not None:
            self._visits.close()
        grace_s = self._grace_s if grace_s is None else grace_s
        ends: dict[int, EndedTask] = {}
        for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _TOLD_S)):
            deadline_s = time.monotonic() + patience_s
            self._cell.signal(self._cell.members(), number)
            while self._still_running(ends) and time.monotonic() < deadline_s:
                self.wait(wakeup, 0.05)
        self._cell.kill()
        kill_until_gone(_our_descendants)
        for task in self._tasks.values():
            ended = ends.get(task.pid) or EndedTask(task.pid, int(signal.SIGKILL), 0, 0)
            self.ended.append(self._count(task.end(self._measured(task, ended)))._replace(outcome="stopped"))
        self._tasks.clear()

    def _end(self, task: Task, ended: EndedTask) -> None:
        del self._tasks[task.index]
        self.ended.append(self._count(task.end(self._measured(task, ended))))
        if task.output.trouble:
            self.unwritten += task.output.unwritten
            self.why_unwritten = task.output.trouble

    def _look_for_use(self) -> None:
        """Look whether the tasks use what they hold; where the company wants that, end those that do not (W13)."""
        self._unused.look(lambda: self._cell.cpu_ms() or self._cpu_ms + cpu_ms_of(self._cell.members()))
        if self._grant.end_idle and (unused := self.unused) is not None:
            what, for_s = unused
            for task in self._tasks.values():
                if task.kill_at_s is None:
                    why = f"{task.name} used nothing of its {what} for {for_s} s"
                    self._stop(task, why, number=signal.SIGTERM, again_s=self._grace_s)

    def _count(self, done: Completion) -> Completion:
        """Count what the task took for `used`."""
        self._cpu_ms += done.cpu_ms
        self._peak.least(done.peak_mb)
        return done

    def _measured(self, task: Task, ended: EndedTask) -> EndedTask:
        """The end of a task with the CPU time of all processes that came from it, if that of its cell tells."""
        if task.cpu_before_ms is None:
            return ended
        return ended._replace(cpu_ms=max(ended.cpu_ms, self._cell.cpu_ms() - task.cpu_before_ms))

    def _stop(
        self, task: Task, why: str = "", *, number: signal.Signals = signal.SIGKILL, again_s: float = 0.2
    ) -> None:
        """Send a signal to the processes of a task, and schedule the next SIGKILL in `again_s` seconds."""
        if task.stop(why, again_s) > _DEFIANT:
            self._cell.kill()
        elif (main := self._mains().get(task.index)) is not None:
            self._cell.signal([main, *descendants(main)], number)

    def _mains(self) -> dict[int, int]:
        """Task -> the id of its process outside."""
        by_pid = {task.pid: task.index for task in self._tasks.values()}
        return {by_pid[inside]: pid for pid, inside in self._cell.tops().items() if inside in by_pid}

    def _check_memory(self) -> None:
        """Stop the largest task if all processes of the cell together use more memory than is granted."""
        mains = {pid: index for index, pid in self._mains().items()}
        members: dict[int, list[int]] = {}
        for pid in self._cell.tops():
            members.setdefault(mains[pid] if pid in mains else self._owner(pid), []).extend([pid, *descendants(pid)])
        sizes = {index: resident_mb(pids) for index, pids in members.items()}
        for index, task in self._tasks.items():
            if index in members:
                task.peak.saw(sizes[index], members[index])
        used_mb = sum(sizes.values())
        self._peak.saw(used_mb, [pid for pids in members.values() for pid in pids])
        if used_mb <= self._grant.memory_mb:
            return
        found = excess(members, self._grant.memory_mb)
        if found is None:
            return
        self._peak.least(found.used_mb)
        for index, size_mb in found.sizes.items():
            if index in self._tasks:
                self._tasks[index].peak.least(size_mb)
        if found.task in self._tasks:
            self._stop(self._tasks[found.task], self._too_much_memory(found.used_mb))
        self._cell.signal(members[found.task], signal.SIGKILL)

    def _owner(self, orphan: int) -> int:
        """The task that a process without a parent comes from, as far as that can be told; -1 if it cannot."""
        shown = environment_value(orphan, INDEX_VARIABLE)
        named = [task.index for task in self._tasks.values() if shown and task.shown == shown]
        if named:
            return named[0]
        return next(iter(self._tasks)) if len(self._tasks) == 1 else -1

    def _kill_leftovers(self) -> None:
        """Kill what ended tasks left behind: what names another task, or is older than every task that runs."""
        mains = self._mains().values()
        visits = () if self._visits is None else self._visits.pids
        for orphan, inside in self._cell.tops().items():
            if orphan in mains or inside in visits:
                continue
            shown = environment_value(orphan, INDEX_VARIABLE)
            began_s = (started_s(orphan) or 0) + _SAME_TIME_S
            if any(shown == task.shown if shown else task.began_at_s <= began_s for task in self._tasks.values()):
                continue
            self._cell.signal([orphan, *descendants(orphan)], signal.SIGKILL)

    def _still_running(self, ends: dict[int, EndedTask]) -> bool:
        """Whether a process of the tasks is running, or its end not told; reaps those that ended, and notes how."""
        ends |= {end.pid: end for end in self._cell.ended()}
        for _ in reaped():
            pass
        untold = self._cell.alive and any(task.pid not in ends for task in self._tasks.values())
        return untold or any(started_s(pid) is not None for pid in self._cell.members())

    def _too_much_memory(self, used_mb: int) -> str:
        grant = self._grant
        if grant.program:
            return f"used {used_mb} MiB, above the {grant.memory_mb} MiB granted"
        return f"the tasks of {grant.role} {grant.executor} used {used_mb} MiB; {grant.memory_mb} MiB are granted"


def cancelled_why(task: str) -> str:
    """What is said of the end of a task that was cancelled."""
    return f"{task} was cancelled"


def _our_descendants() -> list[int]:
    return descendants(os.getpid())
