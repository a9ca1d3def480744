"""Somebody who has only a file of the log sees what the store would show, up to any position of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fairlog.cli.main import cli
from recovery.replay.rebuild import fold
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import look
from tests.unit.witness.audit.test_audit import LOG, exported, position


def run(*arguments: object) -> Result:
    return CliRunner(env={"FAIRLOG_STORE": None, "HOME": "/nowhere"}).invoke(cli, [*map(str, arguments)])


def seen(view: str, to: int, **arguments: object) -> Any:
    state = ClusterState()
    for fact in LOG[:to]:
        fold(state, fact)
    return look(state, view, arguments)


@pytest.mark.parametrize("to", [position("AppRegistered", app="a2"), position("AppAdmitted", app="a2"), len(LOG)])
@pytest.mark.parametrize("verb", ["apps", "app", "workers", "shares"])
def test_a_verb_shows_the_state_of_a_file_at_a_position_without_a_store(verb: str, to: int, tmp_path: Path) -> None:
    asked = {"app": "a1"} if verb == "app" else {}
    names = ["a1"] if verb == "app" else []
    answer = run(verb, *names, exported(tmp_path, LOG), "--at", to, "--json")
    expected = seen(verb, to, **asked)
    if verb == "apps":
        told = json.loads(answer.output)
        assert [{name: each[name] for name in expected[0]} for each in told] == expected
        assert all(each["reason"] for each in told if each["state"] == "pending")
        assert all(each["waitedMs"] >= 0 for each in told)
        return
    assert (answer.exit_code, json.loads(answer.output)) == (
        0,
        {**expected, "links": {}, "taskStates": []} if verb == "app" else expected,
    )
    assert run(verb, *names, exported(tmp_path, LOG), "--at", to).exit_code == 0


def test_without_a_position_it_is_the_end_of_the_file(tmp_path: Path) -> None:
    answer = run("apps", exported(tmp_path, LOG), "--all", "--json")
    expected = seen("apps", len(LOG), everything=True)
    found = zip(json.loads(answer.output), expected, strict=True)
    assert [{name: told[name] for name in each} for told, each in found] == expected


def test_what_a_file_does_not_hold_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = exported(tmp_path, LOG)
    assert run("app", "nobody", file).output == (
        "Error: no app 'nobody' is known; `fairlog apps --all` lists the apps\n"
    )
    beyond = run("shares", file, "--at", len(LOG) + 1)
    assert (beyond.exit_code, beyond.output) == (
        1,
        f"Error: the log ends at position {len(LOG)}, before {len(LOG) + 1}\n",
    )


def test_the_log_is_printed_from_a_file_as_it_was_exported(tmp_path: Path) -> None:
    file = exported(tmp_path, LOG)
    assert run("log", file, "--json").output == file.read_text()
    lines = file.read_text().splitlines()
    assert run("log", file, "--json", "--at", 12).output.splitlines() == lines[:12]
    assert run("log", file, "--json", "--from", 3, "--to", 5).output.splitlines() == lines[2:5]
    assert run("log", file, "--app", "a1").output.count("a1") >= 4
    assert run("log", file, "--follow").exit_code == 2
