"""A command of the operator's that runs beside the agent, in a session of its own; nobody waits for it."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from workers.processes import in_session, send_signal

_GONE_S = 1
"""How long to wait for the end of a command that was killed."""


class OperatorCommand:
    """One run of the command, from its start on; `errors`: its stderr is part of its output. Raises: OSError."""

    def __init__(
        self, command: Sequence[str], *, errors: bool = False, environment: Mapping[str, str] | None = None
    ) -> None:
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by who reads it
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the operator's own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError:
            self.output.close()
            raise

    def exit_code(self) -> int | None:
        """How it has ended; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill all of its session."""
        send_signal(in_session(self._process.pid), signal.SIGKILL)

    def close(self) -> None:
        """Kill what runs of it, and forget its output."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):  # it may hang in the kernel
            self._process.wait(_GONE_S)
        self.output.close()
