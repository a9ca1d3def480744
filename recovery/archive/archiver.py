"""Automatic archiving: a process that a master starts when the settings require it.

It takes no time from turns, can be killed at any moment, and ends with its master.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

import structlog
from redis.exceptions import RedisError

from recovery.archive.allowed import check_allowed
from recovery.archive.archive import archive, archived_to, open_log
from recovery.archive.reads import archive_reads, are_due
from scheduler.model.errors import FairlogError, InvalidSetting
from scheduler.model.events import ClusterConfigured
from scheduler.service.child import Child, die_with_parent
from scheduler.service.pace import due_again
from scheduler.service.program_log import log_to_stderr, masked
from scheduler.store.codec import Record
from scheduler.store.connection import connect
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from scheduler.store.transient import in_words

LOOK_EVERY_S = 1.0
CLAIMED_S = 10
"""A claim expires after this time and is never released, so a failing archiver is not started more often."""
CLAIM_EVERY = 10_000
"""A claim is renewed after this number of events."""
NICENESS = 10
HURRIES_AFTER = 4
"""Archiving yields to all else on its host until so many times `archive_after_events` are due. From then on it has the
priority of a master: on a busy host it might get no time at all, and the store would fill up."""
_STOP_S = 2.0
_log = structlog.get_logger()


class Archiver:
    """Starts archiving for a master when it is due.

    `elsewhere` is a URL that replaces that of the settings, or ""; one of the settings must be `allowed`.
    """

    def __init__(self, log: EventLog, store_url: str, elsewhere: str = "", *, allowed: Sequence[str] = ()) -> None:
        self._log = log
        self._store_url = store_url
        self._elsewhere = elsewhere
        self._allowed = allowed
        self._refused = ""
        """The URL that is not allowed and was reported."""
        self._child: Child | None = None
        self._hurries = False
        """Whether the process that was started last does not yield."""
        self._look_at_s = 0.0

    def tend(self, settings: ClusterConfigured, head: int) -> None:
        """Start archiving if it is due, and anew if it yields and falls behind; looks once a second."""
        began_s = time.monotonic()
        if settings.archive_after_events and began_s >= self._look_at_s:
            self._look(settings, head)
            self._look_at_s = due_again(began_s, LOOK_EVERY_S)

    def _look(self, settings: ClusterConfigured, head: int) -> None:
        late = backlog(self._log, settings, head) >= HURRIES_AFTER * settings.archive_after_events
        if self._child is not None and self._child.pid is not None:
            if late and not self._hurries:
                _log.info("archiving falls behind and is started again with the priority of a master")
                self._child.ask_to_stop()
            return
        if is_due(self._log, settings, head, self._elsewhere) and self._may(settings.archive_url) and claim(self._log):
            self._hurries = late
            self._start(settings)

    def stop(self) -> None:
        """Stop the process and wait for its end."""
        if self._child is not None:
            self._child.ask_to_stop()
            self._child.wait(time.monotonic() + _STOP_S)

    def _may(self, url: str) -> bool:
        """Whether the operator allows the archive; reports once that it is not."""
        try:
            check_allowed("" if self._elsewhere else url, self._allowed)
        except InvalidSetting as refusal:
            if self._refused != url:
                _log.warning("could not archive the log", reason=str(refusal))
            self._refused = url
            return False
        return True

    def _start(self, settings: ClusterConfigured) -> None:
        url, retain = self._elsewhere or settings.archive_url, settings.archive_retain_events
        environment = {
            **os.environ,
            "FAIRLOG_STORE": self._store_url,
            "FAIRLOG_CLUSTER": self._log.keys.cluster,
            "FAIRLOG_ARCHIVE": self._elsewhere,
        }
        words = (os.getpid(), url, retain, 0 if self._hurries else NICENESS)
        command = [sys.executable, "-m", "recovery.archive.archiver", *map(str, words)]
        self._child = Child("archiver", command, environment=environment)
        self._child.start()


def is_due(log: EventLog, settings: ClusterConfigured, head: int, elsewhere: str = "") -> bool:
    """Whether the store holds at least `archive_after_events` events besides the retained ones, or many reads."""
    if not settings.archive_after_events or not (settings.archive_url or elsewhere):
        return False
    return backlog(log, settings, head) >= settings.archive_after_events or are_due(log.store, log.keys)


def backlog(log: EventLog, settings: ClusterConfigured, head: int) -> int:
    """How many events the store holds besides those that it is to retain."""
    return head - max(1, settings.archive_retain_events) - archived_to(log.store, log.keys).seq


def claim(log: EventLog) -> bool:
    """Claim the archiving of the log; False if another process holds the claim."""
    return bool(log.store.set(log.keys.archiving, os.getpid(), nx=True, ex=CLAIMED_S))


def run(log: EventLog, url: str, retain: int) -> None:
    """Move all but the last `retain` events, and old reads, to segments under `url`, renewing the claim meanwhile."""
    for segment in archive(log, url, retain=retain, watched=lambda records: _claimed(log, records)):
        _log.info("archived a part of the log", first=segment.first, last=segment.last, url=segment.url)
    for segment in archive_reads(log.store, log.keys, url):
        _log.info("archived a part of the reads", first=segment.first, last=segment.last, url=segment.url)


def _claimed(log: EventLog, records: Iterable[Record]) -> Iterator[Record]:
    due = 0
    for record in records:
        if record.last >= due:
            due = record.last + CLAIM_EVERY
            log.store.set(log.keys.archiving, os.getpid(), ex=CLAIMED_S)
        yield record


def main() -> None:
    """Archive the log named by the environment.

    Arguments: parent process, URL, number of events to retain, niceness.
    """
    log_to_stderr()
    parent, url, retain, niceness = sys.argv[1:]
    die_with_parent(int(parent))
    os.nice(int(niceness))
    with connect(os.environ["FAIRLOG_STORE"]) as store:
        log = open_log(store, Keys(os.environ["FAIRLOG_CLUSTER"]), elsewhere=os.environ["FAIRLOG_ARCHIVE"])
        try:
            run(log, url, int(retain))
        except (FairlogError, RedisError) as error:
            reason = in_words(error) if isinstance(error, RedisError) else masked(str(error))
            _log.warning("could not archive the log", reason=reason)
            sys.exit(1)


if __name__ == "__main__":
    main()
