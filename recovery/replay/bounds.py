"""The bounds of a span of the log: positions or times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from scheduler.model.errors import InvalidCommand

if TYPE_CHECKING:
    from scheduler.store.codec import EventLine, Fact

E = TypeVar("E", "Fact", "EventLine")


def moment(at_ms: int) -> str:
    """A time (ms since the epoch) in UTC, to the ms: `2026-03-01 12:00:00.000Z`."""
    said = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    return f"{said.removesuffix('+00:00')}Z"


class Bound(NamedTuple):
    """An inclusive bound of a span: a position in the log, or a time in ms."""

    seq: int | None = None
    at: int | None = None

    def __str__(self) -> str:
        return str(self.seq or 1) if self.at is None else moment(self.at)

    def reached(self, record: Fact | EventLine) -> bool:
        """Whether a span that begins here contains the entry or begins before it."""
        return record.at >= self.at if self.at is not None else record.seq >= (self.seq or 1)

    def passed(self, record: Fact | EventLine) -> bool:
        """Whether the entry is after a span that ends here."""
        return (self.seq is not None and record.seq > self.seq) or (self.at is not None and record.at > self.at)


OPEN = Bound()


def month_of(text: str) -> tuple[Bound, Bound]:
    """The begin and the end of a month in UTC, written `YYYY-MM`. Raises: InvalidCommand."""
    if not re.fullmatch(r"(?!9999)[1-9]\d{3}-(0[1-9]|1[0-2])", text, re.ASCII):
        raise InvalidCommand(f"{text[:20]!r} is not a month; write it like 2026-03")
    year, month = int(text[:4]), int(text[5:])
    begin, end = (datetime(y, m, 1, tzinfo=UTC) for y, m in ((year, month), (year + month // 12, month % 12 + 1)))
    return Bound(at=round(begin.timestamp() * 1000)), Bound(at=round(end.timestamp() * 1000))


def up_to(records: Iterable[E], last: Bound) -> Iterator[E]:
    """The entries up to the bound. Reads none beyond a position, one beyond a time."""
    for record in records:
        if last.passed(record):
            return
        yield record
        if record.seq == last.seq:
            return
