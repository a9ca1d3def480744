"""A cluster whose parts run on hosts of their own, with accounts, keys and users of the store as docs/operations.md."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from fairlog.local.store import bundled_server
from fairlog.local.up import as_fairlog
from scheduler.model.commands import AddAccount, IssueToken
from scheduler.service.child import Child, dies_with_us
from scheduler.service.client import CommandClient
from scheduler.service.keyring import KEYS_VARIABLE
from scheduler.service.tokens import new_token
from scheduler.store.acl import AUDITOR, ROLES, acl_file, hash_of, new_password
from scheduler.store.codec import read_lines
from scheduler.store.connection import PASSWORD_FILE, SENTINEL
from tests.chaos.checker import Evidence
from tests.chaos.history import read_history, read_traces
from tests.chaos.rig import AGENTS, APIS, CLUSTER, COMPANIES, LOOK_S, MASTERS, Rig
from tests.chaos.stores import SERVICE, Place, Replicated, Store
from tests.chaos.tenant import Tenancy
from tests.hosts.network import Network
from tests.hosts.pauses import Answer
from tests.hosts.probe import run_probe
from tests.hosts.relay import DEVICE, run_relay
from tests.waiting import HOPELESS_S, wait_until
from workers.processes import send_signal

if TYPE_CHECKING:
    from redis import Redis

CLIENTS = 2
STORES = 3
AUDITOR_NAME = "auditor"
DESK = "desk"
"""The host of the operator, from which the test looks at the cluster."""
STORE_PORT, SENTINEL_PORT, API_PORT = 6379, 26379, 8080
ADMIN, WATCH = "admin", "sentinel"
"""Users of the store that fairlog's file of them does not have: the test's, and the sentinels'."""
WATCHES = (
    "allchannels +multi +slaveof +ping +exec +subscribe +config|rewrite +role +publish +info +client|setname "
    "+client|kill +script|kill"
)
"""What sentinels may do, as the documentation of Redis and Valkey says."""
LEASE_S = 3
"""As it is by default."""
TIMEOUT_S = 30.0
"""How long a client waits for the answer to a command, as it does by default."""
MISLED_MS = 60_000
"""How far the times of the log may be from those of tasks once the store's clock was wrong for a while."""
MASTER, API = "fairlog-master", "fairlog-api"


def hosts() -> list[str]:
    """Their names. A sentinel is on the host of a store."""
    kinds = {"store": range(1, STORES + 1), "master": range(MASTERS), "api": range(APIS)}
    kinds |= {"worker": range(AGENTS), "client": range(CLIENTS)}
    return [DESK, *(f"{kind}-{number}" for kind, numbers in kinds.items() for number in numbers)]


class Spread(Replicated):
    """Three servers and sentinels on hosts of the network, with the users of `passwords`."""

    def __init__(self, folder: Path, network: Network, program: str, passwords: Mapping[str, str]) -> None:
        self._network, self._passwords = network, passwords
        there = [network.address(f"store-{number}") for number in range(1, STORES + 1)]
        super().__init__(
            folder, program, [(host, STORE_PORT) for host in there], [(host, SENTINEL_PORT) for host in there]
        )
        self.place = self.url.removeprefix(SENTINEL)
        """The sentinels and the service, to which a user is put."""
        self.url = f"{SENTINEL}{MASTER}:{passwords[MASTER]}@{self.place}"
        folder.mkdir(parents=True)
        self._users = folder / "users.acl"
        hashes = {user: hash_of(word) for user, word in passwords.items()}
        more = {ADMIN: "~* &* +@all", WATCH: WATCHES}
        lines = [f"user {user} on #{hashes[user]} {rules}\n" for user, rules in more.items()]
        self._users.write_text(acl_file(CLUSTER, hashes) + "".join(lines))

    def admin(self, name: str) -> Redis:
        """A connection to that server, as its administrator."""
        return self._asking(self._servers[name])

    def names(self) -> list[str]:
        """Of the servers."""
        return list(self._servers)

    def copied(self, name: str, to: Path) -> Path:
        """A copy of what that server has on disk."""
        return Path(shutil.copytree(self._data(name), to))

    def put(self, name: str, copy: Path | None) -> None:
        """Have that server, which does not run, begin with the copy; with nothing for None."""
        shutil.rmtree(self._data(name))
        if copy is not None:
            shutil.copytree(copy, self._data(name))

    def child(self, name: str) -> Child:
        """That server or sentinel."""
        return self._children[name]

    def line(self, name: str, variables: Mapping[str, str]) -> list[str]:
        """The command line of that server, with variables of the environment."""
        names = [f"{key}={value}" for key, value in variables.items()]
        config = self._folder / name / "server.conf"
        return dies_with_us(self._command(name, ["env", *names, self._program, str(config)]))

    def end(self, name: str) -> None:
        """Stop that server and return once it has ended."""
        self._children[name].ask_to_stop()
        self._children[name].wait()

    def _data(self, name: str) -> Path:
        return self._folder / name / "appendonlydir"

    def _command(self, name: str, command: list[str]) -> list[str]:
        return self._network.on(name.replace("sentinel", "store"), command)

    def _asking(self, place: Place) -> Redis:
        asking = super()._asking(place)
        if place[1] == STORE_PORT:
            asking.connection_pool.connection_kwargs |= {"username": ADMIN, "password": self._passwords[ADMIN]}
        return asking

    def _durable(self, place: Place) -> str:
        replica = "fairlog-replica"
        return (
            f"{super()._durable(place)}protected-mode no\naclfile {self._users}\n"
            f"masteruser {replica}\nmasterauth {self._passwords[replica]}\n"
        )

    def _watch(self) -> str:
        return (
            f"protected-mode no\n{super()._watch()}sentinel auth-user {SERVICE} {WATCH}\n"
            f"sentinel auth-pass {SERVICE} {self._passwords[WATCH]}\n"
        )


class Bed(Rig):
    """The cluster; a context manager, as `Rig`. The process that makes it is on the host `DESK` from then on.

    `older`: the folder of the fairlog whose programs it begins with; None for this one's.
    """

    clients = CLIENTS

    def __init__(
        self, folder: Path, seed: int, *, server: str, say: Callable[[str], None], older: Path | None = None
    ) -> None:
        self.network = Network(hosts())
        self._older = older
        self._program, self._seed = server, seed
        self._secrets = folder / "secrets"
        self._answers = folder / "answers"
        for made in (self._secrets, self._answers, folder / "homes"):
            made.mkdir(mode=0o700)
        users = [*(role.user for role in ROLES), ADMIN, WATCH]
        self._passwords = {user: new_password() for user in users}
        for user, word in self._passwords.items():
            self._secret(user, word)
        self._tokens = {f"{COMPANIES[number]}/user-{number}": new_token() for number in range(CLIENTS)}
        self._invitations = {f"worker-{number}": new_token() for number in range(AGENTS)}
        self._programs: dict[str, tuple[list[str], dict[str, str]]] = {}
        """Of each host the arguments of its `fairlog`, and the variables."""
        self._read: dict[Path, int] = {}
        self._clock_ms = 0
        self.answers: list[Answer] = []
        """The answers to clients so far."""
        super().__init__(folder, seed, replicated=True, say=say)
        self._ring.without_masters().write(self._secrets / "door-keys.json")
        options = ["audit", "--follow", "--checkpoints", str(folder / "homes" / DESK)]
        self._auditor = self._fairlog(AUDITOR_NAME, options)

    @property
    def stores(self) -> Spread:
        """The servers and sentinels."""
        assert isinstance(self._store, Spread)
        return self._store

    def primary(self) -> str:
        """The host of the store's primary, once everybody agrees."""
        return str(wait_until(self.stores.primary, "a primary"))

    def replicas(self) -> list[str]:
        """The hosts of the others."""
        primary = self.primary()
        return [name for name in self.stores.names() if name != primary]

    def active(self) -> str:
        """The host of the active master."""
        return str(wait_until(self._active, "an active master"))

    def standbys(self) -> list[str]:
        """The hosts of the others."""
        active = self.active()
        return [child.name for child in self._masters if child.name != active]

    def others(self, *names: str) -> list[str]:
        """All hosts but these and the desk."""
        return [name for name in hosts() if name not in {*names, DESK}]

    def pid(self, name: str) -> int:
        """The process of that name, once it runs."""
        return int(wait_until(lambda: self._pid(name), f"the process of {name}") or 0)

    def executors(self) -> dict[str, int]:
        """The executors that run, by id."""
        return self._executors()

    def hold(self, name: str, seconds: float) -> None:
        """Do not restart that process before."""
        self._held[name] = time.monotonic() + seconds

    @contextmanager
    def misled(self, name: str, seconds: int) -> Iterator[None]:
        """The clock of the host is wrong by so much: its process is started again under it, and once more afterwards.

        The clock that only measures how much time passes is right.
        """
        child = self._child_of(name)
        wrong = {"LD_PRELOAD": str(clock()), "FAKETIME": f"{seconds:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        is_store = name in self.stores.names()
        line = self.stores.line(name, wrong) if is_store else self._line(name, wrong)
        self._clock_ms = max(self._clock_ms, MISLED_MS * is_store)
        right, child.command = child.command, line
        try:
            send_signal([self.pid(name)], signal.SIGKILL)
            yield
        finally:
            child.command = right
            send_signal([self.pid(name)], signal.SIGKILL)

    def upgrade(self, name: str) -> None:
        """Stop the program in an orderly way, and start this fairlog's in its place."""
        child = self._child_of(name)
        child.command, child.cwd = self._line(name), Path(__file__).parents[2]
        before = self.pid(name)
        child.ask_to_stop()
        wait_until(lambda: self._pid(name) not in {None, before}, f"the new {name}")

    def _child_of(self, name: str) -> Child:
        if name.startswith(("store", "sentinel")):
            return self.stores.child(name)
        children = (*self._masters, *self._apis, *self._agents, *self._clients, self._auditor)
        return next(each for each in children if each.name == name)

    def _line(self, name: str, more: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        """The command line of a program, with further variables."""
        arguments, variables = self._programs[name]
        names = [f"{key}={value}" for key, value in {**variables, **more}.items()]
        command = ["env", *names, sys.executable, "-m", "fairlog", *arguments]
        return dies_with_us(self.network.on(name if name in hosts() else DESK, command))

    @contextmanager
    def relayed(self, name: str, *, loss: float = 0.0, delay_s: float = 0.0) -> Iterator[None]:
        """What comes from the host or goes to it is lost with that probability, or comes that much later."""
        run = partial(run_relay, os.getpid(), loss=loss, delay_s=delay_s, seed=self._seed)
        relay = Child("relay", self.network.on_router(run), self._logs / "relay.log")
        relay.start()
        try:
            wait_until(lambda: self.network.has_device(DEVICE), "the relay")
            with self.network.through(DEVICE, name):
                yield
        finally:
            relay.ask_to_stop()
            relay.wait()

    @contextmanager
    def replaced(self, age_s: float | None) -> Iterator[str]:
        """All stores come back with what the primary had so long ago, or with nothing, until theirs is put back."""
        primary = self.primary()
        copies = Path(tempfile.mkdtemp(dir=self._folder))
        older = None
        if age_s is not None:
            older = self.stores.copied(primary, copies / "older")
            self.tend(age_s)
        primary = self.primary()
        self._put_all(older, keep=(primary, copies / "newest"))
        try:
            yield primary
        finally:
            self._put_all(copies / "newest")

    def _put_all(self, copy: Path | None, keep: tuple[str, Path] | None = None) -> None:
        """Stop all stores, the one to keep a copy of first, and start them with the copy."""
        names = sorted(self.stores.names(), key=lambda name: keep is None or name != keep[0])
        for name in names:
            self.hold(name, 3600)
            self.stores.end(name)
        if keep is not None:
            self.stores.copied(*keep)
        for name in names:
            self.stores.put(name, copy)
            self.hold(name, 0)

    def tend(self, seconds: float) -> None:
        """Restart what has ended, for so long."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._tend()
            self._listen()
            time.sleep(LOOK_S)

    def await_well(self, since_s: float) -> None:
        """Return once all is well, however long that takes."""
        wait_until(lambda: self.is_well(since_s), "the cluster to be well")

    def is_well(self, since_s: float) -> bool:
        """Whether all parts run, the stores are in sync, and each client was answered a command sent since then."""
        self._tend()
        self._listen()
        answered = {answer.client for answer in self.answers if answer.sent_s > since_s}
        if len(answered) < CLIENTS or self._paused:
            return False
        children = (*self._masters, *self._apis, *self._agents, *self._clients, self._auditor)
        if any(child.pid is None for child in children):
            return False
        return self.stores.primary() is not None and self._active() is not None

    def evidence(self) -> Evidence:
        """The records of the run; the log as `fairlog log --json` exports it."""
        export = self._folder / "log.jsonl"
        export.write_text(self.fairlog(AUDITOR, "log", "--json").stdout)
        with export.open("rb") as file:
            records = list(read_lines(file))
        lines = read_history(sorted(self._histories.iterdir()))
        return Evidence(lines, records, list(read_traces(self._traces)), self._left(records), self._clock_ms)

    def complaints(self) -> Iterator[str]:
        """What says that something is wrong although everything is well: an audit, the auditor or the status."""
        export = self._folder / "log.jsonl"
        audit = self.fairlog(AUDITOR, "audit", str(export))
        if audit.returncode:
            yield f"audit: {audit.stdout.strip() or audit.stderr.strip()}"
        said: dict[str, Any] = {}

        def well() -> bool:
            status = self.fairlog(MASTER, "status", "--json")
            said["now"] = status.stdout + status.stderr
            return status.returncode == 0

        try:
            wait_until(well, "a status without complaint")
        except AssertionError:
            yield f"status: {said['now']}"
        self._auditor.ask_to_stop()
        self._auditor.wait(time.monotonic() + HOPELESS_S)
        if self._auditor.exit_code:
            yield f"audit --follow: {self._auditor.last_words()}"

    def fairlog(self, user: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What `fairlog` prints on the operator's host, as that user of the store."""
        command = [sys.executable, "-m", "fairlog", *arguments]
        environment = os.environ | self._variables(DESK, user)
        if "audit" not in arguments:
            command += self._where(user)
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def _active(self) -> str | None:
        pid = self._serving()
        return next((child.name for child in self._masters if pid is not None and child.pid == pid), None)

    def _pid(self, name: str) -> int | None:
        self._tend()
        return self._child_of(name).pid

    def _listen(self) -> None:
        """Read what clients were answered since the last time."""
        for path in sorted(self._answers.iterdir()):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                for line in file:
                    if line.endswith(b"\n"):
                        self.answers.append(msgspec.json.decode(line, type=Answer))
                        self._read[path] = self._read.get(path, 0) + len(line)

    def _tend(self, *, clients: bool = True) -> None:
        super()._tend(clients=clients)
        self._auditor.tend()

    def _start(self) -> None:
        super()._start()
        self._auditor.start()

    def _close(self) -> None:
        self._auditor.ask_to_stop()
        super()._close()
        self._auditor.wait(time.monotonic() + 10)

    def _new_store(self, folder: Path, *, replicated: bool) -> Store:  # noqa: ARG002 - always
        return Spread(folder, self.network, self._program, self._passwords)

    def _new_apis(self) -> tuple[list[Child], tuple[str, ...]]:
        names = [f"api-{number}" for number in range(APIS)]
        options = ["api", "--listen", f"0.0.0.0:{API_PORT}", "--plain-http"]
        servers = tuple(f"http://{self.network.address(name)}:{API_PORT}" for name in names)
        return [self._fairlog(name, options) for name in names], servers

    def _set_up(self, client: CommandClient) -> None:
        super()._set_up(client)
        client.send(AddAccount(account="op/olga"))
        for account, token in self._tokens.items():
            client.send(AddAccount(account=account))
            client.send(IssueToken(token=token.id, account=account, hash=token.hash))
        for worker, token in self._invitations.items():
            client.send(AddAccount(account=f"worker/{worker}"))
            client.send(IssueToken(token=token.id, account=f"worker/{worker}", hash=token.hash, once=True))
            self._secret(worker, token.text)

    def _secret(self, name: str, text: str) -> None:
        path = self._secrets / name
        path.write_text(text)
        path.chmod(0o600)

    def _master_options(self) -> list[str]:
        return ["--lease", str(LEASE_S), "--replicas", str(self._store.replicas)]

    def _where(self, user: str) -> list[str]:
        return ["--store", f"{SENTINEL}{user}@{self.stores.place}", "--cluster", CLUSTER]

    def _variables(self, host: str, user: str = "") -> dict[str, str]:
        home = self._folder / "homes" / host
        home.mkdir(exist_ok=True)
        variables = {"HOME": str(home), "FAIRLOG_KNOWN": str(home)}
        if user:
            variables |= {PASSWORD_FILE: str(self._secrets / user)}
        if user == MASTER:
            variables |= {KEYS_VARIABLE: str(self._keys)}
        if user == API:
            variables |= {KEYS_VARIABLE: str(self._secrets / "door-keys.json")}
        return variables

    def _fairlog(self, name: str, arguments: Sequence[str]) -> Child:
        user = {"master": MASTER, "api": API}.get(arguments[0], AUDITOR)
        return self._program_of(name, [*arguments, *self._where(user)], self._variables(name, user))

    def _program_of(self, name: str, arguments: list[str], variables: dict[str, str]) -> Child:
        self._programs[name] = arguments, variables
        if self._older is not None:
            return Child(name, self._line(name), self._logs / f"{name}.log", cwd=self._older)
        return self._child(name, partial(as_fairlog, arguments, os.getpid(), variables))

    def _agent(self, number: int) -> Child:
        name = f"worker-{number}"
        variables = {**self._variables(name), "FAIRLOG_TOKEN_FILE": str(self._secrets / name)}
        arguments = ["worker", *self._worker_options(number), "--api", ",".join(self._servers_from(number))]
        return self._program_of(name, arguments, variables)

    def _client(self, number: int, seed: int) -> Child:
        name = f"client-{number}"
        account = list(self._tokens)[number]
        company, _, user = account.partition("/")
        tenancy = Tenancy(
            url="",
            cluster=CLUSTER,
            number=number,
            company=company,
            seed=seed,
            history=str(self._histories / name),
            traces=str(self._traces),
            parent=os.getpid(),
            servers=self._servers_from(number),
            token=self._tokens[account].text,
            users=(user,),
            timeout_s=TIMEOUT_S,
        )
        return self._child(name, partial(run_probe, tenancy, self._answers / name))

    def _servers_from(self, number: int) -> tuple[str, ...]:
        """The API servers, from another one on for each."""
        first = number % APIS
        return (*self._servers[first:], *self._servers[:first])

    def _child(self, name: str, program: Callable[[], None]) -> Child:
        host = name if name in hosts() else DESK

        def run() -> None:
            self.network.enter(host)
            program()

        return super()._child(name, run)


def clock() -> Path | None:
    """The library by which a program reads a wrong clock, if this machine has it."""
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


def server_of(kind: str) -> str:
    """The program of the stores: `valkey`, which a package contains, or `redis`, which the system has installed."""
    if kind == "valkey":
        return str(bundled_server())
    found = shutil.which("redis-server")
    assert found is not None, "there is no redis-server on the PATH"
    return found
