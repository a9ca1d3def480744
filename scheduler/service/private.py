"""Files and folders that only their owner can use, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE, FOLDER, UMASK = 0o600, 0o700, 0o077


class NotPrivate(Exception):
    """Others can read the file; says what to do."""


def private_folder(path: Path) -> Path:
    """Create the folder and its missing parents with mode 0700; existing ones keep their modes. Raises: OSError."""
    for folder in (*reversed(path.parents), path):
        if not folder.exists() or folder == path:
            folder.mkdir(mode=FOLDER, exist_ok=True)
    return path


def private_file(path: Path, flags: int = os.O_WRONLY | os.O_APPEND) -> int:
    """The descriptor of the file, created with mode 0600 if it is missing. Raises: OSError."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, FILE)


def write_private(path: Path, text: str) -> None:
    """Write `text` to the file, created with mode 0600 if it is missing. Raises: OSError."""
    with os.fdopen(private_file(path, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file:
        file.write(text)


def read_private(path: Path) -> bytes:
    """What is in the file of this user. Raises: NotPrivate, OSError."""
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        if os.getuid() not in {about.st_uid, 0}:
            raise NotPrivate(f"{path} belongs to another user; use a file of your own")
        if (mode := stat.S_IMODE(about.st_mode)) & UMASK:
            raise NotPrivate(f"{path} holds secrets and has mode {mode:04o}; run `chmod 600 {path}`")
        return file.read()


@contextmanager
def drafted(path: Path, text: bytes) -> Iterator[Path]:
    """A file beside `path` with the text, on disk, removed after the block unless it was moved. Raises: OSError."""
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with os.fdopen(private_file(draft, os.O_WRONLY | os.O_EXCL), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)
