"""What `srun -N` runs beside each program of a gang: none loses its input, and none ends those that go on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlog.cli.visited import EACH_HOLDER, HELD_S, STAYER, visit_each
from scheduler.model.errors import InvalidCommand, TooManyVisits
from scheduler.store.visits import NOT_YET, Call, Reply, VisitCommand

NOBODY = 999_999_999
"""The number of no process."""
LAST = "exit 1\n"


class Executors:
    """The executors of a gang, each of which answers calls by a function of what it was given and of the call."""

    def __init__(self, *programs: Callable[[list[bytes], Call], Reply]) -> None:
        self.programs = programs
        self.begun: list[tuple[str, bool]] = []
        self.stayed = 0
        self.gone = ""
        """An executor that has ended with its command."""

    def ask(self, view: str, *, app: str) -> dict[str, Any]:
        running = [{"executor": str(rank), "rank": rank, "status": "running"} for rank in range(len(self.programs))]
        return {"view": view, "app": app, "endedAt": None, "executors": running}

    def visit(self, _: str, wanted: VisitCommand) -> Callable[[Call], Reply]:
        stays = wanted.command[-1] == STAYER
        self.begun.append((wanted.executor, stays))
        if stays and wanted.executor == self.gone:
            raise InvalidCommand("the app has no such executor now")
        taken: list[bytes] = []
        left = False

        def call(said: Call) -> Reply:
            nonlocal left
            if left:
                raise InvalidCommand("the command runs no more")
            left = said.leaves
            if stays or left:
                self.stayed += stays
                return Reply([])
            for number, chunk in enumerate(said.chunks, said.first):
                if number == len(taken):  # as the store does
                    taken.append(chunk)
            return self.programs[int(wanted.executor)](taken, said)

        return call


def _visit(executors: Executors) -> list[int]:
    return visit_each(executors, "app-1", ["cat"], len(executors.programs), look=lambda: None)  # type: ignore[arg-type]


@pytest.fixture
def _given(monkeypatch: pytest.MonkeyPatch) -> Any:
    ours, theirs = os.pipe()
    os.write(theirs, b"a line\n")
    os.close(theirs)
    with os.fdopen(ours) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield


@pytest.mark.usefixtures("_given")
def test_input_that_came_before_the_program_began_is_given_to_it(capsysbinary: Any) -> None:
    calls = 0

    def late(taken: list[bytes], call: Call) -> Reply:
        nonlocal calls
        calls += 1
        if calls <= 4:
            return Reply([], error=NOT_YET if calls == 4 else "")
        return Reply([b"1" + each for each in taken], exit_code=0) if call.ended else Reply([])

    assert _visit(Executors(late)) == [0]
    assert capsysbinary.readouterr().out == b"a line\n"


@pytest.mark.usefixtures("_given")
@pytest.mark.parametrize("gone", ["", "0"])
def test_a_program_that_has_failed_stays_for_as_long_as_the_others_go_on(gone: str) -> None:
    calls = 0

    def going(_: list[bytes], __: Call) -> Reply:
        nonlocal calls
        calls += 1
        return Reply([], exit_code=0 if calls > 4 else None)

    executors = Executors(lambda *_: Reply([], exit_code=3), going)
    executors.gone = gone
    assert _visit(executors) == [3, 0]
    assert executors.begun == [("0", False), ("1", False), ("0", True)]
    assert executors.stayed == (0 if gone else 5)


@pytest.mark.usefixtures("_given")
def test_programs_that_have_begun_are_called_on_while_another_may_not_begin_yet(
    capsysbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def first(_: list[bytes], __: Call) -> Reply:
        nonlocal calls
        calls += 1
        return Reply([], exit_code=0 if calls > 4 else None)

    executors = Executors(first, lambda taken, _: Reply([b"1" + each for each in taken], exit_code=0))
    begin = executors.visit

    def full(app: str, wanted: VisitCommand) -> Callable[[Call], Reply]:
        if wanted.executor == "1" and calls <= 4:
            raise TooManyVisits("there are enough")
        return begin(app, wanted)

    monkeypatch.setattr(executors, "visit", full)
    assert _visit(executors) == [0, 0]
    told = capsysbinary.readouterr()
    assert (told.out, told.err) == (b"a line\n", b"note: there are enough; waiting for that\n")


def _held(folder: Path, tenths: str = "") -> subprocess.CompletedProcess[str]:
    """A program that holds its place, in which each tenth of a second is counted as `s` and not waited for."""
    ends = folder / "ends"
    ends.write_text(f"#!/bin/sh\necho $1 > {folder}/ended\n")
    ends.chmod(0o700)
    script = f"s=0; sleep() {{ s=$((s + 1)); {tenths} }}{EACH_HOLDER.removesuffix(LAST)}echo $s; exit 1"
    env = {**os.environ, "FAIRLOG_SCRATCH": str(folder), "FAIRLOG_APP_NUMBER": "17"}
    done = subprocess.run(["sh", "-c", script, str(ends)], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, (folder / "ended").read_text()) == (1, "17\n")
    return done


def test_a_program_ends_the_app_a_minute_after_its_visitor_is_gone(tmp_path: Path) -> None:
    visit = tmp_path / ".visit"
    visit.write_text(str(NOBODY))
    (tmp_path / ".visited").write_text("3\n")
    done = _held(tmp_path, f"[ $s != 10 ] || echo $$ > {visit}; [ $s != 100 ] || echo {NOBODY} > {visit};")
    assert 100 + 590 <= int(done.stdout) <= 100 + 610
    assert done.stderr == ""


def test_a_program_that_nobody_visits_ends_the_app_and_says_little(tmp_path: Path) -> None:
    done = _held(tmp_path)
    assert int(done.stdout) == 10 * HELD_S + 600
    assert done.stderr == ""
