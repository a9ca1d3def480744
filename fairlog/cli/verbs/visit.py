"""The verb exec: a command in the cell of a running app's executor."""

from __future__ import annotations

import os
import select
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from fairlog.cli import render
from fairlog.cli.choice import app_argument, full_id
from fairlog.cli.decorators import on_cluster
from fairlog.cli.params import flag, range_option, text_option
from scheduler.model.arrays import position_of
from scheduler.model.text import printable
from scheduler.store.visits import CHUNK_BYTES, Call, Reply, Wanted

if TYPE_CHECKING:
    from fairlog.cli.session import Session

PAUSE_S = (0.02, 0.3)
"""The shortest and the longest pause between two questions for output."""
INTERRUPTED = 130


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
@text_option("--reason", default="", metavar="TEXT", help="Why; an operator states it where there are accounts.")
@on_cluster
def exec_(
    session: Session,
    *,
    app: str,
    command: tuple[str, ...],
    task: int | None,
    executor: int | None,
    driver: bool,
    tty: bool | None,
    reason: str,
) -> int:
    """Run a command beside the tasks of a running app, and exit with its code.

    CMD finds what a task of the app finds: its cell, folder, processes and environment, without an index. It gets this
    stdin, and its stdout and stderr come apart unless it has a terminal. It counts against the memory of its executor
    and ends with it, at the latest. Who may read an app's output and kill it may do this, which is recorded as a read
    is (`fairlog reads`).
    """
    if driver + (task is not None) + (executor is not None) > 1:
        raise click.UsageError("--driver, --task and --executor cannot be combined; give one of them")
    if tty and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("stdin and stdout are no terminals; leave out --tty")
    app = full_id(session, app)
    found = session.ask("app", app=app)
    place = _place(session, found, task, executor, driver=driver)
    terminal = sys.stdin.isatty() and sys.stdout.isatty() if tty is None else tty
    size = shutil.get_terminal_size() if terminal else None
    wanted = Wanted(
        command,
        place,
        term=os.environ.get("TERM", "") if terminal else "",
        rows=size.lines if size else 0,
        columns=size.columns if size else 0,
        reason=reason,
    )
    call = session.visit(app, wanted)
    with _raw() if terminal else nullcontext():
        return _carry(call, terminal=terminal)


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
    from fairlog.cli.outputs import tasks_of  # noqa: PLC0415 (loads RQ, which most verbs do without)

    position = position_of(found.get("array"), task, found["tasks"])
    states = tasks_of(session).states(app)
    if position is None or (states and position >= len(states)):
        raise click.ClickException(f"app {app!r} has no task {task}")
    if not states or states[position].state != "running":
        state = states[position].state if states else "queued"
        raise click.ClickException(f"task {task} of app {app!r} is {state}: a command runs beside a running task only")
    return str(states[position].executor)


def _carry(call: Callable[[Call], Reply], *, terminal: bool) -> int:
    """Carry input and output until the command has ended. Returns its exit code."""
    first = after = 0
    waiting: list[bytes] = []
    given, full = _stdin(), False
    pause_s = PAUSE_S[0]
    try:
        while True:
            ready, _, _ = select.select([] if given is None or full else [given], [], [], pause_s)
            if ready:
                chunk = os.read(ready[0], CHUNK_BYTES)
                if chunk:
                    waiting.append(chunk)
                else:
                    given = None
            size = shutil.get_terminal_size() if terminal else None
            rows, columns = (size.lines, size.columns) if size else (0, 0)
            reply = call(Call(first, tuple(waiting), after, ended=given is None, rows=rows, columns=columns))
            pause_s = PAUSE_S[0] if waiting or reply.chunks else min(PAUSE_S[1], pause_s * 1.3)
            first, waiting, full = first + len(waiting), [], reply.full
            after += len(reply.chunks)
            for chunk in reply.chunks:
                _write(chunk, terminal=terminal)
            if reply.error:
                render.say(f"Error: {reply.error}")
                return reply.exit_code or 1
            if reply.exit_code is not None:
                return reply.exit_code
    except KeyboardInterrupt:
        call(Call(leaves=True))
        return INTERRUPTED


def _stdin() -> int | None:
    """The descriptor of stdin, None if it is closed or no file."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def _write(chunk: bytes, *, terminal: bool) -> None:
    """Write output: as it is in raw mode or to a file; as printable text to a terminal."""
    stream = sys.stderr if chunk[:1] == b"2" else sys.stdout
    text = chunk[1:]
    if not terminal and stream.isatty():
        text = printable(text.decode(errors="replace")).encode()
    stream.buffer.write(text)
    stream.buffer.flush()


@contextmanager
def _raw() -> Iterator[None]:
    """Pass every key on, while it lasts."""
    import termios  # noqa: PLC0415 (not on every system)
    import tty  # noqa: PLC0415 (likewise)

    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
