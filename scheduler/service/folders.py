"""Which folders are no app's: the worker's cells refuse them, and engines do not name them."""

from __future__ import annotations

from pathlib import Path

_WHOLE = tuple(map(Path, ("/home", "/media", "/mnt", "/root", "/srv", "/var", "/var/lib")))
"""Folders that hold everybody's: never an app's folder as a whole."""


def is_personal(real: Path) -> bool:
    """Whether the folder is this user's home, above it, or hidden in it, or holds everybody's: no app's as a whole."""
    home = Path.home().resolve()
    parts = real.relative_to(home).parts if real.is_relative_to(home) else None
    return real in _WHOLE or real in home.parents or parts == () or bool(parts and parts[0].startswith("."))
