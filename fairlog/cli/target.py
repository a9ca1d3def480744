"""The cluster and the moment that the command line names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource

from fairlog.cli.params import FOLDER, F, check_named, read_bound
from fairlog.cli.times import UTC_ASKED
from fairlog.credentials import two_places
from recovery.replay.bounds import Bound


@dataclass
class Target:
    """The cluster and the moment that the command line names; None where it names nothing."""

    store: str | None = None
    cluster: str | None = None
    data: Path | None = None
    unsafe_store: bool = False
    archive: str = ""
    """URL of the archive, if not the one in the log."""
    at: Bound | None = None
    """The log position or time whose state is asked for; None = now."""
    typed: set[str] = field(default_factory=set)
    """The options among these that were typed, and not taken from the environment."""

    def take(self, name: str, value: Any, *, typed: bool) -> None:  # noqa: ANN401 (of any option)
        """Remember what an option names. A place that is typed counts alone: what the environment names is forgotten.

        Raises: click.UsageError if both a store and a data folder are typed.
        """
        if typed:
            self.typed.add(name)
        if {"store", "data"} <= self.typed:
            raise click.UsageError("--store and --data name two places; give one of them")
        if not typed and any(name in _INSTEAD_OF[each] for each in self.typed & _INSTEAD_OF.keys()):
            return
        for other in _INSTEAD_OF.get(name, ()) if typed else ():
            if other not in self.typed:
                setattr(self, other, _NOTHING.get(other))
        setattr(self, name, value)

    @property
    def words(self) -> list[str]:
        """The options that were typed, for another command that is about the same cluster."""
        found: list[str] = []
        for name in sorted(self.typed & {"store", "cluster", "data", "archive"}):
            found += [f"--{name}", str(getattr(self, name))]
        return [*found, *(["--unsafe-store"] if "unsafe_store" in self.typed else [])]

    def check(self) -> None:
        """Raises: click.UsageError if nothing is typed, and the environment names a data folder and another place."""
        if not self.typed & {"store", "data"} and (why := two_places()):
            raise click.UsageError(f"{why}, or type --store or --data")


_INSTEAD_OF: dict[str, tuple[str, ...]] = {"store": ("data",), "data": ("store", "cluster", "archive")}
"""An option that names a place, and those whose variables are about another place where it is typed."""
_NOTHING: dict[str, Any] = {"archive": ""}
"""The value of an option that names nothing, if that is not None."""


def target_options(*, from_environment: bool = False) -> Callable[[F], F]:
    """Add the cluster options to a verb; with `from_environment`, their variables are read as well.

    They can stand before or after the verb; the later one wins. What is typed counts more than any variable; two places
    in the environment are refused once a verb runs.
    """

    def remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
        target = ctx.ensure_object(Target)
        if param.name == "utc":
            ctx.meta[UTC_ASKED] = ctx.meta.get(UTC_ASKED) or value
        elif value is not None and value is not False and param.name is not None:
            typed = ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
            if typed and isinstance(value, str):
                check_named(value)
            target.take(param.name, value, typed=typed)

    def add(function: F) -> F:
        for name, settings in _OPTIONS.items():
            variable = f"FAIRLOG_{name[2:].upper().replace('-', '_')}" if from_environment else None
            common: dict[str, Any] = {"envvar": variable, "show_envvar": from_environment, "callback": remember}
            function = click.option(name, expose_value=False, **common, **settings)(function)
        return function

    def checked(function: F) -> F:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (of any verb)
            ctx = click.get_current_context()
            is_api_typed = ctx.get_parameter_source("api") is ParameterSource.COMMANDLINE
            if not is_api_typed and not isinstance(ctx.command, click.Group):  # after a group, more may be typed
                ctx.ensure_object(Target).check()
            return function(*args, **kwargs)

        return add(cast("F", run))

    return add if from_environment else checked


_OPTIONS: dict[str, dict[str, Any]] = {
    "--utc": {
        "is_flag": True,
        "default": None,
        "is_eager": True,
        "help": "Print and read times in UTC.  [default: local time]",
    },
    "--unsafe-store": {
        "is_flag": True,
        "default": None,
        "help": "Accept a store that can lose acknowledged commands. For tests only.",
    },
    "--data": {
        "type": FOLDER,
        "metavar": "DIR",
        "help": "Data folder of the `up` to use.  [default: that of the running `up` started last, else the "
        "default one of `up`]",
    },
    "--archive": {"metavar": "URL", "help": "URL of the archive, if it has moved."},
    "--cluster": {
        "metavar": "NAME",
        "help": 'Name of the cluster in the store.  [default: that of the running `up`, or "default"]',
    },
    "--store": {
        "metavar": "URL",
        "help": "URL of the store: redis://, rediss://, redis+sentinel://, rediss+sentinel:// or unix://PATH.  "
        "[default: that of the running `up`]",
    },
}
"""In reverse order of the help."""


def in_the_past(function: F) -> F:
    """Add `--at` to a verb, which then answers from the log up to there."""

    def remember(ctx: click.Context, _param: click.Parameter, value: Bound | None) -> None:
        ctx.ensure_object(Target).at = value

    text = "Show the state at this log position or time."
    return click.option("--at", type=read_bound, metavar="SEQ|TIME", expose_value=False, callback=remember, help=text)(
        function
    )
