"""What the API does, as plain functions of who asks and what: no HTTP. Each answers or raises an error of fairlog.

Commands go through the inbox; the master decides, also whether the caller may. What a caller certainly may not do is
mostly refused here already. Reads come from the replica.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from hashlib import sha256
from itertools import accumulate, islice, pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

from msgspec import Raw, to_builtins
from msgspec.json import Decoder, Encoder
from msgspec.structs import asdict, replace

from fairlog.api.figures import Failed, Figures, TooLong, here, lane_of, month_of
from fairlog.api.limits import Buckets
from fairlog.api.past import NotReady
from fairlog.api.private import Reads
from fairlog.api.questions import MANY, PAGE, MailboxText, OtherRules, SignIn
from fairlog.api.replica import Replica, Seen
from fairlog.api.work import Work
from fairlog.visiting import check_may_visit, place_of
from fairlog.watch.conditions import Around, StoreFacts, as_json, elected, found
from fairlog.watch.surroundings import RepeatedLooks, look_around, short_of, since_when
from scheduler.model import commands
from scheduler.model.commands import (
    BATCH,
    NEVER_SENT,
    WITHHELD,
    Command,
    IssueToken,
    SubmitApp,
    check_length,
    command_of,
    read_command,
    write_command,
)
from scheduler.model.errors import (
    AppEnded,
    CommandRejected,
    InvalidCommand,
    NotAllowed,
    NotAuthenticated,
    UnknownApp,
)
from scheduler.model.events import AppRegistered, CommandRefused
from scheduler.model.sender import By, local
from scheduler.rules.accounts import RESERVED, Account, Token
from scheduler.rules.permission import Subject, Verb, may_read, of_account, permit
from scheduler.rules.state import ClusterState
from scheduler.rules.views import look, may_be_number, named, page_of_apps, without_private
from scheduler.service.client import CommandClient
from scheduler.service.keyring import Keyring
from scheduler.service.owners import beat
from scheduler.service.receipts import Receipt
from scheduler.service.served import sign
from scheduler.service.tokens import authenticate
from scheduler.store.codec import lines_of
from scheduler.store.connection import clock_ms
from scheduler.store.keys import Keys
from scheduler.store.mailbox import Mailboxes
from scheduler.store.task_queue import Worklist
from scheduler.store.transient import LaneFull
from scheduler.store.visits import Visits
from witness.listing import Among, detailed, listed

if TYPE_CHECKING:
    from redis import Redis

    from fairlog.watch.metrics import Metrics
    from scheduler.rules.entities import Allocation, App
    from scheduler.store.codec import EventLine
    from scheduler.store.tails import Stream, Tail
    from scheduler.store.visits import Call, VisitCommand

MAX_ID = 128
MOST_READ = 100_000
"""The longest log (events) that is read from its start for one answer."""
FIRST_AMONG = 100_000
"""An app is submitted within so many events after the pass of its driver was made."""
OUTPUTS_BYTES = 1 << 20
"""A page of outputs ends with the one that makes it this long."""
TOLD_RATE, TOLD_BURST = 1 / 30, 5.0
"""How many commands an account has refused by the master although this server knows that it may not send them: so the
log tells of attempts, and of no flood of them."""
LONG_WAIT_S = 2.0
"""How long such an answer waits for another one."""
KEPT_VIEWS = 32
NO_CURSOR = "the cursor is not one that an answer has given as `next`"
_OWNED = ("app", "accounts", "tokens")
"""Views whose items belong to somebody."""
_to_json = Encoder().encode
_plain = Decoder().decode
T = TypeVar("T")


class Viewed(NamedTuple):
    """An answer from the state at `seen`: a list of items as JSON, or one value as JSON. `next`: the next page."""

    seen: Seen
    body: Raw | list[Raw]
    next: str | None = None


class _Due(NamedTuple):
    """A command of a batch that goes to the master, its place in the batch, and its secrets."""

    number: int
    command: Command
    secrets: Mapping[str, str]


class _Item(NamedTuple):
    """A part of a view as JSON, and its name in a cursor."""

    key: str
    body: Raw


class Handlers:
    """The API of one cluster over its store and a replica of its log.

    Every method may be called from several threads. `figures` makes answers from the whole log, one at a time; without
    it they are made here.
    """

    def __init__(
        self,
        store: Redis,
        cluster: str,
        replica: Replica,
        *,
        keyring: Keyring | None = None,
        timeout_s: float = 30,
        figures: Figures | None = None,
    ) -> None:
        self.store, self.keys, self.replica = store, Keys(cluster), replica
        self._client = CommandClient(store, cluster, keyring=keyring, timeout_s=timeout_s)
        self.keyring = keyring
        self.work = Worklist(store, cluster)
        self._visits = Visits(store, self.keys)
        self.mailbox = Mailboxes(store, self.keys)
        self._told = Buckets(TOLD_RATE, TOLD_BURST)
        self._figures = figures or here(replica.log, self.now_ms)
        self._reads = Reads(store, self.keys, keyring)
        self._views: OrderedDict[tuple[object, ...], list[_Item] | _Item] = OrderedDict()
        self._views_of: tuple[ClusterState | None, int] = (None, 0)
        self._watched = RepeatedLooks()
        self._lock = Lock()
        self._long_reads: defaultdict[str, Lock] = defaultdict(Lock)
        """By lane."""
        self.workers = Work(store, cluster, replica, self._of_token, keyring)

    def now_ms(self) -> int:
        """The time (ms) by the store's clock."""
        return clock_ms(cast("Any", self.store.time()))

    # Who asks

    def principal(self, token: str, *, at_home: bool) -> By:
        """Who asks, by the token, or without one over the Unix socket (`at_home`) the user who runs this process.

        Raises: NotAuthenticated saying what to do; NotReady if the replica may have missed that a token was revoked.
        """
        if token:
            return self._of_token(token)
        if at_home:
            return local(os.getuid())
        raise NotAuthenticated(
            "this address takes nobody without a token, `Authorization: Bearer fl_…`; while there are no accounts, use "
            "the Unix socket of the API on its own machine"
        )

    def _of_token(self, token: str) -> By:
        self.replica.check_fresh()
        return self.replica.peek(lambda state: authenticate(state, token, _now_ms()))

    def sign_in(self, token: str, prove: Callable[[], str], asked: SignIn) -> dict[str, object]:
        """Issue, by this server's `token`, the token that is asked for of the account that `prove` returns.

        Raises: NotAuthenticated if there is no such account; Failed if `token` is not valid; as `send`, and as `prove`.
        """
        account = prove()
        try:
            who = self.principal(token, at_home=False)
        except NotAuthenticated as error:
            raise Failed(f"this server's own token cannot issue others: {error}") from None
        if account not in self._present().accounts.known:
            raise NotAuthenticated(f"there is no account {account}; an admin of the company adds it")
        receipt = self.send(who, IssueToken(token=asked.token, account=account, hash=asked.hash))
        return {"account": account, "seq": receipt.seq}

    # Commands

    def send(
        self, who: By, command: Command, secrets: Mapping[str, str] | None = None, *, command_id: str = ""
    ) -> Receipt:
        """Carry out a command once, however often it is sent under the same id.

        Raises: CommandRejected; NoMaster if nobody has answered, so that it may still be carried out.
        """
        identity = _identity(who, command_id)
        command = self._with_ids(command)
        if self._seems_allowed(who, command) and isinstance(command, SubmitApp):
            return self._client.submit(*_with_secrets(command, secrets or {}), command_id=identity, by=who)
        return self._client.send(command, command_id=identity, by=who)

    def send_many(self, who: By, bodies: Sequence[bytes], *, command_id: str = "") -> list[Receipt | CommandRejected]:
        """Carry out commands (JSON) in order; the result of a refused one is its refusal. Raises: as `send`.

        Commands that can be read go to the master in one batch even if some are not allowed: it refuses them, and a
        batch that is sent again has the same ids. A batch of none is answered by the master, too: it says that it
        serves.
        """
        if len(bodies) > BATCH:
            raise InvalidCommand(f"a batch has at most {BATCH} commands, not {len(bodies)}; send it in parts")
        identity = _identity(who, command_id)
        outcomes: list[Receipt | CommandRejected | None] = [None] * len(bodies)
        due: list[_Due] = []
        for number, body in enumerate(bodies):
            try:
                command, secrets = read_request(body)
            except CommandRejected as refusal:
                outcomes[number] = refusal
                continue
            command = self._with_ids(command)
            try:
                allowed = self._seems_allowed(who, command)
            except NotAllowed as refusal:
                outcomes[number], allowed = refusal, False
            due.append(_Due(number, command, secrets if allowed else {}))
        if not bodies or any(outcomes[each.number] is None for each in due):
            for each, outcome in zip(due, self._send_batch(who, due, identity), strict=True):
                outcomes[each.number] = outcome
        return cast("list[Receipt | CommandRejected]", outcomes)

    def _send_batch(self, who: By, due: Sequence[_Due], identity: str | None) -> list[Receipt | CommandRejected]:
        client = self._client
        ours: dict[int, SubmitApp] = {}
        """Submissions whose secrets are put aside, by their place in `due`."""
        try:
            for place, (_, command, secrets) in enumerate(due):
                if isinstance(command, SubmitApp) and client.put_aside(command, secrets):
                    ours[place] = command
            outcomes = client.send_batch([each.command for each in due], command_id=identity, by=who)
        except (CommandRejected, LaneFull):
            for command in ours.values():
                client.forget(command)
            raise
        for place, command in ours.items():
            if isinstance(outcomes[place], CommandRejected):
                client.forget(command)
        return outcomes

    def _seems_allowed(self, who: By, command: Command) -> bool:
        """Whether `who` may send the command as far as this server knows. If not, the master refuses and logs it.

        Raises: NotAllowed if the master need not hear of it.
        """
        try:
            self._refuse_early(who, command)
        except NotAllowed:
            if type(command) in NEVER_SENT or self._told.take(who.account, 1.0) or not self._is_led():
                raise
            return False
        return True

    def _is_led(self) -> bool:
        """Whether a master holds the lease, so that a refusal does not have to be waited for in vain."""
        return bool(self.store.exists(self.keys.lease))

    def _refuse_early(self, who: By, command: Command) -> None:
        if (why := NEVER_SENT.get(type(command))) is not None:
            raise NotAllowed(why)

        def refuse(state: ClusterState) -> None:
            if state.closed:
                permit(state, command, who, _now_ms())

        if who.role == "worker":  # whose grants are looked through
            self.replica.read(refuse)
        else:
            self.replica.peek(refuse)

    def app_named(self, text: str) -> str:
        """The id of the app that a text from outside is: its id or its number (`scheduler.rules.views.named`).

        A number that this server has not folded yet is waited for.
        """
        if not may_be_number(text):
            return text
        if self.replica.head < int(text) <= self.replica.log.head().seq:
            self.replica.wait_for(int(text), LONG_WAIT_S)
        return self.replica.peek(lambda state: named(state, text))

    def _with_ids(self, command: Command) -> Command:
        """The command with ids of apps where it has numbers."""
        if isinstance(command, SubmitApp):
            if not command.after:
                return command
            return replace(
                command, after={why: tuple(map(self.app_named, apps)) for why, apps in command.after.items()}
            )
        app = getattr(command, "app", None)
        return command if app is None or (found := self.app_named(app)) == app else replace(command, app=found)

    # Reads

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
        seen, (body, following) = self.replica.read(
            lambda state: self._look(state, who, name, arguments, cursor=cursor, limit=limit), at=at, after=after
        )
        if name == "app":
            body = self.private_of(who, arguments["app"], cast("Raw", body), reason)
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
        submitted, left = _number(cursor), limit
        shown, public = self.shown_to(who, reason)
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
            items += [Raw(_to_json(public(each))) for each in page]
            left -= len(page)
            if following is None or not left or len(page) < most:
                return Viewed(seen, items, None if following is None else str(following))
            submitted = following

    def _task_states(self, app: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The states of the tasks of an app in a list; none before its first executor."""
        return [task._asdict() for task in self.work.states(app["app"])] if app["admittedAt"] else []

    def shown_to(
        self, who: By, reason: str = ""
    ) -> tuple[Callable[[ClusterState], Callable[[App], bool]], Callable[[dict[str, Any]], dict[str, Any]]]:
        """Which apps of a state `who` may see now, and the view of one with what of it `who` may see."""
        present = self._present()

        @cache
        def may(verb: Verb, company: str, user: str) -> bool:
            return _may(present, who, verb, Subject(company, user), reason)

        def shown(state: ClusterState) -> Callable[[App], bool]:
            if who.role == "worker":
                return lambda app: self.may_see(state, who, app.id)
            return lambda app: may("read", app.spec.company, app.spec.user)

        def public(view: dict[str, Any]) -> dict[str, Any]:
            return view if may("private", view["company"], view["user"]) else self._public(view)

        return shown, public

    def private_of(self, who: By, app: str, body: Raw, reason: str) -> Raw:
        """The view of an app without its private part, unless `who` may see it, which is recorded then."""
        shown, present = _plain(body), self._present()
        subject = Subject(shown["company"], shown["user"])
        if app in present.apps:
            subject = subject._replace(worker=_subject(present, who, app).worker)
        if not _may(present, who, "private", subject, reason):
            return Raw(_to_json(self._public(shown)))
        self._note(who, "app", _named(who, app, subject), reason)
        return body

    def _public(self, shown: dict[str, Any]) -> dict[str, Any]:
        return without_private(shown, self._public_detail(shown["app"]))

    def _public_detail(self, app: str) -> str:
        found = self._present().apps.get(app)
        return "" if found is None else found.detail

    def without_said(self, who: By, app: str, viewed: Viewed) -> Viewed:
        """The answer without what people said of the app's end, unless `who` may see what is private to it."""
        present = self._present()
        if _may(present, who, "private", _subject(present, who, app)):
            return viewed
        shown = _plain(cast("Raw", viewed.body))
        for each in (*shown.get("askedFor", ()), *shown.get("asked", ())):
            if each.get("reason"):
                each["reason"] = WITHHELD
        if shown.get("detail"):
            shown["detail"] = self._public_detail(app)
        return viewed._replace(body=Raw(_to_json(shown)))

    def _present(self) -> ClusterState:
        """The state that tells who may do what, also where a past one is shown."""
        return self.replica.peek(lambda state: state)

    def _note(self, who: By, what: str, subject: str, reason: str) -> None:
        if self._present().closed:
            self._reads.note(who, what, subject, reason)

    def _look(
        self,
        state: ClusterState,
        who: By,
        name: str,
        arguments: Mapping[str, Any],
        *,
        cursor: str = "",
        limit: int = PAGE,
    ) -> tuple[Raw | list[Raw], str | None]:
        """The part of a view that `who` may see, and the next cursor; nothing of it changes when the state does.

        `state` may be a past one; what `who` may do is told by the present one.
        """
        found, owned = self._items(state, name, arguments), name in _OWNED
        if not owned:
            may_read(self._present(), who, "cluster-read", Subject(), _now_ms())
        if isinstance(found, _Item):
            if owned:
                self.check_sight(state, who, found.key)
            return found.body, None
        page: list[Raw] = []
        last = ""
        start = _after_cursor(found, cursor)
        for place, item in enumerate(islice(found, start, None), start + 1):
            if not owned or self.may_see(state, who, item.key, name):
                if len(page) == limit:
                    return page, last
                page.append(item.body)
                last = f"{place}.{item.key}"
        return page, None

    def _items(self, state: ClusterState, name: str, arguments: Mapping[str, Any]) -> list[_Item] | _Item:
        """The view as JSON, kept for whoever asks the same of the same present state."""
        asked = (name, *sorted(arguments.items()))
        with self._lock:
            if not self._are_of(state):
                self._views.clear()
                self._views_of = state, state.head
            if (kept := self._views.get(asked)) is not None:
                return kept
        value = look(state, name, dict(arguments))
        found = [_item(each) for each in value] if isinstance(value, list) else _item(value)
        with self._lock:
            if self._are_of(state):
                self._views[asked] = found
                if len(self._views) > KEPT_VIEWS:
                    self._views.popitem(last=False)
        return found

    def _are_of(self, state: ClusterState) -> bool:
        """Whether the kept views are of this state; another state may have the same position."""
        return self._views_of[0] is state and self._views_of[1] == state.head

    def may_see(self, state: ClusterState, who: By, key: str, view: str = "app") -> bool:
        """Whether `who` may now see the item of a view: an app, an account, or a token as its account."""
        present = self._present()
        if not present.closed:
            return True
        if view in ("accounts", "tokens"):
            return _may(present, who, *of_account(state.accounts.tokens[key].account if view == "tokens" else key, who))
        return _may(present, who, "read", _subject(state, who, key))

    def check_sight(self, state: ClusterState, who: By, app: str) -> None:
        """Raises: UnknownApp if the state has no such app; NotAllowed if `who` may not see it now (semantics I3).

        Whose an app is, is public; so a refusal says it, as that of a command does.
        """
        if app not in state.apps:
            raise UnknownApp(app)
        may_read(self._present(), who, "read", _subject(state, who, app), _now_ms())

    def check_app(self, who: By, app: str, verb: Verb = "read", *, reason: str = "") -> Subject:
        """Whose the app is. Raises: UnknownApp; NotAllowed unless `who` may see it and may read `verb`."""

        def find(state: ClusterState) -> Subject:
            self.check_sight(state, who, app)
            subject = _subject(state, who, app)
            may_read(state, who, verb, subject, _now_ms(), reason=reason)
            return subject

        return self.replica.read(find)[1]

    def entries(self, who: By, *, after: int = 0, limit: int = PAGE, reason: str = "") -> Viewed:
        """Events of the log after position `after`, as `fairlog log --json` prints them.

        They have their private parts for those who may read them. `next` is the position to ask after; None at the end.

        Raises: NotAllowed, NotReady; NotThatLong if the log ends before `after`.
        """
        seen, may = self.replica.read(lambda state: self.reader(state, who, reason), after=after)
        limit = max(1, min(limit, PAGE))
        found: list[Raw] = []
        private = False

        def allowed(company: str, user: str) -> bool:
            nonlocal private
            shown = may(company, user)
            private = private or shown
            return shown

        last, present = after, self._present()
        for record in self.replica.log.read(self.replica.log.before(after), to=seen.seq):
            for line in lines_of(record):
                if line.seq > after and len(found) < limit:
                    found.append(Raw(encode_line(line, present, allowed)))
                    last = line.seq
            if len(found) >= limit:
                break
        if private:
            self._note(who, "log", company_of(who) or f"{after + 1}-{last}", reason)
        return Viewed(seen, found, str(last) if last < seen.seq and found else None)

    def reader(self, state: ClusterState, who: By, reason: str = "") -> Callable[[str, str], bool]:
        """Which users' private parts `who` may read. Raises: NotAllowed if not even the public log."""
        may_read(state, who, "cluster-read", Subject(), _now_ms())
        return lambda company, user: _may(state, who, "private", Subject(company, user), reason)

    def open_stream(self, who: By, path: Mapping[str, str], reason: str = "") -> None:
        """Record that `who` follows events with private parts. Raises: as `check_app`."""
        app = path.get("app")
        own = self.check_app(who, app) if app else Subject(*who.account.split("/", 1))
        if self.replica.read(lambda state: _may(state, who, "private", own, reason))[1]:
            self._note(who, "events", _named(who, app or path.get("company", "all"), own), reason)

    def tasks(self, who: By, app: str, *, cursor: str = "", limit: int = PAGE) -> Viewed:
        """The states of the app's tasks by index, after the task `cursor`. Raises: UnknownApp, NotAllowed."""
        self.check_app(who, app)
        states, start = self.work.states(app), _number(cursor, -1) + 1
        page = [Raw(_to_json(task._asdict())) for task in states[start : start + max(1, min(limit, PAGE))]]
        end = start + len(page)
        return Viewed(self.replica.seen(), page, str(end - 1) if page and end < len(states) else None)

    def whoami(self, who: By) -> Viewed:
        """The caller's account, role, token and company; the token's scopes, end (ms) and whether it is an invitation.

        Without a token, scopes are None = all of the role. `accounts`: whether the cluster has any. `terms`: of a
        worker, the host from which it was invited and the most that it may offer; None = any.
        """

        def look(state: ClusterState) -> tuple[Token | None, bool, Account | None]:
            return state.accounts.tokens.get(who.token), state.closed, state.accounts.known.get(who.account)

        seen, (token, closed, account) = self.replica.read(look)
        said = {**asdict(who), "company": company_of(who), "scopes": token and token.scopes, "accounts": closed}
        said |= {"expires": token and token.expires, "once": token is not None and token.once}
        if who.role == "worker" and account is not None:
            most = (
                None if account.offer is None else {"cores": account.offer.cores, "memoryMb": account.offer.memory_mb}
            )
            said["terms"] = {"host": account.host, "offer": most}
        return Viewed(seen, Raw(_to_json(said)))

    def output(self, who: By, app: str, task: int | None, *, stream: Stream | None = None, reason: str = "") -> bytes:
        """The last 64 KiB of the output of a task, or of the driver (None). Raises: UnknownApp, NotAllowed."""
        owner = self.check_app(who, app, "private", reason=reason)
        self._note(who, "output", _named(who, app, owner), reason)
        return self.work.output(app, task, stream)

    def exec(self, who: By, app: str, rules: VisitCommand) -> Viewed:
        """Run a command in the cell of the app's executor (`Visits.begin`); its id.

        Raises: UnknownApp, InvalidCommand without such an executor; NotAllowed.
        """
        owner = self.check_app(who, app, "private", reason=rules.reason)

        def find(state: ClusterState) -> Allocation:
            check_may_visit(state, who, app, owner, _now_ms(), reason=rules.reason)
            return place_of(state, app, rules.executor)

        seen, place = self.replica.read(find)
        self._note(who, "exec", _named(who, app, owner), rules.reason)
        visit = self._visits.begin(rules, place.worker, place.id, who.account)
        return Viewed(seen, Raw(_to_json({"visit": visit})))

    def exec_call(self, who: By, app: str, visit: str, rules: Call) -> Viewed:
        """Exchange its input and output (`Visits.call`). Raises: UnknownApp; InvalidCommand if it is over."""
        self.check_app(who, app)
        return Viewed(self.replica.seen(), Raw(_to_json(self._visits.call(visit, who.account, rules))))

    def beat(self, who: By, app: str) -> Viewed:
        """A sign of life of the app's owner (semantics G4). `state` says whether it goes on.

        Raises: UnknownApp, NotAllowed.
        """
        self.check_app(who, app, "submit")
        seen, state = self.replica.read(lambda state: state.apps[app].state)
        beat(self.store, self.keys, app)
        return Viewed(seen, Raw(_to_json({"state": state})))

    def publish(self, who: By, app: str, name: str, rules: MailboxText, *, passed: bool = False) -> Viewed:
        """Leave a message in the app's mailbox; `passed`: the caller has shown a pass of that app.

        Raises: UnknownApp, NotAllowed; AppEnded; InvalidCommand for a message out of bounds.
        """
        self._check_mail(who, app, passed=passed)
        seen, known = self.replica.read(lambda state: state.apps[app])
        if known.ended is not None:
            raise AppEnded(app, known.state)
        self.mailbox.publish(app, name, rules.text)
        return Viewed(seen, Raw(_to_json({"name": name})))

    def message(self, who: By, app: str, name: str, *, passed: bool = False) -> Viewed:
        """The message of that name in the app's mailbox, `text` null if there is none. Raises: as `publish`."""
        self._check_mail(who, app, passed=passed)
        text = self.mailbox.read(app, name)
        return Viewed(self.replica.seen(), Raw(_to_json({"name": name, "text": text})))

    def _check_mail(self, who: By, app: str, *, passed: bool) -> None:
        if not passed:
            self.check_app(who, app, "submit")

    def first_after(self, app: str, after: int) -> int | None:
        """When (ms) the first app of that name was submitted after that log position; None if none was, soon enough."""
        log = self.replica.log
        to = min(self.replica.head, after + FIRST_AMONG)
        for fact in log.facts(log.before(after), to=to) if to > after else ():
            if fact.seq > after and isinstance(fact.event, AppRegistered) and fact.event.app == app:
                return fact.at
        return None

    def links(self, who: By, app: str) -> Viewed:
        """The addresses of the app's user interfaces, by name. Raises: UnknownApp, NotAllowed."""
        self.check_app(who, app)
        return Viewed(self.replica.seen(), Raw(_to_json(self.mailbox.links(app))))

    def outputs(
        self, who: By, app: str, *, task: str = "", cursor: str = "", limit: int = PAGE, reason: str = ""
    ) -> Viewed:
        """What tasks have written, as `output`, base64; those after the task `cursor` that have written anything.

        `stderr` are the places of its bytes from stderr, [first, end]; `written` is how many bytes stdout and stderr
        have had in all. With a `task`, only this one, or the "driver". Raises: UnknownApp, NotAllowed.
        """
        owner = self.check_app(who, app, "private", reason=reason)
        self._note(who, "output", _named(who, app, owner), reason)
        if task:
            number = None if task == "driver" else int(task)
            return Viewed(self.replica.seen(), [_printed(number, self.work.tail(app, number))])
        start = _number(cursor, -1) + 1
        tasks = [each for each in self.work.written(app) if each >= start]
        page: list[Raw] = []
        size = 0
        for each, tail in zip(tasks, self.work.tails(app, tasks), strict=True):
            page.append(_printed(each, tail))
            size += len(tail.text())
            if len(page) == min(limit, PAGE) or size > OUTPUTS_BYTES:
                following = None if each == tasks[-1] else str(each)
                return Viewed(self.replica.seen(), page, following)
        return Viewed(self.replica.seen(), page)

    def explain(self, who: By, app: str, *, audited: bool = False) -> Viewed:
        """Why the app waits, or was placed as it was, from the log; `audited`: and the first verdict on the log.

        Raises: UnknownApp, NotAllowed, TooLong.
        """
        self.check_app(who, app)
        known = self.replica.read(lambda state: state.apps.get(app))[1]
        submitted = 1 if known is None else known.submitted
        from_ = 1 if audited else submitted
        found = self._from_log("explain", from_=from_, app=app, submitted=submitted, audited=audited)
        return self.without_said(who, app, found)

    def audit(self, who: By) -> Viewed:
        """The verdicts of an audit of the whole log. Raises: NotAllowed, TooLong, NotReady."""
        self._check_may(who, "cluster-read")
        return self._from_log("audit")

    def fairness(self, who: By, *, by: Literal["company", "user"] = "company", at: int | None = None) -> Viewed:
        """How fair the log was, as `fairlog fairness --json` prints it. Raises: NotAllowed, TooLong, NotReady."""
        self._check_may(who, "cluster-read")
        return self._from_log("fairness", to=at, by=by)

    def course(self, who: By, *, at: int | None = None) -> Viewed:
        """The use of the cluster and its queue in the last hour up to a position. Raises: NotAllowed, NotReady."""
        self._check_may(who, "cluster-read")
        return self._from_log("course", to=at, whole=False)

    def statement(self, who: By, company: str, *, month: str) -> Viewed:
        """The company's use in a month, `YYYY-MM`, as `fairlog statement --json` prints it.

        Raises: UnknownCompany, InvalidCommand if the log has no entry in the month; NotAllowed, TooLong, NotReady.
        """
        month_of(month)
        self._check_may(who, "statement", company)
        return self._from_log("statement", company=company, month=month)

    def whatif(self, who: By, rules: OtherRules, *, at: int | None = None) -> Viewed:
        """The log's inputs up to a position under other rules, as `fairlog whatif --json` prints it.

        Raises: CommandRejected if a rule is not valid; NotAllowed, TooLong, NotReady.
        """
        self._check_may(who, "cluster-read")
        return self._from_log("whatif", to=at, rules=to_builtins(rules))

    def plan(self, who: By, rules: SubmitApp) -> Viewed:
        """What would become of the submission now, decided on a copy of the state.

        Raises: CommandRejected if it would be refused; NotReady.
        """
        self._refuse_early(who, rules)
        return self._from_log("plan", whole=False, command=to_builtins(rules), by=to_builtins(who))

    def _check_may(self, who: By, verb: Verb, company: str = "") -> None:
        self.replica.read(lambda state: may_read(state, who, verb, Subject(company), _now_ms()))

    def timeline(self, who: By, app: str, *, to: int) -> Viewed:
        """The life of an app up to log position `to`. Raises: UnknownApp, NotAllowed, TooLong, NotReady."""
        self.check_app(who, app)
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
                f"the log has {read} events that this answer reads, and answers read up to {MOST_READ}; use the verb "
                "of the command line on the store's machine, or on an exported log"
            )
        lane = self._long_reads[lane_of(name)]
        if not lane.acquire(timeout=LONG_WAIT_S):
            raise NotReady("another answer from the whole log is being made; ask again")
        try:
            return Viewed(seen, Raw(self._figures(name, seen.seq, arguments)))
        finally:
            lane.release()

    def status(self, who: By, *, after: int = 0) -> Viewed:
        """The active master, the standbys, the workers with their processes, the head of the log and the health."""
        seen, cluster = self.replica.read(lambda state: self._look(state, who, "cluster", {})[0], after=after)
        around = self.look_around()
        holding, election = self.replica.read(lambda state: (found(state, around), elected(state, around)))[1]
        holding = since_when(self.store, self.keys, holding, around)
        agents = {
            name.decode(): _plain(text)
            for name, text in cast("dict[bytes, bytes]", self.store.hgetall(self.keys.agents)).items()
        }
        said = _plain(cast("Raw", cluster))
        workers = [{"pid": None, "host": None, **agents.get(each["worker"], {}), **each} for each in said["workers"]]
        store = around.store or StoreFacts()
        told = {
            "cluster": self.keys.cluster,
            "head": seen.seq,
            "health": as_json(holding),
            "master": around.serving and around.serving._asdict(),
            "standbys": [member._asdict() for member in around.standing_by],
            "election": election and election.as_json(),
            "workers": workers,
            "tooLarge": said["tooLarge"],
            "store": {"logBytes": store.log_bytes, "memoryLimit": store.memory_limit},
        }
        return Viewed(seen, Raw(_to_json(told)))

    def metrics(self, who: By, accept: str = "") -> tuple[bytes, str]:
        """The metrics for Prometheus, in a format that `accept` names, and their media type. Raises: NotAllowed."""
        self.replica.read(lambda state: may_read(state, who, "cluster-read", Subject(), _now_ms()))
        return self._metrics.text(accept)

    @cached_property
    def _metrics(self) -> Metrics:
        from fairlog.watch.metrics import Metrics  # noqa: PLC0415 (prometheus_client takes long to load)

        read = lambda look: self.replica.read(look)[1]  # noqa: E731
        return Metrics(self.store, self.keys, self.replica.tally, read=read, around=self.look_around)

    def keep_watch(self) -> None:
        """Take note of the companies that are short now and of the master, so that it is known since when they are.

        Raises: NotReady, redis-py's errors.
        """
        _, (short, master) = self.replica.read(lambda state: (short_of(state), state.master))
        with self._lock:
            self._watched.look(master, short, self.now_ms())

    def note_conditions(self) -> None:
        """Take note of what needs attention, so that later looks can tell since when. Raises: as `keep_watch`."""
        around = self.look_around()
        since_when(self.store, self.keys, self.replica.read(lambda state: found(state, around))[1], around)

    def sign(self, *, stopping: bool = False) -> None:
        """Give a sign that this server answers, or that it was told to stop. Raises: NotReady, redis-py's errors."""
        timeout_s = self.replica.peek(lambda state: state.settings.worker_timeout_s)
        sign(self.store, self.keys, 1000 * timeout_s, stopping=stopping)

    def look_around(self) -> Around:
        """What surrounds the state now. Raises: as `keep_watch`."""
        self.keep_watch()
        return look_around(self.store, self.keys, watched=self._watched)


def company_of(who: By) -> str:
    """The company of the account; "" if it has none."""
    company = who.account.partition("/")[0]
    return "" if company in RESERVED else company


def _now_ms() -> int:
    """The time by this machine's clock, by which tokens are judged here; the master judges by the store's."""
    return round(time.time() * 1000)


def _may(state: ClusterState, who: By, verb: Verb, subject: Subject, reason: str = "") -> bool:
    try:
        may_read(state, who, verb, subject, _now_ms(), reason=reason)
    except NotAllowed:
        return False
    return True


def _subject(state: ClusterState, who: By, app: str) -> Subject:
    """Whose the app is, and the worker that asks if the app runs on it."""
    found = state.apps[app]
    kind, _, worker = who.account.partition("/")
    held = [*found.executors.values(), *([found.driver] if found.driver else [])]
    here = kind == "worker" and any(each.worker == worker for each in held)
    return Subject(found.spec.company, found.spec.user, worker if here else "")


def _printed(task: int | None, tail: Tail) -> Raw:
    places = pairwise(accumulate((len(text) for _, text in tail.parts), initial=0))
    errors = [place for place, (stream, _) in zip(places, tail.parts, strict=True) if stream]
    return Raw(_to_json({"task": task, "output": tail.text(), "stderr": errors, "written": tail.totals}))


def _named(who: By, app: str, owner: Subject) -> str:
    """The subject of a recorded read: the app; the user whose it is if that is of the reader's company.

    So what tenants cause to be recorded is bounded by their users, not by their apps.
    """
    return f"{owner.company}/{owner.user}" if owner.company == company_of(who) else app


def read_request(body: bytes) -> tuple[Command, Mapping[str, str]]:
    """A command from JSON, and the secrets of a submission, its field `secrets`. Raises: InvalidCommand."""
    if b'"secrets"' not in body:
        check_length(body)
        return read_command(body), {}
    try:
        values = _plain(body)
    except ValueError as error:
        raise InvalidCommand(f"the command is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidCommand("the command: it cannot be read: expected object")
    return request_of(values)


def request_of(values: dict[str, Any]) -> tuple[Command, Mapping[str, str]]:
    """As `read_request`, of decoded JSON. Raises: InvalidCommand."""
    secrets: Any = values.get("secrets", {}) if values.get("type") == SubmitApp.__name__ else {}
    command = command_of({name: value for name, value in values.items() if name != "secrets" or not secrets})
    if not secrets:
        check_length(write_command(command))
        return command, {}
    if not isinstance(secrets, dict) or not all(isinstance(value, str) for value in secrets.values()):
        raise InvalidCommand("secrets must be an object of texts by the names of their variables")
    return _with_secrets(cast("SubmitApp", command), secrets)


def _with_secrets(command: SubmitApp, secrets: Mapping[str, str]) -> tuple[SubmitApp, Mapping[str, str]]:
    """The submission that names its variables, and their values. Raises: InvalidCommand."""
    commands.check_variables(secrets)
    commands.check_script(command, secrets)
    if not command.env:
        return replace(command, env=tuple(sorted(secrets))), secrets
    if secrets and set(command.env) != set(secrets):
        raise InvalidCommand("env and secrets must name the same variables; leave out env")
    return command, secrets


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
    return _to_json(line.as_json())


def _identity(who: By, key: str) -> str | None:
    """The id of a command that is sent with an idempotency key, which is the caller's own; None for a new one.

    Raises: InvalidCommand.
    """
    if len(key) > MAX_ID or not key.isascii() or not (key or "x").isprintable():
        raise InvalidCommand(f"an idempotency key has 1 to {MAX_ID} printable ASCII characters")
    if not key or not who.token:
        return key or None
    identity = f"{who.account}:{key}"
    return identity if len(identity) <= MAX_ID else sha256(identity.encode()).hexdigest()


def _words(arguments: Mapping[str, Any], name: str) -> frozenset[str]:
    """The words of a list in an argument; empty if it is not given."""
    return frozenset(word for word in arguments.get(name, "").split(",") if word)


_KEYS = ("app", "worker", "kind", "token", "account", "company")


def _item(value: Any) -> _Item:  # noqa: ANN401 (JSON values)
    """A part of a view; its key are the names that tell it from the others."""
    key = next((str(value[name]) for name in _KEYS if name in value), "")
    if "limit" in value:
        key = f"{value['company']}.{value['user']}.{value['limit']}"
    return _Item(key, Raw(_to_json(value)))


def _number(cursor: str, start: int = 0) -> int:
    """The number that the cursor is, or `start` for none. Raises: InvalidCommand."""
    if cursor and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 16):
        raise InvalidCommand(NO_CURSOR)
    return int(cursor or start)


def _after_cursor(items: Sequence[_Item], cursor: str) -> int:
    """The index after the item at which a page ended: where it is now, or where it was if it is gone."""
    if not cursor:
        return 0
    place, _, key = cursor.partition(".")
    if not (place.isascii() and place.isdecimal()) or len(place) > 9:
        raise InvalidCommand(NO_CURSOR)
    end = int(place)
    if 0 < end <= len(items) and items[end - 1].key == key:
        return end
    return next((number for number, item in enumerate(items, 1) if item.key == key), min(end, len(items)))
