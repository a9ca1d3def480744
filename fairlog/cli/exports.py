"""Logs in files, as `fairlog log --json` writes them, verified as they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO, TypeVar

from scheduler.model.errors import FairlogError, UnreadableRecord
from scheduler.store.codec import GENESIS_DIGEST, Fact, Record, check, read_export, read_lines

T = TypeVar("T")


class BadExport(FairlogError):
    """A file does not contain a log that can be trusted."""


def facts_of(file: IO[bytes]) -> Iterator[Fact]:
    """The facts of a file written by `fairlog log --json`, from position 1 on, verified along the chain of digests.

    Raises: BadExport naming the file and the first position that cannot be trusted, or if the file has no log.
    """
    return _trusted(file, read_export(file))


def exported(file: IO[bytes]) -> Iterator[Record]:
    """As `facts_of`, but the turns."""
    return _trusted(file, chained(file))


def chained(lines: Iterable[bytes]) -> Iterator[Record]:
    """The turns of an exported log, from position 1 on. Raises: UnreadableRecord if the chain of digests breaks."""
    seq, digest = 0, GENESIS_DIGEST
    for record in read_lines(lines):
        check(record, seq, digest)
        yield record
        seq, digest = record.last, record.digest


def _trusted(file: IO[bytes], entries: Iterator[T]) -> Iterator[T]:
    name, empty = getattr(file, "name", "the file"), True
    try:
        for entry in entries:
            empty = False
            yield entry
    except UnreadableRecord as error:
        raise BadExport(f"{name}: {error}") from error
    if empty:
        raise BadExport(f"{name} contains no log; write one with `fairlog log --json`")
