"""What an executor carries of the commands that people run in its cell."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from threading import Event
from typing import Any, cast

import msgspec
import pytest

from fairlog.api.exchange import MAX_BODY
from scheduler.store.visits import CHUNK_BYTES, Orders, Report, Visit
from tests.waiting import HOPELESS_S, wait_until
from workers.cell import Cell, EndedTask
from workers.rundir import RunDir
from workers.visits import ExecutorVisits

PIPE_BYTES = 512 * 1024
SAID = bytes(range(256)) * (PIPE_BYTES // 256)


class Printer:
    """A cell in which every command writes `SAID` to its output and to its errors, and stays."""

    alive = True

    def visit(self, *given: Any, tty: bool) -> int:
        assert not tty
        for end in given[3][1:]:
            fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            assert os.write(end, SAID) == len(SAID)
        return 7

    def tops(self) -> dict[int, int]:
        return {}

    def signal(self, *_: object) -> None:
        pass


class Server:
    """A door to a server that takes requests of `MAX_BODY` bytes, and tells to wait from call to call in `full`."""

    def __init__(self, full: range) -> None:
        self.reports: list[Report] = []
        self.answers = Event()
        self.answers.set()
        self._full = full

    def visits(self) -> list[Visit]:
        return [Visit("one", ("cat",))]

    def attend(self, report: Report) -> Orders:
        assert len(msgspec.json.encode(report)) <= MAX_BODY
        assert self.answers.wait(HOPELESS_S)
        self.reports.append(report)
        return Orders(there=True, full=len(self.reports) in self._full)


@pytest.mark.parametrize("full", [range(0), range(1, 3)])
def test_all_that_a_command_prints_is_carried_in_requests_that_servers_take(tmp_path: Path, full: range) -> None:
    """However much waits at once, and also if it has ended while its visitor is behind."""
    server, files = Server(full), RunDir(tmp_path, "w1")
    visits = ExecutorVisits("a.0", files, lambda: cast("Any", server), cast("Cell", Printer()))
    files.make()
    files.call("a.0")
    visits.begin()
    visits.ended([EndedTask(7, 3 << 8, 0, 0)])
    wait_until(lambda: any(report.exit_code is not None for report in server.reports), "the end of the command")
    for stream in (b"1", b"2"):
        chunks = [chunk for report in server.reports for chunk in report.chunks if chunk[:1] == stream]
        assert max(map(len, chunks)) <= CHUNK_BYTES + 1
        assert b"".join(chunk[1:] for chunk in chunks) == SAID
    assert [report.exit_code for report in server.reports] == [None] * (len(server.reports) - 1) + [3]


def test_an_executor_ends_once_visitors_have_heard_how_their_commands_have_ended(tmp_path: Path) -> None:
    """Also of those that ended just before."""
    server, files = Server(range(0)), RunDir(tmp_path, "w1")
    server.answers.clear()
    visits = ExecutorVisits("a.0", files, lambda: cast("Any", server), cast("Cell", Printer()))
    files.make()
    files.call("a.0")
    visits.begin()
    visits.ended([EndedTask(7, 3 << 8, 0, 0)])
    assert server.reports == []
    server.answers.set()
    visits.close()
    assert server.reports[-1].exit_code == 3
