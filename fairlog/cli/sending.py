"""Commands that a verb sends one for each name, and what it prints of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlog.cli import render
from scheduler.model.errors import CommandRejected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlog.cli.session import Session
    from scheduler.model.commands import Command


def send_each(
    session: Session,
    names: Sequence[str],
    command: Callable[[str], Command],
    done: str | Callable[[str], str],
    *,
    nothing: str = "",
) -> int:
    """Send a command for each name, in batches, and print its result: `done`, or `nothing` if it changed nothing.

    What is `done` may be found out for the name, once it is.

    Without `nothing`, that is told apart no further. Returns 1 if any was refused, else 0.
    """
    from scheduler.model.commands import BATCH  # noqa: PLC0415 (what only reads needs no commands)

    code = 0
    for start in range(0, len(names), BATCH):
        part = names[start : start + BATCH]
        for name, outcome in zip(part, session.send_many([command(name) for name in part]), strict=True):
            if isinstance(outcome, CommandRejected):
                render.say(str(outcome), error=True)
                code = 1
            else:
                said = done if isinstance(done, str) else done(name)
                click.echo(f"{name} {said if outcome.seq or not nothing else nothing}")
    return code
