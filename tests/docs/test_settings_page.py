"""docs/settings.md has every setting with its default, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import click
from msgspec import structs

from fairlog.cli.main import cli
from fairlog.cli.params import setting_text
from scheduler.rules.checks.validate import _CHOICES, NEW_CLUSTER, RETIRED

ROOT = Path(__file__).parents[2]
ROOMS = ("fairlog", "recovery", "scheduler", "witness", "workers")
PAGE = (ROOT / "docs" / "settings.md").read_text()


def test_the_page_lists_every_setting_with_its_default_and_no_other() -> None:
    listed = {
        name: default
        for names, defaults in re.findall(r"^\| ((?:`[a-z]\w+`(?:, )?)+) \| ([^|]+) \|", PAGE, re.MULTILINE)
        for name, default in zip(re.findall(r"\w+", names), defaults.replace("`", "").split(", "), strict=True)
    }
    settings = structs.asdict(NEW_CLUSTER).items()
    assert listed == {name: setting_text(value) for name, value in settings if name not in RETIRED}


def test_the_page_names_every_value_that_a_setting_can_be_chosen_from() -> None:
    assert [value for values in _CHOICES.values() for value in values if f"`{value}`" not in PAGE] == []


def _variables_of(command: click.Command) -> set[str]:
    named = {name for each in command.params for name in ([each.envvar] if isinstance(each.envvar, str) else [])}
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return named.union(*map(_variables_of, inner))


def test_the_page_names_every_variable_of_the_environment_and_no_other() -> None:
    code = "\n".join(file.read_text() for room in (*ROOMS, "deploy") for file in (ROOT / room).rglob("*.py"))
    used = set(re.findall(r"\bFAIRLOG_[A-Z_]*[A-Z]\b(?!_|\*|\{)", code))
    used |= {name for name in _variables_of(cli) if name.startswith("FAIRLOG_")}
    assert "FAIRLOG_TOKEN_FILE" in used
    named = set(re.findall(r"`(FAIRLOG_[A-Z_]+)`", PAGE)) - {"FAIRLOG_ALERT_NAME"}
    assert named == used
