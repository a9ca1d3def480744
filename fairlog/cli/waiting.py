"""`submit --wait`: shows for what an app waits, its progress and how it ended, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from fairlog.cli import render
from fairlog.cli.follow import patiently
from fairlog.cli.printed import terminal
from fairlog.cli.times import localized
from scheduler.model.text import counted
from scheduler.store.task_states import Progress

if TYPE_CHECKING:
    from fairlog.cli.session import Session

_FIRST_LOOK_S = 0.05
_LINE_EVERY_S = 5.0
_MOMENT_S = 2.0


class AppOutcome(NamedTuple):
    """How an app ended, from its registration (ms).

    `last_code` is the exit code of its last driver, or if it has none, of the last of its programs that failed.
    """

    began_at: int
    ended_at: int
    reason: str
    detail: str
    last_code: int | None = None


Show = Callable[[str, Progress], None]
"""Shows an app's state and how many of its tasks have succeeded."""


def wait_for(session: Session, app: str, seq: int, *, quiet: bool = False) -> AppOutcome:
    """Wait for the end of the app registered at `seq`, and say on stderr for what it waits and how it ended.

    A change of masters does not matter. An interrupt ends the wait, not the app.
    """
    reasons = Reasons(session, app)
    try:
        with _display(app) if not quiet else nullcontext(lambda *_: None) as display:

            def show(state: str, tasks: Progress) -> None:
                display(state, tasks)
                if state != "running":
                    reasons.look()

            end = _look(session, app, seq, show)
    except KeyboardInterrupt:
        render.say(f"{app} keeps running; `fairlog kill {app}` ends it")
        raise
    why = f": {' '.join(end.detail.split())}" if end.detail else ""
    if quiet and end.reason == "finished":
        return end
    render.say(f"{app} {end.reason} after {render.duration(end.ended_at - end.began_at)}{why}")
    return end


class Reasons:
    """Says on stderr for what an app waits: once it has waited for a moment, and when that changes."""

    def __init__(self, session: Session, app: str) -> None:
        self._session, self._app = session, app
        self._next_s: float = time.monotonic() + _MOMENT_S
        self._said = ""

    def look(self) -> None:
        """Say it if it is time to."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _MOMENT_S
        found = patiently(lambda: self._session.card(self._app))
        wait = None if found["state"] == "running" else found["waitsFor"]
        if wait is not None and self._said != (said := f"{wait['cause']} ({wait['rule']}): {localized(wait['text'])}"):
            self._said = said
            render.say(f"{self._app} waits: {said}")


def exit_code_of(session: Session, app: str, end: AppOutcome) -> int:
    """The exit code of whoever waited for the app.

    It is 0 if the app finished, that of its driver if it failed with it, else the largest of its tasks, or the last of
    its programs that failed, else 1.

    A task that could be started nowhere waits for its next attempt, or was stopped, when its app fails.
    """
    if end.reason == "finished":
        return 0
    if end.reason == "failed" and end.last_code:
        return end.last_code
    states = session.tasks().states(app)
    failed = [task.exit_code for task in states if task.state == "failed"]
    others = [task.exit_code for task in states if end.reason == "failed" and task.state in ("queued", "stopped")]
    return max(filter(None, failed), default=0) or max(filter(None, others), default=1)


def _look(session: Session, app: str, seq: int, show: Show) -> AppOutcome:
    """Returns when the app has ended."""
    work, progress, next_s, pause_s = session.tasks(), Progress(), 0.0, _FIRST_LOOK_S
    while True:
        found = patiently(lambda: session.ask("app", app=app))
        if found["endedAt"] is not None:
            ends = "DriverRemoved" if found["hasDriver"] else "ExecutorRemoved" if found["executorProgram"] else ""
            code = _last_code(session, app, seq, ends) if ends else None
            return AppOutcome(found["submittedAt"], found["endedAt"], found["state"], found["detail"], code)
        if time.monotonic() >= next_s:
            progress, next_s = patiently(lambda: work.progress(app)), time.monotonic() + _LINE_EVERY_S
        show(found["state"], progress)
        time.sleep(pause_s)
        pause_s = min(session.look_s, 1.5 * pause_s)


def _last_code(session: Session, app: str, seq: int, ends: str) -> int | None:
    """As `AppOutcome` has it, of an app that has ended; events of the type `ends` tell it."""
    code: int | None = None
    for event in session.events_of(app, seq):
        if event["type"] == ends:
            code = event["data"]["exit_code"]
        elif event["type"] == "AppRemoved":
            break
    return code


@contextmanager
def _display(app: str) -> Iterator[Show]:
    """A progress bar if stderr is a terminal, otherwise occasional lines."""
    if not sys.stderr.isatty():
        yield _lines(app)
        return
    from rich.console import Console  # noqa: PLC0415 (only terminals need it)
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 (likewise)
    from rich.progress import Progress as Bars  # noqa: PLC0415 (likewise)

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(file=terminal(sys.stderr)), transient=True) as bars:
        number = bars.add_task(f"{app} pending", total=None)
        yield lambda state, tasks: bars.update(
            number, description=f"{app} {state}", completed=tasks.succeeded, total=tasks.tasks or None
        )


def _lines(app: str) -> Show:
    """Prints a line when the state changes, and the number of finished tasks every few seconds."""
    before, next_s = ("", 0), 0.0

    def show(state: str, tasks: Progress) -> None:
        nonlocal before, next_s
        if (state, tasks.succeeded) == before or (state == before[0] and time.monotonic() < next_s):
            return
        if 0 < tasks.tasks == tasks.succeeded:  # its end is told at once
            return
        before, next_s = (state, tasks.succeeded), time.monotonic() + _LINE_EVERY_S
        done = f", {tasks.succeeded} of {counted(tasks.tasks, 'task')} done" if tasks.tasks else ""
        render.say(f"{app} {state}{done}")

    return show
