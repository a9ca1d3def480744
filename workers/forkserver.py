"""A small process that starts a worker's executors and sees to it that nothing of a dead one stays behind.

It has every module loaded and holds no connection and no thread, so an executor is one fork away. As the
reaper of all orphans below it, it finds what an executor that was killed had started, wherever that
went. When its agent dies it ends the executors, or stays for them where they are to outlive the agent.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress

from scheduler.service.child import run_module
from scheduler.service.program_log import log_to_stderr
from workers.executor import ExecutorSpec, follow_parent
from workers.launchers import LAUNCHERS
from workers.memory import remove_cgroups
from workers.processes import become_subreaper, children, descendants, in_session, kill_until_gone
from workers.rundir import ExitNote, RunDir

_REPLY_S = 10
_MEANWHILE_S = 0.5


class ForkserverLost(Exception):
    """The forkserver does not answer; the agent starts another one."""


class Forkserver:
    """The agent's end: asks for executors. Started lazily, and again if it died."""

    def __init__(self, files: RunDir, *, outlive_agent: bool) -> None:
        self._files = files
        self._outlive_agent = outlive_agent
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    def start(self) -> None:
        """Have the process loading, if there is none."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_MEANWHILE_S)
        with theirs, self._files.program_log().open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*run_module("workers.forkserver"), str(theirs.fileno()), str(int(self._outlive_agent))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._line = ours

    def launch(self, spec: ExecutorSpec, *, meanwhile: Callable[[], object] = lambda: None) -> int | None:
        """The process id of the new executor; None if one of that id holds its lock already.

        A forkserver that still loads is waited for; `meanwhile` is called now and then.

        Raises: ForkserverLost if it has to be started again first.
        """
        self.start()
        try:
            if self._line is None:
                raise ForkserverLost
            self._line.sendall(spec.model_dump_json().encode())
            reply = self._reply(self._line, meanwhile)
        except OSError as error:
            self.close()
            raise ForkserverLost from error
        if not reply:
            self.close()
            raise ForkserverLost
        return int(reply) or None

    def _reply(self, line: socket.socket, meanwhile: Callable[[], object]) -> bytes:
        deadline_s = time.monotonic() + _REPLY_S
        while True:
            try:
                return line.recv(256)
            except TimeoutError:
                if time.monotonic() > deadline_s:
                    raise
                meanwhile()

    def close(self) -> None:
        """Let go of it: it ends its executors, or stays until they have ended."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            if not self._outlive_agent:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_REPLY_S)
            if self._process.poll() is None:
                self._process.returncode = 0  # left running on purpose: no warning that nobody waits for it
            self._process = None


class _Server:
    """The forkserver's own end."""

    def __init__(self, line: socket.socket, *, outlive_agent: bool) -> None:
        self._line: socket.socket | None = line
        self._outlive_agent = outlive_agent
        self._specs: dict[int, ExecutorSpec] = {}
        self._reader, self._writer = os.pipe()

    def work(self) -> None:
        """Start what is asked for and reap what ends, until the agent is gone and nothing is left."""
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while self._line is not None or self._specs:
            self._reap()
            if self._line is None and not self._specs:
                break
            waiting = [self._reader] if self._line is None else [self._reader, self._line.fileno()]
            ready = select.select(waiting, [], [])[0]
            if self._reader in ready:
                os.read(self._reader, 4096)
            if self._line is not None and self._line.fileno() in ready:
                self._listen(self._line)

    def _listen(self, line: socket.socket) -> None:
        request = _receive(line)
        if request:
            pid = self._launch(ExecutorSpec.model_validate_json(request))
            with suppress(OSError):
                line.sendall(str(pid).encode())
            return
        line.close()
        self._line = None
        if not self._outlive_agent:
            for pid in list(self._specs):
                kill_until_gone(lambda session=pid: _alive_in(session))  # type: ignore[misc]

    def _launch(self, spec: ExecutorSpec) -> int:
        files = RunDir(spec.run_dir, spec.worker)
        lock = files.claim_executor(spec.grant.executor)
        if lock is None:
            return 0
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(spec, lock, parent)
        os.close(lock)
        self._specs[pid] = spec
        return pid

    def _become(self, spec: ExecutorSpec, lock: int, parent: int) -> None:
        """Be an executor and nothing else. Never returns."""
        code = -1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.close(self._reader)
            os.close(self._writer)
            if self._line is not None:
                self._line.close()
            os.setsid()
            follow_parent(spec, parent)
            code = LAUNCHERS[spec.launcher](spec, lock)
        finally:
            if code < 0:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code if code >= 0 else 1)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            spec = self._specs.pop(pid, None)
            if spec is not None:
                self._bury(pid, spec, os.waitstatus_to_exitcode(status))

    def _bury(self, pid: int, spec: ExecutorSpec, returned: int) -> None:
        """Kill what the executor left behind; if it left no note either, write one."""
        files, executor = RunDir(spec.run_dir, spec.worker), spec.grant.executor
        orderly = files.read_exit(executor) is not None
        kill_until_gone(lambda: self._strays(None if orderly else pid))
        if not orderly:
            remove_cgroups(executor)
            reason = "failed" if self._line is not None or self._outlive_agent else "killed"
            exit_code = returned if returned >= 0 else 128 - returned
            files.write_exit(
                executor, ExitNote.model_validate({"app": spec.grant.app, "reason": reason, "exit_code": exit_code})
            )

    def _strays(self, session: int | None) -> Iterable[int]:
        orphans = [pid for pid in children(os.getpid()) if pid not in self._specs]
        found = [*orphans, *(pid for orphan in orphans for pid in descendants(orphan))]
        if session is not None:
            found += in_session(session)
        return found


def _alive_in(session: int) -> list[int]:
    return [*in_session(session), *descendants(session)]


def _receive(line: socket.socket) -> bytes:
    """One request, empty when the agent is gone."""
    try:
        return line.recv(1 << 20)
    except OSError:
        return b""


def main() -> None:
    """Be the forkserver of the agent that holds the other end of the socket named on the command line."""
    line = socket.socket(fileno=int(sys.argv[1]))
    log_to_stderr()
    become_subreaper()
    gc.freeze()
    _Server(line, outlive_agent=bool(int(sys.argv[2]))).work()


if __name__ == "__main__":
    main()
