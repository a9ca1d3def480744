"""What a service manager hears."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from scheduler.service.notify import ALIVE, READY, SOCKET_VARIABLE, notify
from tests.waiting import HOPELESS_S


@pytest.fixture
def line() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.settimeout(HOPELESS_S)
        yield line


def test_what_is_said_arrives_as_one_message(
    tmp_path: Path, line: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.bind(str(tmp_path / "socket"))
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "socket"))
    notify(READY, "STATUS=serving")
    assert line.recv(100) == b"READY=1\nSTATUS=serving"


def test_a_socket_without_a_file_is_reached_too(line: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"fairlog-{uuid4().hex}"
    line.bind(f"\0{name}")
    monkeypatch.setenv(SOCKET_VARIABLE, f"@{name}")
    notify(ALIVE)
    assert line.recv(100) == b"WATCHDOG=1"


def test_a_manager_that_does_not_listen_any_more_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "nobody"))
    notify(ALIVE)


def test_a_manager_that_does_not_read_holds_nobody_up(
    tmp_path: Path, line: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.bind(str(tmp_path / "socket"))
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "socket"))
    for _ in range(2_000):
        notify(ALIVE)
    assert line.recv(100) == b"WATCHDOG=1"
