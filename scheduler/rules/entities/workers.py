"""Workers, live and lost, their windows, and what is suspected of them (semantics W)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.model.events import (
    Addresses,
    WindowAdded,
    WorkerStatus,
)
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities.grants import Allocation, Hold


class QuickEnd(NamedTuple):
    """An executor that ended abnormally soon after its start, at `at` (ms) (semantics W8)."""

    executor: str
    app: str
    at: int


@dataclass(slots=True, eq=False)
class Suspicion:
    """Why and until when (ms) a worker gets nothing (semantics W8)."""

    executors: tuple[str, ...]
    since: int
    until: int
    times: int = 1
    """How often in a row it was suspected."""
    on_probe: bool = False
    """Whether the time is over and it may get one executor."""
    probe: str = ""
    """The executor that it got as a probe, "" = none yet."""

    @property
    def shut(self) -> bool:
        """Whether the worker gets nothing now."""
        return not self.on_probe or self.probe != ""


@dataclass(slots=True, eq=False)
class Worker:
    """A node's offer and what is granted of it; once `decommissioned`, it is never alive again (semantics W3)."""

    id: str
    node: str
    host: str
    rack: str
    offer: Resources
    free: Resources
    """What of its offer is not granted."""
    status: WorkerStatus = "alive"
    decommissioned: bool = False
    executors: dict[str, Allocation] = field(default_factory=dict)
    drivers: dict[str, Allocation] = field(default_factory=dict)
    holds: dict[int, Hold] = field(default_factory=dict)
    leaving: Resources = NOTHING
    """What its executors that were told to stop have."""
    addresses: Addresses = field(default_factory=dict)
    """What it offers of further kinds (semantics R1)."""
    quick_ends: tuple[QuickEnd, ...] = ()
    """The last executors of it that ended abnormally soon after their start, none well in between (semantics W8)."""
    suspicion: Suspicion | None = None
    since: int = 0
    """The time (ms) of its present status; 0 = since it was registered."""
    reason: str = ""
    """Why it drains, as older logs say for all."""
    labels: dict[str, str] = field(default_factory=dict)
    said: str = ""
    """Why it drains, as whoever drained it has said; "" where that is withheld."""
    unwell: bool = False
    """Whether it drains until its own health check succeeds (semantics W11)."""
    taints: tuple[str, ...] = ()
    """What apps must tolerate (semantics P9)."""
    window: str = ""
    """The window for which it drains (semantics W14)."""

    @property
    def shut(self) -> bool:
        """Whether it gets nothing now because it is suspected (semantics W8)."""
        return self.suspicion is not None and self.suspicion.shut

    def granted_addresses(self) -> Iterator[tuple[str, str]]:
        """(kind, address) of each address that an executor or a driver holds."""
        for held in (*self.executors.values(), *self.drivers.values()):
            for kind, addresses in held.addresses.items():
                for address in addresses:
                    yield kind, address

    def open_to(self, app: str | None, lending: Collection[int] = ()) -> Resources:
        """What is free and not held for another app (H6), None = held for nobody; nothing if shut (W8).

        What the targets `lending` hold is open as well (semantics H11).
        """
        if self.shut:
            return NOTHING
        if not self.holds:
            return self.free
        others = [hold.amounts for hold in self.holds.values() if hold.app != app and hold.id not in lending]
        held = sum(others, NOTHING)
        return (self.free - held).at_least(NOTHING)

    @property
    def beside_drivers(self) -> Resources:
        """What it offers, less what drivers hold there."""
        return self.offer - sum((driver.resources for driver in self.drivers.values()), NOTHING)


@dataclass(slots=True, eq=False)
class Window:
    """A time in which nothing runs on some workers, or of nobody but a company, "" = nothing (semantics W14)."""

    id: str
    workers: tuple[str, ...]
    begin: int
    end: int
    notice_s: int
    company: str = ""
    reason: str = ""
    added: int = 0
    """When (ms) it was added."""
    names: frozenset[str] = field(init=False)
    """Its workers."""

    def __post_init__(self) -> None:
        self.names = frozenset(self.workers)

    @property
    def closes(self) -> int:
        """From when on (ms) its workers take nothing that must not run in it."""
        return self.begin - self.notice_s * 1000

    def overlaps(self, begin: int, end: int) -> bool:
        """Whether it lasts at any time from `begin` to `end` (ms)."""
        return self.begin < end and begin < self.end

    def concerns(self, company: str) -> bool:
        """Whether it keeps apps of that company out."""
        return not self.company or self.company != company


def window_of(event: WindowAdded, at: int) -> Window:
    """The window that was added at `at` (ms)."""
    return Window(event.window, event.workers, event.begin, event.end, event.notice_s, event.company, event.reason, at)


@dataclass(slots=True, eq=False)
class LostWorker:
    """A worker that was lost at `at` (ms), and what it offered (semantics N3).

    `executors`, `drivers`: how many were lost with it; `apps`: of how many apps. No rule looks at them.
    """

    id: str
    offer: Resources
    at: int
    executors: int = 0
    drivers: int = 0
    apps: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
