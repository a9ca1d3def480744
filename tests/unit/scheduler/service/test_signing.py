"""What a master believes of the inbox: signed messages, each in its lane, each once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from recovery.replay.rebuild import rebuild
from scheduler.model.commands import KillApp, LoseWorker, RegisterCompany, RegisterWorker, write_command
from scheduler.model.errors import MessageTooOld, NotAllowed, NotSigned
from scheduler.model.sender import By, local
from scheduler.rules.state import cluster as state_module
from scheduler.service import client as client_module
from scheduler.service import recall, signing
from scheduler.service.client import CommandClient
from scheduler.service.inbox import message_of
from scheduler.service.keyring import Keyring
from scheduler.service.recall import Recall
from scheduler.service.scheduler import Scheduler
from scheduler.service.signing import Gate, lane_of, signed_fields
from scheduler.store.eventlog import EventLog
from scheduler.store.framing import framed
from scheduler.store.keys import Keys
from scheduler.store.transient import LaneFull, passes

KEYS = Keys("signed")
ACME = RegisterCompany(company="acme")
ANN = By("acme/ann", "t1", "user")
BODY = write_command(ACME)


@pytest.fixture(scope="module")
def ring() -> Keyring:
    return Keyring.new()


def master(fake: Any, ring: Keyring | None, name: str = "m1") -> Scheduler:
    log = EventLog(fake, KEYS)
    made = Scheduler(log, name, lambda: rebuild(log), keyring=ring)
    made.take_over()
    return made


def sent(fake: Any, ring: Keyring | None, by: By | None = None) -> CommandClient:
    return CommandClient(fake, KEYS.cluster, keyring=ring, by=by, timeout_s=0.01)


def put(fake: Any, flat: list[str], lane: str = "operators") -> None:
    pairs = iter(flat)
    fake.xadd(KEYS.lane(lane), dict(zip(pairs, pairs, strict=True)))


def answer(fake: Any, identity: str) -> str:
    return str(fake.lpop(KEYS.reply(identity)))


def types(scheduler: Scheduler) -> list[str]:
    """Those of events, except what a master with a key adds."""
    return [fact.type for fact in scheduler.log.facts() if fact.type not in {"KeyChanged", "LogSealed"}]


def reasons(fake: Any) -> list[str]:
    letters: Any = fake.xrange(KEYS.dead)
    return [fields[b"reason"].decode() for _, fields in letters]


def test_who_signed_a_command_is_in_the_log(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    sent(fake, ring).notify(ACME)
    scheduler.turn()
    [fact] = [fact for fact in scheduler.log.facts() if fact.command is not None]
    assert fact.by == By(local(os.getuid()).account, "", "operator", ring.door)


def test_a_key_for_workers_signs_for_nobody_else(fake: Any, ring: Keyring) -> None:
    scheduler, shared = master(fake, ring), ring.for_workers()
    sent(fake, ring).notify(ACME)
    scheduler.turn()
    before = types(scheduler)
    for by in (ANN, By("op/root", "t2", "operator"), local(0), By("acme/amy", "t3", "admin")):
        sent(fake, shared, by).notify(RegisterCompany(company="evil"))
    scheduler.turn()
    assert types(scheduler) == before
    assert [f"the key {shared.door} signs for workers only" in why for why in reasons(fake)] == [True] * 4
    w1 = By("worker/w1", "", "worker")
    sent(fake, shared, w1).notify(RegisterWorker(worker="w1", node="n", host="h", cores=1, memory_mb=1024))
    scheduler.turn()
    assert types(scheduler)[-1] == "WorkerRegistered"


def test_a_message_that_the_store_loses_before_the_commit_is_not_carried_out(
    fake: Any, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a failover does whose new primary has the log, and not the last messages nor what they report."""
    scheduler = master(fake, ring)
    begin = scheduler.commits.begin

    def lose(*decided: Any) -> None:
        fake.delete(KEYS.inbox)
        begin(*decided)
        monkeypatch.undo()

    monkeypatch.setattr(scheduler.commits, "begin", lose)
    before, client = types(scheduler), sent(fake, ring)
    client.notify(ACME)
    scheduler.turn()
    assert types(scheduler) == before
    assert "acme" not in scheduler.state.companies
    client.notify(ACME)
    scheduler.turn()
    assert types(scheduler)[-1] == "CompanyRegistered"


def test_without_keys_on_both_sides_messages_are_not_signed(fake: Any) -> None:
    scheduler = master(fake, None)
    sent(fake, None).notify(ACME)
    [(_, fields)] = fake.xrange(KEYS.inbox)
    assert [*fields] == [b"id", b"command", b"reply", b"version"]
    scheduler.turn()
    [fact] = [fact for fact in scheduler.log.facts() if fact.command is not None]
    assert fact.by == signing.UNSIGNED


EDITS: dict[str, Callable[[dict[str, str]], object]] = {
    "id": lambda fields: fields.update(id="another", reply="another"),
    "command": lambda fields: fields.update(command=write_command(RegisterCompany(company="evil"))),
    "reply": lambda fields: fields.update(reply=""),
    "by": lambda fields: fields.update(by='["op/root","","operator"]'),
    "by with a door": lambda fields: fields.update(by='["local/0","","operator","x"]'),
    "sent": lambda fields: fields.update(sent=str(int(fields["sent"]) + 1)),
    "key": lambda fields: fields.update(key="00000000"),
    "mac": lambda fields: fields.update(mac="0" * 64),
    "version left out": lambda fields: fields.pop("version"),
    "no mac": lambda fields: fields.update(mac=""),
    "a space more": lambda fields: fields.update(command=fields["command"] + " "),
}
"""What may be changed in a signed message, and how."""


@pytest.mark.parametrize("what", EDITS)
def test_a_message_that_was_changed_is_put_aside(fake: Any, ring: Keyring, what: str) -> None:
    scheduler = master(fake, ring)
    flat = signed_fields(ring, KEYS.cluster, local(0), 1, "c1", BODY, "c1")
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    EDITS[what](fields)
    fake.xadd(KEYS.inbox, fields)
    scheduler.turn()
    assert types(scheduler) == ["MasterElected", "EditionChanged", "ClusterConfigured"]
    assert scheduler.put_aside == len(reasons(fake)) == 1
    assert fake.xlen(KEYS.inbox) == 0
    if what not in {"id", "reply"}:
        assert "NotSigned" in answer(fake, "c1")


@pytest.mark.parametrize(
    ("version", "older"),
    [("2", "the master"), ("0", "the sender with the door key"), ("x", "the sender with the door key")],
)
def test_a_message_of_another_version_is_refused_and_names_who_is_too_old(
    fake: Any, ring: Keyring, version: str, older: str
) -> None:
    scheduler = master(fake, ring)
    flat = signed_fields(ring, KEYS.cluster, local(0), 1, "c1", BODY, "c1")
    put(fake, [*flat[:7], version, *flat[8:], "more", "of a later version"])
    scheduler.turn()
    assert "OtherVersion" in answer(fake, "c1")
    [said] = reasons(fake)
    assert f"{ring.door}' sends messages of version '{version}', and the master reads version 1" in said
    assert f"upgrade fairlog of {older}" in said
    assert types(scheduler) == ["MasterElected", "EditionChanged", "ClusterConfigured"]


def test_a_message_without_a_version_has_the_first_one(ring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "framed", lambda *parts: framed(*parts[:7]))
    flat = [each.encode() for each in signed_fields(ring, "a", ANN, 1, "c1", BODY, "c1")]
    monkeypatch.undo()
    assert Gate("a", ring).read("company/acme", [*flat[:6], *flat[8:]]).wrong is None


@pytest.mark.parametrize(
    "flat",
    [
        ["id", "c1", "command", BODY, "reply", "c1"],
        ["id", "c1", "command", BODY, "reply", "c1", "by", '["op/root","","operator"]'],
        ["id", "", "command", BODY, "reply", ""],
        ["id", "a\nb", "command", BODY, "reply", "a\nb"],
        ["id", "x" * 129, "command", BODY, "reply", ""],
        ["id", "a\x1b[2J", "command", BODY, "reply", ""],
        ["id", "c1", "command", BODY, "reply", "another"],
    ],
    ids=["unsigned", "half", "empty id", "two lines", "long", "unprintable", "foreign reply"],
)
def test_what_is_not_signed_or_has_no_proper_id_is_put_aside(fake: Any, ring: Keyring, flat: list[str]) -> None:
    scheduler = master(fake, ring)
    put(fake, flat)
    scheduler.turn()
    assert types(scheduler) == ["MasterElected", "EditionChanged", "ClusterConfigured"]
    assert len(reasons(fake)) == 1
    assert [key for key in fake.keys("*reply*") if key != KEYS.reply("c1").encode()] == []


def test_a_master_without_keys_takes_no_signed_message(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, None)
    sent(fake, ring).notify(ACME)
    scheduler.turn()
    assert types(scheduler) == ["MasterElected", "EditionChanged", "ClusterConfigured"]
    assert reasons(fake) == [str(NotSigned("the message is signed, and the master has no keys to check it"))]


def test_a_refusal_of_what_is_not_signed_says_what_to_do(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    put(fake, ["id", "c1", "command", BODY, "reply", "c1"])
    scheduler.turn()
    assert "FAIRLOG_KEYS must name the keys of the cluster" in answer(fake, "c1")


def test_the_signature_is_of_one_cluster_and_of_one_lane(ring: Keyring) -> None:
    flat = [each.encode() for each in signed_fields(ring, "a", ANN, 1, "c1", BODY, "c1")]
    assert Gate("a", ring).read("company/acme", flat).wrong is None
    for cluster, lane in (("b", "company/acme"), ("a", "operators"), ("a", "company/evil"), ("a", "workers")):
        assert isinstance(Gate(cluster, ring).read(lane, flat).wrong, NotSigned)


def test_a_door_speaks_for_no_master_and_in_the_lane_of_its_sender_only(ring: Keyring) -> None:
    by = By("master/m1", "", "master")
    flat = [each.encode() for each in signed_fields(ring, "a", by, 1, "c1", BODY, "c1")]
    assert isinstance(Gate("a", ring).read(lane_of(by), flat).wrong, NotSigned)


def test_a_message_signed_by_an_earlier_key_of_the_ring_is_taken(ring: Keyring) -> None:
    flat = [each.encode() for each in signed_fields(ring, "a", ANN, 1, "c1", BODY, "c1")]
    assert Gate("a", ring.rotated()).read("company/acme", flat).by == By("acme/ann", "t1", "user", ring.door)


def test_nobody_but_the_master_declares_a_worker_lost(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    flat = signed_fields(ring, KEYS.cluster, local(0), 1, "c1", write_command(LoseWorker(worker="w")), "c1")
    put(fake, flat)
    scheduler.turn()
    assert NotAllowed.__name__ in answer(fake, "c1")


def test_a_replayed_message_changes_nothing(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    sent(fake, ring).notify(ACME)
    [(_, fields)] = fake.xrange(KEYS.inbox)
    scheduler.turn()
    for _ in range(2):
        fake.xadd(KEYS.inbox, fields)
        scheduler.turn()
    assert types(scheduler).count("CompanyRegistered") == 1
    assert reasons(fake) == []


@pytest.mark.parametrize("by", ["m1", "m2"])
def test_a_message_replayed_after_its_id_is_forgotten_is_put_aside(
    fake: Any, ring: Keyring, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(state_module, "KNOWN_COMMANDS", 3)
    scheduler, client = master(fake, ring), sent(fake, ring)
    client.notify(RegisterCompany(company="acme"))
    [(_, old)] = fake.xrange(KEYS.inbox)
    scheduler.turn()
    for number in range(4):
        client.notify(RegisterCompany(company=f"c{number}"))
        scheduler.turn()
    if by == "m2":
        scheduler = master(fake, ring, by)
    fake.xadd(KEYS.inbox, old)
    scheduler.turn()
    assert types(scheduler).count("CompanyRegistered") == 5
    assert reasons(fake) == [str(MessageTooOld())]
    client.notify(RegisterCompany(company="new"))
    scheduler.turn()
    assert types(scheduler).count("CompanyRegistered") == 6


def test_a_message_that_waited_long_in_its_lane_is_carried_out(
    fake: Any, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the state has forgotten commands that were carried out after it was sent."""
    monkeypatch.setattr(state_module, "KNOWN_COMMANDS", 3)
    scheduler, client = master(fake, ring), sent(fake, ring)
    monkeypatch.setattr(scheduler._recall, "_since", 0)
    flat = client._fields(None, "late", write_command(RegisterCompany(company="late")), "")
    for number in range(8):
        client.notify(RegisterCompany(company=f"c{number}"))
        scheduler.turn()
    scheduler.state.forgotten_at = int(flat[flat.index("sent") + 1]) + 1
    put(fake, flat)
    scheduler.turn()
    assert "late" in scheduler.state.companies
    put(fake, flat)
    scheduler.turn()
    assert reasons(fake) == []


def test_a_master_recalls_the_last_messages_and_doubts_those_of_before(
    fake: Any, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "REMEMBERED", 2)
    scheduler = master(fake, ring)
    state = scheduler.state
    made = Recall()
    made.forget(0)
    gate = Gate(KEYS.cluster, ring)

    def message(name: str, sent_ms: int) -> Any:
        flat = signed_fields(ring, KEYS.cluster, local(0), sent_ms, name, BODY, "")
        return message_of(gate, "operators", b"1-0", [each.encode() for each in flat])

    for number, name in enumerate(("a", "b", "c"), 1):
        state.at = 10 * number
        state.commands[name] = number
        made.add(message(name, 10 * number), state)
        del state.commands[name]
    state.forgotten_at = 100
    assert made.is_doubtful(message("a", 10), state)
    assert made.is_doubtful(message("c", 30), state)
    assert not made.is_doubtful(message("d", 11), state)
    assert made.is_doubtful(message("d", 10), state)
    assert not made.is_doubtful(message("a", 101), state)


def test_a_message_of_the_future_is_put_aside(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    put(fake, signed_fields(ring, KEYS.cluster, local(0), 10**14, "c1", BODY, "c1"))
    scheduler.turn()
    assert "ahead of the store" in answer(fake, "c1")


def test_a_full_lane_refuses_its_sender_and_no_other(fake: Any, ring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "LANE_LIMIT", 3)
    ann = sent(fake, ring, ANN)
    ann.notify(*[KillApp(app="x")])
    ann.notify(*[KillApp(app="x")])
    ann.notify(*[KillApp(app="x")])
    for send in (lambda: ann.notify(KillApp(app="x")), lambda: ann.send(KillApp(app="x"))):
        with pytest.raises(LaneFull, match="lane company/acme of the inbox is full with 3 messages; try again") as full:
            send()
        assert passes(full.value)
    sent(fake, ring, By("evil/eve", "t2", "user")).notify(KillApp(app="x"))
    assert fake.xlen(KEYS.lane("company/acme")) == 3
    assert fake.xlen(KEYS.lane("company/evil")) == 1


def test_a_company_that_fills_its_lane_delays_nobody_else(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    operator = sent(fake, ring)
    operator.notify(ACME, RegisterCompany(company="other"))
    scheduler.turn()
    junk = sent(fake, ring, ANN)
    for _ in range(20):
        junk.notify(*[KillApp(app="x")] * 1_000)
    other = sent(fake, ring, By("other/bob", "t2", "user"))
    identities = [f"bob-{number}" for number in range(3)]
    for identity in identities:
        other._put([identity, "command", write_command(KillApp(app="y")), identity])
    operator.notify(RegisterCompany(company="third"))
    taken = [scheduler.turn() for _ in range(3)]
    assert "third" in scheduler.state.companies
    assert all("UnknownApp" in answer(fake, identity) for identity in identities)
    assert sum(taken) <= 3 * 1_000
    assert fake.xlen(KEYS.lane("company/acme")) >= 17
    while scheduler.turn():
        pass
    assert fake.xlen(KEYS.lane("company/acme")) == 0


def test_the_order_within_a_lane_is_kept(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    client = sent(fake, ring)
    names = [f"c{number}" for number in range(30)]
    for name in names:
        client.notify(RegisterCompany(company=name))
        sent(fake, ring, By("worker/w1", "", "worker")).notify(RegisterCompany(company=f"w-{name}"))
    scheduler.turn()
    assert [name for name in scheduler.state.companies if not name.startswith("w-")] == names
    assert [name[2:] for name in scheduler.state.companies if name.startswith("w-")] == names


def test_a_refused_commit_takes_every_lane_again(fake: Any, ring: Keyring) -> None:
    first = master(fake, ring)
    sent(fake, ring).notify(ACME)
    first.turn()
    sent(fake, ring).notify(RegisterCompany(company="o"))
    sent(fake, ring, By("worker/w1", "", "worker")).notify(RegisterCompany(company="w"))
    second = master(fake, ring, "m2")
    with pytest.raises(Exception, match="m2"):
        first.turn()
    second.turn()
    assert [*second.state.companies] == ["acme", "o", "w"]
