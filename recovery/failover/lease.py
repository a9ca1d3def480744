"""The lease: when a standby may try to be elected. It is not a safeguard; the log decides.

Two masters that both believe they hold the lease do no harm: the commit of the one that has not folded the other's
election is refused.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from scheduler.rules.checks.validate import MAX_LEASE_S
from scheduler.store.connection import clock_ms
from scheduler.store.eventlog import LogBell
from scheduler.store.scripts import script

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.store.keys import Keys

MEMBER_SEEN_MS = 5_000

_TAKE_LUA = script(__file__, "take")
_RELEASE_LUA = script(__file__, "release")
_APPEAR_LUA = script(__file__, "appear")


class Member(NamedTuple):
    """A master process, active or standby."""

    id: str
    pid: int
    host: str

    def as_json(self) -> str:
        """The member as JSON, always the same text, so that holders can be compared."""
        return json.dumps(self._asdict(), separators=(",", ":"))


class Lease:
    """The lease of one cluster for `member`; expires `ttl_ms` after it was last taken.

    After `take` returned False, `left_ms` is the holder's remaining time, and `bell` rings when it is released.
    """

    def __init__(self, store: Redis, keys: Keys, member: Member, ttl_ms: int) -> None:
        self._keys = keys
        self._member = member.as_json()
        self._ttl_ms = ttl_ms
        self.left_ms = 0
        self.bell = LogBell(keys.handover, "0-0")
        self._take = store.register_script(_TAKE_LUA)
        self._release = store.register_script(_RELEASE_LUA)
        self._appear = store.register_script(_APPEAR_LUA)

    def take(self) -> bool:
        """Take or renew the lease, and be listed as by `appear`; False if another member holds it."""
        keys = self._keys
        held: Any = self._take(
            [keys.lease, keys.lease_term, keys.handover, keys.office, keys.masters],
            [self._member, self._ttl_ms, MAX_LEASE_S * 1000],
        )
        if not held:
            return True
        self.left_ms, self.bell = int(held[0]), LogBell(keys.handover, held[1].decode())
        return False

    def release(self, *, served: bool = True) -> None:
        """Release the lease and ring the `bell` of the standbys; unless it `served`, it was no sign of a master."""
        keys = self._keys
        self._release(keys=[keys.lease, keys.masters, keys.handover, keys.office], args=[self._member, int(served)])

    def appear(self) -> None:
        """List the member among the cluster's masters for `MEMBER_SEEN_MS`."""
        self._appear(keys=[self._keys.masters], args=[self._member, MEMBER_SEEN_MS])


def members(store: Redis, keys: Keys) -> tuple[Member | None, list[Member]]:
    """The holder of the lease, None without one, and the standbys, by id."""
    serving = _member(cast("bytes | None", store.get(keys.lease)))
    since = clock_ms(store.time()) - MEMBER_SEEN_MS
    texts: Any = store.zrangebyscore(keys.masters, since, "+inf")
    seen = {member for text in texts if (member := _member(text)) is not None}
    return serving, sorted(seen - {serving})


def last_sign(store: Redis, keys: Keys, master: str) -> int:
    """When (ms) the holder of the lease that served before that master gave its last sign; 0 if that is not known."""
    before, _, rest = (cast("bytes | None", store.get(keys.office)) or b"").partition(b" ")
    holder = _member(rest.partition(b" ")[2])
    return int(before) if holder is not None and holder.id == master and before.isdigit() else 0


def _member(text: bytes | None) -> Member | None:
    """The member; None if there is none, or something else than a master wrote the text."""
    try:
        found = Member(**json.loads(text or b""))
    except (ValueError, TypeError):
        return None
    sound = isinstance(found.id, str) and isinstance(found.pid, int) and isinstance(found.host, str)
    return found if sound else None
