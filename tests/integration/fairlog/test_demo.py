"""The demo, and that each of its checks can fail."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from fairlog.demo.checks import (
    CheckFailed,
    check_acknowledged,
    check_admission,
    check_caps,
    check_end,
    check_tasks,
    check_workers,
    died_with,
    read_story,
    takeover_ms,
)
from scheduler.model.commands import (
    ChangeCompany,
    ChangeEdition,
    Command,
    RegisterCompany,
    RegisterWorker,
    SubmitApp,
)
from scheduler.model.events import AppAdmitted, Event, ExecutorRemoved, MasterElected
from scheduler.model.resources import Resources
from scheduler.rules.entities.grants import Allocation
from scheduler.rules.share.entitlement import entitlement
from scheduler.rules.stage.turn import Entry, Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import look
from scheduler.service.receipts import Receipt
from scheduler.store.codec import Fact
from tests.integration.cli_rig import ROOT, Shell


@pytest.mark.slow
def test_the_guided_run_runs_some_forty_apps_checks_itself_and_leaves_nothing(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home")
    shell.env |= {"TMPDIR": str(tmp_path / "temporary"), "FAIRLOG_LEASE": "3"}
    (tmp_path / "temporary").mkdir()
    answer = shell.run("demo")
    assert answer.code == 0, answer
    assert len(re.findall(r"^ +ok  ", answer.out, re.MULTILINE)) == 7
    shown = re.findall(r"^ +ok  .+|^Checked .+", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    assert shown
    assert {re.sub(r"\d+", "N", line) for line in shown} <= {
        re.sub(r"\d+", "N", line) for line in answer.out.splitlines()
    }
    assert re.search(r"^killed master-\d, the active master", answer.out, re.MULTILINE)
    assert re.search(r"^killed worker-\d, which ran \d+ executors", answer.out, re.MULTILINE)
    assert len(re.findall(r"^\d+\. ", answer.out, re.MULTILINE)) == 40
    assert "pi is about 3.14" in answer.out
    assert list((tmp_path / "temporary").iterdir()) == []
    assert "no `fairlog up`" in shell.run("down").err


def _cluster(*more: Command) -> tuple[ClusterState, list[Entry]]:
    """A worker of 16 cores, the companies rich and poor, and one turn with `more`."""
    turn = Turn(ClusterState(), 1)
    for command in (
        ChangeEdition(edition=3),
        RegisterWorker(worker="w", node="n", host="h", cores=16, memory_mb=16384),
        RegisterCompany(company="rich", cores=32, memory_mb=16384),
        RegisterCompany(company="poor", cores=8, memory_mb=8192),
        *more,
    ):
        turn.take(command)
    turn.settle()
    return turn.state, turn.entries


def _submit(state: ClusterState, *apps: SubmitApp) -> None:
    """Queue `apps`; nobody is admitted yet."""
    turn = Turn(state, 2)
    for app in apps:
        turn.take(app)


def _app(name: str, company: str, cores: int = 8) -> SubmitApp:
    return SubmitApp(app=name, company=company, user="ann", cores=cores, command=("true",))


def _admission(name: str, company: str) -> AppAdmitted:
    return AppAdmitted(app=name, company=company, user="ann", share="0/1")


def _facts(entries: list[Entry]) -> list[Fact]:
    return [Fact(seq, 1, 1, entry.cause, entry.event) for seq, entry in enumerate(entries, start=1)]


def test_the_story_of_a_fair_log_is_told() -> None:
    state, entries = _cluster(_app("a", "rich"), _app("b", "poor"))
    story = read_story(_facts(entries))
    assert story.state.digest() == state.digest()
    assert (story.positions, story.admissions) == (len(entries), 2)


def test_an_admission_that_passes_over_a_lower_share_is_found() -> None:
    state, _ = _cluster(_app("a", "rich"))
    _submit(state, _app("c", "rich", 4), _app("d", "poor"))
    check_admission(state, _admission("d", "poor"), 9, entitlement(state))
    with pytest.raises(
        CheckFailed, match="log position 9: rich was chosen with a share of 1/4, but poor had a lower share, 0"
    ):
        check_admission(state, _admission("c", "rich"), 9, entitlement(state))


def test_an_admission_before_one_that_is_entitled_is_found() -> None:
    """Beside poor, rich is entitled to the 12 cores that it has."""
    state, _ = _cluster(_app("a", "rich"), _app("b", "rich", 4))
    _submit(state, _app("c", "rich", 4), _app("d", "poor"))
    check_admission(state, _admission("d", "poor"), 9, entitlement(state))
    with pytest.raises(CheckFailed, match="log position 9: c was admitted, but poor had an app that is entitled"):
        check_admission(state, _admission("c", "rich"), 9, entitlement(state))


def test_an_admission_without_room_is_found() -> None:
    state, _ = _cluster(_app("a", "rich", 16))
    _submit(state, _app("b", "rich"))
    with pytest.raises(CheckFailed, match="log position 9: b was admitted although no worker has room for it"):
        check_admission(state, _admission("b", "rich"), 9, entitlement(state))


def test_a_company_above_its_cap_is_found() -> None:
    state, _ = _cluster(_app("a", "poor"))
    check_caps(state, 9)
    Turn(state, 2).take(ChangeCompany(company="poor", cores=4, memory_mb=8192))
    with pytest.raises(CheckFailed, match="log position 9: poor is granted 8 cores"):
        check_caps(state, 9)


def test_a_worker_that_is_granted_more_than_it_offers_is_found() -> None:
    state, _ = _cluster(_app("a", "rich"))
    check_workers(state, 5)
    state.workers["w"].executors["x.0"] = Allocation("x.0", "x", "w", Resources(16, 1))
    with pytest.raises(CheckFailed, match="log position 5: worker w is granted 24 cores"):
        check_workers(state, 5)


def test_an_app_that_did_not_finish_is_found() -> None:
    _, entries = _cluster(_app("a", "rich"))
    story = read_story(_facts(entries))
    with pytest.raises(CheckFailed, match=r"^app a did not finish: it is waiting$"):
        check_end(story, ["a"], lambda view, **asked: look(story.state, view, asked))


def test_a_master_that_says_something_else_than_the_log_is_found() -> None:
    _, entries = _cluster()
    story = read_story(_facts(entries))
    check_end(story, [], lambda view, **asked: look(story.state, view, asked))
    with pytest.raises(CheckFailed, match="view of the workers"):
        check_end(story, [], lambda view, **asked: [] if view == "workers" else look(story.state, view, asked))


def _chain(*events: Event) -> list[Fact]:
    return _facts([Entry(event, f"c{number}") for number, event in enumerate(events, start=1)])


def test_an_acknowledged_command_that_the_log_lacks_is_found() -> None:
    records = [replace(record, cause=f"c{record.seq}") for record in _chain(*[MasterElected(master="m")] * 3)]
    check_acknowledged(records, [Receipt("c3", 3), Receipt("c1", 1)])
    for lost in (Receipt("c4", 4), Receipt("c2", 3), Receipt("c2", 0)):
        with pytest.raises(
            CheckFailed, match=f"command {lost.command_id} was acknowledged, but is not at log position {lost.seq}"
        ):
            check_acknowledged(records, [lost])


def test_a_killed_master_that_nobody_follows_is_found() -> None:
    records = [replace(record, at=record.seq * 1000) for record in _chain(*map(_elected, "aab"))]
    assert takeover_ms(records, 2, 2500) == 500
    assert takeover_ms(records, 1, 2500) == 500
    with pytest.raises(CheckFailed, match="no other master was elected after log position 3"):
        takeover_ms(records, 3, 3500)


def _elected(master: str) -> Event:
    return MasterElected(master=master)


def test_the_executors_that_died_with_a_worker_are_told_from_those_that_ended() -> None:
    how: list[tuple[str, Literal["killed", "exited", "failed", "lost"]]] = [
        ("w1", "killed"),
        ("w1", "exited"),
        ("w1", "failed"),
        ("w2", "lost"),
    ]
    ended = [
        ExecutorRemoved(app="a", executor=f"a.{number}", worker=worker, reason=reason)
        for number, (worker, reason) in enumerate(how)
    ]
    assert died_with(_chain(*ended), "w1", 0) == ["a.0", "a.2"]
    assert died_with(_chain(*ended), "w1", 1) == ["a.2"]


def test_a_task_that_was_skipped_is_found() -> None:
    check_tasks("a", 2, ["succeeded", "succeeded"])
    for states in (["succeeded", "queued"], ["succeeded"], []):
        with pytest.raises(CheckFailed, match=r"\d of the 2 tasks of a succeeded"):
            check_tasks("a", 2, states)
