"""Logs of an earlier edition of the rules, and logs that go on by the present one (semantics H8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.second_edition.rules.permission import VERB_OF
from scheduler.model.commands import (
    AddAccount,
    AddDepartment,
    AddWindow,
    ChangeDepartment,
    ChangeEdition,
    Command,
    MoveCompany,
    RegisterCompany,
    RegisterWorker,
    RemoveDepartment,
    RemoveWindow,
    RequeueApp,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import AppAdmitted, ClusterConfigured, EditionChanged, ExecutorAllocated
from scheduler.model.sender import local
from scheduler.rules.invariants import check
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from scheduler.store.codec import Fact, encode_turn, read_export, told
from tests.property.given import Cluster
from tests.unit.recorded import edited, facts, rechained
from witness.audit.audit import Audit, audit
from witness.whatif import Rules, replayed

GOLDEN = Path(__file__).parents[3] / "golden" / "earlier"
EARLIER = sorted(GOLDEN.glob("*.jsonl"))


def recorded(file: Path) -> list[Fact]:
    with file.open("rb") as text:
        return list(read_export(text))


def crossed(file: Path) -> list[Fact]:
    """The log, gone on with by the present edition: some turns later there is more room, and somebody asks for it."""
    log, state = recorded(file), ClusterState()
    for fact in log:
        state.apply(fact.event, fact.at, fact.cause, fact.private, fact.by)
    previous = log[-1].digest
    commands: tuple[Command, ...] = (
        ChangeEdition(edition=3),
        RegisterCompany(company="new"),
        RegisterWorker(worker="new", node="new", host="new", cores=1024, memory_mb=1 << 22),
        SubmitApp(app="later", company="new", user="zoe", tasks=4, cores=16, command=("true",)),
    )
    for number, command in enumerate(commands):
        turn = Turn(state, state.at + 1000)
        turn.take(command, f"later-{number}", local(1000))
        turn.settle()
        check(state)
        record = encode_turn(turn.entries, turn.commands, first=turn.first, at=turn.at, previous=previous)
        log, previous = [*log, *told(record)], record.digest
    return log


@pytest.mark.parametrize("file", EARLIER, ids=lambda file: file.stem)
def test_a_log_that_goes_on_by_this_edition_is_audited_by_both(file: Path) -> None:
    log = crossed(file)
    audited = Audit()
    assert list(audited.deviations(log)) == []
    assert audited.events == len(log)
    assert audited.decisions > 30
    assert not [hold for hold in audited.state.holds.values() if hold.reason in ("hold", "reclaim")]
    assert any(isinstance(fact.event, ExecutorAllocated) and fact.event.app == "later" for fact in log[-9:])


@pytest.mark.parametrize("file", EARLIER, ids=lambda file: file.stem)
def test_what_an_earlier_master_decided_wrongly_is_found(file: Path) -> None:
    log = crossed(file)
    at = next(number for number, fact in enumerate(log) if isinstance(fact.event, AppAdmitted))
    wrong = rechained(edited(log, at + 1, share="7/8"))
    first = audit(wrong)[0]
    assert (first.seq, first.rule) == (log[at].seq, "C3")


@pytest.mark.parametrize("file", EARLIER, ids=lambda file: file.stem)
def test_what_was_decided_wrongly_behind_the_change_is_found(file: Path) -> None:
    log = crossed(file)
    at = next(number for number, fact in enumerate(log) if getattr(fact.event, "executor", "") == "later.0")
    wrong = rechained(edited(log, at + 1, worker="nowhere"))
    assert audit(wrong)[0].seq == log[at].seq


@pytest.mark.parametrize("file", EARLIER, ids=lambda file: file.stem)
def test_nobody_had_to_leave_by_a_date_and_nobody_has_to(file: Path) -> None:
    """Semantics H7: a cluster whose setting `reclaim` was not `firm` gets a patience of none."""
    log = crossed(file)
    changed = next(number for number, fact in enumerate(log) if isinstance(fact.event, EditionChanged))
    stated = log[changed + 1].event
    assert isinstance(stated, ClusterConfigured)
    assert stated.reclaim_patience_s is None


LATER: tuple[Command, ...] = (
    AddDepartment(department="all"),
    ChangeDepartment(department="all", part="1/2"),
    MoveCompany(company="acme", department="all"),
    AddWindow(window="move", workers=("w",), begin=10**9, end=2 * 10**9),
    RemoveWindow(window="move"),
    RequeueApp(app="app", task=0, executor="app.0", reason="again"),
    RequeueApp(app="app", reason="again"),
    MoveCompany(company="acme", department=""),
    RemoveDepartment(department="all"),
)
"""Commands that earlier editions do not know, each of which has an event that they do not know."""


@pytest.mark.parametrize("accounts", [False, True])
@pytest.mark.parametrize("last", range(len(LATER)), ids=lambda last: type(LATER[last]).__name__)
def test_a_log_whose_change_of_edition_was_taken_out_is_accused_of_what_came_later(
    last: int, *, accounts: bool
) -> None:
    """It says of itself that it is an earlier edition's; what that one does not know is found and breaks nothing."""
    cluster = Cluster()
    cluster.turn(RegisterCompany(company="acme"), by=local(0))
    cluster.worker("w", 8)
    cluster.turn(
        SubmitApp(app="app", company="acme", user="ann", tasks=1, cores=4, command=("true",), retries=9), by=local(0)
    )
    cluster.turn(StartedExecutor(executor="app.0"))
    if accounts:
        cluster.turn(AddAccount(account="op/root"), by=local(0))
    for command in LATER[: last + 1]:
        cluster.turn(command, by=local(0))
    later = facts(cluster)
    assert audit(later) == []
    first = next(number for number, fact in enumerate(later) if isinstance(fact.command, type(LATER[0])))
    log = rechained([fact for fact in later if not isinstance(fact.event, EditionChanged)])
    found = {each.seq for each in audit(log)}
    unknown = {fact.seq for fact in log[first - 1 :] if fact.command is not None and type(fact.command) not in VERB_OF}
    assert len(unknown) == last + 1
    assert unknown <= found


def test_a_state_of_an_earlier_edition_is_read_back() -> None:
    state = ClusterState()
    for fact in recorded(EARLIER[0]):
        state.apply(fact.event, fact.at, fact.cause, fact.private, fact.by)
    assert restored(list(lines(state))).digest() == state.digest()


def test_what_if_needs_an_edition_for_a_log_that_begins_by_an_earlier_one() -> None:
    log = recorded(EARLIER[0])
    with pytest.raises(InvalidCommand, match="give --edition 3"):
        replayed(log, Rules())
    found = replayed(log, Rules(edition=3))
    assert found["log"]["standing"]["companies"]
