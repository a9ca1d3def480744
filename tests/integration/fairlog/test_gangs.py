"""Gangs on a real cluster: ranks meet where they are told to, and begin anew as a whole (semantics G8)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.cli_rig import Shell
from tests.waiting import wait_until

TOOLS = Path(os.environ.get("CLIENTS_PYTHON", sys.executable)).parent
"""Where MPI and mpi4py may be."""
PATH = f"{TOOLS}:{os.environ['PATH']}"
MEETS = '''
"""As torchrun does: the node of rank 0 listens, the others connect, and each learns of all; then the script runs."""
import argparse, json, os, socket, subprocess, sys, time

asked = argparse.ArgumentParser()
for option in ("--nnodes", "--node-rank", "--master-port"):
    asked.add_argument(option, type=int)
asked.add_argument("--master-addr")
asked.add_argument("script", nargs=argparse.REMAINDER)
told = asked.parse_args()
port = told.master_port
if told.node_rank == 0:
    with socket.create_server(("", port)) as server:
        peers = [server.accept()[0] for _ in range(told.nnodes - 1)]
        known = [0, *[int(peer.makefile().readline()) for peer in peers]]
        for peer in peers:
            peer.sendall((json.dumps(known) + "\\n").encode())
else:
    while True:
        try:
            peer = socket.create_connection((told.master_addr, port))
            break
        except OSError:
            time.sleep(0.1)
    peer.sendall(f"{told.node_rank}\\n".encode())
    known = json.loads(peer.makefile().readline())
assert sorted(known) == list(range(told.nnodes)), known
met = {**os.environ, "MET": json.dumps(sorted(known))}
sys.exit(subprocess.run([sys.executable, *told.script], env=met).returncode)
'''
TRAINS = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
rank = os.environ["FAIRLOG_RANK"]
began = len(list(folder.glob(f"{rank}-*")))
told = folder / f"{rank}-{began}"
told.with_suffix(".part").write_text(f"{os.environ['MET']} {os.environ['FAIRLOG_HOSTS']}")
told.with_suffix(".part").rename(told)
while not (folder / "go").exists():
    if (folder / "die").exists() and (rank, began) == ("1", 0):
        os.kill(os.getpid(), 9)
    time.sleep(0.1)
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path / "home")
    shell.env["FAIRLOG_SHARE"] = f"{os.environ.get('FAIRLOG_SHARE', '')} {TOOLS.parent}"
    shell.ok("up", "--detach", "--workers", "2", "--masters", "1", "--cores", "2", "--memory", "4G")
    shell.ok("company", "add", "acme")
    yield shell
    shell.run("down")


def events(shell: Shell, app: str, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in shell.ok("log", "--json").splitlines()]
    return [each for each in found if each["type"] == kind and each["data"].get("app") == app]


def test_the_output_of_a_rank_is_that_since_the_gang_began_last(shell: Shell) -> None:
    size = (
        "--company",
        "acme",
        "--user",
        "ann",
        "--gang",
        "--executor-program",
        "--executors",
        "2",
        "--executor-cores",
        "1",
    )
    both_began = '[ -d "$0.0" ] && [ -d "$0.1" ]'
    last = (
        f'echo "$FAIRLOG_RANK: $FAIRLOG_EXECUTOR_ID"; {both_began} && exit; mkdir "$0.$FAIRLOG_RANK"; '
        f"until {both_began}; do sleep 0.05; done; exit 3"
    )
    app = shell.ok("submit", *size, "--wait", "--", "sh", "-c", last, str(shell.home / "began")).split()[0]
    granted = len(events(shell, app, "ExecutorAllocated"))
    assert granted > 2, "it has begun anew"
    for rank in range(2):
        assert shell.ok("logs", app, "--rank", str(rank)) == f"{rank}: {app}.{granted - 2 + rank}\n"
        assert shell.ok("logs", app, "--executor", str(rank)) == f"{rank}: {app}.{rank}\n"
    refused = shell.run("logs", app, "--rank", "2")
    assert (refused.code, "has no rank 2; its ranks are 0 to 1" in refused.err) == (1, True)
    tasks = shell.ok("submit", "--company", "acme", "--user", "ann", "--cores", "1", "--wait", "--", "true").split()[0]
    assert "is no gang" in shell.run("logs", tasks, "--rank", "0").err
    assert "cannot be combined" in shell.run("logs", app, "--rank", "0", "--executor", "0").err


@pytest.mark.slow
def test_nodes_of_torchrun_meet_and_begin_anew_as_a_whole_when_one_is_killed(shell: Shell) -> None:
    tools, folder = shell.home / "bin", shell.home / "told"
    tools.mkdir()
    folder.mkdir()
    torchrun = tools / "torchrun"
    torchrun.write_text(f"#!{sys.executable}\n{MEETS}")
    torchrun.chmod(0o755)
    (shell.home / "train.py").write_text(TRAINS)
    who = ("--company", "acme", "--user", "ann", "--env", f"PATH={tools}:{os.environ['PATH']}")
    size = ("--executors", "2", "--executor-cores", "2")
    app = shell.ok("torchrun", *who, *size, "--", str(shell.home / "train.py"), str(folder)).split()[0]
    wait_until(lambda: {"0-0", "1-0"} == {file.name for file in folder.iterdir()}, "the first start")
    assert (folder / "1-0").read_text().startswith("[0, 1] ")
    (folder / "die").touch()
    wait_until(lambda: {"0-1", "1-1"} < {file.name for file in folder.iterdir()}, "the second start")
    (folder / "go").touch()
    wait_until(lambda: json.loads(shell.ok("app", app, "--json"))["state"] == "finished", "the end")
    turns = [each["turn"] for each in events(shell, app, "ExecutorAllocated")]
    assert len(turns) == 2 * len({*turns}), "a gang was granted in parts"
    assert {each["data"]["gang"] for each in events(shell, app, "ExecutorRevoked")} == {True}
    assert shell.run("audit").code == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("torchrun") is None, reason="PyTorch's torchrun is not on the PATH")
def test_a_model_is_trained_by_two_nodes_of_pytorch(shell: Shell) -> None:
    script = shell.home / "train.py"
    shutil.copy(Path(__file__).parents[3] / "examples" / "torchrun.py", script)
    who = ("--company", "acme", "--user", "ann", "--env", f"PATH={os.environ['PATH']}")
    done = shell.run("torchrun", *who, "--executors", "2", "--executor-cores", "2", "--wait", "--", str(script))
    assert done.code == 0, done


MPIRUN = '''
"""As MPICH's mpirun does: what it starts on a host is reached by the program that -launcher-exec names."""
import os, subprocess, sys

words = sys.argv[1:]
if words == ["--version"]:
    print("HYDRA build details:")
    raise SystemExit
told = dict(zip(words[:-1], words[1:]))
hosts = [host.partition(":")[0] for host in told["-hosts"].split(",")]
program = words[words.index("-n") + 2 :]
print("on", *hosts, flush=True)
agents = []
for rank, host in enumerate(hosts):
    quoted = " ".join("'" + word + "'" for word in program)
    agents.append(subprocess.Popen([told["-launcher-exec"], "-x", host, f"PMI_RANK={rank} exec {quoted}"]))
for _ in agents:
    pid, status = os.wait()
    if status:
        sys.exit(os.waitstatus_to_exitcode(status))
print("ended well", flush=True)
'''
RANK = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
rank = os.environ["PMI_RANK"]
assert rank == os.environ["FAIRLOG_RANK"], "it runs in the executor of another rank"
began = len(list(folder.glob(f"{rank}-*")))
(folder / f"{rank}-{began}").touch()
while not (folder / "go").exists():
    if (folder / "die").exists() and (rank, began) == ("1", 0):
        os.kill(int((folder / "die").read_text() or os.getpid()), 9)
    time.sleep(0.1)
"""


def gang_of_mpi(shell: Shell) -> tuple[str, Path]:
    """A gang of two ranks that wait for a file `go`, on a stand-in for MPI; and the folder of their files."""
    tools, folder = shell.home / "bin", shell.home / "told"
    tools.mkdir()
    folder.mkdir()
    mpirun = tools / "mpirun"
    mpirun.write_text(f"#!{sys.executable}\n{MPIRUN}")
    mpirun.chmod(0o755)
    script = shell.home / "rank.py"
    script.write_text(RANK)
    who = ("--company", "acme", "--user", "ann", "--env", f"PATH={tools}:{os.environ['PATH']}")
    size = ("--executors", "2", "--executor-cores", "2")
    return shell.ok("mpirun", *who, *size, "--", sys.executable, str(script), str(folder)).split()[0], folder


def test_mpirun_fails_at_once_where_there_is_none(shell: Shell) -> None:
    tools = shell.home / "python-alone"
    tools.mkdir()
    (tools / "python3").symlink_to(sys.executable)
    who = ("--company", "acme", "--user", "ann", "--env", f"PATH={tools}")
    ended = shell.run("mpirun", *who, "--executors", "2", "--executor-cores", "2", "--wait", "--", "true")
    assert ended.code == 127, ended
    app = ended.out.split()[0]
    failed = [each for each in events(shell, app, "ExecutorRemoved") if each["data"]["reason"] == "failed"]
    assert len(failed) == 1, "it is tried once"
    reason = json.loads(shell.ok("app", app, "--json"))["detail"]
    assert re.match(r"its program ended with exit code 127 on worker worker-[12], as shells do where", reason)
    assert "mpirun cannot be run on this worker" in shell.ok("logs", app, "--executor", "0")


@pytest.mark.slow
def test_ranks_of_mpirun_run_in_their_executors_and_begin_anew_when_one_is_killed(shell: Shell) -> None:
    app, folder = gang_of_mpi(shell)
    wait_until(lambda: {"0-0", "1-0"} == {file.name for file in folder.iterdir()}, "the first start")
    (folder / "die").touch()
    wait_until(lambda: {"0-1", "1-1"} < {file.name for file in folder.iterdir()}, "the second start")
    (folder / "go").touch()
    wait_until(lambda: json.loads(shell.ok("app", app, "--json"))["state"] == "finished", "the end")
    turns = [each["turn"] for each in events(shell, app, "ExecutorAllocated")]
    starts = len({*turns})
    assert len(turns) == 2 * starts
    failed = [each for each in events(shell, app, "ExecutorRemoved") if each["data"]["reason"] == "failed"]
    assert len(failed) == starts - 1, "the failure of one rank counts once"
    found = json.loads(shell.ok("app", app, "--json"))
    assert found["name"] == "mpirun"
    assert found["command"][:3] == ["python3", "mpirun.pyz", "1"]
    again = shell.ok("resubmit", app, "--env", f"PATH={shell.home / 'bin'}:{os.environ['PATH']}").split()[0]
    wait_until(lambda: json.loads(shell.ok("app", again, "--json"))["state"] == "finished", "the end of the other one")
    last = len(events(shell, again, "ExecutorAllocated")) - 2
    assert "on fairlog-0 fairlog-1\nended well\n" in shell.ok("logs", again, "--executor", str(last))
    assert shell.run("audit").code == 0


@pytest.mark.slow
def test_a_gang_of_mpi_begins_anew_when_one_executor_is_killed(shell: Shell) -> None:
    app, folder = gang_of_mpi(shell)
    wait_until(lambda: {"0-0", "1-0"} == {file.name for file in folder.iterdir()}, "the first start")
    followers = [pid for pid, words in programs(app) if words[1:2] and "mpirun.pyz" in words[1] and words[2] == "1"]
    of_rank_1 = [pid for pid in followers if psutil.Process(pid).environ()["FAIRLOG_RANK"] == "1"]
    assert len(of_rank_1) == 1
    psutil.Process(of_rank_1[0]).kill()
    wait_until(lambda: {"0-1", "1-1"} < {file.name for file in folder.iterdir()}, "the second start")
    (folder / "go").touch()
    wait_until(lambda: json.loads(shell.ok("app", app, "--json"))["state"] == "finished", "the end")


def programs(app: str) -> list[tuple[int, list[str]]]:
    """The processes of the app's executors, with the words of their commands."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("FAIRLOG_APP_ID") == app:
                found.append((process.pid, process.cmdline()))
    return found


SUMS = """
import os, pathlib, sys
from mpi4py import MPI
world, folder = MPI.COMM_WORLD, pathlib.Path(sys.argv[1])
began = len(list(folder.glob(f"{world.rank}-*")))
(folder / f"{world.rank}-{began}").touch()
world.Barrier()
if (world.rank, began) == (world.size - 1, 0):
    os.kill(os.getpid(), 9)
print("sum", world.allreduce(world.rank), "of", world.size, flush=True)
"""


def why_no_mpi() -> str:
    """Why no program of MPI can be run here; "" if it can."""
    python, mpirun = shutil.which("python3", path=PATH), shutil.which("mpirun", path=PATH)
    if mpirun is None:
        return "mpirun is not on the PATH"
    has_library = subprocess.run([str(python), "-c", "from mpi4py import MPI"], capture_output=True, check=False)
    return "" if has_library.returncode == 0 else "python3 has no mpi4py that finds its library"


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_mpi()), reason=why_no_mpi())
def test_ranks_of_mpi4py_on_two_workers_add_up_and_begin_anew_when_one_is_killed(shell: Shell) -> None:
    folder = shell.home / "told"
    folder.mkdir()
    (shell.home / "sums.py").write_text(SUMS)
    root = ("--env", "OMPI_ALLOW_RUN_AS_ROOT=1", "--env", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
    who = ("--company", "acme", "--user", "ann", "--env", f"PATH={PATH}", *root)
    size = ("--executors", "2", "--executor-cores", "2", "--ranks-per-executor", "2")
    done = shell.run("mpirun", *who, *size, "--wait", "--", "python3", str(shell.home / "sums.py"), str(folder))
    app = done.out.split()[0]
    assert done.code == 0, shell.ok("logs", app, "--executor", "0")
    granted = [each["data"] for each in events(shell, app, "ExecutorAllocated")]
    assert (len(granted) >= 4, len({each["worker"] for each in granted})) == (True, 2)
    assert shell.ok("logs", app, "--executor", str(len(granted) - 2)).count("sum 6 of 4\n") == 4
