"""When an agent that reaches its cluster through an API asks for news."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from scheduler.model.grants import Grant
from scheduler.service.addresses import UNIX
from scheduler.service.outage import ApiAway
from tests.waiting import wait_until
from workers import api_door
from workers.api_door import ApiAgentDoor
from workers.door import Granted, Holding
from workers.rundir import RunDir

if TYPE_CHECKING:
    from workers.door import Held

TICKS = 5
GRANT = Grant(
    executor="a.0", app="a", company="acme", user="ann", name="n", cores=1, memory_mb=1, tasks=1, command=("true",)
)


def _read(line: socket.socket) -> bytes:
    """What has come; nothing once the line is closed, by either end."""
    try:
        return line.recv(65_536)
    except OSError:
        return b""


class Server(threading.Thread):
    """Answers what waits for nothing, and leaves all other questions open."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.asked: list[str] = []
        self.beat_ms = 60_000
        self._kept: list[socket.socket] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()

    def run(self) -> None:
        while True:
            try:
                self._kept.append(self._socket.accept()[0])
            except OSError:
                return
            threading.Thread(target=self._answer, args=(self._kept[-1],), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        grant = Granted(msgspec.Raw(GRANT.model_dump_json(exclude_defaults=True).encode()), "")
        said = Holding(True, "tag", 0, None, [grant], [], beat_ms=self.beat_ms)  # noqa: FBT003 - a struct
        while head := _read(line):
            self.asked.append(head.split(b" ", 2)[1].decode().partition("?")[2])
            if self.asked[-1].endswith("wait=0"):
                content = msgspec.json.encode(said)
                line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content))

    def close(self) -> None:
        for each in (self._socket, *self._kept):
            each.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        made = Server(Path(folder) / "api")
        made.start()
        yield made
        made.close()


@pytest.fixture
def door(server: Server, tmp_path: Path) -> Iterator[ApiAgentDoor]:
    files = RunDir(tmp_path, "w1")
    files.make()
    made = ApiAgentDoor(f"{UNIX}{server._socket.getsockname()}", "w1", "", files)
    yield made
    made.close()


def test_a_busy_agent_ticks_by_what_it_knows_while_its_question_is_open(
    server: Server, door: ApiAgentDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_door, "WAIT_S", 0.01)
    seen: list[Held] = []

    def answer() -> None:
        seen.append(door.look())
        if len(seen) == TICKS:
            door.stop()

    door.listen(answer)
    assert [list(held.granted) for held in seen] == [["a.0"]] * TICKS
    wait_until(lambda: len(server.asked) > 1, "the open question")
    assert server.asked == ["after=&wait=0", "after=tag&wait=60000"]


def test_what_an_agent_knew_before_a_call_is_not_used_after_it(
    server: Server, door: ApiAgentDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_door, "WAIT_S", 0.01)
    looks = 0

    def answer() -> None:
        nonlocal looks
        door.look()
        door.look()
        looks += 1
        if looks == TICKS:
            door.stop()

    door.listen(answer)
    assert server.asked.count("after=tag&wait=0") >= TICKS


def test_an_agent_asks_another_server_if_its_question_stays_open_too_long(
    server: Server, door: ApiAgentDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_door, "WAIT_S", 0.01)
    monkeypatch.setattr(api_door, "ANSWER_S", 0.05)
    server.beat_ms = 0
    with pytest.raises(ApiAway, match="does not answer"):
        door.listen(lambda: (door.look(), None)[1])
    wait_until(lambda: len(server.asked) > 1, "the open question")
    assert server.asked == ["after=&wait=0", "after=tag&wait=10"]
