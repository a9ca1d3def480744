"""Limits that the kernel keeps by control groups, where this process may make some with controllers.

`systemd-run --wait --pipe -p Delegate=yes .venv/bin/python -m pytest FILE` gives it such a group.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlog.local.store import EmbeddedStore
from scheduler.model.grants import Grant
from tests.integration.workers.test_cells import a_mark, as_root, helper, in_cells, own_store, sleeping
from tests.integration.workers.test_executor import shell
from tests.integration.workers.worker_rig import Rig
from tests.waiting import wait_until
from workers.cgroups import MOST_PROCESSES, base_group, delegate, limits_in_force
from workers.sandbox import CellSettings

__all__ = ["helper", "own_store"]
LAUNCHERS = pytest.mark.parametrize(
    "rig", ["plain", pytest.param("cell", marks=in_cells), pytest.param("account", marks=as_root)], indirect=True
)
GROW = "block = bytearray(1 << 30)"
UNMAPPED = "import os; held = os.memfd_create('x'); [os.write(held, bytes(1 << 20)) for _ in range(1 << 10)]"


@pytest.fixture
def rig(own_store: EmbeddedStore, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    delegate()
    if "memory" not in limits_in_force():
        pytest.skip(f"no control group with controllers can be made: {base_group()} has {limits_in_force()}")
    if request.param == "account":
        request.getfixturevalue("helper")
    rig = Rig(own_store.url, tmp_path / "run")
    rig.launcher, rig.cells = request.param, CellSettings()
    yield rig
    rig.close()


def leaves(grant: Grant) -> list[Path]:
    """The control groups of the executor; the helper names them by numbers."""
    base = base_group()
    assert base is not None
    groups = {each: each.name.split("-")[1] for each in base.rglob("fairlog-*-*")}
    return [each for each, name in groups.items() if grant.executor in each.name or name.isdecimal()]


@LAUNCHERS
@pytest.mark.parametrize("script", [GROW, UNMAPPED], ids=["mapped", "unmapped"])
def test_memory_beyond_the_grant_ends_the_task(rig: Rig, script: str) -> None:
    grant = rig.grant((sys.executable, "-c", script), memory_mb=128)
    note = rig.run(grant)
    state = rig.work.states(rig.app)[0]
    assert (state.state, state.message) == (
        "failed",
        f"the tasks of executor {grant.executor} used 128 MiB; 128 MiB are granted",
    )
    assert note.done
    wait_until(lambda: not leaves(grant), "the end of the group")


BOMB = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(1)
"""


@LAUNCHERS
def test_a_fork_bomb_reaches_its_limit_and_ends_with_its_group(rig: Rig) -> None:
    grant = rig.grant((sys.executable, "-S", "-c", BOMB), cores=1, memory_mb=16_384)
    pid = rig.launch(grant)
    wait_until(lambda: leaves(grant), "the group")
    (leaf,) = leaves(grant)
    wait_until(lambda: "max 0\n" not in (leaf / "pids.events").read_text(), "a fork that was refused")
    assert int((leaf / "pids.current").read_text()) <= MOST_PROCESSES
    os.kill(pid, signal.SIGTERM)
    assert rig.end_of(grant).reason == "killed"
    wait_until(lambda: not leaves(grant), "the end of the group")
    assert rig.run(rig.grant(("true",), number=1)).done


@LAUNCHERS
def test_tasks_have_no_more_than_their_cores_and_end_with_their_group(rig: Rig) -> None:
    mark = a_mark()
    grant = rig.grant(shell(f"sleep {mark} & while :; do :; done & while :; do :; done"), cores=1)
    rig.launch(grant)
    wait_until(lambda: sleeping(mark), "the task")
    (leaf,) = leaves(grant)
    assert (leaf / "cpu.max").read_text() == "100000 100000\n"
    assert (leaf / "memory.max").read_text() == f"{512 << 20}\n"
    assert (leaf / "pids.max").read_text() == f"{MOST_PROCESSES}\n"
    wait_until(lambda: "nr_throttled 0\n" not in (leaf / "cpu.stat").read_text(), "throttling")
    rig.forkserver.close()
    wait_until(lambda: not leaves(grant), "the end of the group")
    assert not sleeping(mark)
