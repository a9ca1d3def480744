"""What API servers know of sessions that were ended elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock

import fakeredis
import pytest
from redis.exceptions import ConnectionError as Away

from scheduler.store import ended_sessions
from scheduler.store.ended_sessions import KEPT_MS, PAGE, EndedSessions
from scheduler.store.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = Keys("c")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[fakeredis.FakeRedis]:
    monkeypatch.setattr(ended_sessions, "READ_EVERY_S", 0)
    with fakeredis.FakeRedis() as made:
        yield made


def test_what_one_server_ends_all_know_once_they_have_read(store: fakeredis.FakeRedis) -> None:
    one, other = EndedSessions(store, KEYS), EndedSessions(store, KEYS)
    one.read()
    other.read()
    for number in range(PAGE + 1):
        one.add(f"s{number}")
        assert f"s{number}" in one
    assert "s0" not in other
    other.read()
    assert all(f"s{number}" in other for number in range(PAGE + 1))
    one.add("later")
    other.read()
    assert "later" in other
    assert "never" not in other


def test_an_ended_session_is_remembered_longer_than_its_cookies_are_good(
    store: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = EndedSessions(store, KEYS)
    store.xadd(KEYS.ended_sessions, {"session": "old"}, id="1-0")
    made.read()
    assert "old" not in made
    made.add("new")
    now_s = store.time()[0]
    monkeypatch.setattr(store, "time", lambda: (now_s + KEPT_MS // 1000 - 60, 0))
    made.read()
    assert "new" in made
    monkeypatch.setattr(store, "time", lambda: (now_s + KEPT_MS // 1000 + 60, 0))
    made.add("newest")
    made.read()
    assert [name for name in ("old", "new", "newest") if name in made] == ["newest"]
    assert store.pttl(KEYS.ended_sessions) > 0


def test_after_an_outage_all_is_read_again(store: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that is the store now may have other entries, with earlier ids than those that were read."""
    made = EndedSessions(store, KEYS)
    made.add("one")
    made.read()
    with monkeypatch.context() as patch:
        patch.setattr(store, "xrange", Mock(side_effect=Away("away")))
        with pytest.raises(Away):
            made.read()
    store.delete(KEYS.ended_sessions)
    now_ms = store.time()[0] * 1000
    store.xadd(KEYS.ended_sessions, {"session": "elsewhere"}, id=f"{now_ms - 60_000}-0")
    made.read()
    assert "elsewhere" in made
    assert "one" in made
