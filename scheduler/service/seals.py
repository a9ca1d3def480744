"""Seals: a master signs the end of a turn, in the log and wherever seals are kept, so that no other log passes for it.

They cover the end of the record of reads as well.

A log without a key has none. A seal is due after 10,000 events or a minute, if anything was logged since the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler.model.events import Event, KeyChanged, LogRestored, LogSealed
from scheduler.rules.state.cluster import ClusterState
from scheduler.service.keyring import KEYS_VARIABLE, BadKeys, Keyring, is_signed, master_id
from scheduler.store.eventlog import Position
from scheduler.store.framing import framed

SEAL_EVENTS = 10_000
SEAL_MS = 60_000


def is_due(state: ClusterState, now: int) -> bool:
    """Whether a seal is due at `now` (ms). An event of the log that is not sealed is the last seal itself."""
    unsealed = state.head - state.sealed
    return unsealed > 1 and (unsealed >= SEAL_EVENTS or now - state.sealed_at >= SEAL_MS)


def due_at(state: ClusterState) -> int | None:
    """When (ms) the next seal is due at the latest; None if nothing was logged since the last one."""
    return state.sealed_at + SEAL_MS if state.head - state.sealed > 1 else None


def seal(ring: Keyring, position: Position, reads: str = "") -> LogSealed:
    """The seal of the turn that ends at `position`, and of the record of reads that ends with the digest `reads`."""
    signature = ring.sign(_sealed(*position, reads))
    return LogSealed(seq=position.seq, digest=position.digest, key=ring.master, signature=signature, reads=reads)


def is_sound(event: LogSealed, public: str) -> bool:
    """Whether the key with this public half signed the seal."""
    return is_signed(public, event.signature, _sealed(event.seq, event.digest, event.reads))


def lost_reads(events: Iterable[Event], numbers: Mapping[str, int], dropped: int = 0) -> int | None:
    """The position of the first seal of a record of reads whose end is not recorded; None without such.

    `numbers` are those of the entries by their digest; of entries up to the number `dropped`, some are not there.
    """
    number = 0
    for event in events:
        if isinstance(event, LogSealed) and event.reads:
            if event.reads not in numbers and number >= dropped:
                return event.seq
            number = numbers.get(event.reads, number)
    return None


def check_keys(ring: Keyring | None, state: ClusterState) -> None:
    """Raises: BadKeys if a master with this ring would have to name a key that the one in force does not sign."""
    current = current_key(state)
    if ring is not None and current and current not in ring.masters:
        raise BadKeys(
            f"the log is signed by the masters' key {current}, which the file of keys does not hold; start masters "
            f"with the file that holds it, `{KEYS_VARIABLE}=FILE fairlog master`, or, if that key is lost, `fairlog "
            "backup` and `fairlog restore` the log into an empty store, which records a new one"
        )


def key_change(ring: Keyring, state: ClusterState) -> KeyChanged | None:
    """What announces the key of the ring, if another one signs, or none: signed by that one, if the ring has it."""
    if not ring.master or ring.master == (current := current_key(state)):
        return None
    public = ring.public(ring.master)
    signature = ring.sign(_changed(ring.master, public, current), current) if current in ring.masters else ""
    return KeyChanged(key=ring.master, public=public, signature=signature)


def key_after_restore(ring: Keyring | None, state: ClusterState) -> tuple[str, str]:
    """The key that a restore of this log must name, and its public half; ("", "") if its masters need none.

    They need none if the log has no key yet, or the ring has the key in force. Raises: BadKeys without any other one.
    """
    before = current_key(state)
    if not before or (ring is not None and before in ring.masters):
        return "", ""
    if ring is None or not ring.master:
        raise BadKeys(
            f"the log is signed by the key {before}; name the file of its masters' keys with {KEYS_VARIABLE}=FILE, or, "
            "if that is lost, a new one of `fairlog keys new FILE`, which the restore records"
        )
    return ring.master, ring.public(ring.master)


def wrong_change(event: KeyChanged | LogRestored, keys: dict[str, str]) -> str:
    """Why a change of these keys, id -> public half, proves nothing; "" if it is sound.

    A restore names a key unsigned (semantics I7).
    """
    if isinstance(event, LogRestored) and not event.key:
        return ""
    try:
        if event.key != master_id(event.public):
            return f"key {event.key} has another public half"
    except ValueError:
        return f"key {event.key} has no public half"
    if isinstance(event, LogRestored):
        return ""
    before = next(reversed(keys), "")
    if before and not is_signed(keys[before], event.signature, _changed(event.key, event.public, before)):
        return f"key {event.key} is not signed by the key {before} before it, which its master did not hold"
    return ""


def current_key(state: ClusterState) -> str:
    """The id of the key that signs; "" before the first."""
    return next(reversed(state.public_keys), "")


def _sealed(seq: int, digest: str, reads: str) -> bytes:
    return framed("fairlog seal 2", seq, digest, reads) if reads else framed("fairlog seal 1", seq, digest)


def _changed(key: str, public: str, before: str) -> bytes:
    return framed("fairlog key 1", key, public, before)
