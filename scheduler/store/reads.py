"""Who read what is private: a stream beside the log, chained as the log is and signed by the door that records.

The fields of an entry are `at` (ms), `by` (JSON, as in the log), `what`, `subject`, `reason`, `key` and `mac` (those of
the door, or ""), and `digest`, over the digest of the entry before and all fields before it.

The oldest entries leave the stream: they are moved to the archive (`recovery.archive.reads`) or, where nobody archives,
dropped. A list says which did: a JSON object a part, with the numbers of its `first` and `last` entry, counted from 1,
the digest `before` it and that of its last entry. The `folder` of a part that was dropped is "".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from scheduler.model.errors import UnreadableRecord
from scheduler.model.sender import By
from scheduler.store.codec import GENESIS_DIGEST, digest_of
from scheduler.store.connection import clock_ms
from scheduler.store.scripts import script

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis import Redis

    from scheduler.store.keys import Keys

FIELDS = ("at", "by", "what", "subject", "reason", "key", "mac", "digest")
MOST = 100_000
"""The most entries in the store; then the oldest `DROPPED` are dropped."""
DROPPED = 10_000
_TRIES = 100
_APPEND_LUA = script(__file__, "append_read")
_LEAVE_LUA = script(__file__, "reads_leave")
Sign = Callable[[bytes], tuple[str, str]]
"""The text of an entry -> the id of a door key and its MAC."""
IsSigned = Callable[[bytes, str, str], bool]
"""The text of an entry, the id of a door key, a MAC -> whether that is the MAC."""
Values = Sequence[str]
"""The values of an entry in the order of `FIELDS`."""


class Read(NamedTuple):
    """An entry: who read `what` (such as `logs`) of the `subject`, and the `reason` given."""

    at: int
    by: By
    what: str
    subject: str
    reason: str
    key: str
    mac: str
    digest: str


def record_read(  # noqa: PLR0917 - an entry's fields in order
    store: Redis, keys: Keys, by: By, what: str, subject: str, reason: str = "", sign: Sign = lambda _: ("", "")
) -> None:
    """Append an entry; call it before what was asked for is given out. Raises: redis-py's errors."""
    who = msgspec.json.encode(by).decode()
    script = store.register_script(_APPEND_LUA)
    for _ in range(_TRIES):
        before = last_read(store, keys) or GENESIS_DIGEST
        stated = [str(clock_ms(store.time())), who, what, subject, reason]
        key, mac = sign(_text(before, stated))
        values = [*stated, key, mac]
        digest = digest_of(before.encode(), *(value.encode() for value in values))
        flat = [part for pair in zip(FIELDS, (*values, digest), strict=True) for part in pair]
        answer: Any = script(keys=[keys.reads, keys.reads_archive], args=[before, GENESIS_DIGEST, *flat])
        number, known = answer
        if number > MOST:
            _drop(store, keys, known)
        if number:
            return
    raise RuntimeError("others kept recording reads")


def last_read(store: Redis, keys: Keys) -> str:
    """The digest of the last entry, "" if there is none. Raises: redis-py's errors."""
    last: Any = store.xrevrange(keys.reads, count=1)
    return str(last[0][1].get(b"digest", b""), "utf-8", "replace") if last else ""


def in_store(store: Redis, keys: Keys, start: str = "-", count: int = 500) -> list[tuple[str, Values]]:
    """Up to `count` entries from the id `start` on, with their ids.

    A field that is missing is ""; an entry with one too many has no digest. Raises: redis-py's errors.
    """
    found: list[tuple[str, Values]] = []
    page: Any = store.xrange(keys.reads, start, count=count)
    for identity, fields in page:
        values = [fields.get(name.encode(), b"").decode(errors="replace") for name in FIELDS]
        found.append((identity.decode(), values if len(fields) == len(FIELDS) else [*values[:-1], ""]))
    return found


def checked(
    entries: Iterable[Values], number: int, before: str, is_signed: IsSigned | None = None
) -> Iterator[tuple[int, Read]]:
    """The entries with their numbers; they follow the entry `number` with the digest `before`.

    With `is_signed`, their signatures are checked.

    Raises: UnreadableRecord naming the number of the first entry that was altered, or is not signed.
    """
    for values in entries:
        number += 1
        *stated, key, mac, digest = values
        if digest != digest_of(before.encode(), *(value.encode() for value in values[:-1])):
            raise UnreadableRecord(number, "the entry of the reads was altered, or one before it is missing")
        if is_signed is not None and not is_signed(_text(before, list(stated)), key, mac):
            raise UnreadableRecord(number, "the entry of the reads is not signed by a door")
        before = digest
        at, who, what, subject, reason = stated
        yield number, Read(int(at), msgspec.json.decode(who, type=By), what, subject, reason, key, mac, digest)


def last_left(store: Redis, keys: Keys) -> bytes | None:
    """The last part of the list of those that left the store, as it is written there. Raises: redis-py's errors."""
    return cast("bytes | None", store.lindex(keys.reads_archive, -1))


def end_of(part: bytes | None) -> tuple[int, str]:
    """The number and the digest of the last entry of a part; those before the first entry without one."""
    return (json.loads(part)["last"], json.loads(part)["digest"]) if part else (0, GENESIS_DIGEST)


def leave(store: Redis, keys: Keys, known: bytes | None, last: tuple[str, Values], part: Mapping[str, object]) -> str:
    """Remove the oldest entries, up to `last`, and list them as the `part` after the part `known`; all or nothing.

    Returns "" or why it was refused. Raises: redis-py's errors.
    """
    identity, values = last
    names = (keys.reads, keys.reads_archive)
    answer: Any = store.eval(_LEAVE_LUA, len(names), *names, known or b"", identity, values[-1], json.dumps(part))
    return str(answer, "utf-8")


def _drop(store: Redis, keys: Keys, known: bytes) -> None:
    """Drop the oldest entries, unless others have left since the part `known`."""
    oldest = in_store(store, keys, count=DROPPED)
    number, before = end_of(known)
    span = {"first": number + 1, "last": number + len(oldest), "before": before, "digest": oldest[-1][1][-1]}
    leave(store, keys, known, oldest[-1], {"folder": "", **span, "size": 0, "checksum": ""})


def _text(before: str, stated: list[str]) -> bytes:
    return digest_of(b"read", before.encode(), *(value.encode() for value in stated)).encode()
