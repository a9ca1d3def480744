"""Signs of life: what this machine knows of its processes without the store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.service import signs


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(signs.FOLDER_VARIABLE, str(tmp_path))
    yield tmp_path
    signs._about.clear()


def test_a_process_lives_from_its_first_beat_until_it_says_otherwise() -> None:
    signs.live_as("redis://store", "here", ["worker w"])
    assert signs.living("redis://store", "here") == []
    signs.beat()
    signs.beat()
    assert signs.living("redis://store", "here") == ["worker w"]
    assert signs.living("redis://store", "elsewhere") == []
    signs.end()
    assert signs.living("redis://store", "here") == []


def test_what_a_killed_process_with_the_same_id_left_is_overwritten(folder: Path) -> None:
    left = folder / f"{os.getpid()}.alive"
    left.write_text('{"store": "store", "cluster": "other", "names": ["worker x"], "pid": 1}')
    signs.live_as("redis://store", "here", ["worker w"])
    signs.beat()
    assert signs.living("redis://store", "here") == ["worker w"]
    assert signs.living("redis://store", "other") == []


def test_a_sign_that_others_have_just_cleared_away_stops_no_beat(folder: Path) -> None:
    (folder / "1.alive").symlink_to(folder / "gone")
    signs.live_as("redis://store", "here", ["worker w"])
    signs.beat()
    assert signs.living("redis://store", "here") == ["worker w"]
