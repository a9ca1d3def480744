"""Jobs on several nodes: where a step runs, and the program of each node, without a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from fairlog.compat.slurm import batch, node_program, sbatch, srun, steps, tables
from fairlog.compat.slurm.words import SlurmError, read
from fairlog.engines import mpi_node
from fairlog.engines.keys import draw_keys
from tests.waiting import HOPELESS_S, wait_until

JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n1,n2,n3.example", "SLURM_NTASKS": "5", "SLURM_CPUS_ON_NODE": "2"}


def asked(*words: str) -> sbatch.SbatchOptions:
    return sbatch.SbatchOptions(read(tables.SRUN, list(words))[0])


@pytest.fixture
def in_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("words", "ranks", "shares"),
    [
        ([], [0, 1, 2], [2, 2, 1]),
        (["-N", "2"], [0, 1], [2, 2]),
        (["-N", "1", "-n", "1"], [0], [1]),
        (["-n", "2"], [0, 1], [1, 1]),
        (["-w", "n3", "-n", "1"], [2], [1]),
        (["-w", "n[2-3]"], [1, 2], [2, 1]),
        (["-w", "n2", "-N", "2", "-n", "2"], [1, 0], [1, 1]),
        (["--ntasks-per-node=2"], [0, 1, 2], [2, 2, 2]),
        (["-n", "7", "-O"], [0, 1, 2], [3, 2, 2]),
    ],
)
@pytest.mark.usefixtures("in_job")
def test_a_step_runs_on_as_many_nodes_as_it_says(words: list[str], ranks: list[int], shares: list[int]) -> None:
    names = ["n1", "n2", "n3.example"]
    assert steps.spread(asked(*words)) == (ranks, shares, [names[rank] for rank in ranks])


@pytest.mark.usefixtures("in_job")
def test_a_step_that_its_job_has_no_room_for_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, why in {
        ("-N", "4"): "this job has 3 nodes, and not 4; give --nodes=3 or fewer",
        ("-w", "n9"): "'n9' is no node of this job, which has n1,n2,n3.example",
        ("-w", "n1,n1"): "'n1' is no node of this job",
        ("-n", "7"): r"More processors requested than permitted \(3 of 2 on n1; --overcommit",
    }.items():
        with pytest.raises(SlurmError, match=why):
            steps.spread(asked(*words))
    assert steps.spread(asked("-N", "3", "-n", "1"))[0] == [0]
    assert "can't run 1 processes on 3 nodes, setting nnodes to 1" in capsys.readouterr().err


def test_a_job_on_one_node_says_how_to_have_several() -> None:
    srun.check_node(asked("-N", "1"))
    with pytest.raises(SlurmError, match="this job has one node; give --nodes=1, or submit its script with `sbatch -"):
        srun.check_node(asked("-N", "2"))


def in_step(monkeypatch: pytest.MonkeyPatch, *words: str) -> srun.SrunStep:
    """A step of a job on one node."""
    for name, value in {"SLURM_JOB_ID": "17", "SLURM_CPUS_ON_NODE": "2", "SLURM_NTASKS": "2"}.items():
        monkeypatch.setenv(name, value)
    return srun.SrunStep(asked(*words), ["true"], [])


def test_processes_that_fail_at_once_are_all_told_of_where_one_ends_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = in_step(monkeypatch, "-K")
    step.processes = [subprocess.Popen(["sh", "-c", f"exit {code}"]) for code in (3, 4)]
    for each in step.processes:
        os.waitid(os.P_PID, each.pid, os.WEXITED | os.WNOWAIT)
    assert sorted(step._wait()) == [3, 4]
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_process_that_the_shell_has_left_to_srun_is_none_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    step, left = in_step(monkeypatch), subprocess.Popen(["true"])
    os.waitid(os.P_PID, left.pid, os.WEXITED | os.WNOWAIT)
    step.processes = [subprocess.Popen(["sh", "-c", "sleep 0.2; exit 3"])]
    assert step._wait() == [3]
    assert left.wait() == 0


def test_processes_that_share_a_file_take_nothing_from_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    step, file = in_step(monkeypatch), tmp_path / "file"
    file.write_text("before")
    with step._opened(str(file), 0) as first, step._opened(str(file), 1) as second:
        second.write(b"second\n")
        first.write(b"first\n")
    assert file.read_text() == "second\nfirst\n"


def test_files_of_nodes_differ_by_what_stands_in_their_names() -> None:
    assert [steps.is_shared(each) for each in ("f", "f.%j", "%%t", "f%x")] == [True] * 4
    assert [steps.is_shared(each) for each in (None, "all", "none", "3", "f.%t", "f.%2t", "%N.out", "f.%n")] == [
        False
    ] * 8
    assert steps.shared_files(asked("-o", "f")) == ("output", "error")
    assert steps.shared_files(asked("-o", "f", "-e", "e.%t")) == ("output",)
    assert steps.shared_files(asked("-o", "f.%t", "-e", "e")) == ("error",)


def test_what_a_job_on_several_nodes_cannot_do_is_refused() -> None:
    def wanted(*words: str) -> sbatch.SbatchOptions:
        return sbatch.SbatchOptions(read(tables.SBATCH, list(words))[0])

    for possible in (["-N", "1", "-a", "1-3"], ["-N", "2", "-n", "5", "-c", "2", "--gpus-per-node=1", "--mem=1G"]):
        sbatch.check_nodes(wanted(*possible))
    for words, why in {
        ("-N", "2", "-a", "1-3"): "each task of an array runs on one node here; give --nodes=1",
        ("-N", "3", "-n", "2"): "there are fewer processes than nodes, which are 3; give --nodes=2",
        ("-N", "2", "-G", "4"): "--gpus is refused with several nodes; say what each has with --gpus-per-node",
        ("-n", "4", "--ntasks-per-node=2", "--mem-per-gpu=1G"): "--mem-per-gpu is refused with several nodes",
    }.items():
        with pytest.raises(SlurmError, match=why):
            sbatch.check_nodes(wanted(*words))


def test_a_job_on_several_nodes_is_a_gang_that_runs_its_script_once() -> None:
    script = batch.command_of(["a", "--", "b"], how="either", stdin="", file="/x/s.sh")
    fields = {"command": script, "script_at": batch.PLACE, "cores_per_task": 6, "tasks": 1, "small": True, "name": "j"}
    files = {"output": "/x/%%j-%j.%3a", "error": "/dev/null", "open_mode": "truncate"}
    made, keys = sbatch.on_nodes({**fields, **files, "memory_per_task_mb": 900, "task_resources": {"gpu": "2"}}, 3)
    gang = {"executor_program": True, "gang": True, "executor_limit": 3, "max_failures": 1, "sizing": "fixed"}
    size = {"executor_cores": 6, "executor_memory_mb": 900, "executor_resources": {"gpu": 2}}
    command, at = made.pop("command"), made.pop("script_at")
    assert made == {
        **gang, **size, "name": "j", "output": "/x/%%j-%A.000", "error": "/dev/null", "open_mode": "append"
    }  # fmt: skip
    assert command[at] == batch.NAME
    assert batch.of_first_node(command) == script
    assert batch.typed(command) == "/x/s.sh a -- b"
    assert command[:7] == [*batch.node_program("node"), "/x/%%j-%A.000", "--"]
    assert sorted(keys) == [mpi_node.AUTHORITY, mpi_node.KEY]


def test_how_the_program_of_a_gang_ended_is_read_of_its_detail() -> None:
    told = {
        "its program ended with exit code 7": (7, 0),
        "its program ended with exit code 127 on worker w1, as shells do": (127, 0),
        "its program was ended by SIGUSR1": (0, 10),
        "its executor was lost with worker w1": (0, 0),
        "": (0, 0),
    }
    assert {why: (sbatch.code_told(why), sbatch.signal_told(why)) for why in told} == told


PORTS = count(20_000 + os.getpid() * 16 % 10_000)
"""Ports that no other process of the suite has, and that systems give to nobody who names none."""


class Nodes:
    """The nodes of a job, as processes here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        drawn = draw_keys("slurm")
        self.env = {
            **os.environ,
            mpi_node.AUTHORITY: drawn.authority,
            mpi_node.KEY: drawn.certificate + drawn.key,
            "FAIRLOG_HOSTS": "localhost,localhost",
            "FAIRLOG_WORLD": "2",
            "FAIRLOG_MASTER_ADDR": "localhost",
            "FAIRLOG_MASTER_PORT": str(next(PORTS)),
            "FAIRLOG_APP_NUMBER": "17",
            "SLURM_JOB_NAME": "two",
            "SLURM_JOB_USER": "ann",
        }
        self.running: list[subprocess.Popen[str]] = []
        self.reach = f"{sys.executable} -m {batch.NODE_PROGRAM} reach 1"

    def begin(self, script: str, *outputs: str) -> list[subprocess.Popen[str]]:
        """The programs of both nodes, of which the first runs the script."""
        words = [*batch.on_nodes(["sh", "-c", script], list(outputs))]
        for rank in (0, 1):
            scratch = self.folder / f"{rank}"
            scratch.mkdir()
            own = {"FAIRLOG_RANK": str(rank), "FAIRLOG_SCRATCH": str(scratch), "CUDA_VISIBLE_DEVICES": f"gpu{rank}"}
            pipe = subprocess.PIPE
            begun = subprocess.Popen(
                words, env=self.env | own, cwd=self.folder, stdout=pipe, stderr=pipe, text=True, start_new_session=True
            )
            self.running.append(begun)
        return self.running

    def ended(self) -> list[tuple[int, str, str]]:
        """How each node ended: its exit code and what it wrote."""
        first, other = self.running
        told = first.communicate(timeout=HOPELESS_S)
        if first.returncode:
            other.terminate()
        others = other.communicate(timeout=HOPELESS_S)
        return [(first.returncode, *told), (other.returncode, *others)]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    for each in made.running:
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
        with each:
            pass


def test_a_program_on_another_node_reads_writes_and_ends_as_one_here(nodes: Nodes) -> None:
    program = "cat; echo to $FAIRLOG_RANK $CUDA_VISIBLE_DEVICES $SLURMD_NODENAME $MINE; echo error >&2; exit 3"
    script = f"export MINE=kept; echo in | {nodes.reach} bytes sh -c '{program}'; echo code $?"
    nodes.begin(script)
    told = "in\nto 1 gpu1 localhost kept\ncode 3\n"
    assert nodes.ended() == [(0, told, "error\n"), (0, "", "")]


def test_much_is_carried_both_ways_while_lines_stay_whole(nodes: Nodes) -> None:
    (nodes.folder / "much").write_text("".join(f"{number:0100}\n" for number in range(20_000)))
    script = f"{nodes.reach} lines cat < much > there; cmp much there && {nodes.reach} bytes head -c 9 < much | wc -c"
    nodes.begin(script)
    assert nodes.ended() == [(0, "9\n", ""), (0, "", "")]


def test_nothing_is_lost_of_what_nobody_reads_for_a_while(nodes: Nodes) -> None:
    """More than pipes and connections hold, and read for longer than the end of the program is waited for."""
    size = 16_000_000
    nodes.begin(f"{nodes.reach} bytes head -c {size} /dev/zero | (sleep 12; wc -c)")
    assert nodes.ended() == [(0, f"{size}\n", ""), (0, "", "")]


def test_a_job_that_fails_ends_as_its_script_and_once(nodes: Nodes) -> None:
    """The other node goes on until it is told to stop, so that the gang has one failure."""
    first, other = nodes.begin(f"{nodes.reach} bytes true; exit 7")
    assert (first.wait(HOPELESS_S), other.poll()) == (7, None)
    time.sleep(0.5)
    assert other.poll() is None
    other.terminate()
    assert other.wait(HOPELESS_S) in (-signal.SIGTERM, 128 + signal.SIGTERM)


@pytest.mark.parametrize("name", ["KILL", "USR1"])
def test_a_script_that_a_signal_ends_is_told_by_that(nodes: Nodes, name: str) -> None:
    first, _ = nodes.begin(f"kill -{name} $$")
    assert first.wait(HOPELESS_S) == -signal.Signals[f"SIG{name}"]


def test_signals_go_to_the_script_and_by_reach_to_what_runs_elsewhere(nodes: Nodes) -> None:
    """The other node bears them itself."""
    there = 'trap "echo there; exit 4" USR1; touch begun; while :; do sleep 0.1; done'
    script = f"trap 'kill -USR1 $p' USR1; {nodes.reach} bytes sh -c '{there}' & p=$!; wait $p; wait $p; exit $?"
    first, other = nodes.begin(script)
    wait_until((nodes.folder / "begun").exists, "the program of the step")
    other.send_signal(signal.SIGUSR1)
    first.send_signal(signal.SIGUSR1)
    assert (first.wait(HOPELESS_S), first.communicate()[0]) == (4, "there\n")
    assert other.poll() is None


@pytest.mark.parametrize("killed", [True, False])
def test_what_runs_elsewhere_ends_with_who_has_begun_it_and_with_the_job(nodes: Nodes, killed: bool) -> None:  # noqa: FBT001 (of the table)
    there = "echo $$ > pid; sleep 300"
    gone = "kill -9 $!; while kill -0 $(cat pid); do sleep 0.1; done" if killed else "true"
    nodes.begin(f"{nodes.reach} bytes sh -c '{there}' & while [ ! -s pid ]; do sleep 0.1; done; {gone}")
    assert [code for code, _, _ in nodes.ended()] == [0, 0]
    wait_until(lambda: not Path(f"/proc/{(nodes.folder / 'pid').read_text().strip()}").exists(), "the program's end")


def test_a_node_says_what_it_cannot_do(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.begin(f"{nodes.reach} bytes ./none; echo $?")
    (code, told, errors), _ = nodes.ended()
    assert (code, told, errors) == (0, "127\n", "srun: error: localhost: ./none: No such file or directory\n")
    monkeypatch.setenv("FAIRLOG_SCRATCH", "/scratch")
    assert node_program.folder_here("/", "n2") == ("/", "")
    note = "srun: error: couldn't chdir to `/none' on n2; going to /scratch instead\n"
    assert node_program.folder_here("/none", "n2") == ("/scratch", note)


def test_the_first_node_empties_the_files_to_which_all_append(nodes: Nodes) -> None:
    for name in ("two-17-ann", "kept"):
        (nodes.folder / name).write_text("before\n")
    nodes.begin("true", f"{nodes.folder}/%x-%A-%u", f"{nodes.folder}/none")
    assert [code for code, _, _ in nodes.ended()] == [0, 0]
    assert [(nodes.folder / name).read_text() for name in ("two-17-ann", "kept")] == ["", "before\n"]
    assert not (nodes.folder / "none").exists()
