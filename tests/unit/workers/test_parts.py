"""Parts of agents and executors: files, memory, offers, environments, processes."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import pwd
import re
import signal
import socket
import struct
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path

import pytest

from scheduler.model.errors import FairlogError
from scheduler.model.grants import Grant
from scheduler.service.folders import is_personal
from scheduler.store.task_queue import Completion, TaskBegun
from tests.waiting import wait_until
from workers import task_init, tasks
from workers.agent import _kill_tasks
from workers.cell import Cell, EndedTask
from workers.executor import ExecutorSpec
from workers.forkserver import _ForkServer
from workers.launchers import Place, launch
from workers.memory import excess
from workers.offer import DiscoveryFailed, default_memory_mb, discovered, divided, make_offers
from workers.processes import (
    descendants,
    environment_value,
    in_session,
    kill_until_gone,
    proportional_mb,
    resident_mb,
    started_s,
)
from workers.program import why_not_started
from workers.rundir import ExitNote, Holder, RunDir
from workers.sandbox import CellSettings
from workers.supervisor import REFUSED
from workers.token import Most, Terms


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


def unsandboxed(grant: Grant, files: RunDir) -> tuple[tasks.TaskStarter, Cell]:
    """What starts the tasks of an executor, as processes of this user."""
    files.make()
    cell = launch("plain", Place(grant, files, CellSettings()), lambda _: None)
    return tasks.TaskStarter(grant, "w1", files, cell, dict), cell


def ended_of(cell: Cell) -> EndedTask:
    found: list[EndedTask] = []

    def look() -> list[EndedTask]:
        found.extend(cell.ended())
        return found

    wait_until(look, "the end of a task")
    return found[0]


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


def test_a_lock_file_that_cannot_be_read_still_tells_the_app(files: RunDir) -> None:
    lock = files.claim_executor("my.app.3")
    assert lock is not None
    for content in (b"", b"null", b'{"pid": 1', b'{"other": 1}'):
        os.pwrite(lock, content, 0)
        os.ftruncate(lock, len(content))
        assert files.known() == [Holder("my.app.3", "my.app", 0)]
    os.close(lock)


def test_the_first_exit_note_counts(files: RunDir) -> None:
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
    files.reserve_exit("a.0")
    files.reserve_exit("a.0.1")
    files.forget("a.0")
    assert [path.name for path in (files.path / "executors").iterdir()] == ["a.0.1.room"]


def test_a_damaged_exit_note_counts_as_missing(files: RunDir) -> None:
    (files.path / "executors" / "a.0.exit").touch()
    assert files.read_exit("a.0") is None


@pytest.mark.parametrize("name", ["..", "../../etc", "a/b", ".hidden"])
def test_no_name_leads_out_of_the_workers_folder(tmp_path: Path, name: str) -> None:
    root = tmp_path / "run"
    assert RunDir(root, name).path.resolve().parent == root.resolve()
    log = RunDir(root, "w").log_files(name, "0")[0].resolve()
    assert log.parent.parent == (root / "w" / "logs").resolve()


def test_cpus_are_claimed_all_or_none_and_never_twice(files: RunDir) -> None:
    available = sorted(os.sched_getaffinity(0))
    assert files.claim_cpus(len(available) + 1) == []
    assert files.claim_cpus(len(available)) == available
    assert RunDir(files.root, "w2").claim_cpus(1) == []


def test_tasks_within_their_memory_limit_do_not_exceed_it() -> None:
    assert excess({0: [os.getpid()]}, limit_mb=1 << 20) is None


def test_the_largest_task_is_named_if_all_together_exceed_the_limit() -> None:
    small = subprocess.Popen(["sleep", "60"])
    try:
        found = excess({0: [small.pid], 1: [os.getpid()]}, limit_mb=4)
    finally:
        small.kill()
        small.wait()
    assert found is not None
    assert found.task == 1
    assert found.used_mb == sum(found.sizes.values()) > 4


def test_ended_processes_use_no_memory() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert resident_mb([gone.pid]) == 0
    assert proportional_mb([gone.pid]) == 0


def test_variables_of_the_submitter_override_the_machines_and_fairlogs_override_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHELL", "/bin/dash")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PRIVATE", "x")
    cell = {"HOME": "/cell", "FAIRLOG_SCRATCH": "/cell/scratch"}
    given = {"LANG": "de_DE", "HOME": "/mine", "FAIRLOG_APP_ID": "forged", "FAIRLOG_SCRATCH": "forged"}
    environment = tasks.task_environment(GRANT, cell, given)
    assert (environment["LANG"], environment["SHELL"], environment["FAIRLOG_APP_ID"]) == ("de_DE", "/bin/dash", "a")
    assert (environment["HOME"], environment["FAIRLOG_SCRATCH"]) == ("/mine", "/cell/scratch")
    assert not {"PRIVATE", "LC_ALL"} & environment.keys()


def test_tasks_have_the_same_locale_however_the_agent_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "de_DE.ISO-8859-1")
    monkeypatch.setenv("LC_CTYPE", "POSIX")
    environment = tasks.task_environment(GRANT, {}, {})
    assert {name: value for name, value in environment.items() if name.startswith(("LANG", "LC_"))} == {
        "LANG": "C.UTF-8"
    }


def test_tasks_of_an_equal_executor_of_another_cluster_are_not_killed(tmp_path: Path) -> None:
    """The links lead to the same folder: an agent may name its folder differently after a restart."""
    grant = GRANT.model_copy(update={"command": ("sleep", "60")})
    (tmp_path / "link").symlink_to(tmp_path)
    cells, pids = [], []
    for root in (tmp_path / "ours", tmp_path / "others"):
        starter, cell = unsandboxed(grant, RunDir(root, "w1"))
        started = starter.start(TaskBegun(0, 1))[0]
        assert isinstance(started, tasks.Task)
        cells.append(cell)
        pids.append(started.pid)
        wait_until(partial(environment_value, started.pid, tasks.LOCK_VARIABLE), "the task's environment")
    _kill_tasks(RunDir(tmp_path / "link" / "ours", "w1"), Holder("a.0", "a", 0))
    assert [started_s(pid) is None for pid in pids] == [True, False]
    for cell in cells:
        assert cell.kill()
    assert [started_s(pid) for pid in pids] == [None, None]


def test_another_rq_worker_cannot_run_a_task() -> None:
    with pytest.raises(FairlogError, match="task 3 of 'a' runs only in fairlog's executors"):
        tasks.run("a", 3)


def test_a_machine_offers_its_memory_in_steps_and_divides_it_among_instances() -> None:
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
    assert all(started_s(pid) is None for pid in in_session(top.pid))


def test_an_offer_of_which_a_part_may_stay_unused_says_so() -> None:
    assert make_offers(cores=8, memory_mb=4096)[0].oddity is None
    assert make_offers(cores=7, memory_mb=4000)[0].oddity == (
        "7 is not an even number of cores and 4000 MiB are not a multiple of 512: part of the offer may stay unused"
    )


def test_an_offer_that_is_small_says_so_once_its_invitation_is_known() -> None:
    """The machine's own size is not the offer: what is lowered by the invitation cannot be raised by options."""

    def said(terms: Terms, *, cores: int, memory_mb: int) -> str | None:
        return make_offers(cores=cores, memory_mb=memory_mb)[0].within(terms).smallness

    anything = Terms()
    assert said(anything, cores=4, memory_mb=2048) is None
    small = "2 cores and 4096 MiB are less than the default size of the smallest executor (4 cores, 2048 MiB); "
    assert said(anything, cores=2, memory_mb=4096) == f"{small}offer more with --cores and --memory"
    assert said(Terms(offer=Most(2, 65536)), cores=2, memory_mb=4096) == f"{small}its invitation allows no more"
    assert said(Terms(offer=Most(16, 65536)), cores=2, memory_mb=4096) == f"{small}offer more with --cores and --memory"
    assert said(Terms(offer=Most(8, 1024)), cores=8, memory_mb=1024) == (
        "8 cores and 1024 MiB are less than the default size of the smallest executor (4 cores, 2048 MiB); its "
        "invitation allows no more"
    )


def test_a_forkserver_survives_a_failed_fork_and_releases_the_lock(
    files: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    ours, theirs = socket.socketpair()
    spec = ExecutorSpec(grant=GRANT, worker="w1", store="", cluster="", run_dir=files.root)
    with ours, theirs:
        server = _ForkServer.__new__(_ForkServer)
        server._requests = theirs.makefile("rb")
        for request in (spec.model_dump_json().encode(), b""):
            ours.sendall(request + b"\n")
            server._answer(theirs)
            assert ours.recv(9) == b"-%d" % errno.EAGAIN
        server._requests.close()
    assert not files.is_running("a.0")


def test_a_supervisor_restarts_an_agent_that_fails_but_not_one_that_is_refused(tmp_path: Path) -> None:
    """An uncaught exception exits with 1, so a refusal needs another code."""
    runs = tmp_path / "runs"
    script = f"echo x >> {runs}; test $(wc -l < {runs}) = 2 && exit {REFUSED}; exit 1"
    run = f"""
import os
from workers.supervisor import Supervisor
Supervisor([lambda: os.execv("/bin/sh", ["sh", "-c", {script!r}])]).run()
"""
    ended = subprocess.run([sys.executable, "-c", run], check=False, cwd=Path(__file__).parents[3], capture_output=True)
    assert (ended.returncode, runs.read_text()) == (1, "x\nx\n")


def test_a_program_finds_its_addresses_in_its_environment() -> None:
    """Semantics R5."""
    held = {"fpga": ("a",), "gpu": ("0", "2"), "gpu.a100": ("7",)}
    assert tasks.resource_environment(held) == {
        "FAIRLOG_RESOURCES": '{"fpga": ["a"], "gpu": ["0", "2"], "gpu.a100": ["7"]}',
        "CUDA_VISIBLE_DEVICES": "0,2,7",
    }
    assert tasks.resource_environment({"fpga": ("a",)}) == {"FAIRLOG_RESOURCES": '{"fpga": ["a"]}'}
    assert tasks.resource_environment({}) == {}


def test_a_program_without_gpus_is_told_so_where_there_are_some() -> None:
    """Semantics R5."""
    assert tasks.resource_environment({}, among_gpus=True) == {"CUDA_VISIBLE_DEVICES": ""}
    assert tasks.resource_environment({"fpga": ("a",)}, among_gpus=True)["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("amount", "addresses", "of_each"),
    [
        ((1, 1), "0123", ["0", "1", "2", "3"]),
        ((2, 1), "01234567", ["01", "23", "45", "67"]),
        ((1, 4), "0", ["0", "0", "0", "0"]),
        ((1, 2), "01", ["0", "0", "1", "1"]),
        ((3, 4), "012", ["0", "01", "12", "2"]),
    ],
)
def test_tasks_that_state_amounts_find_their_part(amount: tuple[int, int], addresses: str, of_each: list[str]) -> None:
    """Semantics R3, R5."""
    grant = GRANT.model_copy(update={"addresses": {"gpu": tuple(addresses)}, "per_task": (("gpu", *amount),)})
    found = [tasks.task_addresses(grant, slot)["gpu"] for slot in range(4)]
    assert ["".join(each) for each in found] == of_each


def test_a_task_takes_the_first_slot_in_which_none_runs(tmp_path: Path) -> None:
    held = {"gpu": ("a", "b")}
    grant = GRANT.model_copy(update={"command": ("sleep", "60"), "addresses": held, "per_task": (("gpu", 1, 1),)})
    starter, cell = unsandboxed(grant, RunDir(tmp_path, "w1"))
    visible = []
    for task in range(3):
        started = starter.start(TaskBegun(task, 1))[0]
        assert isinstance(started, tasks.Task)
        wait_until(partial(environment_value, started.pid, "CUDA_VISIBLE_DEVICES"), "the task's environment")
        visible.append(environment_value(started.pid, "CUDA_VISIBLE_DEVICES"))
        if task != 1:
            os.kill(started.pid, signal.SIGKILL)
            started.end(ended_of(cell))
    cell.kill()
    assert visible == ["a", "a", "b"]


def test_addresses_are_divided_among_the_workers_of_a_machine() -> None:
    assert divided({"gpu": tuple("01234"), "fpga": ("a",)}, 2) == [
        {"gpu": ("0", "1"), "fpga": ()},
        {"gpu": ("2", "3", "4"), "fpga": ("a",)},
    ]


def test_a_command_discovers_addresses_as_in_spark() -> None:
    """Semantics R1."""
    said = '{"name": "gpu", "addresses": ["0", "1"]}'
    assert discovered(f"echo '{said}'") == ("gpu", ("0", "1"))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("echo gpu", "`echo gpu` must print a resource such as"),
        ("sh -c 'echo no driver >&2; exit 3'", "ended with exit code 3: no driver"),
        ("/nowhere/find-gpus", "`/nowhere/find-gpus` cannot be run: No such file or directory"),
        ("", "`` cannot be run: it is empty"),
        ("echo 'a", "must print a resource such as"),
    ],
)
def test_a_command_that_discovers_nothing_is_named(command: str, why: str) -> None:
    with pytest.raises(DiscoveryFailed, match=re.escape(why)):
        discovered(command)


def test_the_lock_file_says_which_addresses_its_executor_holds(files: RunDir) -> None:
    lock = files.claim_executor("a.0")
    assert lock is not None
    files.name_holder(lock, Holder("a.0", "a", 4711, 4, 2048, {"gpu": ("0",)}))
    (found,) = files.known()
    assert found.addresses == {"gpu": ["0"]}


_SET_MAP = 35, 14


def _claim_environment(size: int) -> bool:
    """Have this process say that so much of its memory is its environment. False if the kernel does not permit it."""
    libc = ctypes.CDLL(None)
    block = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(block))
    libc.sbrk.restype = ctypes.c_void_p
    field = ["", "", "", *Path("/proc/self/stat").read_text().rpartition(")")[2].split()]
    known = [int(field[number]) for number in (26, 27, 45, 46, 47)]
    others = [int(field[number]) for number in (28, 48, 49)]
    words = [*known, libc.sbrk(0), *others, start, start + size, 0]
    told = ctypes.create_string_buffer(struct.pack("<12QIi", *words, 0, -1))
    return bool(libc.prctl(*_SET_MAP, ctypes.c_ulong(ctypes.addressof(told)), ctypes.c_ulong(len(told) - 1), 0) == 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process say where its environment is")
def test_the_environment_of_a_process_is_read_up_to_a_bound() -> None:
    """A process can say that terabytes of its memory are its environment; who looks at it has no limit of memory."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        try:
            theirs.send(b"1" if _claim_environment(256 << 20) else b"0")
            theirs.recv(1)
        finally:
            os._exit(0)
    theirs.close()
    try:
        if ours.recv(1) != b"1":
            pytest.skip("the kernel does not permit it")
        tracemalloc.start()
        assert environment_value(pid, "FAIRLOG_TASK_INDEX") is None
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
        ours.close()
        os.waitpid(pid, 0)


def test_a_file_for_a_task_takes_the_place_of_whatever_is_there(tmp_path: Path) -> None:
    """A FIFO would take what is written, or wait for somebody to read it."""
    path = tmp_path / "staged"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    task_init._write(str(path), b"content")
    os.close(reader)
    assert path.read_bytes() == b"content"


def test_no_folder_of_another_user_or_a_service_is_an_apps_where_root_would_write_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"/home/bob{name}" for name in ("", "/.ssh", "/work")] + ["/var/spool/cron", "/srv/acme"]
    bob = pwd.struct_passwd(("bob", "x", 1000, 1000, "", "/home/bob", ""))
    monkeypatch.setattr(pwd, "getpwall", lambda: [bob, pwd.struct_passwd(("nobody", "x", 1, 1, "", "/", ""))])
    monkeypatch.setenv("HOME", "/home/ann")
    for uid, personal in ((0, [True, True, False, True, False]), (1001, [False] * 5)):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        assert [is_personal(Path(name)) for name in names] == personal


@pytest.mark.parametrize(
    ("code", "ran_s", "message", "starts"),
    [
        (127, 0.1, "", False),
        (126, 9.9, "", False),
        (127, 10.0, "", True),
        (1, 0.1, "", True),
        (126, 0.1, "worker w can start nothing at present", True),
    ],
)
def test_a_program_could_not_be_started_that_ends_at_once_as_shells_do(
    code: int, ran_s: float, message: str, *, starts: bool
) -> None:
    ended = Completion(0, "failed", code, message or f"its program ended with exit code {code}")
    assert (why_not_started(ended, ran_s, "w") == "") == starts
