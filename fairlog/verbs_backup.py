"""The verbs that take a cluster out of its store and bring it back: backup, restore."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from fairlog import render, running
from fairlog.options import Place, as_json, on_cluster, place_options, read_text
from fairlog.running import default_data, find_running

if TYPE_CHECKING:
    from fairlog.session import Session
    from recovery.backup import Header
    from scheduler.eventlog import EventLog


@click.command()
@click.argument("url", type=read_text)
@as_json
@on_cluster
def backup(session: Session, *, url: str, as_json: bool) -> None:
    """Copy the log into a file, while the cluster runs.

    What was acknowledged before is in it. URL is a path or file://, and where fsspec is installed other places (s3://).
    Values of --env are not in it, nor what tasks have printed.
    """
    from recovery.backup import backup as write  # noqa: PLC0415 (help needs none of it)

    with _progress() as show:
        _print(write(session.log, url, show), url, "backed up to", as_json=as_json)


@click.command()
@click.argument("url", type=read_text)
@as_json
@place_options()
@click.pass_obj
def restore(place: Place, *, url: str, as_json: bool) -> None:
    """Make a backup the log of a cluster that has none.

    URL is the backup's file. No master may have been started yet. Without a --store it is the data of the next `up`.
    Every entry is checked. Tasks of apps that had not ended run again.
    """
    from recovery.backup import restore as read  # noqa: PLC0415 (help needs none of it)

    with empty_place(place) as log, _progress() as show:
        _print(read(log, url, show), url, "restored from", as_json=as_json)


@contextmanager
def empty_place(place: Place) -> Iterator[EventLog]:
    """The log of the cluster that is meant; that of an `up` which does not run is reached by a store of our own."""
    from fairlog.session import Session  # noqa: PLC0415 (help needs none of it)
    from fairlog.store import EmbeddedStore  # noqa: PLC0415 (likewise)
    from scheduler.eventlog import EventLog, check_store, connect  # noqa: PLC0415 (likewise)
    from scheduler.keys import Keys  # noqa: PLC0415 (likewise)

    if place.store is not None or find_running(place.data) is not None:
        with closing(Session(place)) as session:
            check_store(session.store, unsafe=place.unsafe_store)
            yield session.log
        return
    data = place.data or default_data()
    lock = running.lock(data)
    try:
        with EmbeddedStore(data / "store") as store, connect(store.url) as connection:
            yield EventLog(connection, Keys(place.cluster or "default"))
    finally:
        os.close(lock)


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """What shows a position where a terminal is, and nothing elsewhere."""
    shown = sys.stderr.isatty()
    yield lambda seq: click.echo(f"\r{seq:,} entries", nl=False, err=True) if shown else None
    if shown:
        click.echo("\r", nl=False, err=True)


def _print(header: Header, url: str, done: str, *, as_json: bool) -> None:
    if as_json:
        render.print_json({"url": url, **header._asdict()})
    else:
        click.echo(f"{header.seq} log entries of the cluster {header.cluster} {done} {url}")
