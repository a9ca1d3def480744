"""A cluster in one process tree: the embedded store, masters and workers, each restarted if it dies.

The processes end with the one that runs the tree, even if it is killed; executors end with their agents.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self, cast

import click
from redis.exceptions import RedisError

from fairlog.api.addresses import SPARK_REST_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, UNIX, URL_VARIABLE
from fairlog.api.client import ApiClient
from fairlog.api.serve import CannotListen
from fairlog.errors import Unreachable
from fairlog.local import running
from fairlog.local.running import KNOWN, RunningUp
from fairlog.local.store import EmbeddedStore
from fairlog.watch.surroundings import STANDBYS_VARIABLE
from recovery.archive.accept import refusal
from recovery.archive.allowed import VARIABLE
from recovery.archive.editions import check_edition
from recovery.failover.exporter import METRICS_VARIABLE, Address, check_free, try_to_listen
from recovery.failover.lease import members
from recovery.failover.master import REFUSING
from recovery.replay.rebuild import rebuild
from scheduler.model.errors import FairlogError, NoMaster
from scheduler.model.resources import size_text
from scheduler.model.text import counted
from scheduler.service.advice import DATA_VARIABLE, of_this_cluster, program
from scheduler.service.child import Child, die_with_parent
from scheduler.service.client import CommandClient
from scheduler.service.grant_tokens import worker_pass
from scheduler.service.keyring import KEYS_FILE, KEYS_VARIABLE, Keyring, keyring_at
from scheduler.service.known import KNOWN_VARIABLE
from scheduler.service.private import private_folder
from scheduler.store.connection import connect
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from workers.processes import started_s
from workers.sandbox import why_no_cell

READY_S = 60.0
STOP_S = 12.0
LOOK_S = 0.1
HOPELESS = 4
"""Number of failures of masters, before one is active, after which the start is given up."""
_POLL_S = 0.05
_ANSWER_S = 2.0


def check_local(address: Address) -> None:
    """Raises: CannotListen unless the address is one of this machine's own, and free."""
    try:
        host = str(socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][4][0])
        if not ip_address(host).is_loopback:
            raise CannotListen(
                f"{address[0]} can be reached from other machines, whose commands `up` would run as you; give "
                "--spark-rest 127.0.0.1:PORT, or run `fairlog api --spark-rest`"
            )
        try_to_listen((host, address[1]))
    except OSError as error:
        raise CannotListen(
            f"cannot listen at {written(address)}: {error.strerror}; give --spark-rest another address"
        ) from error


class NotInTime(FairlogError):
    """The cluster did not start or stop in time."""


def written(address: Address) -> str:
    """The address as HOST:PORT."""
    host, port = address
    return f"{f'[{host}]' if ':' in host else host}:{port}"


class UpPlan(NamedTuple):
    """What to run; `cores` and `memory_mb` are the offer of each worker.

    The first master serves its metrics at `metrics`, each further one at the next port.
    """

    data: Path
    cluster: str = "default"
    masters: int = 2
    workers: int = 2
    cores: int = 4
    memory_mb: int = 2048
    metrics: Address | None = None
    spark_rest: Address | None = None
    """Where the API listens for Spark's clients (`fairlog.compat.spark_rest`)."""

    def metrics_of(self, number: int) -> str:
        """Where master `number`, from 1, serves its metrics, HOST:PORT; "" = nowhere."""
        if self.metrics is None:
            return ""
        host, port = self.metrics
        return written((host, port + number - 1))


class Tree:
    """The processes of `plan`; a context manager, which does not wait for an active master. `say` reports restarts.

    Start it from the main thread: its processes end with the thread that started them. With `findable`, other commands
    find the cluster as that of the running `up`.

    Raises: DataInUse if another tree uses the data, StoreUnavailable if the store cannot run, CannotExport if metrics
    cannot be served where the plan says.
    """

    def __init__(self, plan: UpPlan, *, say: Callable[[str], None], findable: bool = True) -> None:
        self.plan = plan._replace(data=plan.data.absolute())
        self._say = say
        self._findable = findable
        self._started_at = time.time()
        self._ready = False
        self._logs = self.plan.data / "logs"
        self._lock: int | None = None
        self.keyring: Keyring | None = None
        """The keys of the cluster, made at its first start."""
        self.store = EmbeddedStore(self.plan.data / "store")
        self._reserved = socket.socket()
        """Keeps the API's port free for it while it restarts."""
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._reserved.getsockname()[1]}"
        listening = ["api", "--socket", str(self.store.api_socket), "--listen", self.address]
        if plan.spark_rest is not None:
            listening += ["--spark-rest", written(plan.spark_rest)]
        self.api = self._child("api", listening)
        named = VARIABLE in os.environ
        master = ["master"] if named else ["master", "--archive-allow", (self.plan.data / "archive").as_uri()]
        self.masters = [
            self._child(f"master-{number}", [*master, *(["--metrics", metrics] if metrics else [])])
            for number, metrics in ((number, plan.metrics_of(number)) for number in range(1, plan.masters + 1))
        ]
        self.workers = [self._worker(number) for number in range(1, plan.workers + 1)]
        audit = ["audit", "--follow", "--checkpoints", str(self.plan.data / "audit")]
        self.auditor = self._child("auditor", audit)
        self._children = [*self.masters, self.api, self.auditor]
        """What `tend` keeps alive. The workers join once the API listens, through which they work."""

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self.stop)
            self._lock = running.lock(self.plan.data)
            if self.plan.metrics is not None:
                host, port = self.plan.metrics
                for number in range(self.plan.masters):
                    check_free((host, port + number))
            if self.plan.spark_rest is not None:
                check_local(self.plan.spark_rest)
            private_folder(self._logs)
            self.keyring = keyring_at(self.plan.data / KEYS_FILE)
            self.store.start()
            self._announce()
            for module in ("recovery.failover.master", "workers.agent", "fairlog.api.serve", "fairlog.watch.auditor"):
                import_module(module)  # once, for all children
            for child in self._children:
                child.start()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def tend(self) -> None:
        """Restart what has died since the last call."""
        store = self.store.pid
        if not {*self.workers} <= {*self._children} and self._api_listens():
            self._children += self.workers
        for said in (self.store.tend(), *(child.tend() for child in self._children)):
            if said is not None:
                self._say(said)
        if self.store.pid != store:
            try:
                self._announce()
            except OSError as error:  # as on a full disk, of which `status` tells
                self._say(f"cannot write {self.plan.data / running.RECORD}: {error.strerror}")

    def wait_until_ready(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Return once a master is active and every worker is registered, or `should_stop()`.

        Raises: NotReady with the last output of a process, after `READY_S` or `HOPELESS` failures of masters.
        """
        deadline = time.monotonic() + READY_S
        while not (should_stop() or self.is_ready()):
            hopeless = sum(len(master.failures) for master in self.masters) >= HOPELESS
            if hopeless or time.monotonic() > deadline:
                failed = [f"{child.name} failed: {child.failures[-1]}" for child in self._children if child.failures]
                why = failed[0] if failed else f"{self.masters[0].name} says: {self.masters[0].last_words()}"
                raise NotInTime(f"the cluster does not start; {why}")
            self.tend()
            time.sleep(_POLL_S)
        self._ready = True
        self._announce()

    def is_ready(self) -> bool:
        """Whether a master of the tree and its API answer and all its workers are registered.

        Raises: NotReady if masters refuse to serve from a log that is shorter than one that was known; EarlierEdition.
        """
        keys = Keys(self.plan.cluster)
        try:
            with connect(self.store.url) as store:
                serving = members(store, keys)[0]
                if serving is None and (refused := refusal(EventLog(store, keys))) is not None:
                    raise NotInTime(str(refused))
                if serving is None and REFUSING in self.masters[0].last_words():
                    check_edition(rebuild(EventLog(store, keys))[0])
                agents = cast("dict[bytes, bytes]", store.hgetall(keys.agents))
                registered = {name.decode(): json.loads(text)["pid"] for name, text in agents.items()}
                if serving is None or any(registered.get(worker.name, 0) != worker.pid for worker in self.workers):
                    return False
                CommandClient(store, self.plan.cluster, keyring=self.keyring, timeout_s=_ANSWER_S).hear()
            with ApiClient(f"{UNIX}{self.store.api_socket}", timeout_s=_ANSWER_S) as api:
                api.check()
        except (RedisError, NoMaster, Unreachable):
            return False
        return serving.pid in {master.pid for master in self.masters}

    def _api_listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as line, suppress(OSError):
            line.connect(str(self.store.api_socket))
            return True
        return False

    def page(self) -> str:
        """A link that opens the page once, as the operator. Raises: Unreachable."""
        with ApiClient(f"{UNIX}{self.store.api_socket}", timeout_s=_ANSWER_S) as api:
            return f"http://{self.address}/#key={api.link()}"

    def stop(self) -> None:
        """Stop everything in order: workers with their executors and the auditor, the API, masters, the store."""
        deadline = time.monotonic() + STOP_S
        for layer in ([*self.workers, self.auditor], [self.api], self.masters):
            for child in layer:
                child.ask_to_stop()
            for child in layer:
                child.wait(deadline)
        self.store.stop()
        if self._lock is not None:
            running.withdraw(self.plan.data)
            os.close(self._lock)
            self._lock = None
        self._reserved.close()

    def _announce(self) -> None:
        if self._findable:
            data, pid = str(self.plan.data), self.store.pid
            up = RunningUp(os.getpid(), self.store.url, self.plan.cluster, data, pid, self._started_at, self._ready)
            up = up._replace(masters=self.plan.masters)
            running.announce(up._replace(socket=str(self.store.api_socket), api=f"http://{self.address}"))

    def _worker(self, number: int) -> Child:
        name = f"worker-{number}"
        offer = ["--id", name, "--cores", str(self.plan.cores), "--memory", str(self.plan.memory_mb)]
        where = ["--run-dir", str(self.plan.data / "workers"), "--hide", str(self.plan.data), "--folders", "/"]
        plain = ["--unsafe-plain"] if why_no_cell() else []
        api = ["--api", f"{UNIX}{self.store.api_socket}"]
        arguments = ["worker", *offer, *where, *plain, *api, "--no-outlive"]
        program = partial(self._as_worker, name, arguments, os.getpid())
        return Child(name, program, self._logs / f"{name}.log")

    def _as_worker(self, name: str, arguments: Sequence[str], parent: int) -> None:
        """Be a worker that shows a pass."""
        shown = worker_pass(Keyring.load(self.plan.data / KEYS_FILE), self.plan.cluster, name)
        as_fairlog(arguments, parent, {TOKEN_VARIABLE: shown, TOKEN_FILE_VARIABLE: "", DATA_VARIABLE: ""})

    def _child(self, name: str, arguments: Sequence[str]) -> Child:
        where = ["--store", self.store.url, "--cluster", self.plan.cluster]
        variables = {
            KEYS_VARIABLE: str(self.plan.data / KEYS_FILE),
            STANDBYS_VARIABLE: str(min(1, self.plan.masters - 1)),
            KNOWN_VARIABLE: str(self.plan.data / KNOWN),
            METRICS_VARIABLE: "",  # one address cannot serve several masters
            SPARK_REST_VARIABLE: "",  # likewise, of whichever cluster it is meant for
            URL_VARIABLE: "",  # by which drivers would reach another cluster
        }
        program = partial(as_fairlog, [*arguments, *where], os.getpid(), variables)
        return Child(name, program, self._logs / f"{name}.log")


def as_fairlog(
    arguments: Sequence[str], parent: int | None = None, variables: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Be `fairlog` with these arguments and variables of the environment, as long as the process `parent` lives."""
    os.environ.update(variables)
    if parent is not None:
        die_with_parent(parent)
    sys.argv[1:] = arguments
    runpy.run_module("fairlog", run_name="__main__")


def run_up(plan: UpPlan, say: Callable[[str], None]) -> None:
    """Run the tree of `plan` in the foreground until SIGTERM, SIGINT or SIGHUP; `say` reports on its processes.

    Raises: as `Tree` and `Tree.wait_until_ready`.
    """
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    with Tree(plan, say=say) as tree:
        tree.wait_until_ready(lambda: stopped)
        if not stopped:
            page = tree.page() if sys.stdout.isatty() else f"http://{tree.address}/, with `fairlog page`"
            click.echo(f"{describe(tree.plan)}\n{of_this_cluster(f'the page: {page}')}")
        while not stopped:
            tree.tend()
            time.sleep(LOOK_S)
        say("stopping")
    say("stopped")


def describe(plan: UpPlan) -> str:
    """What `up` has started, and what to type next."""
    fairlog = program()
    offer = f"{counted(plan.cores, 'core')} and {size_text(plan.memory_mb)}"
    masters = counted(plan.masters, "master") + (" (1 active, the others standby)" if plan.masters > 1 else "")
    metrics = [f"http://{plan.metrics_of(number)}/metrics" for number in range(1, plan.masters + 1) if plan.metrics]
    return (
        f"fairlog is up: {masters}, {counted(plan.workers, 'worker')} with {offer} each; data in {plan.data}\n"
        f"  {fairlog} company add acme\n"
        f"  {fairlog} submit --company acme --user ann --wait -- echo hello\n"
        f"  {'; '.join(f'{fairlog} {verb}' for verb in ('status', 'shares', 'log', 'down'))}\n"
        + (f"metrics of its masters: {' '.join(metrics)}\n" if metrics else "")
        + (f"a Master for spark-submit: spark://{written(plan.spark_rest)}\n" if plan.spark_rest else "")
        + "its store has neither TLS nor users: only you, on this machine, can reach it"
    )


def start_detached(plan: UpPlan) -> RunningUp:
    """Start `up` in the background; returns once the cluster is ready.

    Raises: DataInUse if another runs on the data, NotReady with its last output if it ends.
    """
    data = plan.data.absolute()
    os.close(running.lock(data))
    logs = private_folder(data / "logs")
    options = [
        *("--data", str(data), "--cluster", plan.cluster, "--masters", str(plan.masters)),
        *(("--metrics", plan.metrics_of(1)) if plan.metrics else ()),
        *(("--spark-rest", written(plan.spark_rest)) if plan.spark_rest else ()),
        *("--workers", str(plan.workers), "--cores", str(plan.cores), "--memory", str(plan.memory_mb)),
    ]
    own_keys = {KEYS_VARIABLE: ""}  # those of the folder, which may be named from here only
    up = Child("up", partial(as_fairlog, ["up", *options], variables=own_keys), logs / "up.log")
    up.start()
    while True:
        found = running.find_running(data)
        if found is not None and found.pid == up.pid and found.ready:
            return found
        if up.exit_code is not None:
            raise NotInTime(up.last_words())
        time.sleep(_POLL_S)


def stop_running(found: RunningUp) -> None:
    """Stop the `up`. Returns once all of it has ended. Raises: NotReady if it takes too long."""
    os.kill(found.pid, signal.SIGTERM)
    deadline = time.monotonic() + 3 * STOP_S
    while running.find_running(Path(found.data)) is not None or started_s(found.pid) is not None:
        if time.monotonic() > deadline:
            raise NotInTime(
                f"`fairlog up` (process {found.pid}) was asked to stop but still runs; end it with `kill {found.pid}`"
            )
        time.sleep(_POLL_S)
