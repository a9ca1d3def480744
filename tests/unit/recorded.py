"""The log of a test's cluster: as a store holds it, as it is told, and as it might have been written instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

from msgspec.structs import asdict, replace

from fairlog.cli.render import log_json
from scheduler.model.commands import Private, SubmitApp, Taken
from scheduler.model.events import Event, ExecutorRevoked, HoldEnded, RefusalsOmitted, RoomHeld, TargetEnded, TargetSet
from scheduler.store.codec import GENESIS_DIGEST, Fact, Record, encode_turn, lines_of, told
from scheduler.store.eventlog import EventLog, Position
from tests.property.given import Cluster


def facts(log: Iterable[Record] | Cluster) -> list[Fact]:
    """What the records tell, or everything that the cluster did."""
    return [fact for record in (log.records if isinstance(log, Cluster) else log) for fact in told(record)]


def said(fact: Fact) -> dict[str, Any]:
    """What the event states, by name."""
    return asdict(fact.event)


def edited(log: Sequence[Fact], seq: int, **changes: object) -> list[Fact]:
    """The log with an event at `seq` that states something else."""
    found = list(log)
    found[seq - 1] = replace(found[seq - 1], event=replace(found[seq - 1].event, **changes))
    return found


def without(log: Sequence[Fact], *gone: int) -> list[Fact]:
    """The log without the entries at these positions; a command stays with what is left of its entries."""
    found, command = [], None
    for fact in log:
        command = fact if fact.command is not None else command
        if fact.seq in gone:
            continue
        if command is not None and fact.seq < command.seq + command.caused:
            left = [seq for seq in range(command.seq, command.seq + command.caused) if seq not in gone]
            if fact.seq == left[0]:
                fact = replace(command, seq=fact.seq, event=fact.event, caused=len(left))  # noqa: PLW2901
        found.append(fact)
    return found


def rechained(log: Iterable[Fact]) -> list[Fact]:
    """The log as if it had been written like that, its positions, turns and digests made anew."""
    return facts(stored(log))


def stored(log: Iterable[Fact]) -> list[Record]:
    """The records of a log that was written like that, whatever positions and digests the facts have."""
    return list(_stored(log))


def _stored(log: Iterable[Fact]) -> Iterator[Record]:
    first, digest = 1, GENESIS_DIGEST
    held: dict[int, int] = {}
    for _, group in groupby(log, key=lambda fact: fact.turn):
        turn = list(group)
        held |= {
            fact.seq: seq for seq, fact in enumerate(turn, start=first) if isinstance(fact.event, RoomHeld | TargetSet)
        }
        commands = [_taken(number, turn) for number, fact in enumerate(turn) if fact.command is not None]
        entries = [(_of_hold(fact.event, held), fact.cause) for fact in turn]
        at = turn[0].at
        record = encode_turn(entries, commands, first=first, at=at, previous=digest, salt="5a17".__str__)
        yield record
        first, digest = record.last + 1, record.digest


def _of_hold(event: Event, held: Mapping[int, int]) -> Event:
    """The event, which names a hold or a target by the position that its own event has now."""
    if isinstance(event, TargetEnded) and event.target in held:
        return replace(event, target=held[event.target])
    if isinstance(event, ExecutorRevoked | HoldEnded) and event.hold in held:
        return replace(event, hold=held[event.hold])
    return event


def _taken(number: int, turn: Sequence[Fact]) -> Taken:
    fact = turn[number]
    rest = turn[number + 1 :] if fact.cause else turn[number + 1 : number + fact.caused]
    count = 1 + len(list(takewhile(lambda other: other.command is None and other.cause == fact.cause, rest)))
    command = fact.command
    assert command is not None
    if isinstance(command, SubmitApp) or fact.private is not None:
        given = asdict(fact.private or Private())
        given |= dict.fromkeys(("detail",) if getattr(command, "reason", "") else ("reason", "detail"), given["said"])
        stated = command.__struct_fields__
        command = replace(command, **{name: value for name, value in given.items() if name in stated})
    return Taken(number, count, fact.cause, fact.by, command)


def put(log: EventLog, records: Iterable[Record]) -> Position:
    """Commit the records to a log that is empty, or ends before the first; where it ends."""
    after = log.head()
    for record in records:
        log.begin_commit(after, record).finish()
        after = Position(record.last, record.digest)
    return after


def chain_of(turns: int, *, other_from: int = 0) -> list[Record]:
    """The records of a log of so many turns, of one event each, which are others from turn `other_from` on."""
    made: list[Record] = []
    for turn in range(1, turns + 1):
        entry, previous = (
            RefusalsOmitted(count=2 if 0 < other_from <= turn else 1, since=0),
            made[-1].digest if made else GENESIS_DIGEST,
        )
        made.append(encode_turn([(entry, "")], first=turn, at=turn, previous=previous))
    return made


def exported(log: Iterable[Record]) -> str:
    """The log as `fairlog log --json` prints it."""
    return "".join(f"{log_json(line)}\n" for record in log for line in lines_of(record))
