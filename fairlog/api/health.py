"""How the cluster is: its status, its metrics, and signs of this server."""

from __future__ import annotations

from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from msgspec import Raw

from fairlog.api.pages import Viewed, plain, to_json
from fairlog.api.replica import Replica
from fairlog.api.sight import Sight
from fairlog.api.views import StateViews
from fairlog.watch.conditions import Around, StoreFacts, as_json, elected, found
from fairlog.watch.surroundings import RepeatedLooks, look_around, short_of, since_when
from scheduler.model.sender import By
from scheduler.service.served import sign
from scheduler.store.connection import clock_ms
from scheduler.store.estimates import compare, kept
from scheduler.store.keys import Keys
from witness.forecast import waiting

if TYPE_CHECKING:
    from redis import Redis

    from fairlog.watch.metrics import Metrics


class ClusterHealth:
    """What surrounds the state, and what needs attention. May be used by several threads."""

    def __init__(self, store: Redis, keys: Keys, replica: Replica, sight: Sight, views: StateViews) -> None:
        self.store, self.keys, self.replica, self._sight, self._views = store, keys, replica, sight, views
        self._watched = RepeatedLooks()
        self._lock = Lock()

    def status(self, who: By, *, after: int = 0) -> Viewed:
        """The active master, the standbys, the workers with their processes, the head of the log and the health."""
        seen, cluster = self.replica.read(lambda state: self._views.look(state, who, "cluster", {})[0], after=after)
        around = self.look_around()
        holding, election = self.replica.read(lambda state: (found(state, around), elected(state, around)))[1]
        holding = since_when(self.store, self.keys, holding, around)
        agents = {
            name.decode(): plain(text)
            for name, text in cast("dict[bytes, bytes]", self.store.hgetall(self.keys.agents)).items()
        }
        said = plain(cast("Raw", cluster))
        workers = [{"pid": None, "host": None, **agents.get(each["worker"], {}), **each} for each in said["workers"]]
        store = around.store or StoreFacts()
        told = {
            "cluster": self.keys.cluster,
            "head": seen.seq,
            "health": as_json(holding),
            "master": around.serving and around.serving._asdict(),
            "standbys": [member._asdict() for member in around.standing_by],
            "election": election and election.as_json(),
            "workers": workers,
            "tooLarge": said["tooLarge"],
            "store": {"logBytes": store.log_bytes, "memoryLimit": store.memory_limit},
        }
        return Viewed(seen, Raw(to_json(told)))

    def metrics(self, who: By, accept: str = "") -> tuple[bytes, str]:
        """The metrics for Prometheus, in a format that `accept` names, and their media type. Raises: NotAllowed."""
        self._sight.check_may(who, "cluster-read")
        return self._metrics.text(accept)

    @cached_property
    def _metrics(self) -> Metrics:
        from fairlog.watch.metrics import Metrics  # noqa: PLC0415 (prometheus_client takes long to load)

        read = lambda look: self.replica.read(look)[1]  # noqa: E731
        return Metrics(self.store, self.keys, self.replica.tally, read=read, around=self.look_around)

    def keep_watch(self) -> None:
        """Take note of the companies that are short now and of the master, so that it is known since when they are.

        Raises: NotReady, redis-py's errors.
        """
        _, (short, master) = self.replica.read(lambda state: (short_of(state), state.master))
        with self._lock:
            self._watched.look(master, short, clock_ms(cast("Any", self.store.time())))

    def note_conditions(self) -> None:
        """Take note of what needs attention, so that later looks can tell since when. Raises: as `keep_watch`."""
        around = self.look_around()
        since_when(self.store, self.keys, self.replica.read(lambda state: found(state, around))[1], around)

    def compare_estimates(self) -> None:
        """Compare the starts of apps with what was estimated of them (docs/estimates.md). Raises: as `keep_watch`."""
        began = self.replica.tally.taken_began()
        names = kept(self.store, self.keys)
        if not names:
            return
        wait = self.replica.read(lambda state: {app.id for app in waiting(state)})[1]
        started = {name: began[name] for name in names if name in began}
        compare(self.store, self.keys, started, [name for name in names if name not in wait and name not in began])

    def sign(self, *, stopping: bool = False) -> None:
        """Give a sign that this server answers, or that it was told to stop. Raises: NotReady, redis-py's errors."""
        timeout_s = self.replica.peek(lambda state: state.settings.worker_timeout_s)
        sign(self.store, self.keys, 1000 * timeout_s, stopping=stopping)

    def look_around(self) -> Around:
        """What surrounds the state now. Raises: as `keep_watch`."""
        self.keep_watch()
        return look_around(self.store, self.keys, watched=self._watched)
