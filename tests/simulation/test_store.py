"""What the double of the store answers itself is what fakeredis answers."""

from __future__ import annotations

import re
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from fakeredis._socket import FakeSocket

from tests.simulation.loom import Loom
from tests.simulation.store import _QUICK, _SLOW, Store

if TYPE_CHECKING:
    import pytest

COMMANDS = """
GET k | SET k v | TYPE k | TIME | DEL k | PEXPIRE k 300 | LLEN k | RPUSH k v | RPUSH k v v
HEXISTS k f | HGET k f | HGETALL k | HSET k f v | HSET k f v g v | HLEN k | HDEL k f | HDEL k f g | HMGET k f g
HINCRBY k f v | HINCRBY hash f d | HSET hash f d | ZADD k v m | ZADD k v m v m | ZADD k XX v m | ZCOUNT k s s
ZRANGE k 0 -1 | ZRANGE k 0 -1 WITHSCORES | ZRANGE k n -1 | XLEN k | XADD k * f v | XADD k i f v | XTRIM k MINID i
XRANGE k b b | XRANGE k b b COUNT n | XREVRANGE k + - COUNT n | XREVRANGE k b b
XADD x * f v | XTRIM x MINID i | XREAD BLOCK 0 STREAMS x i | XREAD COUNT n BLOCK 0 STREAMS log other i i
"""
WORDS = {
    "k": ("hash", "list", "stream", "zset", "text", "absent"),
    "x": ("log", "other"),
    "f": ("one", "two"),
    "g": ("two", "three"),
    "v": ("0", "5", "-3", "12", "word"),
    "d": ("0", "5", "12"),
    "m": ("ann", "bob", "cid"),
    "n": ("1", "2", "3"),
    "s": ("-inf", "+inf", "0", "5", "(5", "12"),
    "i": ("0-0", "3-0", "5-1", "9", "17-0", "999999999999999-0"),
    "b": ("-", "+", "3-0", "(3-0", "5-1", "(5-1", "9", "(9", "17-0", "(17-0"),
}


def test_frequent_commands_are_answered_as_by_fakeredis(monkeypatch: pytest.MonkeyPatch) -> None:
    random, commands = Random(7), re.split("[|\n]", COMMANDS.strip())
    quick, plain = (Store(Loom(0, steps=1), switching=0) for _ in range(2))
    answered = dict.fromkeys(_QUICK, 0)
    at_once = quick._engine._at_once

    def watched(name: str, arguments: list[bytes]) -> object:
        answer = at_once(name, arguments)
        if name in _QUICK and answer is not _SLOW:
            answered[name] += 1
        return answer

    monkeypatch.setattr(quick._engine, "_at_once", watched)
    monkeypatch.setattr(plain._engine, "_at_once", lambda *_: _SLOW)
    monkeypatch.setattr(plain._engine, "xread", partial(FakeSocket.xread, plain._engine))
    for store in (quick, plain):
        store.patch(monkeypatch)
        store.ask("HSET", "hash", "one", 5, "two", 12)
        store.ask("RPUSH", "list", "word")
        store.ask("XADD", "stream", "3-0", "one", "word")
        store.ask("ZADD", "zset", 5, "ann")
        store.ask("SET", "text", "word")
    for number in range(5_000):
        command = [random.choice(WORDS.get(word, (word,))) for word in random.choice(commands).split()]
        quick.loom.now_ms = plain.loom.now_ms = number * 10
        assert repr(quick.ask(*command)) == repr(plain.ask(*command)), command
    assert all(answered.values()), answered
