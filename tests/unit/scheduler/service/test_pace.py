"""What a master does beside turns takes a part of its time, however far away the store is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from scheduler.service import pace

if TYPE_CHECKING:
    import pytest


def test_what_took_long_rests_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert pace.due_again(100.0, 1.0) == 101.0
    assert pace.due_again(99.95, 1.0) == 101.0
    assert pace.due_again(98.0, 1.0) == 100.0 + 2 * pace.REST
