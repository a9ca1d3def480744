"""Keep seals outside the store, in a forked child: a turn waits only for the fork."""

from __future__ import annotations

import time
from functools import partial

import structlog

from recovery.archive.files import PlaceUnreachable
from recovery.archive.seal_files import keep
from recovery.failover.snapshotter import NICENESS, Fork
from scheduler.model.events import LogSealed

KEEP_EVERY_S = 60.0
"""Each seal covers all of the log before it, so the last one of a minute is enough."""
_AT_MOST_S = 60
_log = structlog.get_logger()


class Sealer:
    """Keeps the seals of `cluster` below `url`, at most one a minute; none if `url` is ""."""

    def __init__(self, url: str, cluster: str) -> None:
        self._url = url
        self._cluster = cluster
        self._kept = 0
        self._next_s = 0.0
        self._fork: Fork | None = None

    def tend(self, seal: LogSealed | None) -> None:
        """Keep `seal`, the last one that was committed, if it is new and the time has come."""
        if self._fork is not None and self._fork.exit_code() is not None:
            self._fork = None
        if not self._url or seal is None or self._fork is not None or seal.seq <= self._kept:
            return
        if time.monotonic() >= self._next_s:
            self._next_s, self._kept = time.monotonic() + KEEP_EVERY_S, seal.seq
            write_it = partial(_keep, self._url, self._cluster, seal)
            self._fork = Fork(write_it, niceness=NICENESS, at_most_s=_AT_MOST_S)


def _keep(url: str, cluster: str, seal: LogSealed) -> int:
    try:
        keep(url, cluster, seal)
    except PlaceUnreachable as error:
        _log.warning("a seal could not be kept", seq=seal.seq, error=str(error))
        return 1
    return 0
