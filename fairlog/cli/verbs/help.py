"""The verb help, which people type who know it from elsewhere."""

from __future__ import annotations

import click

from fairlog.cli.groups import VerbGroup
from fairlog.cli.params import read_text


@click.command("help")
@click.argument("verb", nargs=-1, type=read_text)
@click.pass_context
def help_(ctx: click.Context, *, verb: tuple[str, ...]) -> None:
    """Print the help of fairlog or of a verb.

    `fairlog help company add` prints what `fairlog company add --help` does.
    """
    shown = ctx.find_root()
    for name in verb:
        group = shown.command
        if not isinstance(group, VerbGroup):
            raise click.UsageError(f"`{shown.command_path}` has no verbs of its own; leave out {name[:40]!r}", shown)
        _, command, _ = group.resolve_command(shown, [name])
        if command is not None:
            shown = click.Context(command, info_name=name, parent=shown, **command.context_settings)
    click.echo(shown.get_help())
