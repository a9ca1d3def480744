"""What viewers of the page share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fakeredis

from fairlog.api.board import Board
from scheduler.model.commands import RegisterCompany
from scheduler.model.sender import local
from tests.unit.fairlog.api.served import ACME, served
from tests.waiting import HOPELESS_S

if TYPE_CHECKING:
    import pytest


def test_events_are_read_once_for_a_moment_for_all_who_ask_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(fakeredis.FakeRedis(server=fakeredis.FakeServer())) as api:
        api.replica.wait_for(api.sender.send(local(0), ACME).seq, HOPELESS_S)
        board = Board(api)
        monkeypatch.setattr(Board._shared, "__kwdefaults__", {"kept_s": 3600.0})
        first = board.entries(local(0))
        api.replica.wait_for(api.sender.send(local(0), RegisterCompany(company="globex")).seq, HOPELESS_S)
        assert board.entries(local(0)) == first
        assert board.entries(local(0), company="globex").seen.seq > first.seen.seq
        assert board.entries(local(0), at=first.seen.seq).body == first.body
        monkeypatch.setattr(Board._shared, "__kwdefaults__", {"kept_s": -1.0})
        board = Board(api)
        assert board.entries(local(0)).body != first.body
