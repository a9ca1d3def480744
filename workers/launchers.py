"""Launchers: named ways to start the cell in which an executor's tasks run."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from scheduler.service.private import private_folder
from workers.cell import Cell, FirstProcess
from workers.cgroups import MOST_PROCESSES, Leaf, make_leaf
from workers.sandbox import INIT, SCRATCH_INSIDE, TOLD_INSIDE, NoCell, python_inside, sandbox_command
from workers.tasks import LOCK_VARIABLE, SCRATCH_VARIABLE, STOP_AT_VARIABLE

if TYPE_CHECKING:
    from workers.executor import ExecutorSpec
    from workers.rundir import RunDir

Launcher = Callable[["ExecutorSpec", "RunDir", Callable[[int], object]], Cell]
"""The cell of an executor's tasks, not started yet; the callable is told of each first process."""


def plain(spec: ExecutorSpec, files: RunDir, named: Callable[[int], object]) -> Cell:
    """No sandbox: tasks are processes of the agent's user, and reach what it reaches."""
    executor = spec.grant.executor
    scratch = files.scratch(executor)
    variables = {
        SCRATCH_VARIABLE: str(scratch),
        STOP_AT_VARIABLE: str(files.stop_at_file(executor)),
        LOCK_VARIABLE: str(files.lock_file(executor)),
    }

    def start() -> FirstProcess:
        private_folder(scratch)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            leaf = make_leaf(files.lock_file(executor), spec.grant.memory_mb, spec.grant.cores)
            process = _run([sys.executable, "-I", "-S", str(INIT), str(theirs.fileno())], [theirs.fileno()], leaf)
        return FirstProcess(process.pid, ours, process, leaf=leaf, limits=own_limits())

    return Cell(start, str(scratch), variables, named)


def cell(spec: ExecutorSpec, files: RunDir, named: Callable[[int], object]) -> Cell:
    """A sandbox of bubblewrap's: its tasks reach their app's folder, their scratch folder and the system, read-only."""
    executor = spec.grant.executor
    variables = {
        SCRATCH_VARIABLE: SCRATCH_INSIDE,
        STOP_AT_VARIABLE: f"{TOLD_INSIDE}/{files.stop_at_file(executor).name}",
        "HOME": SCRATCH_INSIDE,
        "TMPDIR": "/tmp",  # noqa: S108 - the cell's own
        "PATH": _path_inside(),
    }
    hidden = (*spec.cells.hidden, files.root, *_socket_folder(spec.store))
    settings = spec.cells.model_copy(update={"hidden": hidden})

    def start() -> FirstProcess:
        scratch = private_folder(files.scratch(executor))
        for name in ("scratch", "tmp"):
            private_folder(scratch / name)
        leaf = make_leaf(files.lock_file(executor), spec.grant.memory_mb, spec.grant.cores)
        shared_mb = spec.grant.memory_mb if leaf is not None and leaf.has_memory_limit() else None
        reader, writer = os.pipe2(os.O_CLOEXEC)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = [writer, theirs.fileno()]
        try:
            with tempfile.TemporaryFile() as said:
                told = private_folder(files.told(executor))
                sizes = {} if shared_mb is None else {"shared_memory_mb": shared_mb}
                command, opened = sandbox_command(
                    spec.grant, settings, scratch=scratch, told=told, info=writer, **sizes
                )
                kept += opened
                process = _run([*command, "--", *python_inside(theirs.fileno())], kept, leaf, said.fileno())
                os.close(kept.pop(0))
                pid = _child_of(reader, process, said)
        except BaseException:
            ours.close()
            raise
        finally:
            for descriptor in (reader, *kept):
                with suppress(OSError):
                    os.close(descriptor)
            theirs.detach()
        limits = (*own_limits(), (resource.RLIMIT_NPROC, MOST_PROCESSES, MOST_PROCESSES))
        return FirstProcess(pid, ours, process, encloses=True, leaf=leaf, limits=limits)

    return Cell(start, SCRATCH_INSIDE, variables, named)


LAUNCHERS: dict[str, Launcher] = {"cell": cell, "plain": plain}


def launch(spec: ExecutorSpec, files: RunDir, named: Callable[[int], object]) -> Cell:
    """The cell of an executor's tasks, by its launcher; starts when the first task does."""
    return LAUNCHERS[spec.launcher](spec, files, named)


_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)


def own_limits() -> tuple[tuple[int, int, int], ...]:
    """The limits that tasks have in place of their executor's: it needs more descriptors."""
    return ((resource.RLIMIT_NOFILE, *_FILES),)


def _run(
    command: Sequence[str], kept: Sequence[int], leaf: Leaf | None, errors: int | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own programs
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if errors is not None else None,
        stderr=errors,
        cwd="/",
        env={},
        pass_fds=kept,
        preexec_fn=None if leaf is None else leaf.enter,  # noqa: PLW1509 - this process has one thread
    )


def _child_of(info: int, bwrap: subprocess.Popen[bytes], errors: IO[bytes]) -> int:
    """The first process in a cell, as bubblewrap says. Raises: NoCell."""
    said = b""
    while not said.rstrip().endswith(b"}"):
        more = os.read(info, 4096)
        if not more:
            bwrap.wait()
            errors.seek(0)
            raise NoCell(f"no cell can be started: {errors.read(4096).decode(errors='replace').strip()}")
        said += more
    return int(json.loads(said)["child-pid"])


def _path_inside() -> str:
    """The search path of this process, with fairlog's Python at its end."""
    path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    return f"{path}:{Path(sys.executable).parent}"


def _socket_folder(url: str) -> list[Path]:
    parts = urlsplit(url)
    return [Path(parts.path).parent] if parts.scheme == "unix" else []
