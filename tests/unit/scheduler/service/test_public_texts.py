"""Every text of every command and event is public by decision, or stays out of what is public."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct

from recovery.replay.rebuild import fold
from scheduler.model import commands as asked
from scheduler.model import events
from scheduler.model.commands import Command, private_of, without_private
from scheduler.model.errors import InvalidCommand
from scheduler.model.sender import NOBODY, local
from scheduler.rules.command.decide import decide
from scheduler.rules.state.cluster import ClusterState
from scheduler.service.inbox import received
from scheduler.store.codec import facts, lines_of
from tests.property.given import shared, submission
from witness.audit.audit import audit

MARK = "zq7x"
IDS = "by its name the log tells which one it is about"
LISTED = "it is a word of a list that the rules, an operator or a worker have made"
KEYED = "it is computed, and tells nothing of what it was computed from"
PLACED = "it says what a worker is, and was stated by whoever runs it"
DECIDED = "decisions depend on it"
TUNED = "it is a setting of the cluster, which only operators make"
PUBLIC: dict[str, str] = {
    IDS: "app company user account token replaces worker executor driver master key by executors workers stop "
    "claimant claimant_company window department parent SetLimit.name LimitSet.name",
    LISTED: "kind kinds resources executor_resources task_resources driver_resources scopes role part share shares "
    "rule borrow_limit lend_limit sizing requested driver amounts offer addresses signal warn reclaim_signal "
    "CommandRefused.error company_policy user_policy app_policy placement worker_selection max_driver_share",
    KEYED: "hash public signature digest known_digest reads",
    PLACED: "node host rack labels taints AddWindow.reason WindowAdded.reason",
    DECIDED: "after prefer preferred_hosts pending notify_at require avoid tolerate prefer_labels image",
    TUNED: "settings archive_url notify_targets",
}
"""Why a text is public -> the fields, of one type if it is named."""
PRIVATE = {
    "SubmitApp.name",
    "SubmitApp.command",
    "SubmitApp.env",
    "SubmitApp.cwd",
    "SubmitApp.array",
    "SubmitApp.near",
    "SubmitApp.executor_command",
    "SubmitApp.output",
    "SubmitApp.error",
    "SubmitApp.script",
    "SubmitApp.comment",
    "SubmitApp.notify",
    "KillApp.reason",
    "SignalApp.reason",
    "CancelTask.reason",
    "RequeueApp.reason",
    "FinishApp.detail",
    "DrainWorker.reason",
    "AddAccount.display",
    "ChangeAccount.display",
}
"""What is kept in the private part."""
VEILED = {"EndApp.detail", "EndedExecutor.unstartable", "EndedExecutor.detail", "EndedDriver.detail"}
"""What a worker says, which is logged without what is private (`test_veil`)."""
FOLLOWING = {
    "AppRemoved.detail",
    "ExecutorRemoved.detail",
    "WorkerChanged.reason",
    "AccountAdded.display",
    "AccountChanged.display",
    "CommandRefused.message",
}
"""What follows from commands in events, and is empty or veiled."""


def is_text(kind: Any) -> bool:
    """Whether values of the type hold a text that is not one of a few."""
    if kind is str:
        return True
    if get_origin(kind) is Literal:
        return False
    if isinstance(kind, type) and (issubclass(kind, Struct) or hasattr(kind, "_fields")):
        return any(is_text(each) for each in get_type_hints(kind).values())
    return any(is_text(each) for each in get_args(kind))


def texts(kinds: Iterable[type[Struct]]) -> set[str]:
    """The fields that hold text, as TYPE.FIELD."""
    return {
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, of in get_type_hints(kind).items()
        if name in kind.__struct_fields__ and is_text(of)
    }


def test_each_text_is_public_by_decision_or_private_or_veiled() -> None:
    public = {name for names in PUBLIC.values() for name in names.split()}
    stated, followed = texts(get_args(Command)), texts(get_args(events.Event))
    open_to_all = {field for field in stated | followed if {field, field.partition(".")[2]} & public}
    assert not PRIVATE & open_to_all
    assert not VEILED & open_to_all
    assert not FOLLOWING & open_to_all
    assert stated - open_to_all == PRIVATE | VEILED
    assert followed - open_to_all == FOLLOWING


RUNS: dict[str, Any] = {"company": "acme", "user": "ann", "executor_program": True, "executor_limit": 1}
COMMANDS: list[Command] = [
    asked.SubmitApp(
        app="app-1",
        **RUNS,
        name=MARK,
        command=(MARK,),
        env=(MARK, "FAIRLOG_SCRIPT"),
        cwd=f"/{MARK}",
        near={MARK: "0"},
        output=f"/out/{MARK}",
        error=f"/err/{MARK}",
        script=MARK,
        comment=f"for {MARK}",
        notify=f"https://hooks.example/{MARK}",
    ),
    asked.FinishApp(app="app-2", outcome="failed", detail=f"as {MARK}"),
    asked.AddAccount(account="op/olga", display=f"Olga {MARK}"),
    asked.ChangeAccount(account="op/olga", display=f"O. {MARK}"),
    asked.SignalApp(app="app-1", signal="USR1", reason=f"for {MARK}"),
    asked.CancelTask(app="app-3", task=0, reason=f"for {MARK}"),
    asked.RequeueApp(app="app-1", reason=f"for {MARK}"),
    asked.KillApp(app="app-1", reason=f"for {MARK}"),
    asked.DrainWorker(worker="w1", reason=f"by {MARK}"),
]


def test_each_private_text_is_kept_beside_the_log_which_is_audited_without_it() -> None:
    cluster = shared(w1=8)
    cluster.turn(asked.SubmitApp(app="app-2", **RUNS, executor_command=(MARK,), command=(MARK,)))
    cluster.turn(asked.SubmitApp(app="app-3", company="acme", user="ann", tasks=2, hold=True, command=("true",)))
    for command in COMMANDS:
        cluster.turn(command, by=NOBODY if isinstance(command, asked.SubmitApp | asked.FinishApp) else local(1000))
    public = [record._replace(private=b"") for record in cluster.records]
    assert MARK not in "".join(str(line.as_json()) for record in public for line in lines_of(record))
    assert all(MARK in str(private_of(command)) for command in COMMANDS)
    assert {f"{type(each).__name__}.{name}" for each in COMMANDS for name in changed(each)} == PRIVATE - {
        *("SubmitApp.executor_command", "SubmitApp.array"),
    }
    assert [audit(facts(records)) for records in (cluster.records, public)] == [[], []]
    whole, withheld = ClusterState(), ClusterState()
    for state, records in ((whole, cluster.records), (withheld, public)):
        for fact in facts(records):
            fold(state, fact)
    cluster.check_replay()
    shown = [[state.apps[app].why for app in ("app-1", "app-2")] for state in (whole, withheld)]
    assert shown == [[f"for {MARK}", f"as {MARK}"], ["", ""]]
    assert [state.workers["w1"].said for state in (whole, withheld)] == [f"by {MARK}", ""]
    assert [state.accounts.known["op/olga"].display for state in (whole, withheld)] == [f"O. {MARK}", ""]


def changed(command: Command) -> list[str]:
    """The fields that the log has otherwise."""
    logged = without_private(command)
    return [name for name in command.__struct_fields__ if getattr(command, name) != getattr(logged, name)]


def test_a_worker_that_is_back_drains_for_no_reason_of_before() -> None:
    cluster = shared(w1=8)
    for command in (
        asked.DrainWorker(worker="w1", reason="disks"),
        asked.UndrainWorker(worker="w1"),
        asked.DrainWorker(worker="w1"),
    ):
        cluster.turn(command)
    assert cluster.state.workers["w1"].said == ""
    cluster.check_replay()


@pytest.mark.parametrize(
    "stored",
    [
        '{"type":"AddAccount","account":"op/olga","display":"Olga"}',
        '{"type":"KillApp","app":"app-1","reason":"why"}',
        '{"type":"DrainWorker","worker":"w1","reason":"why"}',
    ],
)
def test_a_log_of_before_in_which_they_are_public_is_decided_alike(stored: str) -> None:
    cluster = shared(w1=8)
    cluster.turn(submission("app-1"))
    match decide(cluster.state, asked.read_command(stored), cluster.state.at)[0]:
        case events.AccountAdded(display=said) | events.WorkerChanged(reason=said):
            assert said
            assert said in stored
        case event:
            assert event == events.AppRemoved(app="app-1", reason="killed")


def test_that_a_reason_to_kill_was_given_stays_in_the_log() -> None:
    assert without_private(asked.KillApp(app="a", reason="b")) == asked.KillApp(app="a", reason="…")
    assert private_of(asked.KillApp(app="a", reason="  ")) is None


@pytest.mark.parametrize(
    "command",
    [
        asked.KillApp(app="a", reason="x" * 1025),
        asked.KillApp(app="a", reason="a\x1b[2J"),
        asked.FinishApp(app="a", detail="a\nb"),
        asked.DrainWorker(worker="w", reason="a\nb"),
        asked.AddAccount(account="acme/ann", display="a\nb"),
        asked.ChangeAccount(account="acme/ann", display="x" * 129),
    ],
)
def test_a_private_text_that_is_too_long_or_on_two_lines_is_refused(command: Command) -> None:
    with pytest.raises(InvalidCommand, match=r"must be at most|control characters|at most 128 characters"):
        received(asked.write_command(command).encode())
