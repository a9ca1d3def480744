"""How an estimate of a start is told in words."""

from __future__ import annotations

from typing import Any

import click
import pytest

from fairlog.cli.estimates import print_estimate
from fairlog.cli.times import UTC_ASKED

NOW = 1_772_366_400_000
"""2026-03-01 12:00:00Z"""


def told(capsys: pytest.CaptureFixture[str], **estimate: Any) -> str:
    with click.Context(click.Command("explain")) as ctx:
        ctx.meta[UTC_ASKED] = True
        print_estimate({"why": "", "earliest": NOW, "likely": None, "latest": None, **estimate}, NOW)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("estimate", "line"),
    [
        (
            {"likely": NOW + 60_000, "latest": NOW + 3_600_000},
            "probably at 2026-03-01 12:01:00Z, at 2026-03-01 13:00:00Z at the latest",
        ),
        ({"likely": NOW + 60_000, "why": "x"}, "probably at 2026-03-01 12:01:00Z, with no latest time: x"),
        ({"why": "not before 2026-03-01 12:00:09.000Z"}, "with no latest time: not before 2026-03-01 12:00:09.000Z"),
        (
            {"latest": NOW + 2000, "why": "it is removed before it starts"},
            "at 2026-03-01 12:00:02Z at the latest, with no likely time: it is removed before it starts",
        ),
        ({"earliest": None, "why": "it is on hold"}, "not by itself: it is on hold"),
        (
            {"earliest": NOW + 1000, "likely": NOW + 1000, "latest": NOW + 2000},
            "not before 2026-03-01 12:00:01Z, probably at 2026-03-01 12:00:01Z, at 2026-03-01 12:00:02Z at the latest",
        ),
    ],
)
def test_an_estimate_is_one_line(capsys: pytest.CaptureFixture[str], estimate: dict[str, Any], line: str) -> None:
    assert told(capsys, **estimate) == f"starts    {line}\n"


def test_errors_of_the_past_stand_below(capsys: pytest.CaptureFixture[str]) -> None:
    errors = {"number": 200, "within": 190, "medianMs": 12_000, "p90Ms": 124_000}
    assert told(capsys, likely=NOW, latest=NOW, errors=errors).splitlines()[1] == (
        "          half of the last 200 estimates were off by 12.0s or less, 9 in 10 by 2m04s"
    )


def test_of_one_estimate_alone_its_error_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    errors = {"number": 1, "within": 1, "medianMs": 12_000, "p90Ms": 12_000}
    said = told(capsys, likely=NOW, latest=NOW, errors=errors).splitlines()[1]
    assert said == "          the last estimate was off by 12.0s"


def test_of_what_does_not_wait_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_estimate(None, NOW)
    assert capsys.readouterr().out == ""
