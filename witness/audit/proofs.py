"""Compare a log with what its masters have signed elsewhere: receipts of clients, and seals.

Whoever rewrites a log can make its chain anew, but cannot change what was handed out before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from recovery.archive.seal_files import KeptSeal
from scheduler.model.events import KeyChanged, LogAccepted, LogRestored
from scheduler.model.sender import NOBODY, By
from scheduler.service.receipts import SignedReceipt
from scheduler.store.codec import Fact
from witness.audit.deviation import Deviation

_RULE = "I6"


class Proofs:
    """Receipts and kept seals, to be compared with one log."""

    def __init__(self, receipts: Iterable[SignedReceipt] = (), seals: Iterable[KeptSeal] = ()) -> None:
        self._receipts = list(receipts)
        self._seals = list(seals)
        seqs = (*(each.seq for each in self._receipts), *(each.seq for each in self._seals))
        self._digests: dict[int, str] = dict.fromkeys(seqs, "")
        self._wanted = {command for each in self._receipts for command, _ in each.outcomes()}
        self._done: dict[str, tuple[int, By]] = {}
        """Command id -> the position of its last event in the log, and its sender."""
        self._keys: dict[str, str] = {}
        self._accepted: list[tuple[int, str, LogAccepted]] = []
        """Where and by whom a shorter log was accepted (semantics I7)."""
        self._ends_at = 0

    def heard(self, facts: Iterable[Fact]) -> Iterator[Fact]:
        """The facts, noted as they pass."""
        by = By()
        for fact in facts:
            self._ends_at = fact.seq
            if fact.command is not None:
                by = fact.by
            if fact.cause in self._wanted:
                self._done[fact.cause] = fact.seq, by
            if fact.digest and fact.seq in self._digests:
                self._digests[fact.seq] = fact.digest
            if isinstance(fact.event, LogAccepted):
                self._accepted.append((fact.seq, by.account, fact.event))
            if isinstance(fact.event, KeyChanged | LogRestored) and fact.event.key:
                self._keys[fact.event.key] = fact.event.public
            yield fact

    def deviations(self) -> list[Deviation]:
        """What the log that was heard says otherwise, by position."""
        differing = (self._differs(seal.seq, seal.digest, "a seal kept elsewhere") for seal in self._seals)
        found = [each for each in differing if each is not None]
        for receipt in self._receipts:
            found += self._of(receipt)
        return sorted(found)

    def _of(self, receipt: SignedReceipt) -> Iterator[Deviation]:
        identity = receipt.answer.get("id")
        named = f"the receipt of {identity}"
        public = self._keys.get(receipt.key)
        if public is None:
            yield Deviation(receipt.seq, _RULE, f"no key {receipt.key}", f"the key that signed {named}")
        elif not receipt.is_by(public):
            yield Deviation(receipt.seq, _RULE, f"{named}, which the key {receipt.key} has not signed", "a signed one")
            return
        if differs := self._differs(receipt.seq, receipt.digest, named):
            yield differs
        for command, seq in receipt.outcomes():
            done = self._done.get(command)
            if seq and (done is None or done[0] != seq or receipt.by not in {NOBODY, done[1]}):
                said = "no such command"
                if done is not None:
                    said = f"it, by {done[1].account}, with its last event at {done[0]}"
                yield Deviation(seq, _RULE, said, f"the command {command} of {receipt.by.account}, as {named} says")

    def _differs(self, seq: int, digest: str, named: str) -> Deviation | None:
        found = self._digests[seq]
        if found == digest:
            return None
        if self._ends_at < seq:
            found = f"the end of the log at {self._ends_at}"
        found = found or "no end of a turn"
        for at, account, event in self._accepted:
            if event.seq < seq <= max(event.known, event.seq) or seq == event.known:
                found += f" (broken by {account}, who at {at} accepted a log that ended at {event.seq})"
        return Deviation(seq, _RULE, found, f"the digest {digest}, as {named} says,")
