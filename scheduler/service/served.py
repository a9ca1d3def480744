"""When API servers were heard: each of them gives a sign of life in the store, as long as it answers.

Whoever works through the API cannot be heard while none of them answers. Such workers and owners of apps are lost only
after the time that they have, in which an API server answered all along (semantics W2, G4).

The sign is one string, `SINCE AT KEPT`, and ` stopped` behind it once a server was told to stop: since when servers
have answered without a gap, when one did last, and when that was written to the store's disk, in ms by the store's
clock. Most signs stay in the store's memory: they are neither written to its disk nor sent to its replicas. A store
that was restarted has an old one, so the time since which servers answer begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from scheduler.store.scripts import script

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.store.keys import Keys

SIGN_EVERY_S = 0.5
SHORTEST_GAP_MS = 1_500
GAPS_A_TIMEOUT = 4
"""A gap between signs counts from this part of `worker_timeout_s` on: a shorter one costs no worker its heartbeats."""
_KEEP_EVERY_MS = 60_000
SIGN_LUA = script(__file__, "sign")


class Served(NamedTuple):
    """Since when API servers have answered without a gap, and when one did last, in ms by the store's clock.

    `stopped`: the last one was told to stop.
    """

    since: int
    at: int
    stopped: bool = False

    def without_gap_ms(self, now: int, timeout_ms: int) -> int:
        """For how long API servers have answered without a gap, up to `now`; 0 if none answers."""
        return now - self.since if now - self.at <= gap_ms(timeout_ms) else 0


def gap_ms(timeout_ms: int) -> int:
    """The longest gap between signs that does not count, by the time after which a silent worker is lost."""
    return max(SHORTEST_GAP_MS, timeout_ms // GAPS_A_TIMEOUT)


def sign(store: Redis, keys: Keys, timeout_ms: int, *, stopping: bool = False) -> None:
    """Give a sign that an API server answers, or that it was told to stop. Raises: redis-py's errors."""
    store.eval(SIGN_LUA, 1, keys.served, gap_ms(timeout_ms), _KEEP_EVERY_MS, " stopped" if stopping else "")


def served(store: Redis, keys: Keys) -> Served | None:
    """The last sign; None if no API server ever gave one. Raises: redis-py's errors."""
    words = (cast("bytes | None", store.get(keys.served)) or b"").split()
    if len(words) not in {3, 4} or not all(word.isdigit() for word in words[:3]):
        return None
    return Served(int(words[0]), int(words[1]), words[3:] == [b"stopped"])
