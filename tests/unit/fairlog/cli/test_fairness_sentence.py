"""The verdict with which `fairness` begins."""

from __future__ import annotations

from typing import Any

import pytest

from fairlog.cli.verbs.figures import _in_a_sentence


def report(*rows: tuple[str, float], by: str = "company") -> dict[str, Any]:
    """Of ten seconds, in which each was entitled to 4 cores and was so much short."""
    told = [
        {"company": company, "user": "ann", "entitledCores": 4.0, "shortfallCoreS": short} for company, short in rows
    ]
    whole = {"shortfallCoreS": sum(short for _, short in rows)}
    return {"by": by, "rows": told, "cluster": whole, "log": {"fromAt": 0, "toAt": 10_000}}


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (report(), "No app existed in this span, so nothing was due to anybody."),
        (report(("acme", 0), ("tiny", 0)), "Everybody held all that was due, at every moment."),
        (report(("acme", 0), ("tiny", 8)), "tiny missed the most of what was due: 8 of 40 core-s."),
        (report(("tiny", 8), by="user"), "ann of tiny missed the most of what was due: 8 of 40 core-s."),
        (
            report(("acme", 9), ("tiny", 8)),
            "acme missed the most of what was due: 9 of 40 core-s; 2 parties missed 17 core-s in all.",
        ),
    ],
)
def test_it_says_whether_all_held_what_was_due_and_who_missed_the_most(told: dict[str, Any], sentence: str) -> None:
    assert _in_a_sentence(told) == sentence
