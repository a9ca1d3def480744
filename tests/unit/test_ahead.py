"""When `fairlog audit` has a child at its side, and that none is ever left behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlog.cli.main import cli
from fairlog.cli.sources import length
from recovery import ahead
from recovery.ahead import ahead_of
from recovery.audit import Audit
from recovery.failover.fork import Child
from recovery.replay.chain import Entry
from tests.unit.recorded import rechained
from tests.unit.test_audit import LOG, edited, exported, position, run

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The children forked in a test, for which few entries count as many here, and two cores are there.

    A thread that another test has left in this process keeps no child from being forked.
    """
    forked: list[int] = []

    class Noted(Child):
        def __init__(self, work: Callable[[], int]) -> None:
            super().__init__(work)
            forked.append(self._pid)

    monkeypatch.setattr(ahead, "Child", Noted)
    monkeypatch.setattr(ahead, "LEAST", len(LOG))
    monkeypatch.setattr(ahead, "_cores", lambda: 2)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    return forked


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_long_log_is_audited_by_two_processes_of_which_none_is_left(tmp_path: Path, pids: list[int]) -> None:
    answer = run(exported(tmp_path, LOG))
    assert f"{len(LOG)} entries" in answer.output
    assert LOG[-1].digest in answer.output
    assert len(pids) == 1
    assert not is_there(pids[0])


def test_a_fault_is_named_alike_with_a_child_at_work(
    tmp_path: Path, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rechained(edited(position("ExecutorAllocated", app="a5"), cores=3))
    file = exported(tmp_path, log)
    by_two = run(file, "--json").output
    assert len(pids) == 1
    monkeypatch.setattr(ahead, "LEAST", len(LOG) + 1)
    assert (run(file, "--json").output, len(pids)) == (by_two, 1)


def test_one_process_audits_what_is_short_or_only_a_span_of_a_log(tmp_path: Path, pids: list[int]) -> None:
    short = exported(tmp_path, LOG[: LOG[-1].turn - 1], "short.jsonl")
    for arguments in ((short,), (exported(tmp_path, LOG), "--from", 2), (exported(tmp_path, LOG), "--to", len(LOG))):
        assert run(*arguments).exit_code == 0
    assert pids == []


@pytest.mark.parametrize("end", ["", "no JSON", '{"seq":7}'])
def test_one_process_audits_a_file_whose_length_its_end_does_not_tell(
    tmp_path: Path, pids: list[int], end: str
) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(end)
    assert run(file).exit_code == 1
    assert pids == []


def test_one_process_audits_what_cannot_be_read_twice(tmp_path: Path, pids: list[int]) -> None:
    text, pipe = exported(tmp_path, LOG).read_text(), tmp_path / "pipe"
    assert CliRunner().invoke(cli, ["audit", "-"], input=text).exit_code == 0
    os.mkfifo(pipe)
    both_ends = os.open(pipe, os.O_RDWR)
    with pipe.open("rb") as reader:
        os.write(both_ends, text.encode())
        os.close(both_ends)
        assert length(reader) == 0
        assert reader.read().decode() == text
    assert pids == []


def test_a_child_does_not_outlive_an_audit_that_is_interrupted(pids: list[int]) -> None:
    never, unwritten = os.pipe()

    def stuck() -> Iterator[Entry]:
        os.read(never, 1)
        yield from ()

    def interrupted() -> Iterator[Entry]:
        yield from ()
        raise KeyboardInterrupt

    def audited_by_two() -> None:
        with ahead_of(stuck, len(LOG)):
            list(Audit().deviations(interrupted()))

    with pytest.raises(KeyboardInterrupt):
        audited_by_two()
    assert [is_there(pid) for pid in pids] == [False]
    os.close(never)
    os.close(unwritten)
