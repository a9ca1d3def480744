"""The forkserver: a small process that forks a worker's executors and cleans up after those that died.

It is forked from its agent with all modules loaded, and holds no store connection and no thread, so an executor costs
one fork. As a subreaper it finds all processes that a killed executor had started. When its agent dies it ends the
executors, or, if they outlive the agent, continues until they have ended.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import structlog

from scheduler.service.child import Forked, die_with_parent
from scheduler.service.program_log import log_to_stderr
from workers.cgroups import end_leaf
from workers.executor import ExecutorSpec, run_executor
from workers.processes import Wakeup, become_subreaper, children, descendants, in_session, kill_until_gone, reaped
from workers.program import run_program
from workers.rundir import ExitNote, RunDir
from workers.sandbox import own_code

_Result = TypeVar("_Result")
_REPLY_S = 10
_MEANWHILE_S = 0.5
_log = structlog.get_logger()


class ForkserverLost(Exception):
    """The forkserver does not answer; the next `launch` starts another one."""


class Forkserver:
    """The agent's end. Requests and replies are lines."""

    def __init__(self, files: RunDir, *, outlive_agent: bool) -> None:
        self._files = files
        self._outlive_agent = outlive_agent
        self._process: Forked | None = None
        self._line: socket.socket | None = None

    def start(self) -> None:
        """Start the process unless it is running."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            program = partial(serve, theirs, outlive_agent=self._outlive_agent)
            self._process = Forked(program, log=self._files.program_log(), keep=theirs.fileno())
        self._line = ours

    def launch(self, spec: ExecutorSpec, *, meanwhile: Callable[[], object] = lambda: None) -> int | None:
        """Start an executor. Returns its process id, None if its spec cannot be read or it is running already.

        Calls `meanwhile` twice a second while it waits for a forkserver that is slow.

        Raises: OSError if the machine can start nothing; ForkserverLost if the forkserver does not answer.
        """
        return self._ask(spec.model_dump_json().encode(), meanwhile) or None

    def try_to_fork(self) -> str:
        """Why no process can be started, "" if one was, which ended at once."""
        try:
            self._ask(b"", lambda: None)
        except OSError as error:
            return f"nothing can be started: {error.strerror}"
        except ForkserverLost:
            return "its forkserver does not answer"
        return ""

    def _ask(self, request: bytes, meanwhile: Callable[[], object]) -> int:
        self.start()
        try:
            if self._line is None:
                raise ForkserverLost
            self._line.settimeout(_MEANWHILE_S)
            left = memoryview(request + b"\n")
            while left:
                left = left[_patiently(partial(self._line.send, left), meanwhile) :]
            reply = _patiently(partial(self._line.recv, 256), meanwhile)
        except OSError as error:
            self.close()
            raise ForkserverLost from error
        if not reply:
            self.close()
            raise ForkserverLost
        number = int(reply)
        if number < 0:
            raise OSError(-number, os.strerror(-number))
        return number

    def close(self) -> None:
        """Disconnect: the forkserver ends its executors, or waits until they have ended."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            if not self._outlive_agent:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_REPLY_S)
            self._process = None


def _patiently(attempt: Callable[[], _Result], meanwhile: Callable[[], object]) -> _Result:
    """The result of an attempt on the socket, again after each timeout. Raises: TimeoutError after some seconds."""
    deadline_s = time.monotonic() + _REPLY_S
    while True:
        try:
            return attempt()
        except TimeoutError:
            if time.monotonic() > deadline_s:
                raise
            meanwhile()


class _ForkServer:
    """The forkserver's end."""

    def __init__(self, line: socket.socket, *, outlive_agent: bool) -> None:
        self._line: socket.socket | None = line
        self._requests = line.makefile("rb")
        self._outlive_agent = outlive_agent
        self._specs: dict[int, ExecutorSpec] = {}
        self._wakeup = Wakeup()

    def work(self) -> None:
        """Start executors on request and reap them, until the agent and all executors are gone."""
        while True:
            self._reap()
            if self._line is not None:
                if self._wakeup.wait(None, self._line.fileno()):
                    self._answer(self._line)
            elif self._specs:
                self._wakeup.wait(None)
            else:
                return

    def _answer(self, line: socket.socket) -> None:
        try:
            request = self._requests.readline()  # the agent sends its next request after the reply
        except OSError:
            request = b""
        if request.endswith(b"\n"):
            pid = 0
            try:
                pid = self._try() if request == b"\n" else self._launch(ExecutorSpec.model_validate_json(request))
            except OSError as error:
                pid = -(error.errno or errno.EIO)
                _log.warning("could not start an executor", error=str(error))
            except ValueError:  # which shows what was to be read, secrets included
                _log.warning("could not read what executor to start")
            with suppress(OSError):
                line.sendall(b"%d" % pid)
            return
        self._disconnect()
        if not self._outlive_agent:
            for session in list(self._specs):
                kill_until_gone(lambda: [*in_session(session), *descendants(session)])  # noqa: B023 - called at once

    def _disconnect(self) -> None:
        if self._line is not None:
            self._requests.close()
            self._line.close()
            self._line = None

    def _launch(self, spec: ExecutorSpec) -> int:
        """The process id of the new executor; 0 if it is running already."""
        files = RunDir(spec.run_dir, spec.worker)
        lock = files.claim_executor(spec.grant.executor)
        if lock is None:
            return 0
        try:
            files.reserve_exit(spec.grant.executor)
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                self._become(spec, lock, parent)
            self._specs[pid] = spec
            return pid
        finally:
            os.close(lock)

    def _try(self) -> int:
        """The id of a process that ends at once. Raises: OSError."""
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        return pid

    def _become(self, spec: ExecutorSpec, lock: int, parent: int) -> None:
        """Turn the forked child into the executor. Never returns."""
        code = -1
        try:
            self._wakeup.close()
            self._disconnect()
            os.setsid()
            if not spec.outlive_agent:
                die_with_parent(parent)
            code = run(spec, lock)
        finally:
            if code < 0:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code if code >= 0 else 1)

    def _reap(self) -> None:
        for pid, status in reaped():
            spec = self._specs.pop(pid, None)
            if spec is not None:
                self._clean_up(pid, spec, os.waitstatus_to_exitcode(status))

    def _clean_up(self, pid: int, spec: ExecutorSpec, returned: int) -> None:
        """Kill the processes that the executor left behind, and write its exit note if it has none."""
        files, executor = RunDir(spec.run_dir, spec.worker), spec.grant.executor
        orderly = files.read_exit(executor) is not None
        if not orderly:
            end_leaf(files.lock_file(executor))
        kill_until_gone(lambda: self._strays(None if orderly else pid))
        if not orderly:
            files.remove_scratch(executor)
            reason = "failed" if self._line is not None or self._outlive_agent else "killed"
            exit_code = returned if returned >= 0 else 128 - returned
            note = ExitNote.model_validate({"app": spec.grant.app, "reason": reason, "exit_code": exit_code})
            try:
                files.write_exit(executor, note)
            except OSError as error:  # the agent finds out that nothing is said of it
                _log.warning("how an executor ended was not kept", executor=executor, error=str(error))

    def _strays(self, session: int | None) -> Iterable[int]:
        orphans = [pid for pid in children(os.getpid()) if pid not in self._specs]
        found = [*orphans, *(pid for orphan in orphans for pid in descendants(orphan))]
        return found if session is None else [*found, *in_session(session)]


def run(spec: ExecutorSpec, lock: int) -> int:
    """Run the executor or driver of a spec in this process, which holds its lock. Returns the exit code."""
    one = spec.grant.program or spec.grant.role == "driver"
    return run_program(spec, lock) if one else run_executor(spec, lock)


def serve(line: socket.socket, *, outlive_agent: bool) -> None:
    """Run the forkserver of the agent at the other end of `line`."""
    log_to_stderr()
    become_subreaper()
    own_code()  # is kept, and executors need it
    _ForkServer(line, outlive_agent=outlive_agent).work()
