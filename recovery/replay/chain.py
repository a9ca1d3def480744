"""What a log in a store or a file tells, up to the first place where its chain is broken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from scheduler.model.errors import UnreadableRecord
from scheduler.store.codec import Fact, Record, facts, read_lines
from scheduler.store.eventlog import GENESIS

if TYPE_CHECKING:
    from scheduler.store.eventlog import EventLog


class Fault(NamedTuple):
    """The chain is broken at `seq`: what was found there. Nothing behind can be trusted."""

    seq: int
    done: str


def read_export(file: Iterable[bytes]) -> Iterator[Fact]:
    """What a file of lines tells (`scheduler.store.codec`), from position 1 on.

    Raises: UnreadableRecord naming the first position that cannot be trusted or understood.
    """
    return facts(read_lines(file), *GENESIS)


def read_store(log: EventLog) -> Iterator[Fact]:
    """What the log in a store tells, and that its tail was not cut off. Raises: as `read_export`."""
    return log.facts()


def facts_of(records: Iterable[Record]) -> Iterator[Fact]:
    """What these turns tell, from position 1 on. Raises: as `read_export`."""
    return facts(records, *GENESIS)


def verified(told: Iterable[Fact]) -> Iterator[Fact | Fault]:
    """The facts, and the first fault of the chain in the place of what raised it; nothing comes behind that."""
    try:
        yield from told
    except UnreadableRecord as error:
        yield Fault(error.seq, error.why)
