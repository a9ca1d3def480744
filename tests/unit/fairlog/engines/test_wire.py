"""The handshake and the frames between a pool of functions and its workers."""

from __future__ import annotations

import pickle
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from fairlog.engines import script, wire
from fairlog.engines.function_worker import RemoteTraceback, dumped, failure
from fairlog.engines.keys import AppKeys, draw_keys

KEYS, OTHERS = draw_keys("app-1"), draw_keys("app-2")
Shake = Callable[[socket.socket], object]


def context(keys: AppKeys, *, server: bool, believes: AppKeys | None = None) -> ssl.SSLContext:
    return wire.context((believes or keys).authority, f"{keys.certificate}{keys.key}", server=server)


def shaken(worker: Shake, pool: ssl.SSLContext) -> tuple[object, object]:
    """What the pool's side of a handshake returns, and the worker's; or what they raise."""
    here, there = socket.socketpair()
    found: list[object] = []

    def connect() -> None:
        with there:
            try:
                found.append(worker(there))
            except OSError as error:
                found.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    outcome: object
    with here:
        try:
            with pool.wrap_socket(here, server_side=True) as secured:
                outcome = wire.welcome(secured)
                secured.sendall(b"x")
        except OSError as error:
            outcome = error
    thread.join()
    return outcome, found[0]


def by_tls(tls: ssl.SSLContext) -> Shake:
    """A worker that says who it is, and takes what comes back."""

    def shake(connection: socket.socket) -> bytes:
        with tls.wrap_socket(connection) as secured:
            wire.greet(secured, b"a.0 1")
            return secured.recv(1)

    return shake


def test_both_ends_prove_that_they_have_the_keys_of_the_app() -> None:
    assert shaken(by_tls(context(KEYS, server=False)), context(KEYS, server=True)) == (b"a.0 1", b"x")


def without_certificate() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


@pytest.mark.parametrize(
    "worker",
    [by_tls(without_certificate()), by_tls(context(OTHERS, server=False, believes=KEYS)), lambda line: line.send(b"x")],
    ids=["no-certificate", "of-another-app", "no-tls"],
)
def test_a_worker_without_the_keys_is_refused_before_it_says_anything(worker: Shake) -> None:
    pool, _ = shaken(worker, context(KEYS, server=True))
    assert isinstance(pool, OSError)


def test_a_pool_without_the_keys_is_found_out() -> None:
    _, worker = shaken(by_tls(context(KEYS, server=False)), context(OTHERS, server=True, believes=KEYS))
    assert isinstance(worker, ssl.SSLCertVerificationError)


def test_frames_are_taken_out_however_they_arrive() -> None:
    small = [(1, wire.CALL, (b"x" * 1000,), 0.0), (2, wire.RESULT, (), 0.25), (3, wire.ERROR, (b"yz",), 1.5)]
    large = (4, wire.RESULT, (b"begins", LARGE, b"", b"between", LARGE[::-1]), 2.0)
    just = [(5 + more, wire.CALL, (b"y" * (wire._LARGE - 1 + more),), 0.0) for more in range(3)]
    for sent, steps in (
        (small, (1, 7, 24, 25, 26, 1000)),
        ([*small, large, *just, *small], (25, 4096, 16384, 1 << 20)),
    ):
        outgoing = wire.Outgoing()
        for number, kind, body, took_s in sent:
            outgoing.put(wire.framed(number, kind, body, took_s))
        stream = bytearray()
        for most in (1, 10, 30_000, 1 << 20):
            with suppress(ssl.SSLWantWriteError):
                outgoing.send(Full(stream, most))  # type: ignore[arg-type]
        assert not outgoing
        for step in steps:
            found = list(taken(bytes(stream), step))
            assert [(frame.call, frame.kind, bytes(frame.body), frame.took_s) for frame in found] == [
                (number, kind, b"".join(body), took_s) for number, kind, body, took_s in sent
            ]


LARGE = bytes(range(256)) * 800


class Full:
    """A connection that takes so many bytes, and then says that it takes nothing now."""

    def __init__(self, into: bytearray, most: int) -> None:
        self.into, self.most = into, most

    def send(self, data: memoryview) -> int:
        """Take some of it."""
        if not self.most:
            raise ssl.SSLWantWriteError
        self.into += (some := data[: self.most])
        self.most -= len(some)
        return len(some)


def taken(stream: bytes, step: int) -> Iterator[wire.Frame]:
    """The frames of what arrives in pieces of at most that size."""
    frames, at = wire.Frames(), 0
    while at < len(stream):
        room = frames.room()
        count = min(step, len(room), len(stream) - at)
        room[:count] = stream[at : at + count]
        at += count
        yield from frames.take(count)


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
        got = pickle.loads(b"".join(failure(caught.value)))  # noqa: S301
        assert type(got) is kind
        assert text in str(got)
        assert isinstance(got.__cause__, RemoteTraceback)
        assert "raise error" in str(got.__cause__)


def test_what_pickle_finds_by_name_is_not_pickled_by_value() -> None:
    assert len(b"".join(dumped((abs, (1,), {})))) < 100
    assert pickle.loads(b"".join(dumped(lambda x: x + 1)))(2) == 3  # noqa: S301


class OfMain:
    """As if a script had defined it."""


OfMain.__module__, OfMain.__qualname__ = "__main__", "OfMain"


class Rows:
    """What numpy does: its memory is pickled as it is."""

    def __init__(self, held: memoryview) -> None:
        self.held = held

    def __reduce_ex__(self, _: object) -> tuple[object, ...]:
        return bytes, (pickle.PickleBuffer(self.held),)


def test_a_large_value_is_sent_from_where_it_is_unless_its_owner_can_change_it() -> None:
    body = dumped((len, (LARGE,), {}))
    assert any(piece is LARGE for piece in body)
    assert not any(len(part) > 200 for part in wire.framed(1, wire.CALL, body) if part is not LARGE)
    changed, held = bytearray(LARGE), bytearray(LARGE)
    body = dumped((changed, Rows(memoryview(held))))
    changed[:] = held[:] = bytes(len(LARGE))
    assert pickle.loads(b"".join(body)) == (LARGE, LARGE)  # noqa: S301


@pytest.mark.parametrize(
    "value", [LARGE, "é" * 100_000, 1 << 1_000_000, [*range(100_000)]], ids=lambda v: type(v).__name__
)
def test_what_a_script_defines_is_found_beside_a_large_value(monkeypatch: pytest.MonkeyPatch, value: object) -> None:
    """And taken by value: a worker's `__main__` does not have it."""
    monkeypatch.setattr(sys.modules["__main__"], "OfMain", OfMain, raising=False)
    for both in ((OfMain, value), (value, OfMain), (value, OfMain, value)):
        body = b"".join(dumped(both))
        assert b"cloudpickle" in body
        with monkeypatch.context() as elsewhere:
            elsewhere.delattr(sys.modules["__main__"], "OfMain")
            assert [each for each in script.loads(body) if not isinstance(each, type)] == [
                each for each in both if each is not OfMain
            ]
