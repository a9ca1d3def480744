"""A master process: stand by, take over, serve. A master never starts, it recovers."""

from __future__ import annotations

import gc
import os
import socket
import time
from typing import TYPE_CHECKING
from uuid import uuid4

import structlog
from redis.exceptions import RedisError

from recovery.lease import Lease, Member
from recovery.rebuild import rebuild
from scheduler.doorbell import DoorbellWorker
from scheduler.errors import Deposed, StaleLog
from scheduler.eventlog import EventLog, check_store, connect
from scheduler.keys import Keys
from scheduler.notify import ALIVE, READY, STOPPING, notify
from scheduler.service import Scheduler

if TYPE_CHECKING:
    from scheduler.eventlog import Position
    from scheduler.state import ClusterState

STANDBY_POLL_S = 0.25
BACK_OFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
GC_THRESHOLD = (50_000, 20, 50)
"""The state is large and has no cycles to speak of: looking through it for garbage often is time taken from turns."""
_log = structlog.get_logger()


def run_master(
    store_url: str, cluster: str = "default", *, unsafe: bool = False, lease_s: float = 3.0, replicas: int = 0
) -> None:
    """Be one of the masters of `cluster` until SIGTERM or SIGINT: one serves, the others stand by.

    Nobody is told of a commit before `replicas` replicas of the store have it. Rides out a store that
    goes away, with growing pauses.

    Raises: UnsuitableStore if the store would break the promises, UnreadableRecord or InvariantViolated
    if the log cannot be trusted at some position; a human must act then.
    """
    keys = Keys(cluster)
    store = connect(store_url)
    check_store(store, unsafe=unsafe)
    member = Member(f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}", os.getpid(), socket.gethostname())
    master = Master(EventLog(store, keys, replicas=replicas), member, lease_s=lease_s)
    master.worker.stop_on_signals()
    master.run()


class Master:
    """One master process over the store of `log`."""

    def __init__(self, log: EventLog, member: Member, *, lease_s: float = 3.0) -> None:
        store, keys = log.store, log.keys
        self.member = member
        self.lease = Lease(store, keys, member, int(lease_s * 1000))
        self.log = log
        self.scheduler = Scheduler(log, member.id, self._rebuild)
        self.worker = DoorbellWorker(keys.master_queue, store, self.answer, quiet_s=self.scheduler.quiet_s)
        self._keep_every_s = lease_s / 3
        self._kept_at = 0.0

    def run(self) -> None:
        """Stand by and serve in turns until the worker is told to stop."""
        failures = 0
        _log.info("standing by", master=self.member.id)
        notify(READY)
        while not self.worker.stopping:
            notify(ALIVE)
            try:
                if self._may_serve():
                    self._serve()
                failures = 0
                self.worker.pause(STANDBY_POLL_S)
            except (Deposed, StaleLog) as reason:
                _log.warning("standing by again", master=self.member.id, reason=str(reason))
            except RedisError as error:
                _log.warning("the store is away", error=str(error))
                self.worker.pause(BACK_OFF_S[min(failures, len(BACK_OFF_S) - 1)])
                failures += 1
        notify(STOPPING)
        self._leave()

    def answer(self) -> None:
        """A ring or a tick: keep the lease and take turns until the inbox is empty."""
        self._keep_lease()
        self.scheduler.work_off_inbox(self._may_go_on)

    def _may_go_on(self) -> bool:
        self._keep_lease()
        return not self.worker.stopping

    def _may_serve(self) -> bool:
        self.lease.appear()
        return self.lease.take()

    def _serve(self) -> None:
        self.scheduler.take_over()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLD)
        self.worker.work_until_stopped()

    def _keep_lease(self) -> None:
        """Whoever lost the lease serves on all the same until the log elects another."""
        if time.monotonic() - self._kept_at >= self._keep_every_s:
            self._kept_at = time.monotonic()
            notify(ALIVE)
            self.lease.appear()
            self.lease.take()

    def _leave(self) -> None:
        try:
            self.lease.release()
        except RedisError as error:
            _log.warning("could not release the lease", error=str(error))

    def _rebuild(self) -> tuple[ClusterState, Position]:
        return rebuild(self.log, progress=lambda _: self._keep_lease())
