"""The door of a simulated cluster with accounts: API servers, the network in front of them, and who asks.

Servers run the real handlers over a replica that an actor steps. Each request is an actor of its own, as a thread of
the server is: it ends with its server. Callers send requests through a network that loses, doubles and delays them and
their answers, and repeat them under the same id, at another server if one does not answer.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from msgspec import to_builtins
from msgspec.structs import replace
from redis.exceptions import RedisError

from fairlog.api.handlers import Handlers
from fairlog.api.past import NotReady
from fairlog.api.questions import PAGE
from fairlog.api.replica import NotThatLong, Replica
from recovery.archive.archive import open_log
from scheduler.model import commands
from scheduler.model.commands import Command, write_command
from scheduler.model.errors import CommandRejected, FairlogError, NoMaster, NotAuthenticated
from scheduler.model.sender import By
from scheduler.rules.view.views import page_of_apps
from scheduler.service import signing
from scheduler.service.keyring import Keyring, master_id, public_of
from scheduler.service.receipts import Receipt
from scheduler.service.tokens import NewToken, new_token
from tests.simulation.promises import PromiseBroken
from tests.simulation.store import KEYS
from witness.listing import listed

if TYPE_CHECKING:
    import pytest

    from scheduler.store.eventlog import EventLog
    from tests.simulation.loom import Actor, Loom
    from tests.simulation.world import World

T = TypeVar("T")
Fate = Literal["well", "request lost", "answer lost", "doubled", "request late", "answer late"]
FATES: tuple[Fate, ...] = ("well", "request lost", "answer lost", "doubled", "request late", "answer late")
COMPANIES = ("north", "south", "west")
USERS, ADMIN = ("ann", "bob", "cem"), "dan"
ROOT, AUDITOR = "op/root", "auditor/eve"
ACCOUNTS = (ROOT, AUDITOR, *(f"{company}/{user}" for company in COMPANIES for user in (*USERS, ADMIN)))
ANSWER_MS = 6_000
"""How long a caller waits for an answer."""
ATTEMPTS = 12


def has_accounts(seed: int) -> bool:
    """Whether the cluster of this seed has accounts and API servers: every fifth has."""
    return seed % 5 == 2


class NoAnswer(Exception):
    """The server did not answer in time."""


class Asker(NamedTuple):
    """Who sends a command: the text of a token, and whether its owner asks for a new one if it is refused."""

    account: str
    token: str
    rightful: bool


class SteppedReplica(Replica):
    """A replica that an actor steps: who waits for it lets others act."""

    def __init__(self, log: EventLog, loom: Loom) -> None:
        super().__init__(log)
        self._loom = loom

    def wait_for(self, seq: int, wait_s: float) -> bool:
        return self._loom.wait(1000 * wait_s, lambda: self.head >= seq and not self.trouble)


class Server:
    """An API server: a replica that an actor steps, and handlers that run in an actor for each request."""

    def __init__(self, door: Door, name: str) -> None:
        world = door.world
        self._world, self.name = world, name
        self.replica = SteppedReplica(open_log(world.store.client, door.keys), world.loom)
        self.handlers = Handlers(
            world.store.client, door.keys.cluster, self.replica, keyring=door.ring.without_masters(), timeout_s=8
        )
        self.requests: set[Actor] = set()
        self.shown = 0
        """The last position that it has shown."""
        self.actor = world.loom.spawn(name, self._live)

    def _live(self) -> None:
        try:
            while True:
                pause_s = self.replica.step()
                if pause_s:
                    self._world.loom.wait(1000 * pause_s)
        finally:
            for request in sorted(self.requests, key=lambda actor: actor.pid):
                self._world.loom.kill(request)

    def handle(self, request: Callable[[Server], T], late_ms: int) -> tuple[Actor, list[T | Exception]]:
        """Begin a request that arrives after `late_ms`; its answer comes into the list."""
        loom, answer = self._world.loom, list[T | Exception]()

        def live() -> None:
            try:
                if late_ms:
                    loom.wait(late_ms)
                answer.append(request(self))
            except (FairlogError, RedisError) as error:
                answer.append(error)
            finally:
                self.requests.discard(actor)
                if actor.doomed and not self.actor.doomed:  # a fault ends the process, not the request
                    loom.kill(self.actor)

        actor = loom.spawn(f"{self.name}-request", live)
        self.requests.add(actor)
        return actor, answer


def _parted(account: str) -> tuple[str, str]:
    company, _, user = account.partition("/")
    return company, user


class Door:
    """The API servers, the accounts and their tokens, and what callers do with them."""

    def __init__(self, world: World) -> None:
        self.world, self.loom = world, world.loom
        self.random = random = Random(f"door {world.seed}")
        self.keys = KEYS
        key = random.randbytes(32)
        self.ring = Keyring({"d1": random.randbytes(32)}, {master_id(public_of(key)): key}, b"")
        self.fates = (60, *(random.choice((0, 3, 12)) for _ in FATES[1:]))
        self.servers: list[Server] = []
        self.wallets: dict[str, list[NewToken]] = {account: [] for account in ACCOUNTS}
        """The tokens that each account has had, the newest last."""
        self.askers: dict[str, str] = {}
        """Command -> the account that sends it."""
        self.owners: dict[str, tuple[str, str]] = {}
        """App -> its company and user."""
        self.asked: dict[str, int] = {}
        """How often each command was begun to be asked for."""
        self.forged: set[str] = set()
        """Ids in messages that came past the API."""
        self.captured: list[tuple[str, list[str]]] = []
        """Messages that an intruder has read, and their lanes."""
        self.number = 0
        self.rare = Random(f"rare {world.seed}")
        """What invitations and new keys are drawn from."""
        self.rotations = 0
        self.settled = False

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Give the servers what is deterministic, and locks that other actors can wait for."""
        loom = self.loom
        signed = signing.signed_fields

        def captured(*parts: Any) -> list[str]:
            fields = signed(*parts)
            self.captured.append((self.keys.lane(signing.lane_of(parts[2])), fields))
            return fields

        class Lock:
            def __init__(self) -> None:
                self._held = False

            def __enter__(self) -> None:
                if self._held:
                    loom.wait(1 << 40, lambda: not self._held)
                self._held = True

            def __exit__(self, *_: object) -> None:
                self._held = False

        for module in ("views", "log_reads", "health"):
            patch.setattr(f"fairlog.api.{module}.Lock", Lock)
        patch.setattr("fairlog.api.replica.threading", SimpleNamespace(**(vars(threading) | {"Lock": Lock})))
        patch.setattr("fairlog.api.replica.WAIT_MS", 400)
        patch.setattr("scheduler.service.client.signed_fields", captured)
        patch.setattr("scheduler.service.tokens.os", SimpleNamespace(urandom=self.random.randbytes))

    # The course of a run

    def found(self) -> None:
        """The accounts, and the servers."""
        self.restore(*ACCOUNTS)
        for _ in range(self.random.choice((1, 2, 2, 3))):
            self._start_server()
        self.loom.wait(20_000, lambda: self._knows(ROOT) and all(server.replica.head for server in self.servers))

    def happen(self) -> None:
        """Some of what happens at the door."""
        for chosen in self.random.choices(_HAPPENINGS, _CHANCES, k=self.random.choice((0, 1, 1, 2))):
            chosen(self)
        if self.rare.random() < 0.2:
            self.invite()
        if self.rotations < 2 and self.rare.random() < 0.06:
            self.rotate()

    def settle(self) -> None:
        """Everything answers and arrives, and no caller brings a fault any more; every account has a new token."""
        self.settled = True
        self.fates = (1, *(0 for _ in FATES[1:]))
        self.start_what_died()
        self.restore(*ACCOUNTS)
        self.loom.wait(20_000, lambda: all(map(self._knows, ACCOUNTS)))

    def admin_of(self, company: str) -> By:
        """The admin of the company, as the API has made sure of it."""
        return By(f"{company}/{ADMIN}", self.wallets[f"{company}/{ADMIN}"][-1].id, "admin")

    def _start_server(self) -> None:
        self.number += 1
        self.servers.append(Server(self, f"api{self.number}"))

    def start_what_died(self) -> None:
        """Two servers at least."""
        self.servers = [server for server in self.servers if server.actor.alive]
        while len(self.servers) < 2:
            self._start_server()

    def _knows(self, account: str, scope: str = "tokens") -> bool:
        """Whether the log has the newest token of the account, which is valid and has that scope."""
        token = self.world.witness.state.accounts.tokens.get(self.wallets[account][-1].id)
        return token is not None and token.expires > self.world.store.ms and scope in token.scopes

    def reinstate(self) -> None:
        """Give new tokens to the admins that have lost theirs since `settle`, or got one of few scopes."""
        admins = [account for account in ACCOUNTS if account.endswith(f"/{ADMIN}")]
        lost = [account for account in admins if not self._knows(account, "submit")]
        if lost:
            self.restore(*lost)

    def restore(self, *accounts: str) -> None:
        """The owner of the store adds these accounts, as far as they are missing, and issues them new tokens."""
        state, due = self.world.witness.state, list[Command]()
        for account in accounts:
            company, _, name = account.partition("/")
            role: Any = None if company not in COMPANIES else "admin" if name == ADMIN else "user"
            known = state.accounts.known.get(account)
            if known is None:
                if company in COMPANIES and company not in state.companies:
                    due.append(commands.RegisterCompany(company=company))
                due.append(commands.AddAccount(account=account, role=role))
            elif role is not None and role not in known.roles:
                due.append(commands.GrantRole(account=account, role=role))
            before = [token.id for token in self.wallets[account] if token.id in state.accounts.tokens]
            new = new_token()
            self.wallets[account].append(new)
            replaced = before[0] if len(before) > 2 else None
            due.append(commands.IssueToken(token=new.id, account=account, hash=new.hash, role=role, replaces=replaced))
        self.world._tell(*due)

    # What callers do

    def ask(self, command: Command, name: str, *, fault: bool) -> None:
        """Spawn a caller that repeats the command until it is answered; `name` is its key, or its id if it has one."""
        world = self.world
        if name in self.askers:
            account = self.askers[name]
            asker, identity = Asker(account, self.wallets[account][-1].text, rightful=True), name
        else:
            if isinstance(command, commands.SubmitApp):
                self.owners[command.app] = command.company, command.user
            asker = self._asker(self._entitled(command))
            identity = f"{asker.account}:{name}"
            self.askers[identity] = asker.account
            if isinstance(command, commands.KillApp) and asker.account == ROOT and self.random.random() < 0.8:
                command = replace(command, reason="it is in the way")
        world.sent[identity] = command
        self.asked[identity] = self.asked.get(identity, 0) + 1
        world.witness.forbidden.discard(identity)
        world.clients[identity] = self.loom.spawn(name, partial(self._send, asker, command, identity, fault=fault))
        world.say("asks as", asker.account, "for", type(command).__name__, getattr(command, "app", ""))

    def _asker(self, account: str) -> Asker:
        """Mostly the account with a token that counts."""
        random = self.random
        match random.randrange(24):
            case 0:
                stranger = random.choice(ACCOUNTS)
                return Asker(stranger, self.wallets[stranger][-1].text, rightful=False)
            case 1:
                return Asker(account, random.choice(self.wallets[account]).text, rightful=False)
            case 2:
                return Asker(account, _forged(self.wallets[account][-1].text, random), rightful=False)
            case _:
                return Asker(account, self.wallets[account][-1].text, rightful=True)

    def _entitled(self, command: Command) -> str:
        """An account that may send the command."""
        owner = self._owner(command)
        if owner is None:
            return ROOT
        company, user = owner
        kill = isinstance(command, commands.KillApp)
        return self.random.choice((f"{company}/{user}",) * 3 + (f"{company}/{ADMIN}",) + ((ROOT,) if kill else ()))

    def _owner(self, command: Command) -> tuple[str, str] | None:
        """Who may send the command as its own; None for an operator."""
        match command:
            case commands.SetLimit(scope="user", company=str() as company):
                return company, ADMIN
            case _:
                return self.owners.get(getattr(command, "app", ""))

    def _send(self, asker: Asker, command: Command, identity: str, *, fault: bool = False) -> None:
        world, witness = self.world, self.world.witness

        def send(handlers: Handlers, by: By) -> Receipt:
            return handlers.sender.send(by, command, command_id=identity.partition(":")[2])

        while True:
            try:
                receipt, _ = self._until_answered(asker, send, identity, fault=fault)
            except CommandRejected as refusal:
                world.say("is refused:", refusal)
                world.refused[identity] = type(refusal).__name__
                witness.refused(identity, refusal)
                return
            except NoAnswer:
                world.say("gives up for now")
                self.loom.wait(5_000)
            else:
                world.say("is told", receipt.seq)
                witness.answered(receipt.command_id, receipt)
                return

    def _until_answered(
        self, asker: Asker, do: Callable[[Handlers, By], T], identity: str = "", *, fault: bool = False
    ) -> tuple[T, bool]:
        """The answer of the first server that gives one, and whether nobody else may have got the request.

        Raises: CommandRejected; NoAnswer if all attempts fail.
        """
        server: Server | None = None
        alone = True
        for _ in range(ATTEMPTS):
            alive = [each for each in self.servers if each.actor.alive]
            if not alive:
                self.loom.wait(500)
                continue
            if server is None or not server.actor.alive:
                server = self.random.choice(alive)
            try:
                answer, once = self._call(server, asker, do, fault=fault)
            except NotAuthenticated as refusal:
                if not asker.rightful:
                    self._forbid(identity, alone=alone)
                    raise
                self.world.say("logs in again:", refusal)
                if self.wallets[asker.account][-1].text == asker.token:
                    self.restore(asker.account)
                self.loom.wait(1_000, partial(self._knows, asker.account))
                asker = asker._replace(token=self.wallets[asker.account][-1].text)
            except CommandRejected:
                self._forbid(identity, alone=alone)
                raise
            except (NoAnswer, NotReady, NotThatLong, NoMaster, RedisError) as error:
                self.world.say("asks another server:", type(error).__name__, error)
                alone, server, fault = False, None, False
                self.loom.wait(self.random.choice((20, 300)))
            else:
                return answer, alone and once
        raise NoAnswer

    def _forbid(self, identity: str, *, alone: bool) -> None:
        """Nobody may do what was refused, if the refusal was the answer to the only request under its id."""
        if identity and alone and self.asked.get(identity, 1) == 1:
            self.world.witness.forbidden.add(identity)

    def _call(self, server: Server, asker: Asker, do: Callable[[Handlers, By], T], *, fault: bool) -> tuple[T, bool]:
        """The answer of one server, and whether the request reached it once. Raises: as the handler; NoAnswer."""

        def request(server: Server) -> T:
            by = server.handlers.principal(asker.token, at_home=False)
            self.world.witness.admitted(by)
            return do(server.handlers, by)

        fate = self.random.choices(FATES, self.fates)[0]
        if fate == "request lost":
            self.loom.wait(ANSWER_MS)
            raise NoAnswer(fate)
        late_ms = self.random.randrange(20, 9_000) if fate == "request late" else 0
        actor, answer = server.handle(request, late_ms)
        if fate == "doubled":
            server.handle(request, self.random.randrange(9_000))
        if fault and not self.settled:
            self.world._strike(actor)
        arrived = self.loom.wait(ANSWER_MS, lambda: bool(answer) or not server.actor.alive)
        if fate == "answer late":
            self.loom.wait(self.random.randrange(20, ANSWER_MS))
        if not arrived or not answer or fate == "answer lost":
            raise NoAnswer(fate)
        found = answer[0]
        if isinstance(found, Exception):
            if fate == "doubled":
                raise NoAnswer(fate) from found
            raise found
        return found, fate != "doubled"

    def _read(self, server: Server, asker: Asker, see: Callable[[Server, By], None]) -> None:
        """Read once."""
        try:
            self._call(server, asker, lambda _, by: see(server, by), fault=False)
        except (FairlogError, RedisError, NoAnswer) as error:
            self.world.say("reads nothing:", type(error).__name__, error)

    # What callers see

    def _shown(self, server: Server, by: By, view: str, params: dict[str, Any]) -> Any:
        """The body of an answer that shows the present state: none before what was shown when it was asked for."""
        before = server.shown
        viewed = server.handlers.views.view(by, view, params)
        self.world.witness.read_at(server.name, viewed.seen.seq, before)
        server.shown = max(server.shown, viewed.seen.seq)
        if isinstance(viewed.body, list):
            return [json.loads(bytes(item)) for item in viewed.body]
        return json.loads(bytes(viewed.body))

    def _sees_apps(self, server: Server, by: By) -> None:
        witness = self.world.witness
        at_end = server.replica._follower.position == witness.position
        items = self._shown(server, by, "apps", {})
        witness.saw(by, "an app", [(item["company"], item["user"]) for item in items])
        token = witness.state.accounts.tokens.get(by.token)
        whole = by.role in ("operator", "auditor") and token is not None and "read" in token.scopes
        if at_end and whole and items != to_builtins(page_of_apps(witness.state, after=0, most=PAGE, tell=listed)[0]):
            raise PromiseBroken(2, f"{server.name} shows {items} at {server.shown}, and the log has others")

    def _sees_an_app(self, server: Server, by: By) -> None:
        item = self._shown(server, by, "app", {"app": self._any_app()})
        self.world.witness.saw(by, "an app", [(item["company"], item["user"])])

    def _sees_accounts(self, server: Server, by: By) -> None:
        kind = by.account.partition("/")[0]
        for view in ("accounts", "tokens"):
            for item in self._shown(server, by, view, {}):
                mine = item["account"] == by.account or by.role == "operator"
                if not mine and not (by.role == "admin" and item["account"].startswith(f"{kind}/")):
                    raise PromiseBroken(9, f"{by.account} as {by.role} sees {view} of {item['account']}")

    def _sees_the_log(self, server: Server, by: By) -> None:
        reason = self.random.choice(("", "an incident"))
        viewed = server.handlers.log.entries(by, after=max(0, server.replica.head - 60), reason=reason)
        lines = [json.loads(bytes(line)) for line in viewed.body]
        owners = [self._owner_of(line) for line in lines if line.get("private")]
        self.world.witness.saw(by, "a private part", owners, private=True, reason=reason)

    def _owner_of(self, line: dict[str, Any]) -> tuple[str, str]:
        """Whose the private part of an entry is: the sender's if it was refused, else of whom the command is about."""
        command, by = line["command"], line.get("by") or {}
        if line["type"] == "CommandRefused" and by:
            return _parted(by["account"])
        if "account" in command:
            return _parted(command["account"])
        if "company" in command:
            return command["company"], command.get("user", "")
        app = self.world.witness.apps.get(command.get("app", ""))
        return ("", "") if app is None else (app.company, app.user)

    def _sees_output(self, server: Server, by: By) -> None:
        app, reason = self._any_app(), self.random.choice(("", "an incident"))
        found = self.world.witness.apps.get(app)
        server.handlers.apps.output(by, app, 0, reason=reason)
        if found is not None:
            self.world.witness.saw(by, "the output", [(found.company, found.user)], private=True, reason=reason)

    def _any_app(self) -> str:
        return self.random.choice([*self.world.witness.apps] or ["nobody"])

    # What an intruder does

    def forge(self) -> None:
        """Put a message into the inbox past the API: unsigned, signed by a foreign key, changed, or seen before."""
        random, world = self.random, self.world
        self.number += 1
        identity = f"forged-{self.number}"
        company = random.choice(COMPANIES)
        malice: list[Command] = [
            commands.KillApp(app=self._any_app(), reason="malice"),
            commands.AddAccount(account=f"{company}/mallory"),
            commands.DrainWorker(worker=random.choice([*world.machines])),
        ]
        body = write_command(random.choice(malice))
        owner = By(ROOT, self.wallets[ROOT][-1].id, "operator")
        lane, fields = self.keys.inbox, ["id", identity, "command", body, "reply", ""]
        match random.choice(("unsigned", "foreign key", "changed", "other lane", "again")):
            case "foreign key":
                foreign = Keyring({"d1": random.randbytes(32)}, {}, b"")
                sender = self.keys.cluster, owner, world.store.ms
                fields = signing.signed_fields(foreign, *sender, identity, body, "")
            case "changed" if self.captured:
                lane, (*_, by, _, sent, _, key, _, mac) = random.choice(self.captured)
                fields += ["by", by, "sent", sent, "key", key, "mac", mac]
            case "other lane" if self.captured:
                fields = [*random.choice(self.captured)[1]]
                fields[5] = ""
            case "again" if self.captured:
                lane, fields = random.choice(self.captured)
        self.forged.add(fields[1])
        if fields[1] == identity:
            world.witness.forbidden.add(identity)
        world.say("an intruder sends", *fields[:4])
        world.store.ask("XADD", lane, "*", *fields)

    # What happens

    def read(self, asker: Asker | None = None) -> None:
        """Somebody reads something from each server."""
        if asker is None:
            account = self.random.choice((ROOT, AUDITOR, *self.random.choices(ACCOUNTS, k=2)))
            texts = self.wallets[account]
            token = self.random.choice((texts[-1], self.random.choice(texts)))
            asker = Asker(account, token.text, rightful=False)
        seen = self.random.choice(_SIGHTS)
        for server in self.servers:
            if server.actor.alive:
                self.loom.spawn("reader", partial(self._read, server, asker, partial(seen, self)))

    def smuggle(self) -> None:
        """A user puts a command that it may not send into a batch with one that it may."""
        self.number += 1
        identity, random, witness = f"batch-{self.number}", self.random, self.world.witness
        company, user = random.choice(COMPANIES), random.choice(USERS)
        new = new_token()
        bodies: list[Command] = [
            commands.IssueToken(token=new.id, account=f"{company}/{user}", hash=new.hash, lifetime_s=5),
            commands.KillApp(app=self._any_app(), reason="why not"),
            commands.AddAccount(account=f"{company}/mallory", role="admin"),
        ]
        asker = Asker(f"{company}/{user}", self.wallets[f"{company}/{user}"][-1].text, rightful=False)

        def live() -> None:
            def send(handlers: Handlers, by: By) -> list[Receipt | CommandRejected]:
                return handlers.sender.send_many(
                    by, [write_command(each).encode() for each in bodies], command_id=identity
                )

            try:
                answers, alone = self._until_answered(asker, send)
            except (CommandRejected, NoAnswer) as error:
                self.world.say("smuggles nothing:", error)
                return
            for number, answer in enumerate(answers):
                self.world.say("smuggles", type(bodies[number]).__name__, answer)
                if isinstance(answer, Receipt):
                    witness.answered(answer.command_id, answer)
                elif alone:
                    witness.forbidden.add(f"{asker.account}:{identity}.{number}")

        self.loom.spawn(identity, live)

    def borrow(self) -> None:
        """A user sends a command under the id of another's that was done: it is another command."""
        witness, random = self.world.witness, self.random
        done = [name for name in self.world.sent if witness.told.get(name) and name not in witness.excused]
        if not done:
            return
        identity, account = random.choice(done), f"{random.choice(COMPANIES)}/{random.choice(USERS)}"
        new = new_token()
        command = commands.IssueToken(token=new.id, account=account, hash=new.hash, lifetime_s=5)
        asker = Asker(account, self.wallets[account][-1].text, rightful=False)

        def live() -> None:
            try:
                receipt, _ = self._until_answered(
                    asker, lambda door, by: door.sender.send(by, command, command_id=identity)
                )
            except (CommandRejected, NoAnswer) as error:
                self.world.say("borrows nothing:", error)
                return
            self.world.say("borrows the id", identity)
            witness.answered(receipt.command_id, receipt)

        self.loom.spawn("borrower", live)

    def issue(self) -> None:
        """An account issues itself a token: a short one, one with few scopes, or one in place of its last."""
        account = self.random.choice(ACCOUNTS)
        new, last = new_token(), self.wallets[account][-1]
        about: dict[str, Any] = self.random.choice(
            ({"lifetime_s": 1}, {"lifetime_s": 3}, {"replaces": last.id}, {"scopes": ("tokens",)})
        )
        command = commands.IssueToken(token=new.id, account=account, hash=new.hash, **about)
        self._order(account, command, lambda: self.wallets[account].append(new))

    def revoke(self) -> None:
        """An account, or who manages it, revokes a token, perhaps while a server is stopped; its owner goes on."""
        account = self.random.choice(ACCOUNTS)
        company = account.partition("/")[0]
        who = self.random.choice((account, ROOT, f"{company}/{ADMIN}" if company in COMPANIES else ROOT))
        token = self.random.choice(self.wallets[account])
        wait_ms = self.random.choice((0, 1_500))
        if wait_ms and self.servers:
            self.loom.stop(self.random.choice(self.servers).actor, self.random.choice((500, 5_000)))
        self._order(who, commands.RevokeToken(token=token.id))
        self.loom.wait(wait_ms)
        self.read(Asker(account, token.text, rightful=False))

    def change_roles(self) -> None:
        """A user gains or loses the role of an admin, or an admin its own; sometimes a user is removed."""
        company, user = self.random.choice(COMPANIES), self.random.choice((*USERS, ADMIN))
        account = f"{company}/{user}"
        due: list[Command] = [
            commands.GrantRole(account=account, role="admin"),
            commands.RevokeRole(account=f"{company}/{ADMIN}", role="admin"),
            commands.RemoveAccount(account=account),
            commands.ShowApps(company=company, shown=company not in self.world.witness.state.accounts.shown),
        ]
        for command in (self.random.choice(due[:-1]), due[-1]):
            self._order(self.random.choice((ROOT, f"{company}/{ADMIN}", f"{company}/ann")), command)

    def _order(self, account: str, command: Command, done: Callable[[], object] = lambda: None) -> None:
        """Have the account send a command about accounts."""
        self.number += 1
        identity = f"{account}:order-{self.number}"
        asker = Asker(account, self.wallets[account][-1].text, rightful=False)

        def live() -> None:
            self._send(asker, command, identity)
            if identity in self.world.witness.told:
                done()

        self.world.say(account, "sends", command)
        self.loom.spawn(identity, live)

    def invite(self) -> None:
        """The operator invites a worker or an admin; two have the invitation, and one tries what it is not good for."""
        self.number += 1
        company = self.rare.choice(COMPANIES)
        account = self.rare.choice((f"worker/v{self.number}", f"{company}/{ADMIN}"))
        is_worker, name = account.startswith("worker/"), f"{ROOT}:invitation-{self.number}"
        invitation, stolen = new_token(), new_token()
        about: dict[str, Any] = {"account": account, "hash": invitation.hash}
        due: list[Command] = [commands.AddAccount(account=account, host="h1", cores=4, memory_mb=8192)] * is_worker
        due.append(commands.IssueToken(token=invitation.id, once=True, **about))
        worker = {"worker": account.partition("/")[2], "node": "h1", "host": "h1", "cores": 4, "memory_mb": 8192}
        beyond = commands.RegisterWorker(
            **worker | self.rare.choice(({"host": "h2"}, {"cores": 5}, {"memory_mb": 8193}))  # type: ignore[arg-type]
        )
        malice: list[Command] = [
            commands.IssueToken(token=stolen.id, account=f"{company}/ann", hash=stolen.hash, lifetime_s=5),
            commands.IssueToken(token=stolen.id, account=account, hash=stolen.hash, lifetime_s=5),
            beyond if is_worker else commands.AddAccount(account=f"{company}/mallory"),
        ]

        def redeem(number: int) -> None:
            new = new_token()
            guest, key = Asker(account, invitation.text, rightful=False), f"{account}:guest-{name[-4:]}-{number}"
            for each in self.rare.sample(malice, k=number):
                self._send(guest, each, f"{key}-{type(each).__name__}-{malice.index(each)}")
            join = commands.IssueToken(
                token=new.id, account=account, hash=new.hash, lifetime_s=5, replaces=invitation.id
            )
            self._send(guest, join, f"{key}-joins")
            if is_worker:
                self._send(Asker(account, new.text, rightful=False), beyond, f"{key}-offers")

        def live() -> None:
            for number, command in enumerate(due):
                self._send(Asker(ROOT, self.wallets[ROOT][-1].text, rightful=True), command, f"{name}-{number}")
            for number in range(2):
                self.loom.spawn("guest", partial(redeem, number))

        self.world.say(ROOT, "invites", account)
        self.loom.spawn(name, live)

    def rotate(self) -> None:
        """New keys, as `fairlog keys rotate` makes them: first for all masters, then for servers that start anew."""
        self.rotations += 1
        door, key = self.rare.randbytes(32), self.rare.randbytes(32)
        doors = {**self.ring.doors, f"d{self.rotations + 1}": door}
        self.ring = Keyring(doors, {**self.ring.masters, master_id(public_of(key)): key}, b"")
        self.world.renew_masters(self.ring)

    def kill_server(self) -> None:
        """A server dies."""
        if self.servers:
            server = self.random.choice(self.servers)
            self.world.say("kills", server.name)
            self.loom.kill(server.actor)
        if not any(server.actor.alive for server in self.servers):
            self._start_server()

    def trouble_server(self) -> None:
        """A server is stopped, is cut off from the store, or fails at one of its next calls."""
        server = self.random.choice(self.servers or [None])
        if server is None:
            return
        for_ms = self.random.choice((500, 2_000, 6_000))
        match self.random.randrange(3):
            case 0:
                self.loom.stop(server.actor, for_ms)
            case 1:
                for actor in (server.actor, *server.requests):
                    self.world.store.cut_off[actor] = self.loom.now_ms + for_ms
            case _:
                self.world._strike(server.actor)
        self.world.say("troubles", server.name)


_HAPPENINGS: tuple[Callable[[Door], None], ...] = (
    Door.read,
    Door.smuggle,
    Door.borrow,
    Door.issue,
    Door.revoke,
    Door.change_roles,
    Door.forge,
    Door.kill_server,
    Door.trouble_server,
    Door.start_what_died,
)
_CHANCES = (8, 3, 2, 4, 5, 4, 4, 2, 3, 3)
_SIGHTS = (Door._sees_apps, Door._sees_an_app, Door._sees_accounts, Door._sees_the_log, Door._sees_output)


def _forged(token: str, random: Random) -> str:
    """A token of the same id with another secret."""
    first, identity, *_ = token.split("_")
    secret = new_token().text.split("_")[2]
    begin = f"{first}_{identity}_{secret}"
    return random.choice((f"{begin}_{zlib.crc32(begin.encode()):08x}", f"{begin}_00000000", "fl_nobody"))
