"""When an app is ready: its dependencies are met, it is not on hold, and its time has come (semantics J).

An app that is not ready is in no queue. So it is no head, is not held back by the quota, and does not make its company
take part. The fold notes what each end means for the apps that wait for it; a turn removes those that wait in vain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec.json import Encoder
from msgspec.structs import replace

from scheduler.model.commands import RequeueApp, SubmitApp
from scheduler.model.errors import InvalidCommand, NotAdmitted, NotPending, UnknownDependency
from scheduler.model.events import (
    AppDelayed,
    AppDue,
    AppHeld,
    AppReady,
    AppReleased,
    AppRemoved,
    AppReprioritized,
    AppRequeued,
    Condition,
    Dependency,
    Event,
    TaskRequeued,
)
from scheduler.rules.checks.validate import MAX_DEPENDENCIES, MAX_MOMENT, MAX_PRIORITY, check_range, check_said, shorten
from scheduler.rules.command.runtime import check_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.rules.entities.apps import App
    from scheduler.rules.state.cluster import ClusterState


_to_json = Encoder().encode


def check_priority(priority: int) -> None:
    """Raises: InvalidCommand unless -1000 <= `priority` <= 1000 (semantics Q1)."""
    check_range("the priority", priority, -MAX_PRIORITY, MAX_PRIORITY)


def dependencies(
    state: ClusterState, company: str, after: Mapping[Condition, tuple[str, ...]]
) -> tuple[Dependency, ...]:
    """What a new app of the company waits for (semantics J1).

    Only earlier apps can be named, so there are no circles.

    Raises: UnknownDependency for an app that is not known or is another company's; InvalidCommand if one is named twice
    or too many are.
    """
    found = tuple(Dependency(app, condition) for condition, apps in after.items() for app in apps)
    check_range("the number of apps to start after", len(found), 0, MAX_DEPENDENCIES)
    named: set[str] = set()
    for app, _ in found:
        if app not in state.apps or state.apps[app].spec.company != company:
            raise UnknownDependency(app[:80], company)
        if app in named:
            raise InvalidCommand(f"app {app!r} is named twice in --after; name it once, with one condition")
        named.add(app)
    return found


def with_namesakes(state: ClusterState, command: SubmitApp) -> SubmitApp:
    """The submission of a `singleton` with the apps of its user that have its name, which it waits for (semantics J1).

    Applied when a command arrives: names are private, so what is decided is which apps it waits for. Raises:
    InvalidCommand if it has no name.
    """
    if not command.singleton:
        return command
    if not command.name:
        raise InvalidCommand("a singleton waits for the apps of its name; add --name NAME")
    named = {name for names in command.after.values() for name in names}
    written = _to_json(command.name)
    found = [
        app.id
        for app in state.apps.values()
        if app.ended is None
        and (app.spec.company, app.spec.user) == (command.company, command.user)
        and app.id not in named
        and written in app.private_json
        and app.name == command.name
    ]
    after: dict[Condition, tuple[str, ...]] = {**command.after}
    if found:
        after["any"] = (*after.get("any", ()), *found)
    return replace(command, singleton=False, after=after)


def reprioritized(app: App, priority: int) -> list[Event]:
    """The events of a new priority: none if it is the same (semantics Q1). Raises: InvalidCommand."""
    check_priority(priority)
    return [] if app.priority == priority else [AppReprioritized(app=app.id, priority=priority)]


def put_on_hold(app: App, *, hold: bool) -> list[Event]:
    """The events of a hold, or of its end: none if nothing changes (semantics J3). Raises: NotPending."""
    if app.admitted:
        raise NotPending(app.id)
    if app.on_hold == hold:
        return []
    return [AppHeld(app=app.id) if hold else AppReleased(app=app.id)]


def requeued(app: App, command: RequeueApp) -> list[Event]:
    """The app goes back into its user's queue, or one of its tasks into the app's (semantics X6).

    Raises: InvalidCommand, NotAdmitted.
    """
    check_said(command.reason)
    if app.spec.no_requeue:
        raise InvalidCommand(
            f"app {app.id!r} was submitted with --no-requeue; `fairlog kill {app.id}` ends it, and `fairlog resubmit "
            f"{app.id}` submits it again"
        )
    if not app.admitted:
        raise NotAdmitted(app.id)
    if command.task is None:
        return [AppRequeued(app=app.id)]
    check_task(app, command.task)
    if command.task in app.cancelled:
        raise InvalidCommand(f"task {command.task} of app {app.id!r} was cancelled; it does not run again")
    held = app.executors.get(command.executor)
    if held is None or held.status == "stopping":
        raise InvalidCommand(
            f"a task is put back where it runs: {shorten(command.executor)} is no running executor of app {app.id!r}; "
            f"`fairlog app {app.id} --tasks` names that of each task"
        )
    return [TaskRequeued(app=app.id, task=command.task, executor=command.executor)]


def delayed(app: str, begin: int | None, at: int) -> list[Event]:
    """The new app waits for the time `begin` (ms), unless that has come at `at` (ms) (semantics J4).

    Raises: InvalidCommand.
    """
    check_range("the time to begin, in ms,", begin, 0, MAX_MOMENT)
    return [AppDelayed(app=app, until=begin)] if begin is not None and begin > at else []


def due(state: ClusterState, at: int) -> Iterable[Event]:
    """The apps whose time to begin has come at `at` (ms), by name (semantics J4)."""
    return [AppDue(app=name) for name in state.timers.due(at, "begin")]


def judgements(state: ClusterState, _at: int) -> Iterable[Event]:
    """Apps that are ready now, and ends of apps that wait in vain, down the chain, by submission (semantics J2)."""
    return _judgements(state) if state.indexes.judged else ()  # most turns: save the generator


def _judgements(state: ClusterState) -> Iterator[Event]:
    while (app := state.indexes.judged.after(0)) is not None:
        name = app.id
        if not app.unmet:
            yield AppReady(app=name)
            continue
        detail = f"it waited for {app.unmet}:{app.awaits[app.unmet]}, which can no longer come"
        yield AppRemoved(app=name, reason="unmet", detail=detail)
