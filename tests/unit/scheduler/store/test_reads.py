"""The record of who read what is private."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.archive.reads import recorded
from scheduler.model.errors import UnreadableRecord
from scheduler.model.sender import By
from scheduler.service.keyring import Keyring
from scheduler.store.keys import Keys
from scheduler.store.reads import Read, record_read

KEYS = Keys("read")
ROOT = By("op/root", "t1", "operator")


def record(fake: Any, ring: Keyring) -> None:
    for app in ("a", "b", "c"):
        record_read(fake, KEYS, ROOT, "logs", app, "it burns", ring.sign_read)


def reads(fake: Any, is_signed: Any = None) -> list[Read]:
    return [each for _, each in recorded(fake, KEYS, is_signed=is_signed)]


def test_reads_are_listed_in_order_with_who_and_why(fake: Any) -> None:
    ring = Keyring.new()
    record(fake, ring)
    found = reads(fake, ring.is_signed)
    assert [(each.by, each.what, each.subject, each.reason) for each in found] == [
        (ROOT, "logs", app, "it burns") for app in ("a", "b", "c")
    ]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_altered_or_missing_read_is_named(fake: Any, number: int) -> None:
    ring = Keyring.new()
    record(fake, ring)
    entries: Any = fake.xrange(KEYS.reads)
    fake.delete(KEYS.reads)
    for place, (identity, fields) in enumerate(entries):
        fake.xadd(KEYS.reads, {**fields, b"subject": b"z"} if place == number else fields, id=identity)
    with pytest.raises(UnreadableRecord, match=f"log position {number + 1}: the entry of the reads was altered"):
        reads(fake)


def test_a_read_that_no_door_has_signed_is_named(fake: Any) -> None:
    ring = Keyring.new()
    record(fake, ring)
    record_read(fake, KEYS, ROOT, "logs", "d")
    with pytest.raises(UnreadableRecord, match="log position 4: the entry of the reads is not signed by a door"):
        reads(fake, ring.is_signed)
    assert len(reads(fake)) == 4
