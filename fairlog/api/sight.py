"""What of the cluster a caller may see. What is private and read is recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from msgspec import Raw

from fairlog.api.pages import Viewed, plain, to_json
from fairlog.api.private import Reads
from fairlog.api.replica import Replica
from scheduler.model.commands import WITHHELD
from scheduler.model.errors import NotAllowed, UnknownApp
from scheduler.model.events import CommandRefused
from scheduler.model.sender import By
from scheduler.rules.command.permission import Subject, Verb, may_read, of_account
from scheduler.rules.entities.accounts import RESERVED
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import without_private

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.store.codec import EventLine


class Sight:
    """What callers may see, told by the present state, also where a past one is shown.

    May be used by several threads.
    """

    def __init__(self, replica: Replica, private: Reads) -> None:
        self.replica, self._reads = replica, private

    def shown_to(
        self, who: By, reason: str = ""
    ) -> tuple[Callable[[ClusterState], Callable[[App], bool]], Callable[[dict[str, Any]], dict[str, Any]]]:
        """Which apps of a state `who` may see now, and the view of one with what of it `who` may see."""
        present = self.present()

        @cache
        def may(verb: Verb, company: str, user: str) -> bool:
            return can_read(present, who, verb, Subject(company, user), reason)

        def shown(state: ClusterState) -> Callable[[App], bool]:
            if who.role == "worker":
                return lambda app: self.may_see(state, who, app.id)
            return lambda app: may("read", app.spec.company, app.spec.user)

        def public(view: dict[str, Any]) -> dict[str, Any]:
            return view if may("private", view["company"], view["user"]) else self._public(view)

        return shown, public

    def private_of(self, who: By, app: str, body: Raw, reason: str) -> Raw:
        """The view of an app without its private part, unless `who` may see it, which is recorded then."""
        shown, present = plain(body), self.present()
        subject = Subject(shown["company"], shown["user"])
        if app in present.apps:
            subject = subject._replace(worker=subject_of(present, who, app).worker)
        if not can_read(present, who, "private", subject, reason):
            return Raw(to_json(self._public(shown)))
        self.note(who, "app", read_subject(who, app, subject), reason)
        return body

    def _public(self, shown: dict[str, Any]) -> dict[str, Any]:
        return without_private(shown, self._public_detail(shown["app"]))

    def _public_detail(self, app: str) -> str:
        found = self.present().apps.get(app)
        return "" if found is None else found.detail

    def without_said(self, who: By, app: str, viewed: Viewed) -> Viewed:
        """The answer without what people said of the app's end, unless `who` may see what is private to it."""
        present = self.present()
        if can_read(present, who, "private", subject_of(present, who, app)):
            return viewed
        shown = plain(cast("Raw", viewed.body))
        for each in (*shown.get("askedFor", ()), *shown.get("asked", ())):
            if each.get("reason"):
                each["reason"] = WITHHELD
        if shown.get("detail"):
            shown["detail"] = self._public_detail(app)
        return viewed._replace(body=Raw(to_json(shown)))

    def present(self) -> ClusterState:
        """The state that tells who may do what, also where a past one is shown."""
        return self.replica.peek(lambda state: state)

    def note(self, who: By, what: str, subject: str, reason: str) -> None:
        """Record that `who` read what is private, once there are accounts."""
        if self.present().closed:
            self._reads.note(who, what, subject, reason)

    def may_see(self, state: ClusterState, who: By, key: str, view: str = "app") -> bool:
        """Whether `who` may now see the item of a view: an app, an account, or a token as its account."""
        present = self.present()
        if not present.closed:
            return True
        if view in ("accounts", "tokens"):
            return can_read(
                present, who, *of_account(state.accounts.tokens[key].account if view == "tokens" else key, who)
            )
        return can_read(present, who, "read", subject_of(state, who, key))

    def check_sight(self, state: ClusterState, who: By, app: str) -> None:
        """Raises: UnknownApp if the state has no such app; NotAllowed if `who` may not see it now (semantics I3).

        Whose an app is, is public; so a refusal says it, as that of a command does.
        """
        if app not in state.apps:
            raise UnknownApp(app)
        may_read(self.present(), who, "read", subject_of(state, who, app), machine_ms())

    def check_app(self, who: By, app: str, verb: Verb = "read", *, reason: str = "") -> Subject:
        """Whose the app is. Raises: UnknownApp; NotAllowed unless `who` may see it and may read `verb`."""

        def find(state: ClusterState) -> Subject:
            self.check_sight(state, who, app)
            subject = subject_of(state, who, app)
            may_read(state, who, verb, subject, machine_ms(), reason=reason)
            return subject

        return self.replica.read(find)[1]

    def reader(self, state: ClusterState, who: By, reason: str = "") -> Callable[[str, str], bool]:
        """Which users' private parts `who` may read. Raises: NotAllowed if not even the public log."""
        may_read(state, who, "cluster-read", Subject(), machine_ms())
        return lambda company, user: can_read(state, who, "private", Subject(company, user), reason)

    def check_may(self, who: By, verb: Verb, company: str = "", departments: tuple[str, ...] = ()) -> None:
        """Raises: NotAllowed unless `who` may read that of the cluster, the company or the departments."""
        subject = Subject(company, departments=departments)
        self.replica.read(lambda state: may_read(state, who, verb, subject, machine_ms()))


def company_of(who: By) -> str:
    """The company of the account; "" if it has none."""
    company = who.account.partition("/")[0]
    return "" if company in RESERVED else company


def machine_ms() -> int:
    """The time by this machine's clock, by which tokens are judged here; the master judges by the store's."""
    return round(time.time() * 1000)


def can_read(state: ClusterState, who: By, verb: Verb, subject: Subject, reason: str = "") -> bool:
    """Whether `who` may read that of the subject."""
    try:
        may_read(state, who, verb, subject, machine_ms(), reason=reason)
    except NotAllowed:
        return False
    return True


def companies_seen(state: ClusterState, who: By) -> list[str] | None:
    """The companies all of whose apps `who` may see; None = everybody's."""
    if can_read(state, who, "read", Subject()):
        return None
    return [company for company in state.companies if can_read(state, who, "read", Subject(company))]


def subject_of(state: ClusterState, who: By, app: str) -> Subject:
    """Whose the app is, and the worker that asks if the app runs on it."""
    found = state.apps[app]
    kind, _, worker = who.account.partition("/")
    held = [*found.executors.values(), *([found.driver] if found.driver else [])]
    here = kind == "worker" and any(each.worker == worker for each in held)
    return Subject(found.spec.company, found.spec.user, worker if here else "")


def read_subject(who: By, app: str, owner: Subject) -> str:
    """The subject of a recorded read: the app; the user whose it is if that is of the reader's company.

    So what tenants cause to be recorded is bounded by their users, not by their apps.
    """
    return f"{owner.company}/{owner.user}" if owner.company == company_of(who) else app


def owner_of(line: EventLine, state: ClusterState) -> tuple[str, str]:
    """The company and the user whose private part the line has; of nobody's, only operators may read it.

    What was refused is its sender's.
    """
    command = line.command or {}
    refused = line.type == CommandRefused.__name__ and line.by
    if refused or "account" in command:
        company, _, user = str(refused["account"] if refused else command["account"]).partition("/")
        return company, user
    if "company" in command:
        return str(command["company"]), str(command.get("user", ""))
    app = state.apps.get(str(command.get("app", "")))
    return ("", "") if app is None else (app.spec.company, app.spec.user)


def encode_line(line: EventLine, state: ClusterState, allowed: Callable[[str, str], bool]) -> bytes:
    """An event as JSON, with its private part only for those who may read it by the state."""
    if line.private is not None and not allowed(*owner_of(line, state)):
        line.private = None
    return to_json(line.as_json())
