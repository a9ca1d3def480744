"""Which snapshots are kept: the newest to rebuild from, and older ones spread over the log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from recovery.replay import snapshot
from scheduler.rules.state.cluster import ClusterState
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from tests.property.histories import played, seeded
from tests.unit.recorded import put

if TYPE_CHECKING:
    import fakeredis


@pytest.fixture
def log(fake: fakeredis.FakeRedis) -> EventLog:
    made = EventLog(fake, Keys())
    put(made, played(seeded(11, 120)).records)
    return made


def take(log: EventLog, seqs: list[int]) -> list[int]:
    """Take snapshots at these positions; those that are kept, oldest first."""
    for seq in seqs:
        position = log.at(seq)
        assert position is not None
        snapshot.write(log, ClusterState(), position)
    return sorted(snapshot.positions(log))


def ends(log: EventLog) -> list[int]:
    return [record.last for record in log.read()]


def test_older_snapshots_stay_spread_over_the_log(log: EventLog) -> None:
    seqs = ends(log)
    kept = take(log, seqs)
    assert kept[-snapshot.KEPT :] == seqs[-snapshot.KEPT :]
    assert len(kept) == snapshot.KEPT + snapshot.SEAMS
    widest = max(end - begin for begin, end in pairwise([0, *kept]))
    assert widest <= 4 * seqs[-1] / len(kept)
    found = log.store.keys(f"{log.keys.snapshot(0)[:-1]}*")
    assert sorted(found) == sorted(log.keys.snapshot(seq).encode() for seq in kept)


def test_older_snapshots_take_no_more_memory_than_they_may(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    seqs = ends(log)[:9]
    (first,) = take(log, seqs[:1])
    size = snapshot.parts_of(log, first)[0].size
    monkeypatch.setattr(snapshot, "SEAM_BYTES", 3 * size)
    assert len(take(log, seqs[1:])) == 3 + snapshot.KEPT


def test_what_is_no_snapshot_is_not_kept(log: EventLog) -> None:
    seqs = ends(log)[:5]
    take(log, seqs[:4])
    log.store.lset(log.keys.snapshot(seqs[0]), 0, "{")
    log.store.delete(log.keys.snapshot(seqs[1]))
    assert take(log, seqs[4:]) == seqs[2:]


def test_a_snapshot_whose_parts_the_store_loses_is_not_published(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes over may lack what the one before it held of a draft."""
    seqs, parts = ends(log), snapshot._parts
    kept = take(log, seqs[:2])

    def lost(state: ClusterState) -> Iterator[bytes]:
        yield from parts(state)
        log.store.delete(*log.store.keys(f"{log.keys.snapshotting}:*"))

    monkeypatch.setattr(snapshot, "_parts", lost)
    with pytest.raises(snapshot.BadSnapshot, match="the store lost parts of it"):
        take(log, seqs[2:3])
    assert sorted(snapshot.positions(log)) == kept
