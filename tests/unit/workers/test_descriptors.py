"""Folders that programs fill while they are deleted."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers import descriptors
from workers.launch_helper import empty_as, identity

as_root = pytest.mark.skipif(bool(os.geteuid()), reason="needs root")
ACCOUNT = 54321


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder elsewhere, closed, with a file."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "file").touch()
    folder.chmod(0o500)
    return folder


@pytest.fixture
def swapping(tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a folder in whose place a program puts a link to the victim once somebody has looked at it."""
    top = tmp_path / "top"
    (top / "inner").mkdir(parents=True)
    (top / "inner" / "file").touch()
    looked = {name: getattr(os, name) for name in ("stat", "lstat")}
    swaps: list[str] = []

    def look(name: str) -> None:
        def and_swap(path: object, **named: object) -> object:
            found = looked[name](path, **named)
            if path == "inner" and not swaps:
                swaps.append(str(path))
                (top / "inner").rename(top / "moved")
                (top / "inner").symlink_to(victim)
            return found

        monkeypatch.setattr(os, name, and_swap)

    for name in looked:
        look(name)
    yield top
    assert swaps, "nobody looked"


def test_a_link_that_comes_meanwhile_leads_nowhere(swapping: Path, victim: Path) -> None:
    descriptors.remove_tree(swapping)
    assert stat.S_IMODE(victim.stat().st_mode) == 0o500
    assert list(victim.iterdir()) == [victim / "file"]


def test_a_link_in_the_place_of_the_whole_folder_is_not_followed(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "link").symlink_to(victim)
    descriptors.remove_tree(tmp_path / "link")
    assert stat.S_IMODE(victim.stat().st_mode) == 0o500
    assert list(victim.iterdir()) == [victim / "file"]


@pytest.mark.parametrize("user", [pytest.param("root", marks=as_root), "own"])
def test_everything_goes_whatever_its_modes(tmp_path: Path, user: str) -> None:
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "file").touch()
    (top / "a" / "link").symlink_to("/")
    os.mkfifo(top / "fifo")
    for folder in (top / "a" / "b", top / "a"):
        folder.chmod(0)
    if user == "own":
        descriptors.remove_tree(top)
    else:
        for path in (top / "a" / "b", top / "a", top):
            os.chown(path, ACCOUNT, ACCOUNT)
        empty_as(identity(ACCOUNT), os.open(top, descriptors.FOLDER_NOFOLLOW))
        assert list(top.iterdir()) == []
        top.rmdir()
    assert not top.exists()


@as_root
def test_what_an_account_may_not_delete_is_not_deleted_for_it(tmp_path: Path) -> None:
    """A task can move a folder of others into its own, where both folders can be written."""
    top = tmp_path / "top"
    (top / "of-others").mkdir(parents=True)
    (top / "of-others" / "file").write_text("x")
    (top / "mount" / "point").mkdir(parents=True)
    (top / "own").touch()
    os.chown(top, ACCOUNT, ACCOUNT)
    empty_as(identity(ACCOUNT), os.open(top, descriptors.FOLDER_NOFOLLOW))
    assert sorted(path.name for path in top.rglob("*")) == ["file", "of-others"]
