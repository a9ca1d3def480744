"""Beside a Spark driver: owns the app of its executors. Lines on stdin and stdout with the driver's JVM.

Words are separated by tabs and URL-encoded; `FairlogBackend.java` lists the lines. Only the end of stdin ends the
helper: signals of a terminal go to the whole group, and the driver decides what they mean.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote_plus, unquote_plus
from uuid import uuid4

from fairlog.engines.owner import LEASE_S, LOOPBACK, OwnedApp, own_folder, say, why_ended
from fairlog.engines.spark.conf import MASTER, executor_command, executor_secrets, executors_of, whole
from scheduler.model.commands import SubmitApp
from scheduler.model.errors import FairlogError, InvalidCommand
from scheduler.model.ids import executor_id, number_of
from scheduler.model.text import MAX_DETAIL, counted, one_line

if TYPE_CHECKING:
    from fairlog.engines.owner import Event

_SIGKILL = 137
_NOT_FOUND = 127
MAX_FAILURES = 10
"""So many executors in a row that end before they reach the driver, while none serves it, fail the app."""
GRACE_S = 60
"""How long executors have to hand their blocks over when they are told to stop."""
_PASSED_ON = ("PYSPARK_PYTHON", "PYTHONPATH", "SPARK_LOCAL_HOSTNAME")


class Helper:
    """One driver's helper."""

    def __init__(self) -> None:
        self._conf: dict[str, str] = {}
        self._variables: dict[str, str] = {}
        self._about: dict[str, str] = {}
        self._owned: OwnedApp | None = None
        self._demand = self._preferring = 0
        self._prefer: dict[str, int] = {}
        self._serving: set[str] = set()
        self._failed = 0
        self._lock, self._stating = threading.Lock(), threading.Lock()
        self._silent = False
        self._app = ""

    def run(self, lines: Iterator[str]) -> None:
        """Serve the driver until it stops or dies."""
        told = {"CONF": self._conf, "ENV": self._variables, "ABOUT": self._about}
        for line in lines:
            kind, *words = map(unquote_plus, line.rstrip("\n").split("\t"))
            match kind:
                case "CONF" | "ENV" | "ABOUT":
                    told[kind][words[0]] = words[1]
                case "START":
                    self._start(int(words[0]))
                case "TOTAL":
                    with self._stating:
                        self._demand, self._preferring = map(int, words[:2])
                        self._prefer = dict(zip(words[2::2], map(int, words[3::2]), strict=True))
                    self._state()
                case "KILL":
                    self._state([executor_id(self._app, int(number)) for number in words])
                case "ADDED":
                    self._failed = 0
                    self._serving.add(words[0])
                case "STOP":
                    if self._owned is not None:
                        self._owned.finish()
                    return
                case _:
                    pass
        if self._owned is not None:
            self._owned.finish("failed", "its Spark driver died")

    def _start(self, initial: int) -> None:
        """Submit the app of the driver's executors."""
        try:
            company, _, user = self._about["master"].removeprefix(MASTER).partition("/")
            if not company or not user:
                raise InvalidCommand(f"the master is written {MASTER}COMPANY/USER, not {self._about['master'][:80]!r}")
            self._app, asked = f"app-{uuid4().hex[:12]}", executors_of(self._conf, initial)
            self._demand = asked.number
            home = self._about["home"]
            variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            variables |= {**self._variables, "SPARK_HOME": home}
            if self._conf.get("spark.driver.host") == LOOPBACK:
                variables.setdefault("SPARK_LOCAL_HOSTNAME", LOOPBACK)
            variables |= executor_secrets(self._conf)
            command = executor_command(
                self._conf,
                java=self._about["java"],
                home=home,
                driver=self._about["driver"],
                app=self._app,
                heap_mb=asked.heap_mb,
                options=self._conf.get("spark.fairlog.executorOptions", "").split(),
            )
            submission = SubmitApp(
                app=self._app,
                company=company,
                user=user,
                name=self._about["name"],
                executor_program=True,
                executor_cores=asked.cores,
                executor_memory_mb=asked.memory_mb,
                executor_resources=asked.resources,
                executor_limit=asked.number,
                owner_timeout_s=whole(self._conf, "spark.fairlog.ownerTimeout", LEASE_S),
                grace_s=whole(self._conf, "spark.fairlog.grace", GRACE_S, least=0),
                command=command,
                env=tuple(sorted(variables)),
                cwd=own_folder(),
            )
            self._owned = OwnedApp(submission, variables, hear=self._hear)
        except FairlogError as error:
            self._tell("REFUSED", str(error))
            return
        if address := self._about.get("ui"):
            self._owned.publish("link.spark", address)
        self._tell("READY", self._app, str(asked.number))
        say(f"the executors of {self._about['name']} are those of app {self._app}")

    def _state(self, stop: Sequence[str] = ()) -> None:
        """State the demand that the driver stated last, and the executors to stop."""
        if self._owned is not None:
            with self._stating:
                self._owned.scale(self._demand, stop, prefer=self._prefer, preferring_tasks=self._preferring)

    def _hear(self, event: Event) -> None:
        """Tell the driver who leaves and who is lost, once each."""
        data = event["data"]
        match event["type"]:
            case "ExecutorRevoked" if data["reason"] == "reclaimed":
                self._tell("LEAVES", str(number_of(data["executor"])), f"fairlog: it leaves {before_what(data)}")
            case "ExecutorRemoved":
                code, detail = data["exit_code"], data["detail"]
                by_app = data["reason"] == "failed" and (detail.startswith("used") or code not in (_SIGKILL, None))
                if data["reason"] == "failed" and code == _NOT_FOUND:
                    detail = (
                        f"worker {data['worker']} has no {self._about['java']}/bin/java, which the driver runs with"
                    )
                said = f"{data['reason']}{', ' * bool(detail)}{detail}"
                number = str(number_of(data["executor"]))
                self._tell("LOST", number, str(code or 0), str(by_app).lower(), f"fairlog: {said}")
                self._gone(number, data["reason"], said)
            case "AppRemoved":
                detail = why_ended(event)
                self._tell("OVER", f"app {data['app']} is {data['reason']}{': ' * bool(detail)}{detail}")
            case _:
                pass

    def _gone(self, number: str, reason: str, said: str) -> None:
        """Fail the app if its executors cannot start; state the demand again, which a good end has lowered (G2)."""
        self._failed += reason == "failed" and number not in self._serving
        if reason == "exited":
            self._state()
        if self._owned is None or reason != "failed" or self._failed < MAX_FAILURES:
            return
        if self._serving.isdisjoint(str(number_of(executor)) for executor in self._owned.executors):
            why = one_line(
                f"{counted(self._failed, 'executor')} ended before they reached the driver; the last one: {said}",
                MAX_DETAIL,
            )
            self._owned.finish("failed", why)
            self._tell("OVER", f"app {self._app} is failed: {why}")

    def _tell(self, *words: str) -> None:
        with self._lock:
            if not self._silent:
                sys.stdout.write("\t".join(map(quote_plus, words)) + "\n")
                sys.stdout.flush()

    def be_silent(self) -> None:
        """Say nothing more: Python aborts if a thread writes while the process ends."""
        with self._lock:
            self._silent = True


def before_what(told: Event) -> str:
    """For what an executor leaves that was told so: another app, or a window (semantics H7, W14)."""
    return (
        f"before the window {told['window']}"
        if told.get("window")
        else f"for {told['claimant']} of {told['claimant_company']}"
    )


def main() -> None:
    """Serve the driver that started this process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    helper = Helper()
    try:
        helper.run(iter(sys.stdin))
    finally:
        helper.be_silent()


if __name__ == "__main__":
    main()
