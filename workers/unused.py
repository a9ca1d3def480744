"""Whether what an executor runs uses what it holds (semantics W13): CPU time of its processes, and its GPUs.

How much its GPUs are used is told by a command of the operator's (`worker --gpu-use`), which the agent runs and whose
answer executors find in a file.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import psutil
import structlog

from workers.operator_command import OperatorCommand

LEAST_USE = 0.01
"""What part of one core counts as no use."""
OFTEN = 10
"""How many times it is looked in the time after which an executor is unused."""
GPUS_EVERY_S = 15.0
_MOST_BYTES = 65_536
_LINE = re.compile(r"(\S+?),?\s+(\d{1,3}(?:\.\d+)?)\s*%?")
_log = structlog.get_logger()


class Unused:
    """Since when the processes of an executor use nothing of its cores, or nothing of its GPUs.

    `after_s`: for how long, until it is said; None = nobody asks. `gpus` tells how much of each GPU is used, in
    percent; None = nobody knows.
    """

    def __init__(
        self,
        after_s: float | None,
        gpus: Callable[[], Mapping[str, float] | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._after_s, self._gpus, self._clock = after_s, gpus, clock
        self._cores: tuple[float, int] | None = None
        """When its cores were used last (s), and how much CPU time (ms) it had used then."""
        self._gpus_since_s: float | None = None
        self._next_s = 0.0

    def begin(self) -> None:
        """A task has begun: it has not been without use yet."""
        self._cores = self._gpus_since_s = None
        self._next_s = 0.0

    def look(self, cpu_ms: Callable[[], int]) -> None:
        """Look, where it is due, at the CPU time used until now and at the GPUs."""
        now_s = self._clock()
        if self._after_s is None or now_s < self._next_s:
            return
        self._next_s = now_s + self._after_s / OFTEN
        used_ms = cpu_ms()
        if self._cores is None or abs(used_ms - self._cores[1]) >= LEAST_USE * (now_s - self._cores[0]) * 1000:
            self._cores = now_s, used_ms
        use = self._gpus()
        if not use or any(use.values()):
            self._gpus_since_s = None
        elif self._gpus_since_s is None:
            self._gpus_since_s = now_s

    @property
    def of(self) -> tuple[str, int] | None:
        """What was not used for long enough, `cores` or `GPUs`, and for how long (s); None = all is in use."""
        now_s = self._clock()
        for what, since_s in (("cores", self._cores and self._cores[0]), ("GPUs", self._gpus_since_s)):
            if self._after_s is not None and since_s is not None and now_s - since_s >= self._after_s:
                return what, int(now_s - since_s)
        return None


def cpu_ms_of(pids: Sequence[int]) -> int:
    """The CPU time that these processes have used, and those that they have waited for, in ms."""
    total_s = 0.0
    for pid in pids:
        with suppress(psutil.Error, OSError):
            times = psutil.Process(pid).cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return round(total_s * 1000)


class GpuUse:
    """Runs the operator's command again and again, and hands on what it says; it never waits for it.

    The command prints a line for each GPU: its address as it is offered, and how much of it is used, in percent.
    """

    def __init__(
        self,
        command: Sequence[str],
        say: Callable[[Mapping[str, float]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command, self._say, self._clock = command, say, clock
        self._next_s = clock()
        self._run: OperatorCommand | None = None
        self._troubled = False

    def look(self) -> None:
        """Start the command when that is due; take what it has said."""
        if self._run is None:
            if self._clock() >= self._next_s:
                self._start()
            return
        run = self._run
        if (code := run.exit_code()) is not None:
            self._run = None
            run.output.seek(0)
            self._take(code, run.output.read(_MOST_BYTES).decode(errors="replace"))
            run.output.close()
        elif self._clock() >= self._next_s:
            run.kill()

    @property
    def runs(self) -> bool:
        """Whether the command runs."""
        return self._run is not None

    def close(self) -> None:
        """Kill what runs of it."""
        if self._run is not None:
            self._run.close()

    def _start(self) -> None:
        self._next_s = self._clock() + GPUS_EVERY_S
        try:
            self._run = OperatorCommand(self._command)
        except OSError as error:
            self._trouble(f"it cannot be run: {error.strerror}")

    def _take(self, code: int, text: str) -> None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        found = [_LINE.fullmatch(line) for line in lines]
        wrong = next((line for line, match in zip(lines, found, strict=True) if match is None), None)
        if code:
            self._trouble(f"it ended with exit code {code}")
        elif wrong is not None:
            self._trouble(f"it printed {wrong[:60]!r}, which is not `ADDRESS PERCENT`")
        else:
            self._troubled = False
            self._say({match[1]: float(match[2]) for match in found if match is not None})

    def _trouble(self, why: str) -> None:
        if not self._troubled:
            _log.warning("what is used of GPUs is not known", command=shlex.join(self._command), reason=why)
        self._troubled = True
