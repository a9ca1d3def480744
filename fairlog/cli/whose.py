"""The options `--company` and `--user`, for which FAIRLOG_COMPANY and FAIRLOG_USER stand.

Verbs that change the cluster itself (`limit set`, `drain` and the like) have options of these names that are typed or
not given: a variable must not change whom they concern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from fairlog.cli.completion import complete
from fairlog.cli.params import P, R, text_option


def company_option(text: str, **more: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:  # noqa: ANN401 (click's)
    """The option that names a company, or the variable that does."""
    return text_option(
        "--company",
        metavar="C",
        envvar="FAIRLOG_COMPANY",
        show_envvar=True,
        shell_complete=complete("company"),
        help=text,
        **more,
    )


def user_option(text: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The option that names a user, or the variable that does."""
    return text_option("--user", metavar="U", envvar="FAIRLOG_USER", show_envvar=True, help=text)


def is_typed(name: str) -> bool:
    """Whether the option of that name was typed. What a variable says narrows a choice and makes none."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE
