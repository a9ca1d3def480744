"""docs/settings.md has every setting with its default, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import structs

from fairlog.cli.verbs.cluster import _shown
from scheduler.model.events import ClusterConfigured
from scheduler.rules.validate import _CHOICES

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()


def test_the_page_lists_every_setting_with_its_default_and_no_other() -> None:
    listed = {
        name: default
        for names, defaults in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|]+) \|", PAGE, re.MULTILINE)
        for name, default in zip(re.findall(r"\w+", names), defaults.replace("`", "").split(", "), strict=True)
    }
    assert listed == {name: _shown(value) for name, value in structs.asdict(ClusterConfigured()).items()}


def test_the_page_names_every_value_that_a_setting_can_be_chosen_from() -> None:
    assert [value for values in _CHOICES.values() for value in values if f"`{value}`" not in PAGE] == []
