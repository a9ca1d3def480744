"""What `submit --wait` shows while it waits."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from fairlog.cli import render, waiting
from fairlog.cli.printed import only_printable
from scheduler.store.task_states import Progress

if TYPE_CHECKING:
    import pytest


class Terminal(io.TextIOWrapper):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def test_a_sentence_stands_above_the_bar_and_controls_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", Terminal(drawn, "utf-8", write_through=True))
    monkeypatch.setenv("TERM", "xterm")
    with only_printable(), waiting._display("app-1") as show:
        show("pending", Progress())
        render.say("app-1 waits: cluster-full\x1b]52;c;eA==\x07")
        show("running", Progress(tasks=2))
    assert b"\r\x1b[2Kapp-1 waits: cluster-full" in drawn.getvalue()
    assert b"\x1b]52" not in drawn.getvalue()
