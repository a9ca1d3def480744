"""Which folders are no app's: the worker's cells refuse them, and engines do not name them."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

_WHOLE = tuple(map(Path, ("/home", "/media", "/mnt", "/root", "/srv", "/var", "/var/lib")))
"""Folders that hold everybody's: never an app's folder as a whole."""


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
