"""The demo's two kills: the active master, then a worker with its executors."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlog.demo.checks import CheckFailed
from recovery.failover.lease import members
from scheduler.model.text import counted
from scheduler.store.connection import clock_ms

if TYPE_CHECKING:
    from redis import Redis

    from fairlog.local.up import Tree
    from scheduler.store.eventlog import EventLog

MASTER_PART, WORKER_PART = 4, 2
"""The master is killed after 1/4 of the apps have ended, the worker after 1/2."""


class Kill(NamedTuple):
    """A killed process: its name, the time by the store's clock (ms), and the last log position then."""

    name: str
    at_ms: int
    head: int


class Kills:
    """Kills two processes of `tree` with SIGKILL when due, and reports each with `say`."""

    def __init__(self, tree: Tree, log: EventLog, total: int, say: Callable[[str], None]) -> None:
        self._tree = tree
        self._log = log
        self._store: Redis = log.store
        self._total = total
        self.say = say
        """Tells of a kill."""
        self._master: Kill | None = None
        self._worker: Kill | None = None

    def look(self, ended: int, workers: Sequence[dict[str, Any]]) -> None:
        """Kill what is due after `ended` apps have ended; `workers` is the view of the workers."""
        if self._master is None and ended * MASTER_PART >= self._total:
            self._kill_master()
        elif self._master is not None and self._worker is None and ended * WORKER_PART >= self._total:
            self._kill_worker(workers)

    def done(self) -> tuple[Kill, Kill]:
        """The killed master and the killed worker.

        Raises: Broken if all apps ended before both were killed.
        """
        if self._master is None or self._worker is None:
            raise CheckFailed("all apps ended before a master and a worker could be killed")
        return self._master, self._worker

    def _kill_master(self) -> None:
        serving = members(self._store, self._log.keys)[0]
        for child in self._tree.masters:
            if serving is not None and child.pid == serving.pid:
                self._master = self._kill(child.name, serving.pid)
                self.say(f"killed {child.name}, the active master (kill -9 {serving.pid})")

    def _kill_worker(self, workers: Sequence[dict[str, Any]]) -> None:
        """Kill the worker with the most executors; they end with it."""
        busiest = max(workers, key=lambda worker: worker["executors"])
        for child in self._tree.workers:
            if child.name == busiest["worker"] and busiest["executors"] and child.pid is not None:
                pid = child.pid
                self._worker = self._kill(child.name, pid)
                self.say(f"killed {child.name}, which ran {counted(busiest['executors'], 'executor')} (kill -9 {pid})")

    def _kill(self, name: str, pid: int) -> Kill:
        head = self._log.head().seq
        os.kill(pid, signal.SIGKILL)
        return Kill(name, clock_ms(self._store.time()), head)
