"""A worker's folder whose disk is full: what cannot be kept is said, and nothing of it is left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from workers import rundir
from workers.rundir import ExitNote, RunDir


def test_a_full_disk_is_found_before_an_executor_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RunDir(tmp_path, "w1")
    files.make()
    assert files.unwritable() == ""

    def refuse(path: Path, _: str) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rundir, "write_private", refuse)
    assert files.unwritable() == "No space left on device"
    with pytest.raises(OSError, match="No space left"):
        files.write_exit("a.0", ExitNote(app="a", reason="exited"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
