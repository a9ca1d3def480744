"""Names of departments as they are typed."""

from __future__ import annotations

import click
import pytest

from fairlog.cli.verbs.departments import named


def test_no_name_is_not_taken_for_none() -> None:
    assert (named("research"), named("none")) == ("research", "")
    with pytest.raises(click.UsageError, match="name a department, or none for no department"):
        named("")
