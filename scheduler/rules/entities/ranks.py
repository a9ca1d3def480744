"""Which index each program of an app has: that of a program that failed is its successor's (semantics G1)."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field


@dataclass(slots=True)
class Ranks:
    """The indexes of the programs of one app, from 0."""

    held: dict[str, int] = field(default_factory=dict)
    """Executor -> the index of its program."""
    vacant: list[int] = field(default_factory=list)
    """Indexes that were left before their programs ended well, in order."""
    used: int = 0
    """How many were given out in all."""
    done: int = 0
    """How many of their programs ended well."""

    counts: dict[str, int] = field(default_factory=dict)
    """Executor -> of how many programs it is told: as many as were demanded when it was granted, and had ended well."""

    def take(self, executor: str, demanded: int) -> None:
        """Give an executor the lowest index that was left, else the next one; so many are `demanded` now."""
        self.counts.setdefault(executor, demanded + self.done)
        if self.vacant:
            self.held[executor] = self.vacant.pop(0)
            return
        self.held[executor] = self.used
        self.used += 1

    def end(self, executor: str, *, done: bool) -> None:
        """The executor has gone."""
        self.leave(executor, done=done)
        self.counts.pop(executor, None)

    def leave(self, executor: str, *, done: bool) -> None:
        """The executor has gone, or another one takes its place; nobody needs its index any more if it is `done`."""
        index = self.held.pop(executor, None)
        if index is None:
            return
        if done:
            self.done += 1
        else:
            insort(self.vacant, index)
