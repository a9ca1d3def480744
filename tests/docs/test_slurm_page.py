"""The page for people who come from Slurm names what is there and nothing else, and every daily verb of theirs."""

from __future__ import annotations

import re
from pathlib import Path

import click
from click.testing import CliRunner

from fairlog.cli.main import VERBS, cli
from fairlog.compat.slurm.page import tables_of_the_page

PAGE = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()
THEIRS = "sbatch srun salloc squeue scancel scontrol sacct seff sstat sprio sshare sreport sinfo sdiag sacctmgr sview"
OURS = PAGE[PAGE.index("## A day") :]
ROWS = [row.split("|")[1:4] for row in OURS.splitlines() if row.startswith("| `")]


def test_the_tables_of_options_are_those_of_the_parsers() -> None:
    assert tables_of_the_page() in PAGE, f"the page must have\n{tables_of_the_page()}"


def test_every_daily_verb_of_slurm_is_on_the_page() -> None:
    assert [verb for verb in THEIRS.split() if not any(f"`{verb}" in row[0] for row in ROWS)] == []


def test_every_daily_verb_of_slurm_is_answered_by_naming_ours() -> None:
    for verb in THEIRS.split():
        said = CliRunner().invoke(cli, [verb]).stderr
        assert f"no verb is named '{verb}'; `fairlog " in said
        assert "lists the verbs" not in said


def test_every_verb_and_every_option_of_ours_on_the_page_exists() -> None:
    known = {option for verb in VERBS for option in options_of(verb)}
    for _, ours, notes in ROWS:
        for code in re.findall(r"`([^`]+)`", ours):
            words = code.split()
            if words[0] in VERBS:
                assert set(re.findall(r"--[a-z-]+", code)) <= options_of(words[0]) | {"--"}, code
        assert set(re.findall(r"--[a-z][a-z-]+", ours + notes)) <= known


def options_of(verb: str) -> set[str]:
    """The options of the verb and of those below it."""
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return {
        name for each in (command, *below) for param in each.params for name in (*param.opts, *param.secondary_opts)
    }
