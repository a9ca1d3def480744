"""The network that tasks find: none, their app's on the worker, or the machine's (semantics W12)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from fairlog.local.store import EmbeddedStore
from scheduler.model.grants import Grant
from tests.integration.cli_rig import ROOT
from tests.integration.workers.test_cells import as_root, helper, in_cells, own_store
from tests.integration.workers.test_executor import outputs
from tests.integration.workers.worker_rig import Rig
from tests.waiting import wait_until
from workers.networks import network_of
from workers.sandbox import CellSettings, NoCell

__all__ = ["helper", "own_store"]
ASK = """
import json, socket, sys
def reaches(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as asked:
        asked.settimeout(2)
        return asked.connect_ex(address) == 0
port, name, own = int(sys.argv[1]), sys.argv[2], sys.argv[3]
with socket.socket() as listening:
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    found = {
        "itself": reaches(socket.AF_INET, listening.getsockname()),
        "loopback": reaches(socket.AF_INET, ("127.0.0.1", port)),
        "machine": reaches(socket.AF_INET, (own, port)),
        "abstract": reaches(socket.AF_UNIX, "\\0" + name),
    }
print(json.dumps(found))
"""
MEET = """
import os, socket, sys, time
if os.environ["FAIRLOG_TASK_INDEX"] == "0":
    with socket.create_server(("127.0.0.1", 4242)) as listening:
        listening.settimeout(100)
        line, _ = listening.accept()
        line.sendall(b"sibling")
else:
    for _ in range(1000):
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", 4242)) == 0:
                print(asked.recv(100).decode())
                sys.exit()
        time.sleep(0.1)
    sys.exit("nobody came")
"""


@pytest.fixture
def served() -> Iterator[list[str]]:
    """A port of the machine at all of its addresses, and an abstract socket, where anybody is heard; its address."""
    name = f"fairlog-test-{os.getpid()}"
    with ExitStack() as opened:
        listening = opened.enter_context(socket.create_server(("0.0.0.0", 0)))  # noqa: S104 (for the test)
        abstract = opened.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{name}")
        abstract.listen()
        yield [str(listening.getsockname()[1]), name, own_address()]


def own_address() -> str:
    """The address of this machine towards others, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        address: str = asked.getsockname()[0]
        return address


def rig_of(store: EmbeddedStore, folder: Path, launcher: str) -> Rig:
    rig = Rig(store.url, folder)
    rig.launcher, rig.cells = launcher, CellSettings()
    return rig


@pytest.fixture(params=[pytest.param("cell", marks=in_cells), pytest.param("account", marks=as_root)])
def rig(request: pytest.FixtureRequest, own_store: EmbeddedStore, tmp_path: Path) -> Iterator[Rig]:
    if request.param == "account":
        request.getfixturevalue("helper")
    rig = rig_of(own_store, tmp_path / "run", request.param)
    yield rig
    rig.close()


@pytest.mark.parametrize(
    ("network", "others"), [("host", True), ("none", False), ("app", False)], ids=["host", "none", "app"]
)
def test_a_task_reaches_itself_and_of_the_machine_what_its_network_has(
    rig: Rig, served: list[str], network: Literal["none", "app", "host"], *, others: bool
) -> None:
    note = rig.run(rig.grant((sys.executable, "-c", ASK, *served), network=network))
    assert note.done
    found = json.loads(outputs(rig, 1)[0])
    assert found == {"itself": True, **dict.fromkeys(("loopback", "machine", "abstract"), others)}


@pytest.mark.parametrize(
    ("network", "seen"), [("host", True), ("none", False), ("app", False)], ids=["host", "none", "app"]
)
def test_files_tell_the_machines_interfaces_only_where_a_task_has_its_network(
    rig: Rig, network: Literal["none", "app", "host"], *, seen: bool
) -> None:
    names = sorted(name for _, name in socket.if_nameindex())
    look = (
        "import os, sys; found = {name for _, folders, _ in os.walk('/sys') for name in folders}; "
        "print(*(name for name in sys.argv[1:] if name in found or name in os.listdir('/sys/class/net')))"
    )
    assert rig.run(rig.grant((sys.executable, "-c", look, *names), network=network)).done
    assert outputs(rig, 1)[0].split() == (names if seen else [])


def test_executors_of_an_app_reach_each_other_and_nobody_of_another_app(
    rig: Rig, own_store: EmbeddedStore, tmp_path: Path
) -> None:
    grants = [
        rig.grant((sys.executable, "-c", MEET), number=number, cores=1, tasks=2, network="app") for number in (0, 1)
    ]
    rig.launch(grants[0])
    wait_until(lambda: any(state.state == "running" for state in rig.work.states(rig.app)), "the first task")
    stranger = rig_of(own_store, tmp_path / "run", rig.launcher)
    try:
        ask = "import socket, sys; sys.exit(0 if socket.socket().connect_ex(('127.0.0.1', 4242)) else 1)"
        assert stranger.run(stranger.grant((sys.executable, "-c", ask), network="app")).done
        assert stranger.work.states(stranger.app)[0].state == "succeeded"
    finally:
        stranger.close()
    rig.launch(grants[1])
    assert all(rig.end_of(grant).reason == "exited" for grant in grants)
    assert outputs(rig, 2)[1] == "sibling\n"


@pytest.mark.parametrize("network", ["none", "app"])
def test_a_worker_without_cells_cannot_start_what_names_a_network(
    own_store: EmbeddedStore, tmp_path: Path, network: Literal["none", "app"]
) -> None:
    rig = rig_of(own_store, tmp_path / "run", "plain")
    grant: Grant = rig.grant(("true",), network=network)
    note = rig.run(grant)
    rig.close()
    assert note.reason == "failed"
    assert f"it cannot keep their network '{network}'; start the worker with --launcher cell" in note.unstartable


@pytest.mark.skipif(bool(os.geteuid()) or shutil.which("setpriv") is None, reason="needs root, and setpriv")
@in_cells
def test_a_user_without_privileges_makes_a_network_and_joins_it() -> None:
    script = f"""
import subprocess, sys
sys.path.insert(0, {str(ROOT)!r})
from workers.networks import NetworkPlace as Place, network_of
from workers.processes import started_s
cell = ["bwrap", "--unshare-user", "--disable-userns", "--unshare-pid", "--die-with-parent", "--dev-bind", "/", "/"]
with network_of([]) as made:
    first = subprocess.Popen([*cell, "sleep", "100"], preexec_fn=made.enter)
    names = [subprocess.run([*cell, "readlink", "/proc/self/ns/net"], preexec_fn=made.enter, capture_output=True)]
with network_of([Place(first.pid, started_s(first.pid))]) as joined:
    names.append(subprocess.run([*cell, "readlink", "/proc/self/ns/net"], preexec_fn=joined.enter, capture_output=True))
with network_of([]) as other:
    names.append(subprocess.run([*cell, "readlink", "/proc/self/ns/net"], preexec_fn=other.enter, capture_output=True))
first.kill()
first.wait()
assert all(each.returncode == 0 for each in names), names
print(len({{each.stdout for each in names}}), names[0].stdout == names[1].stdout)
"""
    alone = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]
    ran = subprocess.run([*alone, sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if "Permission denied" in ran.stderr and "workers" not in ran.stdout:
        pytest.skip(f"another user may not read this folder: {ran.stderr.splitlines()[-1]}")
    assert (ran.stdout, ran.returncode) == ("2 True\n", 0), ran.stderr


@in_cells
def test_what_the_kernel_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("workers.networks._call", refused)
    with pytest.raises(NoCell, match="no network can be made for the app: Operation not permitted"), network_of([]):
        pass
