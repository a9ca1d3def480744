"""The log of a test's cluster, as a store would hold it."""

from __future__ import annotations

from scheduler.events import GENESIS_DIGEST, Record, encode
from tests.property.given import Cluster


def records(cluster: Cluster) -> list[Record]:
    """The entries of everything that the cluster did; what came at one time is one turn."""
    found: list[Record] = []
    previous, turn, before = GENESIS_DIGEST, 1, -1
    for seq, (event, at, cause) in enumerate(cluster.log, start=1):
        turn, before = (turn, before) if at == before else (seq, at)
        found.append(encode(event, seq=seq, at=at, turn=turn, cause=cause, previous=previous))
        previous = found[-1].digest
    return found
