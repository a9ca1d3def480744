"""A worker's folder whose disk is full: what cannot be kept is said, and nothing of it is left."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.disks import disks, filled
from workers import rundir
from workers.rundir import ExitNote, RunDir

__all__ = ["disks"]


def test_a_full_disk_is_found_before_an_executor_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RunDir(tmp_path, "w1")
    files.make()
    assert files.unwritable() == ""

    def refuse(path: Path, _: str) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rundir, "write_private", refuse)
    assert files.unwritable() == "No space left on device"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_how_an_executor_ended_fits_into_the_room_that_was_kept_for_it(disks: Callable[..., Path]) -> None:
    disk = disks("run", 1)
    files = RunDir(disk, "w1")
    files.make()
    files.reserve_exit("a.0")
    filled(disk, 0)
    assert files.unwritable() == "No space left on device"
    files.write_exit("a.0", ExitNote(app="a", reason="exited", exit_code=0))
    files.write_exit("a.0", ExitNote(app="a", reason="failed", exit_code=1))
    assert files.read_exit("a.0") == ExitNote(app="a", reason="exited", exit_code=0)
    files.forget("a.0")
    assert {path.name for path in disk.rglob("*") if path.is_file()} == {"fills-it"}
    filled(disk, 0)
    with pytest.raises(OSError, match="No space left"):
        files.reserve_exit("a.1")
