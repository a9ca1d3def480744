"""The continuous audit: checks what is appended to the log as it comes, and says how far it is and what it found.

It keeps checkpoints, its own state in files, so that a restart goes on from there; without one, it audits the log from
its start. It writes its position and verdict into the store (`AuditedTo`), for `status`, the API, metrics and alerts.
Where masters wait for replicas of the store, it audits what these have: a failover may drop what comes after.
Where the log no longer holds what was audited, it goes back to the newest checkpoint that the log holds, and names the
commands that were lost, once.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
import zlib
from bisect import bisect_left
from collections import deque
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog
from redis.exceptions import RedisError, ResponseError

from fairlog.watch.conditions import AuditedTo
from recovery.archive.archive import archived_to, open_log
from recovery.archive.files import PlaceUnreachable
from scheduler.model.errors import FairlogError, UnreadableRecord
from scheduler.model.text import few
from scheduler.rules.state.preconditions import EDITION_2
from scheduler.rules.state.records import lines, restored
from scheduler.service.notify import ALIVE, READY, STOPPING, notify
from scheduler.service.outage import Outage
from scheduler.service.private import drafted, private_folder
from scheduler.service.signs import live_as
from scheduler.store.codec import told
from scheduler.store.connection import clock_ms, connect
from scheduler.store.eventlog import GENESIS, PAGE, Position
from scheduler.store.keys import Keys
from scheduler.store.transient import passes
from witness.audit.audit import Audit
from witness.audit.deviation import CHAIN, CommonCause, Deviation

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scheduler.store.codec import Fact, Record
    from scheduler.store.eventlog import EventLog

WAIT_MS = 1_000
"""The longest wait for the log to grow, and so for a stop."""
SAY_EVERY_S, SAY_IDLE_S = 1.0, 10.0
"""How often its position is written into the store while the log grows, and while it does not."""
CHECKPOINT_EVERY_S = 60.0
CHECKPOINT_PART = 20
"""A checkpoint is written no sooner than after this many times what the last one took."""
KEPT = 2
AUDITED, REWOUND = ".audited", ".rewound"
"""How the name of a checkpoint ends, and that of one that the log no longer holds."""
AGAIN_EVERY_S = 1.0
"""How often a page of what was audited, and is still in the store, is read again."""
REMEMBERED = 10_000
"""How many of the newest commands it remembers, to name those that a log has lost."""
NAMED = 100
"""The most lost commands that are a line of its log each; a condition names the first three."""
SETTLING_S = 0.2
"""Pause before it looks again whether the replicas have the next turn."""
UNREADABLE_S = 5.0
"""Pause before a log that cannot be read is read again."""
NICENESS = 10
GC_THRESHOLD = (50_000, 20, 50)
_SUBJECTS = ("app", "worker", "account", "company", "executor", "driver", "token", "kind")
"""The fields of commands that tell what they are about, the first that one has."""
_log = structlog.get_logger()


class _Heard(NamedTuple):
    """The end of a turn that was audited, and the id of a command in it, "" without any, in words with its sender."""

    seq: int
    digest: str
    id: str
    what: str


class BadCheckpoint(FairlogError):
    """A checkpoint cannot be used."""


class Auditor:
    """The audit of one log, with checkpoints in `folder`, or without them if that is None.

    `findings` is what it found so far, as it writes it into the store.
    """

    def __init__(self, log: EventLog, folder: Path | None = None, *, host: str = "") -> None:
        self.log, self._folder = log, folder
        self._audit = Audit()
        self.findings = AuditedTo(0, GENESIS.digest, 0, host=host, pid=os.getpid())
        self._counted = 0, 0
        """Events and decisions that were checked before the audit in memory began."""
        self._said_s = self._kept_s = self._took_s = 0.0
        self._said: AuditedTo | None = None
        self._kept = GENESIS
        self._may_say = True
        self._again, self._again_s, self._altered = GENESIS, time.monotonic(), 0
        """How far the log was read again, when, and the altered entry that was found."""
        self._heard: deque[_Heard] = deque(maxlen=REMEMBERED)

    @property
    def position(self) -> Position:
        """The end of what was audited."""
        return Position(self.findings.seq, self.findings.digest)

    def run(self, stopping: Event) -> None:
        """Audit the log as it grows, until `stopping` is set; outages of the store are waited out."""
        outage, resumed = Outage(auditor=self.log.keys.cluster), False
        notify(READY)
        while not stopping.is_set():
            notify(ALIVE)
            try:
                if not resumed:
                    self.resume()
                    resumed = True
                if outage:
                    self._look_again()
                    outage.is_over()
                pause_s = self.step()
            except RedisError as error:
                if not passes(error):
                    raise
                pause_s = outage.goes_on(error)
            if pause_s:
                stopping.wait(pause_s)
        notify(STOPPING)
        if self.position != self._kept:
            self.keep()
        with suppress(RedisError):
            self.say(at_once=True)

    def resume(self) -> None:
        """Go on from the newest checkpoint that the log holds, else from its start.

        Raises: OtherVersion if the log has a schema that is not read; redis-py's errors.
        """
        self.log.check_schema()
        said = self.findings
        for path in self._checkpoints():
            try:
                found, state, heard = _load(path)
            except (OSError, BadCheckpoint) as error:
                _log.warning("a checkpoint of the audit is passed over", file=str(path), reason=str(error))
                continue
            try:
                held = self.log.holds(Position(found.seq, found.digest))
            except UnreadableRecord as error:
                _log.warning("a checkpoint of the audit is passed over", file=str(path), reason=str(error))
                continue
            if not held:
                if not said.rewound_at:
                    said = self._lost(found, said, heard)
                path.replace(path.with_suffix(REWOUND))  # told of once, and kept as a proof
                continue
            self._audit, self._heard = Audit(), deque(heard, REMEMBERED)
            self._audit.resume(state, found.seq, found.digest)
            self._counted, self._kept = (found.events, found.decisions), Position(found.seq, found.digest)
            begun = found
            rewound = said if said.rewound_at else found
            break
        else:
            self._audit, self._counted, self._kept = Audit(), (0, 0), GENESIS
            self._heard.clear()
            begun, rewound = AuditedTo(0, GENESIS.digest, 0), said
        self.findings = begun._replace(
            host=said.host,
            pid=said.pid,
            rewound_from=rewound.rewound_from,
            rewound_at=rewound.rewound_at,
            rewound_lost=rewound.rewound_lost,
            rewound_digest=rewound.rewound_digest,
        )
        self._again, self._altered = GENESIS, 0
        _log.info("auditing", after=self.findings.seq, deviations=self.findings.deviations)
        gc.freeze()

    def step(self) -> float:
        """Audit the next turns, waiting up to `WAIT_MS` for them. Returns the pause (s) before the next step.

        Raises: redis-py's errors.
        """
        try:
            records = self.log.follow(self.position, wait_ms=WAIT_MS)
        except UnreadableRecord as error:
            return self._unreadable(error)
        settled = self._settled() if records else None
        for record in records:
            if settled is not None and record.last > settled:
                break
            try:
                self.hear(record)
            except UnreadableRecord as error:
                return self._unreadable(error)
        if not records and time.monotonic() - self._said_s >= SAY_IDLE_S:
            self._look_again()
        self._read_again()
        self._look_for_missing()
        self._set(trouble="")
        self.say()
        since_s = time.monotonic() - self._kept_s
        if self.position != self._kept and since_s > max(CHECKPOINT_EVERY_S, CHECKPOINT_PART * self._took_s):
            self.keep()
        return SETTLING_S if records and self.position.seq < records[0].first else 0.0

    def _settled(self) -> int | None:
        """The position up to which the store's replicas have the log; None where masters do not wait for them."""
        text: Any = self.log.store.get(self.log.keys.settled)
        return None if text is None else int(text)

    def hear(self, record: Record) -> list[Deviation]:
        """The deviations of the next turn. Raises: UnreadableRecord."""
        restored = len(self._audit.restored)
        facts = told(record)
        found = self._audit.hear(facts)
        for each in self._audit.restored[restored:]:
            _log.warning(str(each))
        end = record.last, record.digest
        named = [_Heard(*end, fact.cause, _worded(fact)) for fact in facts if fact.cause and fact.command is not None]
        self._heard += named or [_Heard(*end, "", "")]
        events, decisions = self._counted
        self._set(
            seq=record.last,
            digest=record.digest,
            events=events + self._audit.events,
            decisions=decisions + self._audit.decisions,
        )
        if found:
            self._alarm(found)
        return found

    def say(self, *, at_once: bool = False) -> None:
        """Write the findings into the store, if it is time to. Raises: redis-py's errors."""
        passed_s = time.monotonic() - self._said_s
        news = self._said is None or self._said._replace(at=0) != self.findings._replace(at=0)
        if not self._may_say or (passed_s < (SAY_EVERY_S if news else SAY_IDLE_S) and not at_once):
            return
        self._said_s = time.monotonic()
        self._set(at=self._now_ms())
        try:
            self.log.store.set(self.log.keys.audited, msgspec.json.encode(self.findings._asdict()))
        except ResponseError as error:
            if passes(error):
                raise
            self._may_say = False
            _log.warning("the audit cannot write its position into the store", reason=str(error))
        self._said = self.findings

    def keep(self) -> None:
        """Write a checkpoint; the last `KEPT` are kept."""
        began_s = self._kept_s = time.monotonic()
        if self._folder is None or not self.position.seq or self._audit.state.edition == EDITION_2:
            return
        try:
            private_folder(self._folder)
            path = self._folder / f"{self.log.keys.cluster}-{self.position.seq:015}{AUDITED}"
            body = zlib.compress("\n".join(lines(self._audit.state)).encode(), 1)
            head = {**self.findings._asdict(), "checksum": blake2b(body, digest_size=16).hexdigest()}
            head["heard"] = [[*each] for each in self._heard]
            with drafted(path, msgspec.json.encode(head) + b"\n" + body) as draft:
                draft.replace(path)
            for old in (*self._checkpoints()[KEPT:], *self._checkpoints(REWOUND)[KEPT:]):
                old.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("a checkpoint of the audit was not written", folder=str(self._folder), reason=str(error))
            return
        self._kept = self.position
        self._took_s = time.monotonic() - began_s

    def _checkpoints(self, suffix: str = AUDITED) -> list[Path]:
        """The checkpoints of the cluster, the newest first."""
        if self._folder is None:
            return []
        found = self._folder.glob(f"{self.log.keys.cluster}-{'[0-9]' * 15}{suffix}")
        return sorted(found, reverse=True)

    def _look_again(self) -> None:
        """Go back if the log no longer holds what was audited. Raises: redis-py's errors."""
        try:
            held = not self.position.seq or self.log.holds(self.position)
        except UnreadableRecord:
            return  # an archive that is away proves nothing
        if not held:
            self._rewind()

    def _read_again(self) -> None:
        """If it is time to, verify a page of what was audited, in case somebody has altered it since.

        Raises: redis-py's errors.
        """
        if time.monotonic() < self._again_s + AGAIN_EVERY_S:
            return
        self._again_s = time.monotonic()
        first = archived_to(self.log.store, self.log.keys)
        after = self._again if first.seq < self._again.seq < self.position.seq else first
        try:
            for record in islice(self.log.read(after, to=self.position.seq), PAGE):
                after = Position(record.last, record.digest)
        except UnreadableRecord as error:
            after = first
            known = error.seq in (self._altered, self.findings.first)
            if not known and not isinstance(error.__cause__, PlaceUnreachable) and self.log.holds(self.position):
                self._altered = error.seq
                self._alarm([_broken(error)])
        self._again = after

    def _look_for_missing(self) -> None:
        """Take back that the log lost its end once it has it again, as when an older copy of the store is replaced.

        Raises: redis-py's errors.
        """
        missing = Position(self.findings.rewound_from, self.findings.rewound_digest)
        if not missing.digest or self.position.seq < missing.seq:
            return
        try:
            found = self.log.holds(missing)
        except UnreadableRecord:
            return  # an archive that is away proves nothing
        if found:
            _log.warning("the log holds again what was audited", audited=missing.seq, digest=missing.digest)
            self._set(rewound_from=0, rewound_at=0, rewound_lost="", rewound_digest="")
        else:
            self._set(rewound_digest="")

    def _rewind(self) -> None:
        self.findings = self._lost(self.findings, self.findings, self._heard)
        self.resume()

    def _lost(self, audited: AuditedTo, said: AuditedTo, heard: Sequence[_Heard]) -> AuditedTo:
        """What to say, in place of `said`, of a log that does not hold what was audited. Raises: redis-py's errors.

        A command that the log has behind the last turn of `heard` that it holds was carried out again.
        """
        gone = bisect_left(heard, x=True, key=lambda each: not self.log.holds(Position(each.seq, each.digest)))
        after = heard[gone - 1] if gone else None
        lost = {each.id: each.what for each in islice(heard, gone, None) if each.id}
        if after is not None:
            with suppress(UnreadableRecord):
                for fact in self.log.facts(Position(after.seq, after.digest)):
                    lost.pop(fact.cause, None)
        _log.error(
            "the log does not hold what was audited any more: its end was lost or written anew",
            audited=audited.seq,
            digest=audited.digest,
            agrees=0 if after is None else after.seq,
            lost=len(lost),
        )
        for name, what in islice(lost.items(), NAMED):
            _log.warning("a command is not in the log any more", command=name, what=what)
        return said._replace(
            rewound_from=audited.seq,
            rewound_at=self._now_ms(),
            rewound_lost=few([*lost.values()], 3),
            rewound_digest=audited.digest,
        )

    def _unreadable(self, error: UnreadableRecord) -> float:
        """Tell an altered log from one whose archive is away, or whose end was replaced."""
        if isinstance(error.__cause__, PlaceUnreachable):
            self._set(trouble=str(error))
        elif self.position.seq and not self.log.holds(self.position):
            self._rewind()
            return 0.0
        else:
            if self.findings.trouble != str(error):
                self._alarm([_broken(error)])
            self._set(trouble=str(error))
        self.say()
        return UNREADABLE_S

    def _alarm(self, found: list[Deviation]) -> None:
        for each in found:
            _log.error("the log breaks its rules", seq=each.seq, rule=each.rule, done=each.done, due=each.due)
        first = {} if self.findings.first else {"first": found[0].seq, "verdict": str(CommonCause(found[0]))}
        self._set(deviations=self.findings.deviations + len(found), **first)

    def _set(self, **changed: Any) -> None:  # noqa: ANN401 (the fields of `AuditedTo`)
        self.findings = self.findings._replace(**changed)

    def _now_ms(self) -> int:
        found: Any = self.log.store.time()
        return clock_ms(found)


def run_auditor(store_url: str, cluster: str, folder: Path, *, archive_url: str = "") -> int:
    """Audit the log of `cluster` until SIGTERM or SIGINT, with checkpoints in `folder`. Returns the deviations found.

    Raises: UnsuitableStore.
    """
    stopping = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    live_as(store_url, cluster, ["auditor"])
    gc.set_threshold(*GC_THRESHOLD)
    os.nice(NICENESS)
    with connect(store_url) as store:
        auditor = Auditor(open_log(store, Keys(cluster), elsewhere=archive_url), folder, host=socket.gethostname())
        auditor.run(stopping)
    _log.info("stopped", audited=auditor.findings.seq, deviations=auditor.findings.deviations)
    return auditor.findings.deviations


def _broken(error: UnreadableRecord) -> Deviation:
    return Deviation(error.seq, CHAIN, error.why, "an entry that follows from the one before")


def _worded(fact: Fact) -> str:
    """What a command was, and whose: "SubmitApp of acme/ann (app-1)"."""
    about = next((text for name in _SUBJECTS if (text := getattr(fact.command, name, ""))), "")
    return f"{type(fact.command).__name__} of {fact.by.account or 'nobody named'}{f' ({about})' if about else ''}"


def _load(path: Path) -> tuple[AuditedTo, Any, list[_Heard]]:
    """The findings, the state and the last turns of a checkpoint. Raises: OSError, BadCheckpoint."""
    head, _, body = path.read_bytes().partition(b"\n")
    try:
        said = msgspec.json.decode(head, type=dict[str, Any])
        if said.pop("checksum") != blake2b(body, digest_size=16).hexdigest():
            raise BadCheckpoint("it was altered")
        heard = [_Heard(*each) for each in said.pop("heard", ())]
        found = AuditedTo(**said)
        state = restored(zlib.decompress(body).splitlines())
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise BadCheckpoint(f"it cannot be read: {error}") from error
    if state.edition == EDITION_2:
        raise BadCheckpoint("the audit of the second edition of the rules begins with the log")
    if state.head != found.seq:
        raise BadCheckpoint(f"it holds the state at position {state.head}, not {found.seq}")
    return found, state, heard
