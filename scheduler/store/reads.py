"""Who read what is private: a stream beside the log, chained as the log is and signed by the door that records.

The fields of an entry are `at` (ms), `by` (JSON, as in the log), `what`, `subject`, `reason`, `key` and `mac` (those of
the door, or ""), and `digest`, over the digest of the entry before and all fields before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scheduler.model.errors import UnreadableRecord
from scheduler.model.sender import By
from scheduler.store.codec import GENESIS_DIGEST, digest_of
from scheduler.store.connection import clock_ms

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.store.keys import Keys

FIELDS = ("at", "by", "what", "subject", "reason", "key", "mac", "digest")
_TRIES = 100
_APPEND_LUA = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if (last and last[2][#last[2]] or ARGV[2]) ~= ARGV[1] then return 0 end
redis.call('XADD', KEYS[1], '*', unpack(ARGV, 3))
return 1
"""
"""KEYS: the stream. ARGV: the digest of the last entry, that of an empty stream, the fields and values.
-> 1 if it was appended, 0 if another entry is the last one."""
Sign = Callable[[bytes], tuple[str, str]]
"""The text of an entry -> the id of a door key and its MAC."""


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
        if script(keys=[keys.reads], args=[before, GENESIS_DIGEST, *flat]):
            return
    raise RuntimeError("others kept recording reads")


def last_read(store: Redis, keys: Keys) -> str:
    """The digest of the last entry, "" if there is none. Raises: redis-py's errors."""
    last: Any = store.xrevrange(keys.reads, count=1)
    return str(last[0][1].get(b"digest", b""), "utf-8", "replace") if last else ""


def reads(store: Redis, keys: Keys, is_signed: Callable[[bytes, str, str], bool] | None = None) -> Iterator[Read]:
    """The entries in order; with `is_signed` (text, key, MAC), their signatures are checked.

    Raises: UnreadableRecord naming the number of the first entry that was altered, or is not signed.
    """
    before, start, number = GENESIS_DIGEST, "-", 0
    while page := store.xrange(keys.reads, start, count=500):
        entries: Any = page
        for identity, fields in entries:
            number += 1
            values = [fields.get(name.encode(), b"").decode(errors="replace") for name in FIELDS]
            *stated, key, mac, digest = values
            if len(fields) != len(FIELDS) or digest != digest_of(before.encode(), *(v.encode() for v in values[:-1])):
                raise UnreadableRecord(number, "the entry of the reads was altered, or one before it is missing")
            if is_signed is not None and not is_signed(_text(before, stated), key, mac):
                raise UnreadableRecord(number, "the entry of the reads is not signed by a door")
            before, start = digest, f"({identity.decode()}"
            at, who, what, subject, reason = stated
            yield Read(int(at), msgspec.json.decode(who, type=By), what, subject, reason, key, mac, digest)


def _text(before: str, stated: list[str]) -> bytes:
    return digest_of(b"read", before.encode(), *(value.encode() for value in stated)).encode()
