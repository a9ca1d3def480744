"""A log that was rewritten although its chain was made anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from recovery.archive.accept import NothingToAccept, accept
from recovery.archive.seal_files import KeptSeal, keep, kept
from recovery.replay.rebuild import rebuild
from scheduler.model.commands import RegisterCompany
from scheduler.model.events import LogSealed
from scheduler.model.sender import By, local
from scheduler.service.client import CommandClient
from scheduler.service.commit import Commits
from scheduler.service.keyring import Keyring
from scheduler.service.known import Known, ShorterLog
from scheduler.service.receipts import SignedReceipt, receipt_of
from scheduler.service.scheduler import Scheduler
from scheduler.store.codec import GENESIS_DIGEST, chained, told
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from witness.audit.audit import audit
from witness.audit.proofs import Proofs

KEYS = Keys("proofs")


@pytest.fixture(scope="module")
def ring() -> Keyring:
    return Keyring.new()


def master(fake: Any, ring: Keyring) -> Scheduler:
    log = EventLog(fake, KEYS)
    made = Scheduler(log, "m1", lambda: rebuild(log), keyring=ring)
    made.take_over()
    return made


def register(scheduler: Scheduler, ring: Keyring, company: str, by: By | None = None) -> SignedReceipt:
    client = CommandClient(scheduler.store, KEYS.cluster, keyring=ring, by=by, timeout_s=0.01)
    client._put([company, "command", f'{{"type":"RegisterCompany","company":"{company}"}}', company])
    scheduler.turn()
    text: Any = scheduler.store.lpop(KEYS.reply(company))
    receipt = receipt_of(msgspec.json.decode(text))
    assert receipt is not None
    return receipt


def rewritten(scheduler: Scheduler, old: bytes, new: bytes) -> list[Any]:
    """The facts of a log in which a text was replaced and the chain made anew."""
    digest, facts = GENESIS_DIGEST, []
    for record in scheduler.log.read():
        events, commands = record.events.replace(old, new), record.commands.replace(old, new)
        digest = chained(digest, record.first, record.last, record.at, events, commands)
        facts += told(record._replace(events=events, commands=commands, digest=digest))
    return facts


def found(facts: Any, receipts: Any = (), seals: Any = ()) -> list[str]:
    proofs = Proofs(receipts, seals)
    assert list(proofs.heard(facts))
    return [f"{each.seq}: {each}" for each in proofs.deviations()]


@pytest.mark.parametrize("place", ["", "memory://seals-"])
def test_receipts_and_seals_agree_with_the_log_that_they_are_of(
    fake: Any, ring: Keyring, tmp_path: Path, place: str
) -> None:
    """Wherever seals are kept: a folder, or what fsspec reaches."""
    url = f"{place}{tmp_path}"
    scheduler = master(fake, ring)
    receipts = [register(scheduler, ring, name) for name in ("acme", "evil", "last")]
    seal = scheduler.commits.sealed
    assert seal is not None
    for _ in range(2):
        keep(url, KEYS.cluster, seal)
    assert [*kept(url, KEYS.cluster)] == [KeptSeal(seal.seq, seal.digest)]
    assert found(scheduler.log.facts(), receipts, kept(url, KEYS.cluster)) == []


def test_a_rewritten_command_is_found_by_receipts_and_by_seals(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    receipt = register(scheduler, ring, "acme")
    head = scheduler.log.head()
    edited = rewritten(scheduler, b"acme", b"evil")
    assert [each for each in audit(edited) if each.rule != "I6"] == []
    by_receipt, by_seal = found(edited, [receipt]), found(edited, (), [KeptSeal(*head)])
    assert len(by_seal) == 1
    assert f"stands where the digest {head.digest}, as a seal kept elsewhere says, was due" in by_seal[0]
    assert any(f"the digest {receipt.digest}, as the receipt of acme says" in each for each in by_receipt)
    assert any("no such command stands where the command acme of local/" in each for each in by_receipt)


def test_a_seal_in_a_rewritten_log_does_not_fit_its_chain(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    register(scheduler, ring, "acme")
    first = next(fact.event for fact in scheduler.log.facts() if isinstance(fact.event, LogSealed))
    edited = rewritten(scheduler, b'"m1"', b'"m2"')
    deviations = audit(edited)
    assert deviations[0].done.startswith(f"a seal of {first.seq}:{first.digest} at a turn that follows")


def test_a_fork_is_found_where_the_logs_part(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    register(scheduler, ring, "acme")
    before: Any = fake.xrange(KEYS.log)
    receipt = register(scheduler, ring, "here")
    fake.delete(KEYS.log)
    for entry, fields in before:
        fake.xadd(KEYS.log, fields, id=entry)
    other = master(fake, ring)
    register(other, ring, "there")
    assert [each.split(":")[0] for each in found(other.log.facts(), [receipt])] == [str(receipt.seq)] * 2


def test_a_log_whose_end_was_cut_off_is_found(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    register(scheduler, ring, "acme")
    facts = [*scheduler.log.facts()]
    receipt = register(scheduler, ring, "last")
    said = found(facts, [receipt])
    assert any(f"the end of the log at {facts[-1].seq} stands where the digest" in each for each in said)


def test_the_receipts_that_an_accepted_log_breaks_are_named(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    kept = register(scheduler, ring, "kept")
    before: Any = fake.xrange(KEYS.log)
    lost = register(scheduler, ring, "lost")
    knows = Known(scheduler.log, "master m1")
    knows.learn(scheduler.log.head())
    fake.delete(KEYS.log)
    for entry, fields in before:
        fake.xadd(KEYS.log, fields, id=entry)
    with pytest.raises(ShorterLog):
        knows.check({})
    end = scheduler.log.head().seq
    with pytest.raises(NothingToAccept, match=f"ends at position {end}, not at {end + 1}"):
        accept(scheduler.log, end + 1, local(1000))
    decided = accept(scheduler.log, end, local(1000))
    assert (decided.seq, decided.known.seq, decided.at) == (end, lost.seq, end + 1)
    knows.check(rebuild(scheduler.log)[0].decisions)
    facts = [*scheduler.log.facts()]
    assert audit(facts) == []
    said = found(facts, [kept, lost])
    assert all("of lost" in each or "command lost" in each for each in said)
    assert any(f"broken by local/1000, who at {end + 1} accepted a log that ended at {end}" in each for each in said)
    with pytest.raises(NothingToAccept, match="there is nothing to accept"):
        accept(scheduler.log, end + 1, local(1000))


def test_a_receipt_by_a_key_that_the_log_does_not_name_is_told(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    receipt = msgspec.structs.replace(register(scheduler, ring, "acme"), key="another")
    assert (
        "no key another stands where the key that signed the receipt of acme"
        in found(scheduler.log.facts(), [receipt])[0]
    )


def test_a_forged_receipt_proves_nothing_and_is_named(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    forged = msgspec.structs.replace(register(scheduler, ring, "acme"), digest="0" * 64)
    [said] = found(scheduler.log.facts(), [forged])
    assert f"the receipt of acme, which the key {ring.master} has not signed" in said


def test_a_receipt_for_what_was_not_committed_is_found(
    fake: Any, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug planted into the master: it answers, and the commit is lost."""
    scheduler = master(fake, ring)
    register(scheduler, ring, "acme")
    monkeypatch.setattr(Commits, "begin", lambda commits, decided: commits._tell(decided))
    receipt = register(scheduler, ring, "lost")
    said = found(scheduler.log.facts(), [receipt])
    assert any("no such command stands where the command lost of local/" in each for each in said)


def test_commands_of_others_are_compared_with_their_sender(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    receipt = register(scheduler, ring, "acme")
    edited = rewritten(scheduler, receipt.by.account.encode(), b"op/other")
    assert any("it, by op/other, with its last event" in each for each in found(edited, [receipt]))
    assert RegisterCompany(company="acme") in [fact.command for fact in edited]


def test_who_asks_again_for_what_was_done_has_a_receipt_that_names_nobody(fake: Any, ring: Keyring) -> None:
    scheduler = master(fake, ring)
    senders = [By("op/root", token, "operator") for token in ("one", "two")] + [By("op/other", "three", "operator")]
    receipts = [register(scheduler, ring, "acme", by) for by in senders]
    assert [receipt.by.token for receipt in receipts] == ["one", "", ""]
    assert found(scheduler.log.facts(), receipts) == []
