"""Whether a worker can start anything: what keeps it from that is the worker's fault, and no app's (semantics W11)."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from workers.cgroups import can_make_groups
from workers.health import HealthVerdict, as_reason
from workers.machine import helper_socket
from workers.sandbox import probe_cell

if TYPE_CHECKING:
    from workers.rundir import RunDir

EVERY_S = 5.0
"""How often a worker looks at itself."""
_PROBE_S = 5.0
_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EAGAIN, errno.ENFILE)
"""Errors of which the machine is the cause, whatever was to be started."""


class Fitness:
    """What one worker knows of itself; `try_to_fork` says why no process can be made, "" if one could."""

    def __init__(
        self, files: RunDir, launcher: str, clock: Callable[[], float], try_to_fork: Callable[[], str]
    ) -> None:
        self._files, self._launcher, self._clock = files, launcher, clock
        self._try_to_fork = try_to_fork
        self._grouped = can_make_groups()
        self._next_s = clock() + EVERY_S
        self.verdict = HealthVerdict(0, "")

    def look(self) -> HealthVerdict:
        """The present verdict; it looks now and then, and for as long as it is unwell by really starting something."""
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + EVERY_S
            why = self._why(really=bool(self.verdict.unwell))
            if why != self.verdict.unwell:
                self._say(why)
        return self.verdict

    def is_fit(self) -> bool:
        """Whether something can be started, as far as is seen at once."""
        if not self.verdict.unwell and (why := self._why()):
            self.met(why)
        return not self.verdict.unwell

    def met(self, why: str) -> None:
        """Something could not be started: a verdict of its own, until the worker has looked again."""
        self._next_s = self._clock() + EVERY_S
        self._say(as_reason(why))

    def failed(self, error: OSError) -> None:
        """Likewise, for an error of the worker's own."""
        self.met(f"nothing can be started: {error.strerror}")

    def _say(self, unwell: str) -> None:
        self.verdict = HealthVerdict(self.verdict.number + 1, unwell)

    def _why(self, *, really: bool = False) -> str:
        if self._grouped and not can_make_groups():
            return "no control group can be made any more for what it starts"
        why = why_unfit(self._files, self._launcher, really=really)
        return as_reason(why or (self._try_to_fork() if really else ""))


def why_unfit(files: RunDir, launcher: str, *, really: bool = True) -> str:
    """Why nothing can be started on the worker, whatever it is; "" = something can, as far as is known.

    `really`: by starting a cell that shows nothing of an app.
    """
    if why := files.unwritable():
        return f"nothing can be written to its run folder: {why}"
    if launcher == "account":
        return _why_no_helper(helper_socket())
    if launcher == "cell" and shutil.which("bwrap") is None:
        return "bubblewrap is not installed any more"
    if launcher == "cell" and really and (why := probe_cell(_PROBE_S)):
        return f"no cell can be started: {why}"
    return ""


def fault_of_worker(error: Exception, files: RunDir, launcher: str) -> str:
    """Why the worker is at fault for the error that something could not be started with; "" = it is not.

    An error of the machine's own is enough. Behind others may be the app: then a cell without it is started.
    """
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        return f"nothing can be started: {os.strerror(error.errno)}"
    return why_unfit(files, launcher)


def _why_no_helper(path: Path) -> str:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(str(path))
    except OSError as error:
        return f"fairlog-launch does not answer: {error.strerror}"
    return ""
