"""The folder of a process, and which folders are no app's: cells refuse them, and engines do not name them."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from scheduler.model.errors import FairlogError

_WHOLE = tuple(map(Path, ("/home", "/media", "/mnt", "/root", "/srv", "/var", "/var/lib")))
"""Folders that hold everybody's: never an app's folder as a whole."""


class FolderGone(FairlogError):
    """The folder in which this process was started was deleted or cannot be reached."""

    def __init__(self) -> None:
        super().__init__(f"the current folder {_last_known()} no longer exists; change to another one")


def working_folder() -> Path:
    """The folder of this process. Raises: FolderGone."""
    try:
        return Path.cwd()
    except OSError:
        raise FolderGone from None


def _last_known() -> str:
    try:
        return os.readlink("/proc/self/cwd").removesuffix(" (deleted)")  # noqa: PTH115 - as text
    except OSError:
        return os.environ.get("PWD", "")


def is_personal(real: Path) -> bool:
    """Whether the folder is this user's home, above it, or hidden in it, or holds everybody's: no app's as a whole.

    Root could write those of all users and services: their homes count, and what is below `/var`.
    """
    if os.geteuid():
        return real in _WHOLE or _is_of(Path.home().resolve(), real)
    homes = {Path.home().resolve(), *(Path(user.pw_dir) for user in pwd.getpwall() if user.pw_dir not in {"", "/"})}
    of_services = real.is_relative_to("/var") and not real.is_relative_to("/var/tmp")  # noqa: S108 - everybody's
    return of_services or real in _WHOLE or any(_is_of(home, real) for home in homes)


def _is_of(home: Path, real: Path) -> bool:
    parts = real.relative_to(home).parts if real.is_relative_to(home) else None
    return real in home.parents or parts == () or bool(parts and parts[0].startswith("."))
