"""Windows: times in which nothing runs on some workers, or of nobody but one company (semantics W14).

What such a window keeps out is told to leave in time, and ended before it begins. A worker drains for a window of its
own accord, as it does while its health check fails, and is back by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from scheduler.model.commands import AddWindow, RemoveWindow
from scheduler.model.errors import InvalidCommand, UnknownCompany, UnknownWorker
from scheduler.model.events import (
    AppRemoved,
    AppRequeued,
    Event,
    ExecutorRevoked,
    RevocationWithdrawn,
    WindowAdded,
    WindowRemoved,
    WorkerChanged,
    WorkerStatus,
)
from scheduler.model.text import few
from scheduler.rules.checks.validate import (
    MAX_MOMENT,
    MAX_NAMED,
    check_identifier,
    check_name,
    check_number,
    check_range,
)
from scheduler.rules.entities.labels import sought, tried_by, with_course
from scheduler.rules.entities.workers import window_of
from scheduler.rules.index.closings import SETTLE_MS, ends_within, is_leaving, kept_out, leaving_ms, untold

if TYPE_CHECKING:
    from scheduler.model.events import ClusterConfigured
    from scheduler.model.resources import Resources
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.grants import Allocation
    from scheduler.rules.entities.workers import Window, Worker
    from scheduler.rules.state.cluster import ClusterState

MAX_NOTICE_S = 7 * 24 * 3600
MAX_WINDOWS = 1000
_NAMED = 3
WITH_ITS_DRIVER = "its driver ran on worker "
"""With what the reason begins for which an app ends that may not be put back."""


def barring(state: ClusterState, app: App, at: int) -> list[Window]:
    """The windows for which the app gets nothing more on their workers at time `at` (ms).

    Those that it would not have ended before by its maximum runtime, and from their notice on all that concern it.
    """
    if not state.windows:
        return []
    ends = at + ends_within(state.settings, app, at)
    return [
        each
        for each in state.windows.values()
        if each.concerns(app.spec.company) and (at >= each.closes or ends >= each.begin)
    ]


def barring_names(state: ClusterState, app: App, at: int) -> tuple[str, ...]:
    """The names of the windows of `barring`."""
    return tuple([each.id for each in barring(state, app, at)]) if state.windows else ()


def barred(state: ClusterState, app: App, at: int) -> Collection[str]:
    """The workers on which the app gets nothing at time `at` (ms) because of their windows."""
    found = barring(state, app, at)
    return found[0].names if len(found) == 1 else frozenset[str]().union(*[each.names for each in found])


def within(state: ClusterState, app: App, at: int, demand: str) -> str:
    """The demand of the app, without the workers that windows close to it at time `at` (ms).

    What has no maximum runtime comes last to those with a window ahead, the latest one sooner: it would have to leave.
    """
    if not state.windows:
        return demand
    ahead: list[Window] = []
    if app.max_runtime_s is None:
        ahead = [each for each in state.windows.values() if each.concerns(app.spec.company) and at < each.closes]
        ahead.sort(key=lambda each: -each.begin)
    return with_course(demand, barring_names(state, app, at), [each.id for each in ahead])


def sought_by(state: ClusterState, app: App, size: Resources, at: int) -> Resources:
    """The size with what the app demands of a worker at time `at` (ms): its labels, and its windows (P9, W14)."""
    return sought(size, within(state, app, at, app.need.demand))


def tries(state: ClusterState, app: App, at: int) -> list[str]:
    """The demands of the app at time `at` (ms), in the order in which workers are sought by them (P9, W14)."""
    return [within(state, app, at, demand) for demand in tried_by(app.spec)]


def in_the_way(state: ClusterState, window: Window) -> Iterator[Allocation]:
    """What is granted on the workers of the window that must not run in it."""
    for worker in [state.workers[name] for name in window.workers if name in state.workers]:
        for held, _ in kept_out(window, worker, state.apps):
            yield held


def due(state: ClusterState, at: int) -> Iterator[Event]:
    """What windows bring about at time `at` (ms): those that are over end, and workers close for others."""
    if not state.windows:
        return
    for window in [each for each in state.windows.values() if each.end <= at]:
        yield from _ended(state, window, at)
    for name in state.timers.due(at, "window"):
        for window in state.planned[name]:
            yield from _closing(state, state.workers[name], window, at)


def _closing(state: ClusterState, worker: Worker, window: Window, at: int) -> Iterator[Event]:
    """A worker drains for a window for everybody, and whoever must not run there in it is told to leave."""
    if not window.company and worker.status == "alive" and window.closes <= at:
        reason = f"window {window.id}{f': {window.reason}' if window.reason else ''}"
        yield _changed(worker, "draining", window.id, reason)
    for held, app, when in untold(window, worker, state.apps, state.settings, at):
        if when > at:
            continue
        if held is app.driver:
            yield _put_back(app, worker, window)
            continue
        for each in with_gang(app, held):
            if not is_leaving(state.settings, window, each, app, at):
                yield _told(state, window, each, app, at)


def with_gang(app: App, held: Allocation) -> list[Allocation]:
    """The executors that a window tells, or lets stay, together with that one: of a gang all (semantics G8)."""
    return list(app.executors.values()) if app.spec.gang else [held]


def _told(state: ClusterState, window: Window, held: Allocation, app: App, at: int) -> ExecutorRevoked:
    deadline = max(at, window.begin - leaving_ms(state.settings, app))
    return ExecutorRevoked(
        app=app.id,
        executor=held.id,
        worker=held.worker,
        reason="reclaimed",
        deadline=min(deadline, held.deadline) if held.firm else deadline,
        window=window.id,
    )


def _put_back(app: App, worker: Worker, window: Window) -> Event:
    """The app whose driver is in the way starts anew elsewhere (semantics X6), or ends if it may not."""
    if not app.spec.no_requeue:
        return AppRequeued(app=app.id, window=window.id)
    detail = f"{WITH_ITS_DRIVER}{worker.id}, which closes for the window {window.id}"
    return AppRemoved(app=app.id, reason="killed", detail=detail)


def _changed(worker: Worker, status: WorkerStatus, window: str, reason: str) -> WorkerChanged:
    return WorkerChanged(
        worker=worker.id,
        status=status,
        offer=worker.offer,
        addresses=worker.addresses,
        reason=reason,
        window=window,
    )


def _ended(state: ClusterState, window: Window, at: int) -> Iterator[Event]:
    """The window is no more: its workers are back, and whoever was told to leave and has time left stays."""
    yield WindowRemoved(window=window.id)
    workers = [state.workers[name] for name in window.workers if name in state.workers]
    for worker in workers:
        if worker.window == window.id:
            yield _changed(worker, "alive", window.id, "")
    for worker in workers:
        for held in list(worker.executors.values()):
            app = state.apps[held.app]
            for each in with_gang(app, held) if app.is_whole or not app.spec.gang else ():
                if each.revoked == "window" and each.deadline > at and not each.moved and not app.over:
                    yield RevocationWithdrawn(app=each.app, executor=each.id, worker=each.worker)


def decided(state: ClusterState, command: AddWindow | RemoveWindow, at: int) -> list[Event]:
    """The new window, or that one is off, or over now. Raises: InvalidCommand, UnknownCompany, UnknownWorker."""
    if isinstance(command, AddWindow):
        return _added(state, command, at)
    name = command.window
    if name not in state.windows:
        raise InvalidCommand(f"there is no window {name[:80]!r}; `fairlog window list` lists the windows")
    return list(_ended(state, state.windows[name], at))


def check_grace(state: ClusterState, settings: ClusterConfigured, at: int) -> None:
    """Raises: InvalidCommand if by these settings something would need longer to end than until its window begins."""
    if settings.kill_grace_s <= state.settings.kill_grace_s:
        return
    for window in [each for each in state.windows.values() if at < each.begin]:
        for held in in_the_way(state, window):
            needed = leaving_ms(settings, state.apps[held.app])
            if at + needed > window.begin:
                raise InvalidCommand(
                    f"kill_grace_s {settings.kill_grace_s} is too long before the window {window.id!r}, which begins "
                    f"in {(window.begin - at) / 1000:.0f} s: app {held.app!r} there may need {needed // 1000} s to "
                    "end; change it once that has begun, or `fairlog window remove` it first"
                )


def check_unreserved(state: ClusterState, company: str) -> None:
    """Raises: InvalidCommand if a window is for the company."""
    for window in state.windows.values():
        if window.company == company:
            raise InvalidCommand(
                f"the window {window.id!r} is for company {company!r}; `fairlog window remove {window.id}` first"
            )


def _added(state: ClusterState, command: AddWindow, at: int) -> list[Event]:
    check_identifier("the name of the window", command.window)
    if command.window in state.windows:
        raise InvalidCommand(f"there is a window {command.window!r} already; choose another name")
    if len(state.windows) >= MAX_WINDOWS:
        raise InvalidCommand(f"there are {MAX_WINDOWS} windows, the most; remove one first")
    if command.company and command.company not in state.companies:
        raise UnknownCompany(command.company[:80])
    if command.reason:
        check_name("the reason", command.reason)
    check_range("the end of the window, in ms,", command.end, 1, MAX_MOMENT)
    check_range("the beginning of the window, in ms,", command.begin, 0, MAX_MOMENT)
    if command.end <= command.begin:
        raise InvalidCommand("the window ends before it begins; give --to a later time than --from")
    if command.begin <= at:
        raise InvalidCommand("the window would begin in the past; give --from a later time; `fairlog drain` is for now")
    least_s = state.settings.kill_grace_s + SETTLE_MS // 1000
    check_range("the notice of a window, in seconds,", command.notice_s, least_s, MAX_NOTICE_S)
    if not command.workers:
        raise InvalidCommand("a window names at least one worker; give --workers NAMES, or all")
    check_number("workers", command.workers, MAX_NAMED)
    workers = tuple(dict.fromkeys(command.workers))
    for name in workers:
        if name not in state.workers and name not in state.lost:
            raise UnknownWorker(name[:80])
    added = WindowAdded(
        window=command.window,
        workers=workers,
        begin=command.begin,
        end=command.end,
        notice_s=command.notice_s,
        company=command.company,
        reason=command.reason,
    )
    window = window_of(added, at)
    _check_free(state, window)
    _check_in_time(state, window, at)
    return [added]


def _check_free(state: ClusterState, window: Window) -> None:
    """Raises: InvalidCommand if one of its workers has another window then."""
    taken: dict[str, list[str]] = {}
    for name in window.workers:
        for other in state.planned.get(name, ()):
            if other.overlaps(window.begin, window.end):
                taken.setdefault(other.id, []).append(name)
    for other_id, names in taken.items():
        raise InvalidCommand(
            f"the window {window.id!r} overlaps the window {other_id!r} on worker {few(names, _NAMED)}; choose "
            f"another time or other workers, or `fairlog window remove {other_id}` first"
        )


def _check_in_time(state: ClusterState, window: Window, at: int) -> None:
    """Raises: InvalidCommand if the window begins before all that runs there can have gone."""
    longest, whose = state.settings.kill_grace_s * 1000 + SETTLE_MS, "what runs"
    for held in in_the_way(state, window):
        needed = leaving_ms(state.settings, state.apps[held.app])
        if needed > longest:
            longest, whose = needed, f"app {held.app!r}"
    if window.begin < at + longest:
        raise InvalidCommand(
            f"the window begins in {(window.begin - at) / 1000:.0f} s, and {whose} there may need "
            f"{longest // 1000} s to end; give --from a later time"
        )
