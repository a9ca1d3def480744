"""Whether a worker finds by itself that it can start nothing, and whose fault an error is (semantics W11)."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from workers import fitness
from workers.fitness import EVERY_S, Fitness, fault_of_worker, why_unfit
from workers.rundir import RunDir
from workers.sandbox import NoCell


@pytest.fixture
def files(tmp_path: Path) -> RunDir:
    files = RunDir(tmp_path / "run", "w1")
    files.make()
    return files


def test_a_worker_is_unwell_until_it_has_looked_again(files: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    now, cannot = [0.0], [""]
    monkeypatch.setattr(fitness, "can_make_groups", bool)
    found = Fitness(files, "plain", lambda: now[0], lambda: cannot[0])
    assert found.is_fit()
    assert found.look() == (0, "")
    cannot[0] = "nothing can be started: none left"
    found.met("no room\nat all")
    assert found.look() == (1, "no room at all")
    assert not found.is_fit()
    now[0] += EVERY_S
    assert found.look() == (2, cannot[0])
    found.met(found.verdict.unwell)
    now[0] += EVERY_S - 1
    cannot[0] = ""
    assert found.look() == (3, "nothing can be started: none left")
    now[0] += 1
    assert found.look() == (4, "")
    assert found.is_fit()
    found.failed(OSError(errno.EMFILE, "Too many open files"))
    assert found.look() == (5, "nothing can be started: Too many open files")


def test_a_worker_finds_out_by_itself_that_it_is_unwell(files: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    now, groups = [0.0], [True]
    monkeypatch.setattr(fitness, "can_make_groups", lambda: groups[0])
    found = Fitness(files, "plain", lambda: now[0], str)
    groups[0] = False
    assert found.look() == (0, "")
    now[0] += EVERY_S
    assert found.look() == (1, "no control group can be made any more for what it starts")
    found = Fitness(files, "plain", lambda: now[0], str)  # where none could be made at its start
    now[0] += EVERY_S
    assert found.look() == (0, "")


def test_what_an_app_causes_is_not_the_workers_fault(files: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitness, "probe_cell", lambda _: "")
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/bwrap")
    for error in (NoCell("folder '/x' cannot be an app's"), OSError(errno.ENOENT, "none"), NoCell("No space left")):
        assert fault_of_worker(error, files, "cell") == ""
    for number in (errno.ENOSPC, errno.ENOMEM, errno.EAGAIN):
        said = f"nothing can be started: {os.strerror(number)}"
        assert fault_of_worker(OSError(number, os.strerror(number)), files, "cell") == said
    monkeypatch.setattr(fitness, "probe_cell", lambda _: "no permission")
    assert fault_of_worker(NoCell("none"), files, "cell") == "no cell can be started: no permission"


def test_a_helper_that_does_not_answer_is_the_workers_fault(files: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    at = files.root / "socket"
    monkeypatch.setenv("FAIRLOG_LAUNCH_SOCKET", str(at))
    assert why_unfit(files, "account") == "fairlog-launch does not answer: No such file or directory"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(at))
        listening.listen()
        assert why_unfit(files, "account") == ""
