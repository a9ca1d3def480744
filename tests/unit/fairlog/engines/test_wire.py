"""The handshake and the frames between a pool of functions and its workers."""

from __future__ import annotations

import pickle
import socket
import ssl
import threading
from collections.abc import Callable

import pytest

from fairlog.engines import wire
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
