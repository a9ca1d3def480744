"""A company's quota as a limit: which requests pass, which apps are held back since when, and the reservations.

Whether an app passes depends on its request alone, so a company's next apps (the *heads* of its users' queues,
semantics F) are grouped by request and judged once a group.

An app is *held back* while it is a head and does not pass, but would if its company occupied nothing. The time counts
from the event that made it so; any event that ends it, or a new request, restarts it. After `quota_patience_s` the next
turn's `RoomReserved` *reserves* the company's room for the app (semantics C7) until it is admitted, is removed or
changes its request. Of several reservations the app held back longest counts, then the one submitted first, without
apps that would not pass even if the company occupied nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recovery.second_edition.rules.admission.company import Tenant
from recovery.second_edition.rules.entities import App
from scheduler.model.resources import NOTHING, Resources

if TYPE_CHECKING:
    from recovery.second_edition.rules.admission.limits import Broken, Ceiling
    from recovery.second_edition.rules.ledger import Standing


Reservation = tuple[int, int, App]
"""(held back since in ms, position of its submission, app)."""


@dataclass(slots=True)
class Group:
    """The heads of one company with the same request."""

    passes: bool = False
    held_since: int | None = None
    heads: dict[str, tuple[int, App]] = field(default_factory=dict)
    """App -> (head since in ms, app), in order of time; without apps that have a reservation."""
    reserving: int = 0
    """The number of heads with a reservation."""


@dataclass(slots=True)
class QuotaLimit:
    """The requests that pass one company's quota."""

    tenant: Tenant
    stops_idle: bool = True
    """Whether it binds while the company occupies nothing; a default quota does not (semantics C4)."""
    groups: dict[Resources, Group] = field(default_factory=dict)
    reservations: list[Reservation] = field(default_factory=list)
    """The one that counts first."""
    reserved: dict[str, Reservation] = field(default_factory=dict)
    """The same by app."""
    holding: int = 0
    """How many groups are held back."""
    ceiling: Ceiling | None = None
    """The limits of the company by which its apps are passed over (semantics N2)."""
    ceilings: dict[str, tuple[Ceiling, Standing]] = field(default_factory=dict)
    """Those of its users that have any, and what these users claim."""

    @property
    def limited(self) -> bool:
        """Whether there is any limit by which apps are passed over."""
        return self.ceiling is not None or bool(self.ceilings)

    def broken(
        self, user: str, request: Resources, apps: int = 1, *, of_company: Resources | None = None
    ) -> tuple[str, Broken] | None:
        """The limit that keeps an app of the user with that request out now, after its holder (semantics N2).

        The holder is the user, or "" for the company. With 0 `apps`, the limit against more for an admitted app. What
        the company is asked for is `of_company`, if others of its users ask besides.
        """
        own = self.ceilings.get(user)
        if own is not None and (broken := own[0].broken(own[1], request, apps)) is not None:
            return user, broken
        together = request if of_company is None else of_company
        if self.ceiling is None or (broken := self.ceiling.broken(self.tenant.standing, together, apps)) is None:
            return None
        return "", broken

    def lets_in(self, app: App) -> bool:
        """Whether no limit keeps the pending app out now (semantics N2)."""
        return self.broken(app.spec.user, app.requested) is None

    def passes_over(self, request: Resources) -> bool:
        """Whether the company's limits keep every app of that request out now (semantics N2)."""
        return self.ceiling is not None and self.ceiling.broken(self.tenant.standing, request) is not None

    def possible(self, user: str, request: Resources) -> bool:
        """Whether an app of the user with that request is within the limits if nothing is claimed (semantics N2)."""
        own = self.ceilings.get(user)
        if own is not None and not own[0].fits_alone(request):
            return False
        return self.ceiling is None or self.ceiling.fits_alone(request)

    def admits(self, request: Resources, *, lent: bool = True) -> bool:
        """Whether a request passes now (semantics C4); elastic apps count with their least number if `lent` (E7)."""
        standing = self.tenant.standing
        claimed = standing.claimed
        if lent and standing.lent != NOTHING:
            claimed -= standing.lent
        if not self.stops_idle and claimed == NOTHING:
            return True
        return self.tenant.quota.covers(claimed, request)

    def fits_alone(self, request: Resources) -> bool:
        """Whether a request would pass if the company claimed nothing; else its app is no head (semantics C4)."""
        return not self.stops_idle or self.tenant.quota.covers(NOTHING, request)

    def enter(self, head: App, at: int) -> None:
        """Add a head at `at` (ms)."""
        group = self.groups.get(head.requested)
        if group is None:
            group = self.groups[head.requested] = Group()
            self._judge(head.requested, group, at)
        if head.id in self.reserved:
            group.reserving += 1
        else:
            group.heads[head.id] = at, head

    def leave(self, head: App, request: Resources) -> None:
        """Remove a head that was one with this request."""
        group = self.groups[request]
        if group.heads.pop(head.id, None) is None:
            group.reserving -= 1
        if not group.heads and not group.reserving:
            del self.groups[request]
            self.holding -= group.held_since is not None

    def review(self, at: int) -> None:
        """What the company claims or its quota is another one since `at` (ms)."""
        for request, group in self.groups.items():
            self._judge(request, group, at)

    def _judge(self, request: Resources, group: Group, at: int) -> None:
        group.passes = self.admits(request)
        if group.passes or not self.fits_alone(request):
            if group.held_since is not None:
                group.held_since = None
                self.holding -= 1
        elif group.held_since is None:
            group.held_since = at
            self.holding += 1

    def held(self) -> Iterator[tuple[int, App]]:
        """(held back since in ms, app) without reservations, the longest of each group first."""
        for group in self.groups.values():
            if group.held_since is not None:
                for since, head in group.heads.values():
                    yield max(since, group.held_since), head

    def held_longest(self, but: Callable[[App], bool]) -> int | None:
        """The earliest time (ms) since which an app without a reservation is held back, `but` those; None if none."""
        if not self.holding:
            return None
        longest: int | None = None
        for group in self.groups.values():
            if group.held_since is not None:
                for since, head in group.heads.values():
                    if not but(head):
                        held = max(since, group.held_since)
                        longest = held if longest is None else min(longest, held)
                        break
        return longest

    def is_held(self, app: App) -> bool:
        """Whether the app is held back without a reservation."""
        group = self.groups.get(app.requested)
        return group is not None and group.held_since is not None and app.id in group.heads

    def reserve(self, app: App) -> None:
        """Reserve the company's room for an app that is held back (semantics C7).

        Example, a patience of 600 s and a quota of 16 cores, half of it held: an app of 16 is held back from 2.000 s.
        At 3 s and at 602.000 s apps of 8 may pass it. From 602.001 s none may, and it is next once nothing is held.
        """
        group = self.groups[app.requested]
        since, head = group.heads.pop(app.id)
        group.reserving += 1
        self.reserved[app.id] = max(since, group.held_since or 0), head.submitted, head
        insort(self.reservations, self.reserved[app.id])

    def lapse(self, app: App, at: int, *, is_head: bool) -> None:
        """Reserve for the app no longer; if it is a head, it is one from `at` (ms) on (semantics C7)."""
        self.release(app.id)
        if is_head:
            group = self.groups[app.requested]
            group.reserving -= 1
            group.heads[app.id] = at, app

    def hold_back(self, heads: Iterable[App], since: Mapping[str, int], reserved: Iterable[Reservation]) -> None:
        """Restore the times (ms) since which these heads are held back, by app, and the reservations."""
        self.reservations = sorted(reserved)
        self.reserved = {one[2].id: one for one in self.reservations}
        for group in self.groups.values():
            group.heads, group.reserving = {}, 0
            group.held_since = None if group.held_since is None else 0
        for head in sorted(heads, key=lambda head: (since.get(head.id, 0), head.submitted)):
            if head.id in self.reserved:
                self.groups[head.requested].reserving += 1
            else:
                self.groups[head.requested].heads[head.id] = since.get(head.id, 0), head

    def release(self, app: str) -> None:
        """Drop the reservation of an app that was admitted or removed."""
        reservation = self.reserved.pop(app, None)
        if reservation is not None:
            del self.reservations[bisect_left(self.reservations, reservation)]

    def reserver(self) -> App | None:
        """The app whose reservation counts; None without reservations (semantics C7)."""
        for _, _, app in self.reservations:
            if (
                self.fits_alone(app.requested)
                and app.need.hostable
                and self.broken(app.spec.user, app.requested) is None
            ):
                return app
        return None

    def lets_through(self) -> bool:
        """Whether the company takes part (semantics C1): some head passes, or the reserving app if there is one."""
        if self.reservations and (reserver := self.reserver()) is not None:
            return self.admits(reserver.requested)
        return bool(self.groups) and any(group.passes for group in self.groups.values())
