"""Which executors say that they use nothing of what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fakeredis

from scheduler.store import unused as module
from scheduler.store.keys import Keys
from scheduler.store.unused import SAID_MS, forget_unused, note_unused, unused

if TYPE_CHECKING:
    import pytest


def test_what_was_said_counts_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    store, keys, now = fakeredis.FakeRedis(), Keys("c"), [1000]
    monkeypatch.setattr(store, "time", lambda: (now[0], 0))
    note_unused(store, keys, "a.0", "cores", 30)
    note_unused(store, keys, "a.1", "no such thing", -5)
    note_unused(store, keys, "a.2", "GPUs", 10**30)
    found = unused(store, keys, 1_000_000)
    assert {name: (idle.since, idle.what) for name, idle in found.items()} == {
        "a.0": (970_000, "cores"),
        "a.1": (1_000_000, "cores"),
        "a.2": (1_000_000 - 10**12, "GPUs"),
    }
    forget_unused(store, keys, "a.1")
    store.hset(keys.unused, "a.2", "junk")
    assert {*unused(store, keys, 1_000_000 + SAID_MS - 1)} == {"a.0"}
    assert unused(store, keys, 1_000_000 + SAID_MS) == {}


def test_those_of_lost_workers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    store, keys, now = fakeredis.FakeRedis(), Keys("c"), [1000]
    monkeypatch.setattr(store, "time", lambda: (now[0], 0))
    monkeypatch.setattr(module, "SWEPT_EACH", 4)
    for number in range(3):
        note_unused(store, keys, f"lost.{number}", "cores", 30)
    now[0] += SAID_MS // 1000
    note_unused(store, keys, "lives.0", "cores", 30)
    assert store.hkeys(keys.unused) == [b"lives.0"]
