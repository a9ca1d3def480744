"""The verbs about apps: submit, kill, scale, reprioritize, hold, release, apps, app, logs."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import click

from fairlog.cli import render
from fairlog.cli.decorators import on_cluster, on_log
from fairlog.cli.follow import appended, patiently
from fairlog.cli.params import (
    as_json,
    file_option,
    flag,
    kinds_option,
    merge_counts,
    names_argument,
    number_option,
    range_option,
    read_bounds,
    read_cores,
    read_counts,
    read_dependency,
    read_duration,
    read_folder,
    read_limit,
    read_pair,
    read_share,
    read_signal,
    read_text,
    read_warning,
    read_words,
    size_option,
    text_option,
)
from fairlog.cli.target import in_the_past
from scheduler.model.commands import (
    Command,
    ExtendApp,
    FinishApp,
    HoldApp,
    KillApp,
    KillExecutors,
    ReleaseApp,
    ReprioritizeApp,
    ScaleApp,
    SubmitApp,
)
from scheduler.model.errors import CommandRejected, UnknownExecutor
from scheduler.model.events import Condition
from scheduler.model.ids import app_of
from scheduler.model.resources import size_text
from scheduler.model.text import printable
from scheduler.rules.permission import Subject
from scheduler.rules.validate import MAX_NAME
from scheduler.service.receipts import write_receipts
from witness.failing import exclusion_in_words

if TYPE_CHECKING:
    from fairlog.cli.outputs import RemoteTasks
    from fairlog.cli.session import Session
    from fairlog.cli.sources import Source
    from scheduler.store.task_queue import TaskState, Worklist

_OVER = ("succeeded", "failed", "stopped")


@click.command(context_settings={"allow_interspersed_args": False})
@text_option("--company", metavar="C", help="Company that the app belongs to.  [default: that of the account]")
@text_option(
    "--user",
    metavar="U",
    help="User who submits. Each user of a company has one queue.  [default: the account that is logged in]",
)
@number_option(
    "--cores",
    type=read_cores,
    help='Cores to hold at once, or "unlimited" if the setting admission is open.  [default: what the tasks need, at '
    "most the setting default_cores]",
)
@number_option(
    "--cores-per-task", help="Cores that each task needs.  [default: 1; with a single task, all that --cores gives]"
)
@size_option(
    "--memory-per-task",
    "memory_per_task_mb",
    help="Memory per task: 512M, 2G or plain MiB.  [default: the scheduler chooses]",
)
@number_option(
    "--tasks",
    help="How many times to run CMD, in parallel where possible.  [default: 1; none beside a driver]",
)
@text_option("--name", metavar="S", help="Display name of the app.  [default: the command's name]")
@click.option(
    "--kind",
    type=click.Choice(["batch", "sql"]),
    default="batch",
    show_default=True,
    help="Kind of app. With the setting app_policy=sql-first, sql apps go first.",
)
@number_option("--retries", default=0, show_default=True, help="Number of retries for a failed task.")
@click.option(
    "--time-limit", "time_limit_s", type=read_duration, metavar="TIME", help="Time limit for each task: 90s, 10m or 2h."
)
@click.option(
    "--max-runtime",
    "max_runtime_s",
    type=read_duration,
    metavar="TIME",
    help="How long the app may run in all. Then it is stopped.  [default: the company's, or the setting "
    "default_max_runtime_s]",
)
@click.option(
    "--warn",
    type=read_warning,
    metavar="SIGNAL@TIME",
    help="Send the tasks a signal so long before --max-runtime is reached: USR1@60s.",
)
@click.option(
    "--reclaim-signal",
    type=read_signal,
    metavar="SIGNAL",
    help="Send the tasks a signal when their executor is told to leave for an app of another company: USR1. The file "
    "named by FAIRLOG_STOP_AT_FILE then holds the deadline.",
)
@click.option(
    "--sizing",
    type=click.Choice(["computed", "fixed", "one-per-worker"]),
    help="How executors are sized.  [default: fixed with --executor-cores, one-per-worker with --executor-memory "
    "alone, else computed]",
)
@number_option("--executor-cores", help="Cores of each executor, for executors of fixed size.")
@size_option(
    "--executor-memory",
    "executor_memory_mb",
    help="Memory of each executor, unless the scheduler sizes them.  [default: 1G]",
)
@number_option(
    "--max-executors",
    "--executors",
    "executor_limit",
    help="Maximum number of executors at once; with --executor-program, their number. `fairlog scale` changes it.",
)
@flag(
    "--executor-program",
    help="Run CMD once in each executor, with all its cores and memory, in a folder of the executor's own.",
)
@click.option(
    "--executor-command",
    type=read_words,
    metavar="CMD",
    help="What executors run with --executor-program and --driver, where CMD is the driver; quoted as for a shell.",
)
@click.option(
    "--grace",
    "grace_s",
    type=read_duration,
    metavar="TIME",
    help="Time between SIGTERM and SIGKILL when the app's programs are told to stop: 90s.  [default: the worker's, 5s]",
)
@click.option(
    "--owner-timeout",
    "owner_timeout_s",
    type=read_duration,
    metavar="TIME",
    help="Fail the app when its owner has given no sign of life for so long. For programs that own an app.",
)
@kinds_option(
    "--executor-resource",
    "executor_resources",
    metavar="KIND=N",
    help="Resources of a kind that each executor has, such as gpu=2, for executors that the app sizes. Repeatable.",
)
@kinds_option(
    "--task-resource",
    "task_resources",
    read_share,
    metavar="KIND=AMOUNT",
    help="Resources of a kind that each task needs, such as gpu=1 or gpu=1/4, unless the app sizes its executors. "
    "Repeatable.",
)
@flag("--driver", help="Run CMD once, on a worker, as the app's driver. The app ends with its driver.")
@number_option("--driver-cores", help="Cores of the driver.  [default: 1]")
@size_option("--driver-memory", "driver_memory_mb", help="Memory of the driver.  [default: 1G]")
@kinds_option(
    "--driver-resource", "driver_resources", metavar="KIND=N", help="Resources of a kind for the driver. Repeatable."
)
@flag("--supervise", help="Restart the driver when it fails or is lost.")
@click.option(
    "--env", type=read_pair, multiple=True, metavar="K=V", help="Environment variable for the tasks. Can be repeated."
)
@click.option(
    "--elastic",
    type=read_bounds,
    metavar="MIN:MAX",
    help="Adjust the number of executors to the remaining tasks, within these bounds.",
)
@number_option(
    "--priority",
    default=0,
    show_default=True,
    help="Place among the user's own apps, from -1000 to 1000; higher goes first. `fairlog reprioritize` changes it.",
)
@click.option(
    "--after",
    type=read_dependency,
    multiple=True,
    metavar="APP[:ok|any|not-ok]",
    help="Start after that app of the company has finished (ok, the default), ended (any), or ended otherwise than "
    "finished (not-ok). Can be repeated.",
)
@flag("--hold", help="Do not start the app before `fairlog release`.")
@flag("--wait", help="Wait until the app ends, and exit with its result.")
@file_option("--receipt", help="Append the master's signed receipt to this file, for `fairlog audit --receipts`.")
@click.argument("command", nargs=-1, required=True, type=read_text, metavar="[--] CMD [ARG]...")
@on_cluster
def submit(
    session: Session,
    /,
    *,
    wait: bool,
    receipt: Path | None,
    name: str | None,
    env: tuple[tuple[str, str], ...],
    after: tuple[tuple[str, Condition], ...],
    command: tuple[str, ...],
    **asked: Any,  # noqa: ANN401 (the other options are fields of `SubmitApp`)
) -> int:
    """Submit an app, which runs CMD one or more times.

    CMD runs in a folder of the same path as the current one, on the worker it is assigned to. The app's id is printed
    once the app is in the log; from then on no crash loses it. The values of --env are not written to the log.

    --cores 8 runs CMD once with eight cores; --tasks 20 --cores 8 runs it 20 times, eight at once with a core each.

    With --driver, CMD runs once as the driver, with FAIRLOG_DRIVER_ID set, and --tasks N adds N runs of CMD as tasks.

    With --executor-program, each of --executors N executors runs CMD once. One whose program exits with 0 is given back
    and not replaced; one that ends otherwise is. The app ends with the last one.

    With --after, the app stays pending until its conditions are met. If one cannot be met any more, the app ends as
    unmet, and so do the apps that wait for it to finish.
    """
    if name == "":
        raise click.BadParameter("a name must not be empty", param_hint="--name")
    app, secrets = f"app-{uuid4().hex[:12]}", dict(env)
    name = _name_of(command[0]) if name is None else name
    if asked["tasks"] is None and not asked["driver"] and not asked["executor_program"]:
        asked["tasks"] = 1
    conditions: dict[Condition, tuple[str, ...]] = {}
    for earlier, condition in after:
        conditions[condition] = (*conditions.get(condition, ()), earlier)
    asked |= {"env": tuple(sorted(secrets)), "after": conditions, "executor_command": asked["executor_command"] or ()}
    if receipt is not None:
        write_receipts(receipt, [])  # fails before anything is submitted
    asked |= _submitter(session, asked["company"], asked["user"])
    request = SubmitApp(app=app, name=name, command=command, cwd=read_folder(), **asked)
    answer = session.submit(request, secrets)
    click.echo(app)
    sys.stdout.flush()
    if receipt is not None and answer.signed is not None:
        write_receipts(receipt, [answer.signed])
    elif receipt is not None:
        render.say("note: there is no receipt, because the master has no key; see `fairlog keys --help`")
    if not wait:
        return 0
    from fairlog.cli.waiting import wait_for  # noqa: PLC0415 (who does not wait need not load RQ)

    return wait_for(session, app, answer.seq)


def _submitter(session: Session, company: str | None, user: str | None) -> dict[str, str]:
    """The company and the user, those of the account unless they are given. Raises: click.UsageError."""
    if company is None or user is None:
        account = session.account()
        if account.role not in ("user", "admin"):
            raise click.UsageError(f"give --company and --user: {account.account} belongs to no company")
        of, _, name = account.account.partition("/")
        company, user = company or of, user or name
    return {"company": company, "user": user}


@click.command()
@flag("--executor", help="Kill executors, named by id. Their apps continue and get replacements.")
@text_option("--reason", default="", metavar="TEXT", help="Why; an operator states it where there are accounts.")
@names_argument("app")
@on_cluster
def kill(session: Session, *, app: tuple[str, ...], executor: bool, reason: str) -> int:
    """Kill apps, or single executors.

    The resources of a killed app or executor are free once its worker confirms that it has stopped.
    """
    if executor:
        return send_each(session, app, _kill_executor, "will stop", nothing="is not a running executor")
    return send_each(session, app, lambda name: KillApp(app=name, reason=reason), "killed")


def _kill_executor(name: str) -> KillExecutors:
    if not app_of(name):
        raise UnknownExecutor(name)
    return KillExecutors(app=app_of(name), executors=(name,))


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
@names_argument("app")
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

    return send_each(session, apps, command, "scaled")


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
    return send_each(session, app, lambda name: FinishApp(app=name, outcome=outcome, detail=detail), outcome)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("app", type=read_text)
@click.argument("priority", type=int, metavar="N")
@on_cluster
def reprioritize(session: Session, *, app: str, priority: int) -> int:
    """Change an app's priority among its user's apps.

    N is a whole number from -1000 to 1000. A step of priority is worth as much waiting time as the setting
    priority_step_s says. Apps of other users are not affected.
    """
    return send_each(
        session, [app], lambda name: ReprioritizeApp(app=name, priority=priority), f"has priority {priority}"
    )


@click.command()
@names_argument("app")
@on_cluster
def hold(session: Session, *, app: tuple[str, ...]) -> int:
    """Keep pending apps from starting until they are released."""
    return send_each(session, app, lambda name: HoldApp(app=name), "is on hold")


@click.command()
@names_argument("app")
@on_cluster
def release(session: Session, *, app: tuple[str, ...]) -> int:
    """Let apps on hold start."""
    return send_each(session, app, lambda name: ReleaseApp(app=name), "released", nothing="is not on hold")


@click.command()
@click.option("--by", "by_s", required=True, type=read_duration, metavar="TIME", help="How much longer: 30m or 2h.")
@flag("--beyond-maximum", help="For operators: also beyond the company's maximum.")
@names_argument("app")
@on_cluster
def extend(session: Session, *, app: tuple[str, ...], by_s: int, beyond_maximum: bool) -> int:
    """Let apps run longer than their maximum runtime.

    Without --beyond-maximum, at most as long as the setting max_max_runtime_s or the company's own maximum allows.
    """
    return send_each(
        session, app, lambda name: ExtendApp(app=name, by_s=by_s, beyond_maximum=beyond_maximum), "extended"
    )


@click.command()
@flag("--all", "everything", help="Include ended apps, as many as the setting retained_apps keeps.")
@in_the_past
@as_json
@on_log
def apps(source: Source, *, everything: bool, as_json: bool) -> None:
    """List the apps that have not ended, or all apps."""
    found = source.ask("apps", everything=everything)
    if as_json:
        render.print_json(found)
        return
    rows = []
    for each in found:
        cores = f"{each['grantedCores']} of {each['requestedCores']}"
        memory = f"{size_text(each['grantedMemory'])} of {size_text(each['requestedMemory'])}"
        who = (each[name] for name in ("app", "company", "user", "name"))
        state = each["state"] if each["ready"] or each["endedAt"] else "not ready"
        rows.append((*who, state, cores, memory, render.second(each["submittedAt"])))
    render.print_table(
        ("APP", "COMPANY", "USER", "NAME", "STATE", "CORES", "MEMORY", "SUBMITTED"),
        rows,
        empty="No app is known." if everything else "No app is pending, waiting or running.",
    )


@click.command()
@click.argument("app", type=read_text)
@in_the_past
@as_json
@on_log
def app(source: Source, *, app: str, as_json: bool) -> None:
    """Show one app with its executors and tasks.

    With --at or FILE, tasks are not shown, because the log does not record the state of single tasks.
    """
    found = source.ask("app", app=app)
    tasks = [] if source.past else _tasks(source.session).states(app)
    if as_json:
        render.print_json({**found, "taskStates": [_task_json(task) for task in tasks]})
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
    for exclusion in found["excludedWorkers"]:
        click.echo(f"{'excluded':<18} {exclusion_in_words(exclusion)}")
    click.echo()
    columns, none = "executor worker cores memory resources status locality", "It has no executor now."
    render.print_records(found["executors"], columns, empty=none, as_json=False)
    if source.past:
        return
    click.echo()
    rows = []
    for task in tasks:
        began, took = render.second(task.started_at), (task.ended_at or 0) - (task.started_at or 0)
        tried = (task.task, task.state, task.exit_code, task.attempts, task.executor, began)
        rows.append((*tried, render.duration(took if task.ended_at and task.started_at else None), task.message))
    headings = ("TASK", "STATE", "EXIT", "TRIES", "EXECUTOR", "STARTED", "TOOK", "MESSAGE")
    render.print_table(headings, rows, empty="None of its tasks has started yet.")


def _in_words(name: str, value: Any) -> str:  # noqa: ANN401 (JSON)
    if name.endswith("At"):
        return render.moment(value)
    if name == "ranMs":
        return render.duration(value)
    if name == "elastic":
        return ":".join(map(str, value))
    return f"{value} s" if name in ("timeLimit", "maxRuntime") else render.words(render.in_words(name, value))


@click.command()
@click.argument("app", type=read_text)
@range_option("--task", 0, metavar="I", help="Print the output of this task only, counted from 0.")
@range_option("--executor", 0, metavar="N", help="Print the output of the program of this executor, counted from 0.")
@flag("--driver", help="Print the output of the driver instead.")
@flag("--follow", "following", help="Keep printing new output until the app ends.")
@flag("--raw", help="Print the bytes as they are, escape sequences and control characters included.")
@text_option("--reason", default="", metavar="TEXT", help="Why; an operator states it where there are accounts.")
@on_cluster
def logs(
    session: Session,
    *,
    app: str,
    task: int | None,
    executor: int | None,
    driver: bool,
    following: bool,
    raw: bool,
    reason: str,
) -> None:
    """Print the output of an app's tasks, or of the programs of its executors.

    Prints the last 64 KiB of each task, or less of an app of more than 1,024 tasks, task by task. The workers keep the
    complete output in files. Without --raw, also to a file or another program, the output is UTF-8 text without what
    would control a terminal.
    """
    write = _write if raw else _printed()
    if driver + (task is not None) + (executor is not None) > 1:
        raise click.UsageError("--driver, --task and --executor cannot be combined; give one of them")
    found = session.ask("app", app=app)
    if found["executorProgram"] and not driver:
        task, known = _program(found, task, executor), found["executorsGranted"]
    elif executor is not None:
        raise click.ClickException(f"the executors of app {app!r} run tasks; give --task instead of --executor")
    else:
        known = found["tasks"]
    if driver and not found["hasDriver"]:
        raise click.ClickException(f"app {app!r} has no driver; leave out --driver to see its tasks")
    if task is not None and executor is None and task >= known:
        raise click.ClickException(f"app {app!r} has no task {task}; its tasks are 0 to {found['tasks'] - 1}")
    session.record_output(app, Subject(found["company"], found["user"]), reason)
    work = _tasks(session, reason)
    outputs: dict[int | None, Callable[[], bytes]] = {None: partial(work.driver_output, app)}
    if not driver:
        outputs = {index: partial(work.output, app, index) for index in range(known) if task in {None, index}}
    if following:
        _follow_output(session, work, app, outputs, write=write, tasks=found["tasks"])
        return
    before = b""
    for read in outputs.values():
        output = read()
        if output:
            write(b"\n" + output if before and not before.endswith(b"\n") else output)
            before = output


def _program(found: Mapping[str, Any], task: int | None, executor: int | None) -> int | None:
    """The executor whose output is asked for, None for all. Raises: click.ClickException."""
    app, known = found["app"], found["executorsGranted"]
    if task is not None:
        raise click.ClickException(f"the executors of app {app!r} run a program and no tasks; give --executor N")
    if executor is not None and executor >= known:
        had = f"its executors are 0 to {known - 1}" if known else "it has had no executor yet"
        raise click.ClickException(f"app {app!r} has no executor {executor}; {had}")
    return executor


def send_each(
    session: Session, names: Sequence[str], command: Callable[[str], Command], done: str, *, nothing: str = ""
) -> int:
    """Send a command for each name and print its result: `done`, or `nothing` (if given) if it changed nothing.

    Returns 1 if any was refused, else 0.
    """
    code = 0
    for name in names:
        try:
            receipt = session.send(command(name))
            click.echo(f"{name} {done if receipt.seq or not nothing else nothing}")
        except CommandRejected as refusal:
            render.say(f"Error: {refusal}")
            code = 1
    return code


def _follow_output(
    session: Session,
    work: Worklist | RemoteTasks,
    app: str,
    outputs: Mapping[int | None, Callable[[], bytes]],
    *,
    write: Callable[[bytes], None],
    tasks: int,
) -> None:
    """Print each output as it is written until its task, or the app, has ended; the driver (None) ends with the app."""
    from fairlog.cli.outputs import looks  # noqa: PLC0415 (as in `_tasks`)
    from scheduler.store.task_queue import OUTPUT_BYTES, output_bytes  # noqa: PLC0415 (likewise)

    again = looks(session, app)
    ended = session.ask("app", app=app)["endedAt"] is not None
    for index, read in outputs.items():
        shown = b""
        while True:
            states = [] if ended or index is None else patiently(partial(work.states, app))
            over = ended or any(task.state in _OVER for task in states if task.task == index)
            output = patiently(read)
            write(appended(shown, output, kept=OUTPUT_BYTES if index is None else output_bytes(tasks)))
            shown = output
            if over:
                break
            ended = next(again)


def _tasks(session: Session, reason: str = "") -> Worklist | RemoteTasks:
    from fairlog.cli.outputs import tasks_of  # noqa: PLC0415 (loads RQ, which most verbs do without)

    return tasks_of(session, reason)


def _name_of(program: str) -> str:
    """The command's name without characters that the rules refuse in an app's name; may be empty."""
    name = "".join(character for character in PurePath(program).name if character.isprintable())
    return name[:MAX_NAME].strip()


def _task_json(task: TaskState) -> dict[str, object]:
    """The task, its fields in camel case."""
    return {re.sub("_(.)", lambda found: found[1].upper(), name): value for name, value in task._asdict().items()}


def _printed() -> Callable[[bytes], None]:
    """Writes output as printable text; a character may come in two parts."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return lambda output: _write(printable(decoder.decode(output)).encode())


def _write(output: bytes) -> None:
    sys.stdout.buffer.write(output)
    sys.stdout.buffer.flush()
