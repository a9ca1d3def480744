"""A client on a host of its own: it sends a command every so often, whether those before are answered or not.

So the times of its answers show when the cluster takes commands, and not when the client has given up an earlier one.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from uuid import uuid4

from msgspec import json, to_builtins
from redis.exceptions import RedisError

from fairlog.errors import Refused
from scheduler.model.commands import Command, KillApp, ScaleApp, SubmitApp
from scheduler.model.errors import CommandRejected, NoMaster
from scheduler.service.child import die_with_parent
from tests.chaos.history import Line
from tests.chaos.tenant import ATTEMPTS, PAUSE_S, TASK, Tenancy, Tenant
from tests.hosts.pauses import Answer

BEAT_S = 0.4
"""The time between two commands."""
MOST_AT_ONCE = 100
RECENT = 4
"""How many of its last apps a client still kills and scales."""
RUNS = 0.5
"""The probability that a command submits an app."""


class Probe(Tenant):
    """The client of `tenancy`; each answer of a master is a line of `answers`."""

    def __init__(self, tenancy: Tenancy, answers: Path) -> None:
        super().__init__(tenancy)
        self._answers = os.open(answers, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._places = threading.Semaphore(MOST_AT_ONCE)

    def run(self) -> None:
        """Send commands until told to stop, and wait for the answers."""
        sending: list[threading.Thread] = []
        while not self._stopped:
            if self._places.acquire(blocking=False):
                command = self._command()
                thread = threading.Thread(target=self._send, args=(command, uuid4().hex), daemon=True)
                thread.start()
                sending = [*(each for each in sending if each.is_alive()), thread]
            time.sleep(BEAT_S)
        for thread in sending:
            thread.join()

    def _command(self) -> Command:
        recent = self._open[-RECENT:]
        if not recent or self._draw.random() < RUNS:
            return self._submission(company=self._tenancy.company, how=self._draw.choice(("ok", "ok", "fails")))
        app = self._draw.choice(recent)
        return KillApp(app=app) if self._draw.random() < 0.5 else ScaleApp(app=app, executors=1)

    def _submission(self, *, company: str, how: str) -> SubmitApp:
        self._apps += 1
        app = f"app-{self._tenancy.number}-{self._life}-{self._apps}"
        self._open.append(app)
        return SubmitApp(
            app=app,
            company=company,
            user=self._tenancy.users[0],
            name=how,
            command=("/bin/sh", TASK.name, how, f"{self._draw.uniform(0.1, 2):.2f}"),
            cwd=self._tenancy.traces,
            tasks=self._draw.choice((1, 1, 2)),
            memory_per_task_mb=128,
            cores=2,
        )

    def _send(self, command: Command, identity: str) -> None:
        """Send it, and repeat it under the same id while its outcome is unknown."""
        try:
            self._carry_out(command, identity)
        finally:
            self._places.release()

    def _carry_out(self, command: Command, identity: str) -> None:
        sent_s = time.monotonic()
        logged = f"{self._tenancy.company}/{self._tenancy.users[0]}:{identity}"  # as API servers tell masters
        for _ in range(ATTEMPTS):
            self._history.write(Line(logged, "invoke", to_builtins(command)))
            try:
                receipt = self._client.send(command, command_id=identity)
            except CommandRejected as refusal:
                line = Line(logged, "fail", error=f"{type(refusal).__name__}: {refusal}")
            except (NoMaster, RedisError, Refused) as error:
                self._history.write(Line(logged, "unknown", error=f"{type(error).__name__}: {error}"))
                time.sleep(PAUSE_S)
                continue
            else:
                line = Line(logged, "ok", seq=receipt.seq)
            self._history.write(line)
            answer = Answer(self._tenancy.number, sent_s, time.monotonic())
            os.write(self._answers, json.encode(answer) + b"\n")
            return


def run_probe(tenancy: Tenancy, answers: Path) -> None:
    """Be this client, until SIGTERM."""
    die_with_parent(tenancy.parent)
    probe = Probe(tenancy, answers)
    signal.signal(signal.SIGTERM, probe.stop)
    probe.run()
