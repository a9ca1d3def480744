"""What the embedded store promises before any server runs."""

from __future__ import annotations

import platform
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fairlog.local.store import LONGEST_SOCKET_PATH, EmbeddedStore, StoreUnavailable, bundled_server


def test_the_bundled_server_is_a_program_on_this_machine() -> None:
    assert bundled_server().is_file()


def test_a_machine_without_a_bundled_server_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(StoreUnavailable, match=r"install Redis 7\.0 or Valkey 7\.2 or later and pass --store URL"):
        bundled_server()


def test_the_socket_path_is_short_however_long_the_data_folder_is(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / ("d" * 200) / ("e" * 200))
    assert len(store.url.removeprefix("unix://")) <= LONGEST_SOCKET_PATH


def test_the_socket_path_is_short_however_long_the_runtime_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("r" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    assert len(EmbeddedStore(tmp_path).url.removeprefix("unix://")) <= LONGEST_SOCKET_PATH


def test_two_data_folders_have_two_sockets_and_one_has_one_however_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert EmbeddedStore(tmp_path / "a").url != EmbeddedStore(tmp_path / "b").url
    assert EmbeddedStore(tmp_path / "a").url == EmbeddedStore(tmp_path / "link").url


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for sockets whose path is short enough for them, unlike that of `tmp_path`."""
    with TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.mark.usefixtures("runtime")
def test_the_socket_lies_in_a_folder_that_only_its_owner_may_enter(tmp_path: Path) -> None:
    folder = Path(EmbeddedStore(tmp_path).url.removeprefix("unix://")).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_runtime_folder_that_others_may_enter_is_refused(tmp_path: Path, runtime: Path) -> None:
    (runtime / "fairlog").mkdir()
    (runtime / "fairlog").chmod(0o755)
    with pytest.raises(StoreUnavailable, match="nobody else can enter"):
        EmbeddedStore(tmp_path)
