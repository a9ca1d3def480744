"""The answers that the live page is made of, for the present and for any past position of the log.

What everybody sees alike is worked out once in `FRESH_S` for all who look, so that fifty pages cost as much as one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec import Raw, convert, to_builtins
from msgspec.json import Decoder, Encoder
from msgspec.structs import replace

from fairlog.api.audit_file import audit_file
from fairlog.api.pages import Viewed
from fairlog.api.replica import Seen
from fairlog.watch.conditions import Around, as_json, found
from fairlog.watch.surroundings import since_when
from scheduler.model import events
from scheduler.model.answers import (
    AuditorState,
    CompanyNow,
    DecisionTold,
    HealthShown,
    Instant,
    Masters,
    Overview,
    Waiter,
)
from scheduler.model.causes import CAUSES
from scheduler.model.commands import ConfigureCluster
from scheduler.model.errors import InvalidCommand, UnknownApp, UnknownCompany, nearest
from scheduler.model.sender import NOBODY, By
from scheduler.rules.command.permission import MATRIX, WITH_REASON, Subject, companies_of, may_read
from scheduler.rules.view.views import past_runs
from scheduler.store.codec import lines_of, told
from witness import board
from witness.decision_reasons import why_admitted, why_driver, why_executors
from witness.playback import told as words

if TYPE_CHECKING:
    from fairlog.api.handlers import Handlers
    from scheduler.model.answers import PastRuns
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.store.codec import Fact, Record

FRESH_S = 0.5
"""How old an answer about the present may be that is shared among those who look."""
TIMELINE_S = 3.0
"""How old the life of an app may be."""
SLOW_S = 15.0
"""How old answers from the whole log may be."""
KEPT = 64
RECENT, TOLD = 400, 40
"""How many events the last decisions are looked for in, and how many are told."""
SCANNED = 20_000
"""The most events that are looked through for one page of the filtered log."""
OF_THE_STATE = {"worker_lost", "worker_suspect", "worker_unwell", "no_worker", "never_starts"}
"""The conditions that a past state shows by itself."""
_SETTLED = (
    events.ClusterConfigured,
    events.KindRegistered,
    events.CompanyRegistered,
    events.CompanyChanged,
    events.CompanyRemoved,
    events.LimitSet,
    events.AccountAdded,
    events.AccountChanged,
    events.AccountRemoved,
    events.RoleGranted,
    events.RoleRevoked,
    events.TokenIssued,
    events.TokenRevoked,
    events.AppsShown,
    events.WorkerRegistered,
    events.WorkerLabelled,
    events.WorkerChanged,
    events.WorkerRemoved,
    events.MasterElected,
    events.KeyChanged,
    events.LogRestored,
    events.LogAccepted,
)
"""What the history of the settings tells."""
_NAMED = tuple(f'["{kind.__name__}"'.encode() for kind in _SETTLED)
_to_json = Encoder().encode
_plain = Decoder().decode


class _KeptAnswer(NamedTuple):
    until_s: float
    seen: Seen
    value: Any


class Board:
    """The page's answers, over the handlers of the API. May be used by several threads."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers, self._replica = handlers, handlers.replica
        self._answers: OrderedDict[tuple[object, ...], _KeptAnswer] = OrderedDict()
        self._lock = Lock()
        self._turns: dict[tuple[object, ...], Lock] = {}
        """One works out an answer, the others wait for it."""
        self._history: list[dict[str, Any]] = []
        self._scanned = 0
        self._scanning = Lock()

    # What everybody sees

    def overview(self, who: By, *, at: int | None = None, after: int = 0) -> Viewed:
        """The state of the cluster at a glance, with the last decisions. Raises: as `StateViews.view`."""

        def look() -> tuple[Seen, Any]:
            around = self._handlers.health.look_around() if at is None else None

            def tell(state: ClusterState) -> Any:  # noqa: ANN401 (JSON)
                then = around or Around(now=state.at, serving=None)
                holding = [each for each in found(state, then) if around is not None or each.condition in OF_THE_STATE]
                return {**board.overview(state), "health": holding}

            seen, value = self._replica.read(tell, at=at, after=after)
            if around is not None:
                store, keys = self._handlers.store, self._handlers.keys
                value["health"] = since_when(store, keys, value["health"], around)
            value["health"] = convert(as_json(value["health"]), HealthShown)
            value["decisions"] = self._decisions(seen.seq)
            value |= {"head": self._replica.head, "cluster": self._handlers.keys.cluster}
            if around is not None:
                known, serving = around.audited, around.serving
                value["audited"] = None if known is None else convert(known._asdict(), AuditorState)
                standbys = [each.id for each in around.standing_by]
                value["masters"] = Masters(serving=None if serving is None else serving.id, standbys=standbys)
            return seen, Overview(**value)

        self.check(who)
        seen, value = self._shared(("overview",), look, at, after)
        companies = [replace(each, longest=self._waiter(who, each)) for each in value.companies]
        return self._viewed(seen, replace(value, companies=companies))

    def _waiter(self, who: By, company: CompanyNow) -> Waiter | None:
        """The longest waiter of a company; to tenants of others no more than since when and by which rule it waits."""
        longest = company.longest
        if longest is None or self._is_own(who, company.company):
            return longest
        return Waiter(since=longest.since, cause=longest.cause, rule=longest.rule)

    def _is_own(self, who: By, company: str) -> bool:
        """Whether `who` sees more of the company than what is public."""
        present = self._replica.peek(lambda state: state)
        return not present.closed or who.role not in ("user", "admin") or who.account.partition("/")[0] == company

    def fleet(self, who: By, *, at: int | None = None, after: int = 0) -> Viewed:
        """The workers and what runs on them."""
        self.check(who)

        def look() -> tuple[Seen, Any]:
            now = self._handlers.now_ms() if at is None else None
            return self._replica.read(lambda state: board.fleet(state, now), at=at, after=after)

        seen, value = self._shared(("fleet",), look, at, after)
        return self._viewed(seen, value)

    def company(self, who: By, company: str, *, at: int | None = None, after: int = 0) -> Viewed:
        """A company's own page; of others, what is public. Raises: UnknownCompany."""
        self.check(who)

        def look() -> tuple[Seen, Any]:
            return self._replica.read(lambda state: board.company(state, company), at=at, after=after)

        seen, value = self._shared(("company", company), look, at, after)
        told = replace(value, own=self._is_own(who, company), longest=self._waiter(who, value))
        return self._viewed(seen, told)

    # Apps

    def apps(  # noqa: PLR0913 (the parameters of its route)
        self,
        who: By,
        *,
        at: int | None = None,
        after: int = 0,
        company: str = "",
        user: str = "",
        state: str = "living",
        reason: str = "",
        text: str = "",
        sort: board.Sort = "submitted",
        descending: bool = True,
        start: int = 0,
        limit: int = 100,
    ) -> Viewed:
        """The apps that `who` may see and that pass, with the causes of their waits and the progress of their tasks."""
        filters = board.Filters(company, user, "" if state == "all" else state, reason, text)
        shown, public = self._handlers.sight.shown_to(who)
        now = self._handlers.now_ms() if at is None else None

        def look(past: ClusterState) -> Any:  # noqa: ANN401 (JSON)
            order = partial(board.listed, past, filters, sort=sort, descending=descending)
            listed = order(start=start, most=limit, shown=shown(past), now=now)
            told = to_builtins(listed)
            return {**told, "apps": [public(each) for each in told["apps"]]}

        seen, value = self._replica.read(look, at=at, after=after)
        if at is None:
            for row in value["apps"]:
                row["progress"] = self._progress(row["app"]) if row["state"] in ("waiting", "running") else None
        return self._viewed(seen, value)

    def app(self, who: By, app: str, *, at: int | None = None, after: int = 0, reason: str = "") -> Viewed:
        """An app, why it waits and what would help. Raises: as `Sight.check_app`."""
        now = self._handlers.now_ms() if at is None else None

        def look(past: ClusterState) -> Any:  # noqa: ANN401 (JSON)
            self._handlers.sight.check_sight(past, who, app)
            return board.one(past, app, now)

        seen, value = self._replica.read(look, at=at, after=after)
        body = self._handlers.sight.private_of(who, app, Raw(_to_json(value)), reason)
        if at is not None:
            return Viewed(seen, body)
        links = self._handlers.apps.mailbox.links(app)
        counted = self._counted(app)
        used = {name: counted[name] for name in ("cpu_ms", "peak_mb")}
        return self._viewed(seen, {**_plain(body), "progress": self._progress(app), "used": used, "links": links})

    def runs(self, who: By, *, company: str, user: str, name: str) -> Viewed:
        """What the last apps of the user and of this name used that have ended.

        Raises: NotAllowed unless `who` may submit for the user; NotReady.
        """
        now = self._handlers.now_ms()

        def look(state: ClusterState) -> PastRuns:
            may_read(state, who, "submit", Subject(company, user), now)
            return past_runs(state, company=company, user=user, name=name)

        seen, found = self._replica.read(look)
        return Viewed(seen, Raw(_to_json(found)))

    def _progress(self, app: str) -> dict[str, int] | None:
        """The numbers of the app's tasks by state; None if it has none."""
        found = self._counted(app)
        return found if found["tasks"] else None

    def _counted(self, app: str) -> dict[str, int]:
        def look() -> tuple[Seen, Any]:
            found = self._handlers.work.progress(app)
            return Seen(self._replica.head, 0), found._asdict()

        value: dict[str, int] = self._shared(("progress", app), look, None, 0)[1]
        return value

    def timeline(self, who: By, app: str, *, at: int | None = None) -> Viewed:
        """The life of an app up to a position. Raises: UnknownApp, NotAllowed; as `explain`."""
        self._handlers.sight.check_app(who, app)
        submitted = self._replica.read(lambda state: state.apps[app].submitted)[1]
        end = self._replica.head if at is None else at
        if end < submitted:
            raise UnknownApp(app)

        def look() -> tuple[Seen, Any]:
            viewed = self._handlers.log.timeline(who, app, to=end)
            return viewed.seen, viewed.body

        seen, body = self._shared(("timeline", app), look, at, submitted, kept_s=TIMELINE_S)
        return self._handlers.sight.without_said(who, app, Viewed(seen, body))

    # The log

    def moment(self, who: By, *, time: int) -> Viewed:
        """The end of the last turn at or before `time` (ms), and the time of the next one, None at the end."""
        self.check(who)
        seen = self._replica.seen()
        log = self._replica.log
        found = log.turn_at(time, seen.seq)
        seq, at = (0, None) if found is None else (found.last, found.at)
        following = log.turn_of(seq + 1)
        begins, ends = (None, None) if following is None else (following.at, following.last)
        return self._viewed(seen, Instant(seq=seq, at=at, next=begins, head=seen.seq, next_seq=ends))

    def _decisions(self, end: int) -> list[DecisionTold]:
        found = [
            DecisionTold(seq=fact.seq, at=fact.at, type=type(fact.event).__name__, text=text)
            for fact in self._facts(max(0, end - RECENT), end)
            if (text := words(fact.event))
        ]
        return found[: -TOLD - 1 : -1]

    def _facts(self, after: int, to: int) -> Iterator[Fact]:
        log = self._replica.log
        for record in log.read(log.before(after), to=to):
            yield from (fact for fact in told(record) if after < fact.seq <= to)

    def entries(
        self,
        who: By,
        *,
        before: int | None = None,
        at: int | None = None,
        company: str = "",
        app: str = "",
        kind: str = "",
        limit: int = 100,
    ) -> Viewed:
        """The events that pass before a position, the newest first, without private parts, and where to go on."""
        self.check(who)
        app = self._handlers.sender.app_named(app)
        kinds = _kinds_of(kind)

        def look() -> tuple[Seen, Any]:
            seen, _ = self._replica.read(lambda _: None, at=at)
            end = seen.seq if before is None else min(before - 1, seen.seq)
            found = self._before(end, company, app, kinds, limit)
            if before is None and not found["entries"]:
                self._replica.peek(lambda state: _check_known(state, company, app))
            return seen, found

        return self._viewed(*self._shared(("entries", before, company, app, kind, limit), look, at, 0))

    def _before(self, end: int, company: str, app: str, kinds: Sequence[str], limit: int) -> dict[str, Any]:
        """The events up to a position as `entries` tells them; of the `SCANNED` last ones, if not so many pass."""
        apps = self._replica.peek(lambda state: state.apps)
        least, found = max(0, end - SCANNED), list[dict[str, Any]]()
        while end > least and len(found) < limit:
            begin = max(least, end - 1_000)
            for line in reversed([*self._lines(begin, end)]):
                about = str(line.data.get("app") or (line.command or {}).get("app") or "")
                known = apps.get(about)
                whose = str(line.data.get("company") or (line.command or {}).get("company") or "")
                whose = whose or (known.spec.company if known else "")
                if (app and about != app) or (company and whose != company) or (kinds and line.type not in kinds):
                    continue
                line.private = None
                found.append({**line.as_json(), "company": whose or None, "app": about or None})
                if len(found) == limit:
                    break
            end = begin
        following = found[-1]["seq"] if len(found) == limit else least + 1
        return {"entries": found, "before": following if following > 1 else None}

    def _lines(self, after: int, to: int) -> Iterator[Any]:
        log = self._replica.log
        for record in log.read(log.before(after), to=to):
            yield from (line for line in lines_of(record) if after < line.seq <= to)

    def decision(self, who: By, position: int, *, after: int = 0) -> Viewed:
        """An event of the log, who asked for it, and the candidates that there were. Raises: as `Past.read`."""
        self.check(who)
        seen, _ = self._replica.read(lambda _: None, after=max(position, after))
        fact = next((fact for fact in self._facts(position - 1, position) if fact.seq == position), None)
        if fact is None:
            raise InvalidCommand(f"the log has no position {position}; its positions are 1 to {seen.seq}")
        event = fact.event
        about: Any = {"seq": fact.seq, "at": fact.at, "turn": fact.turn, "type": type(event).__name__}
        about |= {"text": words(event), "data": events.outlined(event), "by": fact.by.account or None}
        about["command"] = type(fact.command).__name__ if fact.command is not None else None

        def reasons(state: ClusterState) -> Any:  # noqa: ANN401 (JSON)
            if isinstance(event, events.AppAdmitted):
                return why_admitted(state, state.apps[event.app])
            if isinstance(event, events.ExecutorAllocated):
                batch = why_executors(state, state.apps[event.app], event, fact.at)
                workers = [
                    {"worker": name, "number": number, "free": str(free), "chosen": name == event.worker}
                    for name, (number, free) in list(batch.candidates.items())[:50]
                ]
                return {"why": list(_pairs(batch.why(event))), "workers": workers}
            if isinstance(event, events.DriverAllocated):
                return {"why": [why_driver(state, event)]}
            return None

        reads = events.AppAdmitted | events.ExecutorAllocated | events.DriverAllocated
        if isinstance(event, reads):
            about["reasons"] = self._replica.past.read(position - 1, reasons)
        return self._viewed(seen, about)

    def history(self, who: By, *, at: int | None = None, limit: int = 200) -> Viewed:
        """Who changed settings, companies, limits, accounts and workers, the newest first."""
        self.check(who)
        seen, _ = self._replica.read(lambda _: None, at=at)
        with self._scanning:
            if self._replica.head < self._scanned:
                self._history, self._scanned = [], 0
            log, end = self._replica.log, self._replica.head
            for record in log.read(log.before(self._scanned), to=end):
                if any(name in record.events for name in _NAMED):
                    self._history += _changes(record)
                self._scanned = max(self._scanned, record.last)
            found = [each for each in self._history if each["seq"] <= seen.seq]
        return self._viewed(seen, {"changes": found[: -limit - 1 : -1], "number": len(found)})

    def fairness(self, who: By, *, by: str = "company", at: int | None = None, after: int = 0) -> Viewed:
        """As `LogReads.fairness`, at most `SLOW_S` old and of no position before `after`."""
        self.check(who)

        def look() -> tuple[Seen, Any]:
            viewed = self._handlers.log.fairness(who, by=cast("Any", by), at=at)
            return viewed.seen, viewed.body

        seen, body = self._shared(("fairness", by), look, at, after if at is None else 0, kept_s=SLOW_S)
        return Viewed(seen, body)

    def course(self, who: By, *, at: int | None = None) -> Viewed:
        """As `LogReads.course`, at most `SLOW_S` old."""
        self.check(who)

        def look() -> tuple[Seen, Any]:
            viewed = self._handlers.log.course(who, at=at)
            return viewed.seen, viewed.body

        seen, body = self._shared(("course",), look, at, 0, kept_s=SLOW_S)
        return Viewed(seen, body)

    def audit_file(self, who: By, *, text: bytes) -> Viewed:
        """The verdicts of an audit of a log that is handed in. Raises: as `audit_file.audit_file`."""
        self.check(who)
        seen = self._replica.seen()
        return self._viewed(seen, audit_file(text))

    # What the answers share

    def session(self, who: By, until: int | None) -> dict[str, Any]:
        """Who looks, what they may do, and until when (ms) without a new cookie."""
        words = {name: cause.short for name, cause in CAUSES.items()}

        def look(state: ClusterState) -> dict[str, Any]:
            token = state.accounts.tokens.get(who.token)
            can: dict[str, str] = {}
            for verb, reach in MATRIX.items():
                found = reach.get(who.role) if who.role else None
                if not state.closed and verb != "lead":
                    can[verb] = "all"
                elif found is not None and (token is None or verb in token.scopes):
                    can[verb] = found
            asked = [verb for verb, role in WITH_REASON if role == who.role and state.closed]
            companies = companies_of(state, who.account) if who.role == "admin" else []
            told = {"closed": state.closed, "can": can, "companies": companies}
            return {**told, "reasons": sorted(asked), "causes": words}

        seen, said = self._replica.read(look)
        company, _, user = who.account.partition("/")
        mine = company if who.role in ("user", "admin") else ""
        told = {"account": who.account, "role": who.role, "company": mine, "user": user if mine else ""}
        return {**told, "until": until, "cluster": self._handlers.keys.cluster, **seen._asdict(), **said}

    def check(self, who: By) -> None:
        """Raises: NotAllowed unless `who` may see the cluster."""
        self._handlers.sight.check_may(who, "cluster-read")

    def _shared(
        self,
        asked: tuple[object, ...],
        look: Callable[[], tuple[Seen, Any]],
        at: int | None,
        after: int,
        *,
        kept_s: float = FRESH_S,
    ) -> tuple[Seen, Any]:
        """What `look` returns, or what it returned a moment ago to somebody else."""
        asked = (*asked, at)
        if (kept := self._still(asked, after, at)) is not None:
            return kept.seen, kept.value
        with self._lock:
            turn = self._turns.setdefault(asked, Lock())
        with turn:
            if (kept := self._still(asked, after, at)) is None:
                kept = _KeptAnswer(0.0, *look())
                with self._lock:
                    self._answers[asked] = kept._replace(until_s=time.monotonic() + kept_s)
                    self._answers.move_to_end(asked)
                    if len(self._answers) > KEPT:
                        gone, _ = self._answers.popitem(last=False)
                        self._turns.pop(gone, None)
        return kept.seen, kept.value

    def _still(self, asked: tuple[object, ...], after: int, at: int | None) -> _KeptAnswer | None:
        """The answer that is kept, if it is good enough."""
        with self._lock:
            kept = self._answers.get(asked)
        if kept is None or time.monotonic() >= kept.until_s:
            return None
        return kept if after <= kept.seen.seq <= max(self._replica.head, at or 0) else None

    def _viewed(self, seen: Seen, value: object) -> Viewed:
        return Viewed(seen, Raw(_to_json(value)))


def _kinds_of(text: str) -> list[str]:
    """The types of events in a list. Raises: InvalidCommand for one that there is not."""
    kinds = text.split(",") if text else []
    for kind in kinds:
        if kind not in events.EVENT_TYPES:
            meant = nearest(kind, events.EVENT_TYPES)
            raise InvalidCommand(f"no event is of the type {kind[:40]!r}; {meant}`fairlog log` prints those there are")
    return kinds


def _check_known(state: ClusterState, company: str, app: str) -> None:
    """Raises: UnknownApp, UnknownCompany for whom no event was found, and whom the state does not know either."""
    if app and app not in state.apps:
        raise UnknownApp(app[:80])
    if company and company not in state.companies:
        raise UnknownCompany(company[:80], state.companies)


def _pairs(why: dict[str, str]) -> Iterator[dict[str, str]]:
    for name, text in why.items():
        if not name.endswith("Rule"):
            yield {"rule": why.get(f"{name}Rule", ""), "text": text}


def _changes(record: Record) -> Iterator[dict[str, Any]]:
    by, last = NOBODY, 0
    for fact in told(record):
        event, command = fact.event, fact.command
        if command is not None:
            by, last = fact.by, fact.seq + fact.caused - 1
        who = by if fact.seq <= last else NOBODY
        if not isinstance(event, _SETTLED):
            continue
        change = command.settings if isinstance(command, ConfigureCluster) else events.outlined(event)
        yield {
            "seq": fact.seq,
            "at": fact.at,
            "type": type(event).__name__,
            "by": who.account or None,
            "role": who.role or None,
            "asked": type(command).__name__ if command is not None else None,
            "change": {name: value for name, value in change.items() if name not in ("type", "hash")},
        }
