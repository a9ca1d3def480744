"""What apps have left: tasks, output, links, and whether they are over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from fairlog.cli.remote_tasks import RemoteTasks

if TYPE_CHECKING:
    from fairlog.cli.session import Session
    from scheduler.store.task_queue import Worklist
    from scheduler.store.task_states import Progress


def measured(progress: Progress) -> dict[str, int]:
    """What executors have measured of an app's tasks that ended: CPU time (ms) in all, the largest peak memory (MiB).

    Nothing if nothing was measured.
    """
    if not progress.cpu_ms and not progress.peak_mb:
        return {}
    return {"cpuMs": progress.cpu_ms, "peakMemory": progress.peak_mb}


def shown_tasks(session: Session, reason: str = "") -> Worklist | RemoteTasks:
    """As `Session.tasks`, for who looks once: an API server that is there anyway is reached faster than the store."""
    server = session.server
    return session.tasks(reason) if server is None else RemoteTasks(server, reason)


def links_of(session: Session, app: str) -> dict[str, str]:
    """The addresses of the app's user interfaces, by name."""
    if (server := session.server) is not None:
        return server.links(app)
    from scheduler.store.keys import Keys  # noqa: PLC0415 (an API server answers as a rule)
    from scheduler.store.mailbox import Mailboxes  # noqa: PLC0415 (likewise)

    return Mailboxes(session.road.store, Keys(session.cluster)).links(app)


def is_over(session: Session, app: str) -> bool:
    """Whether the app has ended, and all that it ran: what is told to stop may write something more."""
    found = session.ask("app", app=app)
    return found["endedAt"] is not None and not found["executors"] and found["driver"] is None


def looks(session: Session, app: str) -> Iterator[bool]:
    """Yield without end, after a short wait each, whether the app is over."""
    from fairlog.cli.follow import patiently  # noqa: PLC0415 (loads the store's library)

    while True:
        time.sleep(session.look_s)
        yield patiently(partial(is_over, session, app))
