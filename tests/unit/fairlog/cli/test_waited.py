"""How long an app waits, as lists show it."""

from __future__ import annotations

import pytest

from fairlog.cli.choice import waited_ms


@pytest.mark.parametrize(
    ("state", "admitted", "ended", "waits"),
    [
        ("pending", None, None, 900),
        ("waiting", 200, None, 900),
        ("running", 200, None, 100),
        ("finished", 200, 500, 100),
        ("killed", None, 500, 400),
    ],
)
def test_an_app_without_an_executor_waits_though_it_is_admitted(
    state: str, admitted: int | None, ended: int | None, waits: int
) -> None:
    app = {"state": state, "submittedAt": 100, "admittedAt": admitted, "endedAt": ended, "requestedCores": 4}
    assert waited_ms(app, 1000) == waits
    assert waited_ms(app, 50) >= 0, "by a clock that is behind"


def test_who_asks_for_no_executor_waits_for_none() -> None:
    idle = {"state": "waiting", "submittedAt": 100, "admittedAt": 200, "endedAt": None, "requestedCores": 0}
    assert waited_ms(idle, 1000) == 100
