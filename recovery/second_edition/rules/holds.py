"""Room that is held on a worker for one app: for a large executor (semantics P8), or for a claim (semantics E5).

A hold has the size of one executor. For everybody else what is free on the worker counts less by that much.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from recovery.second_edition.rules.demand import raised_by_return
from recovery.second_edition.rules.failures import has_room_now, kept_from
from scheduler.model.events import Event, ExecutorAllocated, HoldEnded, RevocationWithdrawn, RoomHeld
from scheduler.model.resources import NOTHING, Resources

if TYPE_CHECKING:
    from recovery.second_edition.rules.entities import App, Hold, Worker
    from recovery.second_edition.rules.state import ClusterState

Ending = Literal["granted", "served", "part-reached", "worker-gone", "unusable", "limit"]


def ended_by_grant(state: ClusterState, granted: ExecutorAllocated) -> Iterator[Event]:
    """A grant on a worker ends one hold of its app there: of a claim whose executors left, else the oldest (P8, E5)."""
    worker = state.workers[granted.worker]
    own = [hold for hold in worker.holds.values() if hold.app == granted.app]
    if own:
        hold = next((hold for hold in own if hold.reason == "reclaim" and not hold.leaving), own[0])
        yield from end(state, hold, "granted")


def void(state: ClusterState, at: int) -> Iterator[Event]:
    """End the holds that are void at time `at` (ms), and withdraw what was asked for them (semantics P8, E5)."""
    for hold in list(state.holds.values()):
        reason = _why_void(state, hold, at)
        if reason is not None:
            yield from end(state, hold, reason)


def end(state: ClusterState, hold: Hold, reason: Ending) -> Iterator[Event]:
    """The hold ends; executors that still leave for its claim go on as before (semantics E5)."""
    yield HoldEnded(hold=hold.id, worker=hold.worker, app=hold.app, reason=reason)
    for _, executor in sorted(hold.leaving.items()):
        app = state.apps[executor.app]
        if not app.over:
            yield RevocationWithdrawn(app=executor.app, executor=executor.id, worker=executor.worker)
            if hold.within:
                yield from raised_by_return(state, app)


def _why_void(state: ClusterState, hold: Hold, at: int) -> Ending | None:
    app, worker = state.apps.get(hold.app), state.workers.get(hold.worker)
    if worker is None or worker.status != "alive" or worker.shut or hold.id not in worker.holds:
        return "worker-gone"
    if app is None or not app.owed or _superfluous(app, hold):
        return "served"
    if not hold.within and state.queue.reached(app.spec.company):
        return "part-reached"
    if hold.worker in kept_from(state, app, at):
        return "unusable"
    if hold.reason == "hold":
        return "limit" if at >= hold.since + state.settings.hold_limit_s * 1000 else None
    return None if hold.leaving or _usable(app, worker, hold) else "unusable"


def _superfluous(app: App, hold: Hold) -> bool:
    """Whether the app claims more than it is owed, so that its last claims are void (semantics E5)."""
    if hold.reason == "hold":
        return False
    return [one.id for one in app.holds.values() if one.reason == "reclaim"].index(hold.id) >= app.claimable


def _usable(app: App, worker: Worker, hold: Hold) -> bool:
    """Whether the room of a claim whose executors have left can be used, now or when others that leave are gone."""
    left = [one.id for one in worker.holds.values() if one.reason == "reclaim" and not one.leaving]
    room = worker.open_to(app.id) + worker.leaving
    return room.holds(hold.amounts) > left.index(hold.id)


def new_holds(state: ClusterState, at: int) -> Iterator[RoomHeld]:
    """Hold room for large executors that wait for too long, in the order of placement (semantics P8).

    An app whose company has not reached its part, and that was owed an executor for `hold_patience_s` without a grant,
    though the offer of some live worker would suffice. At most a quarter of the live workers have such a hold.
    """
    settings = state.settings
    waiting = state.timers.due(at, "hold") if settings.admission == "fair" else ()
    number = sum(hold.reason == "hold" for hold in state.holds.values()) if waiting else 0
    in_vain: set[tuple[str, int]] = set()
    for name in waiting:
        if number >= max(1, state.fleet.live // 4):
            return
        app = state.apps[name]
        like = app.spec.company, id(app.need)
        if like in in_vain and not app.troubles:
            continue
        since = state.short_since(app.spec.company)
        if (
            since is None
            or at < max(since + settings.hold_patience_s * 1000, app.no_hold_before)
            or any(hold.reason == "hold" for hold in app.holds.values())
        ):
            continue
        worker = _worker_for(state, app, at)
        if worker is not None:
            number += 1
            in_vain.clear()
            yield RoomHeld(worker=worker, app=name, amounts=app.need.executor, reason="hold")
        elif not app.troubles:
            in_vain.add(like)
    state.rooms.forget_unasked()


def _worker_for(state: ClusterState, app: App, at: int) -> str | None:
    """Where room is held for an executor of the app: the most free cores, then memory, then the smallest id.

    Drivers stay: room is gathered only where what they leave suffices.
    """
    need = app.need
    if not need.executor.cores or not need.hostable or state.queue.reached(app.spec.company):
        return None
    if has_room_now(state, app, at):
        return None
    return state.rooms.first(need.executor, kept_from(state, app, at))


def claims_of(app: App) -> list[Hold]:
    """The holds of the app's claims, oldest first (semantics E5)."""
    return [hold for hold in app.holds.values() if hold.reason == "reclaim"]


def claimed_by_company(state: ClusterState) -> dict[str, Resources]:
    """Company -> what is held for the claims of its apps (semantics C8)."""
    claimed: dict[str, Resources] = {}
    for hold in state.holds.values():
        if hold.reason == "reclaim" and hold.app in state.apps:
            company = state.apps[hold.app].spec.company
            claimed[company] = claimed.get(company, NOTHING) + hold.amounts
    return claimed


def leaving_by_company(state: ClusterState) -> dict[str, Resources]:
    """Company -> what its executors on live workers have that were told to leave for claims (semantics E2)."""
    leaving: dict[str, Resources] = {}
    for hold in state.holds.values():
        for executor in hold.leaving.values():
            if state.workers[executor.worker].status == "alive":
                company = state.apps[executor.app].spec.company
                leaving[company] = leaving.get(company, NOTHING) + executor.resources
    return leaving
