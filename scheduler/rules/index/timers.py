"""Everything that waits for a time, as (when, what, for whom) (semantics T1).

It is an index: what stands in it follows from the facts, and whoever changes a fact sets anew what waits because of it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from typing import Literal, NamedTuple

What = Literal[
    "delay",
    "growth",
    "idle",
    "lost",
    "excluded",
    "suspect",
    "probe",
    "expiry",
    "warning",
    "restart",
    "slot",
    "begin",
    "window",
    "over",
    "date",
]
"""A request's delay (L5), an elastic app's step (L6), an idle executor's time-out (L6), how long a lost worker is
remembered (N3), the end of an app's exclusion from a worker (W7),
of a suspicion and of the wait for its probe (W8), the end of an app's time and the warning before it (X2), the next
start of a driver (D3), the beginning and the end of a slot (H10), the time before which an app is not to
begin (J4), when a worker closes for a window, or who runs there is told to leave, the end of a window
(W14), and the date by which what borrows a target's room is to be gone (H11)."""

OF_A_WORKER = -3
"""The order of what a worker waits for."""


class Timer(NamedTuple):
    """At `when` (ms) something is due for an app, or for a company; `order` ranks what is due at the same time."""

    when: int
    order: int
    whom: str
    what: What


class Timers:
    """A table for each kind of thing that is due, in the order of time: who asks for one passes none of another."""

    def __init__(self) -> None:
        self._tables: dict[What, list[Timer]] = {}
        self._of: dict[str, dict[int, tuple[tuple[int, What], ...]]] = {}
        """For whom -> by order what is due."""

    @property
    def table(self) -> list[Timer]:
        """All of them, in the order of time."""
        return sorted([timer for table in self._tables.values() for timer in table])

    def set(self, whom: str, order: int, due: Collection[tuple[int, What]]) -> bool:
        """What `whom` waits for from now on, as (when in ms, what), in place of what it waited for; whether it differs.

        Apps have their position of admission for `order`; lost workers have 0, which no app has, a worker
        `OF_A_WORKER`, a slot -4, an app's beginning -5.
        """
        theirs = self._of.get(whom)
        before = () if theirs is None else theirs.get(order, ())
        if not due and not before:
            return False
        after = tuple(due)
        if before == after:
            return False
        for when, what in before:
            table = self._tables[what]
            del table[bisect_left(table, (when, order, whom, what))]
        for when, what in after:
            insort(self._tables.setdefault(what, []), Timer(when, order, whom, what))
        theirs = self._of.setdefault(whom, {})
        if after:
            theirs[order] = after
        else:
            del theirs[order]
            if not theirs:
                del self._of[whom]
        return True

    def forget_admissions(self, whom: str, but: int) -> bool:
        """An app waits for nothing by a position of admission other than `but` any more (X6); whether it did."""
        others = [order for order in self._of.get(whom, ()) if order > 0 and order != but]
        for order in others:
            self.set(whom, order, ())
        return bool(others)

    def forget_app(self, whom: str) -> bool:
        """Nothing is due for an app of that name any more, but for a worker of the same name; whether it was."""
        theirs = [order for order in self._of.get(whom, ()) if order != OF_A_WORKER]
        for order in theirs:
            self.set(whom, order, ())
        return bool(theirs)

    def waits(self, whom: str) -> bool:
        """Whether anything is due for `whom`."""
        return whom in self._of

    def next(self, after: int) -> int | None:
        """The first time (ms), later than `after`, at which something is due; None if nothing is (semantics T2)."""
        first: int | None = None
        for table in self._tables.values():
            index = bisect_left(table, (after + 1,))
            if index < len(table) and (first is None or table[index].when < first):
                first = table[index].when
        return first

    def any_due(self, at: int) -> bool:
        """Whether anything is due by `at` (ms)."""
        return any(table and table[0].when <= at for table in self._tables.values())

    def due(self, at: int, what: What) -> list[str]:
        """For whom that is due by `at` (ms), each once, in their order."""
        table = self._tables.get(what)
        if not table or table[0].when > at:
            return []
        past = table[: bisect_left(table, (at + 1,))]
        return list(dict.fromkeys([whom for _, whom in sorted([(one.order, one.whom) for one in past])]))
