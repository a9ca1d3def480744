"""Signs of life: files by which this machine knows its masters and workers, also while the store is away.

Each process has a file named after its id in a folder of its user, and touches it whenever it tells the service manager
that it is alive. One that hangs stops touching it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from scheduler.service.private import FOLDER, write_private

FOLDER_VARIABLE = "FAIRLOG_SIGNS"
"""Environment variable: the folder, if others than this user are to see the signs."""
RECENT_S = 20.0
"""An older sign is that of a process that hangs. One that waits for a store that hangs has at most this age."""
_FORGOTTEN_S = 3600.0
_SERVICES = Path("/run")
"""Where service managers give services a folder, `fairlog-NAME`."""
_about: dict[str, Any] = {}


def live_as(store_url: str, cluster: str, names: Iterable[str]) -> None:
    """Have this process, and those that it forks, give signs of life as `names`, such as "worker w1".

    What knows no store names its API servers instead, and no cluster.

    `{pid}` in a name stands for the process's id.
    """
    _about.clear()
    _about.update(store=_place(store_url), cluster=cluster, names=list(names))


def beat() -> None:
    """Give a sign of life; nothing happens unless this process `live_as` something."""
    if not _about:
        return
    with suppress(OSError):
        path, pid = _path(), os.getpid()
        if _about.get("pid") == pid:
            with suppress(FileNotFoundError):
                os.utime(path)
                return
        _clear(path.parent)
        _about["pid"] = pid  # a file of that name may be left of a process that had the same id
        write_private(path, json.dumps(_about))
        if FOLDER_VARIABLE in os.environ:
            path.chmod(0o644)


def end() -> None:
    """Take the sign back."""
    if _about:
        with suppress(OSError):
            _path().unlink(missing_ok=True)


def living(store_url: str, cluster: str) -> list[str]:
    """What lives on this machine of the cluster, as far as this user can see."""
    found: dict[str, None] = {}
    for path in _signs():
        with suppress(OSError, ValueError, TypeError, KeyError):
            if time.time() - path.stat().st_mtime < RECENT_S:
                said = json.loads(path.read_text())
                if (said["store"], said["cluster"]) == (_place(store_url), cluster) and _runs(said["pid"]):
                    found |= dict.fromkeys(str(name).replace("{pid}", str(said["pid"])) for name in said["names"])
    return sorted(found)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _place(store_url: str) -> str:
    """The URL without what differs between users."""
    return store_url.partition(":")[2].lstrip("/").partition("?")[0].rpartition("@")[2]


def _signs() -> Iterator[Path]:
    for folder in dict.fromkeys((_folder(), *_SERVICES.glob("fairlog-*"))):
        with suppress(OSError):
            yield from sorted(folder.glob("*.alive"))


def _path() -> Path:
    folder = _folder()
    folder.mkdir(mode=FOLDER, parents=True, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise PermissionError(folder)
    return folder / f"{os.getpid()}.alive"


def _folder() -> Path:
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        return Path(runtime, "fairlog")
    return Path(f"/tmp/fairlog-{os.getuid()}")  # noqa: S108 (its owner is checked)


def _clear(folder: Path) -> None:
    """Remove the signs of processes that were killed long ago."""
    for path in folder.glob("*.alive"):
        with suppress(OSError):  # others clear it too
            if time.time() - path.stat().st_mtime > _FORGOTTEN_S:
                path.unlink()
