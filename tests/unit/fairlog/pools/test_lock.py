"""One process runs a pool, and waits for the commands that an earlier one has begun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlog.pools.pool import PoolBusy, hold
from fairlog.pools.providers import CommandRunner
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_a_second_process_is_told_so_and_another_pool_is_not_concerned() -> None:
    first = hold("burst")
    with pytest.raises(PoolBusy, match="another process runs the pool 'burst'"):
        hold("burst", 0)
    os.close(hold("other", 0))
    os.close(first)
    os.close(hold("burst", 0))


def test_a_command_holds_the_lock_after_its_pool_and_not_what_it_leaves_running(tmp_path: Path) -> None:
    script = (
        f"sleep 60 > {tmp_path}/log & echo $! > {tmp_path}/left; echo begun; until test -e {tmp_path}/go; do :; done"
    )
    program = f"""
import sys
from fairlog.pools.pool import hold
from fairlog.pools.providers import CommandRunner
CommandRunner(hold("burst", 0), 60)(["sh", "-c", {script!r}])
"""
    pool = subprocess.Popen([sys.executable, "-c", program])
    wait_until((tmp_path / "left").exists, "the command")
    pool.kill()
    pool.wait()
    with pytest.raises(PoolBusy):
        hold("burst", 0)
    (tmp_path / "go").touch()
    lock = hold("burst")
    left = int((tmp_path / "left").read_text())
    os.kill(left, 9)  # it ran all the time
    os.close(lock)


def test_a_lock_of_ours_is_not_seen_by_the_command() -> None:
    lock = hold("burst", 0)
    seen = CommandRunner(lock, 60)(["sh", "-c", "ls -l /proc/self/fd"])
    assert "burst.lock" not in seen
    os.close(lock)
