"""The log played turn by turn: each frame is the cluster of that moment, at the log's own pace or another."""

from __future__ import annotations

import json
import math
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from msgspec import to_builtins
from msgspec.structs import replace

from fairlog.cli.main import cli
from fairlog.cli.verbs.replay import LONGEST_PAUSE_S, SHOWN_EVERY_S, Pace
from recovery.replay.bounds import Bound
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import AppChanged, AppRemoved, Computed
from scheduler.model.resources import Resources
from scheduler.rules.stage.turn import decision_of
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import shares, workers
from scheduler.store.codec import read_export
from tests.property.histories import DENSE, History, played
from tests.unit.recorded import facts
from tests.unit.witness.audit.test_audit import LOG, exported, position
from witness.playback import Playback, TurnFrame, told

ROOT = Path(__file__).parents[3]
TURNS = {record.turn: record for record in LOG}
"""Of each turn its last entry."""


def run(*arguments: object) -> Result:
    return CliRunner(env={"FAIRLOG_STORE": None, "HOME": "/nowhere"}).invoke(cli, ["replay", *map(str, arguments)])


@settings(max_examples=15)
@given(DENSE)
def test_each_frame_of_any_history_is_the_cluster_of_that_moment(history: History) -> None:
    cluster = played(history)
    state, folded = ClusterState(), 0
    log = facts(cluster)
    for frame in Playback(log).frames():
        for logged in cluster.log[folded : frame.seq]:
            state.apply(logged.event, at=logged.at, cause=logged.cause)
        folded = frame.seq
        said = frame.as_json()
        assert (frame.at, said["workers"]) == (log[folded - 1].at, to_builtins(workers(state)))
        there = [{key: value for key, value in each.items() if key != "pending"} for each in said["companies"]]
        assert there == to_builtins(shares(state))["companies"]
        pending = sum(app.state == "pending" and app.ready for app in state.apps.values())
        assert said["queue"] == {"pending": pending, "waiting": len(state.waiting)}
        assert sum(each["pending"] for each in said["companies"]) == pending
    assert folded == len(log)


def test_what_an_app_asks_for_is_told_with_and_without_a_number_of_executors() -> None:
    changed = AppChanged(app="a", requested=Resources(8, 4096), sizing=Computed())
    assert told(changed) == "a asks for 8 cores"
    assert told(replace(changed, executor_limit=3)) == "a asks for 3 executors"


def test_json_is_an_object_for_each_turn_with_its_decisions(tmp_path: Path) -> None:
    frames: list[dict[str, Any]] = [
        json.loads(line) for line in run(exported(tmp_path, LOG), "--json").output.split("\n") if line
    ]
    assert [frame["seq"] for frame in frames] == [record.seq for record in TURNS.values()]
    decided = [each for frame in frames for each in frame["decisions"]]
    assert [each["seq"] for each in decided] == [
        r.seq for r in LOG if r.command is None and decision_of(r.event, r.cause) is not None
    ]
    assert list(frames[0]) == ["seq", "at", "companies", "queue", "workers", "decisions"]


def test_where_there_is_no_terminal_each_turn_is_a_line(tmp_path: Path) -> None:
    lines = run(exported(tmp_path, LOG)).output.splitlines()
    assert len(lines) == len(TURNS)
    admitted = position("AppAdmitted", app="a1")
    (line,) = (line for line in lines if line.lstrip().startswith(str(TURNS[LOG[admitted - 1].turn].seq)))
    assert "0 pending, 1 admitted, 8 of 32 cores granted  acme 50.0%" in line
    assert "a1 of ann at acme admitted; a1.0 gets 4 cores on w2; a1.1 gets 4 cores on w1" in line


def test_a_span_begins_and_ends_with_whole_turns(tmp_path: Path) -> None:
    file = exported(tmp_path, LOG)
    begins, ends = LOG[8], LOG[15]
    frames = [json.loads(line) for line in run(file, "--from", 9, "--to", 16, "--json").output.splitlines()]
    assert frames[0]["seq"] == TURNS[begins.turn].seq
    assert frames[-1]["seq"] == ends.seq
    whole = [json.loads(line) for line in run(file, "--json").output.splitlines()]
    assert frames[0] in whole


def test_a_span_behind_the_end_is_refused(tmp_path: Path) -> None:
    answer = run(exported(tmp_path, LOG), "--from", 999)
    assert (answer.exit_code, answer.output) == (1, f"Error: the log ends at position {len(LOG)}, before 999\n")
    with pytest.raises(InvalidCommand):
        list(Playback([]).wind(Bound()))


@pytest.mark.parametrize("speed", ["0", "-1", "nan", "inf", "fast", "1e9", ""])
def test_a_speed_that_makes_no_sense_is_wrong_usage(tmp_path: Path, speed: str) -> None:
    answer = run(exported(tmp_path, LOG), "--speed", speed)
    assert answer.exit_code == 2
    assert "is not a speed above 0; write it like 60, 0.5 or 60x" in answer.output


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waited: list[float] = []

    def pause(self, seconds: float) -> None:
        self.waited.append(round(seconds, 3))
        self.now += seconds


def _frames(*at: int) -> list[TurnFrame]:
    return [
        TurnFrame(seq, moment, [], ClusterState(), following)
        for seq, (moment, following) in enumerate(zip(at, (*at[1:], None), strict=True), start=1)
    ]


@pytest.mark.parametrize(
    ("speed", "waited"),
    [
        (1, [1.0, 2.0, LONGEST_PAUSE_S]),
        (2, [0.5, 1.0, LONGEST_PAUSE_S]),
        (1000, [0.001, 0.002, LONGEST_PAUSE_S]),
        (math.inf, []),
    ],
)
def test_frames_come_at_the_logs_own_pace_times_the_speed_and_long_gaps_are_cut(
    speed: float, waited: list[float]
) -> None:
    clock = Clock()
    pace = Pace(speed, clock.pause, lambda: clock.now)
    for frame in _frames(1_000, 2_000, 4_000, 9_000_000):
        pace.wait(frame)
    assert clock.waited == waited


def test_who_is_late_catches_up() -> None:
    clock = Clock()
    pace = Pace(1, clock.pause, lambda: clock.now)
    for frame in _frames(0, 1_000, 2_000):
        pace.wait(frame)
        clock.now += 0.75 if frame.seq == 1 else 0
    assert clock.waited == [0.25, 1.0]


def test_of_frames_that_follow_each_other_closely_only_what_stands_is_drawn() -> None:
    clock = Clock()
    pace = Pace(1, clock.pause, lambda: clock.now)
    drawn = []
    for frame in _frames(0, 10, 20, 30, 500, 510, 520):
        pace.wait(frame)
        if pace.is_worth_showing(frame):
            drawn.append(frame.at)
    assert drawn == [0, 30, 500, 520]
    assert SHOWN_EVERY_S == 0.1


def _on_a_terminal(*arguments: str, interrupted_at: bytes | None = None) -> tuple[int, bytes]:
    """Exit code and output of `fairlog replay` on a terminal, perhaps interrupted once it has shown something."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fairlog", "replay", *arguments]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40", "PYTHONPATH": str(ROOT)}
    playing = subprocess.Popen(command, cwd=ROOT, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while True:
            seen += os.read(ours, 1 << 16)
            if interrupted_at is not None and interrupted_at in seen:
                interrupted_at = None
                playing.send_signal(signal.SIGINT)
    except OSError:
        pass  # the other end of a pseudo-terminal is gone
    finally:
        os.close(ours)
    return playing.wait(30), seen


def test_a_terminal_shows_the_cluster_and_is_left_as_it_was() -> None:
    golden = str(ROOT / "tests" / "golden" / "failover.jsonl")
    with Path(golden).open("rb") as lines:
        ended = [fact.event for fact in read_export(lines) if isinstance(fact.event, AppRemoved)]
    code, seen = _on_a_terminal(golden, "--speed", "100000")
    assert code == 0
    last = seen.rpartition(b"COMPANY")[2]
    assert b"north" in last
    assert f"{ended[-1].app} {ended[-1].reason}".encode() in last
    assert seen.count(b"\x1b[?25l") == seen.count(b"\x1b[?25h") == 1


def test_ctrl_c_ends_it_at_once_and_cleanly() -> None:
    golden = str(ROOT / "tests" / "golden" / "failover.jsonl")
    code, seen = _on_a_terminal(golden, "--speed", "0.01", interrupted_at=b"WORKER")
    assert code == 130
    assert b"Traceback" not in seen
    assert seen.count(b"\x1b[?25l") == seen.count(b"\x1b[?25h") == 1
