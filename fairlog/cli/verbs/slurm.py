"""The verbs about Slurm's commands: slurm path."""

from __future__ import annotations

import click

from fairlog.cli.groups import VerbGroup


@click.group(cls=VerbGroup)
def slurm() -> None:
    """Find Slurm's commands, for programs that submit by them."""


@slurm.command()
def path() -> None:
    """Print the folder with sbatch, squeue and the others.

    export PATH=$(fairlog slurm path):$PATH switches a shell over. docs/slurm.md says what each of their options does.
    """
    from fairlog.compat.slurm.folder import folder  # noqa: PLC0415 (as other verbs load what they need)

    click.echo(folder())
