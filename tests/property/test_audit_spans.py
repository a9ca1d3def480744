"""An audit by spans in several processes says to the letter what one process says, whatever is wrong and wherever."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import fakeredis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import asdict

from recovery.replay import snapshot
from scheduler.model.errors import InvariantViolated
from scheduler.rules.entities.ledger import Balance
from scheduler.rules.state.cluster import ClusterState
from scheduler.store.codec import Fact, Record, stored
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from tests.property.given import examples
from tests.property.histories import DENSE, History, played, seeded
from tests.property.test_audit import FAULTS
from tests.unit.recorded import facts, rechained, said
from tests.unit.recorded import stored as written
from witness.audit import spans
from witness.audit.audit import Audit
from witness.audit.shadow_ledger import ShadowLedger

DAMAGES = ("none", "missing", "altered", "of the honest log", "of an edited state", "of another log", "listed only")


def told(audit: Audit) -> tuple[object, ...]:
    """Everything that an audit has found."""
    verdicts = [(str(each), each.first, each.later) for each in audit.verdicts]
    ends = audit.ends_at, audit.digest, audit.blind_from
    return verdicts, audit.events, audit.decisions, ends, set(audit.companies)


def alone(log: EventLog) -> tuple[object, ...]:
    audit = Audit()
    for _ in audit.deviations(log.facts()):
        pass
    return told(audit)


def put(records: Sequence[Record]) -> EventLog:
    log = EventLog(fakeredis.FakeRedis(server=fakeredis.FakeServer()), Keys("spans"))
    for record in records:
        log.store.xadd(log.keys.log, dict(stored(record)), id=f"{record.last}-0")  # type: ignore[arg-type]
    return log


def take(log: EventLog, seqs: Sequence[int], honest: Sequence[Fact]) -> None:
    """Snapshots at these positions: of the log's own states as far as it can be folded, else of the honest log's."""
    for seq in seqs:
        position = log.at(seq)
        assert position is not None
        try:
            state = folded(list(log.facts(to=seq)))
        except InvariantViolated:
            state = folded(honest[:seq])
        snapshot.write(log, state, position)


def folded(log: Sequence[Fact]) -> ClusterState:
    state = ClusterState()
    for fact in log:
        state.apply(fact.event, fact.at, fact.cause, fact.private, fact.by)
    return state


def damage(log: EventLog, seq: int, how: str, honest: Sequence[Fact]) -> None:
    """Have the snapshot at `seq` mislead whoever believes it."""
    key = log.keys.snapshot(seq)
    position = log.at(seq)
    assert position is not None
    if how in ("of the honest log", "of an edited state"):
        state = folded(honest[:seq])
        if how == "of an edited state" and state.companies:
            next(iter(state.companies.values())).last_selected += 1
        state.head = seq
        snapshot.write(log, state, position)
    elif how == "missing":
        log.store.delete(key)
    elif how == "altered":
        part: Any = log.store.lindex(key, 1)
        log.store.lset(key, 1, part[:-1] + bytes([part[-1] ^ 1]))
    elif how == "of another log":
        head: Any = log.store.lindex(key, 0)
        log.store.lset(key, 0, json.dumps({**json.loads(head), "digest": "0" * 64}))
    elif how == "listed only":
        log.store.rpush(log.keys.snapshots, seq + 1_000_000)


def cuts(records: Sequence[Record], random: Random) -> list[int]:
    """Ends of turns."""
    ends = [record.last for record in records[:-1]]
    return sorted(random.sample(ends, min(len(ends), random.randrange(1, 7))))


@given(DENSE, st.randoms(use_true_random=False), st.sampled_from([None, *FAULTS, "digest"]), st.sampled_from(DAMAGES))
@example(seeded(3, 40), Random(1), None, "none")
@examples(20)
def test_several_processes_say_what_one_says(history: History, random: Random, fault: str | None, how: str) -> None:
    honest = facts(played(history))
    log, records = honest, written(honest)
    seqs = cuts(records, random)
    if fault in FAULTS and len(log) > 1:
        # Anywhere, but most of all at a seam: right before it, or behind it.
        near = [at for seq in seqs for at in (seq - 1, seq) if at < len(log)]
        at = random.choice([*near, random.randrange(len(log))])
        changed = FAULTS[fault](log, at, said(log[at]))
        if changed is not None:
            records = written(rechained(changed))
            seqs = cuts(records, random) if random.random() < 0.3 else _ends_near(records, seqs)
    made = put(records)
    take(made, seqs, honest)
    if how != "none" and seqs:
        damage(made, random.choice(seqs), how, honest)
    if fault == "digest":
        _break(made, random.choice(records))
    assert told(spans.audited(made, 2)) == alone(made)


def _ends_near(records: Sequence[Record], seqs: Sequence[int]) -> list[int]:
    """The ends of the turns that now hold these positions."""
    ends = [record.last for record in records]
    return sorted({min((end for end in ends if end >= seq), default=ends[-1]) for seq in seqs})


def _break(log: EventLog, record: Record) -> None:
    """Alter a turn in the store, and leave the digests as they are."""
    entries: Any = log.store.xrange(log.keys.log)
    log.store.delete(log.keys.log)
    for entry, fields in entries:
        if entry == f"{record.last}-0".encode():
            fields[b"at"] = b"%d" % (int(fields[b"at"]) + 1)
        log.store.xadd(log.keys.log, fields, id=entry)


@given(DENSE, st.integers(0, 1 << 16))
@examples(60)
def test_ledgers_that_begin_with_any_state_are_those_of_its_events(history: History, cut: int) -> None:
    log = facts(played(history))
    cut %= len(log) + 1
    kept, state = ShadowLedger(), ClusterState()
    for fact in log[:cut]:
        state.apply(fact.event, fact.at, fact.cause, fact.private, fact.by)
        kept.post(fact.event, state)
    assert _entries(ShadowLedger.of(state)) == _entries(kept)


def _entries(ledger: ShadowLedger) -> dict[str, Any]:
    """Every ledger; a quota is the same whether it was registered or changed, and a user without apps has none."""
    companies = {
        name: (asdict(each.spec), each.sums, {user: sums for user, sums in each.users.items() if sums != Balance()})
        for name, each in ledger._companies.items()
    }
    others = ("_cluster", "_apps", "_workers", "_allocations")
    return {"_companies": companies, **{name: getattr(ledger, name) for name in others}}


@pytest.mark.parametrize("at", [None, 0.2, 0.4, 0.9])
def test_no_part_of_a_log_is_checked_again_by_the_process_that_waits(
    monkeypatch: pytest.MonkeyPatch, at: float | None
) -> None:
    log = facts(played(seeded(5, 60)))
    if at is not None:
        places = range(int(len(log) * at), len(log))
        log = rechained(next(filter(None, (FAULTS["cores"](log, place, said(log[place])) for place in places))))
    records = written(log)
    made = put(records)
    seams = [records[len(records) * part // 6].last for part in (2, 3, 4)]
    take(made, seams, log)
    expected = alone(made)
    monkeypatch.setattr(Audit, "hear_all", _only_in_children(Audit.hear_all))
    counted: list[int] = []
    assert told(spans.audited(made, 2, progress=counted.append)) == expected
    assert counted[-1] == records[-1].last


def _only_in_children(sound: Callable[..., object]) -> Callable[..., object]:
    ours = os.getpid()

    def hear_all(self: Audit, *given: object) -> object:
        assert os.getpid() != ours
        return sound(self, *given)

    return hear_all


def test_a_process_that_dies_leaves_its_spans_to_the_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    records = written(facts(played(seeded(5, 60))))
    log = put(records)
    take(log, [records[len(records) // 3].last, records[len(records) // 2].last], [])
    monkeypatch.setattr(spans, "_check", lambda *_: os._exit(9))
    assert told(spans.audited(log, 2)) == alone(log)


def test_processes_begin_far_from_each_other_and_go_on_until_they_meet() -> None:
    shared = spans._Spans([0, 100, 200, 300, 400], 500)
    assert [shared.begin(), shared.begin()] == [0, 3]
    assert shared.go_on(4)
    assert shared.begin() == 2
    assert [shared.go_on(1), shared.go_on(2)] == [True, False]
    assert shared.begin() is None


def test_a_span_that_nobody_can_begin_with_is_checked_with_the_one_before() -> None:
    shared = spans._Spans([0, 100, 200, 300], 300)
    assert [shared.begin(), shared.begin()] == [0, 2]
    shared.pass_over(2)
    assert shared.begin() == 1
    shared.close(3)
    assert [shared.go_on(2), shared.go_on(3)] == [True, False]
