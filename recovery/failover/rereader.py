"""Compare what the store holds of the log with what was folded of it, in pieces, all the time.

A master folds each entry once, and a commit compares only the last one. So every master reads the log again, from its
start in the store to its end and then anew, a piece a second, or fewer where the store is far away. The chain tells
an altered, missing or repeated entry: it leads to the digest that the next commit compares. A master that finds one
leaves its position in the store, where every other one looks as often and before it serves; each verifies it and stops.
"""

from __future__ import annotations

import time

import structlog

from recovery.archive.archive import archived_to
from scheduler.model.errors import UnreadableRecord
from scheduler.service.pace import due_again
from scheduler.store.eventlog import GENESIS, EventLog, Position

EVERY_S = 1.0
"""The time between two pieces."""
PIECE_BYTES = 1 << 19
"""About the size of a piece, which takes a master some 5 ms. The store answers nobody else while it copies it."""
_log = structlog.get_logger()


class Rereader:
    """Reads the log again, as often as `tend` is called, but once in `EVERY_S` at most."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._after = GENESIS
        self._entry_bytes = PIECE_BYTES
        """About how much an entry has, as the last ones had."""
        self._due_s = 0.0

    def tend(self) -> None:
        """If it is time to, verify what another master has found, and the next piece.

        Raises: UnreadableRecord naming the entry that is altered or missing; redis-py's errors.
        """
        began_s = time.monotonic()
        if began_s < self._due_s:
            return
        self.heed()
        left = PIECE_BYTES
        while left > 0:
            size = self._read_on(left)
            left -= size
            if not size:
                break
        self._due_s = due_again(began_s, EVERY_S)

    def _read_on(self, most: int) -> int:
        """Verify the next entries, of about `most` bytes. Returns their size, 0 at the log's end. Raises: as `tend`."""
        first = archived_to(self._log.store, self._log.keys)
        after = max(first, self._after, key=lambda position: position.seq)
        try:
            piece = self._log.piece(after, max(1, most // self._entry_bytes))
        except UnreadableRecord as found:
            self._after = GENESIS
            if self._is_chained(after):
                self._tell(found)
                raise
            return 0
        size = sum(len(record.events) + len(record.commands) + len(record.private) for record in piece)
        if piece:
            self._entry_bytes = max(1, size // len(piece))
        self._after = Position(piece[-1].last, piece[-1].digest) if piece else GENESIS
        return size

    def heed(self) -> None:
        """Verify what another master has found. Raises: as `tend`."""
        said = self._log.store.get(self._log.keys.damaged)
        if said is None:
            return
        seq = int(said) if isinstance(said, bytes) and said.isdigit() else 0
        first = archived_to(self._log.store, self._log.keys)
        after = self._log.before(max(seq - 1, first.seq)) if seq > first.seq + 1 else first
        self._log.piece(after, 2)
        _log.info("the log is whole again where it was found damaged", position=seq)
        self._log.store.delete(self._log.keys.damaged)

    def _is_chained(self, after: Position) -> bool:
        """Whether the log still holds the end of the piece before: archiving and failovers move it."""
        first = archived_to(self._log.store, self._log.keys)
        return after == first or (after.seq > first.seq and self._log.holds(after))

    def _tell(self, found: UnreadableRecord) -> None:
        _log.error("the store holds another log than was folded", position=found.seq, reason=found.why)
        self._log.store.set(self._log.keys.damaged, found.seq)
