"""Control groups, as a folder that looks like one; `tests/integration/workers/test_cgroups.py` uses real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers import cgroups, machine


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(cgroups, "base_group", lambda: tmp_path)
    return tmp_path


def test_a_check_tells_what_an_agent_in_the_same_group_would_have(group: Path) -> None:
    assert cgroups.limits_in_force() == ["kill"]
    found = {finding.subject: finding.verdict for finding in machine.check()}
    limits = ("memory limit", "cpu limit", "process limit", "end by control group")
    assert [found[name] for name in limits] == ["ok"] * 4
    (group / "cgroup.controllers").write_text("cpu\n")
    found = {finding.subject: finding.verdict for finding in machine.check()}
    assert [found[name] for name in limits] == ["off", "ok", "off", "ok"]


def test_executors_that_run_get_their_limits_again(group: Path) -> None:
    """A service manager takes the controllers away where it could start no agent otherwise; limits are lost by that."""
    locks = [group / f"a.{number}.lock" for number in range(2)]
    leaf = group / cgroups._name(locks[0])
    leaf.mkdir()
    for name in ("memory.max", "pids.max"):
        (leaf / name).write_text("max")
    cgroups.delegate([(lock, 64, 2) for lock in locks])
    assert (group / "cgroup.subtree_control").read_text() == "+memory +cpu +pids"
    assert (leaf / "memory.max").read_text() == str(64 << 20)
    assert (leaf / "pids.max").read_text() == str(cgroups.MOST_PROCESSES)
