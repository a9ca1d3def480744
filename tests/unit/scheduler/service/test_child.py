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
ROOT = Path(__file__).parents[4]


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


_FORKS = """
import os, signal, subprocess, sys
from pathlib import Path
from scheduler.service.child import Forked

def about_itself():
    fork = [sys.stdin.read(), os.getsid(0) == os.getpid(), *map(signal.getsignal, (signal.SIGTERM, signal.SIGINT))]
    print(fork == ["", True, signal.SIG_DFL, signal.default_int_handler], sorted(map(int, os.listdir("/dev/fd"))))
    os.read(kept, 1)

def raises():
    raise ValueError("not so")

log = Path(sys.argv[1])
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: print("the parent's handler"))
print("written once")
others = [os.pipe() for _ in range(3)]
kept, ours = os.pipe()
itself = Forked(about_itself, log=log, keep=kept)
try:
    itself.wait(0)
except subprocess.TimeoutExpired:
    print("runs", itself.poll())
os.write(ours, b"x")
print(itself.wait(), *(Forked(program, log=log).wait() for program in (raises, sys.exit, lambda: sys.exit("a reason"))))
for number in (signal.SIGTERM, signal.SIGKILL):
    waits = Forked(signal.pause)
    waits.send_signal(number)
    print(waits.wait(), signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)
"""


def test_a_fork_has_nothing_of_its_parent_but_modules_and_what_it_is_given(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", _FORKS, str(log)]
    told = subprocess.run(command, check=False, cwd=ROOT, input="not the fork's", capture_output=True, text=True)
    assert (told.stderr, told.returncode) == ("", 0)
    assert told.stdout.splitlines() == ["written once", "runs None", "0 1 0 1", "-15 True", "-9 True"]
    first, *_, last, reason = log.read_text().splitlines()
    assert first.startswith("True [0, 1, 2, ")
    assert first.count(",") == 4  # what is kept, and the descriptor that lists them
    assert (last, reason) == ("ValueError: not so", "a reason")


def test_a_child_that_is_a_function_is_forked_again_when_it_ends(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from scheduler.service.child import Child; "
        "child = Child('it', lambda: sys.exit('no room'), Path(sys.argv[1]))\n"
        "while len(child.failures) < 2: child.tend()\n"
        "print(child.failures)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    told = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    assert told.stdout == "['no room', 'no room']\n"


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
