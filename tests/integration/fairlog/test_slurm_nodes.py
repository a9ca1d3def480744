"""Slurm's jobs on several nodes, against a running cluster of two workers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_rig import Shell
from tests.integration.fairlog.test_slurm import Slurm
from tests.waiting import wait_until

SLEEP = f"{7_000_000 + os.getpid()}"
"""For so long do the processes of these tests sleep, and those of no other run of them on this machine."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    shell = Shell(tmp_path_factory.mktemp("nodes") / "home")
    shell.ok("up", "--detach", "--workers", "2", "--masters", "1", "--cores", "4", "--memory", "4G")
    shell.ok("company", "add", "acme")
    yield Slurm(shell)
    shell.ok("audit")
    shell.run("down")


def sleepers() -> int:
    """How many processes of the jobs sleep."""
    found = 0
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += each.read_bytes() == f"sleep\0{SLEEP}\0".encode()
        except OSError:
            continue
    return found


def account(slurm: Slurm, job: str) -> str:
    return slurm.ok("sacct", "-X", "-n", "-P", "-o", "State,ExitCode,NNodes,AllocCPUS", "-j", job).strip()


def running(slurm: Slurm, *words: str) -> str:
    """The number of a job whose two processes sleep."""
    job = slurm.ok("sbatch", "--parsable", "-N", "2", *words, "--wrap", f"srun sleep {SLEEP}").strip()
    wait_until(lambda: sleepers() == 2, "the processes of the job")
    return job


SCRIPT = r"""#!/bin/bash
#SBATCH -N 2 --ntasks-per-node=2 -c 1 -J two -o two.out
echo "$SLURM_NNODES $SLURM_NTASKS $SLURM_TASKS_PER_NODE $SLURM_NODEID $SLURM_CPUS_ON_NODE $SLURM_JOB_CPUS_PER_NODE"
srun -l sh -c 'echo $SLURM_NODEID $SLURM_LOCALID $SLURM_NTASKS $SLURM_STEP_ID ${FAIRLOG_EXECUTOR_ID##*.} $SLURM_NNODES'
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST"); set -- $hosts; echo $#
srun -N 1 -n 1 -w "$2" sh -c 'echo one of $SLURM_STEP_NUM_NODES'
echo in | srun -N 2 -n 2 cat
srun -o apart.%t sh -c 'echo $SLURM_PROCID'
srun -o joined sh -c 'echo $SLURM_PROCID'
srun -K sh -c '[ $SLURM_PROCID = 3 ] && exit 5; sleep 300'; echo code $?
srun -N 3 true; echo code $?
exit $CODE
"""


@pytest.mark.parametrize("code", [0, 7])
def test_a_script_starts_processes_on_all_its_nodes_and_ends_the_job(slurm: Slurm, code: int) -> None:
    home = slurm.shell.home
    (home / "two.sh").write_text(SCRIPT)
    done = slurm.run("sbatch", "--wait", "two.sh", CODE=f"{code}")
    assert (done.code, done.err) == (code, "")
    lines = (home / "two.out").read_text().splitlines()
    assert lines[0] == "2 4 2(x2) 0 2 2(x2)"
    assert sorted(lines[1:5]) == ["0: 0 0 4 0 0 2", "1: 0 1 4 0 0 2", "2: 1 0 4 0 1 2", "3: 1 1 4 0 1 2"]
    assert lines[5:9] == ["2", "one of 1", "in", "in"]
    assert "task 3: Exited with exit code 5" in lines[9]
    assert [line for line in lines if line.startswith("code")] == ["code 143", "code 1"]
    assert "this job has 2 nodes, and not 3; give --nodes=2 or fewer" in lines[-2]
    assert [(home / f"apart.{rank}").read_text() for rank in range(4)] == [f"{rank}\n" for rank in range(4)]
    assert sorted((home / "joined").read_text().split()) == ["0", "1", "2", "3"]
    job = done.out.split()[-1]
    state = "FAILED|7:0" if code else "COMPLETED|0:0"
    assert account(slurm, job) == f"{state}|2|4"


def test_a_job_on_two_nodes_is_shown_signalled_and_cancelled_as_one(slurm: Slurm) -> None:
    job = running(slurm, "-o", "c.out")
    assert slurm.ok("squeue", "-h", "-j", job, "-o", "%t %D %C") == "R 2 2\n"
    shown = slurm.ok("scontrol", "show", "job", job)
    assert "NumNodes=2 NumCPUs=2 NumTasks=2" in shown
    assert "MinCPUsNode=1 MinMemoryNode=512M" in shown
    assert re.search(r"NodeList=worker-\[1-2\]\n", shown)
    slurm.ok("scancel", job)
    wait_until(lambda: not sleepers(), "the end of its processes")
    wait_until(lambda: slurm.state(job).startswith("CANCELLED"), "the end of the job")
    ran_on, number = slurm.ok("sacct", "-X", "-n", "-P", "-j", job, "-o", "NodeList,NNodes").split("|")
    assert (sorted(ran_on.split(",")), number) == (["worker-1", "worker-2"], "2\n")
    assert re.search(r"NodeList=worker-\[1-2\]\n", slurm.ok("scontrol", "show", "job", job))
    signalled = running(slurm, "-o", "s.out")
    slurm.ok("scancel", "-s", "USR1", signalled)
    wait_until(lambda: slurm.state(signalled) == "FAILED", "the end of the job")
    assert account(slurm, signalled) == f"FAILED|{128 + 10}:0|2|2"
    assert not sleepers()


def test_a_job_that_a_signal_ends_or_no_shell_can_start_says_so(slurm: Slurm) -> None:
    for command, told in (("kill -9 $$", "0:9"), ("none-of-these", "127:0")):
        job = slurm.run("sbatch", "--wait", "--parsable", "-N", "2", "--wrap", command).out.strip()
        assert account(slurm, job) == f"FAILED|{told}|2|2"


def test_a_job_of_which_a_node_is_lost_begins_anew_unless_it_may_not(slurm: Slurm) -> None:
    """Its output begins anew, too, and its script knows that."""
    home = slurm.shell.home
    stays = slurm.ok(
        "sbatch", "--parsable", "-N", "2", "-o", "again.out", "--wrap",
        f'echo "begun $SLURM_RESTART_COUNT"; [ -n "$SLURM_RESTART_COUNT" ] || srun sleep {SLEEP}; srun echo on',
    ).strip()  # fmt: skip
    wait_until(lambda: sleepers() == 2, "the processes of the job")
    fails = slurm.ok("sbatch", "--parsable", "-N", "2", "--no-requeue", "--wrap", f"srun sleep {SLEEP}").strip()
    wait_until(lambda: sleepers() == 4, "the processes of both jobs")
    slurm.shell.ok("remove", "--force", "worker-1")
    wait_until(lambda: slurm.state(stays) == "COMPLETED", "the end of the job that began anew")
    assert (home / "again.out").read_text() == "begun 1\non\non\n"
    assert account(slurm, fails) == "NODE_FAIL|0:0|2|2"
    wait_until(lambda: not sleepers(), "the end of their processes")
