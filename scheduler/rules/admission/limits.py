"""The limits of the cluster, of companies and of their users (semantics N1, N2).

What a submission exceeds is refused: `check_submission`. What cannot be admitted now is passed over: `Ceiling`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from scheduler.model.errors import InvalidCommand, LimitExceeded, UnknownCompany
from scheduler.model.events import Event, LimitSet
from scheduler.rules.validate import MAX_MEMORY_MB, check_name, check_range, shorten

if TYPE_CHECKING:
    from scheduler.model.commands import SetLimit
    from scheduler.model.events import AppRegistered
    from scheduler.model.resources import Resources
    from scheduler.rules.claims import Standing
    from scheduler.rules.state import ClusterState

NAMES = (
    "max_pending_apps",
    "max_running_apps",
    "max_cores",
    "max_memory_mb",
    "max_app_cores",
    "max_tasks",
    "submit_per_minute",
)
HIGHEST = 1000 * MAX_MEMORY_MB
EVERYBODY = "*"
RATE = "submit_per_minute"

Holder = tuple[str, str]
"""(company, user): user "" = the company itself, `*` = each of its users; both "" = each company."""


class Broken(NamedTuple):
    """A limit that an app would break now: how much there is of how much, and how much the app adds."""

    name: str
    present: int
    limit: int
    asked: int


class Ceiling(NamedTuple):
    """The limits of a company or a user by which apps are passed over (semantics N2); None = there is none."""

    max_running_apps: int | None
    max_cores: int | None
    max_memory_mb: int | None

    def broken(self, standing: Standing, request: Resources, apps: int = 1) -> Broken | None:
        """The first limit that one more app of that request breaks; with 0 `apps`, more of an admitted one."""
        for name, limit, present, asked in (
            ("max_running_apps", self.max_running_apps, standing.apps, apps),
            ("max_cores", self.max_cores, standing.claimed.cores, request.cores),
            ("max_memory_mb", self.max_memory_mb, standing.claimed.memory_mb, request.memory_mb),
        ):
            if limit is not None and asked and present + asked > limit:
                return Broken(name, present, limit, asked)
        return None

    def fits_alone(self, request: Resources) -> bool:
        """Whether a request would pass if nothing were claimed; else its app is no head (semantics N2)."""
        return (self.max_cores is None or request.cores <= self.max_cores) and (
            self.max_memory_mb is None or request.memory_mb <= self.max_memory_mb
        )


class Limits:
    """Every limit, and the buckets from which submissions take tokens."""

    def __init__(self) -> None:
        self.values: dict[Holder, dict[str, int]] = {}
        self.buckets: dict[Holder, tuple[int, int]] = {}
        """Company or user -> tokens left after the last submission, and the second of that; absent = full."""
        self.rated = False
        """Whether there is any limit of submissions a minute."""

    def set(self, event: LimitSet) -> None:
        """Fold the event. A bucket begins full under its new limit."""
        holder = event.company, event.user
        values = self.values.pop(holder, {})
        values.pop(event.name, None)
        if event.value is not None:
            values[event.name] = event.value
        if values:
            self.values[holder] = values
        if event.name == RATE:
            self.rated = any(RATE in each for each in self.values.values())
            for company, user in [*self.buckets]:
                if event.company in ("", company) and event.user in (user, EVERYBODY if user else ""):
                    del self.buckets[company, user]

    def restore(self, holder: Holder, values: dict[str, int]) -> None:
        """The limits of a company or a user as they were."""
        self.values[holder] = dict(values)
        self.rated = self.rated or RATE in values

    def forget(self, company: str) -> None:
        """The company is no tenant any more."""
        for table in (self.values, self.buckets):
            for holder in [holder for holder in table if holder[0] == company]:
                del table[holder]
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
        found = Ceiling(*(self.of((company, user), name) for name in Ceiling._fields))
        return None if found == (None, None, None) else found

    def take(self, company: str, user: str, at: int) -> None:
        """A submission at `at` (ms) takes a token of its company's and its user's bucket (semantics N2)."""
        for holder in ((company, ""), (company, user)):
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
    return f"user {user} in {company}" if user else f"company {company}"


def limit_set(state: ClusterState, command: SetLimit) -> list[Event]:
    """The limit as the command sets it; nothing if it is so already (semantics N1).

    Raises: InvalidCommand, UnknownCompany.
    """
    name, value, company, user = command.name, command.value, command.company or "", command.user or ""
    if name not in NAMES:
        raise InvalidCommand(f"no limit is named {shorten(name)}; the limits are {', '.join(NAMES)}")
    check_range(f"limit {name}", value, int(name == RATE), HIGHEST)
    if (company != "", user != "") != {"cluster": (False, False), "company": (True, False)}.get(
        command.scope, (True, True)
    ):
        raise InvalidCommand(
            "a limit of the cluster names nobody, one of a company the company, one of a user the company and the user"
        )
    if company and company not in state.companies:
        raise UnknownCompany(company[:80])
    if user not in ("", EVERYBODY):
        check_name("the user", user)
    if state.limits.values.get((company, user), {}).get(name) == value:
        return []
    return [LimitSet(name=name, value=value, company=company, user=user)]


def most_app_cores(limits: Limits, app: AppRegistered) -> int:
    """The most cores that the app may request by the limits of its user and company (semantics N2, L6)."""
    known = (limits.of((app.company, user), "max_app_cores") for user in (app.user, ""))
    return min((limit for limit in known if limit is not None), default=HIGHEST)


def check_submission(state: ClusterState, app: AppRegistered, at: int) -> None:
    """Raises: LimitExceeded if a limit of the app's user or company refuses it at `at` (ms) (semantics N2)."""
    for user in (app.user, ""):
        _check(state.limits, (app.company, user), state.claims.standing(app.company, user), app, at)


def _check(limits: Limits, holder: Holder, standing: Standing, app: AppRegistered, at: int) -> None:
    request = app.requested
    for name, asked, text in (
        ("max_tasks", app.tasks, "the app has {} tasks; split it"),
        ("max_app_cores", request.cores, "the app requests {} cores; request less"),
        ("max_cores", request.cores, "the app alone requests {} cores; request less"),
        ("max_memory_mb", request.memory_mb, "the app alone requests {} MiB; request less"),
    ):
        limit = limits.of(holder, name)
        if limit is not None and asked > limit:
            raise LimitExceeded(name, holder_text(*holder), limit, text.format(asked))
    limit = limits.of(holder, "max_pending_apps")
    if limit is not None and standing.pending >= limit:
        text = f"{standing.pending} apps are pending; submit this one when one of them has been admitted"
        raise LimitExceeded("max_pending_apps", holder_text(*holder), limit, text)
    rate = limits.of(holder, RATE)
    if rate is not None and not limits.tokens(holder, rate, at):
        now = at // 1000
        next_s = -((now * rate // 60 + 1) * -60 // rate) - now
        text = f"no submission is left in this minute; the next is possible in {next_s} s"
        raise LimitExceeded(RATE, holder_text(*holder), rate, text)
