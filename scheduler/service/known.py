"""How far a process has known the log, so that it does not take a shorter one for the whole (semantics I7).

An emptied store, an older file of it or a replica that lags has a log that looks sound and ends early. Whoever has
known it further refuses to serve from it, and leaves a note in the store: masters that know less heed it.
What it knows is in memory, and at most once a second written to a file, if it has a folder.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from redis.exceptions import RedisError

from scheduler.model.errors import FairlogError, UnreadableRecord
from scheduler.service.pace import due_again
from scheduler.service.private import drafted, private_folder
from scheduler.service.program_log import program_log
from scheduler.store.eventlog import GENESIS, EventLog, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis import Redis

    from scheduler.store.keys import Keys

KNOWN_VARIABLE = "FAIRLOG_KNOWN"
"""Environment variable: the folder in which masters and API servers keep how far they have known the log."""
EVERY_S = 1.0
"""How often a process compares what it knows with the log."""


class End(msgspec.Struct, frozen=True):
    """The end of the log as `by` knew it, such as "master m1"; `decided` are the decisions of operators till then."""

    seq: int
    digest: str
    by: str
    decided: list[str] = []

    @property
    def position(self) -> Position:
        """Where it is."""
        return Position(self.seq, self.digest)

    def is_given_up(self, decisions: Mapping[str, int]) -> bool:
        """Whether an operator has decided since that a log need not hold it (`ClusterState.decisions`)."""
        return any(
            not known or self.seq <= known for decision, known in decisions.items() if decision not in self.decided
        )


WAYS = (
    "restore a backup into an empty store with `fairlog restore FILE`, or go on with what is left with `fairlog "
    "recover --accept {head}`"
)
"""What an operator can do, where the log ends at `head`."""


def missed(head: int, known: End) -> str:
    """In words, what a log that ends at `head` does not hold."""
    if head < known.seq:
        return f"the log ends at position {head}, and {known.by} has known it up to {known.seq}"
    return f"the log does not hold what {known.by} has known at position {known.seq}"


class ShorterLog(FairlogError):
    """The log does not hold an end that was known, and no operator has decided to go on with it."""

    def __init__(self, head: int, known: End) -> None:
        super().__init__(f"{missed(head, known)}; nothing is served from it: {WAYS.format(head=head)}")
        self.known = known


class Unwritable(FairlogError):
    """The folder for what is known cannot be used."""


class Known:
    """How far the process `by` has known `log`; `role` names its file in `folder`, if it has one.

    Raises: Unwritable if the folder cannot be used, or its file cannot be read.
    """

    def __init__(self, log: EventLog, by: str, role: str = "", folder: Path | None = None) -> None:
        self._log, self._by = log, by
        self._path = None if folder is None else folder / f"{log.keys.cluster}.{role}.known"
        self._end = _read(self._path)
        self._decided: list[str] = [] if self._end is None else self._end.decided
        self._seen = GENESIS
        """The last position that was seen, but may not be settled."""
        self._due_s = 0.0
        self._written = self._end

    def learn(self, position: Position) -> None:
        """Take note of a position that was acknowledged."""
        self._end = End(position.seq, position.digest, self._by, self._decided)

    def learn_read(self, position: Position) -> None:
        """Take note of a position that was read, where no acknowledgement waits for replicas."""
        if not self._log.replicas and position.seq > (0 if self._end is None else self._end.seq):
            self.learn(position)

    def tend(self, position: Position, *, settled: bool = False) -> bool:
        """If it is time to, take note of `position`; False if the log holds less than is known.

        A `settled` position was acknowledged. Another one was read from the log, and counts once the store's replicas
        have it, if masters wait for them.
        Whoever is told False folds the log to its end, and calls `check`. Raises: redis-py's errors.
        """
        began_s = time.monotonic()
        if began_s < self._due_s:
            return True
        if settled and position != GENESIS:
            self.learn(position)
        holds = not self._missing()
        if holds:
            self._take_note(position, settled=settled)
        self._due_s = due_again(began_s, EVERY_S)
        return holds

    def _take_note(self, position: Position, *, settled: bool) -> None:
        seen, self._seen = self._seen, position
        up_to = 0 if settled else self._settled(position.seq)
        for each in (position, seen):
            if GENESIS.seq < each.seq <= up_to and (self._end is None or self._end.seq < each.seq):
                if self._holds(each):
                    self.learn(each)
                break
        self.keep()

    def check(self, decisions: Mapping[str, int]) -> None:
        """Compare what is known with the log, whose end has these `decisions`; forget what was given up.

        Raises: ShorterLog, after a note in the store says so; redis-py's errors.
        """
        for end in self._missing():
            if not end.is_given_up(decisions):
                self._tell(end)
                raise ShorterLog(self._log.head().seq, end)
            if end == self._end:
                program_log().warning("what was known of the log was given up by an operator", known=end.seq)
                self._end, self._seen = None, GENESIS
        note = noted(self._log.store, self._log.keys)
        if note is not None and (self._holds(note.position) or note.is_given_up(decisions)):
            with suppress(RedisError):  # who only reads leaves that to masters
                self._log.store.delete(self._log.keys.shorter)
        self._decided = list(decisions)
        if self._end is not None:
            self._end = msgspec.structs.replace(self._end, decided=self._decided)

    def _missing(self) -> list[End]:
        """The ends that are known, to this process or as the note says, and that the log does not hold."""
        return [
            end
            for end in (self._end, noted(self._log.store, self._log.keys))
            if end is not None and not self._holds(end.position)
        ]

    def _holds(self, position: Position) -> bool:
        try:
            return self._log.holds(position)
        except UnreadableRecord:
            return True  # an archive that is away proves nothing; whoever reads the log says so

    def _settled(self, seq: int) -> int:
        """The position up to which the log is settled: all of it where nobody waits for replicas."""
        text: Any = self._log.store.get(self._log.keys.settled)
        if text is None:
            return 0 if self._log.replicas else seq
        return int(text) if text.isdigit() else 0

    def _tell(self, end: End) -> None:
        """Leave a note in the store, unless one tells of an end that is further."""
        note = noted(self._log.store, self._log.keys)
        if note is None or note.seq < end.seq:
            self._log.store.set(self._log.keys.shorter, msgspec.json.encode(end))

    def keep(self) -> None:
        """Write to the file what is known, if that has changed."""
        if self._path is None or self._end is None or self._end == self._written:
            return
        try:
            with drafted(self._path, msgspec.json.encode(self._end)) as draft:
                draft.replace(self._path)
        except OSError as error:
            if self._written is not None:
                program_log().warning(
                    "how far the log is known was not written", file=str(self._path), error=str(error)
                )
            self._written = None  # told once, and tried again
            return
        self._written = self._end


def noted(store: Redis, keys: Keys) -> End | None:
    """The end that the log does not hold, as the store's note says; None without one. Raises: redis-py's errors."""
    text: Any = store.get(keys.shorter)
    with suppress(msgspec.DecodeError):
        return None if text is None else msgspec.json.decode(text, type=End)
    return None


def known_at(folder: Path) -> int:
    """When (ms) somebody whose files are in the folder last knew the log to grow; 0 if nobody has."""
    times = []
    with suppress(OSError):
        times = [path.stat().st_mtime for path in folder.iterdir()]
    return round(1000 * max(times, default=0))


def known_folder() -> Path | None:
    """The folder that the environment names: FAIRLOG_KNOWN, else the state folder of a systemd unit; None without."""
    named = os.environ.get(KNOWN_VARIABLE) or os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(named) if named else None


def _read(path: Path | None) -> End | None:
    if path is None:
        return None
    try:
        private_folder(path.parent)
        return msgspec.json.decode(path.read_bytes(), type=End)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise Unwritable(
            f"{path} says how far the log was known and cannot be read: {why}; mend it, or remove it if the store has "
            "lost nothing"
        ) from error
