"""A Slurm of one node on this machine, with a munge of its own, for tests that submit real jobs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")


def missing() -> str:
    """Why there can be no Slurm here; "" if there can."""
    gone = [name for name in PROGRAMS if shutil.which(name) is None]
    if gone:
        return f"{', '.join(gone)} not installed (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "slurmd needs root"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _said(env: Mapping[str, str], *command: str) -> str:
    """What a command of Slurm prints; "" while it fails."""
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout


@contextmanager
def slurm(folder: Path, cores: int, memory_mb: int) -> Iterator[Path]:
    """The configuration file of a running Slurm whose node has so much; nothing of it is left afterwards."""
    folder.mkdir(mode=0o755)
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir(mode=0o700)
    key, seal = folder / "munge" / "key", folder / "munge" / "socket"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    node = socket.gethostname().partition(".")[0]
    file = folder / "slurm.conf"
    file.write_text(
        f"""ClusterName=test
SlurmctldHost={node}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={_free_port()}
SlurmdPort={_free_port()}
AuthInfo=socket={seal}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
KillWait=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
MinJobAge=2
NodeName={node} NodeAddr=127.0.0.1 CPUs={cores} RealMemory={memory_mb} State=UNKNOWN
PartitionName=all Nodes={node} Default=YES MaxTime=INFINITE State=UP
"""
    )
    env = {**os.environ, "SLURM_CONF": str(file)}
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={seal}"]
        + [f"--{what}={folder}/munge/{what}" for what in ("pid-file", "log-file", "seed-file")],
        ["slurmctld", "-D", "-i", "-f", str(file)],
        ["slurmd", "-D", "-f", str(file), "-N", node],
    ]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            if running:
                wait_until(seal.exists, "munge")
            with (folder / f"{command[0]}.log").open("wb") as log:
                running.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
        wait_until(lambda: "idle" in _said(env, "sinfo", "--noheader", "--format=%T"), "the node")
        yield file
        subprocess.run(["scancel", "--me"], env=env, check=True)
        wait_until(lambda: not _said(env, "squeue", "--noheader"), "the end of the jobs")
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()
