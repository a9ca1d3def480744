"""The verb exec: a command in the cell of a running app's executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from fairlog.cli.choice import app_argument, full_id
from fairlog.cli.decorators import on_cluster
from fairlog.cli.params import flag, range_option, text_option
from fairlog.cli.visited import carry, is_terminal, wanted
from scheduler.model.arrays import position_of

if TYPE_CHECKING:
    from fairlog.cli.session import Session


@click.command("exec")
@app_argument
@click.argument("command", nargs=-1, required=True, metavar="-- CMD", type=click.UNPROCESSED)
@range_option(
    "--task", 0, metavar="I", help="In the executor that runs this task, counted from 0, or by its index of --array."
)
@range_option("--executor", 0, metavar="N", help="In this executor, counted from 0.  [default: the first that runs]")
@flag("--driver", help="In the driver's cell.")
@click.option(
    "--tty/--no-tty",
    "-t/-T",
    default=None,
    help="In a terminal of its own.  [default: if stdin and stdout are terminals]",
)
@click.option(
    "--stdin/--no-stdin",
    "-i/-I",
    default=None,
    help="Let CMD read this stdin.  [default: if that is a terminal, so that the input of a loop is left to the loop]",
)
@text_option("--reason", default="", metavar="TEXT", help="Why; an operator states it where there are accounts.")
@on_cluster
def exec_(  # noqa: PLR0913 (its options)
    session: Session,
    *,
    app: str,
    command: tuple[str, ...],
    task: int | None,
    executor: int | None,
    driver: bool,
    tty: bool | None,
    stdin: bool | None,
    reason: str,
) -> int:
    """Run a command beside the tasks of a running app, and exit with its code.

    CMD finds what a task of the app finds: its cell, folder, processes and environment, without an index. With --stdin
    it gets this stdin, and its stdout and stderr come apart unless it has a terminal. It counts against the memory of
    its executor and ends with it, at the latest. Who may read an app's output and kill it may do this, which is
    recorded as a read is (`fairlog reads`).
    """
    if driver + (task is not None) + (executor is not None) > 1:
        raise click.UsageError("--driver, --task and --executor cannot be combined; give one of them")
    terminal = is_terminal(asked=tty)
    app = full_id(session, app)
    found = session.ask("app", app=app)
    place = _place(session, found, task, executor, driver=driver)
    call = session.visit(app, wanted(command, place, terminal=terminal, reason=reason))
    return carry(call, terminal=terminal, stdin=stdin)


def _place(session: Session, found: Mapping[str, Any], task: int | None, executor: int | None, *, driver: bool) -> str:
    """The id of the executor or driver that is meant, "" = any. Raises: click.ClickException if there is none."""
    app = found["app"]
    if driver:
        if found["driver"] is None:
            raise click.ClickException(f"app {app!r} has no driver that runs; leave out --driver")
        return str(found["driver"]["driver"])
    if executor is not None:
        return f"{app}.{executor}"
    if task is None:
        return ""

    position = position_of(found.get("array"), task, found["tasks"])
    states = session.tasks().states(app)
    if position is None or (states and position >= len(states)):
        raise click.ClickException(f"app {app!r} has no task {task}")
    if not states or states[position].state != "running":
        state = states[position].state if states else "queued"
        raise click.ClickException(f"task {task} of app {app!r} is {state}: a command runs beside a running task only")
    return str(states[position].executor)
