"""The parent of an executor's tasks: starts them on request and reports their ends. Inside a cell it is process 1.

In a cell it is run as `python -I -S task_init.pyc SOCKET`, is all of fairlog that is there, and imports as little as
possible, to start in milliseconds. Without a cell it is forked from its executor (`serve`). SOCKET is the descriptor of
a SOCK_SEQPACKET socket, whose other end the executor has. When the executor closes it, or dies, this process kills
everything below itself and ends.

Requests are in the format of `marshal`, a tuple each; replies are text, which the executor need not trust:

- `("prepare",)` with a file of (command, environment, folder, limits, files for its scratch folder): `prepared
  ERRNO FILE FOUND`, the first error, which of the files could not be written (1, 2 …; 0 = the folder could not be
  entered), and whether there is such a program.
- `("start", ((ID, environment), ...))` with the descriptors of stdout and stderr of each, at most `MOST_AT_ONCE`: a
  line for each, `started ID PID` or `refused ID ERRNO MISSING`.
- `("open", FILE, append)`: `opened ERRNO`, with the descriptor of the file, which the tasks' user has opened for
  writing, or its number; a file of another kind is -1.
- `("visit", ID, command, environment, terminal)` with the descriptors of its input, output and errors: such a line.
- `("signal", number, pids)`: none.

`ended PID STATUS CPU_MS PEAK_KB` reports the end of a task, with what it and the processes that it waited for used.
A message has one line or more.
"""

from __future__ import annotations

import _ctypes  # the modules around these take 20 ms to import
import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import os
import resource
import select
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_REQUEST_BYTES = 1 << 18
MOST_AT_ONCE = 64
_ATTACHED_BYTES = 1024
"""Room for the descriptors of so many tasks."""
_MOST_LINES = 50
_POLL_S = 0.002
_TIOCSCTTY = 0x540E
_TO_CHILDREN = [_signal.SIGPIPE, _signal.SIGXFSZ]
"""Signals that Python ignores, and the programs it starts should not."""


class Init:
    """Process 1 of a cell, or the parent of an executor's tasks without one."""

    def __init__(self, line: int) -> None:
        os.set_inheritable(line, False)  # noqa: FBT003 - the standard library's signature
        self._line = _socket.socket(fileno=line)
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._children: set[int] = set()
        self._command: tuple[bytes, ...] = ()
        self._environment: dict[bytes, bytes] = {}
        self._program: bytes | None = None

    def work(self) -> None:
        """Serve requests until the executor has gone."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        _signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (
            _signal.SIGCHLD,
            _signal.SIGTERM,
            _signal.SIGINT,
            _signal.SIGHUP,
            _signal.SIGUSR1,
            _signal.SIGUSR2,
        ):
            _signal.signal(number, lambda *_: None)  # unlike an ignored signal, it has its default action in tasks
        waiting = select.poll()
        for descriptor in (self._line.fileno(), reader):
            waiting.register(descriptor, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in waiting.poll()]
            if reader in ready:
                os.read(reader, 4096)
                self._reap()
            if self._line.fileno() in ready and not self._answer():
                return

    def _answer(self) -> bool:
        """Carry out one request. False if the executor has gone."""
        try:
            request, attached, _, _ = self._line.recvmsg(_REQUEST_BYTES, _ATTACHED_BYTES, _socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        if not request:
            return False
        given = [
            int.from_bytes(data[at : at + 4], sys.byteorder)
            for _, kind, data in attached
            if kind == _socket.SCM_RIGHTS
            for at in range(0, len(data) - 3, 4)
        ]
        try:
            verb, *arguments = marshal.loads(request)  # noqa: S302 - the executor's
            if verb == "prepare":
                self._prepare(given[0])
            elif verb == "start":
                self._say(map(self._start, given[::2], given[1::2], *zip(*arguments[0], strict=True)))
            elif verb == "open":
                self._open(*arguments)
            elif verb == "visit":
                self._say([self._visit(given, *arguments)])
            elif verb == "signal":
                for pid in arguments[1]:
                    _kill(pid, arguments[0])
        finally:
            for descriptor in given:
                os.close(descriptor)
        return True

    def _prepare(self, file: int) -> None:
        size = os.fstat(file).st_size
        told = marshal.loads(os.pread(file, size, 0))  # noqa: S302 - likewise
        command, environment, folder, limits, files = told
        self._command = tuple(map(_in_bytes, command))
        self._environment = {_in_bytes(name): _in_bytes(value) for name, value in environment.items()}
        for limit, soft, hard in limits:
            resource.setrlimit(limit, (soft, hard))
        error = unwritten = 0
        try:
            for name, content in files.items():
                unwritten += 1
                _write(f"{environment['FAIRLOG_SCRATCH']}/{name}", content)
            unwritten = 0
            os.chdir("/" if folder is None else _in_bytes(folder))
        except (OSError, ValueError) as refused:
            error = getattr(refused, "errno", 0) or 22
        self._program = _find_program(command[0] if command else "", environment.get("PATH", ""))
        self._say([f"prepared {error} {unwritten} {int(self._program is not None)}"])

    def _open(self, path: str, append: bool) -> None:  # noqa: FBT001 - a field of the request
        """Open a file for the output of tasks, with their rights, and hand it to the executor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = os.open(_in_bytes(path), flags, 0o666)
        except (OSError, ValueError) as refused:
            self._say([f"opened {getattr(refused, 'errno', 0) or 22}"])
            return
        try:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode) and about.st_rdev != os.makedev(1, 3):
                self._say(["opened -1"])
                return
            if stat.S_ISREG(about.st_mode) and not append:
                os.ftruncate(file, 0)
            attached = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, file.to_bytes(4, sys.byteorder))]
            self._line.sendmsg([b"opened 0"], attached)
        except OSError as refused:
            self._say([f"opened {refused.errno or 22}"])
        finally:
            os.close(file)

    def _start(self, output: int, errors: int, identity: int, environment: dict[str, str]) -> str:
        actions = [
            (os.POSIX_SPAWN_DUP2, self._nothing, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, errors, 2),
        ]
        program = self._program or b""
        try:
            pid = os.posix_spawn(
                program,
                self._command,
                {**self._environment, **{_in_bytes(name): _in_bytes(value) for name, value in environment.items()}},
                file_actions=actions,
                setsigdef=_TO_CHILDREN,
                setsigmask=(),
            )
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", 0) or 22
            return f"refused {identity} {number} {int(not _is_file(program))}"
        self._children.add(pid)
        return f"started {identity} {pid}"

    def _visit(
        self,
        given: list[int],
        identity: int,
        command: tuple[str, ...],
        environment: dict[str, str],
        terminal: bool,  # noqa: FBT001 - a field of the request
    ) -> str:
        whole = {**self._environment, **{_in_bytes(name): _in_bytes(value) for name, value in environment.items()}}
        program = _find_program(command[0], whole.get(b"PATH", b"").decode(errors="surrogateescape"))
        if program is None:
            return f"refused {identity} 2 1"
        pid = os.fork()
        if pid:
            self._children.add(pid)
            return f"started {identity} {pid}"
        try:
            os.setsid()
            for ignored in _TO_CHILDREN:
                _signal.signal(ignored, _signal.SIG_DFL)
            if terminal:
                import fcntl  # noqa: PLC0415 - tasks have no terminal

                fcntl.ioctl(given[0], _TIOCSCTTY, 0)
            for number, descriptor in enumerate(given):
                os.dup2(descriptor, number)
            os.execve(program, [_in_bytes(word) for word in command], whole)  # noqa: S606 - that is the point
        except (OSError, ValueError) as error:
            os.write(2, f"fairlog: {command[0]!r} cannot be run: {error}\n".encode())
        finally:
            os._exit(126)

    def _reap(self) -> None:
        self._say(self._ends())

    def _ends(self) -> Iterator[str]:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self._children:
                self._children.remove(pid)
                cpu_ms = round((usage.ru_utime + usage.ru_stime) * 1000)
                yield f"ended {pid} {status} {cpu_ms} {usage.ru_maxrss}"

    def _say(self, said: Iterable[str]) -> None:
        lines = list(said)
        try:
            for first in range(0, len(lines), _MOST_LINES):
                self._line.send("\n".join(lines[first : first + _MOST_LINES]).encode())
        except OSError:
            end()


def end() -> None:
    """Kill everything below this process and end. The processes of a cell end with its process 1."""
    try:
        while os.getpid() != 1:
            for pid in _descendants(os.getpid()):
                _kill(pid, _signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_POLL_S)
    finally:  # without children
        os._exit(0)


def _prctl(option: int, value: int) -> None:
    call = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    if _ctypes.call_function(call, (option, value, 0, 0, 0)) != 0:
        raise OSError("this process cannot be protected from its children")


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for child in found:
        found += _children(child)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.scandir(f"/proc/{pid}/task"):
            with open(f"{thread.path}/children") as listed:  # noqa: PTH123 - pathlib takes 10 ms to import
                found += map(int, listed.read().split())
    except OSError:
        pass
    return found


def _kill(pid: int, number: int) -> None:
    try:
        if pid > 1:
            os.kill(pid, number)
    except OSError:
        pass


def _write(path: str, content: bytes) -> None:
    """Write the file anew, for its user alone, who may run it. Raises: OSError.

    Tasks of a cell before this one may have left anything in its place, such as a FIFO.
    """
    try:  # noqa: SIM105 - likewise
        os.unlink(path)  # noqa: PTH108
    except FileNotFoundError:
        pass
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o700)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)


def _find_program(command: str, path: str) -> bytes | None:
    """The file that `command` names, None if there is none. It need not be executable: starting it gives the reason."""
    name = _in_bytes(command)
    if b"/" in name or not name:
        return name or None
    present = [file for folder in _in_bytes(path).split(b":") if _is_file(file := folder + b"/" + name)]
    return next((file for file in present if os.access(file, os.X_OK)), next(iter(present), None))


def _in_bytes(text: str) -> bytes:
    """As `scheduler.model.text.in_bytes`, which is not there in a cell."""
    return text.encode(errors="surrogateescape")


def _is_file(path: bytes) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - likewise
    except (OSError, ValueError):
        return False


def serve(line: int) -> None:
    """Be the parent of tasks, for the executor at the other end of the socket. Never returns."""
    _prctl(_PR_SET_DUMPABLE, 0)  # tasks have the same user, and must not trace it
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        Init(line).work()
    finally:
        end()


def main() -> None:
    """Run as the parent of tasks. Arguments: the descriptor of the executor's socket, then the user to become."""
    if len(sys.argv) > 2:
        uid, gid, *groups = map(int, sys.argv[2:])
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        _prctl(_PR_SET_PDEATHSIG, _signal.SIGKILL)
    line = int(sys.argv[1])
    os.closerange(3, line)  # a descriptor of a folder outside would lead tasks out of the cell
    os.closerange(line + 1, 1 << 30)
    serve(line)


if __name__ == "__main__":
    main()
