"""Estimates of starts that were told are kept, and compared with what came once."""

from __future__ import annotations

import fakeredis
import pytest
from redis.exceptions import NoPermissionError

from scheduler.store import estimates as module
from scheduler.store.estimates import ErrorsOfEstimates, Given, compare, errors, errors_of, keep, kept
from scheduler.store.keys import Keys

KEYS = Keys("c")


@pytest.fixture
def store() -> fakeredis.FakeRedis:
    return fakeredis.FakeRedis()


def test_the_error_is_the_time_between_the_start_and_the_likely_one(store: fakeredis.FakeRedis) -> None:
    assert errors(store, KEYS) is None
    keep(store, KEYS, {"a": Given(0, 0, 100_000, 200_000), "b": Given(0, 0, None, 50_000)})
    compare(store, KEYS, {"a": 130_000, "b": 60_000, "other": 1}, [])
    assert errors(store, KEYS) == ErrorsOfEstimates(2, 1, 10_000, 30_000)
    assert kept(store, KEYS) == []
    compare(store, KEYS, {"a": 130_000}, [])
    assert errors(store, KEYS) == ErrorsOfEstimates(2, 1, 10_000, 30_000), "an estimate was compared twice"


def test_what_tells_no_time_is_not_kept_nor_what_is_told_again_soon(store: fakeredis.FakeRedis) -> None:
    keep(store, KEYS, {"held": Given(0, None, None, None)})
    keep(store, KEYS, {})
    for at in (0, 59_999, 60_000):
        keep(store, KEYS, {"a": Given(at, 0, 100_000, None)})
    assert kept(store, KEYS) == ["a"]
    compare(store, KEYS, {"a": 100_000}, [])
    assert errors(store, KEYS) == ErrorsOfEstimates(2, 2, 0, 0)


def test_of_an_app_and_of_all_a_bounded_number_is_kept(
    store: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_OPEN", 2)
    monkeypatch.setattr(module, "OF_AN_APP", 3)
    monkeypatch.setattr(module, "MOST_COMPARED", 2)
    for number in range(5):
        keep(store, KEYS, {app: Given(number * 60_000, 0, number, None) for app in "abc"})
    assert kept(store, KEYS) == ["a", "b"]
    compare(store, KEYS, {"a": 0}, ["b"])
    assert kept(store, KEYS) == []
    assert errors(store, KEYS) == ErrorsOfEstimates(2, 2, 3, 4)


def test_what_cannot_be_read_counts_as_nothing(store: fakeredis.FakeRedis) -> None:
    store.hset(KEYS.estimates, "a", "junk")
    store.lpush(KEYS.estimated, "junk")
    assert errors(store, KEYS) is None
    compare(store, KEYS, {"a": 1}, [])
    assert (kept(store, KEYS), errors(store, KEYS)) == ([], None)


def test_a_user_of_the_store_who_may_not_keep_them_tells_them_all_the_same(
    store: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NoPermissionError("no permission")

    for name in ("hmget", "hkeys", "lrange"):
        monkeypatch.setattr(store, name, refuse)
    keep(store, KEYS, {"a": Given(0, 0, 1, 1)})
    assert (kept(store, KEYS), errors(store, KEYS)) == ([], None)


def test_percentiles_are_by_nearest_rank() -> None:
    assert errors_of([(number, Given(0, 0, 0, None)) for number in range(1, 12)]) == ErrorsOfEstimates(11, 11, 6, 10)
    assert errors_of([(5, Given(0, 6, None, None))]) is None
