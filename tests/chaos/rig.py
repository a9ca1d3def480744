"""A cluster of real processes under load, which are killed, paused and restarted."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from redis.exceptions import RedisError

import fairlog.api.serve  # noqa: F401 - likewise
import recovery.failover.master  # noqa: F401 - loaded once, for all forks
import workers.agent  # noqa: F401 - likewise
from fairlog.local.up import as_fairlog
from recovery.archive.archive import open_log
from recovery.failover.lease import members
from recovery.replay.rebuild import fold
from scheduler.model.commands import ConfigureCluster, RegisterCompany, RegisterKind, SetLimit
from scheduler.model.errors import CommandRejected, NoMaster
from scheduler.model.events import AppRegistered
from scheduler.rules.state.cluster import ClusterState
from scheduler.service.child import Child
from scheduler.service.client import CommandClient
from scheduler.service.keyring import KEYS_VARIABLE, Keyring
from scheduler.store.codec import Record, told
from scheduler.store.connection import connect
from scheduler.store.eventlog import GENESIS, Position
from scheduler.store.keys import Keys
from tests.chaos.checker import Evidence
from tests.chaos.faults import Fault
from tests.chaos.history import read_history, read_traces
from tests.chaos.stores import Replicated, Single, Store
from tests.chaos.tenant import KIND, TASK, Tenancy, run_tenant
from tests.waiting import HOPELESS_S
from workers.processes import kill_until_gone, send_signal
from workers.rundir import RunDir

CLUSTER = "chaos"
MASTERS, AGENTS, APIS, CLIENTS = 3, 3, 2, 3
THROUGH_STORE = 1
"""How many of the clients speak to the store, and not to the API servers."""
OFFER = ("--cores", "8", "--memory", "4G", "--resource", f"{KIND}=2")
SETTINGS = {
    "min_executor_cores": 2,
    "min_executor_memory_mb": 512,
    "max_executor_cores": 4,
    "worker_timeout_s": 4,
    "max_executor_failures": 1000,
    "executor_idle_timeout_s": 2,
    "archive_after_events": 50,
    "archive_retain_events": 100,
    "min_runtime_s": 0,
    "reclaim_patience_s": 1,
    "kill_grace_s": 1,
}
MOST_OF_A_USER = 3
"""How many apps of each user may run at once."""
COMPANIES = ("acme", "bolt", "crux")
LEASE_S = 1.5
LOOK_S = 0.05
STUCK_S = HOPELESS_S
"""After so long without an entry in the log, what has not ended never will."""
STOP_S = 60.0
SIGNALS = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP, "stop": signal.SIGTERM}


class Rig:
    """The cluster in `folder`; a context manager that leaves no process behind. `say` receives each fault."""

    clients = CLIENTS

    def __init__(self, folder: Path, seed: int, *, replicated: bool, say: Callable[[str], None]) -> None:
        self.inflicted: Counter[str] = Counter()
        self._folder = folder
        self._archive = (folder / "archive").as_uri()
        self.say = say
        self._traces = folder / "traces"
        self._histories = folder / "histories"
        self._logs = folder / "logs"
        for made in (self._traces, self._histories, self._logs):
            made.mkdir(parents=True)
        shutil.copy(TASK, self._traces)
        self._keys = folder / "keys.json"
        self._ring = Keyring.create(self._keys)
        self._store: Store = self._new_store(folder / "store", replicated=replicated)
        self._masters = [
            self._fairlog(f"master-{n}", ["master", "--archive-allow", self._archive, *self._master_options()])
            for n in range(MASTERS)
        ]
        self._apis, self._servers = self._new_apis()
        self._agents = [self._agent(n) for n in range(AGENTS)]
        self._clients = [self._client(number, seed) for number in range(self.clients)]
        self._held: dict[str, float] = {}
        self._paused: dict[int, float] = {}
        self._state = ClusterState()
        self._position: Position = GENESIS

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _start(self) -> None:
        self._store.start()
        for child in self._masters:
            child.start()
        with connect(self._store.url) as store:
            self._set_up(CommandClient(store, CLUSTER, keyring=self._ring, timeout_s=HOPELESS_S))
        for child in (*self._agents, *self._apis, *self._clients):
            child.start()

    def _new_store(self, folder: Path, *, replicated: bool) -> Store:
        return Replicated.here(folder) if replicated else Single(folder)

    def _new_apis(self) -> tuple[list[Child], tuple[str, ...]]:
        """The API servers, and their URLs."""
        sockets = [self._folder / "api" / str(n) for n in range(APIS)]
        (self._folder / "api").mkdir(mode=0o700)
        servers = [self._fairlog(f"api-{n}", ["api", "--socket", str(path)]) for n, path in enumerate(sockets)]
        return servers, tuple(f"http+unix:{path}" for path in sockets)

    def _set_up(self, client: CommandClient) -> None:
        """Make the cluster what workers and clients expect."""
        client.send(ConfigureCluster(settings=SETTINGS | {"archive_url": self._archive}))
        client.send(RegisterKind(kind=KIND))
        for company in COMPANIES:
            client.send(RegisterCompany(company=company, borrow=True))
            client.send(SetLimit("user", "max_running_apps", MOST_OF_A_USER, company=company, user="*"))

    def run(self, faults: Sequence[Fault], seconds: float, progress: Callable[[str], None]) -> None:
        """Inflict `faults` when their time comes; return after `seconds`, with everything well again.

        A fault without a victim waits for one, or for the next fault of its kind.
        """
        began_s = time.monotonic()
        due = list(reversed(faults))
        waiting: dict[str, Fault] = {}
        while (at_s := time.monotonic() - began_s) < seconds:
            while due and due[-1].at_s <= at_s:
                fault = due.pop()
                waiting[fault.kind] = fault
            waiting = {kind: each for kind, each in waiting.items() if not self._inflict(each)}
            self._tend()
            progress(f"{at_s:.0f} of {seconds:.0f} s, {self._inflicted_so_far()}")
            time.sleep(LOOK_S)
        self._held.clear()
        self._wake(time.monotonic() + 3600)
        self._tend()

    def settle(self, progress: Callable[[str], None]) -> None:
        """Stop the clients; return once every app has ended and holds nothing, or the log stops growing."""
        for child in self._clients:
            child.ask_to_stop()
        for child in self._clients:
            child.wait(time.monotonic() + HOPELESS_S)
        moved_s = time.monotonic()
        while not self._is_quiet() and time.monotonic() - moved_s < STUCK_S:
            self._tend(clients=False)
            if self._read_on():
                moved_s = time.monotonic()
            left = sum(app.ended is None for app in self._state.apps.values())
            progress(f"settling, {self._inflicted_so_far()}, log at {self._position.seq}, {left} apps left")
            time.sleep(LOOK_S)

    def evidence(self) -> Evidence:
        """The records of the run."""
        with connect(self._store.url) as store:
            records: list[Record] = list(open_log(store, Keys(CLUSTER)).read())
        lines = read_history(sorted(self._histories.iterdir()))
        return Evidence(lines, records, list(read_traces(self._traces)), self._left(records))

    def _left(self, records: Sequence[Record]) -> list[str]:
        """The processes of tasks that still run."""
        apps = {fact.event.app for record in records for fact in told(record) if isinstance(fact.event, AppRegistered)}
        return [f"process {pid} of {app}" for app, pid in _task_processes() if app in apps]

    def _inflicted_so_far(self) -> str:
        return f"{self.inflicted.total()} faults"

    def _inflict(self, fault: Fault) -> bool:
        """Inflict `fault` on one of the processes of its kind; False if there is none."""
        victims = sorted(self._victims(fault.kind).items())
        if not victims:
            return False
        name, pid = victims[int(fault.pick * len(victims))]
        if pid in self._paused and fault.deed != "kill":
            return True
        send_signal([pid], SIGNALS[fault.deed])
        until = time.monotonic() + fault.hold_s
        if fault.deed == "pause":
            self._paused[pid] = until
        else:
            self._held[name] = until
        self.inflicted[str(fault)] += 1
        self.say(f"{fault}: {name} (process {pid}) for {fault.hold_s:.1f} s")
        return True

    def _victims(self, kind: str) -> Mapping[str, int]:
        match kind:
            case "serving master" | "standby":
                serving = self._serving()
                masters = _pids(self._masters)
                return {name: pid for name, pid in masters.items() if (pid == serving) == (kind == "serving master")}
            case "agent" | "api" | "client":
                return _pids({"agent": self._agents, "api": self._apis, "client": self._clients}[kind])
            case "forkserver":
                return self._forkservers()
            case "executor":
                return self._executors()
            case _:
                return self._store.victims(kind)

    def _serving(self) -> int | None:
        """The process that holds the lease; None if the store does not answer at once."""
        with suppress(RedisError), connect(self._store.url) as store:
            store.connection_pool.connection_kwargs["socket_timeout"] = 0.5
            serving = members(store, Keys(CLUSTER))[0]
            return serving.pid if serving is not None else None
        return None

    def _forkservers(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, pid in _pids(self._agents).items():
            with suppress(psutil.Error):
                found |= {f"{name}'s forkserver": child.pid for child in psutil.Process(pid).children()}
        return found

    def _executors(self) -> dict[str, int]:
        found = {}
        for number in range(AGENTS):
            files = RunDir(self._folder / "run", f"worker-{number}")
            for holder in files.known():
                if holder.pid and files.is_running(holder.executor):
                    found[holder.executor] = holder.pid
        return found

    def _tend(self, *, clients: bool = True) -> None:
        """Continue paused processes and restart dead ones whose time has come."""
        now = time.monotonic()
        self._wake(now)
        self._store.tend(self._held)
        for child in (*self._masters, *self._agents, *self._apis, *(self._clients if clients else ())):
            if self._held.get(child.name, 0.0) <= now:
                child.tend()

    def _wake(self, now: float) -> None:
        for pid in [pid for pid, until in self._paused.items() if until <= now]:
            del self._paused[pid]
            send_signal([pid], signal.SIGCONT)

    def _read_on(self) -> bool:
        """Fold the new entries of the log; return whether there were any."""
        before = self._position
        with suppress(RedisError), connect(self._store.url) as store:
            for fact in open_log(store, Keys(CLUSTER)).facts(self._position):
                fold(self._state, fact)
                self._position = Position(fact.seq, fact.digest)
        return self._position != before

    def _is_quiet(self) -> bool:
        """Whether the inbox is empty, every app has ended, and the master answers and has nothing to add to the log."""
        self._read_on()
        state = self._state
        if state.executors or any(app.ended is None for app in state.apps.values()) or not state.apps:
            return False
        with suppress(RedisError, NoMaster, CommandRejected), connect(self._store.url) as store:
            if store.xlen(Keys(CLUSTER).inbox) or any(store.hlen(Keys(CLUSTER).grants(w)) for w in state.workers):
                return False
            CommandClient(store, CLUSTER, keyring=self._ring, timeout_s=5).hear()
            return not self._read_on()
        return False

    def _close(self) -> None:
        """End every process started here."""
        self._wake(time.monotonic() + 3600)
        children = (*self._clients, *self._apis, *self._agents, *self._masters)
        for child in children:
            child.ask_to_stop()
        deadline = time.monotonic() + STOP_S
        for child in children:
            child.wait(deadline)
        self._store.stop()
        kill_until_gone(lambda: self._executors().values())
        kill_until_gone(lambda: [pid for _, pid in _task_processes(self._traces)])

    def _master_options(self) -> list[str]:
        return ["--lease", str(LEASE_S), "--replicas", str(self._store.replicas)]

    def _worker_options(self, number: int) -> list[str]:
        return ["--id", f"worker-{number}", *OFFER, "--run-dir", str(self._folder / "run"), "--folders", "/"]

    def _agent(self, number: int) -> Child:
        """An agent, which reaches the API servers only; each asks another one first."""
        first = number % APIS
        servers = ",".join((*self._servers[first:], *self._servers[:first]))
        arguments = ["worker", *self._worker_options(number), "--api", servers]
        return self._child(f"worker-{number}", partial(as_fairlog, arguments, os.getpid()))

    def _fairlog(self, name: str, arguments: Sequence[str]) -> Child:
        where = ["--store", self._store.url, "--cluster", CLUSTER]
        keys = {KEYS_VARIABLE: str(self._keys)}
        return self._child(name, partial(as_fairlog, [*arguments, *where], os.getpid(), keys))

    def _client(self, number: int, seed: int) -> Child:
        name = f"client-{number}"
        tenancy = Tenancy(
            url=self._store.url,
            cluster=CLUSTER,
            number=number,
            company=COMPANIES[number % len(COMPANIES)],
            seed=seed,
            history=str(self._histories / name),
            traces=str(self._traces),
            parent=os.getpid(),
            servers=self._servers if number >= THROUGH_STORE else (),
            keys=str(self._keys),
        )
        return self._child(name, partial(run_tenant, tenancy))

    def _child(self, name: str, program: Callable[[], None]) -> Child:
        return Child(name, program, self._logs / f"{name}.log")


def _pids(children: Sequence[Child]) -> dict[str, int]:
    return {child.name: child.pid for child in children if child.pid is not None}


def _task_processes(folder: Path | None = None) -> list[tuple[str, int]]:
    """(app, process) of every task that runs on this machine, or in `folder` alone."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            app = process.environ().get("FAIRLOG_APP_ID")
            ended = process.status() == psutil.STATUS_ZOMBIE
            if app is not None and not ended and (folder is None or process.cwd() == str(folder)):
                found.append((app, process.pid))
    return found
