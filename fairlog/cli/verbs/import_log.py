"""The verb that takes in a log which another cluster has exported: import."""

from __future__ import annotations

from typing import IO

import click

from fairlog.cli import render
from fairlog.cli.params import EXPORT, as_json
from fairlog.cli.target import Place, place_options


@click.command("import")
@click.argument("file", type=EXPORT, default="-")
@as_json
@place_options()
@click.pass_obj
def import_(place: Place, *, file: IO[bytes], as_json: bool) -> None:
    """Import an exported log into a cluster that has no log.

    FILE (stdin by default) is a complete log written by `fairlog log --json`. Every entry is verified and folded
    before any becomes visible, so an interrupted import changes nothing and can be repeated. Import before the first
    master starts. Without --store, the log becomes the data of the next `up`. Tasks of apps that had not ended run
    again.
    """
    if file.isatty():
        raise click.UsageError("name a FILE, or pipe a log to standard input")
    from fairlog.cli.sources import exported  # noqa: PLC0415 (help needs none of it)
    from fairlog.cli.verbs.backup import empty_place, warn_of_withheld  # noqa: PLC0415 (likewise)
    from recovery.archive.publish import Draft, left_behind  # noqa: PLC0415 (likewise)

    with empty_place(place) as log:
        if (come := left_behind(log)) is not None:
            click.echo(
                f"An earlier import stopped at position {come}; this one starts again from the beginning.", err=True
            )
        with Draft(log) as draft:
            draft.add(render.counted(exported(file)))
            draft.publish()
        cluster, end = log.keys.cluster, draft.end
    if as_json:
        render.print_json({"cluster": cluster, **end._asdict(), "withheld": draft.withheld})
    else:
        click.echo(f"{end.seq} log entries imported into the cluster {cluster}, digest {end.digest}")
    warn_of_withheld(draft.withheld)
