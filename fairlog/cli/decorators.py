"""Decorators that give a verb its cluster or its log, opened when the verb runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import cleandoc
from typing import IO, TYPE_CHECKING, Concatenate, cast

import click

from fairlog.cli.params import EXPORT, P, R
from fairlog.cli.target import Target, target_options

if TYPE_CHECKING:
    from fairlog.cli.session import Session
    from fairlog.cli.sources import Source

_FILE = "With FILE (- is stdin), a log written by `fairlog log --json`, no store is needed."


def on_cluster(function: Callable[Concatenate[Session, P], R]) -> Callable[P, R]:
    """Pass a `Session` with the selected cluster to a verb as its first argument."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        from fairlog.cli.session import opened  # noqa: PLC0415 (help and wrong usage need no store)

        ctx = click.get_current_context()
        session = opened(ctx.ensure_object(Target))
        ctx.call_on_close(session.close)
        return function(session, *args, **kwargs)

    return target_options()(cast("Callable[P, R]", run))


def on_log(function: Callable[Concatenate[Source, P], R]) -> Callable[P, R]:
    """Pass the `Source` of the log to a verb as its first argument: its FILE, else the selected cluster's log."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        from fairlog.cli.sources import Source  # noqa: PLC0415 (help and wrong usage need no store)

        file = cast("IO[bytes] | None", kwargs.pop("file"))
        return function(Source(click.get_current_context(), file), *args, **kwargs)

    run.__doc__ = f"{cleandoc(function.__doc__ or '')}\n\n{_FILE}"
    return click.argument("file", type=EXPORT, required=False)(target_options()(cast("Callable[P, R]", run)))
