"""What each node of a job on several nodes runs: the first the script, the others what steps of it start there.

A node waits for steps at a port of its own, which it tells the first one. In the script's environment `PLACES` names a
folder with a file for each such node. For each node of a step `srun` runs `reach`, which as ssh has a program run
there: it passes on what that reads and writes, the signals that it gets itself, and the exit code. A node is left once
the script has ended with 0; if it ends otherwise, the gang ends with it, since one failure is what the job states.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlog.compat.slurm.steps import PLACES, next_of_stdin
from fairlog.engines import passed_on
from fairlog.engines.mpi_node import (
    AGAIN_S,
    FIRST_WORDS_S,
    Callers,
    OtherRanks,
    call_first,
    kept_alive,
    listen,
    tls_context,
)
from fairlog.engines.wire import CALL, ERRORS, NOT_NOW, OUTPUT, RESULT, STOP, Frame, Frames, Outgoing, framed
from scheduler.model.outputs import filled

if TYPE_CHECKING:
    import ssl

INPUT, MORE = 20, 21
"""Kinds of frames: what a program reads, empty at its end; that it may have more of it. Those of signals are `STOP`."""
_PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCONT,
)
_CHUNK = 1 << 16
_PORT_S = 20.0
"""For how long the first node tries to have its port, which another program may be about to leave."""
_KILL_S = 5.0
"""So long after its SIGTERM a program is killed whose `reach` is gone."""
_DRAINED_S = 1.0
"""What a program has left behind may hold its output open; it is waited for as long as something comes."""
_GONE = 255
"""The exit code of ssh where a host cannot be reached."""
_OF_NODE = "FAIRLOG_", "CUDA_VISIBLE_DEVICES"
"""How variables begin that tell a program of its own node: those of the node on which `srun` runs are left out."""


def main(words: Sequence[str]) -> int:
    """Run as a node, or as what reaches one for a step. Returns the exit code.

    `words`: "node", the files of the job's output, "--" and the command of its script; or "reach", the rank of a node,
    "lines" to keep lines whole or "bytes", and a command.
    """
    if words[0] == "reach":
        return _reach(int(words[1]), list(words[3:]), whole=words[2] == "lines")
    at = words.index("--")
    return _follow() if int(os.environ["FAIRLOG_RANK"]) else _lead(words[1:at], words[at + 1 :])


def _hosts() -> list[str]:
    return os.environ["FAIRLOG_HOSTS"].split(",")


def _lead(outputs: Sequence[str], words: Sequence[str]) -> int:
    """Run the script; once it has ended with 0, let the other nodes go."""
    _empty(outputs)
    server = _listening(int(os.environ["FAIRLOG_MASTER_PORT"]))
    if server is None:
        return 1
    with server, tempfile.TemporaryDirectory(prefix="fairlog-nodes-", dir=os.environ.get("FAIRLOG_SCRATCH")) as folder:
        others = FollowingNodes(Path(folder))
        threading.Thread(target=others.serve, args=(server,), daemon=True).start()
        code = passed_on.run(words, {**os.environ, PLACES: folder}, _PASSED_ON)
        if code == 0:
            others.dismiss(0, len(_hosts()) - 1)
    if code < 0:  # so that it is told how the script has ended
        with suppress(OSError):  # SIGKILL is as it is
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _empty(outputs: Sequence[str]) -> None:
    """Empty the files of the job's output, to which all nodes append, so that no node takes from the first one's."""
    host = _hosts()[0]
    known = {
        "A": os.environ["FAIRLOG_APP_NUMBER"],
        "x": os.environ["SLURM_JOB_NAME"],
        "u": os.environ["SLURM_JOB_USER"],
        "N": host if host[:1].isdigit() else host.partition(".")[0],
    }
    for pattern in outputs:
        with suppress(OSError):
            os.truncate(filled(pattern, known), 0)


def _listening(port: int) -> socket.socket | None:
    """A socket at the port; None, said on stderr, if it cannot be had."""
    until_s = time.monotonic() + _PORT_S
    while True:
        try:
            return listen(port)
        except OSError as error:
            if time.monotonic() > until_s:
                sys.stderr.write(
                    f"fairlog: port {port}, at which the nodes of this job meet, cannot be had on {_hosts()[0]}: "
                    f"{error.strerror}; submit it again, which gets another one\n"
                )
                return None
            time.sleep(AGAIN_S)


class FollowingNodes(OtherRanks):
    """The other nodes of a job, in the program of the first one."""

    def __init__(self, places: Path) -> None:
        super().__init__()
        self._places = places

    def joined(self, about: dict[str, Any]) -> None:
        """Write down where the node waits."""
        place = self._places / f".{about['rank']}"
        place.write_text(f"{about['port']}", encoding="ascii")
        place.rename(self._places / f"{about['rank']}")


def _follow() -> int:
    """Run what steps start on this node, until the script has ended with 0."""
    steps = StepsHere()
    with listen(0) as server:
        threading.Thread(target=steps.serve, args=(server,), daemon=True).start()
        line = call_first(rank=int(os.environ["FAIRLOG_RANK"]), port=server.getsockname()[1])
        told: list[int] = []
        for number in _PASSED_ON:  # signals to the job are the script's; steps get them by their srun
            signal.signal(number, lambda number, _: told.append(number))
        end = line.hear()
        steps.kill()
    if "end" in end:
        return 0
    if signal.SIGTERM in told:  # the job is told to stop, and not to go on without its first node
        return 128 + signal.SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:  # the first node has failed or is lost, which ends the gang: one failure, and not one of each node
        signal.pause()


class NodeWire:
    """A connection on which nothing waits: what has come, and what is to be sent."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        connection.settimeout(0.0)
        self._connection = connection
        self._frames = Frames()
        self._outgoing = Outgoing()
        self.gone = False

    @property
    def is_busy(self) -> bool:
        """Whether something is still to be sent."""
        return bool(self._outgoing) and not self.gone

    def say(self, kind: int, body: bytes = b"") -> None:
        """Send this next."""
        self._outgoing.put(framed(0, kind, (body,)))
        self.flush()

    def flush(self) -> None:
        """Send what can be sent now."""
        try:
            self._outgoing.send(self._connection)
        except NOT_NOW:
            pass
        except OSError:
            self.gone = True

    def heard(self) -> list[Frame]:
        """What has come."""
        found: list[Frame] = []
        while not self.gone:
            try:
                count = self._connection.recv_into(self._frames.room())
            except NOT_NOW:
                break
            except OSError:
                count = 0
            self.gone = not count
            found += self._frames.take(count) if count else ()
        return found

    def wait(self, reads: Sequence[int], wait_s: float, writes: Sequence[int] = ()) -> set[int]:
        """Wait until something comes, can be sent or written; those of the descriptors that are ready."""
        poll = select.poll()
        if not self.gone:
            poll.register(self._connection, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        for each in reads:
            poll.register(each, select.POLLIN)
        for each in writes:
            poll.register(each, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(wait_s * 1000)}
        self.flush()
        return ready


class StepsHere(Callers):
    """What steps of the job's `srun` run on this node."""

    def __init__(self) -> None:
        super().__init__()
        self._running: set[int] = set()

    def _welcome(self, tls: ssl.SSLContext, connection: socket.socket) -> None:
        """Run the program of a step. Whoever has no key of the app, or says nothing, is left."""
        with suppress(OSError, ValueError):
            try:
                connection.settimeout(FIRST_WORDS_S)
                secured = tls.wrap_socket(connection, server_side=True)
            finally:
                self._handshakes.release()
            kept_alive(secured)
            with secured:
                wire = NodeWire(secured)
                until_s, orders = time.monotonic() + FIRST_WORDS_S, list[Frame]()
                while not orders and not wire.gone and time.monotonic() < until_s:
                    wire.wait((), AGAIN_S)
                    orders = wire.heard()
                if orders:
                    self._begin(wire, json.loads(orders[0].body), orders[1:])

    def _begin(self, wire: NodeWire, order: dict[str, Any], early: list[Frame]) -> None:
        env = on_this_node(order["env"])
        cwd, note = folder_here(order["cwd"], env["SLURMD_NODENAME"])
        if note:
            wire.say(ERRORS, note.encode(errors="surrogateescape"))
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(  # noqa: S603 (the job's own)
                order["words"], env=env, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            said = f"srun: error: {env['SLURMD_NODENAME']}: {order['words'][0]}: {error.strerror}\n"
            wire.say(ERRORS, said.encode(errors="surrogateescape"))
            ProgramOfStep(wire, None).tell(127)
            return
        self._running.add(process.pid)
        with process:
            ProgramOfStep(wire, process).run(early)
        self._running.discard(process.pid)

    def kill(self) -> None:
        """Kill all that runs of them."""
        for pid in list(self._running):
            _to_all_of(pid, signal.SIGKILL)


def on_this_node(env: dict[str, str]) -> dict[str, str]:
    """The environment of a step, as the node has it on which its program runs."""
    own = {name: value for name, value in os.environ.items() if name.startswith(_OF_NODE)}
    env = {name: value for name, value in env.items() if not name.startswith(_OF_NODE)} | own
    env["SLURMD_NODENAME"] = _hosts()[int(os.environ["FAIRLOG_RANK"])]
    if not os.access(env.get("HOME", ""), os.W_OK):
        env["HOME"] = os.environ.get("FAIRLOG_SCRATCH", "/tmp")  # noqa: S108 (as for the script)
    return env


def folder_here(cwd: str, node: str) -> tuple[str, str]:
    """The folder in which a program of a step begins on this node; and what is said of that if it is another one."""
    if os.access(cwd, os.X_OK):
        return cwd, ""
    other = os.environ.get("FAIRLOG_SCRATCH", "/tmp")  # noqa: S108 (as Slurm does)
    return other, f"srun: error: couldn't chdir to `{cwd}' on {node}; going to {other} instead\n"


def _to_all_of(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class ProgramOfStep:
    """A program of a step on this node, and the connection of who wants it."""

    def __init__(self, wire: NodeWire, process: subprocess.Popen[bytes] | None) -> None:
        self._wire, self._process = wire, process
        self._given = b""
        """What the program is to read next."""
        self._is_open = True
        """Whether more of it may come."""

    def run(self, early: list[Frame]) -> None:
        """Run it to its end."""
        process, wire = self._process, self._wire
        if process is None or process.stdin is None or process.stdout is None or process.stderr is None:
            return
        os.set_blocking(process.stdin.fileno(), False)
        outputs = {process.stdout.fileno(): OUTPUT, process.stderr.fileno(): ERRORS}
        ended, kill_at_s = os.pidfd_open(process.pid), float("inf")
        wire.say(MORE)
        self._take(early)
        try:
            while True:
                reads = [] if wire.is_busy else list(outputs)
                writes = [process.stdin.fileno()] if self._given else []
                ready = wire.wait([*reads, ended], 0.5, writes)
                self._take(wire.heard())
                self._write(process)
                for descriptor in outputs.keys() & ready:
                    self._pass_on(descriptor, outputs)
                if wire.gone and kill_at_s == float("inf"):
                    kill_at_s = time.monotonic() + _KILL_S
                    _to_all_of(process.pid, signal.SIGTERM)
                if time.monotonic() > kill_at_s:
                    _to_all_of(process.pid, signal.SIGKILL)
                if ended in ready:
                    break
        finally:
            os.close(ended)
        _to_all_of(process.pid, signal.SIGKILL)  # what it has left behind
        code = process.wait()
        while outputs and not wire.gone:
            ready = wire.wait([] if wire.is_busy else list(outputs), _DRAINED_S)
            wire.heard()
            if not ready and not wire.is_busy:
                break
            for descriptor in outputs.keys() & ready:
                self._pass_on(descriptor, outputs)
        self.tell(code if code >= 0 else 128 - code)

    def _pass_on(self, descriptor: int, outputs: dict[int, int]) -> None:
        part = os.read(descriptor, _CHUNK)
        if part:
            self._wire.say(outputs[descriptor], part)
        else:
            del outputs[descriptor]

    def _take(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.kind == INPUT:
                self._given, self._is_open = bytes(frame.body), bool(frame.body)
            elif frame.kind == STOP and self._process is not None and self._process.poll() is None:
                with suppress(ProcessLookupError):
                    self._process.send_signal(int(frame.body))

    def _write(self, process: subprocess.Popen[bytes]) -> None:
        """Give the program what it is to read, and ask for more once it has all of that."""
        stdin = process.stdin
        if stdin is None or stdin.closed:
            return
        try:
            while self._given:
                self._given = self._given[os.write(stdin.fileno(), self._given) :]
                if not self._given and self._is_open:
                    self._wire.say(MORE)
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            self._given, self._is_open = b"", False
        if not self._is_open:
            with suppress(OSError):
                stdin.close()

    def tell(self, code: int) -> None:
        """Say how it has ended, and wait until that is heard."""
        wire = self._wire
        wire.say(RESULT, str(code).encode())
        until_s = time.monotonic() + FIRST_WORDS_S
        while not wire.gone and (wire.is_busy or time.monotonic() < until_s):
            wire.wait((), AGAIN_S)
            wire.heard()


def _reach(rank: int, words: list[str], *, whole: bool) -> int:
    """Have the node of that rank run the command. Returns its exit code."""
    place = Path(os.environ[PLACES], str(rank))
    while not place.exists():  # all nodes begin within a second or so of each other
        time.sleep(AGAIN_S)
    node = _hosts()[rank]
    try:
        connection = socket.create_connection((node, int(place.read_text())), timeout=FIRST_WORDS_S)
        secured = tls_context(server=False).wrap_socket(connection)
    except OSError as error:
        sys.stderr.write(f"srun: error: {node} cannot be reached: {error.strerror or error}\n")
        return _GONE
    kept_alive(secured)
    with secured:
        return ReachedNode(NodeWire(secured), whole=whole).run(node, words)


class ReachedNode:
    """A node on which a command runs, as `srun` sees it. `whole`: lines of its output are not torn apart."""

    def __init__(self, wire: NodeWire, *, whole: bool) -> None:
        self._wire, self._whole = wire, whole
        self._held = {OUTPUT: b"", ERRORS: b""}
        """The beginnings of lines that have not ended."""
        self._may_read = False
        self._code: int | None = None

    def run(self, node: str, words: list[str]) -> int:
        """Carry what it reads and writes until it has ended. Returns its exit code."""
        wire = self._wire
        signals, noted = os.pipe()
        for each in (signals, noted):
            os.set_blocking(each, False)
        signal.set_wakeup_fd(noted)
        for number in _PASSED_ON:
            signal.signal(number, lambda *_: None)
        env = {name: value for name, value in os.environ.items() if name != PLACES}
        wire.say(CALL, json.dumps({"words": words, "env": env, "cwd": _folder()}).encode())
        while self._code is None:
            ready = wire.wait([signals, *([0] if self._may_read else ())], 60.0)
            for sent in os.read(signals, _CHUNK) if signals in ready else b"":
                wire.say(STOP, str(sent).encode())
            for frame in wire.heard():
                self._hear(frame)
            if 0 in ready:
                self._may_read = False
                wire.say(INPUT, next_of_stdin())
            if wire.gone and self._code is None:
                sys.stderr.write(f"srun: error: {node} is gone before its processes have ended\n")
                self._code = _GONE
        for kind, rest in self._held.items():
            _write_all(kind, rest)
        return self._code

    def _hear(self, frame: Frame) -> None:
        if frame.kind == MORE:
            self._may_read = True
        elif frame.kind == RESULT:
            self._code = int(frame.body)
        elif frame.kind in self._held:
            body = self._held[frame.kind] + frame.body
            at = body.rfind(b"\n") + 1 if self._whole else len(body)
            self._held[frame.kind] = body[at:]
            _write_all(frame.kind, body[:at])


def _folder() -> str:
    """The folder of this process, "/" if it is gone."""
    try:
        return os.getcwd()  # noqa: PTH109 (a name)
    except FileNotFoundError:
        return "/"


def _write_all(kind: int, rest: bytes) -> None:
    """Write it to stdout or stderr; what nobody reads any more is lost, as that of a process here would be."""
    target = 1 if kind == OUTPUT else 2
    with suppress(OSError):
        while rest:
            rest = rest[os.write(target, rest) :]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
