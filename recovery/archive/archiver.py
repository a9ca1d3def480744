"""The archiving that nobody has to ask for: a process of its own, started by a master whenever the settings say so.

It takes no time from turns, it may be killed at any moment, and it ends with the master that started it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import structlog
from redis.exceptions import RedisError

from recovery.archive.archive import archive, archived_to, open_log
from scheduler.model.errors import FairlogError
from scheduler.service.child import Child, die_with_parent
from scheduler.service.program_log import log_to_stderr, masked
from scheduler.store.connection import connect
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from scheduler.store.transient import in_words

if TYPE_CHECKING:
    from scheduler.model.events import ClusterConfigured
    from scheduler.store.codec import Record

LOOK_EVERY_S = 1.0
CLAIMED_S = 10
"""How long others leave it to the one that has begun or says again that it is at it; so it is not begun more often,
whether there was anything to do or it failed."""
CLAIM_EVERY = 10_000
"""After how many entries the claim to be the one that archives is renewed."""
_STOP_S = 2.0
_log = structlog.get_logger()


class Archiver:
    """What a master tends: it has the log of `store_url` archived when the settings say that it is time.

    `elsewhere` is the URL that stands for the one in the settings, if any does.
    """

    def __init__(self, log: EventLog, store_url: str, elsewhere: str = "") -> None:
        self._log = log
        self._store_url = store_url
        self._elsewhere = elsewhere
        self._child: Child | None = None
        self._look_at_s = 0.0

    def tend(self, settings: ClusterConfigured, head: int) -> None:
        """Start the archiving if it is due and not under way; looks once a second only."""
        if not settings.archive_after_events or time.monotonic() < self._look_at_s:
            return
        self._look_at_s = time.monotonic() + LOOK_EVERY_S
        if self._child is not None and self._child.pid is not None:
            return
        if is_due(self._log, settings, head, self._elsewhere) and claim(self._log):
            self._start(settings)

    def stop(self) -> None:
        """Return once nothing of it runs any more."""
        if self._child is not None:
            self._child.ask_to_stop()
            self._child.wait(time.monotonic() + _STOP_S)

    def _start(self, settings: ClusterConfigured) -> None:
        url, retain = self._elsewhere or settings.archive_url, settings.archive_retain_events
        environment = {
            **os.environ,
            "FAIRLOG_STORE": self._store_url,
            "FAIRLOG_CLUSTER": self._log.keys.cluster,
            "FAIRLOG_ARCHIVE": self._elsewhere,
        }
        command = [sys.executable, "-m", "recovery.archive.archiver", str(os.getpid()), url, str(retain)]
        self._child = Child("archiver", command, environment=environment)
        self._child.start()


def is_due(log: EventLog, settings: ClusterConfigured, head: int, elsewhere: str = "") -> bool:
    """Whether at least `archive_after_events` events lie in the store beyond those that are to stay there."""
    if not settings.archive_after_events or not (settings.archive_url or elsewhere):
        return False
    old = head - max(1, settings.archive_retain_events) - archived_to(log.store, log.keys).seq
    return old >= settings.archive_after_events


def claim(log: EventLog) -> bool:
    """Whether nobody else archives the log on its own; if so, it is left to the caller."""
    return bool(log.store.set(log.keys.archiving, os.getpid(), nx=True, ex=CLAIMED_S))


def run(log: EventLog, url: str, retain: int) -> None:
    """Move what is older than the last `retain` events to segments under `url`.

    Ends the process once the process `parent` is gone; what was moved by then is moved. The claim is left to expire.
    """
    for segment in archive(log, url, retain=retain, watched=lambda records: _claimed(log, records)):
        _log.info("a part of the log was archived", first=segment.first, last=segment.last, url=segment.url)


def _claimed(log: EventLog, records: Iterable[Record]) -> Iterator[Record]:
    """The records, while the claim is renewed; ends the process once its parent is gone."""
    due = 0
    for record in records:
        if record.last >= due:
            due = record.last + CLAIM_EVERY
            log.store.set(log.keys.archiving, os.getpid(), ex=CLAIMED_S)
        yield record


def main() -> None:
    """Archive the log that the environment names, as the arguments say, and tell what comes of it."""
    log_to_stderr()
    parent, url, retain = sys.argv[1:]
    die_with_parent(int(parent))
    os.nice(10)
    with connect(os.environ["FAIRLOG_STORE"]) as store:
        log = open_log(store, Keys(os.environ["FAIRLOG_CLUSTER"]), elsewhere=os.environ["FAIRLOG_ARCHIVE"])
        try:
            run(log, url, int(retain))
        except FairlogError as error:
            _log.warning("the log was not archived", reason=masked(str(error)))
            sys.exit(1)
        except RedisError as error:
            _log.warning("the log was not archived", reason=in_words(error))
            sys.exit(1)


if __name__ == "__main__":
    main()
