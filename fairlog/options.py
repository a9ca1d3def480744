"""What the verbs' options have in common: sizes, durations, pairs, and which cluster is meant."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import wraps
from math import isnan
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, cast

import click

from recovery.bounds import OPEN, Bound

if TYPE_CHECKING:
    from fairlog.session import Session
    from fairlog.sources import Source

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SIZE = re.compile(r"(-?\d{1,30}(?:\.\d{1,6})?)\s*(?:([MGT])(?:i?B)?)?", re.IGNORECASE | re.ASCII)
_UNIT_MB = {"": 1, "M": 1, "G": 1024, "T": 1024 * 1024}
_BOUNDS = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)
_DURATION = re.compile(r"(-?\d{1,30})\s*([smhd])?", re.IGNORECASE | re.ASCII)
_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass
class Place:
    """Which cluster the command line means, as far as it says so."""

    store: str | None = None
    cluster: str | None = None
    data: Path | None = None
    unsafe_store: bool = False
    archive: str = ""
    """Where the archived part of the log is, if not where the log says."""
    at: Bound | None = None
    """The log position, or the time, whose state is asked for; None = now."""


def read_size(text: str) -> int:
    """An amount of memory in MiB, written `512M`, `2G`, `1T` or as plain MiB.

    What is written well but makes no sense, such as a negative amount, is the rules' to refuse.

    Raises: click.BadParameter naming the right forms.
    """
    found = _SIZE.fullmatch(text.strip())
    amount = Fraction(found[1]) * _UNIT_MB[(found[2] or "").upper()] if found else Fraction(1, 2)
    if amount.denominator != 1:
        raise click.BadParameter(f"{_short(text)} is not a size in whole MiB: write it like 512M, 2G or 512")
    return int(amount)


def read_duration(text: str) -> int:
    """A time in seconds, written `90s`, `10m`, `2h`, `1d` or as plain seconds.

    Raises: click.BadParameter naming the right forms.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{_short(text)} is not a duration: write it like 90s, 10m or 2h")
    return int(found[1]) * _UNIT_S[(found[2] or "").lower()]


def read_cores(text: str) -> int | Literal["unlimited"]:
    """A number of cores, or "unlimited".

    Raises: click.BadParameter naming the right forms.
    """
    return "unlimited" if text == "unlimited" else _read_number(text, "unlimited")


class Seconds(click.FloatRange):
    """A number of seconds within bounds; not a number at all is beyond them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 (click's)
        """The number. Raises: click.BadParameter naming the bounds."""
        seconds: float = super().convert(value, param, ctx)
        if isnan(seconds):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return seconds


def read_limit(text: str) -> int | None:
    """A whole number, or None for "none".

    Raises: click.BadParameter naming the right forms.
    """
    return None if text == "none" else _read_number(text, "none")


def _read_number(text: str, otherwise: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f'{_short(text)} is neither a whole number nor "{otherwise}"') from None


def read_pair(text: str) -> tuple[str, str]:
    """A name and a value, which may be empty, written `NAME=VALUE`.

    Raises: click.BadParameter if there is no name or no `=`.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{_short(text)} is not of the form NAME=VALUE")
    return name, value


def read_counts(text: str) -> dict[str, int]:
    """How many tasks prefer which host, written `HOST=TASKS`, several of them separated by commas.

    Raises: click.BadParameter naming the right form, or the host that is named twice.
    """
    counts: list[dict[str, int]] = []
    for pair in text.split(","):
        host, _, tasks = pair.rpartition("=")
        if not host or not tasks.isascii() or not tasks.isdecimal():
            raise click.BadParameter(f"{_short(pair)} is not of the form HOST=TASKS")
        counts.append({read_text(host): int(tasks)})
    return merge_counts(counts)


def merge_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """All of the counts in one. Raises: click.BadParameter naming a host that is counted twice."""
    merged: dict[str, int] = {}
    for host, tasks in (pair for each in counts for pair in each.items()):
        if host in merged:
            raise click.BadParameter(f"the host {_short(host)} is named twice: once is enough, with all of its tasks")
        merged[host] = tasks
    return merged


def read_bounds(text: str) -> tuple[int, int]:
    """The least and the most of something, written `MIN:MAX`.

    Raises: click.BadParameter naming the right form.
    """
    found = _BOUNDS.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{_short(text)} is not of the form MIN:MAX, such as 1:8")
    return int(found[1]), int(found[2])


def read_text(text: str) -> str:
    """The text. Raises: click.BadParameter if it is not Unicode: the log holds nothing else."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{_short(text)} is not valid UTF-8") from None
    return text


def place_options(*, from_environment: bool = False) -> Callable[[F], F]:
    """The options that say which cluster is meant; with `from_environment` their variables are read as well.

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
        "Accept a store whose settings break the promises; for tests only.",
    ),
    (
        ("--data",),
        "FAIRLOG_DATA",
        {"type": click.Path(file_okay=False, path_type=Path), "metavar": "DIR"},
        "The data folder of the `up` that is meant; otherwise the one started last.",
    ),
    (
        ("--archive",),
        "FAIRLOG_ARCHIVE",
        {"metavar": "URL"},
        "Where the archived part of the log is, if it has moved since.",
    ),
    (
        ("--cluster",),
        "FAIRLOG_CLUSTER",
        {"metavar": "NAME"},
        'The cluster in the store; otherwise that of the `up`, or "default".',
    ),
    (
        ("--store",),
        "FAIRLOG_STORE",
        {"metavar": "URL"},
        "The store: redis://, rediss://, redis+sentinel:// or unix://PATH; otherwise that of a running `up`.",
    ),
]


EXPORT = click.File("rb")
"""A log in a file, as `fairlog log --json` writes it; - is stdin."""


def on_cluster(function: Callable[Concatenate[Session, P], R]) -> Callable[P, R]:
    """A verb that gets a `Session` with the cluster that the command line means as its first argument."""

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        from fairlog.session import Session  # noqa: PLC0415 (help and wrong usage need no store)

        ctx = click.get_current_context()
        session = Session(ctx.ensure_object(Place))
        ctx.call_on_close(session.close)
        return function(session, *args, **kwargs)

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__dict__.update(function.__dict__)
    return place_options()(run)


def read_bound(text: str) -> Bound:
    """A position of the log, or a time to the ms, which is in UTC unless it says otherwise.

    Raises: click.BadParameter naming the right forms.
    """
    if text.isascii() and text.isdecimal() and len(text) < 19 and int(text):
        return Bound(seq=int(text))
    try:
        found = datetime.fromisoformat("" if text.isdecimal() else text)
    except ValueError:
        raise click.BadParameter(
            f"{_short(text)} is neither a position of the log, from 1 on, nor a time like 2026-03-01T12:00:00"
        ) from None
    return Bound(at=((found if found.tzinfo else found.replace(tzinfo=UTC)) - EPOCH) // timedelta(milliseconds=1))


def span_options(function: Callable[P, R]) -> Callable[P, R]:
    """The verb gets `first` and `last`, the ends of a span of the log, which `--from` and `--to` say."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        first = cast("Bound", kwargs["first"] or OPEN)
        last = cast("Bound", kwargs["last"] or OPEN)
        if (last.seq and last.seq < (first.seq or 1)) or (first.at and last.at and last.at < first.at):
            raise click.UsageError(f"--to {last} comes before --from {first}")
        kwargs["first"], kwargs["last"] = first, last
        return function(*args, **kwargs)

    for name, variable, text in (
        ("--to", "last", "The last position or time of the span.  [default: the log's end]"),
        ("--from", "first", "The first position or time (UTC).  [default: 1]"),
    ):
        option = click.option(name, variable, type=read_bound, metavar="SEQ|TIME", help=text)
        run = option(run)
    return run


def on_log(function: Callable[Concatenate[Source, P], R]) -> Callable[P, R]:
    """A verb that gets the log that is meant as its first argument: its records, each checked as it is read.

    They are those of its argument FILE, as `fairlog log --json` writes them, or else of the cluster that the command
    line means; up to `--at` where the verb shows the past.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        from fairlog.sources import Source  # noqa: PLC0415 (help and wrong usage need no store)

        file = cast("IO[bytes] | None", kwargs.pop("file"))
        return function(Source(click.get_current_context(), file), *args, **kwargs)

    return click.argument("file", type=EXPORT, required=False)(place_options()(cast("Callable[P, R]", run)))


def in_the_past(function: F) -> F:
    """The verb shows the past where `--at` says so: its `Session` answers from the log up to there."""

    def remember(ctx: click.Context, _param: click.Parameter, value: Bound | None) -> None:
        ctx.ensure_object(Place).at = value

    return click.option(
        "--at",
        type=read_bound,
        metavar="SEQ|TIME",
        expose_value=False,
        callback=remember,
        help="Show what was so at this position of the log, or at this time (UTC).",
    )(function)


def as_json(function: F) -> F:
    """The verb gets `as_json`: whether `--json` was asked for."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def read_folder() -> str:
    """The current folder. Raises: click.ClickException if it was deleted."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise click.ClickException(f"the current folder {os.environ.get('PWD', '')} does not exist any more") from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
