"""The handshake and the frames between a pool of functions and its workers."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Callable

import pytest

from fairlog.engines import wire
from fairlog.engines.function_worker import RemoteTraceback, dumped, failure

KEY = bytes(range(32))


def shaken(greet: Callable[[socket.socket], object], key: bytes = KEY) -> tuple[object, object]:
    """What the pool's side of a handshake returns, and the worker's; or what they raise."""
    here, there = socket.socketpair()
    found: list[object] = []

    def worker() -> None:
        try:
            found.append(greet(there))
        except OSError as error:
            found.append(type(error))
        finally:
            there.close()

    thread = threading.Thread(target=worker)
    thread.start()
    outcome: object
    try:
        outcome = wire.welcome(here, key)
    except OSError as error:
        outcome = type(error)
    here.close()
    thread.join()
    return outcome, found[0]


def test_both_ends_prove_that_they_know_the_key() -> None:
    assert shaken(lambda connection: wire.greet(connection, KEY, b"a.0 1")) == (b"a.0 1", None)


def test_a_worker_without_the_key_is_refused() -> None:
    pool, worker = shaken(lambda connection: wire.greet(connection, bytes(32), b"a.0 1"))
    assert pool is wire.WrongKey
    assert worker in (ConnectionError, ConnectionResetError)


def test_a_pool_that_does_not_know_the_key_is_found_out() -> None:
    """It can only send back what the worker sent."""
    here, there = socket.socketpair()
    here.sendall(wire.MAGIC + bytes(wire.NONCE) + bytes(wire.NONCE))
    with pytest.raises(wire.WrongKey):
        wire.greet(there, KEY, b"a.0 1")
    here.close()
    there.close()


def test_frames_are_taken_out_however_they_arrive() -> None:
    sent = [(1, wire.CALL, b"x" * 1000, 0.0), (2, wire.RESULT, b"", 0.25), (3, wire.ERROR, b"yz", 1.5)]
    stream = b"".join(wire.framed(number, kind, body, took_s) for number, kind, body, took_s in sent)
    for step in (1, 7, 24, 25, 26, 1000, len(stream)):
        frames = wire.Frames()
        parts = [stream[start : start + step] for start in range(0, len(stream), step)]
        found = [frame for part in parts for frame in frames.feed(part)]
        assert [(frame.call, frame.kind, bytes(frame.body), frame.took_s) for frame in found] == sent


class Unfriendly(Exception):
    def __reduce__(self) -> str:
        raise RuntimeError("not me")


def test_an_exception_comes_with_its_traceback_whether_it_can_be_pickled_or_not() -> None:
    for error, kind, text in (
        (ZeroDivisionError("division"), ZeroDivisionError, "division"),
        (Unfriendly("secretive"), RuntimeError, "Unfriendly: secretive"),
    ):
        with pytest.raises(type(error)) as caught:
            raise error
        got = pickle.loads(failure(caught.value))  # noqa: S301
        assert type(got) is kind
        assert text in str(got)
        assert isinstance(got.__cause__, RemoteTraceback)
        assert "raise error" in str(got.__cause__)


def test_what_pickle_finds_by_name_is_not_pickled_by_value() -> None:
    assert len(dumped((abs, (1,), {}))) < 100
    assert pickle.loads(dumped(lambda x: x + 1))(2) == 3  # noqa: S301
