"""A worker's files, which outlive its processes: locks, exit notes and logs, all under `RUN_DIR/WORKER/`.

An executor holds the lock on `executors/ID.lock` while it runs, so that a reused process id is never mistaken for it.
Its exit note stays beside it until the log has the end.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict

from scheduler.model.commands import Measured
from scheduler.model.grants import Leaving, RuntimeWarn, SentSignal
from scheduler.model.ids import app_of
from scheduler.service.locks import is_locked, try_lock
from scheduler.service.private import private_file, private_folder, write_private
from workers.descriptors import remove_tree

_NOTE_BYTES = 8_192
"""What a note of an executor's end can have."""


KNOWN_FOR_S = 60.0
"""For how long it counts what was noted of GPUs."""


class Holder(NamedTuple):
    """The process that holds an executor's lock, its app, its size, addresses and grace; 0 means not known yet.

    `first` is the first process of its cell, which was started at `first_s`, in seconds since the epoch.
    """

    executor: str
    app: str
    pid: int
    cores: int = 0
    memory_mb: int = 0
    addresses: Mapping[str, Sequence[str]] = {}
    grace_s: float = 0
    first: int = 0
    first_s: float = 0


class ExitNote(BaseModel):
    """How an executor or driver ended.

    `done` means that the app has no tasks left. A `verdict` ends the app; `detail` is its reason. `unstartable`: why
    the app's command cannot be started on the worker. `unfit`: why the worker can start nothing, for its operator; what
    ended is not to blame. `used`: None = how much is not known.
    """

    model_config = ConfigDict(frozen=True)

    app: str
    reason: Literal["exited", "failed", "killed"]
    exit_code: int | None = None
    done: bool = False
    verdict: Literal["finished", "failed"] | None = None
    detail: str = ""
    unstartable: str = ""
    unfit: str = ""
    used: Measured | None = None


class RunDir:
    """The files of one worker."""

    def __init__(self, root: Path, worker: str) -> None:
        self.root = root.resolve()
        self.path = self.root / _file_name(worker)
        self._executors = self.path / "executors"
        self._logs = self.path / "logs"

    def make(self) -> None:
        """Create the folders, accessible to this user only."""
        for folder in (self.path, self._executors, self._logs):
            private_folder(folder)

    def log_files(self, app: str, name: str) -> tuple[Path, Path]:
        """The files with the complete stdout and stderr of `name`.

        That is the "driver", the program of executor "N", or slot S of it, "N-S".
        """
        folder = self._logs / _file_name(app)
        return folder / f"{name}.log", folder / f"{name}.err"

    def log_index(self, app: str) -> Path:
        """The file that says what is where in the files of slots.

        A line for each stream of an attempt of a task that printed something: task, attempt, file, offset and length
        in bytes.
        """
        return self._logs / _file_name(app) / "index"

    def scratch(self, executor: str) -> Path:
        """The executor's own folder, deleted when it has ended."""
        return self.path / "scratch" / _file_name(executor)

    def remove_scratch(self, executor: str) -> None:
        """Delete it."""
        remove_tree(self.scratch(executor))

    def told(self, executor: str) -> Path:
        """The folder with what the executor's tasks are told."""
        return self._file(executor, "told")

    def stop_at_file(self, executor: str) -> Path:
        """The file that says until when an executor that was told to leave may run, absent while it need not leave."""
        return self.told(executor) / "stop-at"

    def tell_to_leave(self, executor: str, leaving: Leaving | None) -> None:
        """Write or remove that file. Its first line is the deadline in seconds since the epoch (semantics H7)."""
        path = self.stop_at_file(executor)
        if leaving is None:
            path.unlink(missing_ok=True)
            return
        text = f"{leaving.deadline / 1000:.3f}\n{leaving.model_dump_json()}\n"
        if not path.exists() or path.read_text() != text:
            draft = private_folder(path.parent) / "draft"
            write_private(draft, text)
            if path.parent.stat().st_mode & stat.S_IXOTH:
                draft.chmod(0o644)  # the account of the tasks reads it, in its cell
            draft.replace(path)

    def leaving(self, executor: str) -> Leaving | None:
        """What the executor was told about leaving, None if it need not leave."""
        try:
            return Leaving.model_validate_json(self.stop_at_file(executor).read_text().split("\n", 1)[1])
        except (FileNotFoundError, IndexError, ValueError):
            return None

    def warned_at(self, executor: str) -> int:
        """When (ms) the warning was due that the executor was told of last, 0 = of none (semantics X2)."""
        found = self.warning(executor)
        return 0 if found is None else found.at

    def warn(self, executor: str, warning: RuntimeWarn) -> None:
        """Tell the executor to send its tasks the signal of a warning."""
        draft = self._file(executor, "draft-warned")
        write_private(draft, warning.model_dump_json())
        draft.replace(self._file(executor, "warned"))

    def warning(self, executor: str) -> RuntimeWarn | None:
        """The warning that the executor was told of last."""
        try:
            return RuntimeWarn.model_validate_json(self._file(executor, "warned").read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def tell_signals(self, executor: str, sent: Sequence[SentSignal]) -> None:
        """Tell the executor which signals its tasks are to get, the last ones."""
        draft = self._file(executor, "draft-signals")
        write_private(draft, json.dumps(sent))
        draft.replace(self._file(executor, "signals"))

    def signals(self, executor: str) -> list[SentSignal]:
        """The signals that the executor was told of last."""
        try:
            return [SentSignal(*each) for each in json.loads(self._file(executor, "signals").read_bytes())]
        except (FileNotFoundError, ValueError, TypeError):
            return []

    def tell_cancelled(self, executor: str, tasks: str) -> None:
        """Tell the executor which tasks of its app are cancelled, as a list (semantics X4)."""
        draft = self._file(executor, "draft-cancelled")
        write_private(draft, tasks)
        draft.replace(self._file(executor, "cancelled"))

    def cancelled(self, executor: str) -> str:
        """The tasks of which the executor was told last that they are cancelled, as a list; "" for none."""
        try:
            return self._file(executor, "cancelled").read_text(encoding="utf-8")
        except (FileNotFoundError, ValueError):
            return ""

    def hand_token(self, executor: str, token: str) -> None:
        """Give the executor, if it was started, another token of its grant."""
        if self.lock_file(executor).exists():
            draft = self._file(executor, "draft-token")
            write_private(draft, token)
            draft.replace(self._file(executor, "token"))

    def handed_token(self, executor: str) -> str:
        """The token that it was given last, "" if it has the one with which it was started."""
        with contextlib.suppress(FileNotFoundError):
            return self._file(executor, "token").read_text()
        return ""

    def call(self, executor: str) -> None:
        """Tell the executor that somebody wants to run a command in its cell."""
        self._file(executor, "called").touch()

    def called(self, executor: str) -> bool:
        """Whether it was told so since the last call."""
        try:
            self._file(executor, "called").unlink()
        except FileNotFoundError:
            return False
        return True

    def only_company(self, company: str) -> str:
        """The worker's first company: without cells the only one, in cells with its user's folders."""
        path = self.path / "company"
        if not path.exists():
            write_private(path, company)
        return path.read_text()

    def program_log(self) -> Path:
        """The file with the executors' own messages."""
        return self.path / "executors.log"

    def lock_file(self, executor: str) -> Path:
        """The executor's lock file. Its path identifies the executor on this machine, whatever its cluster."""
        return self._file(executor, "lock")

    def claim_worker(self) -> int | None:
        """Lock the worker. Returns the descriptor that holds the lock, None if another agent has it."""
        return try_lock(self.path / "agent.lock")

    def claim_executor(self, executor: str) -> int | None:
        """Lock the executor. Returns the descriptor that holds the lock, None if the executor is running."""
        return try_lock(self.lock_file(executor))

    def name_holder(self, lock: int, holder: Holder) -> None:
        """Write the holder of the lock into the lock file."""
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(holder._asdict()).encode(), 0)

    def known(self) -> list[Holder]:
        """The executors that have a lock file, running or not, ordered by file name."""
        return [_holder(path) for path in sorted(self._executors.glob("*.lock"))]

    def is_running(self, executor: str) -> bool:
        """Whether a process holds the executor's lock."""
        with contextlib.suppress(FileNotFoundError):
            return is_locked(self.lock_file(executor))
        return False

    def reserve_exit(self, executor: str) -> None:
        """Take the space that the executor's exit note needs, so that a full disk keeps no end. Raises: OSError."""
        write_private(self._file(executor, "room"), " " * _NOTE_BYTES)

    def write_exit(self, executor: str, note: ExitNote) -> None:
        """Write the executor's exit note, unless it has one, into the space that was reserved. Raises: OSError."""
        if self._file(executor, "exit").exists():
            return
        room = self._file(executor, "room")
        with os.fdopen(private_file(room, os.O_WRONLY), "wb") as file:
            file.write(note.model_dump_json().encode())
            file.truncate()
        room.replace(self._file(executor, "exit"))

    def unwritable(self) -> str:
        """Why the folder takes not even what says how an executor ended, such as a full disk; "" if it does."""
        draft = self._executors / f"room-{os.getpid()}"
        try:
            write_private(draft, " " * _NOTE_BYTES)
        except OSError as error:
            return error.strerror or str(error)
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
        return ""

    def read_exit(self, executor: str) -> ExitNote | None:
        """The executor's exit note; None if there is none or a power failure has damaged it."""
        try:
            return ExitNote.model_validate_json(self._file(executor, "exit").read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def forget(self, executor: str) -> None:
        """Remove the files of an executor whose end is in the log."""
        self.remove_scratch(executor)
        remove_tree(self.told(executor))
        for kind in ("room", "exit", "warned", "signals", "cancelled", "called", "token", "lock"):
            self._file(executor, kind).unlink(missing_ok=True)

    def note_gpu_use(self, use: Mapping[str, float]) -> None:
        """Note how much of each GPU is used, in percent, by its address. Raises: OSError."""
        write_private(self.path / "gpu-use.json", json.dumps({"at": time.time(), "use": dict(use)}))

    def gpu_use(self, addresses: Sequence[str]) -> dict[str, float] | None:
        """How much of these GPUs is used; None if that is not known of one of them, or was noted too long ago."""
        if not addresses:
            return None
        try:
            noted = json.loads((self.path / "gpu-use.json").read_text())
            fresh = abs(time.time() - float(noted["at"])) < KNOWN_FOR_S
            return {address: float(noted["use"][address]) for address in addresses} if fresh else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def claim_cpus(self, count: int) -> list[int]:
        """Reserve `count` CPUs for this process until it ends, none shared with an executor of any worker here.

        Returns an empty list if fewer are free.
        """
        folder = self.root / "cpus"
        folder.mkdir(mode=0o700, exist_ok=True)
        choosing = os.open(folder / "choosing", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(choosing, fcntl.LOCK_EX)
        claimed: dict[int, int] = {}
        try:
            for cpu in sorted(os.sched_getaffinity(0)):
                if len(claimed) < count and (lock := try_lock(folder / str(cpu))) is not None:
                    claimed[cpu] = lock
            if len(claimed) < count:
                for lock in claimed.values():
                    os.close(lock)
                claimed.clear()
        finally:
            os.close(choosing)
        return list(claimed)

    def _file(self, executor: str, kind: str) -> Path:
        return self._executors / f"{_file_name(executor)}.{kind}"


def _holder(path: Path) -> Holder:
    executor = unquote(path.name.removesuffix(".lock"))
    try:
        return Holder(**{"executor": executor, **json.loads(path.read_bytes())})
    except (FileNotFoundError, ValueError, TypeError):
        return Holder(executor, app_of(executor), 0)


def _file_name(name: str) -> str:
    quoted = quote(name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
