"""The health check of a worker: the operator's own command, again and again beside the agent (semantics W11)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from typing import IO, NamedTuple

from workers.operator_command import OperatorCommand

_KEPT = 4096
"""How many bytes of the end of its output are looked at."""
_LONGEST = 128
"""The most characters of a reason (`scheduler.rules.checks.validate.check_name`)."""


class Check(NamedTuple):
    """A command that is started every `every_s` seconds, and fails if it takes longer than that."""

    command: tuple[str, ...]
    every_s: float


class HealthVerdict(NamedTuple):
    """What the check found when it ran for the `number`-th time: why the worker is unwell, "" = it is well."""

    number: int
    unwell: str


class _CheckRun(NamedTuple):
    command: OperatorCommand
    until_s: float


class HealthCheck:
    """The check of one worker. It never waits for the command; one that cannot be killed is not started again."""

    def __init__(self, check: Check, worker: str, clock: Callable[[], float]) -> None:
        self._check = check
        self._shown = f"`{_cut(shlex.join(check.command), _LONGEST // 2)}`"
        self._environment = {**os.environ, "FAIRLOG_WORKER": worker}
        self._clock = clock
        self._next_s = clock()
        self._number = 0
        self._run: _CheckRun | None = None
        self._verdict: HealthVerdict | None = None

    def look(self) -> HealthVerdict | None:
        """The last verdict, None = there is none yet; starts and ends the command when that is due."""
        run = self._run
        if run is None:
            if self._clock() >= self._next_s:
                self._start()
        elif (code := run.command.exit_code()) is not None:
            self._run = None
            if not self._is_judged():
                self._judge(code, run.command.output)
            run.command.output.close()
        elif self._clock() >= run.until_s:
            if not self._is_judged():
                self._say(f"{self._shown} did not end within {self._check.every_s:g} s")
            run.command.kill()
        return self._verdict

    def close(self) -> None:
        """Kill what runs of it."""
        if self._run is not None:
            self._run.command.close()

    def _start(self) -> None:
        self._number += 1
        self._next_s = self._clock() + self._check.every_s
        try:
            command = OperatorCommand(self._check.command, errors=True, environment=self._environment)
        except OSError as error:
            self._say(f"{self._shown} cannot be run: {error.strerror}")
        else:
            self._run = _CheckRun(command, self._next_s)

    def _is_judged(self) -> bool:
        """Whether the run that was started last has its verdict: it took too long."""
        return self._verdict is not None and self._verdict.number == self._number

    def _judge(self, code: int, output: IO[bytes]) -> None:
        if code == 0:
            self._verdict = HealthVerdict(self._number, "")
            return
        output.seek(max(0, output.seek(0, os.SEEK_END) - _KEPT))
        lines = output.read().decode(errors="replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "")
        self._say(last or f"{self._shown} ended with exit code {code}")

    def _say(self, why: str) -> None:
        self._verdict = HealthVerdict(self._number, as_reason(why) or f"{self._shown} has failed")


def as_reason(why: str) -> str:
    """Why a worker is unwell, on one line that can be printed, cut at its end."""
    return _cut(" ".join("".join(each if each.isprintable() else " " for each in why).split()), _LONGEST)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
