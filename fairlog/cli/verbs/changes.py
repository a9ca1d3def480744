"""The verbs that change apps which were submitted: kill, requeue, scale, extend and others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import click

from fairlog.cli import render
from fairlog.cli.choice import Choice, app_argument, chosen_apps, full_id, known_ids, picked
from fairlog.cli.completion import complete
from fairlog.cli.decorators import on_cluster
from fairlog.cli.params import (
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
from fairlog.cli.sending import send_each
from scheduler.model.arrays import position_of
from scheduler.model.commands import (
    CancelTask,
    ExtendApp,
    FinishApp,
    HoldApp,
    KillApp,
    KillExecutors,
    ReleaseApp,
    ReprioritizeApp,
    RequeueApp,
    ScaleApp,
    SignalApp,
)
from scheduler.model.errors import UnknownApp, UnknownExecutor
from scheduler.model.ids import app_of
from scheduler.model.text import few

if TYPE_CHECKING:
    from fairlog.cli.session import Session
    from scheduler.store.task_states import TaskState


@click.command()
@flag("--executor", help="Kill executors, named by id. Their apps continue and get replacements.")
@range_option(
    "--task", 0, metavar="I", help="Cancel only this task of the app, counted from 0, or by its --array index."
)
@text_option("--reason", default="", metavar="TEXT", help="Why; an operator states it where there are accounts.")
@chosen_apps()
@on_cluster
def kill(session: Session, *, chosen: Choice, executor: bool, task: int | None, reason: str) -> int:
    """Kill apps, single executors, or a task.

    The resources of a killed app or executor are free once its worker confirms that it has stopped.

    With --task, the others of the app go on. It fails at their end, because a task was cancelled; an app whose tasks
    are all cancelled is killed.

    Apps that are chosen by a filter are shown first, and killed after a yes or with --yes.
    """
    if task is not None:
        return _cancel(session, chosen, task, reason, executor=executor)
    if executor:
        if not chosen.names:
            raise click.UsageError("name the executors; --executor takes no filters")
        if unknown := next((name for name in chosen.names if not app_of(name)), None):
            raise UnknownExecutor(unknown)
        known_ids(session, [app_of(name) for name in chosen.names])
        return send_each(
            session,
            chosen.names,
            lambda name: KillExecutors(app=app_of(name), executors=(name,)),
            "will stop",
            nothing="is not a running executor",
        )
    names = picked(session, chosen, "kill")
    return send_each(session, names, lambda name: KillApp(app=name, reason=reason), "killed")


def _cancel(session: Session, chosen: Choice, task: int, reason: str, *, executor: bool) -> int:
    """Cancel a task of one app. Raises: click.UsageError; click.ClickException if it has ended."""
    if executor:
        raise click.UsageError("--task and --executor cannot be combined; give one of them")
    app, position, _ = _running_task(session, chosen, "kill", task)
    done = f"goes on without task {task}"
    return send_each(session, [app], lambda name: CancelTask(app=name, task=position, reason=reason), done)


def _running_task(session: Session, chosen: Choice, verb: str, task: int) -> tuple[str, int, TaskState]:
    """The one app that is named, which of its tasks has that index, and the state of that.

    Raises: click.UsageError, ClickException if it has ended.
    """
    from fairlog.cli.outputs import shown_tasks  # noqa: PLC0415 (loads RQ, which most verbs do without)
    from scheduler.store.task_states import TaskState  # noqa: PLC0415 (likewise)

    if len(chosen.names) != 1:
        raise click.UsageError("--task is a task of one app; name that app, and nothing else")
    (app,) = picked(session, chosen, verb)
    position = _position(session, app, task)
    known = shown_tasks(session).states(app)[position : position + 1]
    state = known[0] if known else TaskState(position)
    if state.state not in {"queued", "running"}:
        raise click.ClickException(f"task {task} of app {app!r} has ended: it is {state.state}")
    return app, position, state


def _position(session: Session, app: str, task: int) -> int:
    """The task of that index among those of the app, from 0. Raises: click.ClickException if it has no such task."""
    found = session.ask("app", app=app)
    array, number = found.get("array"), found["tasks"]
    position = position_of(array, task, number)
    if position is None:
        known = array or (f"0 to {number - 1}" if number else "none")
        raise click.ClickException(f"app {app!r} has no task {task}; its tasks are {known}")
    return position


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
        task = _position(session, app, task)

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

    return send_each(session, known_ids(session, apps), command, "scaled")


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
    names = known_ids(session, app)
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
@range_option("--task", 0, metavar="I", help="Stop the task of that index alone, and begin it again.")
@text_option("--reason", default="", metavar="TEXT", help="Why; an operator states it where there are accounts.")
@chosen_apps()
@on_cluster
def requeue(session: Session, *, chosen: Choice, task: int | None, reason: str) -> int:
    """Put apps back into their queue, under their own id.

    What runs of an app is stopped as by `fairlog kill`. Once that is gone, the app is in its user's queue as if it had
    been submitted then, and its maximum runtime counts anew. Tasks that have succeeded or were cancelled do not run
    again; FAIRLOG_ATTEMPT tells the others how often they have begun. With --task, one task of an app is stopped and
    begins again, while the others go on. An app that was submitted with --no-requeue, is
    pending or has ended is refused; `fairlog resubmit` submits one again.

    Apps that are chosen by a filter are shown first, and put back after a yes or with --yes.
    """
    if task is not None:
        app, position, state = _running_task(session, chosen, "requeue", task)
        if state.executor is None or state.state != "running":
            raise click.ClickException(f"task {task} of app {app!r} waits in its queue already")
        command = RequeueApp(app=app, reason=reason, task=position, executor=state.executor)
        return send_each(session, [app], lambda _: command, f"begins task {task} again")
    names = picked(session, _only(chosen, "waiting", "running"), "requeue")
    return send_each(session, names, lambda name: RequeueApp(app=name, reason=reason), "is put back into its queue")


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

    Without --beyond-maximum, at most as long as the setting max_max_runtime_s or the company's own maximum allows. No
    extension keeps an app on a worker past the beginning of a window: it says what leaves before, and when.
    """
    names = known_ids(session, app)
    code = send_each(
        session, names, lambda name: ExtendApp(app=name, by_s=by_s, beyond_maximum=beyond_maximum), "extended"
    )
    for said in ending_before(session, names):
        render.say(said)
    return code


def ending_before(session: Session, names: Sequence[str]) -> Iterator[str]:
    """What of these apps leaves before their time is over, because a window begins on its worker (semantics W14)."""
    if not session.ask("windows"):
        return
    for name in names:
        try:
            shown = session.ask("app", app=name)
        except UnknownApp:
            continue
        parts = [*shown["executors"], *([shown["driver"]] if shown["driver"] else [])]
        early = [
            each
            for each in parts
            if each.get("leavesBefore") and shown["expiresAt"] and each["deadline"] < shown["expiresAt"]
        ]
        if early:
            first = min(early, key=lambda each: (each["deadline"], each["worker"]))
            yield (
                f"Note: what runs of {name} on worker {few(sorted({each['worker'] for each in early}), 3)} leaves "
                f"sooner, by {render.second(first['deadline'])}, before the window {first['leavesBefore']} begins"
            )
