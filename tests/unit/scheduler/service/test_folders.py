"""The folder of a process that is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fairlog import Client, Executor
from fairlog.engines.owner import own_folder
from scheduler.service.folders import FolderGone, working_folder


@pytest.mark.parametrize(
    "ask",
    [
        working_folder,
        own_folder,
        lambda: Client("redis://127.0.0.1:1").submit(["true"], company="acme", user="ann"),
        lambda: Executor(company="acme", user="ann"),
    ],
)
def test_a_folder_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[], object]
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(FolderGone, match=f"the current folder {folder} no longer exists; change to another one"):
        ask()
