"""How long apps may run: their limits, the moments when these are reached, and longer ones (semantics X).

What counts is the time during which at least one executor of the app, or its driver, was running. The state keeps it
for apps with a limit only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from scheduler.model.commands import CancelTask, SignalApp
from scheduler.model.errors import InvalidCommand, RuntimeTooLong
from scheduler.model.events import (
    AppExpired,
    AppExtended,
    AppRemoved,
    AppSignalled,
    AppWarned,
    CompanyRegistered,
    Event,
    TaskCancelled,
    Warn,
)
from scheduler.rules.checks.validate import SENT_SIGNALS, check_range, check_said, check_signal, shorten

if TYPE_CHECKING:
    from scheduler.model.commands import ExtendApp, SubmitApp
    from scheduler.model.events import ClusterConfigured
    from scheduler.rules.entities.apps import App
    from scheduler.rules.state.cluster import ClusterState

LONGEST_S = 10**9


def most_s(settings: ClusterConfigured, company: CompanyRegistered) -> int | None:
    """How long the company's apps may run at most: its own maximum, else the cluster's; None = any time (X1)."""
    own = company.max_max_runtime_s
    return settings.max_max_runtime_s if own is None else own


def runtime_of(settings: ClusterConfigured, company: CompanyRegistered, command: SubmitApp) -> int | None:
    """How long the submitted app may run; None = any time (semantics X1).

    An app that does not say gets the default, at most the maximum, and without a default the maximum.

    Raises: InvalidCommand, RuntimeTooLong.
    """
    most, asked = most_s(settings, company), command.max_runtime_s
    if asked is None:
        own = company.default_max_runtime_s
        usual = settings.default_max_runtime_s if own is None else own
        return most if usual is None else min(usual, usual if most is None else most)
    check_range("the maximum runtime, in seconds,", asked, 1, LONGEST_S)
    if most is not None and asked > most:
        instead = "ask for less; an operator can run `fairlog extend APP --by TIME --beyond-maximum` later"
        raise RuntimeTooLong(asked, most, company.company, instead)
    return asked


def warning_of(name: str, before_s: int, runtime_s: int | None) -> Warn:
    """The warning, that signal so many seconds before the end (semantics X2). Raises: InvalidCommand."""
    check_signal("the signal of --warn", name)
    check_range("the seconds of --warn", before_s, 1, LONGEST_S)
    if runtime_s is None:
        raise InvalidCommand("--warn needs a maximum runtime; add --max-runtime TIME")
    if before_s >= runtime_s:
        raise InvalidCommand(
            f"--warn asks for a signal {before_s} s before the end, but the app may run for {runtime_s} s in all; give "
            f"less than {runtime_s} s"
        )
    return Warn(name, before_s)


def expiries(state: ClusterState, at: int) -> Iterator[Event]:
    """The apps whose time is over at time `at` (ms), and those that are warned, in the order of admission (X2)."""
    for name in state.timers.due(at, "expiry"):
        yield AppExpired(app=name)
    for name in state.timers.due(at, "warning"):
        warn = state.apps[name].spec.warn
        if warn is not None:
            yield AppWarned(app=name, signal=warn.signal)


def timed(state: ClusterState, app: App, command: SignalApp | CancelTask | ExtendApp) -> list[Event]:
    """The events of a command about what runs of an app: a signal (semantics X4), an end (X4) or more time (X1).

    Raises: as they do.
    """
    if isinstance(command, SignalApp):
        return signalled(app, command)
    return cancelled(app, command) if isinstance(command, CancelTask) else extended(state, app, command)


def check_task(app: App, task: int) -> None:
    """Raises: InvalidCommand unless the app has a task of that index from 0."""
    if not app.spec.tasks:
        raise InvalidCommand(f"app {app.id!r} has no tasks; leave out the task")
    if not 0 <= task < app.spec.tasks:
        raise InvalidCommand(f"app {app.id!r} has no task {task}; its tasks are 0 to {app.spec.tasks - 1}")


def cancelled(app: App, command: CancelTask) -> list[Event]:
    """The task is cancelled, and the app is killed with its last one (semantics X4). Raises: InvalidCommand."""
    check_said(command.reason)
    check_task(app, command.task)
    if command.task in app.cancelled:
        return []
    found: list[Event] = [TaskCancelled(app=app.id, task=command.task)]
    if len(app.cancelled) + 1 == app.spec.tasks and app.spec.driver is None:
        found.append(AppRemoved(app=app.id, reason="killed", detail="all its tasks were cancelled"))
    return found


def signalled(app: App, command: SignalApp) -> list[Event]:
    """The signal goes to what runs of the app now (semantics X4). Raises: InvalidCommand."""
    if command.signal not in SENT_SIGNALS:
        raise InvalidCommand(f"the signal must be one of {', '.join(SENT_SIGNALS)}, not {shorten(command.signal)}")
    if command.task is not None:
        check_task(app, command.task)
    if not [held for held in app.allocations() if held.status != "stopping"]:
        raise InvalidCommand(f"app {app.id!r} is {app.state}: nothing of it runs that could get a signal")
    return [AppSignalled(app=app.id, signal=command.signal, task=command.task, whole=command.whole)]


def extended(state: ClusterState, app: App, command: ExtendApp) -> list[Event]:
    """The app may run longer: up to the maximum of its company, or beyond where the command says so (semantics X1).

    Raises: InvalidCommand, RuntimeTooLong.
    """
    check_range("the time of an extension, in seconds,", command.by_s, 1, LONGEST_S)
    if app.max_runtime_s is None:
        raise InvalidCommand(f"app {command.app!r} has no maximum runtime; it may run on without an extension")
    runtime_s, company = app.max_runtime_s + command.by_s, app.spec.company
    check_range("the maximum runtime, in seconds,", runtime_s, 1, LONGEST_S)
    most = most_s(state.settings, state.companies[company].spec)
    if most is not None and runtime_s > most and not command.beyond_maximum:
        less = f"extend it by at most {most - app.max_runtime_s} s, or" if most > app.max_runtime_s else "only"
        raise RuntimeTooLong(runtime_s, most, company, f"{less} an operator can extend it with --beyond-maximum")
    return [AppExtended(app=command.app, max_runtime_s=runtime_s)]
