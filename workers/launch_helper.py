"""`fairlog-launch`: starts tasks as Unix accounts of the operator's choice, for agents that have no privileges.

It runs as root and serves three verbs on a socket, `start`, `kill` and `list`, to the users that it was told to serve.
A connection that has started a cell stands for it: when it closes, the cell ends with everything in it. Which account a
company or user has, and what cells may be shown, is in the operator's map and in no request.

It goes by names only for what the operator has named, before it serves anybody. What requests name is opened with the
rights of who asks; what tasks have filled is deleted with those of their account.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import secrets
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from scheduler.model.grants import Grant
from scheduler.service.locks import locked
from scheduler.service.notify import READY, notify
from workers.cell import last_line
from workers.cgroups import ExecutorGroup, delegate, make_leaf
from workers.descriptors import FILE_NOFOLLOW, FOLDER_NOFOLLOW, empty, is_mount_point, make_folder
from workers.machine import helper_socket
from workers.networks import Network, NetworkPlace, network_of
from workers.processes import is_same_process, kill_until_gone, leave_keyring, started_s
from workers.sandbox import CellSettings, ForOthers, Identity, NoCell, python_inside, sandbox_command

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

    Example: `[companies]`, then `acme = 10001`; `[users]`, then `"acme/ann" = 10017`; `[cells]`, then
    `share = ["/data", "/scratch:rw"]`.
    """

    def __init__(self, path: Path) -> None:
        read = tomllib.loads(path.read_text())
        unknown = set(read) - {"companies", "users", "cells"}
        if unknown:
            raise ValueError(f"{path} has a table {min(unknown)!r}; the tables are companies, users and cells")
        self.share = _share_of(path, read.get("cells", {}))
        """The real paths at or below which cells may be shown something -> whether they may write it."""
        self._uids: dict[str, int] = {**read.get("companies", {}), **read.get("users", {})}
        for name, uid in self._uids.items():
            if not isinstance(uid, int) or isinstance(uid, bool) or uid < SMALLEST_UID:
                raise ValueError(f"{path} gives {name!r} the uid {uid!r}; it must be a number from {SMALLEST_UID} on")

    def uid(self, company: str, user: str) -> int | None:
        """The account of a user's tasks; None if neither the user nor the company has one."""
        return self._uids.get(f"{company}/{user}", self._uids.get(company))


def _share_of(path: Path, cells: Mapping[str, Any]) -> dict[Path, bool]:
    unknown = set(cells) - {"share"}
    if unknown:
        raise ValueError(f"[cells] of {path} has {min(unknown)!r}; it has share alone")
    listed = cells.get("share", [])
    if not isinstance(listed, list) or not all(isinstance(entry, str) and entry.startswith("/") for entry in listed):
        raise ValueError(
            f'share of [cells] in {path} must be a list of absolute paths, such as ["/data", "/scratch:rw"]'
        )
    share: dict[Path, bool] = {}
    for entry in listed:
        real = Path(entry.removesuffix(":rw")).resolve()
        share[real] = share.get(real, False) or entry.endswith(":rw")
    return share


def identity(uid: int) -> Identity:
    """An account's uid, gid and further groups; without an entry in the system's list, its gid is its uid."""
    try:
        known = pwd.getpwuid(uid)
    except KeyError:
        return Identity(uid, uid, ())
    groups = os.getgrouplist(known.pw_name, known.pw_gid)
    return Identity(uid, known.pw_gid, tuple(group for group in groups if group))


class LaunchServer:
    """Serves each connection in a process of its own; `state` holds the cells that run and their folders."""

    def __init__(self, accounts: AccountMap, allowed: Sequence[int], state: Path = _STATE) -> None:
        self._accounts = accounts
        self._allowed = set(allowed)
        self._state = state
        for folder in (state, state / "cells", state / "scratch"):
            folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        own, self._cells_folder, self._scratch_folder = (
            os.open(folder, FOLDER_NOFOLLOW) for folder in (state, state / "cells", state / "scratch")
        )
        for descriptor in (own, self._cells_folder, self._scratch_folder):
            os.fchmod(descriptor, 0o711)
        os.close(own)

    def serve(self, path: Path) -> None:
        """Serve at the socket until this process is ended."""
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            was = os.umask(0o111)  # who may ask is checked by their credentials
            listening.bind(str(path))
            os.umask(was)
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
                self._carry_out(line, asked, descriptors, uid)
            except (NoCell, OSError, ValueError) as error:
                _answer(line, {"error": str(error)})
        finally:
            os._exit(0)

    def _carry_out(self, line: socket.socket, request: Mapping[str, Any], descriptors: list[int], peer: int) -> None:
        verb = request.get("verb")
        if verb == "list":
            _answer(line, {"cells": sorted(self._cells(peer))})
        elif verb == "kill":
            handler = self._cells(peer).get(str(request.get("executor")))
            if handler is not None:
                os.kill(handler, signal.SIGTERM)
            _answer(line, {"killed": handler is not None})
        elif verb == "start":
            asked = {name: value for name, value in request.items() if name != "verb"}
            start = Start.model_validate(asked)
            kinds = [stat.S_IFMT(os.fstat(descriptor).st_mode) for descriptor in descriptors]
            if kinds != [stat.S_IFSOCK, stat.S_IFDIR] or os.fstat(descriptors[1]).st_uid != peer:
                raise NoCell("with a request to start come a socket and a folder of who asks")
            self._start(line, start, peer, *descriptors)
        else:
            raise NoCell("the verbs are start, kill and list")

    def _cells(self, peer: int) -> dict[str, int]:
        """The cells of the user that run: executor -> the process that keeps its connection."""
        return {about["executor"]: about["pid"] for _, about in self._records() if about.get("peer") == peer}

    def sizes(self) -> Iterator[tuple[Path, int, int]]:
        """The record, the memory in MiB and the cores of each cell that runs."""
        for file, about in self._records():
            yield file, about["memory_mb"], about["cores"]

    def _records(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        for name in os.listdir(self._cells_folder):  # noqa: PTH208 - a descriptor
            with suppress(OSError, ValueError, KeyError):
                with os.fdopen(os.open(name, FILE_NOFOLLOW, dir_fd=self._cells_folder)) as file:
                    about = json.load(file)
                if is_same_process(about["pid"], about["started_s"]):
                    yield self._record(name), about

    def _write(self, record: str, about: Mapping[str, Any]) -> None:
        """Replace the record of a cell."""
        draft = f".{record}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(os.open(draft, flags | FILE_NOFOLLOW, 0o600, dir_fd=self._cells_folder), "w") as file:
            json.dump(about, file)
        os.replace(draft, record, src_dir_fd=self._cells_folder, dst_dir_fd=self._cells_folder)

    def _networks(self, grant: Grant, peer: int) -> Iterator[NetworkPlace]:
        """Where the network of the app is found: at the processes of ours that keep cells of it for the same user."""
        for _, about in self._records():
            if (about.get("app"), about.get("peer")) == (grant.app, peer) and "network" in about:
                yield NetworkPlace(about["pid"], about["started_s"], f"fd/{about['network']}")

    def _record(self, name: str) -> Path:
        """What a cell's control group is called after."""
        return self._state / "cells" / name

    def _start(self, line: socket.socket, asked: Start, peer: int, theirs: int, told: int) -> None:
        """Start a cell, keep it while the connection is open, then end it and delete its folders."""
        grant = asked.grant
        uid = self._accounts.uid(grant.company, grant.user)
        if uid is None:
            raise NoCell(f"neither user {grant.company}/{grant.user} nor company {grant.company} has an account here")
        who = identity(uid)
        leave_keyring()
        signal.signal(signal.SIGTERM, lambda *_: line.shutdown(socket.SHUT_RDWR))
        with ExitStack() as undo:
            record = str(os.getpid())
            undo.callback(suppressed, os.unlink, record, dir_fd=self._cells_folder)
            about = {"executor": grant.executor, "pid": os.getpid(), "started_s": started_s(os.getpid())}
            about |= {"memory_mb": grant.memory_mb, "cores": grant.cores, "app": grant.app, "peer": peer}
            self._write(record, about)
            name = secrets.token_hex(8)
            scratch = make_folder(name, self._scratch_folder)
            undo.callback(os.close, scratch)
            undo.callback(suppressed, os.rmdir, name, dir_fd=self._scratch_folder)
            for each in ("scratch", "tmp"):
                inner = make_folder(each, scratch)
                os.fchown(inner, who.uid, who.gid)
                undo.callback(suppressed, os.rmdir, each, dir_fd=scratch)
                undo.callback(empty_as, who, inner)
            leaf = make_leaf(self._record(record), grant.memory_mb, grant.cores)
            if leaf is not None:
                undo.callback(leaf.end)
            network = None
            if grant.network == "app":
                with locked(self._state / "networks.lock"):
                    network = undo.enter_context(network_of(self._networks(grant, peer)))
                    self._write(record, about | {"network": network.network})
            said = undo.enter_context(tempfile.TemporaryFile())
            reader, writer = os.pipe2(os.O_CLOEXEC)
            command, folders = sandbox_command(
                grant,
                asked.settings,
                scratch=scratch,
                told=told,
                group=None if leaf is None else leaf.path,
                info=writer,
                others=ForOthers(who, identity(peer), self._accounts.share),
            )
            bwrap = subprocess.Popen(  # noqa: S603 - bubblewrap and our own program
                [*command, *python_inside(grant, theirs, who)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd="/",
                env={},
                pass_fds=[theirs, told, writer, *folders],
                preexec_fn=partial(_enter, leaf, network),  # noqa: PLW1509 - this process has one thread
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


def suppressed(call: Callable[..., object], *arguments: object, **named: object) -> None:
    """Make a call to the system whose failure changes nothing."""
    with suppress(OSError):
        call(*arguments, **named)


def empty_as(who: Identity, folder: int) -> None:
    """Delete what is in the folder with the rights of this user alone, and close it; what it cannot delete stays.

    But for the places at which its cell has mounted something: they are root's.
    """
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(who.groups)
            os.setresgid(who.gid, who.gid, who.gid)
            os.setresuid(who.uid, who.uid, who.uid)
            empty(folder)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    empty(folder, if_=is_mount_point)
    os.close(folder)


def _enter(leaf: ExecutorGroup | None, network: Network | None) -> None:
    """What a cell's process does first."""
    if leaf is not None:
        leaf.enter()
    if network is not None:
        network.enter()


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
        server = LaunchServer(AccountMap(given.map), allowed, given.state)
    except KeyError as error:
        sys.exit(f"fairlog-launch: no user {error}; name one of this machine with --allow")
    except (OSError, ValueError) as error:
        sys.exit(f"fairlog-launch: the map of accounts cannot be read: {error}")
    delegate(server.sizes())
    server.serve(given.socket)


if __name__ == "__main__":
    main()
