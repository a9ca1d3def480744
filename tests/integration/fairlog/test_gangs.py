"""Gangs on a real cluster: ranks meet where they are told to, and begin anew as a whole (semantics G8)."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli_rig import Shell
from tests.waiting import wait_until

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
    shell.ok("up", "--detach", "--workers", "2", "--masters", "1", "--cores", "2", "--memory", "4G")
    shell.ok("company", "add", "acme")
    yield shell
    shell.run("down")


def events(shell: Shell, app: str, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in shell.ok("log", "--json").splitlines()]
    return [each for each in found if each["type"] == kind and each["data"].get("app") == app]


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
    assert len(turns) == 4
    assert len({*turns}) == 2, "a gang was granted in parts"
    assert [each["data"]["gang"] for each in events(shell, app, "ExecutorRevoked")] == [True]
    assert shell.run("audit").code == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("torchrun") is None, reason="PyTorch's torchrun is not on the PATH")
def test_a_model_is_trained_by_two_nodes_of_pytorch(shell: Shell) -> None:
    script = shell.home / "train.py"
    shutil.copy(Path(__file__).parents[3] / "examples" / "torchrun.py", script)
    who = ("--company", "acme", "--user", "ann", "--env", f"PATH={os.environ['PATH']}")
    done = shell.run("torchrun", *who, "--executors", "2", "--executor-cores", "2", "--wait", "--", str(script))
    assert done.code == 0, done
