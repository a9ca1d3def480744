"""Which owners of apps are lost: those that gave no sign of life for the time that they stated (semantics G4).

They give it through API servers, and are lost only after that time in which these answered all along.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from scheduler.model.commands import LoseOwner
from scheduler.service.served import served
from scheduler.store.keys import as_text
from scheduler.store.scripts import script

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.rules.entities.apps import App
    from scheduler.store.keys import Keys

LOOK_MS = 1_000
"""Interval between two looks."""
_PAUSE_MS = 3 * LOOK_MS
"""After a longer gap between two looks, the master or the store was away."""
BEAT_LUA = script(__file__, "owner_beat")


def beat(store: Redis, keys: Keys, app: str) -> None:
    """Give a sign of life of the app's owner (semantics G4)."""
    store.eval(BEAT_LUA, 1, keys.owners, app)


class Owners:
    """The signs of life in a sorted set: app -> time of its owner's last one, in ms by the store's clock."""

    def __init__(self, store: Redis, keys: Keys) -> None:
        self._store = store
        self._keys, self._key = keys, keys.owners
        self._watching_since_ms = self._looked_at_ms = 0

    def lost(self, now: int, owned: Mapping[str, App], timeout_ms: int) -> list[LoseOwner]:
        """Look at `now` (ms, the store's clock), at most once in `LOOK_MS`, at the owners of the apps `owned` (G4).

        An owner has its full time from the submission of its app on, from when the master began to watch, and from
        when API servers began to answer; `timeout_ms` is that of workers, by which gaps of these count.
        """
        if not owned:
            self._looked_at_ms = 0
            return []
        if 0 < self._looked_at_ms <= now < self._looked_at_ms + LOOK_MS:
            return []
        if not 0 < self._looked_at_ms <= now <= self._looked_at_ms + _PAUSE_MS:
            self._watching_since_ms = now
        self._looked_at_ms = now
        beats = dict(cast("list[tuple[bytes, float]]", self._store.zrange(self._key, 0, -1, withscores=True)))
        seen = {as_text(name): int(at) for name, at in beats.items()}
        if gone := [name for name in beats if as_text(name) not in owned]:
            self._store.zrem(self._key, *gone)
        silent: list[LoseOwner] = []
        for name, app in owned.items():
            last = max(seen.get(name, 0), app.submitted_at, self._watching_since_ms)
            if now - last > _patience_ms(app):
                silent.append(LoseOwner(app=name, last_seen=max(0, seen.get(name, 0))))
        sign = served(self._store, self._keys) if silent else None
        if sign is None:
            return silent
        answered_ms = sign.without_gap_ms(now, timeout_ms)
        return [each for each in silent if answered_ms > _patience_ms(owned[each.app])]


def _patience_ms(app: App) -> int:
    """For how long the app's owner may be silent."""
    return 1000 * (app.spec.owner_timeout_s or 0)
