"""`submit --wait`: shows for what an app waits, its progress and how it ended, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from fairlog.cli import render
from fairlog.cli.follow import follow, patiently
from fairlog.cli.outputs import tasks_of
from fairlog.cli.printed import terminal
from fairlog.cli.times import localized
from scheduler.model.events import AppRegistered, AppRemoved, DriverRemoved, ExecutorRemoved
from scheduler.model.ids import app_of
from scheduler.store.codec import told
from scheduler.store.task_states import Progress

if TYPE_CHECKING:
    from fairlog.api.client import ApiClient
    from fairlog.cli.session import Session

_LOOK_S, _LOOK_THROUGH_API_S = 0.2, 0.5
_LINE_EVERY_S = 5.0
_MOMENT_S = 2.0
_STATES = {
    "AppRegistered": "pending",
    "AppAdmitted": "admitted",
    "DriverAllocated": "running",
    "ExecutorChanged": "running",
}


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

            end = _watch(session, app, seq, show) if session.api is None else _look(session, app, show)
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
    states = tasks_of(session).states(app)
    failed = [task.exit_code for task in states if task.state == "failed"]
    others = [task.exit_code for task in states if end.reason == "failed" and task.state in ("queued", "stopped")]
    return max(filter(None, failed), default=0) or max(filter(None, others), default=1)


def _watch(session: Session, app: str, seq: int, show: Show) -> AppOutcome:
    """Returns when the app has ended."""
    work = tasks_of(session)
    state, began_at = "pending", 0
    ends = ""
    code: int | None = None
    for record in follow(session.log, session.log.before(seq - 1), wait_s=_LOOK_S):
        if record is None:
            show(state, patiently(lambda: work.progress(app)))
            continue
        for fact in told(record) if app.encode() in record.events else ():
            if app != getattr(fact.event, "app", app_of(getattr(fact.event, "executor", ""))):
                continue
            began_at = began_at or fact.at
            if isinstance(fact.event, AppRemoved):
                said = fact.private.said if fact.private is not None else fact.event.detail
                return AppOutcome(began_at, fact.at, fact.event.reason, said, code)
            if isinstance(fact.event, AppRegistered):
                ends = _ends(has_driver=fact.event.driver is not None, programs=fact.event.programs)
            if isinstance(fact.event, DriverRemoved | ExecutorRemoved) and fact.type == ends:
                code = fact.event.exit_code
            state = _STATES.get(fact.type, state)
    raise AssertionError("following the log never ends by itself")


def _look(session: Session, app: str, show: Show) -> AppOutcome:
    """As `_watch`, through the API."""
    work, progress, next_s = tasks_of(session), Progress(), 0.0
    while True:
        found = session.ask("app", app=app)
        if found["endedAt"] is not None:
            ends = _ends(has_driver=found["hasDriver"], programs=found["executorProgram"])
            code = _last_code(session.api, app, ends) if session.api is not None and ends else None
            return AppOutcome(found["submittedAt"], found["endedAt"], found["state"], found["detail"], code)
        if time.monotonic() >= next_s:
            progress, next_s = work.progress(app), time.monotonic() + _LINE_EVERY_S
        show(found["state"], progress)
        time.sleep(_LOOK_THROUGH_API_S)


def _ends(*, has_driver: bool, programs: bool) -> str:
    """The type of the events that tell with which exit code the app's work ended; "" if its tasks do."""
    return "DriverRemoved" if has_driver else "ExecutorRemoved" if programs else ""


def _last_code(api: ApiClient, app: str, ends: str) -> int | None:
    """As `AppOutcome` has it, of an app that has ended."""
    code: int | None = None
    for event in api.follow(f"/v1/apps/{quote(app, safe='')}/events"):
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
        before, next_s = (state, tasks.succeeded), time.monotonic() + _LINE_EVERY_S
        done = f", {tasks.succeeded} of {tasks.tasks} tasks done" if tasks.tasks else ""
        render.say(f"{app} {state}{done}")

    return show
