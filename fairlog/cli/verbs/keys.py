"""The verb `keys`: files of keys, which sign messages, receipts and seals."""

from __future__ import annotations

from pathlib import Path

import click

from fairlog.cli.groups import VerbGroup
from fairlog.cli.params import FILE
from scheduler.service.keyring import Keyring


@click.group(cls=VerbGroup)
def keys() -> None:
    """Make files of keys, which sign messages, receipts and seals.

    FAIRLOG_KEYS names the file to masters, workers and this command line. `up` makes its own.
    """


@keys.command("new")
@click.argument("file", type=FILE)
def new(file: Path) -> None:
    """Write new keys to FILE, readable by its owner only.

    Keep it on the hosts of masters. API servers need only what `fairlog keys share` copies.
    """
    _show(file, Keyring.create(file))


@keys.command("share")
@click.argument("file", type=FILE)
@click.argument("copy", type=FILE)
@click.option("--workers", is_flag=True, help="Copy only keys that sign for workers, for `fairlog worker --store`.")
def share(file: Path, copy: Path, *, workers: bool) -> None:
    """Write a COPY without the keys of masters.

    API servers need no more. Workers that use API servers need no keys.
    """
    ring = Keyring.load(file)
    shared = ring.for_workers() if workers else ring.without_masters()
    shared.write(copy)
    _show(copy, shared)


@keys.command("rotate")
@click.argument("file", type=FILE)
def rotate(file: Path) -> None:
    """Add new keys to FILE, which sign from the next start on.

    The earlier keys are still accepted. Give the new file to all masters first, restart them, then give API servers
    and workers a new copy.
    """
    rotated = Keyring.load(file).rotated()
    rotated.write(file, anew=True)
    _show(file, rotated)


def _show(file: Path, ring: Keyring) -> None:
    """The ids, which are no secrets: the log names the master's."""
    master = f"master's key {ring.master}" if ring.master else "no master's key"
    click.echo(f"{file}: door key {ring.door}, {master}")
