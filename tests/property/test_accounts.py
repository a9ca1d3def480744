"""Random histories of accounts: what is accepted is allowed by a second reading of I3, and the audit finds what is not.

The second reading (`Book`) knows accounts, roles and tokens from the accepted commands alone, and the table of I3 as it
is printed. A step is numbers, as in `histories`; senders include those whose token is revoked, expired or invented.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.model import commands
from scheduler.model.commands import Command
from scheduler.model.errors import CommandRejected, NotAllowed
from scheduler.model.sender import NOBODY, By, Role, local
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from scheduler.service import seals
from scheduler.service.keyring import Keyring
from scheduler.store.eventlog import Position
from tests.property.given import Cluster, Logged, examples
from tests.unit.recorded import facts, rechained
from witness.audit.audit import audit

ROOT = local(1000)
HASH = "ab" * 32
HOUR_S = 3600
RINGS = [first := Keyring.new(), second := first.rotated(), second.rotated()]
COMPANIES = ("acme", "globex")
ACCOUNTS = ("acme/ann", "acme/cid", "globex/bob", "op/root", "auditor/x", "worker/w1", "worker/w2")
KINDS: dict[str, Role] = {"op": "operator", "auditor": "auditor", "worker": "worker"}
TOKENS = [f"token{number:03}" for number in range(12)]
SCOPES = (None, None, ("tokens", "read"), ("submit", "kill", "users"), ("users", "tokens"))


class Step(NamedTuple):
    """Who sends what about whom, how, and how many seconds after the step before; read modulo the choices."""

    who: int
    what: int
    whom: int
    how: int
    after_s: int


STEPS = st.lists(
    st.builds(
        Step,
        st.integers(0, 63),
        st.integers(0, 63),
        st.integers(0, 63),
        st.integers(0, 63),
        st.sampled_from([1, 1, 1, 60, HOUR_S, 13 * HOUR_S]),
    ),
    min_size=10,
    max_size=80,
)


class Held(NamedTuple):
    """A token as the book has it."""

    account: str
    role: Role
    scopes: frozenset[str]
    expires: int
    once: bool


class Book:
    """Accounts, roles and tokens, and what they allow by the table of I3."""

    def __init__(self) -> None:
        self.roles: dict[str, list[Role]] = {}
        self.tokens: dict[str, Held] = {}
        self.shown: set[str] = set()

    def allows(  # noqa: C901, PLR0911, PLR0912 - a case a command
        self, by: By, command: Command, at: int, state: ClusterState
    ) -> bool:
        if by.account.startswith("local/"):
            role: Role = "operator"
        else:
            token = self.tokens.get(by.token)
            if token is None or (token.account, token.role) != (by.account, by.role) or at >= token.expires:
                return False
            verb = _verb(command, by, self)
            if verb not in token.scopes or (token.once and not isinstance(command, commands.IssueToken)):
                return False
            role = token.role
        company, _, name = by.account.partition("/")
        match command, role:
            case commands.SubmitApp(), "user":
                return (command.company, command.user) == (company, name)
            case commands.SubmitApp(), "admin":
                return command.company == company and f"{company}/{command.user}" in self.roles
            case (
                (commands.HoldApp() | commands.ReleaseApp() | commands.KillApp() | commands.RequeueApp()),
                ("user" | "admin"),
            ):
                app = state.apps.get(command.app)
                return app is not None and app.spec.company == company and role_reaches(role, app.spec.user == name)
            case ((commands.KillApp() | commands.RequeueApp()), "worker"):  # what runs there asks for it (semantics X4)
                app = state.apps.get(command.app)
                held = [] if app is None else app.allocations()
                return app is None or app.ended is not None or any(each.worker == name for each in held)
            case ((commands.KillApp() | commands.RequeueApp()), "operator"):
                return command.reason != ""
            case ((commands.IssueToken() | commands.RevokeToken()), _):
                return self._manages(by, role, self._whose(command, by), own=True)
            case commands.ShowApps(), ("admin" | "operator"):
                return role == "operator" or command.company == company
            case (
                (
                    commands.AddAccount()
                    | commands.ChangeAccount()
                    | commands.RemoveAccount()
                    | commands.GrantRole()
                    | commands.RevokeRole()
                ),
                _,
            ):
                return self._manages(by, role, command.account, own=False)
            case commands.SetLimit(scope="user"), ("admin" | "operator"):
                return role == "operator" or command.company == company
            case ((commands.SetLimit() | commands.RegisterCompany() | commands.ConfigureCluster()), "operator"):
                return True
            case commands.RegisterWorker(), "worker":
                return command.worker == name
            case _:
                return False

    def _whose(self, command: commands.IssueToken | commands.RevokeToken, by: By) -> str:
        if isinstance(command, commands.IssueToken):
            return command.account
        return self.tokens[command.token].account if command.token in self.tokens else by.account

    def _manages(self, by: By, role: Role, account: str, *, own: bool) -> bool:
        if own and account == by.account:
            return True
        kind = account.partition("/")[0]
        return role == "operator" or (role == "admin" and kind == by.account.partition("/")[0] and kind not in KINDS)

    def note(self, command: Command, by: By, at: int) -> None:
        """An accepted command."""
        match command:
            case commands.AddAccount(account=account):
                kind = account.partition("/")[0]
                self.roles[account] = [KINDS.get(kind) or command.role or "user"]
                assert self.roles[account][0] not in {"admin", "operator"} or self._gives(by) == frozenset(_ALL)
            case commands.RemoveAccount(account=account):
                del self.roles[account]
                self._end(lambda held: held.account == account)
            case commands.GrantRole(account=account, role=role) if role not in self.roles[account]:
                assert role != "admin" or self._gives(by) == frozenset(_ALL), "a role that may more than who gives it"
                self.roles[account].append(role)
            case commands.RevokeRole(account=account, role=role) if role in self.roles[account]:
                self.roles[account].remove(role)
                self._end(lambda held: held.account == account and held.role == role)
            case commands.IssueToken():
                self._issue(command, by, at)
            case commands.RevokeToken(token=token):
                del self.tokens[token]
            case _:
                pass

    def _issue(self, command: commands.IssueToken, by: By, at: int) -> None:
        mine = self.tokens.get(by.token) if by.account == command.account else None
        roles = self.roles[command.account]
        role = command.role or (mine.role if mine else "admin" if "admin" in roles else roles[0])
        most = frozenset(_TABLE[role])
        scopes = frozenset(command.scopes) if command.scopes is not None else (mine.scopes if mine else most)
        assert role in roles, "a token of a role that the account does not have"
        assert scopes <= most, "a token with scopes that its role does not have"
        assert mine is None or (role == mine.role and scopes <= mine.scopes), "a token that may more than its issuer"
        assert scopes <= self._gives(by), "a token with scopes that its issuer's lacks"
        assert not (mine and mine.once and command.once), "an invitation that prolongs itself"
        longest_s = 24 * HOUR_S if command.once else 7 * 24 * HOUR_S if role == "worker" else 12 * HOUR_S
        if command.replaces is not None:
            del self.tokens[command.replaces]
        else:
            assert not (mine and mine.once), "an invitation that stays"
        expires = at + 1000 * (command.lifetime_s or longest_s)
        self.tokens[command.token] = Held(command.account, role, scopes, expires, command.once)

    def _gives(self, by: By) -> frozenset[str]:
        held = self.tokens.get(by.token)
        return frozenset(_ALL) if held is None or held.scopes == frozenset(_TABLE[held.role]) else held.scopes

    def _end(self, ends: object) -> None:
        assert callable(ends)
        self.tokens = {name: held for name, held in self.tokens.items() if not ends(held)}


_ALL = (
    "submit",
    "kill",
    "read",
    "private",
    "cluster-read",
    "statement",
    "tokens",
    "users",
    "cluster",
    "archive",
    "work",
)
_TABLE: dict[Role, tuple[str, ...]] = {
    "user": ("submit", "kill", "read", "private", "cluster-read", "tokens"),
    "admin": ("submit", "kill", "read", "private", "cluster-read", "statement", "tokens", "users"),
    "operator": tuple(verb for verb in _ALL if verb not in {"submit", "work"}),
    "auditor": ("read", "cluster-read", "statement", "tokens"),
    "worker": ("read", "private", "tokens", "work"),
}
"""The columns of the table of I3."""


def role_reaches(role: Role, own: bool) -> bool:  # noqa: FBT001 - of one place
    return role == "admin" or own


def _verb(command: Command, by: By, book: Book) -> str:  # noqa: PLR0911 - a case a command
    match command:
        case commands.SubmitApp() | commands.HoldApp() | commands.ReleaseApp():
            return "submit"
        case commands.KillApp() | commands.RequeueApp() if by.role == "worker":
            return "work"
        case commands.KillApp() | commands.RequeueApp():
            return "kill"
        case commands.RegisterWorker():
            return "work"
        case commands.IssueToken() | commands.RevokeToken():
            account = book._whose(command, by)
            return "tokens" if account == by.account else "archive" if account.partition("/")[0] in KINDS else "users"
        case commands.ShowApps() | commands.SetLimit(scope="user"):
            return "users"
        case (
            commands.AddAccount()
            | commands.ChangeAccount()
            | commands.RemoveAccount()
            | commands.GrantRole()
            | commands.RevokeRole()
        ):
            return "archive" if command.account.partition("/")[0] in KINDS else "users"
        case _:
            return "cluster"


class Asked(Cluster):
    """A cluster that logs refusals and seals, and whose every accepted command the book allows."""

    def __init__(self) -> None:
        super().__init__(each_refusal=False)
        self.book = Book()
        self.ring = RINGS[0]
        self.accepted = self.refused = 0
        for company in COMPANIES:
            self.company(company)
        everybody = [*ACCOUNTS, "acme/adm", "globex/adm"]
        for account in everybody:
            role: str | None = "admin" if account.endswith("adm") else None
            self.ask(commands.AddAccount(account=account, role=role), ROOT)  # type: ignore[arg-type]
        for number, account in enumerate(everybody):
            self.ask(commands.IssueToken(token=TOKENS[number], account=account, hash=HASH), ROOT)

    def ask(self, command: Command, by: By, after_s: int = 1) -> None:
        turn = self.begin(after_s)
        cause = f"command-{self.state.head}"
        allowed = self.book.allows(by, command, turn.at, self.state) or not self.state.closed
        try:
            turn.take(command, cause, by)
        except CommandRejected as refusal:
            refused: CommandRejected | None = refusal
            turn.refuse(command, refusal, cause, by)
            self.refused += 1
        else:
            refused = None
            self.book.note(command, by, turn.at)
            self.accepted += 1
        if refused is None or (isinstance(refused, NotAllowed) and not _stricter(refused)):
            assert allowed == (refused is None), (by, command, refused)
        turn.settle()
        self._note(turn)

    def seal(self, *, rotate: bool) -> None:
        turn = self.begin()
        if rotate:
            self.ring = RINGS[min(RINGS.index(self.ring) + 1, len(RINGS) - 1)]
        change = seals.key_change(self.ring, self.state)
        if change is not None:
            turn.record(change)
        else:
            turn.record(seals.seal(self.ring, Position(self.state.head, self.records[-1].digest)))
        turn.settle()
        self._note(turn)

    def step(self, step: Step) -> None:
        if step.what % 16 == 15:
            self.seal(rotate=step.how % 4 == 0)
        else:
            self.ask(command_for(self, step), sender_for(self, step), step.after_s)


def _stricter(refusal: NotAllowed) -> bool:
    """Whether it is refused for what a token may issue, or where a worker may be, which is no part of the table."""
    return (
        "a token that the token" in str(refusal)
        or "is an invitation" in str(refusal)
        or "there is no" in str(refusal)
        or "cannot give the role" in str(refusal)
    )


def sender_for(cluster: Asked, step: Step) -> By:
    """Somebody with a token; or whose token ended, is another's, is made up, or who claims to need none."""
    tokens = cluster.book.tokens
    if step.who % 4 == 0:
        forged = [
            NOBODY,
            By("op/root", "", "operator"),
            By("acme/adm", "token000", "admin"),
            By("op/root", "token000", "operator"),
        ]
        return ROOT if step.how % 3 else forged[step.how % len(forged)]
    name = TOKENS[step.who % len(TOKENS)]
    if name in tokens:
        return By(tokens[name].account, name, tokens[name].role)
    return By("acme/ann", name, "user")


def command_for(cluster: Asked, step: Step) -> Command:
    how, whom = step.how, step.whom
    everybody = [*ACCOUNTS, "acme/adm", "globex/adm", "acme/new", "op/new", "third/eve"]
    account, company = everybody[whom % len(everybody)], COMPANIES[whom % 2]
    app, token = f"app{whom % 6}", TOKENS[how % len(TOKENS)]
    role: Role = "admin" if how % 2 else "user"
    user = account.partition("/")[2]
    lately = step.who % len(TOKENS)
    mine = cluster.book.tokens.get(TOKENS[lately])
    makers: Sequence[Command] = [
        commands.SubmitApp(app=app, company=company, user=user, cores=2, hold=how % 2 == 0, command=("true",)),
        commands.SubmitApp(app=app, company=company, user=user, cores=2, command=("true",)),
        commands.KillApp(app=app, reason="why" if how % 2 else ""),
        commands.HoldApp(app=app),
        commands.ReleaseApp(app=app) if how % 4 else commands.RequeueApp(app=app, reason="why" if how % 8 else ""),
        commands.AddAccount(account=account, role=role if how % 3 else None),  # type: ignore[arg-type]
        commands.ChangeAccount(account=account, display=f"A{how}"),
        commands.RemoveAccount(account=account),
        commands.GrantRole(account=account, role=role),  # type: ignore[arg-type]
        commands.RevokeRole(account=account, role=role),  # type: ignore[arg-type]
        commands.IssueToken(token=token, account=account, hash=HASH, scopes=SCOPES[how % 5], once=whom % 5 == 0),
        commands.IssueToken(
            token=token,
            account=mine.account if mine else account,
            hash=HASH,
            scopes=SCOPES[whom % 5],
            lifetime_s=60 if how % 3 == 0 else None,
            once=how % 5 == 0,
            replaces=TOKENS[lately] if whom % 2 else None,
        ),
        commands.RevokeToken(token=token),
        commands.ShowApps(company=company, shown=how % 2 == 0),
        commands.SetLimit(scope="user", name="max_pending_apps", company=company, user="*", value=how),
        commands.RegisterWorker(worker=f"w{1 + whom % 2}", node="n", host="h", cores=8, memory_mb=8192),
        commands.ConfigureCluster(settings={"retained_apps": how}),
        commands.SetLimit(scope="cluster", name="max_pending_apps", value=how + 10),
    ]
    return makers[step.what % len(makers)]


def played(steps: Sequence[Step]) -> Asked:
    cluster = Asked()
    for step in steps:
        cluster.step(step)
    return cluster


@given(STEPS)
@examples(80)
def test_what_is_accepted_is_allowed_by_the_table_and_the_audit_finds_nothing(steps: list[Step]) -> None:
    cluster = played(steps)
    assert audit(facts(cluster)) == []
    cluster.check_replay()


@given(STEPS)
@examples(12)
def test_a_snapshot_at_any_position_and_the_tail_are_the_whole_log(steps: list[Step]) -> None:
    """With accounts, tokens, keys and seals."""
    cluster = played(steps)
    for cut in range(len(cluster.log) + 1):
        again = restored(list(lines(_folded(cluster.log[:cut]))))
        assert _folded(cluster.log[cut:], again).digest() == cluster.state.digest(), cut
        assert again.accounts.tokens == cluster.state.accounts.tokens
        assert list(again.public_keys) == list(cluster.state.public_keys)


@given(STEPS, st.integers(0, 1 << 16), st.integers(0, 63))
@examples(80)
def test_an_edited_sender_who_may_not_is_found_at_its_position(steps: list[Step], number: int, other: int) -> None:
    """Although the chain is made anew."""
    cluster = Asked()
    took: list[tuple[int, By]] = []
    for step in steps:
        forged = sender_for(cluster, Step(other, 0, 0, other, 0))
        before, command, at = cluster.accepted, command_for(cluster, step), cluster.state.at + step.after_s * 1000
        allowed = cluster.book.allows(forged, command, at, cluster.state)
        seq = cluster.state.head + 1
        cluster.step(step)
        if cluster.accepted > before and cluster.state.head >= seq and not allowed:
            took.append((seq, forged))
    log = facts(cluster)
    for seq, forged in took[number % max(1, len(took)) :][:1]:
        place = next(place for place, fact in enumerate(log) if fact.seq >= seq and fact.command is not None)
        found = audit(rechained([*log[:place], replace(log[place], by=forged), *log[place + 1 :]]))
        assert [each.seq for each in found if each.rule != "I6"][:1] == [log[place].seq]


def test_the_histories_reach_every_command_and_both_answers() -> None:
    """A property of histories in which all is refused would say nothing."""
    cluster, random = Asked(), Random(7)
    for number in range(1500):
        who, what, whom, how = (random.randrange(64) for _ in range(4))
        cluster.step(Step(who, what, whom, how, 1 if number % 97 else HOUR_S))
    done = {type(fact.command).__name__ for fact in facts(cluster) if fact.command and fact.type != "CommandRefused"}
    assert cluster.accepted > 100
    assert cluster.refused > 200
    assert len(done) >= 14, done


def _folded(log: Sequence[Logged], state: ClusterState | None = None) -> ClusterState:
    folded = ClusterState() if state is None else state
    for event, at, cause, private, by in log:
        folded.apply(event, at=at, cause=cause, private=private, by=by)
    return folded
