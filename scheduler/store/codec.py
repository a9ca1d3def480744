"""How a turn is stored, decoded and printed, and the digests that chain the turns.

A stream entry is a turn. Its stream id is the position of its last event; its fields are

    first     the position of its first event
    at        its time in ms
    events    a JSON array of its events, each an array: the type's name, then the values of its fields. Resources are
              [cores, MiB, [[kind, amount], …]]
    commands  a JSON array of the commands that caused events, each an array: the index of its first event in the turn,
              the number of its events, its id, its sender as [account, token, role, door] or "" if nobody is known, the
              command without its private part, and the commitment to that part, "" if there is none
    private   "" or a JSON array of the private parts that are not withheld, each an array: the index of its command,
              the salt, and the private part
    digest    hex of BLAKE2b-256 over the digest of the turn before, its first and last position, its time, `events`
              and `commands`

A digest covers fields in their order, each written as its length in bytes in decimal, a colon, and its bytes; numbers
in decimal. So different sequences of fields are never written alike. A commitment is such a digest over the salt and
the JSON of the private part: the chain covers a withheld part without showing it. The digest before the first turn is
64 zeros.

A line of a file is an event (`lines_of`), as `fairlog log --json` prints it, or a whole entry (`entry_line`), as in
archives and backups.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, get_type_hints

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder, Encoder
from msgspec.structs import asdict

from scheduler.model.commands import WITH_PRIVATE, Command, Private, Taken, private_of, without_private
from scheduler.model.errors import UnreadableRecord
from scheduler.model.events import EVENT_TYPES, Event, by_kind
from scheduler.model.resources import Resources
from scheduler.model.sender import NOBODY, By
from scheduler.model.text import counted
from scheduler.store.framing import framed_bytes

T = TypeVar("T")
GENESIS_DIGEST = "0" * 64
FIELDS = ("first", "at", "events", "commands", "private", "digest")
"""The fields of a stream entry, in order."""

_to_json = Encoder().encode
_empty_digest = blake2b(digest_size=32).copy
"""Copying an empty BLAKE2b-256 takes half the time of creating one."""


class Record(NamedTuple):
    """A stored turn: first and last position, time in ms, and the other fields undecoded."""

    first: int
    last: int
    at: int
    events: bytes
    commands: bytes
    private: bytes
    digest: str


class Fact(Struct, gc=False):
    """An event of the verified log: `at` in ms, `turn` the position of its turn's first event.

    `digest` is the turn's digest on its last event, "" on the others. `command` (without its private part), its sender
    `by`, `private` (None if withheld) and the number `caused` of its events are set on the first event of a command.
    `cause` is the command's id, "" for the master's own commands.
    """

    seq: int
    at: int
    turn: int
    cause: str
    event: Event
    digest: str = ""
    command: Command | None = None
    by: By = NOBODY
    private: Private | None = None
    caused: int = 0

    @property
    def type(self) -> str:
        """The event's type, as the log names it."""
        return type(self.event).__name__

    @property
    def said(self) -> str:
        """Why its command was sent, in the sender's words, or what is public of that; "" if nothing was said."""
        return (self.private and self.private.said) or getattr(self.command, "reason", None) or ""


class Hear(Protocol):
    """Takes an event, its time in ms, and `cause`, `private` and `by` as a `Fact` has them."""

    def __call__(
        self, event: Event, at: int, cause: str = ..., private: Private | None = ..., by: By = ..., /
    ) -> object:
        """Called for each event in turn."""


class _Logged(Struct, Generic[T], frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A stored command."""

    begin: int
    number: int
    id: str
    by: By | Literal[""]
    command: T
    commit: str


class _Open(Struct, Generic[T], frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A stored private part."""

    number: int
    salt: str
    private: T


_events_of = Decoder(list[Event]).decode
_commands_of = Decoder(list[_Logged[Command]]).decode
_command_of = Decoder(Command).decode
_causes_of = Decoder(list[_Logged[Raw]]).decode
"""As `_commands_of`, for those who need no command: it stays JSON."""
_privates_of = Decoder(list[_Open[Private]]).decode
_sealed_of = Decoder(list[_Open[Raw]]).decode
"""As `_privates_of`; the private parts stay JSON, which their commitments cover."""
_plain = Decoder().decode


def digest_of(*fields: bytes) -> str:
    """Hex of BLAKE2b-256 over the fields, each preceded by its length."""
    digest = _empty_digest()
    digest.update(framed_bytes(fields))
    return digest.hexdigest()


def chained(previous: str, first: int, last: int, at: int, events: bytes, commands: bytes) -> str:
    """The digest of a turn after the one with the digest `previous`."""
    return digest_of(previous.encode(), b"%d" % first, b"%d" % last, b"%d" % at, events, commands)


def commitment(salt: str, private: Private | Raw) -> str:
    """The digest that the chain covers instead of a private part."""
    return digest_of(salt.encode(), _to_json(private))


def new_salts(number: int) -> list[str]:
    """So many times 128 random bits, so that a commitment does not confirm a guessed private part."""
    drawn = os.urandom(16 * number).hex()
    return [drawn[begin : begin + 32] for begin in range(0, len(drawn), 32)]


def encode_turn(
    entries: Iterable[tuple[Event, str]],
    commands: Sequence[Taken] = (),
    *,
    first: int,
    at: int,
    previous: str,
    salt: Callable[[], str] | None = None,
) -> Record:
    """The record of a turn at position `first`, after the turn with the digest `previous`.

    `entries` are its events, each with the id of the command that caused it; `commands` are these commands.
    """
    told = [event for event, _ in entries]
    events = _to_json(told)
    salts = iter(new_salts(sum([type(each.command) in WITH_PRIVATE for each in commands])) if salt is None else ())
    logged: list[tuple[int, int, str, By | str, Command, str]] = []
    private: list[tuple[int, str, Private]] = []
    for begin, number, identity, by, command in commands:
        commit = ""
        if type(command) in WITH_PRIVATE and (part := private_of(command)) is not None:
            drawn = next(salts) if salt is None else salt()
            private.append((len(logged), drawn, part))
            command, commit = without_private(command), commitment(drawn, part)  # noqa: PLW2901
        logged.append((begin, number, identity, "" if by == NOBODY else by, command, commit))
    stated = _to_json(logged)
    last = first + len(told) - 1
    digest = chained(previous, first, last, at, events, stated)
    return Record(first, last, at, events, stated, _to_json(private) if private else b"", digest)


def record_of(raw: Sequence[Any]) -> Record:
    """The record of a stream entry, not verified. Raises: UnreadableRecord if it has another schema or is malformed."""
    entry_id, flat = raw
    try:
        last = _number(entry_id[:-2])  # ids are <seq>-0
        if flat[::2] != _NAMES:
            names = [name.decode(errors="replace") for name in flat[::2]]
            if "type" in names:
                raise UnreadableRecord(last, OLD_SCHEMA)
            raise UnreadableRecord(last, f"the entry has the fields {', '.join(names)} instead of {', '.join(FIELDS)}")
        first, at, events, commands, private, digest = flat[1::2]
        return Record(_number(first), last, _number(at), events, commands, private, digest.decode())
    except ValueError as error:
        where = int(entry_id.partition(b"-")[0])
        raise UnreadableRecord(where, f"the entry has an invalid number or text: {error}") from error


def _number(text: bytes) -> int:
    """The number in canonical decimal form. Raises: ValueError if it has another form."""
    number = int(text)
    if b"%d" % number != text:
        raise ValueError(f"{number} is written as {text.decode(errors='replace')}")
    return number


_NAMES = [name.encode() for name in FIELDS]
OLD_SCHEMA = "the log has schema 1, which this version cannot read; fairlog 0.1 can"


def stored(record: Record) -> dict[str, str | int | bytes]:
    """The fields of the record's stream entry."""
    first, _, at, events, commands, private, digest = record
    return dict(zip(FIELDS, (first, at, events, commands, private, digest), strict=True))


def check(record: Record, seq: int, digest: str) -> None:
    """Verify that the record follows the one that ends at `seq` with this `digest`. Raises: UnreadableRecord."""
    first, last, at, events, commands, _, stated = record
    if first != seq + 1:
        if first <= seq:
            raise UnreadableRecord(seq + 1, f"entry {first} is repeated here")
        raise UnreadableRecord(seq + 1, f"the entry is missing; the next one in the log is {first}")
    due = chained(digest, first, last, at, events, commands)
    if stated != due:
        why = f"{_altered(first, last)}: the digest is {stated}, but the chain requires {due}"
        raise UnreadableRecord(first, why, at=at)


def _named(first: int, last: int) -> str:
    return f"entries {first} to {last}" if last > first else f"entry {first}"


def _altered(first: int, last: int) -> str:
    return f"{_named(first, last)} {'were' if last > first else 'was'} altered"


def facts(records: Iterable[Record], seq: int = 0, digest: str = GENESIS_DIGEST) -> Iterator[Fact]:
    """The events of the records that follow the turn with this `digest`, which ends at position `seq`.

    Raises: UnreadableRecord at a gap, and at an altered, malformed or unknown turn.
    """
    for record in records:
        check(record, seq, digest)
        yield from told(record)
        seq, digest = record.last, record.digest


def told(record: Record) -> list[Fact]:
    """The events of a verified record. Raises: UnreadableRecord if it cannot be decoded or breaks a commitment."""
    first, at, digest = record.first, record.at, record.digest
    events, logged, private = _decoded(record, _commands_of)
    found: list[Fact] = []
    told, free = found.append, 0
    for number, each in enumerate(logged):
        begin, caused, cause = each.begin, each.number, each.id
        if free < begin:
            found += [Fact(seq, at, first, "", event) for seq, event in enumerate(events[free:begin], first + free)]
        part = private.get(number) if private else None
        told(Fact(first + begin, at, first, cause, events[begin], "", each.command, each.by or NOBODY, part, caused))
        free = begin + caused
        if caused > 1:
            rest = enumerate(events[begin + 1 : free], first + begin + 1)
            found += [Fact(seq, at, first, cause, event) for seq, event in rest]
    found += [Fact(seq, at, first, "", event) for seq, event in enumerate(events[free:], first + free)]
    found[-1].digest = digest
    return found


def command_in(record: Record, identity: str) -> tuple[Command, Private | Literal["withheld"] | None] | None:
    """The command of that id in the turn, without its private part, and that part, None if it has none.

    None if the turn has no such command.

    Raises: UnreadableRecord if they cannot be decoded; the record is not verified otherwise.
    """
    try:
        logged = _causes_of(record.commands)
        number = next((number for number, each in enumerate(logged) if each.id == identity), None)
        if number is None:
            return None
        parts = _privates_of(record.private) if record.private else []
        private = next((part.private for part in parts if part.number == number), None)
        withheld: Literal["withheld"] | None = "withheld" if logged[number].commit else None
        return _command_of(logged[number].command), private or withheld
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _complaint(record, error) from error


def tell(record: Record, hear: Hear) -> None:
    """Call `hear` for each event of a verified record: `told` for those who need no facts.

    What the commands say is not decoded, as nothing but their events follows from it. Raises: otherwise as `told`.
    """
    at = record.at
    events, logged, private = _decoded(record, _causes_of)
    free = 0
    for number, each in enumerate(logged):
        begin, caused, cause = each.begin, each.number, each.id
        if free < begin:
            for event in events[free:begin]:
                hear(event, at)
        hear(events[begin], at, cause, private.get(number) if private else None, each.by or NOBODY)
        free = begin + caused
        if caused > 1:
            for event in events[begin + 1 : free]:
                hear(event, at, cause)
    for event in events[free:]:
        hear(event, at)


def _decoded(
    record: Record, commands_of: Callable[[bytes], list[_Logged[T]]]
) -> tuple[list[Event], Sequence[_Logged[T]], dict[int, Private]]:
    """The events, the commands and the private parts by the index of their command. Raises: as `told`."""
    first, last, _, written, stated, opened, _ = record
    try:
        events = _events_of(written)
        logged = commands_of(stated) if stated != b"[]" else []
        private = _opened(record, logged) if opened else {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _complaint(record, error) from error
    count = len(events)
    if not events or count != last - first + 1:
        raise UnreadableRecord(first, f"the turn has {counted(count, 'event')} for positions {first} to {last}")
    free = 0
    for number, each in enumerate(logged):
        begin, caused = each.begin, each.number
        if begin < free or caused < 1 or begin + caused > count:
            raise UnreadableRecord(first, f"command {number} of the turn names events that are not its own")
        free = begin + caused
    return events, logged, private


def _opened(record: Record, logged: Sequence[_Logged[T]]) -> dict[int, Private]:
    """The private parts that are not withheld, by the index of their command."""
    sealed = _sealed_of(record.private)
    for part in sealed:
        number = part.number
        if not 0 <= number < len(logged) or logged[number].commit != commitment(part.salt, part.private):
            raise _altered_private(record)
    opened = {part.number: part.private for part in _privates_of(record.private)}
    if _to_json(sealed) != record.private or len(opened) != len(sealed):
        raise _altered_private(record)
    return opened


def check_private(record: Record) -> None:
    """Verify that the private parts match their commitments. Raises: UnreadableRecord."""
    if record.private:
        try:
            _opened(record, _causes_of(record.commands))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _altered_private(record) from error


def _altered_private(record: Record) -> UnreadableRecord:
    what = f"the private part of {_named(record.first, record.last)} was altered: it does not match its commitment"
    return UnreadableRecord(record.first, what)


def _complaint(record: Record, error: Exception) -> UnreadableRecord:
    """The first part of the turn that cannot be decoded."""
    first = record.first
    try:
        for seq, raw in enumerate(msgspec.json.decode(record.events, type=list[Raw]), start=first):
            name = next(iter(_plain(raw)), "")
            if name not in EVENT_TYPES:
                return UnreadableRecord(seq, _unknown_type(name))
            try:
                msgspec.json.decode(raw, type=EVENT_TYPES[name])
            except msgspec.DecodeError as reason:
                return UnreadableRecord(seq, f"{name} holds data that cannot be read: {_words(reason)}{_NEWER}")
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError):
        return UnreadableRecord(first, f"the turn's events cannot be read: {_words(error)}")
    try:
        _commands_of(record.commands)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return UnreadableRecord(first, f"the turn's commands cannot be read: {_words(error)}{_NEWER}")
    try:
        _sealed_of(record.private)  # then they are what the log has committed to
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _altered_private(record)
    return UnreadableRecord(first, f"the turn's private parts cannot be read: {_words(error)}{_NEWER}")


def _unknown_type(name: object) -> str:
    return f"the event type {name!r} is unknown{_NEWER if isinstance(name, str) and name.isidentifier() else ''}"


_NEWER = "; if a newer fairlog wrote it, this one is too old for the log: upgrade it here"
"""What is said of a turn whose digest is right."""


def _words(error: Exception) -> str:
    return " ".join(str(error).split())


class EventLine(Struct, forbid_unknown_fields=True, gc=False):
    """An event as a line of a file: `data` has its stored values by field, resources by kind; the rest is as in `Fact`.

    `events` is the number of events that the command caused. Fields that do not apply are None.
    """

    seq: int
    type: str
    at: int
    turn: int
    cause: str
    data: dict[str, Any]
    command: dict[str, Any] | None = None
    events: int | None = None
    by: dict[str, str] | Literal[""] | None = None
    commit: str | None = None
    private: dict[str, Any] | None = None
    digest: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields of the line."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def lines_of(record: Record, *, public: bool = False) -> list[EventLine]:
    """The lines of a verified turn; `public` omits private parts. Raises: UnreadableRecord if it cannot be decoded."""
    lines: list[EventLine] = []
    written = _plain(record.events)
    for fact, (name, *values) in zip(told(record), written, strict=True):
        data = dict(zip(EVENT_TYPES[name].__struct_fields__, values, strict=False))
        for vector in _VECTORS[name]:
            if data.get(vector) is not None:
                data[vector] = by_kind(data[vector])
        lines.append(EventLine(fact.seq, name, fact.at, fact.turn, fact.cause, data, digest=fact.digest or None))
    private = {number: {"salt": salt, **part} for number, salt, part in _plain(record.private or b"[]")}
    for number, (offset, count, _, by, command, commit) in enumerate(_plain(record.commands)):
        line = lines[offset]
        line.command, line.events, line.commit = command, count, commit
        line.by = dict(zip(_BY, by, strict=True)) if by else ""
        line.private = None if public else private.get(number)
    return lines


_VECTORS = {
    name: [field for field, of in get_type_hints(model).items() if of in (Resources, Resources | None)]
    for name, model in EVENT_TYPES.items()
}
"""Event type -> its fields that hold resources."""


class _EntryLine(Struct, forbid_unknown_fields=True, gc=False):
    """A line that is a whole entry."""

    first: int
    last: int
    at: int
    events: Raw
    commands: Raw
    private: Raw
    digest: str


_BY = By.__struct_fields__
_line_of = Decoder(EventLine).decode
_whole_of = Decoder(_EntryLine).decode
_WHOLE = b'{"first":'


def entry_line(record: Record) -> bytes:
    """The record as one line, with its stored bytes."""
    first, last, at, events, commands, private, digest = record
    return b'{"first":%d,"last":%d,"at":%d,"events":%b,"commands":%b,"private":%b,"digest":"%b"}\n' % (
        *(first, last, at, events, commands),
        private or b"[]",
        digest.encode(),
    )


def read_entry(line: bytes, seq: int) -> Record:
    """The record of an `entry_line`, expected at position `seq`. Raises: UnreadableRecord if it is malformed."""
    try:
        found = _whole_of(line)
        private = bytes(found.private)
        parts = bytes(found.events), bytes(found.commands), b"" if private == b"[]" else private
        return Record(found.first, found.last, found.at, *parts, found.digest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableRecord(seq, f"the line is not a log entry: {_words(error)}") from error


def read_lines(file: Iterable[bytes], seq: int = 0) -> Iterator[Record]:
    """The turns in the lines of a file, after position `seq`, not verified. Raises: UnreadableRecord at a bad line."""
    turn: list[EventLine] = []
    for line in file:
        if line.startswith(_WHOLE) and not turn:
            record = read_entry(line, seq + 1)
            yield record
            seq = record.last
        elif not line.isspace():
            written = _line(line, seq + 1)
            if turn and written.turn != turn[0].seq and written.turn == written.seq:
                raise UnreadableRecord(seq, f"the digest of {_named(turn[0].seq, seq)} is missing")
            turn.append(written)
            seq = written.seq
            if written.digest is not None:
                yield _rebuilt(turn)
                turn = []
    if turn:
        raise UnreadableRecord(seq + 1, f"the file ends within the turn that begins with entry {turn[0].seq}")


def read_export(file: Iterable[bytes]) -> Iterator[Fact]:
    """The events of an exported log from position 1. Raises: as `facts` and `read_lines`."""
    return facts(read_lines(file))


def _line(line: bytes, due: int) -> EventLine:
    """The line of the event at position `due`."""
    try:
        written = _line_of(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        old = b'"v":' in line and b'"digest":' in line
        why = f"the line is not a log entry: {_words(error)}; give a file that `fairlog log --json` has written"
        raise UnreadableRecord(due, OLD_SCHEMA if old else why) from error
    if written.seq < due:
        raise UnreadableRecord(due, f"entry {written.seq} is repeated here")
    if written.seq > due:
        raise UnreadableRecord(due, f"the entry is missing; the next one in the log is {written.seq}")
    if written.type not in EVENT_TYPES:
        raise UnreadableRecord(due, _unknown_type(written.type))
    return written


def _rebuilt(turn: Sequence[EventLine]) -> Record:
    """The record of these lines. Raises: UnreadableRecord if no record has such lines."""
    first, last, at = turn[0].seq, turn[-1].seq, turn[0].at
    events: list[list[Any]] = []
    commands: list[tuple[Any, ...]] = []
    private: list[tuple[Any, ...]] = []
    cause, left, sound = "", 0, True
    for number, line in enumerate(turn):
        if line.command is not None:
            sound = sound and left == 0 and line.events is not None and line.by is not None and line.commit is not None
            if line.private is not None:
                part = dict(line.private)
                private.append((len(commands), part.pop("salt", None), part))
            by = line.by or {}
            sound = sound and tuple(by) in ((), _BY)
            sender = list(by.values()) or ""
            commands.append((number, line.events, line.cause, sender, line.command, line.commit))
            cause, left = line.cause, line.events or 0
        elif (line.events, line.by, line.commit, line.private) != (None, None, None, None):
            sound = False
        names = EVENT_TYPES[line.type].__struct_fields__
        sound = sound and tuple(line.data) == names[: len(line.data)]
        sound = sound and (line.turn, line.at, line.cause) == (first, at, cause if left else "")
        left -= left > 0
        for vector in _VECTORS[line.type]:
            if isinstance(amounts := line.data.get(vector), dict):
                sound = sound and list(amounts)[:2] == ["cores", "memory_mb"]
                cores, memory_mb, *_ = (*amounts.values(), 0, 0)
                line.data[vector] = [cores, memory_mb, list(amounts.items())[2:]]
        events.append([line.type, *line.data.values()])
    if not sound:
        raise UnreadableRecord(first, f"{_altered(first, last)}: the lines of the turn contradict each other")
    opened = _to_json(private) if private else b""
    return Record(first, last, at, _to_json(events), _to_json(commands), opened, turn[-1].digest or "")
