"""The views of the present state, or of one at a past position, and who asks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import islice
from threading import Lock
from typing import Any, cast

from msgspec import Raw, to_builtins
from msgspec.structs import asdict

from fairlog.api.pages import Item, Viewed, after_cursor, item_of, number_in, to_json
from fairlog.api.questions import MANY, PAGE
from fairlog.api.replica import Replica
from fairlog.api.sight import Sight, companies_seen, company_of, machine_ms
from scheduler.model.errors import UnknownCompany, UnknownUser
from scheduler.model.sender import By
from scheduler.rules.command.permission import Subject, may_read
from scheduler.rules.entities.accounts import Account, Token
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import DATED, look, page_of_apps
from scheduler.store.task_queue import Worklist
from witness.listing import Among, detailed, listed

KEPT_VIEWS = 32
_OWNED = ("app", "accounts", "tokens")
"""Views whose items belong to somebody."""


class StateViews:
    """The views of the state, without what the caller may not see. May be used by several threads."""

    def __init__(self, replica: Replica, sight: Sight, work: Worklist, now_ms: Callable[[], int]) -> None:
        self.replica, self._sight, self.work = replica, sight, work
        self._now_ms = now_ms
        self._views: OrderedDict[tuple[object, ...], list[Item] | Item] = OrderedDict()
        self._views_of: tuple[ClusterState | None, int] = (None, 0)
        self._lock = Lock()

    def view(
        self,
        who: By,
        name: str,
        arguments: Mapping[str, Any],
        *,
        at: int | None = None,
        after: int = 0,
        cursor: str = "",
        limit: int = PAGE,
        reason: str = "",
    ) -> Viewed:
        """A view of the state at the end of the log, or at position `at`; of a list, the part after `cursor`.

        Of apps, those that `who` may see now, with their private parts for those who may see them.

        Raises: CommandRejected if the view or its subject is unknown, NotAllowed, NotReady or NotThatLong as
        `Replica.read`.
        """
        if name == "apps":
            limit = max(1, min(limit, MANY))
            return self._apps(who, arguments, at=at, after=after, cursor=cursor, limit=limit, reason=reason)
        limit = max(1, min(limit, PAGE))
        now = self._now_ms() if at is None and name in DATED else None
        seen, (body, following) = self.replica.read(
            lambda state: self.look(state, who, name, arguments, cursor=cursor, limit=limit, now=now),
            at=at,
            after=after,
        )
        if name == "app":
            body = self._sight.private_of(who, arguments["app"], cast("Raw", body), reason)
        return Viewed(seen, body, following)

    def _apps(
        self,
        who: By,
        arguments: Mapping[str, Any],
        *,
        at: int | None,
        after: int,
        cursor: str,
        limit: int,
        reason: str,
    ) -> Viewed:
        """A page of the apps that `who` may see; it costs its own items, however many others there are.

        It is made in parts of `PAGE`, so that nobody waits for the whole of it.
        """
        submitted, left = number_in(cursor), limit
        shown, public = self._sight.shown_to(who, reason)
        ids, companies, users = (_words(arguments, name) for name in ("ids", "companies", "users"))
        among = Among(ids, companies, users, arguments.get("endedAfter", 0))
        tell = detailed if arguments.get("details") else listed
        everything = bool(arguments.get("everything") or among.ended_after)

        def find(state: ClusterState) -> tuple[list[dict[str, Any]], int | None]:
            may, meant = shown(state), among.of(state)
            page, following = page_of_apps(
                state,
                after=submitted,
                most=most,
                everything=everything,
                shown=lambda app: meant(app) and may(app),
                tell=tell,
            )
            return to_builtins(page), following

        items: list[Raw] = []
        while True:
            most = min(left, PAGE)
            seen, (page, following) = self.replica.read(find, at=at, after=after)
            if arguments.get("tasks"):
                page = [{**each, "taskStates": self._task_states(each)} for each in page]
            items += [Raw(to_json(public(each))) for each in page]
            left -= len(page)
            if following is None or not left or len(page) < most:
                if not items:
                    self.replica.read(partial(self._check_names, who, companies, users), at=at, after=after)
                return Viewed(seen, items, None if following is None else str(following))
            submitted = following

    def _check_names(self, who: By, companies: Collection[str], users: Collection[str], state: ClusterState) -> None:
        """Raises: UnknownCompany, UnknownUser if there are names and none of them is one that `who` may know of."""
        if companies and not any(name in state.companies for name in companies):
            raise UnknownCompany(min(companies)[:80], state.companies)
        if not users:
            return
        seen = (name for name in state.accounts.known if self._sight.may_see(state, who, name, "accounts"))
        known = {name.partition("/")[2] for name in (who.account, *seen)}
        known |= {name for company in state.companies.values() for name in company.users}
        if known.isdisjoint(users):
            raise UnknownUser(min(users)[:80], None, known)

    def _task_states(self, app: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The states of the tasks of an app in a list; none before its first executor."""
        return [task._asdict() for task in self.work.states(app["app"])] if app["admittedAt"] else []

    def look(
        self,
        state: ClusterState,
        who: By,
        name: str,
        arguments: Mapping[str, Any],
        *,
        cursor: str = "",
        limit: int = PAGE,
        now: int | None = None,
    ) -> tuple[Raw | list[Raw], str | None]:
        """The part of a view that `who` may see, and the next cursor; nothing of it changes when the state does.

        `state` may be a past one; what `who` may do is told by the present one.
        """
        found, owned = self._items(state, name, arguments, now), name in _OWNED
        if not owned:
            may_read(self._sight.present(), who, "cluster-read", Subject(), machine_ms())
        if isinstance(found, Item):
            if owned:
                self._sight.check_sight(state, who, found.key)
            return found.body, None
        page: list[Raw] = []
        last = ""
        start = after_cursor(found, cursor)
        for place, item in enumerate(islice(found, start, None), start + 1):
            if not owned or self._sight.may_see(state, who, item.key, name):
                if len(page) == limit:
                    return page, last
                page.append(item.body)
                last = f"{place}.{item.key}"
        return page, None

    def _items(
        self, state: ClusterState, name: str, arguments: Mapping[str, Any], now: int | None
    ) -> list[Item] | Item:
        """The view as JSON, kept for whoever asks the same of the same present state, if dated in one second."""
        asked = (name, now and now // 1000, *sorted(arguments.items()))
        with self._lock:
            if not self._are_of(state):
                self._views.clear()
                self._views_of = state, state.head
            if (kept := self._views.get(asked)) is not None:
                return kept
        value = look(state, name, dict(arguments), now)
        found = [item_of(each) for each in value] if isinstance(value, list) else item_of(value)
        with self._lock:
            if self._are_of(state):
                self._views[asked] = found
                if len(self._views) > KEPT_VIEWS:
                    self._views.popitem(last=False)
        return found

    def _are_of(self, state: ClusterState) -> bool:
        """Whether the kept views are of this state; another state may have the same position."""
        return self._views_of[0] is state and self._views_of[1] == state.head

    def whoami(self, who: By) -> Viewed:
        """The caller's account, role, token and company; the token's scopes, end (ms) and whether it is an invitation.

        Without a token, scopes are None = all of the role. `accounts`: whether the cluster has any. `terms`: of a
        worker, the host from which it was invited and the most that it may offer; None = any. `sees`: the companies
        all of whose apps the caller may see; None = everybody's.
        """

        def look(state: ClusterState) -> tuple[Token | None, bool, Account | None, list[str] | None]:
            known = state.accounts
            return known.tokens.get(who.token), state.closed, known.known.get(who.account), companies_seen(state, who)

        seen, (token, closed, account, sees) = self.replica.read(look)
        said = {**asdict(who), "company": company_of(who), "scopes": token and token.scopes, "accounts": closed}
        said |= {"sees": sees}
        said |= {"expires": token and token.expires, "once": token is not None and token.once}
        if who.role == "worker" and account is not None:
            most = (
                None if account.offer is None else {"cores": account.offer.cores, "memoryMb": account.offer.memory_mb}
            )
            said["terms"] = {"host": account.host, "offer": most}
        return Viewed(seen, Raw(to_json(said)))


def _words(arguments: Mapping[str, Any], name: str) -> frozenset[str]:
    """The words of a list in an argument; empty if it is not given."""
    return frozenset(word for word in arguments.get(name, "").split(",") if word)
