"""Errors, sorted by who must act: the caller, this process, or a human.

Errors of the store are those of redis-py: the supervisor drops the turn and retries with back-off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from scheduler.model.text import counted


class FairlogError(Exception):
    """The base of fairlog's errors."""


class CommandRejected(FairlogError):
    """The caller must act: the command was refused and nothing changed."""


class InvalidCommand(CommandRejected):
    """A value of the command is not allowed."""


class TooManyVisits(InvalidCommand):
    """A company's accounts have as many commands beside tasks (`fairlog exec`) as they may have at once."""


class InvalidSetting(CommandRejected):
    """A setting is unknown or its value is not allowed (semantics, Settings)."""


class UnknownCompany(CommandRejected):
    """No company of that name is registered; `known` are those that are."""

    def __init__(self, company: str, known: Iterable[str] = ()) -> None:
        meant = nearest(company, known)
        super().__init__(f"no company {company!r} is registered; {meant}`fairlog company list` lists the companies")


def nearest(name: str, known: Iterable[str]) -> str:
    """The question whether the nearest of the known names is meant, for a sentence; "" if none is near."""
    from difflib import get_close_matches  # noqa: PLC0415 (few errors name what is near)

    near = get_close_matches(name, list(known), 1)
    return f"did you mean {near[0]!r}? " if near else ""


class UnknownUser(CommandRejected):
    """No user of that name has an account or has had an app, in the company if one is named; `known` are those."""

    def __init__(self, user: str, company: str | None, known: Iterable[str]) -> None:
        whose = "" if company is None else f" of company {company!r}"
        super().__init__(f"no user {user!r}{whose} is known; {nearest(user, known)}`fairlog shares` lists the users")


class UnknownApp(CommandRejected):
    """No app of that id is known."""

    def __init__(self, app: str) -> None:
        super().__init__(f"no app {app!r} is known; `fairlog apps --all` lists the apps")


class UnknownWorker(CommandRejected):
    """No worker of that id is registered."""

    def __init__(self, worker: str) -> None:
        super().__init__(f"no worker {worker!r} is registered; `fairlog workers` lists the workers")


class UnknownExecutor(CommandRejected):
    """No executor of that id holds a grant."""

    def __init__(self, executor: str) -> None:
        super().__init__(f"no executor {executor!r} is granted; `fairlog app APP` lists an app's executors")


class UnknownDriver(CommandRejected):
    """No driver of that id holds a grant."""

    def __init__(self, driver: str) -> None:
        super().__init__(f"no driver {driver!r} is granted; `fairlog app APP` shows an app's driver")


class UnknownKind(CommandRejected):
    """No kind of resources of that name is registered (semantics R1)."""

    def __init__(self, kind: str, registered: Collection[str]) -> None:
        known = f"use one of {', '.join(registered)}, or register it" if registered else "register it"
        super().__init__(f"no kind of resources {kind!r} is registered; {known} with `fairlog resource add {kind}`")


class DuplicateApp(CommandRejected):
    """An app of that id is known already."""

    def __init__(self, app: str) -> None:
        super().__init__(f"an app {app!r} exists already; choose another id")


class DuplicateCompany(CommandRejected):
    """A company of that name is registered already."""

    def __init__(self, company: str) -> None:
        super().__init__(f"company {company!r} is registered already; `fairlog company set` changes it")


class DuplicateWorker(CommandRejected):
    """A worker of that id is registered from another place."""

    def __init__(self, worker: str, host: str, rack: str) -> None:
        place = f"host {host!r}" + (f", rack {rack!r}" if rack else "")
        super().__init__(
            f"a worker {worker!r} is already registered from {place}; choose another id with `fairlog worker --id`"
        )


class CompanyInUse(CommandRejected):
    """A company that still has apps cannot be removed."""

    def __init__(self, company: str, apps: int) -> None:
        super().__init__(
            f"company {company!r} still has {apps} {'app' if apps == 1 else 'apps'}; run `fairlog kill APP`, or wait "
            "until nothing of them runs any more"
        )


class OfferTooSmall(CommandRejected):
    """A worker offers less than is granted on it."""

    def __init__(self, worker: str, dimension: str, offered: int, granted: int) -> None:
        super().__init__(
            f"worker {worker!r} offers {offered} {dimension}, but {granted} {dimension} are granted on it; "
            f"run `fairlog drain {worker}` first"
        )


class AddressGranted(CommandRejected):
    """A worker no longer offers an address that is granted (semantics R1)."""

    def __init__(self, worker: str, kind: str, address: str) -> None:
        super().__init__(
            f"worker {worker!r} no longer offers {kind} {address!r}, but it is granted; offer it again, or run "
            f"`fairlog drain {worker}` first"
        )


class AppEnded(CommandRejected):
    """The app has ended already."""

    def __init__(self, app: str, how: str) -> None:
        super().__init__(f"app {app!r} has already ended: {how}")


class UnknownDependency(CommandRejected):
    """An app is to start after one that is not known, or that is another company's (semantics J1)."""

    def __init__(self, app: str, company: str) -> None:
        super().__init__(
            f"no app {app!r} of company {company!r} is known, so none can start after it; `fairlog apps --all` lists "
            "the apps"
        )


class NotPending(CommandRejected):
    """The app is admitted already, so it cannot be put on hold or released (semantics J3)."""

    def __init__(self, app: str) -> None:
        super().__init__(f"app {app!r} is not pending; only a pending app can be put on hold or released")


class NotAdmitted(CommandRejected):
    """The app is pending, so there is nothing of it that could be put back into its queue (semantics X6)."""

    def __init__(self, app: str) -> None:
        super().__init__(
            f"app {app!r} is pending already; only an app that waits for executors or runs can be put back"
        )


def _amount_of(number: int, dimension: str) -> str:
    return counted(number, "core") if dimension == "cores" else f"{number} {dimension}"


class QuotaExceeded(CommandRejected):
    """One request alone is larger than its company's quota (semantics C4)."""

    def __init__(self, company: str, dimension: str, requested: int, quota: int, *, department: bool = False) -> None:
        whose = "department" if department else "company"
        what = "cap" if department else "quota"
        asked, most = _amount_of(requested, dimension), _amount_of(quota, dimension)
        super().__init__(
            f"the app requests {asked}, but the {what} of {whose} {company!r} is {most}; request less, or raise the "
            f"{what} with `fairlog {whose} set`"
        )


class NeverFits(CommandRejected):
    """No worker is large enough for an executor or the driver of the app, even if it were empty (semantics N3)."""

    def __init__(self, what: str, needed: str, worker: str, offer: str, among: int = 0) -> None:
        which = f"none of the {among} that the app may use by their labels" if among else "no worker"
        super().__init__(
            f"{what} of the app needs {needed}, and {which} offers that much; the nearest is {worker} with {offer}; "
            "ask for less, or add a larger worker first"
        )


class NeverMet(CommandRejected):
    """No worker meets what the app demands of its labels (semantics P9, N3)."""

    def __init__(self, workers: int, excluding: Iterable[tuple[str, int]]) -> None:
        each = ", ".join([f"{term} excludes {number}" for term, number in excluding])
        super().__init__(
            f"the app may use none of the {workers} worker{'s' * (workers != 1)} by their labels: {each}; demand "
            "less, add such a worker first, or have apps wait for one with `fairlog settings set never_fits=wait`"
        )


class NeverTogether(CommandRejected):
    """The programs of an app can never all run at once, even if nothing else ran (semantics N3)."""

    def __init__(self, asked: int, each: str, bound: str, most: int, *, gang: bool = False) -> None:
        less = f"ask for at most {most}" if most else "ask for smaller executors"
        instead = "" if gang else ", or give --as-many-as-fit if its programs need not run at once"
        super().__init__(
            f"the app needs {counted(asked, 'executor')} of {each} at once, and {bound} can hold {most} at most; "
            f"{less}{instead}"
        )


class LimitExceeded(CommandRejected):
    """An app exceeds a limit of its company or user (semantics N2)."""

    def __init__(self, name: str, holder: str, limit: int, present: str) -> None:
        super().__init__(f"limit {name} of {holder} is {limit}, and {present}")


class TooManySizes(CommandRejected):
    """Executors of a company's apps would have more sizes than a filling regards (semantics H2)."""

    def __init__(self, company: str, size: str, number: int, most: int) -> None:
        super().__init__(
            f"executors of {size} would be size number {number} of company {company!r}, whose apps that have not ended "
            f"may have executors of {most} sizes; ask for a size that they have, or wait until apps of another one end"
        )


class RuntimeTooLong(CommandRejected):
    """An app would run longer than its company's apps may (semantics X1)."""

    def __init__(self, asked_s: int, most_s: int, company: str, instead: str) -> None:
        super().__init__(
            f"the app would run for {asked_s} s, but apps of company {company!r} may run for at most {most_s} s; "
            f"{instead}"
        )


class NotSigned(CommandRejected):
    """The message is not signed by a key that the master knows, or was changed after it was signed."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; FAIRLOG_KEYS must name the keys of the cluster")


class MessageTooOld(CommandRejected):
    """The message may have been carried out before: it was sent before the oldest command that is remembered."""

    def __init__(self) -> None:
        super().__init__("the message is too old to know whether it was carried out before; send the command anew")


class IdReused(CommandRejected):
    """Another command was carried out, or refused and logged, under that id."""

    def __init__(self, identity: str, seq: int) -> None:
        super().__init__(
            f"another command was sent under the id {identity!r}, see position {seq} of the log; send this one under "
            "an id, or Idempotency-Key, of its own"
        )


class OtherVersion(CommandRejected):
    """Messages or a log of a version that is not read; says who is too old."""


class NotAllowed(CommandRejected):
    """The sender may not do this (semantics I3)."""


class NotAuthenticated(CommandRejected):
    """The token is unknown, expired, revoked or malformed (semantics I5)."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; get a token from your company's admin, and run `fairlog login`")


class UnknownAccount(CommandRejected):
    """No account of that name exists."""

    def __init__(self, account: str) -> None:
        super().__init__(f"there is no account {account!r}; `fairlog account list` lists the accounts")


class DuplicateAccount(CommandRejected):
    """An account of that name exists already."""

    def __init__(self, account: str) -> None:
        super().__init__(f"an account {account!r} exists already; choose another name")


class UnknownToken(CommandRejected):
    """No valid token has that id."""

    def __init__(self, token: str) -> None:
        super().__init__(f"there is no valid token {token!r}; `fairlog token list` lists the tokens")


def refusal_of(name: str, message: str) -> CommandRejected:
    """A refusal from its stored class name and message; InternalError if the class is unknown."""
    found = globals().get(name)
    kind = found if isinstance(found, type) and issubclass(found, CommandRejected) else InternalError
    refusal = kind.__new__(kind)
    refusal.args = (message,)
    return refusal


def stated_error(name: str, message: str) -> FairlogError | None:
    """The refusal, or the want of a master, that an API server's problem states; None for any other problem."""
    found = globals().get(name)
    if found is NoMaster:
        return NoMaster(message)
    return refusal_of(name, message) if isinstance(found, type) and issubclass(found, CommandRejected) else None


class InternalError(CommandRejected):
    """The command made the master fail; it is in the dead-letter stream for a human to read."""


class StaleLog(FairlogError):
    """The log has grown since this process folded it: rebuild the state and repeat the turn."""


class NotReplicated(StaleLog):
    """A commit has reached fewer replicas than configured; it is not acknowledged."""

    def __init__(self, reached: int, due: int) -> None:
        super().__init__(
            f"the last entries of the log are on {counted(reached, 'replica')} of the store, but {due} are required"
        )


class Deposed(FairlogError):
    """Another master was elected: stop taking turns and become a standby."""

    def __init__(self, master: str) -> None:
        super().__init__(f"master {master!r} was elected")


class ToldToStop(Deposed):
    """This master was told to stop while it waited for the store's replicas."""

    def __init__(self) -> None:
        FairlogError.__init__(self, "told to stop while the replicas of the store are behind")


class UnreadableRecord(FairlogError):
    """An entry of the log is altered or cannot be read; a human must act.

    `at` is the time (ms) that an altered entry states, None if it states none.
    """

    def __init__(self, seq: int, why: str, *, at: int | None = None) -> None:
        super().__init__(f"log position {seq}: {why}")
        self.seq, self.why, self.at = seq, why, at


class InvariantViolated(FairlogError):
    """An event contradicts the state before it, or an index contradicts the facts; a human must act.

    `rule` is the number of the broken rule in docs/semantics.md.
    """

    def __init__(self, seq: int, why: str, rule: str = "O2") -> None:
        super().__init__(f"log position {seq}: {why} ({rule})")
        self.seq, self.why, self.rule = seq, why, rule


class UnsuitableStore(FairlogError):
    """The store lacks a required property."""


class NoMaster(FairlogError):
    """No master answered in time. The command stays in the inbox and keeps its id."""
