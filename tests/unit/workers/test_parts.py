"""The parts that agents and executors are made of: files, memory, offers, environments, processes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from scheduler.model.errors import FairlogError
from scheduler.model.grants import Grant
from tests.waiting import wait_until
from workers import memory, tasks
from workers.launchers import LAUNCHERS
from workers.memory import TaskCgroup, excess
from workers.offer import default_memory_mb, make_offers
from workers.processes import descendants, in_session, is_zombie, kill_until_gone, proportional_mb, resident_mb
from workers.rundir import ExitNote, Holder, RunDir


@pytest.fixture
def files(tmp_path: Path) -> RunDir:
    files = RunDir(tmp_path / "run", "w1")
    files.make()
    return files


GRANT = Grant(
    executor="a.0",
    app="a",
    company="acme",
    user="ann",
    name="",
    cores=4,
    memory_mb=2048,
    tasks=9,
    command=("true",),
    env=("TOKEN",),
    cwd=None,
    retries=0,
    time_limit_s=None,
)


def test_an_executor_runs_as_long_as_its_lock_is_held(files: RunDir) -> None:
    lock = files.claim_executor("a.0")
    assert lock is not None
    files.name_holder(lock, Holder("a.0", "a", 4711))
    assert files.claim_executor("a.0") is None
    assert files.is_running("a.0")
    assert files.known() == [Holder("a.0", "a", 4711)]
    os.close(lock)
    assert not files.is_running("a.0")
    assert files.known() == [Holder("a.0", "a", 4711)]


def test_a_lock_without_a_name_in_it_still_tells_the_app(files: RunDir) -> None:
    lock = files.claim_executor("my.app.3")
    assert lock is not None
    assert files.known() == [Holder("my.app.3", "my.app", 0)]
    os.close(lock)


def test_the_first_note_of_an_end_counts(files: RunDir) -> None:
    files.write_exit("a.0", ExitNote(app="a", reason="exited", exit_code=0, done=True))
    files.write_exit("a.0", ExitNote(app="a", reason="failed", exit_code=137))
    note = files.read_exit("a.0")
    assert note is not None
    assert note.done


def test_a_forgotten_executor_leaves_no_file(files: RunDir) -> None:
    lock = files.claim_executor("a.0")
    assert lock is not None
    os.close(lock)
    files.write_exit("a.0", ExitNote(app="a", reason="exited"))
    files.forget("a.0")
    assert files.known() == []
    assert files.read_exit("a.0") is None


@pytest.mark.parametrize("name", ["..", "../../etc", "a/b", ".hidden"])
def test_no_name_leads_out_of_the_workers_folder(tmp_path: Path, name: str) -> None:
    root = tmp_path / "run"
    assert RunDir(root, name).path.resolve().parent == root.resolve()
    log = RunDir(root, "w").log_file(name, 0).resolve()
    assert log.parent.parent == (root / "w" / "logs").resolve()


def test_cpus_are_claimed_all_or_none_and_never_twice(files: RunDir) -> None:
    available = sorted(os.sched_getaffinity(0))
    assert files.claim_cpus(len(available) + 1) == []
    assert files.claim_cpus(len(available)) == available
    assert RunDir(files.root, "w2").claim_cpus(1) == []


def test_tasks_within_their_memory_are_left_alone() -> None:
    assert excess({0: [os.getpid()]}, limit_mb=1 << 20) is None


def test_the_largest_task_is_named_when_all_together_use_too_much() -> None:
    small = subprocess.Popen(["sleep", "60"])
    try:
        found = excess({0: [small.pid], 1: [os.getpid()]}, limit_mb=4)
    finally:
        small.kill()
        small.wait()
    assert found is not None
    assert found.task == 1
    assert found.used_mb > 4


def test_processes_that_are_gone_use_no_memory() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert resident_mb([gone.pid]) == 0
    assert proportional_mb([gone.pid]) == 0


def delegated(root: Path, *, with_memory: bool) -> Path:
    """A folder that looks like a cgroup file system in which this process may make groups."""
    (root / "here").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("memory")
    group = root / "here" / "fairlog-a.0"
    if with_memory:
        group.mkdir()
        for name in ("memory.max", "cgroup.procs", "memory.events"):
            (group / name).touch()
    return group


def test_a_cgroup_holds_the_tasks_to_the_grant_where_one_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = delegated(tmp_path, with_memory=True)
    monkeypatch.setattr(memory, "_parents", lambda root: [root / "here"])
    cgroup = TaskCgroup.make("a.0", 256, root=tmp_path)
    assert cgroup is not None
    assert (group / "memory.max").read_text() == str(256 * 1024 * 1024)
    cgroup.add(4711)
    assert (group / "cgroup.procs").read_text() == "4711"
    assert not cgroup.has_killed()
    (group / "memory.events").write_text("oom 1\noom_kill 1\n")
    assert cgroup.has_killed()
    assert not cgroup.has_killed()


def test_a_cgroup_without_the_memory_controller_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = delegated(tmp_path, with_memory=False)
    monkeypatch.setattr(memory, "_parents", lambda root: [root / "here"])
    assert TaskCgroup.make("a.0", 256, root=tmp_path) is None
    assert not group.exists()


def test_cgroups_are_looked_for_where_this_process_is(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    own = tmp_path / "own"
    own.write_text("1:cpu:/x\n0::/user/app\n")
    assert memory._parents(tmp_path, own) == [tmp_path / "user/app", tmp_path / "user"]
    own.write_text("0::/\n")
    assert memory._parents(tmp_path, own) == [tmp_path]
    own.write_text("1:memory:/x\n")
    assert memory._parents(tmp_path, own) == []


def test_the_submitters_variables_stand_above_the_machines_and_ours_above_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LANG", "C")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("PRIVATE", "x")
    environment = tasks.task_environment(GRANT, {"LANG": "de_DE", "FAIRLOG_APP_ID": "forged"})
    assert (environment["LANG"], environment["LC_ALL"], environment["FAIRLOG_APP_ID"]) == ("de_DE", "C.UTF-8", "a")
    assert "PRIVATE" not in environment


def test_another_rq_worker_cannot_run_a_task() -> None:
    with pytest.raises(FairlogError, match="task 3 of 'a' can be run only by executors"):
        tasks.run("a", 3)


def test_a_machine_offers_its_memory_in_steps_and_shares_it_among_instances() -> None:
    whole = make_offers(host="node")[0]
    assert (whole.worker, whole.memory_mb, whole.cores) == ("node", default_memory_mb(), os.cpu_count())
    assert whole.memory_mb % 512 == 0
    halves = make_offers(worker="w", instances=2)
    assert [offer.worker for offer in halves] == ["w-1", "w-2"]
    assert sum(offer.memory_mb for offer in halves) <= whole.memory_mb
    assert all(offer.memory_mb % 512 == 0 for offer in halves)


def test_killing_until_gone_reaches_children_of_children() -> None:
    top = subprocess.Popen(["/bin/sh", "-c", "sleep 60 & sleep 60 & wait"], start_new_session=True)
    wait_until(lambda: len(descendants(top.pid)) == 2, "both children")
    assert sorted([top.pid, *descendants(top.pid)]) == sorted(in_session(top.pid))
    assert kill_until_gone(lambda: [*in_session(top.pid), *descendants(top.pid)])
    assert top.wait() == -signal.SIGKILL
    assert all(is_zombie(pid) for pid in in_session(top.pid))


def test_every_launcher_has_a_name() -> None:
    assert set(LAUNCHERS) == {"preloaded", "fresh"}


def test_an_offer_that_executors_cannot_use_up_says_so() -> None:
    assert make_offers(cores=8, memory_mb=4096)[0].oddity is None
    assert make_offers(cores=7, memory_mb=4000)[0].oddity == (
        "7 cores are not an even number and 4000 MiB are not a multiple of 512: part of the offer may stay unused"
    )
