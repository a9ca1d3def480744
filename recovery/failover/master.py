"""A master process: stand by, take over, serve. A master never starts, it recovers."""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import structlog
from redis.exceptions import RedisError

from recovery.archive.allowed import check_command
from recovery.archive.archive import open_log
from recovery.archive.archiver import Archiver
from recovery.archive.editions import EarlierEdition, check_edition
from recovery.failover.exporter import Address, Exporter
from recovery.failover.follower import Follower
from recovery.failover.lease import Lease, Member
from recovery.failover.rereader import Rereader
from recovery.failover.sealer import Sealer
from recovery.failover.snapshotter import Snapshotter
from scheduler.model.errors import Deposed, OtherVersion, StaleLog, ToldToStop, UnsuitableStore
from scheduler.service.keyring import BadKeys, Keyring
from scheduler.service.known import Known, ShorterLog
from scheduler.service.measures import Measures
from scheduler.service.notify import ALIVE, READY, STOPPING, notify
from scheduler.service.outage import Outage
from scheduler.service.scheduler import Scheduler
from scheduler.service.seals import check_keys
from scheduler.store.connection import connect, dangers
from scheduler.store.doorbell import DoorbellWorker
from scheduler.store.durability import check_store
from scheduler.store.eventlog import GENESIS, EventLog
from scheduler.store.keys import Keys
from scheduler.store.transient import BACK_OFF_S, NotDurable

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler.model.commands import Command
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.store.eventlog import Position

REFUSING = "refusing to serve"
"""What a master logs that waits for an operator's decision."""
STANDBY_WAIT_MS = 200
"""The longest wait of a standby for the log to grow or the lease to become free."""
SNAPSHOT_EVERY = 100_000
"""The number of events between snapshots."""
STANDBYS_FIRST = 0.2
"""The part of `SNAPSHOT_EVERY` more events for which the active master waits for a standby's snapshot."""
APPEAR_EVERY_S = 1.0
"""How often a standby renews its entry among the masters."""
GC_THRESHOLD = (50_000, 20, 50)
"""The state is large and has few cycles, so garbage collections are rare."""
_log = structlog.get_logger()


def run_master(  # noqa: PLR0913 - its options
    store_url: str,
    cluster: str = "default",
    *,
    unsafe: bool = False,
    lease_s: float = 3.0,
    replicas: int = 0,
    archive_url: str = "",
    archive_allow: Sequence[str] = (),
    keyring: Keyring | None = None,
    seals_url: str = "",
    metrics: Address | None = None,
    known: Path | None = None,
) -> None:
    """Run a master of `cluster` until SIGTERM or SIGINT: one is active, the others stand by.

    A commit is answered once `replicas` replicas of the store have it. Store outages are waited out with back-off.
    With a `keyring`, only signed messages are taken, and seals are kept below `seals_url` unless that is "".
    `archive_url` overrides the URL of the archive that the log names, which must be one of `archive_allow` or below.
    At the address `metrics`, a process of its own serves the metrics of this master. How far the log was known is kept
    in the folder `known`.

    Raises: UnsuitableStore if the store may lose data; UnreadableRecord or InvariantViolated if the log cannot be
    trusted from some position on, which an operator must resolve; BadKeys without the masters' key that is in force;
    CannotExport, Unwritable.
    """
    keys = Keys(cluster)
    measures = None if metrics is None else Measures()
    member = Member(f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}", os.getpid(), socket.gethostname())
    with connect(store_url) as store:
        log = open_log(store, keys, replicas=replicas, elsewhere=archive_url, durable=not unsafe)

        def check() -> None:
            check_store(store, unsafe=unsafe)
            try:
                log.check_schema(state=True)
            except OtherVersion as error:
                raise UnsuitableStore(str(error)) from error

        archiver = Archiver(log, store_url, archive_url, allowed=archive_allow)
        accepts = partial(check_command, allowed=archive_allow)
        master = Master(
            log,
            member,
            lease_s=lease_s,
            check=check,
            archiver=archiver,
            accepts=accepts,
            keyring=keyring,
            seals_url=seals_url,
            known=Known(log, f"master {member.id}", "master", known),
        )
        check()
        if measures is not None and metrics is not None:
            master.export(measures, Exporter(measures, metrics))
        for danger in dangers(store, store_url):
            _log.warning(danger)
        master.worker.stop_on_signals()
        master.run()


class Master:
    """One master process on the store of `log`.

    `check` raises if the store is unsuitable. It is called again after each outage and before each take-over: another
    server may answer then, or its settings may have changed. A master waits until the store is suitable again.
    `accepts` raises for a command that this host refuses, as in `Scheduler`. With `known`, it refuses to serve from a
    log that is shorter than one that was known, until an operator decides (semantics I7). Nor does it serve from one of
    an earlier edition of the rules (H8).
    """

    def __init__(  # noqa: PLR0913 - what it consists of
        self,
        log: EventLog,
        member: Member,
        *,
        lease_s: float = 3.0,
        snapshot_every: int = SNAPSHOT_EVERY,
        check: Callable[[], object] = lambda: None,
        archiver: Archiver | None = None,
        accepts: Callable[[Command], object] = lambda _: None,
        keyring: Keyring | None = None,
        seals_url: str = "",
        known: Known | None = None,
    ) -> None:
        store, keys = log.store, log.keys
        self.member = member
        self.lease = Lease(store, keys, member, int(lease_s * 1000))
        self.log = log
        self.follower = Follower(log)
        self.rereader = Rereader(log)
        self.snapshotter = Snapshotter(log, snapshot_every)
        self.sealer = Sealer(seals_url, keys.cluster)
        self.scheduler = Scheduler(log, member.id, self._rebuild, accepts, keyring=keyring, holds=self.lease.take)
        self.worker = DoorbellWorker(
            keys.master_queue, store, self.answer, due_in_s=self._due_in_s, leaving=self.lease.release
        )
        log.meanwhile = self._while_replicas_lag
        self._check, self._keyring = check, keyring
        self._outage = Outage(master=member.id)
        self._keep_every_s = lease_s / 3
        self._keep_at_s = 0.0
        self._appear_at_s = 0.0
        self._archiver = archiver
        self._exporter: Exporter | None = None
        self._known = known
        self._refuses = ""
        """Why it does not serve although the store answers."""

    def export(self, measures: Measures, exporter: Exporter) -> None:
        """Take note of commits in `measures`, which `exporter` serves."""
        self.scheduler.commits.measures, self._exporter = measures, exporter

    def run(self) -> None:
        """Stand by or serve until the worker is told to stop."""
        gc.set_threshold(*GC_THRESHOLD)
        _log.info("standing by", master=self.member.id)
        notify(READY)
        self._check_keys()
        while not self.worker.stopping:
            notify(ALIVE)
            try:
                self._take_part()
            except (ShorterLog, EarlierEdition) as reason:
                self._refuse(reason)
            except (Deposed, StaleLog) as reason:
                _log.warning("standing by again", master=self.member.id, reason=str(reason))
                self._keep_what_was_folded()
                if isinstance(reason, StaleLog):
                    self.worker.pause(BACK_OFF_S[1])
            except RedisError as error:
                self._keep_what_was_folded()
                self._tend_exporter(serving=False, seq=self.follower.position.seq)
                self.worker.pause(self._outage.goes_on(error))
        notify(STOPPING)
        self._end()

    def _take_part(self) -> None:
        """Serve, or stand by for a moment."""
        if self._outage:
            self._look_again()
        if self._refuses:
            self._look_for_decision()
        if self.lease.take():
            self._serve()
        else:
            self._stand_by()

    def _end(self) -> None:
        if self._known is not None:
            self._note_confirmed(self._known)
            self._known.keep()
        self.worker.stand_down()
        try:
            self.lease.release()
        except RedisError as error:
            _log.warning("could not release the lease", error=str(error))
        self.snapshotter.stop()
        if self._archiver is not None:
            self._archiver.stop()
        if self._exporter is not None:
            self._exporter.stop()
        _log.info("stopped", master=self.member.id)

    def _refuse(self, reason: ShorterLog | EarlierEdition) -> None:
        """Serve nothing, and keep no other master from taking over: it finds the same, or the note in the store."""
        if str(reason) != self._refuses:
            self._refuses = str(reason)
            _log.error(REFUSING, master=self.member.id, reason=self._refuses)
        self.scheduler.put_down()
        self._tend_exporter(serving=False, seq=0)
        with suppress(RedisError):  # the next question to the store says so
            self.lease.release(served=False)
            self.lease.appear()
        self.worker.pause(APPEAR_EVERY_S)

    def _look_for_decision(self) -> None:
        """Raises: ShorterLog, EarlierEdition while no operator has decided; as `Follower.catch_up`."""
        self.follower.check_against_log()
        self.follower.catch_up()
        self._check_known(self.follower.state)
        check_edition(self.follower.state)
        _log.info("standing by: an operator has decided, or the log is whole again", master=self.member.id)
        self._refuses = ""

    def _check_known(self, state: ClusterState) -> None:
        if self._known is not None:
            self._known.check(state.decisions)

    def _compare_with_known(self) -> None:
        """Raises: StaleLog if the store has lost what this master, which is active, has acknowledged."""
        confirmed = self.scheduler.commits.confirmed
        if self._known is not None and not self._known.tend(confirmed, settled=True):
            raise StaleLog(f"the log does not hold what was acknowledged up to position {confirmed.seq}")

    def _check_keys(self) -> None:
        """Raises: BadKeys without the masters' key that is in force, before the lease is asked for."""
        if self._keyring is not None:
            with suppress(RedisError, StaleLog):  # then the keys are checked when it takes over
                self.follower.catch_up(self._while_it_starts)
                check_keys(self._keyring, self.follower.state)

    def _while_it_starts(self, seq: int) -> None:
        notify(ALIVE)
        if self.worker.stopping:
            raise StaleLog(f"told to stop while folding the log at position {seq}")

    def _look_again(self) -> None:
        """Check that the store takes writes again, is suitable and holds what was folded.

        Raises: redis-py's errors, NotDurable among them.
        """
        self.lease.appear()
        self._make_sure_of_store()
        self.follower.check_against_log()
        self._outage.is_over()

    def _make_sure_of_store(self) -> None:
        """Raises: NotDurable if the store is no longer suitable: a master that runs waits until it is again."""
        try:
            self._check()
        except UnsuitableStore as error:
            raise NotDurable(str(error)) from error

    def _keep_what_was_folded(self) -> None:
        """Give the follower the scheduler's state if that ends with a whole turn and is ahead of its own."""
        state, position = self.scheduler.put_down()
        if state.head == position.seq > self.follower.position.seq:
            self.follower.resume(state, position)

    def answer(self) -> None:
        """Answer a ring or a tick: renew the lease and take turns until the inbox is empty.

        While another master holds the lease and will be elected, take no turn: its commit would only make the other
        one fold the log again.

        Raises: Deposed once another master was elected, for example after a pause longer than the lease.
        """
        if not self._keep_lease():
            self.scheduler.make_sure_of_office()
            return
        self._do_chores()
        self.scheduler.work_off_inbox(self._may_go_on)
        while self._snapshot_is_due() and not self.worker.stopping:
            self.snapshotter.begin(self.scheduler.state, self.scheduler.position)
            self.scheduler.work_off_inbox(self._may_go_on)

    def _may_go_on(self) -> bool:
        """Asked between turns, of which there is no end while more comes in than one turn takes."""
        self._do_chores()
        return self._keep_lease() and not self.worker.stopping and not self._snapshot_is_due()

    def _do_chores(self) -> None:
        """Do what is due beside turns; over a slow network one thing at a time, so that the lease is kept."""
        began_s = time.monotonic()
        for chore in (self._compare_with_known, self._reread, partial(self._tend_archive, self.scheduler.state)):
            chore()
            if time.monotonic() - began_s > self._keep_every_s / 10:
                return

    def _reread(self) -> None:
        if self.scheduler.position != GENESIS:
            self.rereader.tend()

    def _snapshot_is_due(self) -> bool:
        """Whether the active master must write a snapshot, since no standby has."""
        return self.snapshotter.is_due(self.scheduler.position.seq, patience=STANDBYS_FIRST)

    def _due_in_s(self) -> float:
        """Seconds until the lease must be renewed or the scheduler has something due."""
        return min(self._keep_at_s - time.monotonic(), self.scheduler.quiet_s())

    def _stand_by(self) -> None:
        """Follow the log for a moment, to have its state ready when the lease is free."""
        if time.monotonic() >= self._appear_at_s:
            self.lease.appear()
            self.worker.show_standing_by()
            self._appear_at_s = time.monotonic() + APPEAR_EVERY_S
            self._tend_exporter(serving=False, seq=self.follower.position.seq)
            if self._known is not None and not self._known.tend(self.follower.position):
                self.follower.check_against_log()
                self.follower.catch_up()
                self._check_known(self.follower.state)
        self.rereader.tend()
        left_ms = self.lease.left_ms
        self.follower.follow(min(left_ms + 1, STANDBY_WAIT_MS) if left_ms >= 0 else STANDBY_WAIT_MS, self.lease.bell)
        self._tend_archive(self.follower.state)
        self.snapshotter.tend()
        if self.snapshotter.is_due(self.follower.position.seq):
            self.snapshotter.begin(self.follower.state, self.follower.position)

    def _tend_archive(self, state: ClusterState) -> None:
        if self._archiver is not None:
            self._archiver.tend(state.settings, state.head)

    def _tend_exporter(self, *, serving: bool, seq: int) -> None:
        measures = self.scheduler.commits.measures
        if measures is not None and self._exporter is not None:
            measures.state(serving=serving, seq=seq, put_aside=self.scheduler.put_aside)
            if (ended := self._exporter.tend()) is not None:
                _log.warning(ended)

    def _serve(self) -> None:
        """Take over and serve, if the store is suitable; waiting clients are answered before anything else.

        Raises: BadKeys if another master has named a masters' key since that this one does not hold.
        """
        self._make_sure_of_store()
        self.rereader.heed()
        try:
            self.scheduler.take_over()
        except BadKeys:
            self.lease.release()
            raise
        self.scheduler.turn()
        gc.freeze()
        self.worker.work_until_stopped()

    def _keep_lease(self) -> bool:
        """Renew the lease if due; whether this master holds it."""
        if time.monotonic() >= self._keep_at_s:
            notify(ALIVE)
            self.snapshotter.tend()
            self.sealer.tend(self.scheduler.commits.sealed)
            self._tend_exporter(serving=True, seq=self.scheduler.position.seq)
            if not self.lease.take():
                return False
            self._keep_at_s = time.monotonic() + self._keep_every_s
        return True

    def _while_replicas_lag(self) -> None:
        """Renew the lease if due: whoever took over would wait for the same replicas, and depose this master for it.

        Raises: ToldToStop.
        """
        notify(ALIVE)
        if self.worker.stopping:
            raise ToldToStop
        if time.monotonic() >= self._keep_at_s:
            with suppress(RedisError):  # the next question to the store says so
                if self.lease.take():
                    self._keep_at_s = time.monotonic() + self._keep_every_s

    def _rebuild(self) -> tuple[ClusterState, Position]:
        self._keep_what_was_folded()
        if self._known is not None:
            self._note_confirmed(self._known)
            self._known.learn_read(self.follower.read)
        given = self.follower.give(self._while_it_folds)
        self._check_known(given[0])
        check_edition(given[0])
        return given

    def _note_confirmed(self, known: Known) -> None:
        """Have it know what this master acknowledged since the log was folded."""
        commits = self.scheduler.commits
        if commits.confirmed != GENESIS:
            known.learn(commits.confirmed)
        commits.confirmed = GENESIS

    def _while_it_folds(self, seq: int) -> None:
        if self.worker.stopping:
            raise StaleLog(f"told to stop while folding the log at position {seq}")
        self._keep_lease()
