"""What is granted of a worker, and the targets that are held there for an app (semantics P, D, H6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from scheduler.model.events import (
    Addresses,
    Locality,
)
from scheduler.model.resources import Resources

PassedOn = tuple[int, str, int | None, bool]
"""Position, signal or `PUT_BACK`, task (None = all), and whether to all processes: what tasks are to get."""


class _Empty(dict[Any, Any]):
    """The dict of all that have nothing in theirs; who has something makes one."""

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError(f"{key!r} was put into the dict that all share which have none")


EMPTY: dict[Any, Any] = _Empty()


@dataclass(slots=True, eq=False, init=False)
class Allocation:
    """A part of one worker, granted to an executor of one app or to its driver.

    `stopping`: the worker has not confirmed the end yet (semantics A5).
    """

    id: str
    app: str
    worker: str
    resources: Resources
    status: Literal["starting", "running", "stopping"]
    revoked: Literal["killed", "idle", "reclaimed", "window", "gang"] | None
    """Why it was told to stop while its app goes on."""
    locality: Locality | None
    idle_since: int | None
    """Since when (ms) it has no task, None while it has or where nobody asks (semantics L6)."""
    granted_at: int
    claim: int
    """The hold for whose claim it was told to leave (semantics H7), 0 = none."""
    deadline: int
    """When (ms) its tasks are ended if it leaves firmly (semantics H7)."""
    firm: bool
    """Whether reclaiming was firm when it was told to leave (semantics H7)."""
    was_running: bool
    """Whether it was running when it was told to leave for a claim."""
    addresses: Addresses
    """Addresses of further kinds, held until it is gone (semantics R5)."""
    running_since: int
    """Since when (ms) it runs, 0 if it does not yet (semantics W8)."""
    started: bool
    """Whether its worker said that it runs; a driver never says so."""
    warned_at: int
    """When (ms) its tasks were to get the app's warning, 0 = never (semantics X2)."""
    signals: tuple[PassedOn, ...]
    """What its tasks were sent last (semantics X4), and which of them were put back (X6)."""
    moved: bool
    """Whether it leaves because its app is granted the same on another worker (semantics H6)."""
    until: int
    """When (ms) the slot is over in which it was granted; 0 = it was granted in none (semantics H10)."""

    def __init__(  # noqa: PLR0917 - its facts
        self,
        id: str,  # noqa: A002 - as others have theirs
        app: str,
        worker: str,
        resources: Resources,
        locality: Locality | None = None,
        granted_at: int = 0,
        addresses: Addresses = EMPTY,
    ) -> None:
        self.id = id
        self.app = app
        self.worker = worker
        self.resources = resources
        self.locality = locality
        self.granted_at = granted_at
        self.addresses = addresses
        self.status = "starting"
        self.revoked = self.idle_since = None
        self.claim = self.deadline = self.running_since = self.warned_at = self.until = 0
        self.firm = self.was_running = self.started = self.moved = False
        self.signals = ()

    @property
    def leaves(self) -> bool:
        """Whether it was told to leave, for a need or before a window, rather than to stop (semantics H7, W14)."""
        return self.claim > 0 or self.revoked == "window"


HoldReason = Literal["hold", "reclaim", "surplus", "move", "cap", "plan"]


@dataclass(slots=True, eq=False)
class Hold:
    """A target: room for one unit of an app that is kept for it on a worker; `id` is its position (semantics H6)."""

    id: int
    worker: str
    app: str
    amounts: Resources
    reason: HoldReason
    since: int
    leaving: dict[str, Allocation] = field(default_factory=dict)
    """The executors that were told to leave for it and are not gone."""
