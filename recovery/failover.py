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

from recovery.archive import open_log
from recovery.archiver import Archiver
from recovery.follower import Follower
from recovery.lease import Lease, Member
from recovery.snapshot import claim, positions, write
from scheduler.doorbell import DoorbellWorker
from scheduler.errors import Deposed, StaleLog
from scheduler.eventlog import EventLog, check_store, connect
from scheduler.keys import Keys
from scheduler.notify import ALIVE, READY, STOPPING, notify
from scheduler.service import Scheduler

if TYPE_CHECKING:
    from scheduler.eventlog import Position
    from scheduler.state import ClusterState

STANDBY_WAIT_MS = 50
"""How long a standby waits for the log to grow before it looks after the lease again."""
SNAPSHOT_EVERY = 100_000
"""After how many more events a standby writes a snapshot."""
APPEAR_EVERY_S = 1.0
"""How often a standby shows up among the masters."""
BACK_OFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
GC_THRESHOLD = (50_000, 20, 50)
"""The state is large and has no cycles to speak of: looking through it for garbage often is time taken from turns."""
_log = structlog.get_logger()


def run_master(
    store_url: str,
    cluster: str = "default",
    *,
    unsafe: bool = False,
    lease_s: float = 3.0,
    replicas: int = 0,
    archive_url: str = "",
) -> None:
    """Be one of the masters of `cluster` until SIGTERM or SIGINT: one serves, the others stand by.

    Nobody is told of a commit before `replicas` replicas of the store have it. Rides out a store that
    goes away, with growing pauses. `archive_url` stands for the URL of the archive that the log names, if it is given.

    Raises: UnsuitableStore if the store would break the promises, UnreadableRecord or InvariantViolated
    if the log cannot be trusted at some position; a human must act then.
    """
    keys = Keys(cluster)
    store = connect(store_url)
    check_store(store, unsafe=unsafe)
    member = Member(f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}", os.getpid(), socket.gethostname())
    log = open_log(store, keys, replicas=replicas, elsewhere=archive_url)
    master = Master(log, member, lease_s=lease_s, archiver=Archiver(log, store_url, archive_url))
    master.worker.stop_on_signals()
    master.run()


class Master:
    """One master process over the store of `log`; it has the log archived if it has an `archiver`."""

    def __init__(
        self,
        log: EventLog,
        member: Member,
        *,
        lease_s: float = 3.0,
        snapshot_every: int = SNAPSHOT_EVERY,
        archiver: Archiver | None = None,
    ) -> None:
        store, keys = log.store, log.keys
        self.member = member
        self.lease = Lease(store, keys, member, int(lease_s * 1000))
        self.log = log
        self.follower = Follower(log)
        self.scheduler = Scheduler(log, member.id, self._rebuild)
        self.worker = DoorbellWorker(keys.master_queue, store, self.answer, quiet_s=self._quiet_s)
        self._keep_every_s = lease_s / 3
        self._kept_at = 0.0
        self._appeared_at = 0.0
        self._snapshot_every = snapshot_every
        self._snapshot_at = 0
        self._archiver = archiver

    def run(self) -> None:
        """Stand by and serve in turns until the worker is told to stop."""
        failures = 0
        gc.set_threshold(*GC_THRESHOLD)
        _log.info("standing by", master=self.member.id)
        notify(READY)
        while not self.worker.stopping:
            notify(ALIVE)
            try:
                if self.lease.take():
                    self._serve()
                else:
                    self._stand_by()
                failures = 0
            except Deposed as reason:
                _log.warning("standing by again", master=self.member.id, reason=str(reason))
                self.follower.resume(self.scheduler.state, self.scheduler.position)
            except StaleLog as reason:
                _log.warning("standing by again", master=self.member.id, reason=str(reason))
                self.worker.pause(BACK_OFF_S[0])
            except RedisError as error:
                _log.warning("the store is away", error=str(error))
                self.worker.pause(BACK_OFF_S[min(failures, len(BACK_OFF_S) - 1)])
                failures += 1
        notify(STOPPING)
        self._leave()

    def answer(self) -> None:
        """A ring or a tick: keep the lease and take turns until the inbox is empty.

        Raises: Deposed as soon as the lease is another's who was elected, be it that this master was stopped
        for longer than its lease.
        """
        if not self._keep_lease():
            self.scheduler.make_sure_of_office()
        self.scheduler.work_off_inbox(self._may_go_on)
        self._tend_archive(self.scheduler.state)

    def _may_go_on(self) -> bool:
        self._keep_lease()
        return not self.worker.stopping

    def _quiet_s(self) -> float:
        return min(self._keep_every_s, self.scheduler.quiet_s())

    def _stand_by(self) -> None:
        """Follow the log for a moment, so that its state is at hand when the lease is free."""
        if time.monotonic() - self._appeared_at >= APPEAR_EVERY_S:
            self._appeared_at = time.monotonic()
            self.lease.appear()
        self.follower.follow(STANDBY_WAIT_MS)
        self._tend_archive(self.follower.state)
        if self.follower.position.seq - self._snapshot_at >= self._snapshot_every:
            self._snapshot_at = max(positions(self.log), default=0)
            if self.follower.position.seq - self._snapshot_at >= self._snapshot_every and claim(self.log):
                self._write_snapshot()

    def _tend_archive(self, state: ClusterState) -> None:
        if self._archiver is not None:
            self._archiver.tend(state.settings, state.head)

    def _write_snapshot(self) -> None:
        """Write a snapshot of what was followed; given up as soon as the lease is free or the worker is to stop."""
        for snapshot in write(self.log, self.follower.state, self.follower.position):
            if snapshot is not None:
                self._snapshot_at = snapshot.seq
                _log.info("a snapshot was written", **snapshot._asdict())
            elif self.worker.stopping or self.lease.take():
                return

    def _serve(self) -> None:
        self.lease.appear()
        self.scheduler.take_over()
        gc.freeze()
        self.worker.work_until_stopped()

    def _keep_lease(self) -> bool:
        """Whether this master has the lease; one that lost it serves on all the same until the log elects another."""
        if time.monotonic() - self._kept_at >= self._keep_every_s:
            notify(ALIVE)
            self.lease.appear()
            if not self.lease.take():
                return False
            self._kept_at = time.monotonic()
        return True

    def _leave(self) -> None:
        if self._archiver is not None:
            self._archiver.stop()
        try:
            self.lease.release()
        except RedisError as error:
            _log.warning("could not release the lease", error=str(error))

    def _rebuild(self) -> tuple[ClusterState, Position]:
        return self.follower.give(lambda _: self._keep_lease())
