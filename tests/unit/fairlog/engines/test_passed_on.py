"""Signals that come while processes are started (`fairlog.engines.passed_on`)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from fairlog.engines.passed_on import PassedOn

ASKS = 'trap "exit 3" USR1; echo ready; while :; do sleep 0.1; done'


@pytest.fixture
def signals() -> Iterator[PassedOn]:
    before = signal.getsignal(signal.SIGUSR1)
    found = PassedOn()
    found.listen([signal.SIGUSR1])
    yield found
    signal.signal(signal.SIGUSR1, before)
    for process in found.processes:
        process.kill()
        process.wait()


def test_a_signal_that_a_process_asks_for_as_it_is_started_reaches_it_and_later_ones(signals: PassedOn) -> None:
    for _ in range(2):
        process = subprocess.Popen(["/bin/sh", "-c", ASKS], stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout as said:
            assert said.readline() == b"ready\n"
        if not signals.processes:
            os.kill(os.getpid(), signal.SIGUSR1)
        signals.processes.append(process)
    signals.all_have_begun()
    assert [process.wait() for process in signals.processes] == [3, 3]


def test_a_signal_is_passed_on_at_once_where_all_have_begun(signals: PassedOn) -> None:
    with subprocess.Popen(["/bin/sh", "-c", ASKS], stdout=subprocess.PIPE) as process:
        signals.processes.append(process)
        signals.all_have_begun()
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.kill(os.getpid(), signal.SIGUSR1)
        assert process.wait() == 3
    signals.send(signal.SIGUSR1)  # to nobody
