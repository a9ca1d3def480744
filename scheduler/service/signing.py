"""Messages of the inbox: the fields in which clients write them, and what a master checks before it believes them.

A signed message has the fields `id`, `command`, `reply`, `version`, `by`, `sent`, `key` and `mac`: who sent it, as
JSON without the door; when, in ms by the store's clock; the id of a door key; and the HMAC-SHA256 by that key over
cluster, lane, id, command, reply, by, sent and version, each framed by its length. So a message counts in its cluster
and its lane only, and nothing of it can be changed. Without keys a message has the first four fields, and its sender is
whoever can write to the store.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec import structs

from scheduler.model.errors import InvalidCommand, NotSigned, OtherVersion
from scheduler.model.sender import By, local
from scheduler.model.versions import MESSAGES, check_messages
from scheduler.rules.checks.validate import check_command_id
from scheduler.service.keyring import Keyring
from scheduler.store.framing import framed
from scheduler.store.keys import OPERATORS, WORKERS

AHEAD_MS = 60_000
"""How far the clock of a sender may be ahead of the store's."""
UNSIGNED = local("unsigned")
"""Who sends the messages of a store without keys: whoever can write to it."""
_UNSIGNED = [b"id", b"command", b"reply"]
_SIGNED = [*_UNSIGNED, b"by", b"sent", b"key", b"mac"]
_VERSION = b"version"
"""The field that states the version; a message without it has the first one."""


class Sent(NamedTuple):
    """A message as it came; `wrong` is the reason not to believe it, None if it is sound.

    Its `id` and `reply_to` are "" where they may not be used. `sent` is in ms, 0 if the message is not signed.
    """

    id: str
    body: bytes
    reply_to: str
    by: By = UNSIGNED
    sent: int = 0
    wrong: InvalidCommand | NotSigned | OtherVersion | None = None


def lane_of(by: By) -> str:
    """The lane of the inbox for messages of this sender."""
    if by.role == "worker":
        return WORKERS
    return f"company/{by.account.partition('/')[0]}" if by.role in {"user", "admin"} else OPERATORS


def reply_name(identity: str, body: str | bytes) -> str:
    """The name of the list for the answer to this body under this id: who sent another body waits at another list."""
    said = body.encode() if isinstance(body, str) else body
    return f"{identity}:{blake2b(said, digest_size=16).hexdigest()}"


def unsigned_fields(identity: str, body: str, reply: str) -> list[str]:
    """The fields and values of a message without a signature, in turn."""
    return ["id", identity, "command", body, "reply", reply, "version", str(MESSAGES)]


def signed_fields(  # noqa: PLR0917 - a message's fields in order
    ring: Keyring, cluster: str, by: By, sent: int, identity: str, body: str, reply: str
) -> list[str]:
    """The fields and values of a message of `by`, in turn, signed by the door key of the ring."""
    who = msgspec.json.encode([by.account, by.token, by.role]).decode()
    mac = ring.mac(ring.door, framed(cluster, lane_of(by), identity, body, reply, who, sent, MESSAGES))
    return [*unsigned_fields(identity, body, reply), "by", who, "sent", str(sent), "key", ring.door, "mac", mac]


class Gate:
    """Checks the messages of a cluster; without a ring, messages are taken that are not signed, and only these."""

    def __init__(self, cluster: str, ring: Keyring | None) -> None:
        self._cluster = cluster
        self._ring = ring

    def read(self, lane: str, flat: Sequence[bytes]) -> Sent:
        """The message of these fields and values, in turn, from the inbox's lane `lane`."""
        names = flat[::2]
        if _VERSION not in names:
            return self._read(lane, flat)
        at = 2 * names.index(_VERSION)
        version, rest = flat[at + 1], [*flat[:at], *flat[at + 2 :]]
        try:
            check_messages(version.decode(errors="replace"), _door_of(rest), "the master")
        except OtherVersion as refusal:
            return _of_other_version(rest, refusal)
        return self._read(lane, rest, version)

    def _read(self, lane: str, flat: Sequence[bytes], *version: bytes) -> Sent:
        """The message of these fields without its version, if it states one."""
        names = flat[::2]
        if names not in (_UNSIGNED, _SIGNED):
            shown = ", ".join(name.decode(errors="backslashreplace")[:40] for name in names[:10])
            wrong = InvalidCommand(f"a message has the fields id, command and reply, not {shown}")
            return Sent("", b"", "", wrong=wrong)
        identity, body, reply = (str(flat[1], "utf-8", "replace"), flat[3], str(flat[5], "utf-8", "replace"))
        found = Sent(identity, body, reply)
        try:
            check_command_id(identity)
        except InvalidCommand as refusal:
            return found._replace(id="", reply_to="", wrong=refusal)
        if reply not in {"", identity} and reply != reply_name(identity, body):
            return found._replace(reply_to="", wrong=InvalidCommand("a message is answered under its own id only"))
        if names == _UNSIGNED:
            if self._ring is None and lane == OPERATORS:
                return found
            return found._replace(wrong=NotSigned("the message is not signed"))
        return self._checked(found, lane, flat, version)

    def _checked(self, found: Sent, lane: str, flat: Sequence[bytes], version: Sequence[bytes]) -> Sent:
        """The signed message, with its sender if all of it, and its version, is as it was signed."""
        _, identity, _, body, _, reply, _, who, _, sent, _, key, _, mac = flat
        if self._ring is None:
            return found._replace(wrong=NotSigned("the message is signed, and the master has no keys to check it"))
        door = key.decode(errors="replace")
        if door not in self._ring.doors:
            return found._replace(wrong=NotSigned(f"the message is signed by the key {door[:40]!r}, which is unknown"))
        due = self._ring.mac(door, framed(self._cluster, lane, identity, body, reply, who, sent, *version))
        if not hmac.compare_digest(due.encode(), mac):
            return found._replace(wrong=NotSigned("the message was changed after it was signed, or is of another lane"))
        by = _sender(who, door)
        if by is None or by.role == "master" or not sent.isdigit() or lane != lane_of(by):
            return found._replace(wrong=NotSigned("the message is signed, but its sender or its time cannot be"))
        if not self._ring.may_sign(door, by.role):
            return found._replace(wrong=NotSigned(f"the key {door} signs for workers only, not for {by.account[:80]}"))
        return found._replace(by=by, sent=int(sent))


def _door_of(flat: Sequence[bytes]) -> str:
    """In words, who has sent the message, as far as it says."""
    stated = dict(zip(flat[::2], flat[1::2], strict=False))
    door = stated.get(b"key", b"").decode(errors="replace")
    return f"the sender with the door key {door[:40]!r}" if door else "the sender"


def _of_other_version(flat: Sequence[bytes], refusal: OtherVersion) -> Sent:
    """The message, of which nothing is believed; it is answered under its id, if that may be."""
    stated = dict(zip(flat[::2], flat[1::2], strict=False))
    identity, reply = (str(stated.get(name, b""), "utf-8", "replace") for name in (b"id", b"reply"))
    try:
        check_command_id(identity)
    except InvalidCommand:
        identity = ""
    body = stated.get(b"command", b"")
    return Sent(identity, body, reply if reply in {identity, reply_name(identity, body)} else "", wrong=refusal)


@lru_cache(maxsize=4096)
def _sender(who: bytes, door: str) -> By | None:
    try:
        by = msgspec.json.decode(who, type=By)
    except msgspec.DecodeError:
        return None
    return structs.replace(by, door=door) if by.account and by.role and not by.door else None
