"""The `fairlog up`s that run on this machine for this user, and how other commands find them.

Each writes `up.json` into its data folder, links the folder in the user's data, and holds a lock in it while it lives.
The lock, not the pid, shows that it runs.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fairlog.folders import data_folder
from scheduler.model.errors import FairlogError
from scheduler.service.advice import DATA_VARIABLE
from scheduler.service.locks import is_locked, try_lock
from scheduler.service.private import private_folder, write_private

if TYPE_CHECKING:
    from scheduler.service.keyring import Keyring

RECORD = "up.json"
LOCK = "up.lock"
_LOCK_S = 1.0


class DataInUse(FairlogError):
    """Another `up` uses the data folder."""


class OtherKeys(FairlogError):
    """The environment names other keys than those that an `up` uses."""


KNOWN = "known"
"""The folder in the data folder of an `up` in which its processes keep how far they have known the log."""


class RunningUp(NamedTuple):
    """A running `up`; `started_at` in seconds since the epoch, `ready` once its cluster has started.

    Its API is at `socket`, the path of a Unix socket, and at `api`, an http URL for those with a token.
    """

    pid: int
    url: str
    cluster: str
    data: str
    store_pid: int | None
    started_at: float
    ready: bool = False
    socket: str = ""
    api: str = ""
    masters: int = 2


def default_data() -> Path:
    """The data folder of `up` without --data."""
    return data_folder() / "up"


def advise_for(data: Path) -> None:
    """From now on, what this process and its children advise acts on that data folder, if it is not the default."""
    os.environ[DATA_VARIABLE] = unless_default(data)


def unless_default(data: Path) -> str:
    """The path of the data folder, "" if it is the one without --data."""
    return "" if data.absolute() == default_data().absolute() else str(data.absolute())


def lock(data: Path) -> int:
    """Lock the data folder. Returns the lock's descriptor; closing it releases the lock.

    Raises: DataInUse if another `up` holds it, OSError if the folder cannot be used.
    """
    private_folder(data)
    deadline = time.monotonic() + _LOCK_S
    while (descriptor := try_lock(data / LOCK)) is None:
        if time.monotonic() > deadline:
            found = _read(data)
            other = f"another `fairlog up`{f' (process {found.pid})' if found else ''}"
            raise DataInUse(f"{other} already runs on the data in {data}; stop it with `fairlog down --data {data}`")
        time.sleep(0.02)
    return descriptor


def announce(running: RunningUp) -> None:
    """Let other commands find the `up`; replaces an earlier announcement."""
    data = Path(running.data)
    draft = data / f"{RECORD}.new"
    write_private(draft, json.dumps(running._asdict(), indent=2) + "\n")
    draft.replace(data / RECORD)
    link = _link(data)
    private_folder(link.parent)
    if not link.is_symlink():
        link.symlink_to(data)


def withdraw(data: Path) -> None:
    """Remove the announcement of the `up` on `data`."""
    (data / RECORD).unlink(missing_ok=True)
    _link(data).unlink(missing_ok=True)


def find_running(data: Path | None = None) -> RunningUp | None:
    """The live `up` on `data`, by default this user's `up` started last; None if there is none."""
    if data is not None:
        return _alive(data.absolute())
    return max(_all_running(), key=lambda running: running.started_at, default=None)


def others_than(found: RunningUp | None, named: Path | None) -> dict[str, int]:
    """The data folders of this user's further `up`s, and since when (ms) each runs, if nobody `named` the one found.

    None without an `up`.
    """
    if found is None or named is not None:
        return {}
    return {each.data: round(each.started_at * 1000) for each in _all_running() if each.data != found.data}


def keyring_for(url: str, *, own: bool = False) -> Keyring | None:
    """The keys of FAIRLOG_KEYS unless the `up`'s `own` are asked for, else those of this user's `up` at that URL."""
    from scheduler.service.keyring import KEYS_FILE, Keyring, keyring_of_environment  # noqa: PLC0415 (slow to import)

    if not own and (named := keyring_of_environment()) is not None:
        return named
    paths = [Path(running.data) / KEYS_FILE for running in _all_running() if running.url == url]
    return next((Keyring.load(path) for path in paths if path.exists()), None)


def check_own_keys(data: Path) -> None:
    """Raises: OtherKeys if FAIRLOG_KEYS names other keys than those in the folder `data`, which an `up` uses."""
    from scheduler.service.keyring import KEYS_FILE, KEYS_VARIABLE  # noqa: PLC0415 (as in `keyring_for`)

    path, own = os.environ.get(KEYS_VARIABLE), data / KEYS_FILE
    if not path:
        return
    with suppress(OSError):
        if Path(path).read_bytes() == own.read_bytes():
            return
    raise OtherKeys(
        f"{KEYS_VARIABLE} names {path}, and an `up` uses the keys in its data folder: copy that file to {own}, or "
        f"unset {KEYS_VARIABLE}"
    )


def _all_running() -> list[RunningUp]:
    links = _links()
    folders = [default_data(), *(sorted(links.iterdir()) if links.is_dir() else [])]
    return [running for folder in folders if (running := _alive(folder)) is not None]


def _alive(data: Path) -> RunningUp | None:
    with suppress(OSError):
        return _read(data) if is_locked(data / LOCK) else None
    return None


def _read(data: Path) -> RunningUp | None:
    try:
        return RunningUp(**json.loads((data / RECORD).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _links() -> Path:
    return data_folder() / "running"


def _link(data: Path) -> Path:
    from hashlib import blake2b  # noqa: PLC0415 (whoever looks for an `up` does without)

    return _links() / blake2b(os.fsencode(data), digest_size=8).hexdigest()
