"""Launchers: named ways to start the cell in which an executor's tasks run."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from scheduler.service.child import Forked
from scheduler.service.locks import locked
from scheduler.service.private import private_folder
from workers import task_init
from workers.cell import Cell, FirstProcess, last_line
from workers.cgroups import MOST_PROCESSES, ExecutorGroup, make_leaf
from workers.descriptors import FOLDER_NOFOLLOW, remove_tree
from workers.machine import helper_socket
from workers.networks import Network, network_of
from workers.networks import NetworkPlace as At
from workers.processes import leave_keyring
from workers.sandbox import (
    SCRATCH_INSIDE,
    SHARED_MEMORY_MB,
    TOLD_INSIDE,
    CellSettings,
    NoCell,
    python_inside,
    sandbox_command,
)
from workers.tasks import LOCK_VARIABLE, SCRATCH_VARIABLE, STOP_AT_VARIABLE

if TYPE_CHECKING:
    from scheduler.model.grants import Grant
    from workers.rundir import RunDir

_FILES = (resource.RLIMIT_NOFILE, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""The limit that tasks have: their executor raises its own."""


_RELEASE_S = 5.0


class Place(NamedTuple):
    """Whose tasks run, where their executor's files are, and what cells show."""

    grant: Grant
    files: RunDir
    settings: CellSettings

    def make_leaf(self) -> ExecutorGroup | None:
        """The control group of the executor."""
        return make_leaf(self.files.lock_file(self.grant.executor), self.grant.memory_mb, self.grant.cores)

    @contextmanager
    def network(self) -> Iterator[Network | None]:
        """The network of the executor's app on this worker; None if it has none, or the machine's. Raises: NoCell.

        Until the end of the block, no other cell looks for it.
        """
        if self.grant.network != "app":
            yield None
            return
        others = (each for each in self.files.known() if each.executor != self.grant.executor)
        with locked(self.files.path / "networks.lock"):
            found_at = [At(each.first, each.first_s) for each in others if each.app == self.grant.app and each.first]
            with network_of(found_at) as found:
                yield found


Launcher = Callable[[Place, Callable[[int], object]], Cell]
"""The cell of an executor's tasks, not started yet; the callable is told of each first process."""


def plain(place: Place, named: Callable[[int], object]) -> Cell:
    """No sandbox: tasks are processes of the agent's user, and reach what it reaches."""
    executor, files = place.grant.executor, place.files
    scratch = files.scratch(executor)
    variables = {
        SCRATCH_VARIABLE: str(scratch),
        STOP_AT_VARIABLE: str(files.stop_at_file(executor)),
        LOCK_VARIABLE: str(files.lock_file(executor)),
    }

    def start() -> FirstProcess:
        if place.grant.network != "host":
            raise NoCell(
                f"tasks of this worker run without cells, so it cannot keep their network {place.grant.network!r}; "
                "start the worker with --launcher cell"
            )
        if place.grant.image:
            raise NoCell(
                f"tasks of this worker run without cells, so it cannot show them the image {place.grant.image!r}; "
                "start the worker with --launcher cell"
            )
        private_folder(scratch)
        leaf = place.make_leaf()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:

            def first() -> None:
                if leaf is not None:
                    leaf.enter()
                task_init.serve(theirs.fileno())

            process = Forked(first, keep=theirs.fileno(), cwd=Path("/"), own_session=False)
        return FirstProcess(process.pid, ours, process, leaf=leaf, group=leaf, limits=(_FILES,))

    return Cell(start, str(scratch), variables, named)


def cell(place: Place, named: Callable[[int], object]) -> Cell:
    """A sandbox of bubblewrap's: tasks reach the app's folder, their own, and the system's, which they cannot write."""
    executor, files = place.grant.executor, place.files

    def start() -> FirstProcess:
        leave_keyring()  # tasks inherit it, and may not leave it themselves
        scratch, told = private_folder(files.scratch(executor)), private_folder(files.told(executor))
        remove_tree(scratch / "tmp")  # which a cell before this one may have left such that ours would be led astray
        for name in ("scratch", "tmp"):
            private_folder(scratch / name)
        leaf = place.make_leaf()
        with ExitStack() as opened:
            network = opened.enter_context(place.network())
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.enter_context(theirs)
            on_failure = opened.enter_context(ExitStack())
            on_failure.enter_context(ours)
            said = on_failure.enter_context(tempfile.TemporaryFile())
            reader, writer = (opened.enter_context(os.fdopen(end, "rb", 0)) for end in os.pipe2(os.O_CLOEXEC))
            held, shown = (opened.enter_context(_folder(each)) for each in (scratch, told))
            command, folders = sandbox_command(
                place.grant,
                place.settings,
                scratch=held,
                told=shown,
                info=writer.fileno(),
                group=None if leaf is None else leaf.path,
                shared_memory_mb=place.grant.memory_mb if leaf and leaf.has_memory_limit() else SHARED_MEMORY_MB,
            )
            for folder in folders:
                opened.callback(os.close, folder)
            kept = [theirs.fileno(), writer.fileno(), shown, *folders]
            process = _run([*command, *python_inside(place.grant, theirs.fileno())], kept, leaf, network, said.fileno())
            writer.close()
            pid = first_process(reader.fileno(), process, said)
            named(pid)  # before another cell of the app looks for its network
            on_failure.pop_all()
        limits = (_FILES, (resource.RLIMIT_NPROC, MOST_PROCESSES, MOST_PROCESSES))
        return FirstProcess(pid, ours, process, encloses=True, leaf=leaf, group=leaf, errors=said, limits=limits)

    return Cell(start, SCRATCH_INSIDE, _variables_inside(files.stop_at_file(executor)), named)


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    """The descriptor of a folder of ours."""
    descriptor = os.open(path, FOLDER_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def account(place: Place, named: Callable[[int], object]) -> Cell:
    """A cell whose tasks run as the account that the operator's map gives them; `fairlog-launch` starts it."""
    executor, files = place.grant.executor, place.files

    def start() -> FirstProcess:
        told = private_folder(files.told(executor))
        told.chmod(0o711)  # in a folder that only its owner can enter; the account finds the folder in its cell
        with ExitStack() as opened:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.enter_context(theirs)
            on_failure = opened.enter_context(ExitStack())
            on_failure.enter_context(ours)
            helper = on_failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            folder = opened.enter_context(_folder(told))
            try:
                helper.connect(str(helper_socket()))
                asked = {
                    "verb": "start",
                    "grant": place.grant.model_dump(mode="json") | {"command": [], "env": []},
                    "settings": place.settings.model_dump(mode="json"),
                }
                socket.send_fds(helper, [json.dumps(asked).encode()], [theirs.fileno(), folder])
                answer = json.loads(helper.recv(4096) or b'{"error": "it has ended"}')
            except OSError as error:
                raise NoCell(f"fairlog-launch does not answer at {helper_socket()}: {error.strerror}") from error
            if "error" in answer:
                raise NoCell(f"fairlog-launch starts no cell: {answer['error']}")
            on_failure.pop_all()
        limits = (_FILES, (resource.RLIMIT_NPROC, MOST_PROCESSES, MOST_PROCESSES))
        group = ExecutorGroup(Path(answer["group"])) if answer["group"] else None
        release = partial(_released, helper)
        return FirstProcess(int(answer["pid"]), ours, encloses=True, group=group, release=release, limits=limits)

    return Cell(start, SCRATCH_INSIDE, _variables_inside(files.stop_at_file(executor)), named)


def _released(helper: socket.socket) -> bool:
    """Have the helper end the cell. Whether it says that the kernel has killed in it for memory."""
    with helper, suppress(OSError, ValueError):
        helper.shutdown(socket.SHUT_WR)
        helper.settimeout(_RELEASE_S)
        return bool(json.loads(helper.recv(4096)) == {"out_of_memory": True})
    return False


LAUNCHERS: dict[str, Launcher] = {"cell": cell, "account": account, "plain": plain}


def launch(launcher: str, place: Place, named: Callable[[int], object]) -> Cell:
    """The cell of an executor's tasks; it is started when the first task is."""
    return LAUNCHERS[launcher](place, named)


def first_process(info: int, bwrap: subprocess.Popen[bytes], errors: IO[bytes]) -> int:
    """The first process in a cell, as bubblewrap says through `info`. Raises: NoCell."""
    said = b""
    while not said.rstrip().endswith(b"}"):
        more = os.read(info, 4096)
        if not more:
            bwrap.wait()
            errors.seek(0)
            raise NoCell(f"no cell can be started: {last_line(errors.read(4096))}")
        said += more
    return int(json.loads(said)["child-pid"])


def _run(
    command: Sequence[str], kept: Sequence[int], leaf: ExecutorGroup | None, network: Network | None, errors: int
) -> subprocess.Popen[bytes]:
    def enter() -> None:
        if leaf is not None:
            leaf.enter()
        if network is not None:
            network.enter()

    return subprocess.Popen(  # noqa: S603 - our own programs
        command,
        stdin=subprocess.DEVNULL,
        stdout=errors,
        stderr=errors,
        cwd="/",
        env={},
        pass_fds=kept,
        preexec_fn=None if (leaf, network) == (None, None) else enter,  # noqa: PLW1509 - this process has one thread
    )


def _variables_inside(stop_at: Path) -> dict[str, str]:
    """What is where in a cell; the search path is that of this process, with fairlog's Python at its end."""
    path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    return {
        SCRATCH_VARIABLE: SCRATCH_INSIDE,
        STOP_AT_VARIABLE: f"{TOLD_INSIDE}/{stop_at.name}",
        "HOME": SCRATCH_INSIDE,
        "TMPDIR": "/tmp",  # noqa: S108 - the cell's own
        "PATH": f"{path}:{Path(sys.executable).parent}",
    }
