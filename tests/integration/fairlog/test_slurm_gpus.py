"""Jobs of Slurm's commands that ask for processors beside their cores, on a worker that has few."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_rig import Answer, Shell
from tests.waiting import HOPELESS_S, wait_until

TELL = 'echo "$CUDA_VISIBLE_DEVICES $SLURM_GPUS $SLURM_CPUS_ON_NODE"'
ONE = {f"{device} 1 1" for device in (0, 1)}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A cluster whose only worker in use has four cores and two processors."""
    shell = Shell(tmp_path_factory.mktemp("gpus") / "home")
    shell.ok("up", "--detach", "--workers", "1", "--masters", "1", "--cores", "4", "--memory", "4G")
    shell.ok("company", "add", "acme")
    shell.ok("resource", "add", "gpu")
    shell.ok("drain", "worker-1")
    shell.env["PATH"] = f"{shell.ok('slurm', 'path').strip()}:{shell.env['PATH']}"
    words = ("--id", "graphics", "--resource", "gpu=0,1", "--cores", "4", "--memory", "4G")
    worker = shell.start("worker", *words, "--launcher", "plain", "--unsafe-plain")
    wait_until(lambda: "graphics" in shell.ok("workers"), "the worker")
    yield shell
    worker.terminate()
    worker.communicate()
    shell.run("down")


def run(shell: Shell, *words: str) -> Answer:
    """What a command of Slurm answers."""
    done = subprocess.run(
        words, env={**shell.env, "FAIRLOG_COMPANY": "acme"}, cwd=shell.home, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=HOPELESS_S, check=False,
    )  # fmt: skip
    return Answer(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("asked", [["--gres=gpu:1"], ["-G", "1", "-c", "1"], ["-G1", "--mem", "500"]], ids=" ".join)
def test_a_job_of_a_core_and_a_processor_has_no_more(shell: Shell, asked: list[str]) -> None:
    done = run(shell, "sbatch", "-W", *asked, "-o", "one", "--wrap", TELL)
    assert (done.code, done.err) == (0, "")
    assert (shell.home / "one").read_text().strip() in ONE


def test_each_task_of_an_array_has_processors_of_its_own(shell: Shell) -> None:
    for indexes in ("1-3", "1-3%2"):
        done = run(shell, "sbatch", "-W", "--gres=gpu:1", "-a", indexes, "-o", "part-%a", "--wrap", TELL)
        assert (done.code, done.err) == (0, "")
        assert {Path(shell.home / f"part-{index}").read_text().strip() for index in (1, 2, 3)} <= ONE


def test_our_verbs_take_the_same_of_the_lines_of_a_script(shell: Shell) -> None:
    for lines in ("--gres=gpu:1 -c 1", "--gres=gpu:1 -c 1 -a 1-2"):
        Path(shell.home / "job.sh").write_text(f"#!/bin/sh\n#SBATCH {lines}\n{TELL}\n")
        done = shell.run("submit", "--wait", "--company", "acme", "--user", "ann", "job.sh")
        assert done.code == 0, done


def test_srun_has_the_processors_that_it_asks_for(shell: Shell) -> None:
    done = run(shell, "srun", "--gres=gpu:1", "sh", "-c", TELL)
    assert done.out.strip() in ONE, done


def test_processors_are_listed_with_nodes_and_jobs(shell: Shell) -> None:
    nodes = ("sinfo", "-h", "-O", "NodeList: ,GresUsed: ,Gres:", "-n", "graphics")
    wait_until(lambda: run(shell, *nodes).out == "graphics gpu:0 gpu:2\n", "the end of what ran")
    job = run(shell, "sbatch", "--parsable", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "sleep 600").out.strip()
    wait_until(lambda: run(shell, "squeue", "-h", "-j", job, "-o", "%t").out == "R\n", "its beginning")
    assert run(shell, *nodes).out == "graphics gpu:1 gpu:2\n"
    assert run(shell, "squeue", "-h", "-j", job, "-O", "tres-per-node:|,tres-alloc:").out == (
        "gres:gpu:1|cpu=1,mem=512M,node=1,billing=1,gres/gpu=1\n"
    )
    told = run(shell, "sacct", "-X", "-n", "-P", "-j", job, "-o", "AllocTRES").out
    assert told == "billing=1,cpu=1,gres/gpu=1,mem=512M,node=1\n"
    lines = run(shell, "scontrol", "show", "job", job).out.split()
    assert {"JOB_GRES=gpu:1", "TresPerNode=gres:gpu:1"} <= set(lines)
    assert "AllocTRES=cpu=1,mem=512M,gres/gpu=1" in run(shell, "scontrol", "show", "node", "graphics").out
    assert run(shell, "scancel", job).code == 0
