"""What a master signs: its answers, and the log itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from recovery.archive.reads import recorded
from recovery.replay.rebuild import rebuild
from scheduler.model.commands import KillApp, RegisterCompany
from scheduler.model.events import KeyChanged, LogSealed
from scheduler.model.sender import By, local
from scheduler.service import scheduler as scheduler_module
from scheduler.service import seals
from scheduler.service.client import CommandClient
from scheduler.service.keyring import BadKeys, Keyring
from scheduler.service.receipts import Answer, SignedReceipt, read_receipts, receipt_of, signed_answers, write_receipts
from scheduler.service.scheduler import Scheduler
from scheduler.store.eventlog import EventLog, Position
from scheduler.store.keys import Keys
from scheduler.store.reads import record_read
from witness.audit.audit import audit

KEYS = Keys("sealed")


@pytest.fixture(scope="module")
def ring() -> Keyring:
    return Keyring.new()


def master(fake: Any, ring: Keyring | None, name: str = "m1") -> Scheduler:
    log = EventLog(fake, KEYS)
    made = Scheduler(log, name, lambda: rebuild(log), keyring=ring)
    made.take_over()
    return made


def events(scheduler: Scheduler, kind: type[Any]) -> list[Any]:
    return [fact.event for fact in scheduler.log.facts() if isinstance(fact.event, kind)]


def signed(ring: Keyring, count: int) -> list[SignedReceipt]:
    answers = [Answer(f'{{"id":"c{number}","seq":{number + 1}}}', local(number)) for number in range(count)]
    texts = signed_answers(ring, "c", 10, "d" * 64, 1000, answers)
    found = [receipt_of(msgspec.json.decode(text)) for text in texts]
    return [each for each in found if each is not None]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 1_000])
def test_each_answer_of_a_turn_has_a_receipt_under_one_signature(ring: Keyring, count: int) -> None:
    found = signed(ring, count)
    assert len(found) == count
    assert len({each.signature for each in found}) == 1
    assert all(each.is_by(ring.public(ring.master)) for each in found)
    other = Keyring.new()
    assert not found[0].is_by(other.public(other.master))


@pytest.mark.parametrize(
    "changed",
    [
        {"cluster": "other"},
        {"answer": {"id": "c0", "seq": 2}},
        {"answer": {"id": "c9", "seq": 1}},
        {"by": local(7)},
        {"at": 1001},
        {"seq": 11},
        {"digest": "e" * 64},
        {"path": ()},
        {"path": ("zz",)},
        {"signature": "00"},
    ],
    ids=str,
)
def test_a_receipt_that_was_changed_proves_nothing(ring: Keyring, changed: dict[str, Any]) -> None:
    receipt = signed(ring, 3)[0]
    assert not msgspec.structs.replace(receipt, **changed).is_by(ring.public(ring.master))


def test_receipts_are_kept_as_lines(ring: Keyring, tmp_path: Path) -> None:
    found = signed(ring, 3)
    write_receipts(tmp_path / "receipts", found[:1])
    write_receipts(tmp_path / "receipts", found[1:])
    with (tmp_path / "receipts").open("rb") as lines:
        assert list(read_receipts(lines)) == found


def test_a_client_gets_a_receipt_of_what_is_in_the_log(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    client = CommandClient(fake, KEYS.cluster, keyring=ring, timeout_s=0.01)
    identity = "c1"
    client._put(
        [identity, "command", '[{"type":"RegisterCompany","company":"a"},{"type":"KillApp","app":"x"}]', identity]
    )
    scheduler.turn()
    text: Any = fake.lpop(KEYS.reply(identity))
    receipt = receipt_of(msgspec.json.decode(text))
    assert receipt is not None
    assert receipt.is_by(events(scheduler, KeyChanged)[0].public)
    [(command, seq)] = receipt.outcomes()
    facts = {fact.seq: fact for fact in scheduler.log.facts()}
    assert facts[seq].cause == command == "c1.0"
    assert facts[receipt.seq].digest == receipt.digest
    assert facts[seq].by == receipt.by


def test_without_a_masters_key_nothing_is_signed_and_nothing_sealed(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring.without_masters())
    client = CommandClient(fake, KEYS.cluster, keyring=ring, timeout_s=0.01)
    client._put(["c1", "command", '{"type":"RegisterCompany","company":"a"}', "c1"])
    scheduler.turn()
    assert b"receipt" not in bytes(fake.lpop(KEYS.reply("c1")))
    assert events(scheduler, KeyChanged) == events(scheduler, LogSealed) == []


def test_a_seal_is_logged_after_a_minute_or_many_events_and_never_twice(
    fake: Any, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = master(fake, ring)
    client = CommandClient(fake, KEYS.cluster, keyring=ring, timeout_s=0.01)
    scheduler.turn()
    assert len(events(scheduler, LogSealed)) == 1
    scheduler.turn()
    client.notify(RegisterCompany(company="a"))
    scheduler.turn()
    assert len(events(scheduler, LogSealed)) == 1
    assert 0 < scheduler.quiet_s() <= 60
    now = scheduler._store_time_ms()
    monkeypatch.setattr(scheduler_module, "clock_ms", lambda _: now + 61_000)
    scheduler.turn()
    assert len(events(scheduler, LogSealed)) == 2
    scheduler.turn()
    assert len(events(scheduler, LogSealed)) == 2
    monkeypatch.setattr(seals, "SEAL_EVENTS", 3)
    client.notify(*(RegisterCompany(company=f"c{number}") for number in range(3)))
    scheduler.turn()
    client.notify(KillApp(app="x"))
    scheduler.turn()
    assert len(events(scheduler, LogSealed)) == 3
    assert audit(scheduler.log.facts()) == []
    for seal in events(scheduler, LogSealed):
        assert scheduler.log.at(seal.seq) == Position(seal.seq, seal.digest)
        assert seals.is_sound(seal, ring.public(ring.master))
    assert rebuild(scheduler.log)[0].digest() == scheduler.state.digest()


def test_a_seal_covers_the_record_of_reads(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    reader = By("op/root", "t1", "operator")
    record_read(fake, KEYS, reader, "logs", "a", "it burns", ring.sign_read)
    scheduler.turn()
    record_read(fake, KEYS, reader, "logs", "b", "it burns", ring.sign_read)
    [seal] = events(scheduler, LogSealed)
    first, second = [each.digest for _, each in recorded(fake, KEYS, is_signed=ring.is_signed)]
    assert seal.reads == first
    assert audit(scheduler.log.facts()) == []
    told = [fact.event for fact in scheduler.log.facts()]
    assert seals.lost_reads(told, {first: 1, second: 2}) is None
    assert seals.lost_reads(told, {second: 2}) == seal.seq
    assert seals.lost_reads(told, {second: 2}, dropped=1) is None
    assert not seals.is_sound(msgspec.structs.replace(seal, reads=second), ring.public(ring.master))
    assert not seals.is_sound(msgspec.structs.replace(seal, reads=""), ring.public(ring.master))


def test_a_new_key_is_signed_by_the_one_before(fake: Any, ring: Keyring) -> None:
    master(fake, ring)
    rotated = ring.rotated()
    scheduler = master(fake, rotated, "m2")
    first, second = events(scheduler, KeyChanged)
    assert (first.key, first.signature, second.key) == (ring.master, "", rotated.master)
    assert audit(scheduler.log.facts()) == []


@pytest.mark.parametrize("other", [Keyring.new(), Keyring.new().without_masters()])
def test_a_master_without_the_key_in_force_writes_nothing(fake: Any, ring: Keyring, other: Keyring) -> None:
    scheduler = master(fake, ring)
    head = scheduler.log.head()
    with pytest.raises(BadKeys, match=f"the masters' key {ring.master}, which the file of keys does not hold"):
        master(fake, other, "m2")
    assert scheduler.log.head() == head
    assert audit(scheduler.log.facts()) == []


def test_a_new_key_that_the_one_before_has_not_signed_is_named_by_the_audit(
    fake: Any, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    master(fake, ring)
    monkeypatch.setattr(seals, "check_keys", lambda *_: None)
    scheduler = master(fake, Keyring.new(), "m2")
    [found] = audit(scheduler.log.facts())
    assert f"is not signed by the key {ring.master} before it" in found.done


def test_a_seal_over_another_digest_is_named_by_the_audit(
    fake: Any, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug planted into the master."""
    soundly = seals.seal
    monkeypatch.setattr(seals, "seal", lambda ring, at, _: soundly(ring, Position(at.seq, "0" * 64)))
    scheduler = master(fake, ring)
    scheduler.turn()
    [found] = audit(scheduler.log.facts())
    assert found.rule == "I6"
    assert found.done.startswith(f"a seal of 4:{'0' * 64} at a turn that follows 4:")


def test_a_seal_that_its_key_has_not_signed_is_named_by_the_audit(
    fake: Any, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundly = seals.seal
    monkeypatch.setattr(seals, "seal", lambda ring, at, _: msgspec.structs.replace(soundly(ring, at), signature="00"))
    scheduler = master(fake, ring)
    scheduler.turn()
    [found] = audit(scheduler.log.facts())
    assert found.done == f"a seal of position 4 that the key {ring.master} has not signed"


def test_a_seal_by_a_key_that_was_replaced_is_named_by_the_audit(fake: Any, ring: Keyring) -> None:
    """A key is replaced because somebody else may have it."""
    master(fake, ring)
    scheduler = master(fake, ring.rotated(), "m2")
    scheduler.turn()
    log = [*scheduler.log.facts()]
    place = next(place for place, fact in enumerate(log) if isinstance(fact.event, LogSealed))
    seal: Any = log[place].event
    forged = seals.seal(ring, Position(seal.seq, seal.digest))
    log[place] = msgspec.structs.replace(log[place], event=forged)
    found = audit(log)[0]
    assert (found.seq, found.rule) == (log[place].seq, "I6")
    assert f"key '{ring.master}' does not sign" in str(found)
