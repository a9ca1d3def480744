"""`fairlog-launch`: starts tasks as Unix accounts of the operator's choice, for agents that have no privileges.

It runs as root and serves three verbs on a socket, `start`, `kill` and `list`, to the users that it was told to serve.
A connection that has started a cell stands for it: when it closes, the cell ends with everything in it. Which account a
company or user has is in the operator's map and in no request.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from scheduler.model.grants import Grant
from scheduler.service.notify import READY, notify
from scheduler.service.private import write_private
from workers.cell import last_line
from workers.cgroups import delegate, make_leaf
from workers.machine import helper_socket
from workers.processes import is_same_process, kill_until_gone, started_s
from workers.rundir import remove_tree
from workers.sandbox import CellSettings, NoCell, python_inside, sandbox_command

SMALLEST_UID = 10_000
_STATE = Path("/var/lib/fairlog-launch")
_REQUEST_BYTES = 1 << 18


class Start(BaseModel):
    """A request to start a cell. With it come the socket of its first process and the folder with what it is told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    grant: Grant
    settings: CellSettings = CellSettings()


class AccountMap:
    """The operator's map from companies and users to accounts, a TOML file. Raises: ValueError, OSError.

    Example: `[companies]`, then `acme = 10001`; `[users]`, then `"acme/ann" = 10017`.
    """

    def __init__(self, path: Path) -> None:
        read = tomllib.loads(path.read_text())
        unknown = set(read) - {"companies", "users"}
        if unknown:
            raise ValueError(f"{path} has a table {min(unknown)!r}; the tables are companies and users")
        self._uids: dict[str, int] = {**read.get("companies", {}), **read.get("users", {})}
        for name, uid in self._uids.items():
            if not isinstance(uid, int) or isinstance(uid, bool) or uid < SMALLEST_UID:
                raise ValueError(f"{path} gives {name!r} the uid {uid!r}; it must be a number from {SMALLEST_UID} on")

    def uid(self, company: str, user: str) -> int | None:
        """The account of a user's tasks; None if neither the user nor the company has one."""
        return self._uids.get(f"{company}/{user}", self._uids.get(company))


def identity(uid: int) -> tuple[int, int, list[int]]:
    """Uid, gid and further groups of an account; without an entry in the system's list, its gid is its uid."""
    try:
        known = pwd.getpwuid(uid)
    except KeyError:
        return uid, uid, []
    return uid, known.pw_gid, [group for group in os.getgrouplist(known.pw_name, known.pw_gid) if group]


class Server:
    """Serves each connection in a process of its own; `state` holds the cells that run and their folders."""

    def __init__(self, accounts: AccountMap, allowed: Sequence[int], state: Path = _STATE) -> None:
        self._accounts = accounts
        self._allowed = set(allowed)
        self._state = state
        for folder in (state, state / "cells", state / "scratch"):
            folder.mkdir(mode=0o711, parents=True, exist_ok=True)
            folder.chmod(0o711)

    def serve(self, path: Path) -> None:
        """Serve at the socket until this process is ended."""
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(path))
            path.chmod(0o666)  # who may ask is checked by their credentials
            listening.listen(64)
            notify(READY)
            while True:
                line, _ = listening.accept()
                with line:
                    if os.fork() == 0:
                        listening.close()
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        self._serve_one(line)

    def _serve_one(self, line: socket.socket) -> None:
        """Answer one peer. Never returns."""
        try:
            credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            _, uid, _ = struct.unpack("3i", credentials)
            try:
                if uid not in self._allowed:
                    raise NoCell(f"user {uid} is not served by fairlog-launch")  # noqa: TRY301 - answered below
                request, descriptors, _, _ = socket.recv_fds(line, _REQUEST_BYTES, 2)
                asked = json.loads(request)
                if not isinstance(asked, dict):
                    raise NoCell("a request must be an object")  # noqa: TRY301 - likewise
                self._carry_out(line, asked, descriptors)
            except (NoCell, OSError, ValueError) as error:
                _answer(line, {"error": str(error)})
        finally:
            os._exit(0)

    def _carry_out(self, line: socket.socket, request: Mapping[str, Any], descriptors: list[int]) -> None:
        verb = request.get("verb")
        if verb == "list":
            _answer(line, {"cells": sorted(self._cells())})
        elif verb == "kill":
            handler = self._cells().get(str(request.get("executor")))
            if handler is not None:
                os.kill(handler, signal.SIGTERM)
            _answer(line, {"killed": handler is not None})
        elif verb == "start":
            asked = {name: value for name, value in request.items() if name != "verb"}
            start = Start.model_validate(asked)
            if len(descriptors) != 2:
                raise NoCell("with a request to start come a socket and a folder")
            self._start(line, start, *descriptors)
        else:
            raise NoCell("the verbs are start, kill and list")

    def _cells(self) -> dict[str, int]:
        """The cells that run: executor -> the process that keeps its connection."""
        return {about["executor"]: about["pid"] for _, about in self._records()}

    def sizes(self) -> Iterator[tuple[Path, int, int]]:
        """The record, the memory in MiB and the cores of each cell that runs."""
        for file, about in self._records():
            yield file, about["memory_mb"], about["cores"]

    def _records(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        for file in (self._state / "cells").iterdir():
            with suppress(OSError, ValueError, KeyError):
                about = json.loads(file.read_text())
                if is_same_process(about["pid"], about["started_s"]):
                    yield file, about

    def _start(self, line: socket.socket, asked: Start, theirs: int, told: int) -> None:
        """Start a cell, keep it while the connection is open, then end it and delete its folders."""
        grant = asked.grant
        uid = self._accounts.uid(grant.company, grant.user)
        if uid is None:
            raise NoCell(f"neither user {grant.company}/{grant.user} nor company {grant.company} has an account here")
        who = identity(uid)
        signal.signal(signal.SIGTERM, lambda *_: line.shutdown(socket.SHUT_RDWR))
        with ExitStack() as undo:
            record = self._state / "cells" / str(os.getpid())
            undo.callback(record.unlink, missing_ok=True)
            about = {"executor": grant.executor, "pid": os.getpid(), "started_s": started_s(os.getpid())}
            about |= {"memory_mb": grant.memory_mb, "cores": grant.cores}
            write_private(record, json.dumps(about))
            scratch = Path(tempfile.mkdtemp(dir=self._state / "scratch"))
            undo.callback(remove_tree, scratch)
            for folder in (scratch / "scratch", scratch / "tmp"):
                folder.mkdir(mode=0o700)
                os.chown(folder, *who[:2])
            leaf = make_leaf(record, grant.memory_mb, grant.cores)
            if leaf is not None:
                undo.callback(leaf.end)
            said = undo.enter_context(tempfile.TemporaryFile())
            reader, writer = os.pipe2(os.O_CLOEXEC)
            command, folders = sandbox_command(
                grant,
                asked.settings,
                scratch=scratch,
                told=Path(f"/proc/self/fd/{told}"),
                group=None if leaf is None else leaf.path,
                info=writer,
                become=who,
            )
            bwrap = subprocess.Popen(  # noqa: S603 - bubblewrap and our own program
                [*command, *python_inside(theirs, who)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd="/",
                env={},
                pass_fds=[theirs, told, writer, *folders],
                preexec_fn=None if leaf is None else leaf.enter,  # noqa: PLW1509 - this process has one thread
            )
            undo.callback(bwrap.wait)
            undo.callback(bwrap.kill)
            for descriptor in (theirs, told, writer, *folders):
                os.close(descriptor)
            pid = _child_pid(reader)
            if not pid:
                bwrap.wait()
                said.seek(0)
                raise NoCell(f"no cell can be started: {last_line(said.read(1000))}")
            since_s = started_s(pid) or 0.0
            undo.callback(kill_until_gone, lambda: [pid] if is_same_process(pid, since_s) else [])
            _answer(line, {"pid": pid, "group": str(leaf.path) if leaf else ""})
            _wait_for_end(line, bwrap)
            _answer(line, {"out_of_memory": leaf is not None and leaf.has_killed()})


def _child_pid(info: int) -> int:
    said = b""
    while not said.rstrip().endswith(b"}"):
        more = os.read(info, 4096)
        if not more:
            return 0
        said += more
    return int(json.loads(said)["child-pid"])


def _wait_for_end(line: socket.socket, bwrap: subprocess.Popen[bytes]) -> None:
    """Return when the peer closes its connection, or the cell has ended."""
    ended = os.pidfd_open(bwrap.pid)
    waiting = select.poll()
    waiting.register(line, select.POLLIN)
    waiting.register(ended, select.POLLIN)
    waiting.poll()
    os.close(ended)


def _answer(line: socket.socket, answer: Mapping[str, Any]) -> None:
    with suppress(OSError):
        line.send(json.dumps(answer).encode())


def options() -> argparse.ArgumentParser:
    """What can stand on its command line."""
    reading = argparse.ArgumentParser(prog="fairlog-launch", description="Start tasks as Unix accounts, for agents.")
    reading.add_argument("--map", type=Path, required=True, help="TOML file: accounts of companies and users")
    reading.add_argument("--allow", action="append", required=True, help="user whose agents are served; repeatable")
    reading.add_argument("--socket", type=Path, default=helper_socket(), help="socket to listen at")
    reading.add_argument("--state", type=Path, default=_STATE, help=f"folder for its files (default: {_STATE})")
    return reading


def main() -> None:
    """Run the helper."""
    given = options().parse_args()
    if os.geteuid():
        sys.exit("fairlog-launch: it must run as root, to start tasks as other users; run it as a service")
    try:
        allowed = [int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid for name in given.allow]
        server = Server(AccountMap(given.map), allowed, given.state)
    except KeyError as error:
        sys.exit(f"fairlog-launch: no user {error}; name one of this machine with --allow")
    except (OSError, ValueError) as error:
        sys.exit(f"fairlog-launch: the map of accounts cannot be read: {error}")
    delegate(server.sizes())
    server.serve(given.socket)


if __name__ == "__main__":
    main()
