"""The program of an executor of `fairlog mpirun`: rank 0 runs mpirun, the others what mpirun wants on their hosts.

mpirun reaches other hosts by a program that it starts for each, ssh unless told otherwise: here that of `_agent`, which
has the executor of that rank run the command. An executor has a name of its own, so that those on one worker are hosts
of their own. Needs nothing but the standard library and `wire`, with which it is copied to the workers.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fairlog.engines import passed_on, wire

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from io import TextIOWrapper

AUTHORITY, KEY = "FAIRLOG_MPI_AUTHORITY", "FAIRLOG_MPI_KEY"
"""Variables: whose certificates count, and the certificate and key of the app, as PEM."""
PROGRAM = "mpirun.pyz"
"""What its copy is called in the command of an app, after the name of Python."""
_NAME = "fairlog-"
"""What the name begins with by which mpirun knows an executor, before its rank."""
FIRST_WORDS_S = 10.0
"""How long a connection may be silent before it has said what it is."""
_HANDSHAKES = 64
"""How many connections at once may not have said yet what they are. Those beyond are closed, and come again."""
AGAIN_S = 0.2
_PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that mpirun gets from the executor of rank 0, and treats as it does."""
_LOST = 255
"""The exit code of ssh where a host cannot be reached."""
_OF_OPEN_MPI = {
    "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
    "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
"""Of Open MPI 4 and 5: mpirun starts every host itself; ranks are not bound to cores, of which a cell has its own."""
_ON_ONE_HOST = {"OMPI_MCA_coll": "^han"}
"""Where executors share a worker: collectives in levels take ranks of one host name for ranks that share memory."""
_SHARED_MEMORY = "OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"
"""Of Open MPI 4 and 5: a folder for the memory that ranks of one executor share, each executor's own."""


def main(words: Sequence[str]) -> int:
    """Run as the executor of `FAIRLOG_RANK`. `words`: "agent", a host and a command; else ranks a host, and mpirun's.

    Returns the exit code.
    """
    if words[0] == "agent":
        return _agent(words[1:])
    rank = int(os.environ["FAIRLOG_RANK"])
    return _follow(rank) if rank else _lead(int(words[0]), words[1:])


def launch(version: str, agent: str, ranks: int, on: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words of mpirun before those of its user, and variables that it needs.

    `version` is what it says of itself, `agent` the program that reaches a host, `ranks` how many each executor has,
    and `on` the hosts of all executors. Raises: ValueError for an mpirun whose way to other hosts is not known.
    """
    hosts = ",".join(f"{_NAME}{rank}:{ranks}" for rank in range(len(on)))
    number = ["-n", str(ranks * len(on))]
    if "Open MPI" in version or "OpenRTE" in version:
        reached = dict.fromkeys(("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"), f"/bin/sh {agent}")
        apart = _ON_ONE_HOST if len({*on}) < len(on) else {}
        return ["mpirun", "--leave-session-attached", "--host", hosts, *number], {**_OF_OPEN_MPI, **reached, **apart}
    if "HYDRA" in version or "Intel(R) MPI" in version:
        by = ["-launcher", "ssh", "-launcher-exec", agent, "-localhost", on[0]]
        return ["mpirun", *by, "-genvnone", "-hosts", hosts, *number], {}
    said = (version.strip().splitlines() or ["nothing"])[0]
    raise ValueError(
        f"mpirun --version says {said[:80]!r}, and only Open MPI and MPICH are known; give one in the PATH"
    )


def _lead(ranks: int, words: Sequence[str]) -> int:
    """Run mpirun, hand its commands to the executors of the others, and tell them how it ended."""
    on, port = os.environ["FAIRLOG_HOSTS"].split(","), int(os.environ["FAIRLOG_MASTER_PORT"])
    try:
        version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S607
    except OSError as error:
        return _refuse(f"mpirun cannot be run on this worker: {error.strerror}; give its folder by --env PATH=…")
    try:
        server = listen(port)
    except OSError as error:
        return _refuse(f"port {port} cannot be had on this worker: {error.strerror}; the gang gets another one", code=1)
    with tempfile.TemporaryDirectory(prefix="fairlog-mpi-") as folder, server:
        agent = Path(folder, "agent")
        agent.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(sys.argv[0])} agent "$@"\n')
        agent.chmod(0o700)
        try:
            begin, needs = launch(version, str(agent), ranks, on)
        except ValueError as error:
            return _refuse(str(error))
        others = OtherRanks()
        threading.Thread(target=others.serve, args=(server,), daemon=True).start()
        code = passed_on.run([*begin, *words], {**needs, **os.environ}, _PASSED_ON)
        code = code if code >= 0 else 128 - code
        others.dismiss(code, len(on) - 1)
    return code


def _refuse(why: str, code: int = 127) -> int:
    sys.stderr.write(f"fairlog: {why}\n")
    return code


def listen(port: int) -> socket.socket:
    """A socket at this port, of every address of this host. Raises: OSError."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def tls_context(*, server: bool) -> ssl.SSLContext:
    """How an executor of the app speaks to another one."""
    return wire.context(os.environ[AUTHORITY], os.environ[KEY], server=server)


def kept_alive(connection: socket.socket) -> None:
    """Notice within a minute or so that the other host is gone."""
    for option, value in (
        (socket.TCP_KEEPIDLE, 15),
        (socket.TCP_KEEPINTVL, 15),
        (socket.TCP_KEEPCNT, 3),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class Dialogue:
    """A connection on which each end says an object of JSON at a time."""

    def __init__(self, connection: socket.socket) -> None:
        with connection:  # it is open as long as its file
            self._file: TextIOWrapper = connection.makefile("rw", encoding="utf-8")

    def say(self, **about: object) -> None:
        """Say this. Raises: OSError."""
        self._file.write(json.dumps(about) + "\n")
        self._file.flush()

    def hear(self) -> dict[str, Any]:
        """What the other end says next; nothing once it is gone. Raises: ValueError."""
        try:
            said: dict[str, Any] = json.loads(self._file.readline() or "{}")
        except OSError:
            return {}
        return said

    def close(self) -> None:
        """End the connection."""
        with suppress(OSError):
            self._file.close()


class Callers(ABC):
    """Whoever connects to a socket with the key of the app: each is served by a thread."""

    def __init__(self) -> None:
        self._handshakes = threading.BoundedSemaphore(_HANDSHAKES)

    def serve(self, server: socket.socket) -> None:
        """Take connections of whoever has the key of the app, until the socket is closed."""
        tls = tls_context(server=True)
        while server.fileno() >= 0:
            try:
                self._accept(tls, server)
            except (OSError, RuntimeError):  # who called is gone, or this process has no file or thread for it now
                time.sleep(AGAIN_S)

    def _accept(self, tls: ssl.SSLContext, server: socket.socket) -> None:
        """Take the next connection. Raises: OSError, RuntimeError if it cannot be had or served now."""
        connection = server.accept()[0]
        if not self._handshakes.acquire(blocking=False):
            connection.close()
            return
        try:
            threading.Thread(target=self._welcome, args=(tls, connection), daemon=True).start()
        except RuntimeError:
            connection.close()
            self._handshakes.release()
            raise

    @abstractmethod
    def _welcome(self, tls: ssl.SSLContext, connection: socket.socket) -> None:
        """Serve who has connected. One of the handshakes is over once it is known who that is."""


class OtherRanks(Callers):
    """The executors of the other ranks, in the process of rank 0, and the agents of its mpirun."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[int, Dialogue] = {}
        self._news = threading.Condition()

    def _greet(self, tls: ssl.SSLContext, connection: socket.socket) -> tuple[Dialogue, dict[str, Any]]:
        """The connection of who has the key, and what it says first. Raises: OSError, ValueError."""
        try:
            connection.settimeout(FIRST_WORDS_S)
            secured = tls.wrap_socket(connection, server_side=True)
            line = Dialogue(secured)
            about = line.hear()
            secured.settimeout(None)
            kept_alive(secured)
            return line, about
        finally:
            self._handshakes.release()

    def _welcome(self, tls: ssl.SSLContext, connection: socket.socket) -> None:
        with suppress(OSError, ValueError, KeyError):
            line, about = self._greet(tls, connection)
            line.say(heard=True)
            if "command" in about:
                with closing(line):
                    line.say(code=self._run(about["rank"], about["command"]))
                return
            self.joined(about)
            with self._news:
                self._lines[about["rank"]] = line
                self._news.notify_all()

    def joined(self, about: dict[str, Any]) -> None:
        """Take in what the executor of another rank says of itself besides its rank."""

    def _run(self, rank: int, command: str) -> int:
        """The exit code of a command on the host of that rank, once it is there."""
        with self._news:
            while rank not in self._lines:
                self._news.wait()
            line = self._lines[rank]
        with suppress(OSError):
            line.say(run=command)
            return int(line.hear().get("code", _LOST))
        return _LOST

    def dismiss(self, code: int, number: int) -> None:
        """Tell the others, so many, how mpirun ended. If it ended well, return once all have come and are gone."""
        with self._news:
            while code == 0 and len(self._lines) < number:
                self._news.wait()
            lines = [*self._lines.values()]
        for line in lines:
            with suppress(OSError, ValueError):
                line.say(end=code)
                while code == 0 and line.hear():
                    pass


def _follow(rank: int) -> int:
    """Run what mpirun wants on this host, until it has ended well."""
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # mpirun passes them on to every rank
    line = call_first(rank=rank)
    code = -1
    while told := line.hear():
        if "end" in told:
            code = told["end"]
            break
        code = _run(told["run"])
        with suppress(OSError):
            line.say(code=code)
    return 0 if code == 0 else _wait_for_the_end()


def _run(command: str) -> int:
    """Run what mpirun starts on this host. Returns its exit code."""
    memory = "/dev/shm"  # noqa: S108 (a folder of its own in there)
    with tempfile.TemporaryDirectory(prefix="fairlog-mpi-", dir=memory if os.access(memory, os.W_OK) else None) as own:
        variables = {**dict.fromkeys(_SHARED_MEMORY, own), **os.environ}
        shell = ["sh", "-c", command]
        return subprocess.run(shell, check=False, env=variables, preexec_fn=_as_before).returncode  # noqa: S603 (mpirun's own; one thread)


def _as_before() -> None:
    """Let the command have the signals that its executor ignores."""
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def _wait_for_the_end() -> NoReturn:
    """Rank 0 has failed or is lost, which ends the gang: one failure, and not one of each executor."""
    while True:
        signal.pause()


def _reach() -> socket.socket:
    """A connection to the executor of rank 0, once it listens."""
    tls = tls_context(server=False)
    where = os.environ["FAIRLOG_MASTER_ADDR"], int(os.environ["FAIRLOG_MASTER_PORT"])
    while True:
        try:
            connection = tls.wrap_socket(socket.create_connection(where, timeout=FIRST_WORDS_S))
        except OSError:
            time.sleep(AGAIN_S)
        else:
            connection.settimeout(None)
            kept_alive(connection)
            return connection


def call_first(**about: object) -> Dialogue:
    """A connection on which the executor of rank 0 has heard this; one that is closed before is made again."""
    while True:
        line = Dialogue(_reach())
        with suppress(OSError, ValueError):
            line.say(**about)
            if "heard" in line.hear():
                return line
        line.close()
        time.sleep(AGAIN_S)


def _agent(words: Sequence[str]) -> int:
    """As ssh: options, a host, and words that together are a command of its shell. Returns the command's exit code."""
    at = next(at for at, word in enumerate(words) if word.startswith(_NAME))
    rank, command = int(words[at].removeprefix(_NAME)), " ".join(words[at + 1 :])
    if rank == 0:
        return _run(command)
    with closing(call_first(rank=rank, command=command)) as line:
        return int(line.hear().get("code", _LOST))
