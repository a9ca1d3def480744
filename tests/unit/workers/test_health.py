"""The health check of a worker (semantics W11)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until
from workers.health import Check, HealthCheck, HealthVerdict


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


@contextmanager
def checking(*command: str, clock: Clock | None = None) -> Iterator[HealthCheck]:
    check = HealthCheck(Check(command, 60), "w1", clock or Clock())
    yield check
    check.close()


def verdict(check: HealthCheck, number: int = 1) -> HealthVerdict:
    wait_until(lambda: (found := check.look()) is not None and found.number == number, "a verdict")
    found = check.look()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("script", "unwell"),
    [
        ("true", ""),
        ("echo all is well; exit 0", ""),
        ("echo first; echo 'no disk  left' >&2; echo; exit 1", "no disk left"),
        ("printf 'a\\tb\\033[1m\\n'; exit 1", "a b [1m"),
        ("head -c 100000 /dev/zero | tr '\\0' x; exit 1", "x" * 127 + "…"),
        ("printf '\\377\\n'; exit 1", "\ufffd"),
        ("exit 4", "`sh -c 'exit 4'` ended with exit code 4"),
        ("kill -9 $$", "`sh -c 'kill -9 $$'` ended with exit code -9"),
    ],
)
def test_the_last_line_of_a_check_that_fails_says_why(script: str, unwell: str) -> None:
    with checking("sh", "-c", script) as check:
        assert verdict(check) == (1, unwell)


def test_a_check_that_cannot_be_run_has_failed() -> None:
    with checking("/no/such/program") as check:
        assert verdict(check) == (1, "`/no/such/program` cannot be run: No such file or directory")


def test_a_check_runs_again_when_it_is_due_and_never_twice_at_once(tmp_path: Path) -> None:
    clock, ran = Clock(), tmp_path / "ran"
    with checking("sh", "-c", f"echo >> {ran}", clock=clock) as check:
        for number in (1, 2, 3):
            assert verdict(check, number) == (number, "")
            assert len(ran.read_text()) == number
            clock.s += 59
            assert check.look() == (number, "")
            clock.s += 1


def test_a_check_that_takes_too_long_has_failed_and_is_killed_with_its_children(tmp_path: Path) -> None:
    clock, started = Clock(), tmp_path / "started"
    with checking(sys.executable, "-c", _SLEEPS, str(started), clock=clock) as check:
        check.look()
        wait_until(started.exists, "the child")
        assert check.look() is None
        clock.s = 60
        found = check.look()
        assert found is not None
        assert found.unwell.endswith("did not end within 60 s")
        wait_until(lambda: not psutil.pid_exists(int(started.read_text())), "the end of the child")
        started.unlink()
        wait_until(lambda: check.look() is not None and started.exists(), "the next run")
        assert check.look() == found


_SLEEPS = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(child.pid))
os.rename(sys.argv[1] + ".new", sys.argv[1])
child.wait()
"""
