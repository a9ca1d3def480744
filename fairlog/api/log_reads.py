"""Entries of the log, and the answers that are made of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from threading import Lock
from typing import Any, Literal

from msgspec import Raw, to_builtins

from fairlog.api.figures import Figures, TooLong, lane_of
from fairlog.api.pages import Viewed
from fairlog.api.past import NotReady
from fairlog.api.questions import PAGE, OtherRules
from fairlog.api.replica import Replica
from fairlog.api.sender import CommandSender
from fairlog.api.sight import Sight, can_read, company_of, encode_line, read_subject
from recovery.replay.bounds import month_of
from scheduler.model.commands import SubmitApp
from scheduler.model.events import AppRegistered
from scheduler.model.sender import By
from scheduler.model.text import counted
from scheduler.rules.command.permission import Subject
from scheduler.rules.state.cluster import ClusterState
from scheduler.store.codec import lines_of
from witness.forecast import waiting
from witness.listing import Among

MOST_READ = 100_000
"""The longest log (events) that is read from its start for one answer."""
FIRST_AMONG = 100_000
"""An app is submitted within so many events after the pass of its driver was made."""
LONG_WAIT_S = 2.0
"""How long an answer from the whole log waits for another one."""


class LogReads:
    """What is read from the log. `figures` makes answers from the whole of it, one at a time in each lane.

    May be used by several threads.
    """

    def __init__(self, replica: Replica, sight: Sight, sender: CommandSender, figures: Figures) -> None:
        self.replica, self._sight, self._sender, self._figures = replica, sight, sender, figures
        self._long_reads: defaultdict[str, Lock] = defaultdict(Lock)
        """By lane."""

    def entries(self, who: By, *, after: int = 0, limit: int = PAGE, reason: str = "") -> Viewed:
        """Events of the log after position `after`, as `fairlog log --json` prints them.

        They have their private parts for those who may read them. `next` is the position to ask after; None at the end.

        Raises: NotAllowed, NotReady; NotThatLong if the log ends before `after`.
        """
        seen, may = self.replica.read(lambda state: self._sight.reader(state, who, reason), after=after)
        limit = max(1, min(limit, PAGE))
        found: list[Raw] = []
        private = False

        def allowed(company: str, user: str) -> bool:
            nonlocal private
            shown = may(company, user)
            private = private or shown
            return shown

        last, present = after, self._sight.present()
        for record in self.replica.log.read(self.replica.log.before(after), to=seen.seq):
            for line in lines_of(record):
                if line.seq > after and len(found) < limit:
                    found.append(Raw(encode_line(line, present, allowed)))
                    last = line.seq
            if len(found) >= limit:
                break
        if private:
            self._sight.note(who, "log", company_of(who) or f"{after + 1}-{last}", reason)
        return Viewed(seen, found, str(last) if last < seen.seq and found else None)

    def open_stream(self, who: By, path: Mapping[str, str], reason: str = "") -> None:
        """Record that `who` follows events with private parts. Raises: as `check_app`."""
        app = path.get("app")
        company, _, user = who.account.partition("/")
        own = self._sight.check_app(who, app) if app else Subject(company, user)
        if self.replica.read(lambda state: can_read(state, who, "private", own, reason))[1]:
            self._sight.note(who, "events", read_subject(who, app or path.get("company", "all"), own), reason)

    def explain(self, who: By, app: str, *, audited: bool = False) -> Viewed:
        """Why the app waits, or was placed as it was, from the log; `audited`: and the first verdict on the log.

        Raises: UnknownApp, NotAllowed, TooLong.
        """
        self._sight.check_app(who, app)
        known = self.replica.read(lambda state: state.apps.get(app))[1]
        submitted = 1 if known is None else known.submitted
        from_ = 1 if audited else submitted
        found = self._from_log("explain", from_=from_, app=app, submitted=submitted, audited=audited)
        return self._sight.without_said(who, app, found)

    def audit(self, who: By) -> Viewed:
        """The verdicts of an audit of the whole log. Raises: NotAllowed, TooLong, NotReady."""
        self._sight.check_may(who, "cluster-read")
        return self._from_log("audit")

    def fairness(
        self, who: By, *, by: Literal["company", "user", "department"] = "company", at: int | None = None
    ) -> Viewed:
        """How fair the log was, as `fairlog fairness --json` prints it. Raises: NotAllowed, TooLong, NotReady."""
        self._sight.check_may(who, "cluster-read")
        return self._from_log("fairness", to=at, by=by)

    def course(self, who: By, *, at: int | None = None) -> Viewed:
        """The use of the cluster and its queue in the last hour up to a position. Raises: NotAllowed, NotReady."""
        self._sight.check_may(who, "cluster-read")
        return self._from_log("course", to=at, whole=False)

    def statement(self, who: By, company: str, *, month: str) -> Viewed:
        """The company's use in a month, `YYYY-MM`, as `fairlog statement --json` prints it.

        Raises: UnknownCompany, InvalidCommand if the log has no entry in the month; NotAllowed, TooLong, NotReady.
        """
        month_of(month)
        self._sight.check_may(who, "statement", company)
        return self._from_log("statement", company=company, month=month)

    def departments_statement(
        self,
        who: By,
        *,
        month: str,
        department: str = "",
        by: Literal["department", "company", "user"] = "company",
    ) -> Viewed:
        """The use of a department, or of the cluster, in a month; as `fairlog statement --by` prints it as JSON.

        Raises: InvalidCommand if there never was such a department, or the log has no entry in the month; NotAllowed,
        TooLong, NotReady.
        """
        month_of(month)
        self._sight.check_may(who, "statement", departments=(department,) if department else ())
        return self._from_log("departments_statement", department=department, month=month, by=by)

    def whatif(self, who: By, rules: OtherRules, *, at: int | None = None) -> Viewed:
        """The log's inputs up to a position under other rules, as `fairlog whatif --json` prints it.

        Raises: CommandRejected if a rule is not valid; NotAllowed, TooLong, NotReady.
        """
        self._sight.check_may(who, "cluster-read")
        return self._from_log("whatif", to=at, rules=to_builtins(rules))

    def plan(self, who: By, rules: SubmitApp) -> Viewed:
        """What would become of the submission now, decided on a copy of the state.

        Raises: CommandRejected if it would be refused; NotReady.
        """
        self._sender.refuse_early(who, rules)
        return self._from_log("plan", whole=False, command=to_builtins(rules), by=to_builtins(who))

    def estimates(self, who: By, *, ids: str = "", at: int | None = None) -> Viewed:
        """When apps that `who` may see may start: of those that wait, of all or of these ids or numbers.

        At a position `at`, when they might have by what was known then.

        Raises: NotReady.
        """
        shown, _ = self._sight.shown_to(who)
        named = [each for each in ids.split(",") if each]

        def find(state: ClusterState) -> list[str]:
            may, meant = shown(state), Among(named).of(state)
            return [app.id for app in waiting(state) if meant(app) and may(app)]

        apps = self.replica.read(find, at=at)[1]
        return self._from_log("estimates", to=at, whole=False, apps=apps, past=at is not None)

    def timeline(self, who: By, app: str, *, to: int) -> Viewed:
        """The life of an app up to log position `to`. Raises: UnknownApp, NotAllowed, TooLong, NotReady."""
        self._sight.check_app(who, app)
        return self._from_log("timeline", to=to, app=app, past=to < self.replica.head)

    def _from_log(
        self,
        name: str,
        *,
        to: int | None = None,
        whole: bool = True,
        from_: int = 1,
        **arguments: Any,  # noqa: ANN401 (JSON values)
    ) -> Viewed:
        """An answer from the log, up to `to` if it is given, or from a snapshot on unless it is about the `whole`.

        Of the whole, that is from position `from_` on. Raises: TooLong; NotReady while another one is made.
        """
        seen, _ = self.replica.read(lambda _: None, at=to)
        if whole and (read := seen.seq - from_ + 1) > MOST_READ:
            raise TooLong(
                f"the log has {counted(read, 'event')} that this answer reads, and answers read up to "
                f"{MOST_READ}; use the verb "
                "of the command line on the store's machine, or on an exported log"
            )
        lane = self._long_reads[lane_of(name)]
        if not lane.acquire(timeout=LONG_WAIT_S):
            raise NotReady("another answer from the whole log is being made; ask again")
        try:
            return Viewed(seen, Raw(self._figures(name, seen.seq, arguments)))
        finally:
            lane.release()

    def first_after(self, app: str, after: int) -> int | None:
        """When (ms) the first app of that name was submitted after that log position; None if none was, soon enough."""
        log = self.replica.log
        to = min(self.replica.head, after + FIRST_AMONG)
        for fact in log.facts(log.before(after), to=to) if to > after else ():
            if fact.seq > after and isinstance(fact.event, AppRegistered) and fact.event.app == app:
                return fact.at
        return None
