"""Which cluster, and which moment of its log, the command line means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fairlog.cli.params import F, read_bound
from recovery.replay.bounds import Bound


@dataclass
class Place:
    """The cluster selected on the command line, as far as options name it."""

    store: str | None = None
    cluster: str | None = None
    data: Path | None = None
    unsafe_store: bool = False
    archive: str = ""
    """Where the archived part of the log is, if not where the log says."""
    at: Bound | None = None
    """The log position, or the time, whose state is asked for; None = now."""


def place_options(*, from_environment: bool = False) -> Callable[[F], F]:
    """Add the cluster options to a verb; with `from_environment` their variables are read as well.

    They can stand before the verb and behind it; the latter wins.
    """

    def remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
        place = ctx.ensure_object(Place)
        if value is not None and value is not False and param.name is not None:
            setattr(place, param.name, value)

    def add(function: F) -> F:
        for names, variable, settings, text in _PLACE:
            function = click.option(
                *names,
                envvar=variable if from_environment else None,
                show_envvar=from_environment,
                expose_value=False,
                callback=remember,
                help=text,
                **settings,
            )(function)
        return function

    return add


_PLACE: list[tuple[tuple[str, ...], str, dict[str, Any], str]] = [
    (
        ("--unsafe-store",),
        "FAIRLOG_UNSAFE_STORE",
        {"is_flag": True, "default": None},
        "Accept a store that can lose acknowledged commands. For tests only.",
    ),
    (
        ("--data",),
        "FAIRLOG_DATA",
        {"type": click.Path(file_okay=False, path_type=Path), "metavar": "DIR"},
        "Data folder of the `up` to use.  [default: the `up` started last]",
    ),
    (
        ("--archive",),
        "FAIRLOG_ARCHIVE",
        {"metavar": "URL"},
        "URL of the archive, if it has moved.",
    ),
    (
        ("--cluster",),
        "FAIRLOG_CLUSTER",
        {"metavar": "NAME"},
        'Name of the cluster in the store.  [default: that of the running `up`, or "default"]',
    ),
    (
        ("--store",),
        "FAIRLOG_STORE",
        {"metavar": "URL"},
        (
            "URL of the store: redis://, rediss://, redis+sentinel:// or unix://PATH.  [default: that of "
            "the running `up`]"
        ),
    ),
]


def in_the_past(function: F) -> F:
    """Add `--at` to a verb: its `Session` then answers from the log up to there."""

    def remember(ctx: click.Context, _param: click.Parameter, value: Bound | None) -> None:
        ctx.ensure_object(Place).at = value

    return click.option(
        "--at",
        type=read_bound,
        metavar="SEQ|TIME",
        expose_value=False,
        callback=remember,
        help="Show the state at this log position or time (UTC).",
    )(function)
