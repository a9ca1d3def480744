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


def test_a_check_names_what_mends_a_controller_of_version_1(
    group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To delegate the group gives it no controller that another hierarchy has."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "30 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "31 25 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    )
    found = cgroups.controllers_of_version_1(mounts)
    assert "memory" in found
    assert "pids" not in found
    monkeypatch.setattr(machine, "controllers_of_version_1", lambda: found)
    monkeypatch.setattr(machine, "_SYSTEMD", tmp_path)
    (group / "cgroup.controllers").write_text("cpu\n")
    mends = {finding.subject: finding.mend for finding in machine.check()}
    assert "systemd.unified_cgroup_hierarchy=1" in mends["memory limit"]
    assert "Delegate=yes" in mends["process limit"]


def test_a_check_names_no_command_of_systemd_where_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_SYSTEMD", tmp_path / "nothing")
    monkeypatch.setattr(machine, "limits_to_be_had", list)
    for of_version_1 in ({"memory", "cpu", "pids"}, set()):
        monkeypatch.setattr(machine, "controllers_of_version_1", lambda found=of_version_1: found)
        assert not [finding for finding in machine.check() if "system" in finding.mend]


def test_a_check_says_that_bubblewrap_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "why_no_cell", lambda: "bwrap: Unknown option --disable-userns")
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/bwrap")
    assert {finding.subject: finding.mend for finding in machine.check()}["launcher cell"] == machine._BUBBLEWRAP


@pytest.mark.parametrize(("user", "said"), [(0, "nothing limits those of root"), (1000, "a limit of the user's")])
def test_a_check_does_not_say_that_a_limit_holds_root(
    group: Path, monkeypatch: pytest.MonkeyPatch, user: int, said: str
) -> None:
    (group / "cgroup.controllers").write_text("cpu\n")
    monkeypatch.setattr("os.geteuid", lambda: user)
    assert said in next(finding.detail for finding in machine.check() if finding.subject == "process limit")
