"""What verbs advise, which acts on the data folder that was typed."""

from __future__ import annotations

import click

from fairlog.cli.target import Target
from scheduler.service.advice import of_this_cluster


def advised(said: str) -> str:
    """The sentence, whose commands name the data folder that was typed, unless it is the default one."""
    ctx = click.get_current_context(silent=True)
    target = ctx.find_object(Target) if ctx is not None else None
    if target is not None and target.data is not None and "data" in target.typed:
        from fairlog.local.running import unless_default  # noqa: PLC0415 (who types no folder need not load it)

        return of_this_cluster(said, unless_default(target.data))
    return of_this_cluster(said)
