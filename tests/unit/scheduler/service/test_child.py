"""Child processes: started again after a pause that grows, stopped, and ended with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from scheduler.service import child as child_module
from scheduler.service.child import Child, die_with_parent, dies_with_us, run_module
from tests.waiting import wait_until

SLEEP = ["/bin/sleep", "60"]


def ended(child: Child) -> str:
    """What `tend` says of a child's end, waited for."""
    wait_until(lambda: child.exit_code is not None, "its end")
    said = child.tend()
    assert said is not None
    return said


def test_a_child_that_keeps_failing_is_started_again_with_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(child_module, "time", SimpleNamespace(monotonic=lambda: now))
    child = Child("it", ["/bin/sh", "-c", "echo no room; exit 3"], tmp_path / "log")
    child.start()
    for pause_s in (0.2, 0.5, 1, 2, 5, 5):
        assert ended(child) == f"it ended with exit code 3 (no room); starting it again in {pause_s:g} s"
        now += pause_s / 2
        assert child.tend() is None
        assert child.exit_code is None
        now += pause_s
        assert child.tend() is None
    child.wait()
    assert child.failures == ["no room"] * 6


def test_a_child_that_lived_long_is_started_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(child_module, "time", SimpleNamespace(monotonic=lambda: now))
    child = Child("it", SLEEP)
    child.start()
    first = child.pid
    assert first is not None
    now += child_module.SHORT_LIFE_S
    os.kill(first, signal.SIGKILL)
    assert ended(child) == "it was ended by SIGKILL; starting it again"
    child.tend()
    assert child.pid not in {None, first}
    assert child.failures == []
    child.ask_to_stop()
    child.wait()


def test_a_child_that_does_not_stop_is_killed_at_the_deadline(tmp_path: Path) -> None:
    child = Child("it", ["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"], tmp_path / "log")
    child.start()
    wait_until(lambda: child.last_words() == "ready", "its start")
    child.ask_to_stop()
    child.wait(0.0)
    assert child.exit_code == -signal.SIGKILL
    assert child.pid is None


def test_a_process_ends_at_once_if_its_parent_is_gone_already() -> None:
    script = f"from {die_with_parent.__module__} import die_with_parent; die_with_parent(1)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a program that is not ours")
def test_a_program_dies_with_the_process_that_started_it() -> None:
    script = (
        "import subprocess, sys; from scheduler.service.child import dies_with_us; "
        f"print(subprocess.Popen(dies_with_us({SLEEP!r})).pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_until(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0], "the program")
        parent.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "its end")


def test_a_program_that_does_not_start_says_why() -> None:
    told = subprocess.run(dies_with_us(["/nowhere/at/all"]), check=False, capture_output=True, text=True)
    assert (told.returncode, told.stderr) == (1, "/nowhere/at/all does not start: No such file or directory\n")


def test_our_module_runs_whatever_the_current_folder_holds(tmp_path: Path) -> None:
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "__init__.py").write_text("raise SystemExit('not ours')")
    told = subprocess.run(run_module("scheduler.store.keys"), check=False, cwd=tmp_path, capture_output=True, text=True)
    assert (told.returncode, told.stderr) == (0, "")
