"""What workers report of full disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fakeredis

from scheduler.store.full_disks import KEPT_MS, cuts, note_cut
from scheduler.store.keys import Keys

if TYPE_CHECKING:
    import pytest


def test_reports_add_up_until_they_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    store, keys, now = fakeredis.FakeRedis(), Keys("c"), [1000]
    monkeypatch.setattr(store, "time", lambda: (now[0], 0))
    note_cut(store, keys, "w1", 10, "full\x1b[31m\nup")
    now[0] += 5
    note_cut(store, keys, "w1", 7, "full")
    note_cut(store, keys, "w2", 1, "away")
    found = cuts(store, keys)
    assert {worker: tuple(cut) for worker, cut in found.items()} == {
        "w1": (1_000_000, 1_005_000, 17, "full"),
        "w2": (1_005_000, 1_005_000, 1, "away"),
    }
    now[0] += KEPT_MS // 1000 + 1
    note_cut(store, keys, "w1", 3, "full\x1b[31m\nup")
    assert tuple(cuts(store, keys)["w1"])[2:] == (3, "full up")
    store.hset(keys.full_disks, "w1", "junk")
    assert "w1" not in cuts(store, keys)
