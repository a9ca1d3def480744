"""A company's quota as a limit: what passes it, what it holds back since when, and for whom room is reserved.

Whether an app passes the limit depends on its request alone, so a company's next apps (the *heads* of
its users' queues, semantics F) are kept together by request and judged once a group.

An app is *held back* while it is the head of its user's queue and does not pass the limit, though it would
if its company occupied nothing; since when, is the time of the event that made it so, and any event that
ends it, or changes what the app requests, starts the count anew. Once that has lasted longer than
`quota_patience_s` the app has its company's room *reserved* (semantics C7) by the next turn's `RoomReserved`, on and
until it is admitted, removed or requests something else, whatever becomes of the room meanwhile. Of
several reservations the one held back longest counts, then the one submitted first; one whose app would
not even pass an empty company's limit any more is left out.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.admission.company import Tenant

if TYPE_CHECKING:
    from scheduler.rules.claims import Need


class Pending(NamedTuple):
    """A pending app as the queue needs it; `submitted` is the log position of its submission, `submitted_at` in ms."""

    app: str
    company: str
    user: str
    kind: str
    request: Resources
    submitted: int
    submitted_at: int = 0
    need: Need | None = None
    """What it needs of a worker; None = nothing in particular."""

    @property
    def hostable(self) -> bool:
        """Whether a live worker is large enough for it (semantics N3)."""
        return self.need is None or self.need.hostable


Reservation = tuple[int, int, Pending]
"""Since when (ms) the app was held back, its submission, and itself."""


@dataclass(slots=True)
class Group:
    """The heads of one company that request the same."""

    passes: bool = False
    held_since: int | None = None
    heads: dict[str, tuple[int, Pending]] = field(default_factory=dict)
    """App -> since when (ms) it is a head, in that order, as time never goes back; without those of `reserving`."""
    reserving: int = 0
    """How many heads have their company's room reserved."""


@dataclass(slots=True)
class QuotaLimit:
    """What one company's quota lets through."""

    tenant: Tenant
    stops_idle: bool = True
    """Whether it also binds while the company occupies nothing (a default quota does not, semantics C4)."""
    groups: dict[Resources, Group] = field(default_factory=dict)
    reservations: list[Reservation] = field(default_factory=list)
    """In the order in which they count."""
    reserved: dict[str, Reservation] = field(default_factory=dict)
    """The same by app."""

    def admits(self, request: Resources, *, lent: bool = True) -> bool:
        """Whether a request passes now (semantics C4); elastic apps count with their least number if `lent` (E7)."""
        claimed = self.tenant.standing.claimed
        if lent:
            claimed -= self.tenant.standing.lent
        if not self.stops_idle and claimed == NOTHING:
            return True
        return self.tenant.quota.covers(claimed + request)

    def fits_alone(self, request: Resources) -> bool:
        """Whether a request would pass if the company claimed nothing; else its app is no head (semantics C4)."""
        return not self.stops_idle or self.tenant.quota.covers(request)

    def enter(self, head: Pending, at: int) -> None:
        """An app is its user's head from `at` (ms) on."""
        group = self.groups.get(head.request)
        if group is None:
            group = self.groups[head.request] = Group()
            self._judge(head.request, group, at)
        if head.app in self.reserved:
            group.reserving += 1
        else:
            group.heads[head.app] = at, head

    def leave(self, head: Pending) -> None:
        """An app is its user's head no more."""
        group = self.groups[head.request]
        if group.heads.pop(head.app, None) is None:
            group.reserving -= 1
        if not group.heads and not group.reserving:
            del self.groups[head.request]

    def review(self, at: int) -> None:
        """What the company claims or its quota is another one since `at` (ms)."""
        for request, group in self.groups.items():
            self._judge(request, group, at)

    def _judge(self, request: Resources, group: Group, at: int) -> None:
        group.passes = self.admits(request)
        if group.passes or not self.fits_alone(request):
            group.held_since = None
        elif group.held_since is None:
            group.held_since = at

    def held(self) -> Iterator[tuple[int, Pending]]:
        """(since when in ms, app) of what is held back and has no reservation; the longest of each request first."""
        for group in self.groups.values():
            if group.held_since is not None:
                for since, head in group.heads.values():
                    yield max(since, group.held_since), head

    def held_longest(self) -> int | None:
        """Since when (ms) the one is held back that has been for longest, without a reservation; None if none is.

        The heads of a group stand in the order in which they became heads, so its first one has waited longest.
        """
        groups = [group for group in self.groups.values() if group.held_since is not None and group.heads]
        return min((max(next(iter(one.heads.values()))[0], one.held_since or 0) for one in groups), default=None)

    def is_held(self, app: Pending) -> bool:
        """Whether the app is held back and has no reservation."""
        group = self.groups.get(app.request)
        return group is not None and group.held_since is not None and app.app in group.heads

    def reserve(self, app: Pending) -> None:
        """Reserve for an app that is held back (semantics C7).

        Example, a delay of 600 s and a quota of 16 cores, of which an app of 8 holds its half: one of 16 is
        held back from 2.000 s on. At 3 s and at 602.000 s apps of 8 pass it where 8 are free, at 602.001 s none
        does any more, and it is next once nothing is held.
        """
        group = self.groups[app.request]
        since, head = group.heads.pop(app.app)
        group.reserving += 1
        self.reserved[app.app] = max(since, group.held_since or 0), head.submitted, head
        insort(self.reservations, self.reserved[app.app])

    def lapse(self, app: Pending, at: int) -> None:
        """Reserve for the app no longer; if it is a head, it is one from `at` (ms) on (semantics C7)."""
        self.release(app.app)
        group = self.groups.get(app.request)
        if group is not None and group.reserving:
            group.reserving -= 1
            group.heads[app.app] = at, app

    def hold_back(self, heads: Iterable[Pending], since: Mapping[str, int], reserved: Iterable[Reservation]) -> None:
        """Hold these heads back since then (ms), by app, and keep these reservations, instead of since now.

        A head that passes has not been held back; since when it is one tells nothing then.
        """
        self.reservations = sorted(reserved)
        self.reserved = {one[2].app: one for one in self.reservations}
        for group in self.groups.values():
            group.heads, group.reserving = {}, 0
            group.held_since = None if group.held_since is None else 0
        for head in sorted(heads, key=lambda head: (since.get(head.app, 0), head.submitted)):
            if head.app in self.reserved:
                self.groups[head.request].reserving += 1
            else:
                self.groups[head.request].heads[head.app] = since.get(head.app, 0), head

    def release(self, app: str) -> None:
        """The app needs no room any more: it was admitted or removed."""
        reservation = self.reserved.pop(app, None)
        if reservation is not None:
            del self.reservations[bisect_left(self.reservations, reservation)]

    def reserver(self) -> Pending | None:
        """The app that no other of the company may precede, None if there is no such (semantics C7)."""
        for _, _, app in self.reservations:
            if self.fits_alone(app.request) and app.hostable:
                return app
        return None

    def lets_through(self) -> bool:
        """Whether the company takes part (semantics C1): some app passes, or the one that others must not precede."""
        if self.reservations and (reserver := self.reserver()) is not None:
            return self.admits(reserver.request)
        return bool(self.groups) and any(group.passes for group in self.groups.values())
