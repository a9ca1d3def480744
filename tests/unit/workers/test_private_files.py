"""Which files of the system's folders cells hide, and that they are looked for again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from workers import private_files
from workers.private_files import MANY, SEARCHED, SELDOM, PrivateFiles
from workers.sandbox import private_files as hidden_in_cells

if TYPE_CHECKING:
    import pytest


def made(root: Path, *names: str, mode: int = 0o644) -> None:
    """Files of that mode, in folders that everybody may enter."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
        (root / name).chmod(mode)


def names(root: Path, *shown: str) -> set[str]:
    """What is hidden below the folder."""
    found = PrivateFiles((root / each for each in shown), searched=[root]).paths()
    return {str(path.relative_to(root)) for path in found}


def test_what_others_of_the_machine_cannot_read_is_hidden_and_nothing_else(tmp_path: Path) -> None:
    made(tmp_path, "a/open", "a/b/open", "closed/inner", "unentered/inner")
    made(tmp_path, "a/token", "a/b/key", mode=0o600)
    made(tmp_path, "a/of-the-group", mode=0o640)
    (tmp_path / "closed").chmod(0o750)
    (tmp_path / "unentered").chmod(0o744)
    (tmp_path / "a/link").symlink_to(tmp_path / "a/token")
    assert names(tmp_path) == {"a/token", "a/b/key", "a/of-the-group", "closed", "unentered"}
    assert names(tmp_path / "nowhere") == set()


def test_what_is_to_be_shown_is_although_the_folder_above_is_private(tmp_path: Path) -> None:
    made(tmp_path, "python/lib/code", "python/lib/key", "python/key", mode=0o600)
    (tmp_path / "python").chmod(0o700)
    assert names(tmp_path, "python") == set()
    assert names(tmp_path, "python/lib") == {"python/key"}
    assert names(tmp_path, ".") == {"python"}  # all of it is searched nevertheless


def test_a_folder_with_many_private_files_is_hidden_as_a_whole(tmp_path: Path) -> None:
    made(tmp_path, *(f"a/many/{number}" for number in range(MANY + 1)), mode=0o600)
    made(tmp_path, *(f"a/few/{number}" for number in range(MANY)), mode=0o600)
    assert names(tmp_path) == {"a/many", *(f"a/few/{number}" for number in range(MANY))}
    assert len(names(tmp_path, "a/many/0")) == 2 * MANY


def test_a_search_takes_a_small_part_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 2.0, 2.0 + 2 * SELDOM - 1, 2.0 + 2 * SELDOM, 900.0])
    monkeypatch.setattr(private_files, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    found = PrivateFiles((), searched=[tmp_path])
    assert found.paths() == ()
    made(tmp_path, "key", mode=0o600)
    assert [len(found.paths()) for _ in range(2)] == [0, 1]


def test_cells_hide_files_where_people_keep_theirs_but_not_what_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(map(str, SEARCHED)) == {"/opt", "/usr/local"}
    made(tmp_path, "shared/key", "writable/key", "other/key", mode=0o600)
    monkeypatch.setattr("workers.sandbox._all_code", lambda: {tmp_path / "code"})
    made(tmp_path, "code/key", mode=0o600)
    found = hidden_in_cells((f"{tmp_path}/shared", f"{tmp_path}/writable:rw"))
    monkeypatch.setattr(found, "_searched", (tmp_path,))
    assert found.paths() == (tmp_path / "other/key",)
