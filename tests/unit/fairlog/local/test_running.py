"""The `up`s of this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fairlog.local.running import RunningUp, announce, lock, others_than

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_an_up_that_was_started_again_is_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    folders = [tmp_path / "mine", tmp_path / "theirs"]
    locks = [lock(data) for data in folders]
    mine, theirs = (RunningUp(pid, "", "default", str(data), None, 0) for pid, data in enumerate(folders))
    announce(mine)
    announce(theirs)
    announce(mine._replace(pid=7))
    assert [*others_than(mine, None)] == [theirs.data]
    assert others_than(mine, folders[0]) == {}, "nobody who names it can mean another one"
    for descriptor in locks:
        os.close(descriptor)
