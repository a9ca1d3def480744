"""The verbs about apps that were submitted: kill, signal, scale, extend, reprioritize, hold, release, apps, app."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fairlog.cli import render
from fairlog.cli.app_lists import AppFilter, Columns, list_options, show_apps
from fairlog.cli.choice import app_argument, full_id
from fairlog.cli.decorators import on_log
from fairlog.cli.params import (
    as_json,
)
from fairlog.cli.target import in_the_past
from fairlog.cli.times import localized
from fairlog.efficiency import in_words
from scheduler.model.arrays import index_of
from scheduler.model.resources import size_text
from scheduler.model.text import counted
from witness.failing import exclusion_in_words

if TYPE_CHECKING:
    from fairlog.cli.remote_tasks import RemoteTasks
    from fairlog.cli.session import Session
    from fairlog.cli.sources import Source
    from scheduler.store.task_queue import Worklist
    from scheduler.store.task_states import TaskState


@click.command()
@list_options
@in_the_past
@as_json
@on_log
def apps(source: Source, *, wanted: AppFilter, columns: Columns, as_json: bool) -> None:
    """List the apps that have not ended, or all apps.

    REASON is the cause for which an app waits, as `fairlog explain` tells it at length, and WAIT how long it waits, or
    has waited until it was admitted. An admitted app that has no executor waits on.

    --ended lists the apps that ended in a span of time, from the log, so that those are included which the state has
    forgotten. Their CPU time and peak memory are those that executors have measured, kept for a week at most. A task's
    CPU time is its own and that of the processes that it waited for; of a task that had its executor and a control
    group to itself, that of all that came from it.
    """
    show_apps(source, wanted, columns, as_json=as_json)


@click.command()
@app_argument
@in_the_past
@as_json
@on_log
def app(source: Source, *, app: str, as_json: bool) -> None:
    """Show one app with its executors, tasks and links.

    A link is the address of a user interface, which the app itself has named: fairlog does not check where it leads.

    With --at or FILE, tasks are not shown, because the log does not record the state of single tasks.
    """
    if not source.past:
        app = full_id(source.session, app)
    found = source.ask("app", app=app)
    from fairlog.cli.outputs import measured  # noqa: PLC0415 (few verbs need it)

    work = None if source.past else _tasks(source.session)
    tasks = [] if work is None else work.states(app)
    links = _links(source, app)
    programs = measured(work.progress(app)) if work is not None and found["executorProgram"] else {}
    if as_json:
        shown = {**found, **programs, "links": links, "taskStates": [_task_json(task) for task in tasks]}
        render.print_json(shown)
        return
    for name, value in found.items():
        if (
            name not in {"executors", "driver", "excludedWorkers", "spent"}
            and value is not False
            and value not in (None, "", [])
        ):
            label = re.sub("[A-Z]", lambda capital: f" {capital[0].lower()}", name)
            click.echo(f"{label:<18} {_in_words(name, value)}")
    if found["driver"] is not None:
        where, size = found["driver"], size_text(found["driver"]["memory"])
        click.echo(f"{'driver':<18} {where['driver']} on {where['worker']}, {counted(where['cores'], 'core')}, {size}")
    spent = found.get("spent")
    notes = [("used", in_words(spent))] if found["endedAt"] and spent and spent["toldCoreMs"] else []
    notes += [("link", f"{name}: {address}") for name, address in links.items()]
    notes += [("excluded", localized(exclusion_in_words(each))) for each in found["excludedWorkers"]]
    for label, text in notes:
        click.echo(f"{label:<18} {text}")
    click.echo()
    columns = "executor worker rank host cores memory resources status locality"
    none = "It has no executor now."
    render.print_records(found["executors"], columns, empty=none, as_json=False)
    if source.past:
        return
    used = _used(found, tasks) if not found["executorProgram"] else _used_by_programs(programs)
    for line in (*_nearness(tasks), *used):
        click.echo(line)
    if found["tasks"]:
        click.echo()
        _print_tasks(found, tasks)


def _print_tasks(found: Mapping[str, Any], tasks: Sequence[TaskState]) -> None:
    rows = []
    for task in tasks:
        began, took = render.second(task.started_at), (task.ended_at or 0) - (task.started_at or 0)
        index = index_of(found.get("array"), task.task)
        tried = (index, task.state, task.exit_code, task.attempts, task.executor, began)
        ended = task.ended_at is not None and task.started_at is not None
        used = (render.duration(task.cpu_ms), size_text(task.peak_mb)) if ended else (None, None)
        rows.append((*tried, render.duration(took if ended else None), *used, task.message))
    headings = ("TASK", "STATE", "EXIT", "TRIES", "EXECUTOR", "STARTED", "TOOK", "CPU", "PEAK", "MESSAGE")
    render.print_table(headings, rows, empty="None of its tasks has started yet.")


def _nearness(tasks: Sequence[TaskState]) -> Iterator[str]:
    """How many of the tasks that prefer hosts ran on one, in its rack or elsewhere, in words (semantics L7)."""
    by_level = Counter(task.locality for task in tasks if task.locality is not None)
    if number := by_level.total():
        share = f"{by_level['host']} of {number} on a preferred host, {100 * by_level['host'] / number:.0f}%"
        others = (f"{by_level[level]} {where}" for level, where in _ELSEWHERE.items() if by_level[level])
        yield f"{'locality':<18} {'; '.join((share, *others))}"


def _used(found: Mapping[str, Any], tasks: Sequence[TaskState]) -> Iterator[str]:
    """What the tasks that ended have used of the cores and the memory that they had, in words."""
    ended = [task for task in tasks if task.ended_at is not None and task.started_at is not None]
    if not any(task.cpu_ms or task.peak_mb for task in ended):
        return
    took_ms = sum((task.ended_at or 0) - (task.started_at or 0) for task in ended) * found["coresPerTask"]
    cpu_ms, peak_mb = sum(task.cpu_ms for task in ended), max(task.peak_mb for task in ended)
    part = f", {100 * cpu_ms / took_ms:.0f}%" if took_ms else ""
    yield f"{'cpu time':<18} {render.duration(cpu_ms)} of {render.duration(took_ms)} of its tasks' cores{part}"
    yield f"{'peak memory':<18} {size_text(peak_mb)} of a task"


def _used_by_programs(measured: Mapping[str, int]) -> Iterator[str]:
    """What the programs of executors that ended have used, in words."""
    if measured:
        yield f"{'cpu time':<18} {render.duration(measured['cpuMs'])} of its programs"
        yield f"{'peak memory':<18} {size_text(measured['peakMemory'])} of a program"


def _in_words(name: str, value: Any) -> str:  # noqa: ANN401 (JSON)
    if name.endswith("At"):
        return render.moment(value)
    if name == "ranMs":
        return render.duration(value)
    if name == "elastic":
        return ":".join(map(str, value))
    return f"{value} s" if name in ("timeLimit", "maxRuntime") else render.words(render.in_words(name, value))


_ELSEWHERE = {"rack": "in its rack", "any": "elsewhere"}


def _tasks(session: Session) -> Worklist | RemoteTasks:
    from fairlog.cli.outputs import shown_tasks  # noqa: PLC0415 (loads RQ, which most verbs do without)

    return shown_tasks(session)


def _links(source: Source, app: str) -> dict[str, str]:
    """The app's links; the past has none."""
    from fairlog.cli.outputs import links_of  # noqa: PLC0415 (likewise)

    return {} if source.past else links_of(source.session, app)


def _task_json(task: TaskState) -> dict[str, object]:
    """The task, its fields in camel case."""
    return {re.sub("_(.)", lambda found: found[1].upper(), name): value for name, value in task._asdict().items()}
