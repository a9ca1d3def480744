"""The verbs that copy or move the log: backup, restore, import, archive."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from fairlog.cli import render
from fairlog.cli.decorators import on_cluster
from fairlog.cli.params import EXPORT, as_json, flag, range_option, read_text
from fairlog.cli.stored_log import stored_log
from fairlog.cli.target import Target, target_options
from scheduler.model.sender import local
from scheduler.model.text import counted

if TYPE_CHECKING:
    from fairlog.cli.session import Session
    from recovery.archive.backup import Copied
    from recovery.archive.segment import Segment


@click.command()
@click.argument("url", type=read_text)
@flag("--whole", help="Copy archived entries too, so that restoring needs no archive.")
@as_json
@on_cluster
def backup(session: Session, *, url: str, whole: bool, as_json: bool) -> None:
    """Copy the log to a file while the cluster runs.

    The file contains every command acknowledged before the start of the backup, and the last snapshot. Archived
    entries stay in the archive, which a restore then needs. URL is a path, file:// or any location that fsspec
    supports, such as s3://. The file contains neither the values of --env nor the output of tasks.
    """
    from redis.exceptions import ResponseError  # noqa: PLC0415 (help needs none of it)

    from fairlog.watch.surroundings import BackedUp, note_backup  # noqa: PLC0415 (likewise)
    from recovery.archive.backup import backup as write  # noqa: PLC0415 (likewise)
    from scheduler.service.program_log import masked  # noqa: PLC0415 (likewise)

    elsewhere = session.target.archive
    copied = write(session.road.log, url, whole=whole, elsewhere=elsewhere, watched=render.counted)
    try:
        note_backup(session.road.store, session.road.keys, BackedUp(copied.header.seq, session.now_ms(), masked(url)))
    except ResponseError as error:
        render.say(f"note: the store does not take note of this backup, and metrics do not show it: {error}")
    _print_copied(copied, url, "backed up to", as_json=as_json)


def _read_source(text: str) -> str:
    """The URL or the file of a backup. Raises: click.BadParameter if there is no such file."""
    url = read_text(text)
    if "://" not in url and not Path(url).exists():
        raise click.BadParameter(f"{url!r}: No such file or directory")
    return url


@click.command()
@click.argument("url", type=_read_source)
@as_json
@target_options()
@click.pass_obj
def restore(target: Target, *, url: str, as_json: bool) -> None:
    """Restore a backup into a cluster that has no log.

    URL is the backup file. Restore before the first master starts. Without --store and a running `up`, the backup
    becomes the data of the next `up`: that of --data, else of the default folder. Every entry is verified and folded,
    archived entries included; --archive names an archive that has moved. Tasks of apps that had not ended run again.

    The restore is recorded in the log. Workers of the cluster that was backed up are gone until they register again.
    With a file of other keys than the log's, the restore names another masters' key.
    """
    from recovery.archive.backup import restore as read  # noqa: PLC0415 (help needs none of it)

    with stored_log(target) as (log, ring, data):
        of_archive = partial(render.counted, of="segments of the archive")
        by, elsewhere = local(os.getuid()), target.archive
        copied = read(log, url, by=by, ring=ring, elsewhere=elsewhere, watched=render.counted, counted=of_archive)
    more: dict[str, int | str] = {"withheld": copied.withheld, "key": copied.key, **_named(data)}
    _print_copied(copied, url, "restored from", as_json=as_json, more=more)
    _tell_key(copied.key)
    _warn_of_withheld(copied.withheld)


@click.command()
@range_option("--accept", 0, required=True, metavar="POSITION", help="Position at which the log ends.")
@as_json
@target_options()
@click.pass_obj
def recover(target: Target, *, accept: int, as_json: bool) -> None:
    """Go on with a log that is shorter than one that was known.

    After the store lost the end of its log, or all of it, masters and API servers that have known more refuse to
    serve. Restore a backup into an empty store, or accept what is left with this verb. POSITION is where the log ends,
    as `status` says; 0 is an empty log. The decision is recorded in the log. What was acknowledged behind POSITION is
    lost, and its receipts are broken.
    """
    from recovery.archive.accept import accept as go_on  # noqa: PLC0415 (help needs none of it)

    with stored_log(target, signs=False) as (log, _, data):
        found = go_on(log, accept, local(os.getuid()))
        cluster = log.keys.cluster
    if as_json:
        decided = {"cluster": cluster, "accepted": found.seq, "known": found.known.seq, "by": found.known.by}
        render.print_json({**decided, "at": found.at, **_named(data)})
        return
    where = f" in {data}" if data else ""
    click.echo(
        f"the log of the cluster {cluster}{where} goes on from position {found.seq}; the decision is at {found.at}"
    )
    click.echo(
        f"positions {found.seq + 1} to {found.known.seq} are lost, and receipts of them are broken"
        if found.known.seq > found.seq
        else f"receipts of what it does not hold, as {found.known.by} has known it, are broken"
    )


@click.command("import")
@click.argument("file", type=EXPORT, default="-")
@as_json
@target_options()
@click.pass_obj
def import_(target: Target, *, file: IO[bytes], as_json: bool) -> None:
    """Import an exported log into a cluster that has no log.

    FILE (stdin by default) is a complete log written by `fairlog log --json`. Every entry is verified and folded
    before any becomes visible, so an interrupted import changes nothing and can be repeated. Import before the first
    master starts. Without --store and a running `up`, the log becomes the data of the next `up`: that of --data, else
    of the default folder. Tasks of apps that had not ended run
    again.
    """
    if file.isatty():
        raise click.UsageError("name a FILE, or pipe a log to standard input")
    from fairlog.cli.exports import exported  # noqa: PLC0415 (help needs none of it)
    from recovery.archive.publish import Draft, left_behind  # noqa: PLC0415 (likewise)

    with stored_log(target) as (log, ring, data):
        if (reached := left_behind(log)) is not None:
            render.say(f"An earlier import stopped at position {reached}; this one starts from the beginning.")
        with Draft(log) as draft:
            draft.add(render.counted(exported(file)))
            end = draft.end
            draft.sign_on(local(os.getuid()), ring)
            draft.publish()
        cluster = log.keys.cluster
    if as_json:
        render.print_json({"cluster": cluster, **end._asdict(), "withheld": draft.withheld, **_named(data)})
    else:
        where = f" in {data}" if data else ""
        click.echo(f"{end.seq} log entries imported into the cluster {cluster}{where}, digest {end.digest}")
    _tell_key(draft.key)
    _warn_of_withheld(draft.withheld)


@click.command()
@click.argument("url", type=read_text, required=False)
@range_option(
    "--retain", 0, help="Number of events that stay in the store.  [default: the setting archive_retain_events]"
)
@flag("--list", "listing", help="List the archived segments, and change nothing.")
@flag("--check", "checking", help="Read and verify every archived entry, and change nothing.")
@as_json
@on_cluster
def archive(
    session: Session, *, url: str | None, retain: int | None, listing: bool, checking: bool, as_json: bool
) -> None:
    """Move old log entries from the store to compressed files.

    URL is a folder that masters and readers can reach: a path, file:// or any location that fsspec supports, such as
    s3://. It defaults to the setting archive_url. Each file is read back and compared before its entries leave the
    store. Verbs that read the log read both parts. Archiving can be interrupted at any time. All but
    the last 1,000 entries of the record of reads move as well.
    """
    if listing or checking:
        _print_archive(session, checking=checking, as_json=as_json)
        return
    from recovery.archive.archive import archive as move  # noqa: PLC0415 (help needs none of it)
    from recovery.archive.reads import archive_reads  # noqa: PLC0415 (likewise)

    settings = session.ask("settings")
    if url and "://" not in url:
        url = Path(url).absolute().as_uri()
    folder = url or session.target.archive or settings["archive_url"]
    kept = settings["archive_retain_events"] if retain is None else retain
    folded = lambda seq: render.progress(f"folded {counted(seq, 'entry')} for a snapshot")  # noqa: E731
    moved = list(move(session.road.log, folder, retain=kept, watched=render.counted, folded=folded))
    of_reads = list(archive_reads(session.road.store, session.road.keys, folder))
    if of_reads and not as_json:
        render.say(f"reads {of_reads[0].first} to {of_reads[-1].last} moved to {folder}")
    if as_json:
        render.print_json([_segment(each) for each in moved])
    elif moved:
        click.echo(
            f"entries {moved[0].first} to {moved[-1].last} moved to {folder}, in {counted(len(moved), 'segment')}"
        )
    else:
        head = session.road.log.head().seq
        click.echo(f"nothing to archive: the log has {counted(head, 'entry')}, and the last {kept} stay in the store")


def _print_archive(session: Session, *, checking: bool, as_json: bool) -> None:
    from recovery.archive.archive import listed  # noqa: PLC0415 (help needs none of it)
    from recovery.archive.reads import recorded  # noqa: PLC0415 (likewise)
    from recovery.archive.segment import check  # noqa: PLC0415 (likewise)

    road, elsewhere = session.road, session.target.archive
    segments = [segment.under(elsewhere) for segment in listed(road.store, road.keys)]
    for segment in render.counted(segments, of="segments") if checking else ():
        check(segment)
    for _ in recorded(road.store, road.keys, elsewhere=elsewhere) if checking else ():
        pass
    if as_json:
        render.print_json([_segment(each) for each in segments])
        return
    rows = [(each.first, each.last, each.digest, each.url) for each in segments]
    render.print_table(("FROM", "TO", "DIGEST", "SEGMENT"), rows, empty="Nothing is archived yet.")
    if checking and segments:
        click.echo(f"all {segments[-1].last} archived entries are present, and their chain of digests is intact")


def _segment(segment: Segment) -> dict[str, Any]:
    return {"from": segment.first, "to": segment.last, "digest": segment.digest, "segment": segment.url}


def _tell_key(key: str) -> None:
    """Say that another masters' key signs from here on."""
    if key:
        render.say(
            f"The log names {key} as the masters' key from here on. No key before has signed it: note it elsewhere."
        )


def _warn_of_withheld(withheld: int) -> None:
    """Say that apps of an imported or restored log cannot run."""
    if withheld:
        render.say(
            f"The commands of {counted(withheld, 'unfinished app')} are not in this public log. "
            f"Their tasks cannot run; "
            "`fairlog kill APP` ends an app."
        )


def _named(data: Path | None) -> dict[str, str]:
    """The data folder of an `up` that was written to, if it was one."""
    return {} if data is None else {"data": str(data)}


def _print_copied(
    copied: Copied, url: str, done: str, *, as_json: bool, more: Mapping[str, int | str] | None = None
) -> None:
    said = copied.as_json()
    if as_json:
        render.print_json({"url": url, **said, **(more or {})})
        return
    where = f" into {(more or {})['data']}" if "data" in (more or {}) else ""
    click.echo(f"{said['seq']} log entries of the cluster {said['cluster']} {done} {url}{where}")
    if said["archived"]:
        click.echo(f"the first {said['archived']} of them are in the archive, not in the file")
    click.echo(f"the last entry was written at {render.moment(copied.at)}; later commands are not included")
