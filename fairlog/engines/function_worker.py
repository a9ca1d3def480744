"""The program of an executor of `fairlog.Executor`: a process for each core, which take calls from the pool.

It needs nothing else of fairlog, so that it starts fast. A worker that dies is replaced by its parent. All end when the
pool says so, or is gone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import ssl
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TextIO, TypeVar, cast

from fairlog.engines import script, wire

POOL, SLOTS = "FAIRLOG_POOL", "FAIRLOG_POOL_SLOTS"
"""Variables: HOST:PORT of the pool, and how many workers there are to be."""
SHOWN = "FAIRLOG_POOL_SHOWN"
"""Variable: set if what calls print is to be shown where the pool is."""
AUTHORITY, KEY = "FAIRLOG_POOL_AUTHORITY", "FAIRLOG_POOL_KEY"
"""Variables: whose certificates count, and the certificate and key of the app, as PEM."""
PATIENCE_S = 10.0
"""How long a worker tries to reach the pool."""
T = TypeVar("T")
_FRAME = 1 << 16
"""A pickler writes values of more bytes by themselves, and the others in frames, which begin with one of two codes."""
_SHORT_S = 0.02
"""A call that takes longer holds up none that came with it: they are returned to the pool."""
_LOOK_S = 1.0
"""How often a worker that makes a long call looks whether others have come, besides when they come."""
_MOST_UNSHOWN = 1024
"""So many pieces that calls have printed wait at most to be sent to the pool."""
_DEATHS = 20
"""After so many deaths of workers in a row without a minute in between, the executor fails."""


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker, as text: the cause of the exception that the caller gets."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


class _Carried:
    """An exception and its traceback, on its way to the caller."""

    def __init__(self, error: BaseException, text: str) -> None:
        self.error, self.text = error, text

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_cause, (self.error, self.text)


def _with_cause(error: BaseException, text: str) -> BaseException:
    error.__cause__ = RemoteTraceback(text)
    return error


class _Pieces:
    """A file that keeps what is written as it is: of a large value a pickler writes the bytes themselves at once."""

    def __init__(self) -> None:
        self._written: list[Any] = []
        self.write = self._written.append

    def body(self) -> wire.Body:
        """All that was written; what its owner could change is copied."""
        return tuple(piece if isinstance(piece, bytes) else bytes(_plain(piece)) for piece in self._written)


def _plain(piece: bytearray | pickle.PickleBuffer) -> bytearray | memoryview:
    return piece.raw() if isinstance(piece, pickle.PickleBuffer) else piece


def dumped(value: object) -> wire.Body:
    """The pickle of a value; by cloudpickle if it is of `__main__`, or what pickle takes by name cannot be found."""
    pieces = _Pieces()
    try:
        pickle.Pickler(pieces, pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        pass
    else:
        body = pieces.body()
        if not any(b"__main__" in piece for piece in body if _names(piece)):
            return body
    import cloudpickle  # noqa: PLC0415 (few need it)

    pieces = _Pieces()
    cloudpickle.Pickler(pieces, pickle.HIGHEST_PROTOCOL).dump(value)
    return pieces.body()


def _names(piece: bytes) -> bool:
    """Whether a piece of a pickle may name something, and is not the contents of one large value."""
    return len(piece) <= _FRAME or piece.startswith((pickle.PROTO, pickle.FRAME))


class _WorkerProcess:
    """One process: takes calls in order and answers each, or returns it before it was begun."""

    def __init__(self, connection: socket.socket, leave: Callable[[bool], None]) -> None:
        """`leave` ends the process and what its call has started; for good, if the pool is gone."""
        self._connection, self._leave = connection, leave
        self._frames = wire.Frames()
        self._pending: deque[wire.Frame] = deque()
        self._lock = threading.Lock()
        self._began_s = 0.0
        """When the present call began; 0 between calls."""
        self._call = 0
        """The number of the present call."""
        self._busy = threading.Event()
        """A call has begun since the last look found none."""
        self._printed: deque[tuple[int, str]] = deque()
        """What calls have printed and is not shown yet. Whoever prints only appends: a signal's handler may, too."""
        self._shows = True
        self._shown = threading.Event()
        """All that was printed has been sent, or nothing will be. Who prints, maybe a handler, leaves it alone."""
        self._caller = 0
        """The thread that makes a call, while it does."""
        self._news, self._tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        threading.Thread(target=self._watch, daemon=True).start()
        threading.Thread(target=self._show, daemon=True).start()

    def work(self) -> None:
        """Answer calls until the pool says stop. Raises: OSError if it is gone."""
        while True:
            with self._lock:
                frame = self._pending.popleft() if self._pending else None
                called = frame is not None and frame.kind == wire.CALL
                self._began_s = time.monotonic() if called else 0.0
                self._call = frame.call if frame is not None and called else 0
            if called and self._printed:
                self._tell_of_prints()  # what was printed between two calls waits for this one
            if called and not self._busy.is_set():
                self._busy.set()
            if frame is None:
                if not self._receive():
                    return
            elif frame.kind == wire.STOP or (frame.kind == wire.INITIALIZE and not self._initialized(frame)):
                return
            elif called:
                self._answer(frame)

    def _receive(self) -> bool:
        """Wait for frames; False once the pool has closed the connection."""
        count = self._connection.recv_into(self._frames.room())
        if not count:
            return False
        with self._lock:
            self._pending += self._frames.take(count)
        return True

    def _initialized(self, frame: wire.Frame) -> bool:
        """Make the first call; False, and the pool is told, if it fails."""
        kind, body = _outcome(frame.body)
        if kind == wire.ERROR:
            self._send(wire.framed(0, wire.BROKEN, body))
        return kind != wire.ERROR

    def _answer(self, frame: wire.Frame) -> None:
        began_s = time.perf_counter()
        self._caller = threading.get_ident()
        kind, body = _outcome(frame.body)
        self._caller = 0
        with contextlib.suppress(AttributeError, OSError, ValueError):  # whatever the call has left there
            sys.stdout.flush()  # the end of the pool ends this process at once
            sys.stderr.flush()
        answer = wire.framed(frame.call, kind, body, time.perf_counter() - began_s)
        while self._printed and self._shows:  # by the thread that no signal interrupts
            self._shown.clear()
            if self._printed and self._shows:
                self._shown.wait()
        with self._lock:
            self._send(answer)

    def show(self, kind: int, text: str) -> None:
        """Have the pool write what the present call has written; the call waits while much is not shown yet.

        Nobody else waits: what is collected may print in any thread, also in the one that sends.
        """
        while self._shows and len(self._printed) > _MOST_UNSHOWN and threading.get_ident() == self._caller:
            time.sleep(_SHORT_S)
        if not self._shows:
            return
        self._printed.append((kind, text))
        self._tell_of_prints()

    def _tell_of_prints(self) -> None:
        with contextlib.suppress(OSError):  # it is told already, or a call has closed what is not its own
            os.write(self._tell, b"x")

    def _show(self) -> None:
        """Send what is printed while a call is made, until the pool is gone; between calls the connection is read."""
        try:
            while True:
                select.select([self._news], [], [])
                os.read(self._news, 1 << 16)
                with self._lock:
                    while self._began_s and self._printed:
                        kind, text = self._printed[0]
                        self._send(wire.framed(0, kind, (text.encode(errors="replace"),)))
                        self._printed.popleft()
                self._shown.set()
        except (OSError, ValueError):  # also where a call has closed what is not its own
            pass
        finally:
            self._shows = False
            self._shown.set()

    def _send(self, frame: Iterable[bytes]) -> None:
        for part in frame:
            self._connection.sendall(part)

    def _watch(self) -> None:
        """Return the calls that wait behind a long one, also later ones; end if it is cancelled."""
        while True:
            self._busy.wait()
            time.sleep(_SHORT_S)
            with self._lock:
                long = bool(self._began_s) and time.monotonic() - self._began_s > _SHORT_S
                if long:
                    self._give_back()
                elif not self._began_s:
                    self._busy.clear()
            if long:
                with contextlib.suppress(OSError, ValueError):  # the connection is closed when the process ends
                    select.select([self._connection], [], [], _LOOK_S)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.settimeout(0)
            try:
                while count := self._connection.recv_into(self._frames.room()):
                    self._pending += self._frames.take(count)
                self._leave(True)  # noqa: FBT003 (the pool is gone, and with it who asked for this)
            except wire.NOT_NOW:
                pass
            finally:
                self._connection.settimeout(None)
            if any(frame.kind == wire.CANCEL and frame.call == self._call for frame in self._pending):
                self._leave(False)  # noqa: FBT003 (a successor takes the next call)
            calls = [frame for frame in self._pending if frame.kind == wire.CALL]
            self._pending = deque(frame for frame in self._pending if frame.kind not in {wire.CALL, wire.CANCEL})
            if calls:
                self._send([b"".join(part for frame in calls for part in wire.framed(frame.call, wire.RETURNED))])


class _Shown:
    """A text stream of a worker's calls: what is written is kept as before, and shown by the pool, by lines."""

    def __init__(self, kept: TextIO, show: Callable[[str], None]) -> None:
        self._kept, self._show = kept, show
        self._line = ""
        self._pid = os.getpid()

    def write(self, text: str) -> int:
        """Keep the text, and show the lines that it ends."""
        written = self._kept.write(text)
        if os.getpid() == self._pid:  # not what a call has started, which has no connection
            told = self._line + text
            whole = told.rfind("\n") + 1
            if len(told) - whole > _FRAME:
                whole = len(told)
            self._line = told[whole:]
            if whole:
                self._show(told[:whole])
        return written

    def flush(self) -> None:
        """Have the file take what was written, and show a line that was begun."""
        self._kept.flush()
        if self._line and os.getpid() == self._pid:
            line, self._line = self._line, ""
            self._show(line)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write the lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all else is the file's
        return getattr(self._kept, name)


def _outcome(body: bytes | bytearray) -> tuple[int, wire.Body]:
    """The kind and the body of the answer to a call."""
    try:
        function, arguments, named = script.loads(body)
        value = function(*arguments, **named)
    except BaseException as error:  # noqa: BLE001 (whatever the function raises is the caller's)
        return wire.ERROR, failure(error)
    try:
        return wire.RESULT, dumped(value)
    except BaseException as error:  # noqa: BLE001 (likewise)
        return wire.ERROR, failure(error)


def each(function: Callable[..., T], chunk: Iterable[tuple[Any, ...]]) -> list[T]:
    """The results of several calls of one function."""
    return [function(*arguments) for arguments in chunk]


def failure(error: BaseException) -> wire.Body:
    """The pickle of an exception with its traceback; of one that cannot be pickled, its text."""
    text = f'\n"""\n{"".join(traceback.format_exception(error))}"""'
    error.__traceback__ = None
    try:
        data = dumped(_Carried(error, text))
        pickle.loads(b"".join(data))  # noqa: S301 (made here)
    except Exception:  # noqa: BLE001 (an exception of the user's may fail in any way)
        return dumped(_Carried(RuntimeError(f"{type(error).__name__}: {error} (it cannot be pickled)"), text))
    return data


def _connected(tls: ssl.SSLContext, about: str) -> socket.socket:
    """A connection to the pool. Raises: OSError if there is none within `PATIENCE_S`."""
    host, _, port = os.environ[POOL].rpartition(":")
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection = tls.wrap_socket(connection)
            wire.greet(connection, about.encode())
        except ConnectionRefusedError:
            raise
        except OSError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(0.2)
        else:
            connection.settimeout(None)
            return connection


def _be_worker(tls: ssl.SSLContext, slot: int, before: str, leave: Callable[[bool], None]) -> None:
    """Work until the pool says stop or is gone; `before`: the process of the slot before, and how it ended."""
    connection = _connected(tls, f"{os.environ['FAIRLOG_EXECUTOR_ID']} {slot} {os.getpid()} {before}")
    os.register_at_fork(after_in_child=connection.close)  # what a call leaves behind keeps no dead worker's connection
    script.begin()
    process = _WorkerProcess(connection, leave)
    if os.environ.get(SHOWN):
        sys.stdout = cast("TextIO", _Shown(sys.stdout, partial(process.show, wire.OUTPUT)))
        sys.stderr = cast("TextIO", _Shown(sys.stderr, partial(process.show, wire.ERRORS)))
    process.work()


def main() -> int:
    """Keep a worker for each slot. Returns the exit code: 0 once all have ended as they were told."""
    slots = int(os.environ[SLOTS])
    tls = wire.context(os.environ[AUTHORITY], os.environ[KEY], server=False)
    told, tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    ended_well: set[int] = set()
    cancelled: set[int] = set()
    alive: dict[int, int] = {}
    deaths, died_s = 0, 0.0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for slot in range(slots):
        alive[_forked(tls, slot, tell, "")] = slot
    while alive:
        pid, status = os.wait()
        if pid not in alive:
            continue
        slot = alive.pop(pid)
        with contextlib.suppress(BlockingIOError):
            for word in map(int, os.read(told, 1 << 16).split()):
                (ended_well if word > 0 else cancelled).add(abs(word))
        if pid in ended_well:  # whatever its exit code: a call may end its worker with any
            ended_well.remove(pid)
            continue
        if pid in cancelled:
            cancelled.remove(pid)
        else:
            now_s = time.monotonic()
            deaths = deaths + 1 if now_s < died_s + 60 else 1
            died_s = now_s
            if deaths > _DEATHS:
                return 1
        alive[_forked(tls, slot, tell, f"{pid} {_how_ended(status)}")] = slot
    return 0


def _how_ended(status: int) -> str:
    """How a process has ended, in words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _forked(tls: ssl.SSLContext, slot: int, tell: int, before: str) -> int:
    """The process id of a new worker, which tells by the pipe that the pool has ended it or is gone, or its call."""

    def leave(for_good: bool) -> None:  # noqa: FBT001
        os.write(tell, b"%d\n" % (os.getpid() if for_good else -os.getpid()))
        os.killpg(0, signal.SIGKILL)

    pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)  # what a call starts ends with it, if it is cancelled
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    code = 0
    try:
        with contextlib.suppress(OSError):  # the pool is gone
            _be_worker(tls, slot, before, leave)
        os.write(tell, b"%d\n" % os.getpid())
    except BaseException:  # noqa: BLE001 (a worker's end is told by its exit code)
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
