"""The verb logs: the output of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fairlog.cli import render
from fairlog.cli.choice import Choice, Filter, chosen_apps, full_ids, matching
from fairlog.cli.decorators import on_cluster
from fairlog.cli.params import flag, range_option, read_time, text_option
from fairlog.cli.streams import Index, Printer, follow_output
from scheduler.model.arrays import position_of

if TYPE_CHECKING:
    from fairlog.cli.remote_tasks import RemoteTasks
    from fairlog.cli.session import Session
    from scheduler.store.tails import Stream
    from scheduler.store.task_queue import Worklist


@click.command()
@chosen_apps(asks=False)
@range_option(
    "--task", 0, metavar="I", help="Print the output of this task only, counted from 0, or by its index of --array."
)
@range_option("--executor", 0, metavar="N", help="Print the output of the program of this executor, counted from 0.")
@range_option(
    "--rank", 0, metavar="R", help="Print the output of the program of this rank of a gang, since the gang began last."
)
@flag("--driver", help="Print the output of the driver instead.")
@flag("--stdout", "out", help="Print only what was written to stdout.")
@flag("--stderr", "err", help="Print only what was written to stderr.")
@flag("--follow", "-f", "following", help="Keep printing new output of all tasks at once, until the app ends.")
@range_option("--tail", 0, help="Print at most the last N lines of each task.")
@click.option(
    "--since",
    type=read_time,
    metavar="TIME",
    help="Only tasks that have run since then: 09:30, yesterday or -2h.",
)
@click.option(
    "--prefix/--no-prefix",
    default=None,
    help="Print each line after the number of its task.  [default: on a terminal, if several tasks are followed]",
)
@flag("--raw", help="Print the bytes as they are, escape sequences and control characters included.")
@text_option("--reason", default="", metavar="TEXT", help="Why; an operator states it where there are accounts.")
@on_cluster
def logs(  # noqa: PLR0913 (the options)
    session: Session,
    *,
    chosen: Choice,
    task: int | None,
    executor: int | None,
    rank: int | None,
    driver: bool,
    out: bool,
    err: bool,
    following: bool,
    tail: int | None,
    since: int | None,
    prefix: bool | None,
    raw: bool,
    reason: str,
) -> None:
    """Print the output of apps' tasks, or of the programs of their executors.

    Prints the last 64 KiB of each task, or less of an app of more than 1,024 tasks, task by task; stderr says how much
    was written before that. The workers keep the complete output in files. Of a line that a program draws over and
    over, such as a progress bar, some drawings are kept and the last one. Without --raw, also to a file or another
    program, the output is UTF-8 text without what would control a terminal.

    What a task wrote to stdout and to stderr is printed in the order in which its worker saw it: of what was written to
    both within a moment, stdout comes first. A task that writes much to one of them keeps at least 32 KiB of the other.

    Of several apps, a line on stderr names each before its output.
    """
    if driver + len([each for each in (task, executor, rank) if each is not None]) > 1:
        raise click.UsageError("--driver, --task, --executor and --rank cannot be combined; give one of them")
    stream: Stream | None = None if out == err else "stdout" if out else "stderr"
    if raw and prefix:
        raise click.UsageError("--raw and --prefix cannot be combined; give one of them")
    names = full_ids(session, chosen.names)
    if chosen.filter != Filter():
        names = [each["app"] for each in matching(session, chosen)]
        if not names:
            render.say("no app matches; there is nothing to print")
    if following and len(names) > 1:
        raise click.UsageError(f"--follow follows one app, and {len(names)} are chosen")
    for name in names:
        if len(names) > 1:
            render.say(f"==> {name} <==")
        found = session.ask("app", app=name)
        program = executor if rank is None else _of_rank(found, rank)
        tasks = _chosen_tasks(found, task, program, driver=driver)
        session.record_output(name, found["company"], found["user"], reason)
        work = _tasks(session, reason, following=following)
        if since is not None and not driver:
            ran = {one.task for one in work.states(name) if one.started_at and (one.ended_at or since) >= since}
            tasks = [each for each in tasks if each in ran]
        printer = Printer.of(found.get("array"), tasks, raw=raw, prefix=prefix, mixed=following)
        if following:
            follow_output(session, work, name, tasks, printer, stream=stream, tail=tail)
        else:
            _print(work, name, tasks, printer, stream=stream, tail=tail)


def _print(
    work: Worklist | RemoteTasks,
    app: str,
    tasks: Sequence[Index],
    printer: Printer,
    *,
    stream: Stream | None,
    tail: int | None,
) -> None:
    numbers = [task for task in tasks if task is not None]
    outputs = work.tails(app, numbers) if numbers == list(tasks) else iter([work.tail(app, None)])
    for task, whole in zip(tasks, outputs, strict=True):
        if (output := whole.only(stream).lines(tail)).parts:
            printer.part()
            if tail is None:
                printer.tell_missing(task, whole.missing(stream=stream))
            printer.write(task, output)
            printer.end(task)


def _chosen_tasks(found: dict[str, Any], task: int | None, executor: int | None, *, driver: bool) -> list[Index]:
    """The tasks or programs to print. Raises: click.ClickException if the app does not have it."""
    app, number, array = found["app"], found["tasks"], found.get("array")
    if driver:
        if not found["hasDriver"]:
            raise click.ClickException(f"app {app!r} has no driver; leave out --driver to see its tasks")
        return [None]
    if found["executorProgram"]:
        return _chosen_programs(app, found["executorsGranted"], task, executor)
    if executor is not None:
        raise click.ClickException(f"the executors of app {app!r} run tasks; give --task instead of --executor")
    if task is None:
        return list(range(number))
    position = position_of(array, task, number)
    if position is None:
        known = array or (f"0 to {number - 1}" if number else "none")
        raise click.ClickException(f"app {app!r} has no task {task}; its tasks are {known}")
    return [position]


def _of_rank(found: dict[str, Any], rank: int) -> int:
    """The number of the executor that had the rank when the gang began last. Raises: click.ClickException.

    It is granted all of its executors in one turn, numbered in the order of their ranks (semantics G8).
    """
    app, granted = found["app"], found["executorsGranted"]
    if not found.get("gang"):
        raise click.ClickException(f"app {app!r} is no gang, so its programs have no ranks; give --executor N")
    size = found["cores"] // found["executorCores"]  # as it was submitted: programs that end are demanded no more
    if rank >= size:
        raise click.ClickException(f"app {app!r} has no rank {rank}; its ranks are 0 to {size - 1}")
    if not granted:
        raise click.ClickException(f"app {app!r} has not begun, so no rank of it has written anything yet")
    return int(granted - size + rank)


def _chosen_programs(app: str, granted: int, task: int | None, executor: int | None) -> list[Index]:
    if task is not None:
        raise click.ClickException(f"the executors of app {app!r} run a program and no tasks; give --executor N")
    if executor is None:
        return list(range(granted))
    if executor >= granted:
        had = f"its executors are 0 to {granted - 1}" if granted else "it has had no executor yet"
        raise click.ClickException(f"app {app!r} has no executor {executor}; {had}")
    return [executor]


def _tasks(session: Session, reason: str, *, following: bool) -> Worklist | RemoteTasks:
    from fairlog.cli.outputs import shown_tasks  # noqa: PLC0415 (help needs none of it)

    return session.tasks(reason) if following else shown_tasks(session, reason)
