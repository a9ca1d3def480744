"""What a pool of functions makes of what its workers say, without a cluster."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from fairlog.engines import wire
from fairlog.engines.function_worker import _WorkerProcess, dumped
from fairlog.engines.functions import _Future, _Link, _PendingCall, _WorkerPool
from fairlog.engines.keys import draw_keys
from tests.waiting import HOPELESS_S, wait_until

KEYS = draw_keys("app-1")


@pytest.fixture
def pool() -> Iterator[_WorkerPool]:
    """A pool whose thread does not run."""
    tls = wire.context(KEYS.authority, f"{KEYS.certificate}{KEYS.key}", server=True)
    made = _WorkerPool(socket.create_server(("127.0.0.1", 0)), tls, slots=1, retries=0, idle_s=1)
    yield made
    made.abandon()


def lying(link: _Link, *numbers: int) -> None:
    """Calls that were sent to the worker, behind one another."""
    for number in numbers:
        call = _PendingCall(_Future(), dumped((abs, (number,), {})))
        assert call.future.set_running_or_notify_cancel()
        if link.calls:
            call.future.lie()
        link.calls[number] = call


def said(call: int, kind: int) -> wire.Frame:
    return wire.Frame(call, kind, 0.001, b"".join(dumped(call)) if kind == wire.RESULT else b"")


def test_no_call_counts_as_lying_at_a_worker_once_it_is_answered_or_the_first_there(
    pool: _WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the call before it was answered, or came back: `map` and `cancel` would wait for it to begin."""
    monkeypatch.setattr("fairlog.engines.functions._BACK_WITHIN_S", HOPELESS_S)
    here, there = socket.socketpair()
    with here, there:
        link = _Link(here, "app-1.0")
        lying(link, 1, 2, 3, 4)
        futures = {number: call.future for number, call in link.calls.items()}
        pool._hear(link, [said(1, wire.RESULT), said(2, wire.RESULT)])
        lying(link, 5)
        futures[5] = link.calls[5].future
        assert [futures[number]._lies for number in (1, 2, 3, 4, 5)] == [False, False, False, True, True]
        pool._hear(link, [said(3, wire.RETURNED), said(4, wire.RETURNED)])
        assert [futures[number]._lies for number in (3, 4, 5)] == [False, False, False]
        assert [futures[number].cancel() for number in (1, 2, 5, 3, 4)] == [False, False, False, True, True]
        pool._hear(link, [said(5, wire.RESULT)])
        assert [futures[number].result(0) for number in (1, 2, 5)] == [1, 2, 5]
        assert [call.future for call in pool.calls] == [futures[4], futures[3]]


def test_a_call_that_reaches_a_worker_while_it_makes_a_long_one_comes_back() -> None:
    """The calls of a batch need not arrive together. The long one reads from a pipe."""
    here, there = socket.socketpair()
    here.settimeout(HOPELESS_S)
    told, tell = os.pipe()
    frames = wire.Frames()
    with here, there, os.fdopen(told, "rb"), os.fdopen(tell, "wb", buffering=0) as pipe:
        process = _WorkerProcess(there, print)
        thread = threading.Thread(target=process.work)
        thread.start()
        here.sendall(b"".join(wire.framed(1, wire.CALL, dumped((os.read, (told, 1), {})))))
        wait_until(lambda: process._began_s > 0, "the long call")
        for call in (2, 3):
            here.sendall(b"".join(wire.framed(call, wire.CALL, dumped((abs, (-2,), {})))))
            assert [(frame.call, frame.kind) for frame in heard(here, frames)] == [(call, wire.RETURNED)]
        pipe.write(b".")
        assert [(frame.call, frame.kind) for frame in heard(here, frames)] == [(1, wire.RESULT)]
        here.sendall(b"".join(wire.framed(0, wire.STOP)))
        thread.join(HOPELESS_S)
        assert not thread.is_alive()


def test_a_worker_whose_prints_are_taken_slowly_waits_without_looking_again() -> None:
    here, there = socket.socketpair()
    here.settimeout(HOPELESS_S)
    text = "x" * 8_000_000
    with here, there:
        process = _WorkerProcess(there, print)
        process._began_s = time.monotonic()
        process.show(wire.OUTPUT, text)
        slow = threading.Timer(1.0, lambda: take(here, len(text)))
        slow.start()
        before_s = time.thread_time()
        process._answer(wire.Frame(1, wire.CALL, 0.0, b"".join(dumped((abs, (-2,), {})))))
        used_s = time.thread_time() - before_s
        slow.join()
        assert not process._printed
    assert used_s < 0.03


def take(connection: socket.socket, count: int) -> None:
    """Read so many bytes, and what comes with them."""
    while count > 0:
        count -= len(connection.recv(1 << 20))


def heard(connection: socket.socket, frames: wire.Frames) -> list[wire.Frame]:
    """What a worker says next."""
    found: list[wire.Frame] = []
    while not found:
        found += frames.take(connection.recv_into(frames.room()))
    return found
