"""Small disks for tests, which they fill or make read-only; only root has them, where it may mount."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts small disks of a name and a size (MiB), and further options; skips where this user may not."""
    mounted: list[Path] = []

    def mount(name: str, size_mb: int, *further: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        options = ",".join((f"size={size_mb}m", "mode=755", *further))
        command = ["mount", "-t", "tmpfs", "-o", options, "fairlog-test", str(folder)]
        done = subprocess.run(command, capture_output=True, check=False) if os.geteuid() == 0 else None
        if done is None or done.returncode:
            pytest.skip("only root, where it may mount, has a small disk to fill")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def filled(disk: Path, left: int) -> Path:
    """A file on the disk that leaves so many bytes of it."""
    file = disk / "fills-it"
    with file.open("wb") as written:
        os.posix_fallocate(written.fileno(), 0, shutil.disk_usage(disk).free - left)
    return file
