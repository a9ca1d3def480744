"""What programs say while their disk is full: dropped, counted, told of; nobody ends because of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.service.child import Child
from scheduler.service.lossy import NO_SPACE, Lossy, outlive_full_disks

ROOT = Path(__file__).parents[4]
_LIMITED = """
import resource, sys, structlog
from scheduler.service.program_log import log_to_stderr
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
log_to_stderr(sys.argv[1])
log = structlog.get_logger()
log.info("begun")
resource.setrlimit(resource.RLIMIT_FSIZE, (150, unlimited[1]))
for number in range(5):
    log.warning("a sentence of some length, of which no file has room for five", number=number)
    print("an answer")
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
log.info("after")
log.info("last")
"""


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_what_the_disk_does_not_take_is_dropped_and_counted(tmp_path: Path, log_format: str) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        subprocess.run(
            [sys.executable, "-c", _LIMITED, log_format], stdout=subprocess.DEVNULL, stderr=file, check=True, cwd=ROOT
        )
    lines = path.read_text().splitlines()
    assert ["begun" in lines[0], "after" in lines[-2], "last" in lines[-1]] == [True, True, True]
    told = lines[-3]
    kept = sum("number" in line and line.rstrip().endswith(("}", "0", "1", "2", "3")) for line in lines)
    if log_format == "json":
        said = json.loads(told)
        assert (said["level"], said["lines"]) == ("warning", 5 - kept)
        told = said["event"]
    assert told == f"the disk did not take {5 - kept} lines of what was said here before: File too large"


def test_without_the_promise_a_full_disk_is_a_failure() -> None:
    script = "import structlog; structlog.PrintLogger(open('/dev/full', 'w')).info('x')"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, cwd=ROOT).returncode


@pytest.mark.parametrize("nested", [0, 1, 2])
def test_stdout_and_stderr_are_outlived_however_often_they_are_made_printable(tmp_path: Path, nested: int) -> None:
    script = (
        "import os, sys; from scheduler.service.lossy import outlive_full_disks; "
        "from fairlog.cli.printed import Printed\n"
        f"for _ in range({nested}): sys.stdout, sys.stderr = Printed(sys.stdout), Printed(sys.stderr)\n"
        "outlive_full_disks(); outlive_full_disks(); print('a'); print('b', file=sys.stderr); "
        "open(sys.argv[1], 'w').write('went on')"
    )
    with Path("/dev/full").open("wb") as full:
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "said")], stdout=full, stderr=full, check=True, cwd=ROOT
        )
    assert (tmp_path / "said").read_text() == "went on"


def test_output_that_nobody_reads_is_a_failure_as_before() -> None:
    script = "from scheduler.service.lossy import Lossy; import os; r, w = os.pipe(); os.close(r); Lossy(w).write(b'x')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert "BrokenPipeError" in done.stderr


def test_streams_that_are_no_files_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    stdout = sys.stdout
    outlive_full_disks()
    assert sys.stdout is stdout
    assert capsys.readouterr().out == ""


def test_a_fork_does_not_tell_what_its_parent_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("wb") as full, (tmp_path / "own").open("wb") as own:
        lossy = Lossy(full.fileno())
        lossy.write(b"lost\n")
        monkeypatch.setattr("os.getpid", lambda: 1)
        os.dup2(own.fileno(), full.fileno())
        lossy.write(b"kept\n")
    assert (tmp_path / "own").read_bytes() == b"kept\n"


def test_a_process_whose_log_has_no_room_has_no_other_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "store.log"
    log.write_text("# WARNING of its start\n")
    child = Child("the store", ["true"], log)
    assert child.last_words() == "# WARNING of its start"
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": NO_SPACE - 1}))
    assert child.last_words() == f"the disk of {log} is full"


def test_a_process_that_cannot_be_started_again_is_tried_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child("the store", [sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "store.log")
    child.start()
    child.wait()
    assert "ended with exit code 3" in str(child.tend())
    child.log = tmp_path / "nowhere" / "store.log"
    monkeypatch.setattr("scheduler.service.child.time.monotonic", lambda: 1e9)
    assert child.tend() == "the store cannot be started (No such file or directory); starting it again in 5 s"
    assert child.tend() is None
    child.log = tmp_path / "store.log"
    monkeypatch.setattr("scheduler.service.child.time.monotonic", lambda: 1e9 + 6)
    assert child.tend() is None
    assert child.exit_code is not None or child.pid is not None
    child.wait()
