"""The verb import: takes over a log that another cluster exported."""

from __future__ import annotations

from typing import IO

import click

from fairlog.cli import render
from fairlog.cli.params import EXPORT, as_json
from fairlog.cli.target import Target, target_options


@click.command("import")
@click.argument("file", type=EXPORT, default="-")
@as_json
@target_options()
@click.pass_obj
def import_(target: Target, *, file: IO[bytes], as_json: bool) -> None:
    """Import an exported log into a cluster that has no log.

    FILE (stdin by default) is a complete log written by `fairlog log --json`. Every entry is verified and folded
    before any becomes visible, so an interrupted import changes nothing and can be repeated. Import before the first
    master starts. Without --store, the log becomes the data of the next `up`. Tasks of apps that had not ended run
    again.
    """
    if file.isatty():
        raise click.UsageError("name a FILE, or pipe a log to standard input")
    from fairlog.cli.sources import exported  # noqa: PLC0415 (help needs none of it)
    from fairlog.cli.verbs.backup import empty_target  # noqa: PLC0415 (likewise)
    from recovery.archive.import_log import adopt, left_behind  # noqa: PLC0415 (likewise)

    with empty_target(target) as log:
        if (reached := left_behind(log)) is not None:
            render.say(f"An earlier import stopped at position {reached}; this one starts from the beginning.")
        end, withheld = adopt(log, render.counted(exported(file)))
        cluster = log.keys.cluster
    if as_json:
        render.print_json({"cluster": cluster, **end._asdict(), "withheld": withheld})
    else:
        click.echo(f"{end.seq} log entries imported into the cluster {cluster}, digest {end.digest}")
    if withheld:
        render.say(
            f"The commands of {withheld} apps that have not ended are not in this public log. Their tasks cannot run; "
            "`fairlog kill APP` ends an app."
        )
