"""A log of some hundred entries, and a store and files that crash at a given step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import fakeredis
import fsspec
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from recovery.archive.archive import open_log
from recovery.replay.rebuild import rebuild
from scheduler.store.codec import Record, stored
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from tests.property.given import recorded
from tests.property.histories import played, seeded
from witness.audit.audit import audit

if TYPE_CHECKING:
    from redis import Redis

RECORDS = recorded(played(seeded(11, 130)))
KEYS = Keys("prod")


def commit(store: Redis, records: list[Record] = RECORDS) -> EventLog:
    """Write these records to the store. Returns the log."""
    return put_records(store, KEYS, records)


def put_records(store: Redis, keys: Keys, records: list[Record]) -> EventLog:
    """Write these records to a cluster's log, as commits do. Returns the log."""
    log = open_log(store, keys)
    pipe = store.pipeline(transaction=False)
    for record in records:
        if record.first > log.head().seq:
            pipe.xadd(keys.log, stored(record), id=f"{record.last}-0")  # type: ignore[arg-type]  # str is one of theirs
    pipe.execute()
    return log


def staying(retain: int, records: list[Record] = RECORDS) -> list[int]:
    """The last positions of the turns that stay in the store."""
    bound = records[-1].last - max(1, retain)
    return [record.last for record in records if record.last > bound]


def first_staying(retain: int, records: list[Record] = RECORDS) -> int:
    """The position of the first event that stays in the store."""
    return next(record.first for record in records if record.last == staying(retain, records)[0])


def up_to(seq: int) -> list[Record]:
    """The turns up to that position."""
    return [record for record in RECORDS if record.last <= seq]


def in_stream(log: EventLog) -> list[int]:
    """The last positions of the turns in the store."""
    entries: Any = log.store.xrange(log.keys.log)
    return [int(entry.partition(b"-")[0]) for entry, _ in entries]


def assert_whole(log: EventLog, records: list[Record] = RECORDS) -> None:
    """Assert that every way to read the log yields all of it, once."""
    assert list(log.read()) == records
    assert list(log.read()) == records
    assert audit(log.facts()) == []
    whole, position = rebuild(log, whole=True)
    assert position == log.head()
    assert rebuild(log)[0].digest() == whole.digest()


class Crash(BaseException):
    """The process has died: none of its code has an effect any more, not even in a `finally`."""


class Fuse:
    """Counts a process's steps on the store and on files, and calls `trip`, a crash by default, at step `at`."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.trip: Callable[[], None] = self.crash
        self.steps = 0
        self.dead = False

    def burn(self) -> None:
        """Count a step."""
        if self.dead:
            raise Crash
        self.steps += 1
        if self.steps == self.at:
            self.trip()

    def crash(self) -> None:
        """Let this step and all later ones fail."""
        self.dead = True
        raise Crash


class FusedStore(fakeredis.FakeRedis):
    """A process's connection to the store, with a fuse before and after each command."""

    fuse: Fuse | None = None

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if self.fuse is None:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        self.fuse.burn()
        answer = super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        self.fuse.burn()
        return answer


class FusedFiles(MemoryFileSystem):  # type: ignore[misc] # fsspec has no type information
    """Files in memory, with a fuse before and after each change; opening a file for writing creates it empty."""

    protocol = "fused"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fuse: ClassVar[Fuse | None] = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.removeprefix("fused://")))

    def _open(self, path: str, mode: str = "rb", *args: Any, **options: Any) -> Any:
        if mode == "wb":
            self._burn()
            self.store[path] = MemoryFile(self, path)
            self._burn()
        return super()._open(path, mode, *args, **options)

    def cp_file(self, *args: Any, **options: Any) -> None:
        self._burn()
        super().cp_file(*args, **options)
        self._burn()

    def _rm(self, path: str) -> None:
        self._burn()
        super()._rm(path)
        self._burn()

    def _burn(self) -> None:
        if (fuse := type(self).fuse) is not None:
            fuse.burn()


fsspec.register_implementation("fused", FusedFiles, clobber=True)


def forget_files() -> None:
    """Remove all files in memory."""
    for system in (FusedFiles, MemoryFileSystem):
        system.store.clear()
        system.pseudo_dirs[:] = [""]
    FusedFiles.fuse = None


def files(url: str) -> Iterator[str]:
    """The names of the files under a URL."""
    system, place = fsspec.core.url_to_fs(url)
    return (name.rpartition("/")[2] for name in system.find(place))
