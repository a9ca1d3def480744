"""The verbs about apps that were submitted: kill, signal, scale, extend, reprioritize, hold, release, apps, app."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from fairlog.cli import render
from fairlog.cli.app_lists import Columns, Wanted, list_options, show_apps
from fairlog.cli.choice import Choice, app_argument, chosen_apps, full_id, full_ids, picked
from fairlog.cli.completion import complete
from fairlog.cli.decorators import on_cluster, on_log
from fairlog.cli.params import (
    as_json,
    flag,
    merge_counts,
    names_argument,
    number_option,
    range_option,
    read_counts,
    read_duration,
    read_limit,
    read_signal,
    size_option,
    text_option,
)
from fairlog.cli.target import in_the_past
from fairlog.cli.times import localized
from scheduler.model.arrays import index_of, position_of
from scheduler.model.commands import (
    BATCH,
    Command,
    ExtendApp,
    FinishApp,
    HoldApp,
    KillApp,
    KillExecutors,
    ReleaseApp,
    ReprioritizeApp,
    ScaleApp,
    SignalApp,
)
from scheduler.model.errors import CommandRejected, UnknownExecutor
from scheduler.model.ids import app_of
from scheduler.model.resources import size_text
from witness.failing import exclusion_in_words

if TYPE_CHECKING:
    from fairlog.cli.outputs import RemoteTasks
    from fairlog.cli.session import Session
    from fairlog.cli.sources import Source
    from scheduler.store.task_queue import Worklist
    from scheduler.store.task_states import TaskState


@click.command()
@flag("--executor", help="Kill executors, named by id. Their apps continue and get replacements.")
@text_option("--reason", default="", metavar="TEXT", help="Why; an operator states it where there are accounts.")
@chosen_apps()
@on_cluster
def kill(session: Session, *, chosen: Choice, executor: bool, reason: str) -> int:
    """Kill apps, or single executors.

    The resources of a killed app or executor are free once its worker confirms that it has stopped.

    Apps that are chosen by a filter are shown first, and killed after a yes or with --yes.
    """
    if executor:
        if not chosen.names:
            raise click.UsageError("name the executors; --executor takes no filters")
        if unknown := next((name for name in chosen.names if not app_of(name)), None):
            raise UnknownExecutor(unknown)
        return send_each(
            session,
            chosen.names,
            lambda name: KillExecutors(app=app_of(name), executors=(name,)),
            "will stop",
            nothing="is not a running executor",
        )
    names = picked(session, chosen, "kill")
    return send_each(session, names, lambda name: KillApp(app=name, reason=reason), "killed")


@click.command()
@app_argument
@click.argument("sent", type=read_signal, metavar="SIGNAL")
@range_option("--task", 0, metavar="I", help="Only to this task, counted from 0, or by its index of --array.")
@flag("--all-processes", "whole", help="To all processes that come from the tasks, not only to the one of each.")
@text_option("--reason", default="", metavar="TEXT", help="Why; an operator states it where there are accounts.")
@on_cluster
def signal(session: Session, *, app: str, sent: str, task: int | None, whole: bool, reason: str) -> int:
    """Send a signal to the tasks of an app that run now.

    SIGNAL is a name such as USR1 or SIGTERM. It goes to the process of each task, and to the app's driver; what starts
    later gets nothing. A task that ends by it has ended as by any signal: it has failed, and is tried again as often as
    --retries says.
    """
    app = full_id(session, app)
    if task is not None:
        found = session.ask("app", app=app)
        array, number = found.get("array"), found["tasks"]
        position = position_of(array, task, number)
        if position is None:
            known = array or (f"0 to {number - 1}" if number else "none")
            raise click.ClickException(f"app {app!r} has no task {task}; its tasks are {known}")
        task = position

    def command(name: str) -> SignalApp:
        return SignalApp(app=name, signal=sent, task=task, whole=whole, reason=reason)

    return send_each(session, [app], command, f"gets {sent}")


@click.command()
@number_option("--executors", required=True, type=read_limit, help='Number of executors, or "none" for no limit.')
@click.option(
    "--prefer",
    type=read_counts,
    multiple=True,
    metavar="HOST=TASKS...",
    help="Number of tasks that prefer a host. List several pairs, or repeat the option.",
)
@number_option(
    "--preferring-tasks",
    help="Number of tasks that prefer some host, if a task prefers several hosts.  [default: the sum of --prefer, at "
    "most all tasks]",
)
@text_option(
    "--stop", multiple=True, metavar="EXECUTOR", help="Stop this executor in the same turn, so that none replaces it."
)
@number_option("--executor-cores", help="Cores of each executor that runs a program, until the first is granted.")
@size_option("--executor-memory", "executor_memory_mb", help="Memory of each, likewise.")
@names_argument("app", shell_complete=complete("app"))
@on_cluster
def scale(
    session: Session,
    *,
    app: tuple[str, ...],
    executors: int | None,
    prefer: tuple[dict[str, int], ...],
    preferring_tasks: int | None,
    stop: tuple[str, ...],
    executor_cores: int | None,
    executor_memory_mb: int | None,
) -> int:
    """Change an app's executor count and preferred hosts.

    The options replace the app's whole demand: a host that is not named again is no longer preferred. A lower number
    stops no running executor but those of --stop. Executors that end are not replaced until fewer than N are left.
    """
    further = [read_counts(name) for name in app if "=" in name]
    apps = [name for name in app if "=" not in name]
    if not apps:
        raise click.UsageError("name at least one app")
    hosts = merge_counts((*prefer, *further))

    def command(name: str) -> ScaleApp:
        return ScaleApp(
            app=name,
            executors=executors,
            prefer=hosts,
            preferring_tasks=preferring_tasks,
            stop=tuple(executor for executor in stop if app_of(executor) == name),
            executor_cores=executor_cores,
            executor_memory_mb=executor_memory_mb,
        )

    if others := [executor for executor in stop if app_of(executor) not in apps]:
        raise click.UsageError(f"--stop {others[0]} is no executor of {', '.join(apps)}")

    return send_each(session, full_ids(session, apps), command, "scaled")


@click.command()
@flag("--failed", help="End them as failed.")
@text_option("--detail", default="", metavar="TEXT", help="Why, shown by `fairlog app`.")
@names_argument("app")
@on_cluster
def finish(session: Session, *, app: tuple[str, ...], failed: bool, detail: str) -> int:
    """End apps of executor programs, as their owner.

    Their executors are stopped. Apps with a driver end with their driver, other apps with their tasks.
    """
    outcome: Literal["finished", "failed"] = "failed" if failed else "finished"
    names = full_ids(session, app)
    return send_each(session, names, lambda name: FinishApp(app=name, outcome=outcome, detail=detail), outcome)


@click.command(context_settings={"ignore_unknown_options": True})
@app_argument
@click.argument("priority", type=int, metavar="N")
@on_cluster
def reprioritize(session: Session, *, app: str, priority: int) -> int:
    """Change an app's priority among its user's apps.

    N is a whole number from -1000 to 1000. A step of priority is worth as much waiting time as the setting
    priority_step_s says. Apps of other users are not affected.
    """
    return send_each(
        session,
        [full_id(session, app)],
        lambda name: ReprioritizeApp(app=name, priority=priority),
        f"has priority {priority}",
    )


@click.command()
@chosen_apps()
@on_cluster
def hold(session: Session, *, chosen: Choice) -> int:
    """Keep pending apps from starting until they are released."""
    return send_each(
        session, picked(session, _only(chosen, "pending"), "hold"), lambda name: HoldApp(app=name), "is on hold"
    )


@click.command()
@chosen_apps()
@on_cluster
def release(session: Session, *, chosen: Choice) -> int:
    """Let apps on hold start."""
    names = picked(session, _only(chosen, "not-ready"), "release")
    return send_each(session, names, lambda name: ReleaseApp(app=name), "released", nothing="is not on hold")


def _only(chosen: Choice, *states: str) -> Choice:
    """A filter that names no states takes only apps in those that the verb is for."""
    wanted = chosen.filter
    if chosen.names or wanted.state:
        return chosen
    return chosen._replace(filter=wanted._replace(state=states))


@click.command()
@click.option("--by", "by_s", required=True, type=read_duration, metavar="TIME", help="How much longer: 30m or 2h.")
@flag("--beyond-maximum", help="For operators: also beyond the company's maximum.")
@names_argument("app", shell_complete=complete("app"))
@on_cluster
def extend(session: Session, *, app: tuple[str, ...], by_s: int, beyond_maximum: bool) -> int:
    """Let apps run longer than their maximum runtime.

    Without --beyond-maximum, at most as long as the setting max_max_runtime_s or the company's own maximum allows.
    """
    return send_each(
        session,
        full_ids(session, app),
        lambda name: ExtendApp(app=name, by_s=by_s, beyond_maximum=beyond_maximum),
        "extended",
    )


@click.command()
@list_options
@in_the_past
@as_json
@on_log
def apps(source: Source, *, wanted: Wanted, columns: Columns, as_json: bool) -> None:
    """List the apps that have not ended, or all apps.

    REASON is the cause for which an app waits, as `fairlog explain` tells it at length, and WAIT how long it waits, or
    has waited until it was admitted.

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
            name not in {"executors", "driver", "excludedWorkers"}
            and value is not False
            and value not in (None, "", [])
        ):
            label = re.sub("[A-Z]", lambda capital: f" {capital[0].lower()}", name)
            click.echo(f"{label:<18} {_in_words(name, value)}")
    if found["driver"] is not None:
        where, size = found["driver"], size_text(found["driver"]["memory"])
        click.echo(f"{'driver':<18} {where['driver']} on {where['worker']}, {where['cores']} cores, {size}")
    notes = [("link", f"{name}: {address}") for name, address in links.items()]
    notes += [("excluded", localized(exclusion_in_words(each))) for each in found["excludedWorkers"]]
    for label, text in notes:
        click.echo(f"{label:<18} {text}")
    click.echo()
    columns, none = "executor worker cores memory resources status locality", "It has no executor now."
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


def send_each(
    session: Session, names: Sequence[str], command: Callable[[str], Command], done: str, *, nothing: str = ""
) -> int:
    """Send a command for each name, in batches, and print its result: `done`, or `nothing` if it changed nothing.

    Without `nothing`, that is told apart no further. Returns 1 if any was refused, else 0.
    """
    code = 0
    for start in range(0, len(names), BATCH):
        part = names[start : start + BATCH]
        for name, outcome in zip(part, session.send_many([command(name) for name in part]), strict=True):
            if isinstance(outcome, CommandRejected):
                render.say(f"Error: {outcome}")
                code = 1
            else:
                click.echo(f"{name} {done if outcome.seq or not nothing else nothing}")
    return code


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
