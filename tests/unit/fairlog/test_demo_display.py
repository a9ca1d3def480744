"""What the demo shows on a terminal."""

from __future__ import annotations

import io
import re
import sys
from typing import TYPE_CHECKING

from fairlog.demo.run import _display

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


def test_a_kill_stays_on_the_terminal_above_the_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    shares = {"companies": [{"company": "north", "occupiedCores": 4, "quotaCores": 8, "share": "1/2"}]}
    with _display(2) as (show, say):
        show(1.0, [], shares)
        say("killed master-1, the active master (kill -9 17)")
        show(2.0, [], shares)
        say("killed worker-1")
    lines = re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", screen.getvalue()).splitlines()
    kills = [number for number, line in enumerate(lines) if "killed" in line]
    assert len(kills) == 2
    assert [lines[number].strip() for number in kills] == [
        "killed master-1, the active master (kill -9 17)",
        "killed worker-1",
    ]
    assert any("north" in line for line in lines[kills[1] :])
