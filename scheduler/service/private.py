"""Files and folders that only their owner can use, whatever the umask."""

from __future__ import annotations

import os
from pathlib import Path

FILE, FOLDER, UMASK = 0o600, 0o700, 0o077


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
    write_private_bytes(path, text.encode())


def write_private_bytes(path: Path, content: bytes) -> None:
    """As `write_private`."""
    with os.fdopen(private_file(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(content)
