"""A client process: it submits and kills apps, sends commands that must be refused, and records everything."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from msgspec import to_builtins
from redis.exceptions import RedisError

from fairlog.api.client import ApiClient
from fairlog.client import StoreClient
from fairlog.errors import Refused
from scheduler.model.commands import Command, KillApp, KillExecutors, ScaleApp, SubmitApp, command_of
from scheduler.model.errors import CommandRejected, NoMaster
from scheduler.service.child import die_with_parent
from scheduler.service.keyring import Keyring
from tests.chaos.history import REFUSED, History, Line

OPEN_APPS = 4
"""The number of apps that a client has open at once."""
ANSWER_S = 4.0
ATTEMPTS = 3
PAUSE_S = 0.25
DIES = 0.04
"""The probability that a client dies during a command, and the longest time (s) after its beginning."""
DIES_WITHIN_S = 0.005
ALONE, DRIVEN, ELASTIC = 0.1, 0.1, 0.15
"""The probabilities that an app is only a driver, has a driver besides its tasks (if it succeeds), or is elastic."""
LATER, BRIEF, OF_A_KIND = 0.1, 0.05, 0.15
"""The probabilities that an app waits for another, may run for a second only, or has tasks that need a `KIND`."""
KIND = "gpu"
SUPERVISED = {"driver": True, "supervise": True, "driver_memory_mb": 256}
HOW = ("ok", "ok", "ok", "ok", "ok", "ok", "fails", "fails-once")
TASK = Path(__file__).with_name("task.sh")
"""What tasks run: a copy of it in their folder, since cells do not show this one."""


class Tenancy(NamedTuple):
    """The parameters of a client: the cluster, the client's number, and the folders of histories and traces.

    With `servers` it speaks to these API servers, else to the store at `url`.
    """

    url: str
    cluster: str
    number: int
    company: str
    seed: int
    history: str
    traces: str
    parent: int
    servers: tuple[str, ...] = ()
    keys: str = ""
    """The file of the keys by which it signs what it sends to the store."""
    token: str | None = None
    """The token that it shows to API servers."""
    users: tuple[str, ...] = ("ann", "bob")
    """For whom it submits."""
    timeout_s: float = ANSWER_S


class Tenant:
    """The client; `run` sends its commands."""

    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy
        self._history = History(Path(tenancy.history))
        self._life = uuid4().hex[:6]
        self._draw = random.Random(f"{tenancy.seed} {tenancy.number} {self._life}")
        self._client: ApiClient | StoreClient = (
            ApiClient(tenancy.servers, token=tenancy.token, timeout_s=tenancy.timeout_s)
            if tenancy.servers
            else StoreClient(
                tenancy.url,
                tenancy.cluster,
                keyring=Keyring.load(Path(tenancy.keys)) if tenancy.keys else None,
                timeout_s=tenancy.timeout_s,
            )
        )
        self._apps = 0
        self._open: list[str] = []
        self._stopped = False

    def stop(self, *_: object) -> None:
        """End after the current command."""
        self._stopped = True

    def run(self) -> None:
        """Send commands until told to stop. Half of the time, first repeat the last command of the previous process."""
        unsettled = self._history.unsettled()
        if unsettled is not None and self._draw.random() < 0.5:
            self._carry_out(command_of(unsettled.command), unsettled.id)
        while not self._stopped:
            time.sleep(self._draw.uniform(0, 2 * PAUSE_S))
            if len(self._open) < OPEN_APPS:
                self._carry_out(self._command(), uuid4().hex)
            else:
                self._look()

    def _command(self) -> Command:
        odds = self._draw.random()
        if self._open and odds < 0.1:
            return KillApp(app=self._draw.choice(self._open))
        if self._open and odds < 0.15:
            return ScaleApp(app=self._draw.choice(self._open), executors=self._draw.choice((1, 2, None)))
        if self._open and odds < 0.2:
            app = self._draw.choice(self._open)
            return KillExecutors(app=app, executors=(f"{app}.0", f"{app}.1"))
        if odds < 0.25:
            return self._submission(company="nobody", how=REFUSED)
        return self._submission(company=self._tenancy.company, how=self._draw.choice(HOW))

    def _submission(self, *, company: str, how: str) -> SubmitApp:
        self._apps += 1
        seconds = f"{self._draw.uniform(0.1, 1.5):.2f}"
        return SubmitApp(
            app=f"app-{self._tenancy.number}-{self._life}-{self._apps}",
            company=company,
            user=self._draw.choice(self._tenancy.users),
            name=how,
            command=("/bin/sh", TASK.name, how, seconds),
            cwd=self._tenancy.traces,
            retries=1 if how == "fails-once" else 0,
            priority=self._draw.randint(-1, 1),
            **self._order(),
            **self._demand(how),
        )

    def _order(self) -> dict[str, Any]:
        """Sometimes the app waits for the end of another one, or may run for a second only."""
        odds = self._draw.random()
        if self._open and odds < LATER:
            return {"after": {"any": (self._draw.choice(self._open),)}}
        return {"max_runtime_s": 1} if odds > 1 - BRIEF else {}

    def _demand(self, how: str) -> dict[str, Any]:
        """The app's request: cores for tasks, elastic executors, a driver besides the tasks, or only a driver."""
        odds = self._draw.random()
        if how == "ok" and odds < ALONE:
            return {**SUPERVISED}
        tasks = {"memory_per_task_mb": 128, "tasks": self._draw.randint(1, 10)}
        if odds > 1 - ELASTIC:
            return {**tasks, "elastic": (1, 3)}
        driver = SUPERVISED if how == "ok" and odds < ALONE + DRIVEN else {}
        cores = {"cores": self._draw.choice((2, 4, 6, 8)), "cores_per_task": self._draw.choice((1, 1, 2))}
        kinds = {"task_resources": {KIND: self._draw.choice(("1", "1/2"))}} if self._draw.random() < OF_A_KIND else {}
        return {**tasks, **cores, **driver, **kinds}

    def _carry_out(self, command: Command, identity: str) -> None:
        """Send `command`, and repeat it under the same id while its outcome is unknown.

        With probability `DIES` the default action of SIGALRM ends the process meanwhile.
        """
        if isinstance(command, SubmitApp) and command.name != REFUSED:
            self._open.append(command.app)
        for _ in range(ATTEMPTS):
            self._history.write(Line(identity, "invoke", to_builtins(command)))
            if self._draw.random() < DIES:
                signal.setitimer(signal.ITIMER_REAL, self._draw.uniform(0, DIES_WITHIN_S) + 1e-6)
            try:
                receipt = self._client.send(command, command_id=identity)
            except CommandRejected as refusal:
                self._history.write(Line(identity, "fail", error=f"{type(refusal).__name__}: {refusal}"))
                return
            except (NoMaster, RedisError, Refused) as error:
                self._history.write(Line(identity, "unknown", error=f"{type(error).__name__}: {error}"))
                time.sleep(PAUSE_S)
            else:
                self._history.write(Line(identity, "ok", seq=receipt.seq))
                return
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _look(self) -> None:
        """Forget the apps that have ended or were never registered."""
        for app in list(self._open):
            try:
                found: dict[str, Any] = self._client.view("app", app=app)
            except CommandRejected:
                self._open.remove(app)
            except (NoMaster, RedisError, Refused):
                time.sleep(PAUSE_S)
            else:
                if found["state"] in {"finished", "failed", "killed", "expired"}:
                    self._open.remove(app)


def run_tenant(tenancy: Tenancy) -> None:
    """Be this client, until SIGTERM."""
    die_with_parent(tenancy.parent)
    tenant = Tenant(tenancy)
    signal.signal(signal.SIGTERM, tenant.stop)
    tenant.run()
