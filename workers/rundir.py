"""Where a worker keeps what must outlive its processes: locks, exits and logs, all under `<run_dir>/<worker>/`.

An executor holds the lock `executors/<id>.lock` as long as it lives, so "does it run?" has an answer
that no reused process id can spoil. Its exit lies beside it until the log has taken note.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict

from scheduler.model.ids import app_of


class Holder(NamedTuple):
    """The process that holds an executor's lock, the app that it works for and its size; 0 while not known yet."""

    executor: str
    app: str
    pid: int
    cores: int = 0
    memory_mb: int = 0


class ExitNote(BaseModel):
    """How an executor or driver ended, and why if it failed. With a `verdict` its app is over; `detail` says why."""

    model_config = ConfigDict(frozen=True)

    app: str
    reason: Literal["exited", "failed", "killed"]
    exit_code: int | None = None
    done: bool = False
    verdict: Literal["finished", "failed"] | None = None
    detail: str = ""


class RunDir:
    """The files of one worker."""

    def __init__(self, root: Path, worker: str) -> None:
        self.root = root
        self.path = root / _file_name(worker)
        self._executors = self.path / "executors"
        self._logs = self.path / "logs"

    def make(self) -> None:
        """Make the folders, for this user's eyes only."""
        self.root.mkdir(parents=True, exist_ok=True)
        for folder in (self.path, self._executors, self._logs):
            folder.mkdir(mode=0o700, exist_ok=True)

    def log_file(self, app: str, task: int | str) -> Path:
        """Where all that a task, or the "driver", prints is kept."""
        return self._logs / _file_name(app) / f"{task}.log"

    def program_log(self) -> Path:
        """Where the executors' own messages go."""
        return self.path / "executors.log"

    def claim_worker(self) -> int | None:
        """A descriptor that holds the worker for this process, None if another agent has it."""
        return _lock(self.path / "agent.lock")

    def claim_executor(self, executor: str) -> int | None:
        """A descriptor that holds the executor's lock, None if it runs already."""
        return _lock(self._lock_file(executor))

    def name_holder(self, lock: int, holder: Holder) -> None:
        """Write down, in the lock file itself, who holds the lock."""
        os.ftruncate(lock, 0)
        said = holder._asdict()
        del said["executor"]
        os.pwrite(lock, json.dumps(said).encode(), 0)

    def known(self) -> list[Holder]:
        """The executors that have files here, running or not, in the order of their ids' file names."""
        return [self._holder(path) for path in sorted(self._executors.glob("*.lock"))]

    def is_running(self, executor: str) -> bool:
        """Whether some process holds the executor's lock."""
        try:
            lock = os.open(self._lock_file(executor), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(lock)

    def write_exit(self, executor: str, note: ExitNote) -> None:
        """Leave the note that an executor has ended; the first one counts."""
        draft = self._executors / f"{_file_name(executor)}.{os.getpid()}.draft"
        draft.write_text(note.model_dump_json())
        with contextlib.suppress(FileExistsError):
            os.link(draft, self._exit_file(executor))
        draft.unlink()

    def read_exit(self, executor: str) -> ExitNote | None:
        """How the executor ended, if it has said so."""
        try:
            return ExitNote.model_validate_json(self._exit_file(executor).read_text())
        except FileNotFoundError:
            return None

    def forget(self, executor: str) -> None:
        """Remove the files of an executor that has ended and whose end the log knows."""
        self._exit_file(executor).unlink(missing_ok=True)
        self._lock_file(executor).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _choosing_cpus(self) -> Iterator[Path]:
        folder = self.root / "cpus"
        folder.mkdir(mode=0o700, exist_ok=True)
        choosing = os.open(folder / "choosing", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(choosing, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            os.close(choosing)

    def claim_cpus(self, count: int) -> list[int]:
        """`count` CPUs that no other executor of any worker here has, this process's until it ends.

        Empty if that many are not free.
        """
        claimed: dict[int, int] = {}
        with self._choosing_cpus() as folder:
            for cpu in sorted(os.sched_getaffinity(0)):
                if len(claimed) == count:
                    break
                lock = _lock(folder / str(cpu))
                if lock is not None:
                    claimed[cpu] = lock
            if len(claimed) < count:
                for lock in claimed.values():
                    os.close(lock)
                claimed.clear()
        return list(claimed)

    def _lock_file(self, executor: str) -> Path:
        return self._executors / f"{_file_name(executor)}.lock"

    def _exit_file(self, executor: str) -> Path:
        return self._executors / f"{_file_name(executor)}.exit"

    def _holder(self, path: Path) -> Holder:
        executor = unquote(path.name.removesuffix(".lock"))
        try:
            stored = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            return Holder(executor, app_of(executor), 0)
        size = int(stored.get("cores", 0)), int(stored.get("memory_mb", 0))
        return Holder(executor, str(stored["app"]), int(stored["pid"]), *size)


def _lock(path: Path) -> int | None:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _file_name(name: str) -> str:
    quoted = quote(name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
