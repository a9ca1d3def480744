"""Cells as real processes: what a hostile task reaches, and what is left of it."""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, chdir
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlog.local.store import EmbeddedStore
from scheduler.model.grants import Leaving, Outputs
from tests.integration.cli_rig import ROOT
from tests.integration.workers.test_executor import outputs, shell
from tests.integration.workers.worker_rig import WORKER, Rig
from tests.waiting import HOPELESS_S, wait_until
from workers import sandbox
from workers.cgroups import base_group
from workers.forkserver import Forkserver
from workers.gpus import device_files
from workers.launch_helper import AccountMap, identity
from workers.launchers import LAUNCHERS, Place
from workers.processes import started_s
from workers.sandbox import CellSettings, ForOthers, NoCell, why_no_cell

OTHER = 54398
"""Another user whom the helper serves."""
ATTACK = Path(__file__).with_name("attack.py").read_text()
as_root = pytest.mark.skipif(
    bool(os.geteuid() or why_no_cell()), reason=f"needs root and cells{': ' if why_no_cell() else ''}{why_no_cell()}"
)
in_cells = pytest.mark.skipif(bool(why_no_cell()), reason=f"no cell can be started: {why_no_cell()}")


@pytest.fixture(scope="module")
def own_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def rig(own_store: EmbeddedStore, tmp_path: Path, forkserver: Forkserver) -> Iterator[Rig]:
    rig = Rig(own_store.url, tmp_path / "run", shared=forkserver)
    rig.launcher, rig.cells = "cell", CellSettings()
    yield rig
    rig.close()


def with_capabilities(*but: str) -> list[str]:
    """The beginning of a command that has the capabilities of its unit alone, without some of them."""
    if os.geteuid() or shutil.which("setpriv") is None:
        return []
    unit = (ROOT / "deploy/systemd/fairlog-launch.service").read_text()
    listed = next(line for line in unit.splitlines() if line.startswith("CapabilityBoundingSet="))
    names = [name.removeprefix("CAP_").lower() for name in listed.partition("=")[2].split()]
    return ["setpriv", "--bounding-set", ",".join(["-all", *(f"+{name}" for name in names if name not in but)])]


@pytest.fixture(scope="module")
def helper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state of a `fairlog-launch` that serves this user. Company acme has uid 54321."""
    folder = tmp_path_factory.mktemp("helper")
    accounts = folder / "accounts.toml"
    (folder / "shared").mkdir()
    (folder / "shared" / "file").write_text("shared")
    share = json.dumps([f"{folder}/shared"])
    accounts.write_text(f"[companies]\nacme = 54321\n[cells]\nshare = {share}\n")
    os.environ["FAIRLOG_LAUNCH_SOCKET"] = str(folder / "socket")
    where = (
        "--map",
        str(accounts),
        "--allow",
        str(os.getuid()),
        "--allow",
        str(OTHER),
        "--state",
        str(folder / "state"),
    )
    process = subprocess.Popen([*with_capabilities(), sys.executable, "-m", "workers.launch_helper", *where])
    folder.chmod(0o711)
    wait_until((folder / "socket").exists, "the helper")
    yield folder / "state"
    process.terminate()
    process.wait()
    del os.environ["FAIRLOG_LAUNCH_SOCKET"]


@pytest.fixture
def account_rig(own_store: EmbeddedStore, tmp_path: Path, helper: Path) -> Iterator[Rig]:
    assert helper
    rig = Rig(own_store.url, tmp_path / "run")
    rig.launcher, rig.cells = "account", CellSettings()
    yield rig
    rig.close()


def asked(request: dict[str, object], uid: int | None = None) -> dict[str, object]:
    """The helper's answer to this user, or to another one."""
    name = Path(os.environ["FAIRLOG_LAUNCH_SOCKET"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line, chdir(name.parent):
        os.seteuid(os.geteuid() if uid is None else uid)
        try:
            line.connect(name.name)
        finally:
            os.seteuid(os.getuid())
        line.send(json.dumps(request).encode())
        answer: dict[str, object] = json.loads(line.recv(4096))
        return answer


def sleeping(mark: str) -> list[int]:
    """The processes that run `sleep MARK`, whoever started them."""
    processes = psutil.process_iter(["cmdline", "status"])
    running = (process for process in processes if process.info["status"] != psutil.STATUS_ZOMBIE)
    return [process.pid for process in running if process.info["cmdline"] == ["sleep", mark]]


def folder_of(path: Path) -> int:
    """Its descriptor; the sandbox takes copies."""
    return os.open(path, os.O_RDONLY)


def a_mark() -> str:
    return f"{random.randrange(10_000, 99_999)}.5"


@in_cells
def test_a_hostile_task_in_a_cell_gets_nothing_and_leaves_nothing(rig: Rig, tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for folder in (mine, theirs):
        folder.mkdir()
    (theirs / "secret").write_text("theirs")
    mark = a_mark()
    forbidden = (str(theirs), str(theirs / "secret"), str(rig.files.root), rig.url.removeprefix("unix://"))
    grant = rig.grant((sys.executable, "-c", ATTACK, mark, *forbidden), cwd=str(mine))
    note = rig.run(grant)
    state = rig.work.states(rig.app)[0]
    assert (state.state, state.message) == ("succeeded", "")
    got = json.loads(outputs(rig, 1)[0].partition("\x07")[2])
    assert [what for what, path in got.items() if not what.startswith("write into /tmp/") or Path(path).exists()] == []
    assert note.done
    assert not sleeping(mark)
    assert not rig.files.scratch(grant.executor).exists()
    assert not rig.files.is_running(grant.executor)


@as_root
def test_a_hostile_task_of_an_account_gets_nothing_and_leaves_nothing(account_rig: Rig, tmp_path: Path) -> None:
    rig, mark = account_rig, a_mark()
    (tmp_path / "secret").write_text("theirs")
    forbidden = (str(tmp_path), str(tmp_path / "secret"), str(rig.files.root), rig.url.removeprefix("unix://"))
    grant = rig.grant((sys.executable, "-c", ATTACK, mark, *forbidden))
    note = rig.run(grant)
    state = rig.work.states(rig.app)[0]
    assert (state.state, state.message) == ("succeeded", "")
    got = json.loads(outputs(rig, 1)[0].partition("\x07")[2])
    assert got == {}
    assert note.done
    assert not sleeping(mark)


@as_root
def test_tasks_run_as_the_account_of_their_company_without_privileges(account_rig: Rig, helper: Path) -> None:
    rig = account_rig
    script = "id -u; id -G; grep -E 'NoNewPrivs|CapEff|CapPrm' /proc/self/status; touch $FAIRLOG_SCRATCH/x && echo mine"
    rig.run(rig.grant(shell(script)))
    printed = outputs(rig, 1)[0].split()
    assert printed[:2] == ["54321", "54321"]
    assert printed[2:8] == ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    assert printed[8:] == ["mine"]
    wait_until(lambda: not list((helper / "scratch").iterdir()), "the end of its folder")


@pytest.mark.parametrize("launcher", [pytest.param("cell", marks=in_cells), pytest.param("account", marks=as_root)])
def test_tasks_of_a_cell_have_shared_memory_of_their_own(launcher: str, request: pytest.FixtureRequest) -> None:
    """As the locks of Python's multiprocessing need."""
    rig: Rig = request.getfixturevalue("account_rig" if launcher == "account" else "rig")
    script = "import multiprocessing, os; print(multiprocessing.Lock().acquire(), os.listdir('/dev/shm'))"
    rig.run(rig.grant((sys.executable, "-c", script)))
    assert outputs(rig, 1) == ["True []\n"]


@as_root
@pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java")
@in_cells
def test_java_finds_its_limits_in_a_cell(rig: Rig) -> None:
    """It reads control groups, of which a cell shows its own alone, and fails if it cannot make sense of them."""
    rig.run(rig.grant(("java", "-XshowSettings:system", "-version"), memory_mb=2048), launcher="cell")
    assert rig.work.states(rig.app)[0].state == "succeeded", outputs(rig, 1)


def test_an_account_is_told_to_leave_and_stopped_like_others(account_rig: Rig) -> None:
    rig = account_rig
    script = "trap 'cat $FAIRLOG_STOP_AT_FILE' USR1; echo ready; while :; do sleep 0.05; done"
    grant = rig.grant(shell(script))
    pid = rig.launch(grant)
    wait_until(lambda: outputs(rig, 1) == ["ready\n"], "the task's trap")
    rig.files.tell_to_leave(grant.executor, Leaving(deadline=1500, signal="USR1"))
    wait_until(lambda: "1.500" in outputs(rig, 1)[0], "what it was told")
    assert asked({"verb": "list"}) == {"cells": [grant.executor]}
    os.kill(pid, signal.SIGTERM)
    assert rig.end_of(grant).reason == "killed"
    wait_until(lambda: asked({"verb": "list"}) == {"cells": []}, "the end of the cell")


@as_root
def test_the_helper_ends_a_cell_on_request_and_with_its_executor(account_rig: Rig) -> None:
    mark = a_mark()
    for number, end in enumerate(("executor", "kill")):
        grant = account_rig.grant(("sleep", mark), number=number, cores=1, tasks=2)
        pid = account_rig.launch(grant)
        wait_until(lambda: sleeping(mark), "the task")
        if end == "kill":
            assert asked({"verb": "kill", "executor": grant.executor}) == {"killed": True}
        else:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not sleeping(mark), "its end")


@as_root
def test_no_user_of_the_helper_sees_or_ends_the_cells_of_another(account_rig: Rig) -> None:
    mark = a_mark()
    grant = account_rig.grant(("sleep", mark))
    pid = account_rig.launch(grant)
    wait_until(lambda: sleeping(mark), "the task")
    assert asked({"verb": "list"}, OTHER) == {"cells": []}
    assert asked({"verb": "kill", "executor": grant.executor}, OTHER) == {"killed": False}
    assert asked({"verb": "list"}) == {"cells": [grant.executor]}
    os.kill(pid, signal.SIGTERM)
    assert account_rig.end_of(grant).reason == "killed"


@as_root
@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"verb": "run"}, "the verbs are start, kill and list"),
        ([], "must be"),
        ({"verb": "start"}, "grant"),
    ],
)
def test_the_helper_refuses_what_is_not_a_request(helper: Path, request_: Any, why: str) -> None:
    assert helper
    assert why in str(asked(request_)["error"])


@as_root
def test_the_helper_waits_for_nothing_from_users_that_it_does_not_serve(helper: Path) -> None:
    """Each would cost it a process, for as long as they like."""
    assert helper
    name = Path(os.environ["FAIRLOG_LAUNCH_SOCKET"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line, chdir(name.parent):
        line.settimeout(HOPELESS_S)
        os.seteuid(54399)
        try:
            line.connect(name.name)
        finally:
            os.seteuid(0)
        assert json.loads(line.recv(4096)) == {"error": "user 54399 is not served by fairlog-launch"}


@as_root
def test_a_company_without_an_account_is_refused(account_rig: Rig) -> None:
    grant = account_rig.grant(shell("id -u")).model_copy(update={"company": "beta"})
    note = account_rig.run(grant)
    assert "neither user beta/ann nor company beta has an account here" in note.unstartable


@pytest.mark.parametrize("text", ["[companies]\nacme = 0\n", "[companies]\nacme = true\n", "[company]\nacme = 10001\n"])
def test_a_map_to_accounts_of_the_system_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "map").write_text(text)
    with pytest.raises(ValueError, match=r"must be a number from 10000 on|the tables are companies, users and cells"):
        AccountMap(tmp_path / "map")


@as_root
@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("shared", ""),
        ("shared/file", ""),
        ("shared:rw", "may not share"),
        ("link", ""),
        ("other", "may not share"),
        ("shared/../other", "may not share"),
        ("shared/out", "may not share"),
        ("", "may not share"),
    ],
)
def test_an_agent_shares_what_the_helpers_own_file_lists_and_nothing_else(
    account_rig: Rig, helper: Path, entry: str, why: str
) -> None:
    """Whoever takes over an agent would read what lies behind closed folders of all users."""
    folder = helper.parent
    (folder / "other").mkdir(exist_ok=True)
    for link, leads in (("link", "shared"), ("shared/out", "../other")):
        if not (folder / link).is_symlink():
            (folder / link).symlink_to(leads)
    account_rig.cells = CellSettings(share=(f"{folder}/{entry}",))
    note = account_rig.run(account_rig.grant(shell(f"cat {folder}/{entry}/file 2>&- || cat {folder}/{entry}")))
    if why:
        assert f"fairlog-launch may not share {folder}/{entry}; its operator adds it to `share`" in note.unstartable
    else:
        assert outputs(account_rig, 1) == ["shared"]


@as_root
def test_what_is_shared_is_reached_with_the_rights_of_who_asks(rig: Rig) -> None:
    """Root would reach what lies behind folders that are closed to the agent's user."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        top = Path(name)
        top.chmod(0o711)
        for folder in ("open/open", "closed/open", "cell/tmp", "cell/scratch"):
            (top / folder).mkdir(parents=True)
        for folder in ("open", "closed"):
            (top / folder / "open" / "file").write_text(folder)
        (top / "closed").chmod(0o700)
        settings = CellSettings(share=(f"{top}/open/open", f"{top}/closed/open"))
        others = ForOthers(identity(54321), identity(54398), {top: True})
        scratch = folder_of(top / "cell")
        command, kept = sandbox.sandbox_command(
            rig.grant(("true",)), settings, scratch=scratch, told=None, others=others
        )
        for descriptor in (scratch, *kept):
            opened.callback(os.close, descriptor)
        look = f"cat {top}/*/open/file"
        done = subprocess.run([*command, "--", "/bin/sh", "-c", look], pass_fds=kept, capture_output=True, check=False)
        assert done.stdout == b"open", done.stderr
        named = [source for option, source in pairwise(command) if option in ("--bind", "--ro-bind")]
        assert not [each for each in named if each.startswith(("/proc/self", str(top)))], "it may be a link by then"


@as_root
def test_the_helper_takes_no_folder_of_somebody_else(helper: Path, tmp_path: Path) -> None:
    """What tasks are told comes as a folder of the agent's own."""
    assert helper
    os.chown(tmp_path, 54399, 54399)
    grant = {"executor": "a.0", "app": "a", "company": "acme", "user": "ann", "name": "", "cores": 1, "memory_mb": 64}
    grant |= {"tasks": 1, "command": [], "env": [], "cwd": None}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line, ours, theirs:
        line.connect(os.environ["FAIRLOG_LAUNCH_SOCKET"])
        request = json.dumps({"verb": "start", "grant": grant}).encode()
        folder = folder_of(tmp_path)
        socket.send_fds(line, [request], [theirs.fileno(), folder])
        os.close(folder)
        assert json.loads(line.recv(4096)) == {
            "error": "with a request to start come a socket and a folder of who asks"
        }


@pytest.mark.parametrize("text", ["[cells]\nshare = 'x'\n", "[cells]\nshare = ['x']\n", "[cells]\nhide = []\n"])
def test_a_list_of_what_is_shared_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "map").write_text(text)
    with pytest.raises(ValueError, match=r"must be a list of absolute paths|it has share alone"):
        AccountMap(tmp_path / "map")


@in_cells
def test_a_link_in_the_place_of_a_folder_above_what_is_kept_is_not_mounted(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("app/above/hidden", "elsewhere", "scratch", "tmp"):
        (tmp_path / name).mkdir(parents=True)
    settings = CellSettings(hidden=(tmp_path / "app/above/hidden",), folders=("/",))
    grant = rig.grant(("true",), cwd=str(tmp_path / "app"))
    exists = Path.exists

    def swapped(path: Path) -> bool:
        found = exists(path)
        if path.name == "hidden" and not (tmp_path / "app/above").is_symlink():
            (tmp_path / "app/above").rename(tmp_path / "app/moved")
            (tmp_path / "app/above").symlink_to(tmp_path / "elsewhere")
        return found

    scratch = folder_of(tmp_path)
    monkeypatch.setattr(Path, "exists", swapped)
    with pytest.raises(NoCell, match="'above' was put out of its place"):
        sandbox.sandbox_command(grant, settings, scratch=scratch, told=None)
    os.close(scratch)


@in_cells
def test_a_link_in_the_place_of_an_apps_folder_lays_it_over_nothing_else(rig: Rig, tmp_path: Path) -> None:
    """Below a folder that is shared, a tenant may put it there while the cell is started."""
    team = tmp_path / "shared" / "team"
    job = team / "local"
    for folder in (job, tmp_path / "scratch", tmp_path / "tmp"):
        folder.mkdir(parents=True)
    (job / "planted").write_text("planted")
    settings = CellSettings(share=(f"{tmp_path}/shared:rw",), folders=("/",))
    read_only = CellSettings(share=(f"{tmp_path}/shared",), folders=("/",))
    with ExitStack() as opened:
        scratch = folder_of(tmp_path)
        opened.callback(os.close, scratch)
        with pytest.raises(NoCell, match="others than root may put a link in the place of a folder; share that with"):
            sandbox.sandbox_command(rig.grant(("true",), cwd=str(job)), read_only, scratch=scratch, told=None)
        command, kept = sandbox.sandbox_command(
            rig.grant(("true",), cwd=str(job)), settings, scratch=scratch, told=None
        )
        for descriptor in kept:
            opened.callback(os.close, descriptor)
        team.rename(team.with_name("moved"))
        team.symlink_to(Path(*[".."] * (len(team.parts) - 2), "usr"))
        look = "cat /usr/local/planted; ls /usr/local"
        done = subprocess.run([*command, "--", "/bin/sh", "-c", look], pass_fds=kept, capture_output=True, check=False)
        assert (done.returncode, b"planted" in done.stdout) == (0, False), done


@as_root
def test_below_a_shared_folder_where_root_alone_writes_an_app_has_its_own(rig: Rig, tmp_path: Path) -> None:
    """What is shared is read there, and the app's folder is written."""
    job = tmp_path / "shared" / "team" / "job"
    job.mkdir(parents=True)
    os.chown(job, 54321, 54321)
    found = sandbox._folder(str(job), rig.grant(("true",)), CellSettings(folders=("/",)), lambda each: each, None)
    assert found is not None
    assert found.descriptor is not None
    os.close(found.descriptor)
    shared = sandbox._Bind(tmp_path / "shared", tmp_path / "shared", writable=False)
    others = ForOthers(identity(54321), identity(54398), {})
    assert not sandbox._is_shared(found, [shared], others)
    os.chown(tmp_path / "shared" / "team", 54321, 54321)
    with pytest.raises(NoCell, match="below the shared"):
        sandbox._is_shared(found, [shared], others)
    assert sandbox._is_shared(found, [shared._replace(writable=True)], others)


@in_cells
def test_a_task_in_a_cell_writes_its_apps_folder_and_its_own(rig: Rig, tmp_path: Path) -> None:
    script = "pwd; echo here > made; echo there > $FAIRLOG_SCRATCH/made; cat $FAIRLOG_SCRATCH/made; echo $HOME; id -u"
    rig.run(rig.grant(shell(script), cwd=str(tmp_path)))
    scratch = "/run/fairlog/scratch"
    assert outputs(rig, 1) == [f"{tmp_path}\nthere\n{scratch}\n{os.getuid()}\n"]
    assert (tmp_path / "made").read_text() == "here\n"
    assert not rig.files.scratch(f"{rig.app}.0").exists()


@pytest.mark.parametrize("launcher", ["plain", pytest.param("cell", marks=in_cells)])
def test_tasks_write_to_the_files_that_their_app_names(rig: Rig, tmp_path: Path, launcher: str) -> None:
    rig.launcher = launcher
    (tmp_path / "at").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "1").write_text("from before\n")
    told = Outputs(output=f"{tmp_path}/out/%a", error=f"{tmp_path}/out/%j.%x", app="17")
    script = "echo out $FAIRLOG_TASK_INDEX; echo err $FAIRLOG_TASK_INDEX >&2"
    rig.run(rig.grant(shell(script), tasks=3, cwd=str(tmp_path / "at"), outputs=told))
    written = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert written == {f"{n}": f"out {n}\n" for n in range(3)} | {f"17_{n}.": f"err {n}\n" for n in range(3)}
    assert [sorted(text.splitlines()) for text in outputs(rig, 3)] == [[f"err {n}", f"out {n}"] for n in range(3)]


@pytest.mark.parametrize("launcher", ["plain", pytest.param("cell", marks=in_cells)])
def test_one_file_has_output_and_errors_and_is_emptied_unless_it_is_appended_to(
    rig: Rig, tmp_path: Path, launcher: str
) -> None:
    rig.launcher = launcher
    (tmp_path / "log").write_text("from before\n")
    script = "echo 1; echo 2 >&2; echo 3; echo 4 >&2"
    for number, append in enumerate((True, False)):
        rig.app = f"{rig.app}-{number}"
        told = Outputs(output=f"{tmp_path}/log", append=append, app="17")
        rig.run(rig.grant(shell(script), cwd=str(tmp_path), outputs=told))
        before = "from before\n" if append else ""
        assert (tmp_path / "log").read_text() == f"{before}1\n2\n3\n4\n"
        assert outputs(rig, 1) == ["1\n2\n3\n4\n"]


@in_cells
def test_a_file_that_the_cell_cannot_open_is_named_with_the_reason(rig: Rig, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(rig.files.root)  # the worker's own folder, which no cell shows
    for number, (name, why) in enumerate(
        {
            f"{tmp_path}/none/log": "No such file or directory",
            f"{tmp_path}": "Is a directory",
            f"{tmp_path}/pipe": "No such device or address",
            f"{tmp_path}/link/forged": "Permission denied",
            "/etc/forged": "Read-only file system",
        }.items()
    ):
        note = rig.run(
            rig.grant(shell("true"), number=number, cwd=str(tmp_path), outputs=Outputs(output=name, app="1"))
        )
        assert note.unstartable == f"the file {name!r} of its output cannot be opened on worker {WORKER}: {why}"
    gone = rig.run(rig.grant(shell("true"), number=9, outputs=Outputs(output="/tmp/log", app="1")))  # noqa: S108 - the cell's own
    assert "would end with the cell, which has a /tmp of its own" in gone.unstartable
    device = rig.run(rig.grant(shell("true"), number=8, outputs=Outputs(output="/dev/zero", app="1")), launcher="plain")
    assert device.unstartable.endswith("it is no regular file")


@as_root
def test_files_of_output_are_the_accounts_and_opened_with_its_rights(account_rig: Rig, tmp_path: Path) -> None:
    for folder, mode in (("open", 0o777), ("closed", 0o755)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder).chmod(mode)
    for above in (tmp_path, *tmp_path.parents):
        if not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)
    mine, other = (Outputs(output=f"{tmp_path}/{name}/log", app="1") for name in ("open", "closed"))
    account_rig.run(account_rig.grant(shell("echo mine"), outputs=mine))
    assert (tmp_path / "open" / "log").stat().st_uid == 54321
    assert (tmp_path / "open" / "log").read_text() == "mine\n"
    account_rig.app += "-closed"
    note = account_rig.run(account_rig.grant(shell("echo mine"), outputs=other))
    assert note.unstartable.endswith("Permission denied")


@in_cells
def test_a_scratch_folder_is_deleted_after_a_kill_whatever_its_modes(rig: Rig) -> None:
    script = (
        "mkdir -p $FAIRLOG_SCRATCH/a/b; touch $FAIRLOG_SCRATCH/a/b/c; chmod 0 $FAIRLOG_SCRATCH/a; echo made; sleep 600"
    )
    grant = rig.grant(shell(script))
    pid = rig.launch(grant)
    wait_until(lambda: outputs(rig, 1) == ["made\n"], "the folder")
    os.kill(pid, signal.SIGKILL)
    rig.end_of(grant)
    assert not rig.files.scratch(grant.executor).exists()


@in_cells
def test_files_of_fairlog_are_hidden_below_folders_of_the_system(rig: Rig, tmp_path: Path) -> None:
    """Such as the folder of runs, or a token, below /opt: a task has the agent's user. Others stand for them here."""
    for name in ("tmp", "scratch"):
        (tmp_path / name).mkdir()
    settings = CellSettings(hidden=(Path("/usr/share"), Path("/usr/bin/env")))
    command, kept = sandbox.sandbox_command(rig.grant(("true",)), settings, scratch=folder_of(tmp_path), told=None)
    look = "[ -s /usr/bin/env ] && echo file; ls /usr/share && echo folder; [ -s /usr/bin/id ] && echo other"
    done = subprocess.run([*command, "--", "/bin/sh", "-c", look], pass_fds=kept, capture_output=True, check=False)
    for descriptor in kept:
        os.close(descriptor)
    assert done.stdout.decode() in {"other\n", "folder\nother\n"}, done.stderr  # root may list the empty folder


@in_cells
@pytest.mark.parametrize("granted", ["0", "1", ""])
def test_a_cell_shows_the_device_files_of_its_own_gpus(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granted: str
) -> None:
    for name in ("tmp", "scratch", "dev"):
        (tmp_path / name).mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    monkeypatch.setattr(sandbox, "device_files", partial(device_files, root=tmp_path))
    grant = rig.grant(("true",)).model_copy(update={"addresses": {"gpu.x": (granted,)} if granted else {}})
    command, kept = sandbox.sandbox_command(grant, CellSettings(), scratch=folder_of(tmp_path), told=None)
    for descriptor in kept:
        os.close(descriptor)
    shown = [Path(command[number + 1]).name for number, word in enumerate(command) if word == "--dev-bind"]
    assert shown == (["nvidiactl", f"nvidia{granted}"] if granted else [])


@in_cells
def test_what_is_hidden_below_the_folder_of_an_app_stays_where_it_is(rig: Rig, tmp_path: Path) -> None:
    """With a folder above it renamed, tasks could put their own locks, notes and code in its place."""
    for name in ("app/above/above/hidden", "scratch", "tmp"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "app/above/file").touch()
    settings = CellSettings(hidden=(tmp_path / "app/above/above/hidden",), folders=("/",))
    grant = rig.grant(("true",), cwd=str(tmp_path / "app"))
    command, kept = sandbox.sandbox_command(grant, settings, scratch=folder_of(tmp_path), told=None)
    renames = "; ".join(f"mv {name} {name}-moved" for name in ("above/above/hidden", "above/above", "above"))
    script = f"cd {tmp_path}/app; {renames}; mv above/file above/other; true"
    done = subprocess.run([*command, "--", "/bin/sh", "-c", script], pass_fds=kept, capture_output=True, check=True)
    for descriptor in kept:
        os.close(descriptor)
    assert (tmp_path / "app/above/above/hidden").is_dir(), done.stderr
    assert (tmp_path / "app/above/other").exists()


@in_cells
def test_a_cell_that_starts_again_has_a_tmp_that_nobody_has_prepared(rig: Rig, tmp_path: Path) -> None:
    grant = rig.grant(("true",))
    cell = LAUNCHERS["cell"](Place(grant, rig.files, CellSettings()), lambda _: None)
    for _ in range(2):
        cell.open()
        assert not list((rig.files.scratch(grant.executor) / "tmp").iterdir())
        (rig.files.scratch(grant.executor) / "tmp" / "home").symlink_to(tmp_path)
        assert cell.kill()


KEYS = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
from workers.processes import leave_keyring
def found():
    return ctypes.CDLL(None).syscall(250, 10, -3, b"user", b"fairlog-test", 0) > 0
print(found(), leave_keyring(), found())
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="it calls the kernel by x86-64's number")
def test_who_starts_a_cell_leaves_the_keys_of_the_session_behind() -> None:
    """Its tasks would inherit them, and the kernel uses them for whoever has them, such as for a network's files."""
    call = ctypes.CDLL(None).syscall

    def with_key() -> None:
        if call(250, 1, None) < 0 or call(248, b"user", b"fairlog-test", b"secret", 6, -3) < 0:
            os._exit(77)

    command = [sys.executable, "-c", KEYS, str(ROOT)]
    done = subprocess.run(command, preexec_fn=with_key, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("the kernel has no keys, or the container forbids them")
    assert done.stdout == "True None False\n", done.stderr


DEEP = """
import os
os.chdir(os.environ["FAIRLOG_SCRATCH"])
for _ in range(2000):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
os.mkfifo("f" * 255)
os.symlink("/", "0")
os.chmod(".", 0)
"""


@pytest.mark.parametrize(
    "launcher", ["plain", pytest.param("cell", marks=in_cells), pytest.param("account", marks=as_root)]
)
def test_a_scratch_folder_is_deleted_however_deep_it_is(launcher: str, request: pytest.FixtureRequest) -> None:
    """Folders that nobody can name by a path must not end those who delete them: executor, forkserver and agent."""
    rig: Rig = request.getfixturevalue("account_rig" if launcher == "account" else "rig")
    grant = rig.grant((sys.executable, "-S", "-c", DEEP))
    assert rig.run(grant, launcher=launcher).done
    assert not rig.files.scratch(grant.executor).exists()
    if launcher == "account":
        state: Path = request.getfixturevalue("helper")
        wait_until(lambda: not list((state / "scratch").iterdir()), "the end of its folder")
    assert psutil.pid_exists(rig.launch(rig.grant(("sleep", "600"), number=1), launcher="plain"))


@in_cells
@pytest.mark.parametrize("name", ["", ".ssh", ".config/x"])
def test_the_folder_of_an_app_is_not_the_home_of_the_workers_user(
    rig: Rig, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "home" / name
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    rig_of_its_own = Rig(rig.url, tmp_path / "run2")
    rig_of_its_own.launcher, rig_of_its_own.cells = "cell", CellSettings()
    try:
        note = rig_of_its_own.run(rig_of_its_own.grant(shell("true"), cwd=str(folder)))
    finally:
        rig_of_its_own.close()
    assert note.unstartable.startswith(f"folder '{folder}' cannot be an app's: it holds files of the worker's user")


@in_cells
def test_no_name_of_a_folder_lays_it_over_something_else_in_a_cell(rig: Rig, tmp_path: Path) -> None:
    own, deep = tmp_path / "own", tmp_path / "own/a/b/c"
    (deep / "usr/bin").mkdir(parents=True)
    (own / "deep").symlink_to(deep)
    (tmp_path / "seen").symlink_to(deep)
    (deep / "up").symlink_to("../../usr")
    (own / "a/usr/bin").mkdir(parents=True)
    rig.cells = CellSettings(folders=(str(tmp_path),))
    for number, named in enumerate((f"{own}/deep/../usr", f"/proc/self/root{own}", f"/dev/../{own}")):
        note = rig.run(rig.grant(shell("true"), number=number, cwd=named), launcher="cell")
        assert note.unstartable.startswith(f"folder '{named}' cannot be an app's: behind '..'")
    within = f"{tmp_path}/seen/up/bin"
    told = Outputs(output=f"{tmp_path}/seen/out", error=f"{within}/err", app="17")
    note = rig.run(rig.grant(shell("true"), number=3, outputs=told), launcher="cell")
    assert note.unstartable.startswith(f"folder '{within}' cannot be an app's: a link on the way to it")
    told = Outputs(output=f"{own}/out", error=f"{own}/a/err", app="17")
    assert rig.run(rig.grant(shell("echo seen"), number=4, outputs=told), launcher="cell").done
    assert (own / "out").read_text() == "seen\n"
    assert (own / "a/err").exists()


@in_cells
def test_apps_have_their_folders_where_the_operator_says(rig: Rig, tmp_path: Path) -> None:
    for company in ("acme", "beta"):
        (tmp_path / company).mkdir()
    (tmp_path / "acme" / "link").symlink_to(tmp_path / "beta")
    rig.cells = CellSettings(folders=(f"{tmp_path}/{{company}}",))
    assert rig.run(rig.grant(shell("true"), number=0, cwd=str(tmp_path / "acme"))).done
    for number, cwd in enumerate(("beta", "acme/link", "."), 1):
        other = Rig(rig.url, tmp_path / f"run{number}", shared=rig.forkserver)
        other.launcher, other.cells = "cell", rig.cells
        note = other.run(other.grant(shell("true"), cwd=str(tmp_path / cwd)))
        assert f"this worker takes folders below {tmp_path}/acme (--folders)" in note.unstartable
        other.close()


@in_cells
def test_a_second_company_gets_no_folder_that_is_not_everybodys(rig: Rig, tmp_path: Path) -> None:
    rig.cells = CellSettings(guest=True)
    behind = tmp_path / "open"
    behind.mkdir()
    tmp_path.chmod(0o700)
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        places = {behind: 0o777, **{Path(made) / f"{mode:o}": mode for mode in (0o700, 0o755, 0o773, 0o777)}}
        for number, (folder, mode) in enumerate(places.items()):
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)
            note = rig.run(rig.grant(shell("true"), number=number, cwd=str(folder)))
            assert ("--folders '/srv/{company}'" in note.unstartable) == (folder.name != "777"), folder
        assert note.done


HIDE = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        block = bytearray(300 << 20)
        os.execve("/bin/sleep", ["sleep", "{mark}"], {{}}) if {idle} else time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


@pytest.mark.parametrize("launcher", ["plain", pytest.param("cell", marks=in_cells)])
def test_memory_of_processes_that_forked_twice_counts(rig: Rig, launcher: str) -> None:
    grant = rig.grant((sys.executable, "-c", HIDE.format(mark="0", idle=False)), memory_mb=128)
    rig.launch(grant, launcher=launcher)
    wait_until(lambda: rig.work.progress(rig.app).failed, "the task's end")
    state = rig.work.states(rig.app)[0]
    assert state.message.endswith("MiB; 128 MiB are granted")
    assert state.peak_mb > 128


@pytest.mark.parametrize("launcher", ["plain", pytest.param("cell", marks=in_cells)])
def test_nothing_is_left_when_executor_and_forkserver_are_killed(
    own_store: EmbeddedStore, tmp_path: Path, launcher: str
) -> None:
    """A core is free once its processes are gone: daemons with an empty environment included."""
    mark = a_mark()
    rig = Rig(own_store.url, tmp_path / "run", outlive_agent=True)
    daemon = f"import os; os.fork() or (os.setsid(), os.fork() or os.execve('/bin/sleep', ['sleep', '{mark}'], {{}}))"
    grant = rig.grant(shell(f'{sys.executable} -c "{daemon}"; echo left; sleep 600'))
    pid = rig.launch(grant, launcher=launcher)
    wait_until(lambda: outputs(rig, 1) == ["left\n"] and sleeping(mark), "the daemon")
    (holder,) = rig.files.known()
    forkserver = psutil.Process(pid).parent()
    assert forkserver is not None
    forkserver.kill()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: started_s(holder.first) is None, "the end of the first process")
    assert not sleeping(mark)
    rig.close()


def test_a_link_in_the_place_of_a_log_is_not_followed(rig: Rig, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    log = rig.files.log_files(rig.app, "0-0")[0]
    log.parent.mkdir(parents=True)
    log.symlink_to(victim)
    note = rig.run(rig.grant(shell("echo hello")), launcher="plain")
    assert victim.read_text() == "untouched"
    assert note.unstartable == f"no log file on worker {WORKER}: Too many levels of symbolic links"


def test_a_link_in_the_place_of_the_folder_of_logs_is_not_followed(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    rig.files.log_index(rig.app).parent.symlink_to(tmp_path / "elsewhere")
    assert rig.run(rig.grant(shell("echo hello")), launcher="plain").unstartable
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_forkserver_that_is_slow_to_take_a_long_spec_ends_nobody(own_store: EmbeddedStore, tmp_path: Path) -> None:
    rig = Rig(own_store.url, tmp_path / "run")
    first = rig.launch(rig.grant(shell("sleep 600")))
    forkserver = psutil.Process(first).parent()
    assert forkserver is not None
    forkserver.suspend()
    shown: list[int] = []

    def show() -> None:
        shown.append(1)
        forkserver.resume()

    long = rig.spec(rig.grant(("/bin/echo", "\\" * 120_000), number=1))
    assert rig.forkserver.launch(long, meanwhile=show)
    assert shown
    assert psutil.pid_exists(first)
    rig.close()


def test_a_request_that_cannot_be_read_starts_nothing_and_ends_nobody(own_store: EmbeddedStore, tmp_path: Path) -> None:
    rig = Rig(own_store.url, tmp_path / "run")
    first = rig.launch(rig.grant(shell("sleep 600")))
    spec = rig.spec(rig.grant(shell("true"), number=1)).model_copy(update={"grace_s": "soon"})
    with pytest.warns(UserWarning, match="grace_s"):
        assert rig.forkserver.launch(spec) is None
    assert psutil.pid_exists(first)
    assert rig.launch(rig.grant(shell("true"), number=2))
    rig.close()


def test_files_are_private_whatever_the_umask(own_store: EmbeddedStore, tmp_path: Path) -> None:
    was = os.umask(0)
    try:
        rig = Rig(own_store.url, tmp_path / "run")
        rig.launch(rig.grant(shell("echo hello; sleep 600")))
        wait_until(lambda: outputs(rig, 1) == ["hello\n"], "the task")
        modes = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*")}
        rig.close()
    finally:
        os.umask(was)
    assert not {path: oct(mode) for path, mode in modes.items() if mode & 0o077}


@pytest.mark.parametrize("launcher", ["plain", pytest.param("cell", marks=in_cells)])
def test_what_a_task_took_is_measured(rig: Rig, launcher: str) -> None:
    """CPU time and memory of the task and of what it waited for, and the length of its output."""
    child = "import sys; block = bytearray(60 << 20); sum(i * i for i in range(3_000_000)); print('x' * 99_999)"
    note = rig.run(rig.grant(shell(f'{sys.executable} -c "{child}"; echo')), launcher=launcher)
    state = rig.work.states(rig.app)[0]
    assert state.cpu_ms > 50
    assert 60 <= state.peak_mb < 300
    assert note.used is not None
    assert note.used.cpu_ms >= state.cpu_ms
    assert state.peak_mb <= note.used.peak_mb < 300
    assert state.output_bytes == 100_001


FORKS = """
import os, time
reader, writer = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        while time.process_time() < 0.5:
            pass
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.wait()
os.close(writer)
os.read(reader, 1)
block = bytearray(60 << 20)
for _ in range(5):
    if os.fork() == 0:
        time.sleep(600)
time.sleep(1.5)
"""


@pytest.mark.skipif(base_group() is None, reason="no control group can be made here")
@pytest.mark.parametrize(
    "launcher", ["plain", pytest.param("cell", marks=in_cells), pytest.param("account", marks=as_root)]
)
def test_what_all_processes_of_a_task_took_is_measured(launcher: str, request: pytest.FixtureRequest) -> None:
    """Those that forked twice count, and memory that they share counts once."""
    rig: Rig = request.getfixturevalue("account_rig" if launcher == "account" else "rig")
    rig.run(rig.grant((sys.executable, "-c", FORKS), memory_mb=2048), launcher=launcher)
    state = rig.work.states(rig.app)[0]
    assert state.cpu_ms >= 500
    assert 60 <= state.peak_mb < 200


@pytest.mark.parametrize("launcher", ["plain", pytest.param("cell", marks=in_cells)])
@pytest.mark.parametrize("on_term", ["exit", "echo"])
def test_what_a_task_took_is_measured_if_its_app_is_killed(rig: Rig, launcher: str, on_term: str) -> None:
    """Also if it must be killed because it does not end when it is asked to."""
    grant = rig.grant(
        shell(f"trap {on_term} TERM; i=0; while [ $((i += 1)) -lt 200000 ]; do :; done; echo worked; {_ON}")
    )
    pid = rig.launch(grant, launcher=launcher)
    wait_until(lambda: outputs(rig, 1) == ["worked\n"], "the work")
    rig.connection.hset(rig.keys.grants(WORKER), grant.executor, "")
    rig.work.forget({rig.app: grant.company})
    os.kill(pid, signal.SIGTERM)
    note = rig.end_of(grant)
    assert note.reason == "killed"
    state = rig.work.states(rig.app)[0]
    assert state.state == "stopped"
    assert state.cpu_ms > 20
    assert note.used is not None
    assert note.used.cpu_ms >= state.cpu_ms
    assert state.output_bytes >= len("worked\n")


_ON = "while :; do sleep 0.05; done"
