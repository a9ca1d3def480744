"""Commands that a verb sends one for each name, and what it prints of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlog.cli import render
from scheduler.model.errors import CommandRejected, FairlogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fairlog.cli.session import Session
    from scheduler.model.commands import Command


class NotListed(FairlogError):
    """One of several names is none of those that a verb could act on."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(
            f"{what} {name[:80]!r} is none of those that `fairlog {what} list` lists, so nothing was changed; "
            "leave it out, or write it as there"
        )


def check_listed(names: Sequence[str], what: str, listed: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
    """Raises: NotListed unless each of several names is listed: a verb changes all that are named or none.

    A single one is left to the master, who says what is wrong with it.
    """
    if len(names) > 1:
        known = {each[what] for each in listed()}
        for name in names:
            if name not in known:
                raise NotListed(what, name)


def send_each(
    session: Session,
    names: Sequence[str],
    command: Callable[[str], Command],
    done: str | Callable[[str], str],
    *,
    nothing: str = "",
) -> int:
    """Send a command for each name, in batches, and print its result: `done`, or `nothing` if it changed nothing.

    What is `done` may be found out for the name, once it is. A name that stands twice counts once.

    Without `nothing`, that is told apart no further. Returns 1 if any was refused, else 0. Who calls has found out that
    the names are good (`check_listed`), so that only what has changed since, or a rule, refuses one and not the others.
    """
    from scheduler.model.commands import BATCH  # noqa: PLC0415 (what only reads needs no commands)

    code, names = 0, list(dict.fromkeys(names))
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
