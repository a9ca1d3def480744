"""The log of a test's cluster, as a store would hold it."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.store.codec import GENESIS_DIGEST, Fact, Record, chain_digest, encode, told
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


def facts(log: Iterable[Record]) -> list[Fact]:
    """What the entries tell."""
    return [told(record) for record in log]


def rechained(log: list[Record]) -> list[Record]:
    """The log with positions, turns and digests as if it had been written like that."""
    digest, found = GENESIS_DIGEST, []
    turns: dict[int, int] = {}
    for seq, record in enumerate(log, start=1):
        turn = turns.setdefault(record.turn, seq)
        digest = chain_digest(digest, seq, record.type, record.v, record.at, turn, record.cause, record.data)
        found.append(record._replace(seq=seq, turn=turn, digest=digest))
    return found
