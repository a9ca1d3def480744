"""Logs of an earlier edition of the rules, and logs that go on by the present one (semantics H8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.model.commands import ChangeEdition, Command, RegisterCompany, RegisterWorker, SubmitApp
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import AppAdmitted, ClusterConfigured, EditionChanged, ExecutorAllocated
from scheduler.model.sender import local
from scheduler.rules.invariants import check
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from scheduler.store.codec import Fact, encode_turn, read_export, told
from tests.unit.recorded import edited, rechained
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
