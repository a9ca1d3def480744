"""What counts as use, and what an operator's command says of GPUs (semantics W13)."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from tests.unit.workers.test_health import Clock
from tests.waiting import wait_until
from workers.rundir import KNOWN_FOR_S, RunDir
from workers.unused import GPUS_EVERY_S, GpuUse, Unused


class Looked:
    """An executor that is looked at each second."""

    def __init__(self, after_s: float | None = 100) -> None:
        self.clock, self.cpu_ms = Clock(), 0.0
        self.gpus: dict[str, float] | None = None
        self.unused = Unused(after_s, lambda: self.gpus, self.clock)

    def passes(self, seconds: int, *, of_a_core: float = 0.0) -> tuple[str, int] | None:
        for _ in range(seconds):
            self.clock.s += 1
            self.cpu_ms += of_a_core * 1000
            self.unused.look(lambda: round(self.cpu_ms))
        return self.unused.of


def test_less_than_a_hundredth_of_a_core_is_no_use() -> None:
    for used, since_s in ((0.0, 100), (0.009, 100), (0.011, None), (1.0, None)):
        looked = Looked()
        looked.passes(1)
        found = looked.passes(100, of_a_core=used)
        assert found == (None if since_s is None else ("cores", since_s)), used


def test_what_works_again_is_used_and_idle_anew() -> None:
    looked = Looked()
    assert looked.passes(101) == ("cores", 100)
    assert looked.passes(20, of_a_core=1.0) is None
    assert looked.passes(95) is None
    assert looked.passes(10) is not None


def test_a_task_that_begins_has_not_been_idle() -> None:
    looked = Looked()
    looked.passes(95)
    looked.unused.begin()
    assert looked.passes(95) is None


def test_gpus_that_nobody_uses_are_unused_while_cores_work() -> None:
    looked = Looked()
    looked.gpus = {"0": 0.0, "1": 0.0}
    looked.passes(95, of_a_core=1.0)
    assert looked.passes(10, of_a_core=1.0) == ("GPUs", 104)
    looked.gpus = {"0": 0.0, "1": 3.0}
    assert looked.passes(10, of_a_core=1.0) is None
    looked.gpus = {"0": 0.0, "1": 0.0}
    looked.passes(60, of_a_core=1.0)
    looked.gpus = None
    assert looked.passes(60, of_a_core=1.0) is None, "what nobody knows is not unused"


def test_nobody_looks_where_nobody_asks() -> None:
    looked = Looked(None)
    assert looked.passes(1000) is None
    looked.unused.look(lambda: pytest.fail("looked"))


def using(script: str) -> tuple[GpuUse, list[object], Clock]:
    """What runs the script, what that says, and its clock."""
    said: list[object] = []
    clock = Clock()
    return GpuUse(("/bin/sh", "-c", script), said.append, clock), said, clock


def looked(gpus: GpuUse) -> bool:
    gpus.look()
    return True


@pytest.mark.parametrize("printed", ["0 35\\n1 0", "0, 35 %%\\n\\n1, 0 %%\\n", "0\\t35.0%%\\n1 0"])
def test_each_line_tells_of_a_gpu(printed: str) -> None:
    gpus, said, _ = using(f"printf '{printed}'")
    wait_until(lambda: looked(gpus) and bool(said), "what the command says")
    assert said == [{"0": 35.0, "1": 0.0}]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 0 35; exit 3", "it ended with exit code 3"),
        ("echo half", "it printed 'half', which is not `ADDRESS PERCENT`"),
    ],
)
def test_a_command_that_says_something_else_is_told_of_once(script: str, why: str) -> None:
    gpus, said, clock = using(script)
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            wait_until(lambda: looked(gpus) and not gpus.runs, "the command to end")
            clock.s += GPUS_EVERY_S
    assert [each["reason"] for each in logs] == [why]
    assert said == []


def test_a_command_that_hangs_is_killed_before_the_next() -> None:
    gpus, said, clock = using("exec sleep 600")
    with structlog.testing.capture_logs() as logs:
        gpus.look()
        assert gpus.runs
        clock.s += GPUS_EVERY_S
        wait_until(lambda: looked(gpus) and bool(logs), "its end")
    assert logs[0]["reason"] == "it ended with exit code -9"
    gpus.look()
    gpus.close()
    missing = GpuUse(("/no/such/program",), said.append, clock)
    with structlog.testing.capture_logs() as logs:
        missing.look()
    assert logs[0]["reason"] == "it cannot be run: No such file or directory"
    assert said == []


def test_executors_find_what_was_noted_lately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, now = RunDir(tmp_path, "w1"), [1000.0]
    files.make()
    monkeypatch.setattr("time.time", lambda: now[0])
    assert files.gpu_use(["0"]) is None
    files.note_gpu_use({"0": 1.0, "1": 0.0})
    assert files.gpu_use(["0", "1"]) == {"0": 1.0, "1": 0.0}
    assert files.gpu_use(["0", "7"]) is None
    assert files.gpu_use([]) is None
    now[0] += KNOWN_FOR_S
    assert files.gpu_use(["0"]) is None
