"""The limits of the cluster, of companies and of their users (semantics N1, N2).

What a submission exceeds is refused (`limiting`). What cannot be admitted now is passed over: `Ceiling`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scheduler.model.events import AppRegistered, LimitSet
    from scheduler.model.resources import Resources
    from scheduler.rules.admission.user import Contender
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.ledger import Occupation

NAMES = (
    "max_pending_apps",
    "max_running_apps",
    "max_cores",
    "max_memory_mb",
    "max_app_cores",
    "max_tasks",
    "submit_per_minute",
)
"""Besides these there is `max_KIND` for each registered kind of resources (semantics R4)."""
HIGHEST = 1 << 40
EVERYBODY = "*"
RATE = "submit_per_minute"
_PASSING_OVER = ("max_running_apps", "max_cores", "max_memory_mb")

Holder = tuple[str, str]
"""(company, user): user "" = the company itself, `*` = each of its users; both "" = each company.

Or "" and a department.
"""


def kind_of(name: str) -> str:
    """The kind of resources that a limit of that name is for, "" if it is none of a kind's (semantics R4)."""
    return "" if name in NAMES or not name.startswith("max_") else name.removeprefix("max_")


class Broken(NamedTuple):
    """A limit that an app would break now: how much there is of how much, and how much the app adds."""

    name: str
    present: int
    limit: int
    asked: int
    department: str = ""
    """The department that has it, if one does."""


class Ceiling(NamedTuple):
    """The limits of a company or a user by which apps are passed over (semantics N2); None = there is none."""

    max_running_apps: int | None
    max_cores: int | None
    max_memory_mb: int | None
    kinds: tuple[tuple[str, int], ...] = ()
    """The largest amounts of further kinds, sorted (semantics R4)."""

    def broken(self, standing: Occupation, request: Resources, apps: int = 1, *, alone: bool = False) -> Broken | None:
        """The first limit that one more app of that request breaks; with 0 `apps`, more of an admitted one.

        `alone`: the first that it breaks even where nobody claims anything.
        """
        for name, limit, present, asked in (
            ("max_running_apps", self.max_running_apps, standing.apps, apps),
            ("max_cores", self.max_cores, standing.claimed.cores, request.cores),
            ("max_memory_mb", self.max_memory_mb, standing.claimed.memory_mb, request.memory_mb),
            *[
                (f"max_{kind}", limit, standing.claimed.amount(kind), request.amount(kind))
                for kind, limit in self.kinds
            ],
        ):
            if limit is not None and asked and (0 if alone else present) + asked > limit:
                return Broken(name, present, limit, asked)
        return None


class CompanyLimits:
    """The limits by which apps of one company are passed over (semantics N2)."""

    def __init__(self, standing: Occupation) -> None:
        self._standing = standing
        """What the company claims."""
        self._company = ""
        self._all: Limits | None = None
        """The limits, if anybody has any."""
        self.ceiling: Ceiling | None = None
        """The limits of the company."""
        self.ceilings: dict[str, tuple[Ceiling, Occupation]] = {}
        """The limits of its users that have any, and what these users claim."""
        self.above: list[tuple[str, Ceiling, Occupation]] = []
        """The departments that it is in and that have any, and what the companies in them claim (semantics H12)."""

    @property
    def limited(self) -> bool:
        """Whether there is any limit by which apps are passed over."""
        return self.ceiling is not None or bool(self.ceilings) or bool(self.above)

    def set(
        self,
        limits: Limits,
        company: str,
        users: Iterable[Contender],
        above: Sequence[tuple[str, Occupation]] = (),
    ) -> None:
        """These are the limits now, and the company, the departments above and the users to which they apply."""
        self._company, self._all = company, limits if limits.values else None
        self.ceiling, self.ceilings = limits.ceiling(company), {}
        self.above = []
        for name, standing in above:
            ceiling = limits.ceiling("", name)
            if ceiling is not None:
                self.above.append((name, ceiling, standing))
        for user in users:
            self.regard(user)

    def regard(self, user: Contender) -> None:
        """The user has apps from now on."""
        if self._all is not None:
            ceiling = self._all.ceiling(self._company, user.user)
            if ceiling is not None:
                self.ceilings[user.user] = ceiling, user.standing

    def broken(self, user: str, request: Resources, apps: int = 1, *, alone: bool = False) -> tuple[str, Broken] | None:
        """The limit that keeps an app of the user with that request out now, after its holder (semantics N2).

        The holder is the user, or "" for the company. With 0 `apps`, the limit against more for an admitted app.
        `alone`: the limit that keeps it out whatever else ends.
        """
        return self.broken_by(user, (request, apps), (request, apps), alone=alone)

    def broken_by(
        self, user: str, of_user: tuple[Resources, int], of_company: tuple[Resources, int], *, alone: bool = False
    ) -> tuple[str, Broken] | None:
        """As `broken`, of what so many more apps of the user, and of the whole company, request in all."""
        own, all_of = self.ceilings.get(user), self._standing
        if own is not None and (broken := own[0].broken(own[1], *of_user, alone=alone)) is not None:
            return user, broken
        if self.ceiling is not None and (broken := self.ceiling.broken(all_of, *of_company, alone=alone)) is not None:
            return "", broken
        for name, ceiling, standing in self.above:
            broken = ceiling.broken(standing, *of_company, alone=alone)
            if broken is not None:
                return "", broken._replace(department=name)
        return None

    def lets_in(self, app: App) -> bool:
        """Whether no limit keeps the pending app out now (semantics N2)."""
        return self.broken(app.spec.user, app.requested) is None


class Limits:
    """Every limit, and the buckets from which submissions take tokens."""

    def __init__(self) -> None:
        self.values: dict[Holder, dict[str, int]] = {}
        self.buckets: dict[Holder, tuple[int, int]] = {}
        """Holder -> tokens left after the last submission, and the second of that; absent = full."""
        self.rated = False
        """Whether there is any limit of submissions a minute."""

    def set(self, event: LimitSet) -> None:
        """Fold the event. A bucket begins full under its new limit."""
        holder = event.company, event.user or event.department
        values = self.values.pop(holder, {})
        values.pop(event.name, None)
        if event.value is not None:
            values[event.name] = event.value
        if values:
            self.values[holder] = values
        if event.name == RATE:
            self.rated = any(RATE in each for each in self.values.values())
            for each in [*self.buckets]:
                if _bounds(holder, each):
                    del self.buckets[each]

    def restore(self, holder: Holder, values: dict[str, int]) -> None:
        """The limits of a company or a user as they were."""
        self.values[holder] = dict(values)
        self.rated = self.rated or RATE in values

    def forget_department(self, department: str) -> None:
        """The department is no more."""
        self._forget([("", department)])

    def forget(self, company: str) -> None:
        """The company is no tenant any more."""
        self._forget([holder for holder in (*self.values, *self.buckets) if holder[0] == company])

    def _forget(self, holders: Iterable[Holder]) -> None:
        for holder in holders:
            self.values.pop(holder, None)
            self.buckets.pop(holder, None)
        self.rated = any(RATE in each for each in self.values.values())

    def of_company(self, company: str, name: str) -> int | None:
        """The company's own limit, else the cluster's; None if there is none (semantics N1)."""
        own = self.values.get((company, ""), {}).get(name)
        return self.values.get(("", ""), {}).get(name) if own is None else own

    def of_user(self, company: str, user: str, name: str) -> int | None:
        """The limit of the named user, else that of every user of the company; None if there is none (semantics N1)."""
        own = self.values.get((company, user), {}).get(name)
        return self.values.get((company, EVERYBODY), {}).get(name) if own is None else own

    def of(self, holder: Holder, name: str) -> int | None:
        """The limit of a company, or of a user."""
        return self.of_user(*holder, name) if holder[1] else self.of_company(holder[0], name)

    def ceiling(self, company: str, user: str = "") -> Ceiling | None:
        """The limits by which apps of the company, or of its user, are passed over; None if there are none."""
        running, cores, memory_mb = [self.of((company, user), name) for name in _PASSING_OVER]
        holders = ((company, user), (company, EVERYBODY)) if user else ((company, ""), ("", ""))
        names = {name for holder in holders for name in self.values.get(holder, ()) if kind_of(name)}
        kinds = tuple(
            (kind_of(name), limit) for name in sorted(names) if (limit := self.of((company, user), name)) is not None
        )
        found = Ceiling(running, cores, memory_mb, kinds)
        return None if found == (None, None, None, ()) else found

    def take(self, company: str, user: str, above: Iterable[str], at: int) -> None:
        """A submission at `at` (ms) takes a token of its company's and its user's bucket, and of those `above` (N2).

        `above`: the departments that the company is in.
        """
        for holder in ((company, ""), (company, user), *[("", each) for each in above]):
            rate = self.of(holder, RATE)
            if rate is not None:
                self.buckets[holder] = max(0, self.tokens(holder, rate, at) - 1), at // 1000

    def tokens(self, holder: Holder, rate: int, at: int) -> int:
        """The tokens in the bucket at `at` (ms): at most `rate`, of which as many come a minute (semantics N2).

        Whole ones come at whole seconds. Example, 90 a minute: one comes at each second, another at each even one.
        """
        left, since = self.buckets.get(holder, (rate, 0))
        return min(rate, left + at // 1000 * rate // 60 - since * rate // 60)


def holder_text(company: str, user: str) -> str:
    """Whose a limit is, in words."""
    if not company:
        return f"department {user}"
    return f"user {user} in {company}" if user else f"company {company}"


def _bounds(limited: Holder, holder: Holder) -> bool:
    """Whether a limit of the first applies to the other one."""
    company, user = limited
    return (
        limited == holder
        or (user == EVERYBODY and company == holder[0] and holder[1] != "")
        or (limited == ("", "") and not holder[1])
    )


def over_app_cores(
    limits: Limits, app: AppRegistered, above: Iterable[str], requests: int, more: int
) -> tuple[str, Broken] | None:
    """The limit of one app's cores that keeps the app from requesting so many more, after its holder (semantics N2).

    The holder is the user, or "" for the company or a department; `above`: the departments that the company is in.
    """
    for (company, user), limit in _app_cores(limits, app, above):
        if requests + more > limit:
            broken = Broken("max_app_cores", requests, limit, more)
            return (user, broken) if company else ("", broken._replace(department=user))
    return None


def most_app_cores(limits: Limits, app: AppRegistered, above: Iterable[str]) -> int:
    """The most cores that the app may request by the limits of its user, company and departments (N2, L6, H12)."""
    return min((limit for _, limit in _app_cores(limits, app, above)), default=HIGHEST)


def _app_cores(limits: Limits, app: AppRegistered, above: Iterable[str]) -> Iterator[tuple[Holder, int]]:
    """The limits of one app's cores, the user's first, each after its holder."""
    for holder in ((app.company, app.user), (app.company, ""), *[("", each) for each in above]):
        limit = limits.of(holder, "max_app_cores")
        if limit is not None:
            yield holder, limit
