"""The verbs of every day beside Slurm's, in turns; printed as JSON.

`daily.py [APPS [ROUNDS]]` starts an `up`, keeps APPS apps pending (default 5,000), and times one submit, the list of
what is pending, `status`, the others that people type daily, and the end of all of it, each as a process of its own,
ROUNDS times (default 5). Where
Debian's `slurm-wlm` is installed and this user is root, a cluster of Slurm on this machine holds as many jobs, and its
verbs take turns with fairlog's; else its figures are null. Wall time and CPU time of the verb's process are in ms.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks._common import arguments, show, wait_for
from fairlog.api.client import ApiClient
from scheduler.model.commands import RegisterCompany, SubmitApp

USER = "ann"
VERBS = ("submit", "list", "status", "app", "explain", "logs", "shares", "workers", "kill")
SLURM = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")
_CONF = """
ClusterName=bench
SlurmctldHost={host}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={ctld}
SlurmdPort={slurmd}
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
MaxJobCount=100000
SchedulerParameters=defer,default_queue_depth=1
ReturnToService=2
NodeName={host} CPUs={cores} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Took(NamedTuple):
    """What a verb took, in ms."""

    wall: float
    cpu: float


def timed(command: list[str], environment: dict[str, str]) -> Took:
    """Run the verb; what it prints is read by nobody. Raises: SystemExit if it fails."""
    began = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        said = process.stderr.read() if process.stderr is not None else b""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)} failed: {said.decode(errors='replace')}")
    return Took(1000 * (time.perf_counter() - began), 1000 * (usage.ru_utime + usage.ru_stime))


class Fairlog:
    """An `up` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("FAIRLOG", "XDG"))}
        self.env = {**kept, "HOME": str(folder), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self._verb = [shutil.which("fairlog", path=self.env["PATH"]) or "fairlog"]
        self._record = folder / ".local" / "share" / "fairlog" / "up" / "up.json"

    def start(self) -> None:
        """Start it, with a company."""
        subprocess.run([*self._verb, "up", "--detach", "--workers", "1", "--cores", "4"], env=self.env, check=True)
        with self._api() as api:
            api.send(RegisterCompany(company="acme"))

    def stop(self) -> None:
        """Stop it."""
        subprocess.run([*self._verb, "down"], env=self.env, check=False)

    def _api(self) -> ApiClient:
        return ApiClient(f"http+unix:{json.loads(self._record.read_text())['socket']}", token="")

    def fill(self, number: int, turn: int) -> None:
        """Let so many apps be pending."""
        about: dict[str, Any] = {"company": "acme", "user": USER, "hold": True, "tasks": 1, "command": ("true",)}
        with self._api() as api:
            api.send_many([SubmitApp(app=f"{turn}-{each}", name="true", **about) for each in range(number)])

    def verbs(self, turn: int) -> dict[str, list[str]]:
        """The verbs that are timed; the last one ends all that is pending."""
        return {
            "submit": [*self._verb, "submit", "--company", "acme", "--user", USER, "--hold", "--", "true"],
            "list": [*self._verb, "apps"],
            "status": [*self._verb, "status"],
            "app": [*self._verb, "app", f"{turn}-0"],
            "explain": [*self._verb, "explain", f"{turn}-0"],
            "logs": [*self._verb, "logs", f"{turn}-0"],
            "shares": [*self._verb, "shares"],
            "workers": [*self._verb, "workers"],
            "kill": [*self._verb, "kill", "--user", USER, "--yes"],
        }


class Slurm:
    """A cluster of Slurm on this machine, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._job = folder / "job.sh"
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start it. Raises: SystemExit if it does not answer."""
        for name in ("state", "spool"):
            (self._folder / name).mkdir()
        host, ports = socket.gethostname().partition(".")[0], [_free_port() for _ in range(2)]
        conf = _CONF.format(host=host, folder=self._folder, ctld=ports[0], slurmd=ports[1], cores=os.cpu_count())
        (self._folder / "slurm.conf").write_text(conf, encoding="utf-8")
        self._job.write_text("#!/bin/sh\ntrue\n", encoding="utf-8")
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        files = {"socket": "munge.sock", "key-file": "munge.key", "log-file": "munge.log", "pid-file": "munge.pid"}
        places = [f"--{name}={self._folder / file}" for name, file in {**files, "seed-file": "munge.seed"}.items()]
        self._run("munged", "--foreground", "--force", *places)
        wait_for((self._folder / "munge.sock").exists, "munged")
        self._run("slurmctld", "-D")
        self._run("slurmd", "-D", "-N", host)
        wait_for(
            lambda: subprocess.run([_path("sinfo")], env=self.env, check=False, capture_output=True).returncode == 0,
            "Slurm",
        )

    def _run(self, *command: str) -> None:
        with (self._folder / "out").open("ab") as out:
            self._running.append(subprocess.Popen(command, env=self.env, stdout=out, stderr=out))

    def stop(self) -> None:
        """Stop it."""
        for process in reversed(self._running):
            process.terminate()
            process.wait(30)

    def fill(self, number: int, _turn: int) -> None:
        """Let so many jobs be pending."""
        for start in range(0, number, 1000):
            size = min(1000, number - start)
            submit = ["sbatch", "--hold", f"--array=0-{size - 1}", str(self._job)]
            subprocess.run(submit, env=self.env, check=True, capture_output=True)

    def verbs(self, _turn: int) -> dict[str, list[str]]:
        """As those of fairlog, where it has one; a list has a line for each job of an array."""
        return {
            "submit": ["sbatch", "--hold", str(self._job)],
            "list": ["squeue", "--array"],
            "status": ["sinfo"],
            "kill": ["scancel", "--user", "root"],
        }


def _path(program: str) -> str:
    return shutil.which(program) or program


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(make: Callable[[Path], Fairlog | Slurm]) -> Iterator[Fairlog | Slurm]:
    """The cluster, started in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        cluster = make(Path(folder))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def compared(clusters: dict[str, Fairlog | Slurm], apps: int, rounds: int) -> dict[str, Any]:
    """The medians of each verb of each cluster; in a round, the clusters take turns at each verb."""
    took: dict[str, dict[str, list[Took]]] = {name: {} for name in clusters}
    for turn in range(rounds):
        for cluster in clusters.values():
            cluster.fill(apps, turn)
        for verb in VERBS:
            for name, cluster in clusters.items():
                if (command := cluster.verbs(turn).get(verb)) is not None:
                    took[name].setdefault(verb, []).append(timed(command, cluster.env))
    return {
        name: {
            verb: {part: round(median(getattr(each, part) for each in found)) for part in Took._fields}
            for verb, found in by_verb.items()
        }
        for name, by_verb in took.items()
    }


def main() -> None:
    """Print the figures."""
    apps, rounds = arguments(__doc__, apps=5_000, rounds=5)
    rules = find_spec("scheduler.rules.state.cluster")
    build = {"fairlog": version("fairlog"), "compiled": rules is not None and not str(rules.origin).endswith(".py")}
    beside = os.getuid() == 0 and all(map(shutil.which, SLURM))
    load = os.getloadavg()[0]
    with running(Fairlog) as fairlog:
        if not beside:
            figures = {**compared({"fairlog": fairlog}, apps, rounds), "slurm": None}
        else:
            with running(Slurm) as slurm:
                asked = [_path("sinfo"), "--version"]
                said = subprocess.run(asked, env=slurm.env, capture_output=True, text=True, check=True).stdout.split()
                build["slurm"] = said[-1]
                figures = compared({"fairlog": fairlog, "slurm": slurm}, apps, rounds)
    show(build=build, load=[round(load, 1), round(os.getloadavg()[0], 1)], pending=apps, rounds=rounds, ms=figures)


if __name__ == "__main__":
    main()
