"""Positions and times on the command line: both are read in one way, wherever they stand."""

from __future__ import annotations

import click
import pytest

from fairlog.cli.params import read_bound
from recovery.replay.bounds import Bound


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("1", Bound(seq=1)),
        ("999999999999999999", Bound(seq=10**18 - 1)),
        ("1970-01-02", Bound(at=86_400_000)),
        ("1970-01-01T00:00:00.123", Bound(at=123)),
        ("1970-01-01T00:00:00.1239", Bound(at=123)),
        ("1970-01-01T01:00:00+01:00", Bound(at=0)),
        ("2026-11-21 09:15:32.517Z", Bound(at=1795252532517)),
    ],
)
def test_a_position_or_a_time_is_read_to_the_millisecond(text: str, bound: Bound) -> None:
    assert read_bound(text) == bound


@pytest.mark.parametrize("text", ["0", "-1", "", "soon", "1.5", "2026-13-01", "1" * 30, "٣"])
def test_what_is_neither_is_refused_with_both_forms(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"neither a log position \(1 or more\) nor a time such as 2026-03-0"):
        read_bound(text)
