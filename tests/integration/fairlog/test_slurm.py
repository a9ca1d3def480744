"""Slurm's commands, as programs of their own, against a running cluster."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from tests.integration.cli_rig import Answer, Shell
from tests.waiting import HOPELESS_S, wait_until


class Slurm:
    """A home with a cluster of two workers, whose shell finds Slurm's commands."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.folder = Path(shell.ok("slurm", "path").strip())
        self.env = {**shell.env, "PATH": f"{self.folder}:{shell.env['PATH']}", "FAIRLOG_COMPANY": "acme"}

    def run(self, *words: str, text: str = "", **env: str) -> Answer:
        """What a command answers."""
        environment = {**self.env, **env}
        done = subprocess.run(
            words, env=environment, cwd=self.shell.home, input=text, capture_output=True, text=True,
            timeout=HOPELESS_S, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)

    def ok(self, *words: str, text: str = "", **env: str) -> str:
        """What a command that must succeed prints."""
        answer = self.run(*words, text=text, **env)
        assert (answer.code, answer.err) == (0, ""), answer
        return answer.out

    def state(self, job: str) -> str:
        """The state of a job, by sacct."""
        return self.ok("sacct", "-X", "-n", "-P", "-o", "State", "-j", job).strip()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    shell = Shell(tmp_path_factory.mktemp("slurm") / "home")
    shell.ok("up", "--detach", "--workers", "2", "--masters", "1", "--cores", "4", "--memory", "4G")
    for company in ("acme", "globex"):
        shell.ok("company", "add", company)
    yield Slurm(shell)
    shell.run("down")


SCRIPT = """#!/bin/bash
#SBATCH --job-name=first -c 2 --mem 64
echo "$SLURM_JOB_ID $SLURM_JOB_NAME $SLURM_CPUS_PER_TASK $SLURM_CPUS_ON_NODE $SLURM_MEM_PER_NODE $1"
greet
exit 3
"""


def test_a_script_is_copied_run_listed_and_accounted(slurm: Slurm) -> None:
    script = slurm.shell.home / "first.sh"
    script.write_text(SCRIPT + "# long\n" * 30_000)
    said = slurm.ok("sbatch", "first.sh", "a b", **{"BASH_FUNC_greet%%": "() { echo hello\n}"})
    script.unlink()
    job = said.removeprefix("Submitted batch job ").strip()
    assert said == f"Submitted batch job {int(job)}\n"
    wait_until(lambda: slurm.state(job) == "FAILED", "its end")
    assert (slurm.shell.home / f"slurm-{job}.out").read_text() == f"{job} first 2 2 64 a b\nhello\n"
    assert slurm.ok("squeue", "-h", "-t", "all", "-j", job, "-o", "%i %t %j %C") == f"{job} F first 2\n"
    fields = slurm.ok("sacct", "-n", "-P", "-j", job, "-o", "JobID,JobName,ExitCode,NCPUS,ReqMem").splitlines()
    assert fields == [f"{job}|first|3:0|2|64M", f"{job}.batch|batch|3:0|2|"]
    assert slurm.shell.ok("logs", job) == f"{job} first 2 2 64 a b\nhello\n"


def test_a_job_begins_at_the_time_that_it_names(slurm: Slurm) -> None:
    job = slurm.ok("sbatch", "--parsable", "--begin", "now+1hour", "--wrap", "true").strip()
    soon = slurm.ok("sbatch", "--parsable", "--begin=now+2", "--wrap", "date +%s%3N").strip()
    shown = slurm.ok("squeue", "-h", "-j", job, "-o", "%t %r %S").split()
    assert shown[:2] == ["PD", "BeginTime"]
    start = slurm.ok("squeue", "-h", "--start", "-j", job, "-o", "%S").strip()
    assert start == shown[2], "the likely start of a job that begins later is its begin"
    lines = slurm.ok("scontrol", "show", "job", job)
    assert f"EligibleTime={shown[2]}\n" in lines
    assert f"StartTime={shown[2]} " in lines
    one_line = slurm.ok("scontrol", "show", "job", "-o", job)
    assert one_line == slurm.ok("scontrol", "-o", "show", "job", job) == " ".join(lines.split()) + "\n"
    wait_until(lambda: slurm.state(soon) == "COMPLETED", "its end")
    about = json.loads(slurm.shell.ok("app", soon, "--json"))
    assert int((slurm.shell.home / f"slurm-{soon}.out").read_text()) >= about["submittedAt"] + 1_000
    refused = slurm.run("sbatch", "--begin", "soon", "--wrap", "true")
    assert (refused.code, refused.err) == (255, "sbatch: error: Invalid --begin specification: soon\n")
    slurm.ok("scancel", job)


def test_jobs_of_a_name_run_one_after_another_and_one_waits_for_a_beginning(slurm: Slurm) -> None:
    held = slurm.ok("sbatch", "--parsable", "-H", "-J", "alone", "--wrap", "date +%s%3N").strip()
    alone = [
        slurm.ok("sbatch", "--parsable", "-J", "alone", "-d", "singleton", "--wrap", "sleep 1; date +%s%3N").strip()
        for _ in range(2)
    ]
    begun = slurm.ok("sbatch", "--parsable", "-J", "other", "-d", f"after:{held}", "--wrap", "true").strip()
    listed = slurm.ok("squeue", "-h", "-j", ",".join([*alone, begun]), "-o", "%t %r").splitlines()
    assert listed == ["PD Dependency"] * 3
    slurm.ok("scontrol", "release", held)
    wait_until(lambda: [slurm.state(each) for each in (held, *alone, begun)] == ["COMPLETED"] * 4, "their ends")
    times = [int((slurm.shell.home / f"slurm-{each}.out").read_text()) for each in (held, *alone)]
    assert times[0] + 1_000 <= times[1] <= times[2] - 1_000


def test_jobs_and_nodes_are_shown_as_json(slurm: Slurm) -> None:
    job = slurm.ok("sbatch", "--parsable", "-J", "shown", "--wrap", "exit 4").strip()
    wait_until(lambda: slurm.state(job) == "FAILED", "its end")
    (queued,) = json.loads(slurm.ok("squeue", "--json", "-t", "all", "-j", job))["jobs"]
    assert (queued["job_id"], queued["name"], queued["job_state"]) == (int(job), "shown", "FAILED")
    (told,) = json.loads(slurm.ok("sacct", "--json", "-j", job))["jobs"]
    assert (told["exit_code"]["return_code"], told["steps"][0]["step"]["name"]) == (4, "batch")
    nodes = json.loads(slurm.ok("sinfo", "--json"))["nodes"]
    assert [(node["cpus"], node["partitions"]) for node in nodes] == [(4, ["main"])] * 2


def test_tasks_of_an_array_are_cancelled_alone(slurm: Slurm) -> None:
    command = "echo $SLURM_ARRAY_TASK_ID; [ $SLURM_ARRAY_TASK_ID -gt 2 ] || sleep 600"
    job = slurm.ok("sbatch", "--parsable", "-c", "2", "-a", "1-5%2", "-o", "part-%a.out", "--wrap", command).strip()
    begun = slurm.shell.home / "part-2.out"
    wait_until(lambda: begun.exists() and begun.read_text() == "2\n", "its tasks")
    slurm.ok("scancel", f"{job}_4", f"{job}_2")
    shown = slurm.ok("squeue", "-h", "-r", "-t", "all", "-j", f"{job}_4", "-o", "%i %t")
    assert shown in {f"{job}_4 CA\n", f"{job}_4 CG\n"}
    last = slurm.shell.home / "part-5.out"
    wait_until(lambda: last.exists() and last.read_text() == "5\n", "the others")
    assert slurm.run("scancel", f"{job}_9").code == 1
    assert slurm.run("scancel", "-v", f"{job}_1").err == f"scancel: Terminating job {job}_1\n"
    ended = f"{job}_1|CANCELLED by 0,{job}_2|CANCELLED by 0,{job}_3|COMPLETED,{job}_4|CANCELLED by 0,{job}_5|COMPLETED"

    def states() -> str:
        return slurm.ok("sacct", "-X", "-n", "-P", "-o", "JobID,State", "-j", job).strip().replace("\n", ",")

    wait_until(lambda: states() == ended, "the ends")
    assert not (slurm.shell.home / "part-4.out").exists()
    gone = slurm.run("scancel", f"{job}_9")
    assert (gone.code, gone.err) == (1, f"scancel: error: Kill job error on job id {job}_9: Invalid job id specified\n")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("squeue -w nowhere", "squeue: error: Invalid node name nowhere"),
        ("scontrol update jobid=1", "scontrol: error: name what is to be updated, as TimeLimit=1:00:00 or Nice=100"),
        ("sacctmgr", "sacctmgr: error: name a command, such as `sacctmgr show account`"),
        ("srun -N 32 true", "srun: error: the app needs 32 executors of 1 core and 512 MiB at once, and the cluster"),
        ("sbatch -N 5:1 --wrap true", 'sbatch: error: "5:1" is not a valid node count'),
    ],
)
def test_what_names_nothing_is_refused_in_a_whole_sentence(slurm: Slurm, words: str, why: str) -> None:
    answer = slurm.run(*words.split())
    assert answer.code != 0
    assert answer.err.startswith(why)
    assert "--gang" not in answer.err


def test_the_tasks_of_an_array_in_a_state_are_cancelled_and_no_others(slurm: Slurm) -> None:
    """By its name, by its id and by indexes; the ones that run go on."""
    for number, chosen in enumerate((["-t", "PENDING", "-n"], ["-t", "PD"], ["-t", "PD", "_[1-6]"])):
        name, go = f"some{number}", slurm.shell.home / f"go-{number}"
        command = f"touch {name}-$SLURM_ARRAY_TASK_ID; while [ ! -e {go} ]; do sleep 0.1; done"
        job = slurm.ok("sbatch", "--parsable", "-J", name, "-a", "1-6%2", "--wrap", command).strip()
        wait_until(lambda name=name: len(list(slurm.shell.home.glob(f"{name}-*"))) == 2, "two tasks")  # type: ignore[misc]
        named = name if "-n" in chosen else job + (chosen.pop() if len(chosen) > 2 else "")
        assert slurm.ok("scancel", *chosen, named) == ""
        assert slurm.ok("squeue", "-h", "-r", "-j", job, "-o", "%K %t").split("\n")[:-1] == ["1 R", "2 R"]
        assert slurm.ok("scancel", "-t", "PD", "-w", "nowhere", job) == ""
        go.touch()
        wait_until(lambda job=job: slurm.ok("squeue", "-h", "-j", job) == "", "the end")  # type: ignore[misc]
        told = slurm.ok("sacct", "-X", "-n", "-P", "-o", "State", "-j", job).splitlines()
        assert told == ["COMPLETED"] * 2 + ["CANCELLED by 0"] * 4


def test_a_job_is_shown_with_its_script_its_number_and_its_restarts(slurm: Slurm) -> None:
    script = slurm.shell.home / "named.sh"
    script.write_text("#!/bin/sh\nsleep 600\n")
    first = slurm.ok("sbatch", "--parsable", "named.sh", "a", "b").strip()
    array = slurm.ok("sbatch", "--parsable", "-H", "-a", "1-2", "-d", "", "--wrap", "true").strip()
    last = slurm.ok("sbatch", "--parsable", "-d", f"afterok:{first},afterany:{array}", "--wrap", "true").strip()
    waits = f"afterok:{first}(unfulfilled),afterany:{array}_*(unfulfilled)"
    assert slurm.ok("squeue", "-h", "-j", last, "-o", "%E|%o") == f"{waits}|(null)\n"
    assert f" Dependency={waits}\n" in slurm.ok("scontrol", "show", "job", last)
    assert slurm.ok("squeue", "-h", "-j", first, "-o", "%o") == f"{script} a b\n"
    wait_until(lambda: slurm.state(first) == "RUNNING", "its beginning")
    slurm.ok("scontrol", "requeue", first)
    assert slurm.ok("squeue", "-h", "-j", first, "-O", "RestartCnt:3") == "1  \n"
    told = slurm.ok("scontrol", "show", "job", first)
    assert " Restarts=1 " in told
    assert f"   Command={script} a b\n" in told
    slurm.ok("scancel", last, array, first)


def test_a_job_that_submits_another_is_told_what_to_type_and_knows_its_node(slurm: Slurm) -> None:
    script = (
        "#!/bin/bash\n#SBATCH -o inside-%j\nsqueue --me; sbatch -A acme --wrap true\n"
        "scontrol show hostname $SLURM_JOB_NODELIST; touch told-$SLURM_JOB_ID; sleep 600\n"
    )
    job = slurm.ok("sbatch", "--parsable", text=script).strip()
    wait_until((slurm.shell.home / f"told-{job}").exists, "what it is told")
    *refused, host = (slurm.shell.home / f"inside-{job}").read_text().splitlines()
    assert [each.partition(":")[0] for each in refused] == ["squeue", "sbatch"]
    assert all(each.endswith("submit with --export ALL,FAIRLOG_API,FAIRLOG_TOKEN") for each in refused), refused
    assert slurm.ok("squeue", "-h", "-w", host, "-j", job, "-o", "%i") == f"{job}\n"
    assert slurm.ok("scontrol", "show", "node", host).count("NodeName=") == 2
    assert slurm.ok("sinfo", "-h", "-n", host, "-o", "%D") == "2\n"
    elsewhere = slurm.run("squeue", "-h", "-w", "elsewhere", "-j", job)
    assert (elsewhere.code, elsewhere.out) == (1, "")
    slurm.ok("scancel", "-w", host, "-n", "sbatch", job)
    wait_until(lambda: slurm.state(job).startswith("CANCELLED"), "its end")


def test_what_no_job_has_chooses_none_to_cancel(slurm: Slurm) -> None:
    job = slurm.ok("sbatch", "--parsable", "-H", "--wrap", "true").strip()
    for words in (("-p", "gpu"), ("-q", "high"), ("-R", "mine"), ("--wckey", "key")):
        said = slurm.run("scancel", *words, "--me")
        assert (said.code, said.out, said.err.count("\n")) == (1, "", 1), said
        assert "leave it out" in said.err
    assert slurm.ok("squeue", "-h", "-j", job, "-o", "%t") == "PD\n"
    slurm.ok("scancel", "-p", "main", job)


def test_the_end_of_a_job_is_told_by_mail_where_the_operator_allows_that(slurm: Slurm) -> None:
    mail = ("sbatch", "--parsable", "-H", "--mail-user", "Ann@Example.org")
    none = "sbatch: note: nobody is told by mail"
    for words, why in {
        (*mail, "--mail-type", "BEGIN"): ", which takes --mail-type END besides",
        ("sbatch", "-H", "--mail-type=END"): ", which takes --mail-user besides",
        (*mail[:-1], "ann", "--mail-type", "END"): ": ann is no address like ann@example.org",
        (*mail, "--mail-type", "ALL"): ": the operator allows none to @example.org (the setting notify_targets)",
    }.items():
        said = slurm.run(*words, "--wrap", "true")
        assert (said.code, said.err) == (0, f"{none}{why}\n")
    slurm.shell.ok("settings", "set", "notify_targets=@example.org")
    job = slurm.ok(*mail, "--mail-type", "FAIL,END", "--wrap", "true").strip()
    logged = slurm.shell.ok("log", "--json").splitlines()
    assert any("Ann@Example.org" in line and f'"seq":{job},' in line.replace(" ", "") for line in logged)
    slurm.ok("scancel", "-t", "PENDING", "--me")
    slurm.shell.ok("settings", "set", "notify_targets=")
    refused = slurm.run(*mail, "--mail-type", "OFTEN", "--wrap", "true")
    assert (refused.code, refused.err) == (255, "sbatch: error: Invalid --mail-type specification: OFTEN\n")


def test_a_task_of_an_array_is_put_back_alone(slurm: Slurm) -> None:
    """From outside and by itself; it begins again, which counts neither as a failure nor for the others."""
    script = """#!/bin/bash
#SBATCH -a 5,7 -o back-%a.out --open-mode append
echo $SLURM_ARRAY_TASK_ID $SLURM_RESTART_COUNT
[ -z "$SLURM_RESTART_COUNT" ] || exit 0
[ $SLURM_ARRAY_TASK_ID = 5 ] || scontrol requeue $SLURM_JOB_ID
sleep 600
"""
    job = slurm.ok("sbatch", "--parsable", text=script).strip()
    files = {index: slurm.shell.home / f"back-{index}.out" for index in (5, 7)}
    wait_until(lambda: files[7].exists() and files[7].read_text().count("\n") == 3, "its second run")
    assert files[7].read_text() == "7\nfairlog: task 7 was put back\n7 1\n"
    wait_until(lambda: files[5].exists() and files[5].read_text() == "5\n", "the other one")
    assert slurm.run("scontrol", "requeue", f"{job}_6").err.startswith("scontrol: error: Invalid job id specified")
    assert slurm.ok("scontrol", "requeue", f"{job}_5") == ""
    wait_until(lambda: slurm.state(job) == "COMPLETED\nCOMPLETED", "the end")
    assert files[5].read_text() == "5\nfairlog: task 5 was put back\n5 1\n"
    assert slurm.run("scontrol", "requeue", f"{job}_5").code == 1


def test_a_script_of_stdin_waits_for_another_job_and_is_cancelled(slurm: Slurm) -> None:
    first = slurm.ok("sbatch", "--parsable", "-H", "-J", "held", "--wrap", "true").strip()
    waiting = slurm.ok("sbatch", "--parsable", "-d", f"afterok:{first}", "-J", "later", text="#!/bin/sh\nsleep 600\n")
    second = waiting.strip()
    listed = slurm.ok("squeue", "-h", "-j", f"{first},{second}", "-o", "%i %T %r %j").splitlines()
    assert listed == [f"{first} PENDING JobHeldUser held", f"{second} PENDING Dependency later"]
    slurm.shell.ok("release", first)
    wait_until(lambda: slurm.state(second) == "RUNNING", "its beginning")
    assert slurm.state(first) == "COMPLETED"
    assert slurm.ok("scancel", second) == ""
    wait_until(lambda: slurm.state(second).startswith("CANCELLED by "), "its end")
    assert slurm.ok("scancel", first) == ""  # which has ended
    unknown = slurm.run("scancel", "99999999")
    assert (unknown.code, unknown.err.count("\n")) == (1, 1)
    gone = slurm.run("squeue", "-j", "99999999")
    assert (gone.code, gone.out, gone.err) == (1, "", "slurm_load_jobs error: Invalid job id specified\n")
    assert slurm.run("squeue", "-h", "-j", "99999998,99999999") == (0, "", "")


WARNED = """#!/bin/bash
#SBATCH -t 10 -o warned-%A
trap 'echo script; exit 4' USR1
armed=armed-$SLURM_JOB_ID
[ -n "$STEP" ] && srun -n 1 bash -c "trap 'echo step; exit 5' USR2; touch $armed; while :; do sleep 0.1; done"
touch $armed
while :; do sleep 0.1; done
"""


def test_a_signal_goes_to_the_steps_of_a_job_and_without_any_to_its_script(slurm: Slurm) -> None:
    for step, signal, said in (("", "USR1", "script\n"), ("1", "SIGUSR2", "step\n")):
        job = slurm.ok("sbatch", "--parsable", text=WARNED, STEP=step).strip()
        wait_until((slurm.shell.home / f"armed-{job}").exists, "its trap")
        assert slurm.ok("scancel", "--signal", signal, job) == ""
        told = slurm.shell.home / f"warned-{job}"
        wait_until(lambda told=told, said=said: told.read_text().startswith(said), "the signal")  # type: ignore[misc]
        slurm.ok("scancel", "-Q", job)


def test_each_task_of_an_array_is_warned_before_its_own_time_is_over(slurm: Slurm) -> None:
    waits = "trap 'echo warned; exit 0' USR1; while :; do sleep 0.1; done"
    words = ("--parsable", "-W", "-a", "3,5%1", "-t", "1", "--signal", "B:USR1@58", "-o", "warned-%A_%a")
    job = slurm.ok("sbatch", *words, "--wrap", waits).strip()
    for index in (3, 5):
        assert (slurm.shell.home / f"warned-{job}_{index}").read_text() == "warned\n"
    assert slurm.state(job).split() == ["COMPLETED"] * 2


def test_a_job_goes_on_after_a_signal_that_it_bears_sigterm_included(slurm: Slurm) -> None:
    bears = (
        "#!/bin/bash\n#SBATCH -o bears-%A\ntrap 'echo term' TERM; touch armed\n"
        "while [ ! -e enough ]; do sleep 0.1; done; echo ended\n"
    )
    for index, signal in (("", "TERM"), ("", "15"), ("_3", "SIGTERM")):
        for name in ("armed", "enough"):
            (slurm.shell.home / name).unlink(missing_ok=True)
        array = ("--array", "3") if index else ()
        job = slurm.ok("sbatch", "--parsable", *array, text=bears).strip()
        wait_until((slurm.shell.home / "armed").exists, "its trap")
        assert slurm.ok("scancel", "-s", signal, f"{job}{index}") == ""
        told = slurm.shell.home / f"bears-{job}"
        wait_until(lambda told=told: told.read_text() == "term\n", "the signal")  # type: ignore[misc]
        (slurm.shell.home / "enough").touch()
        wait_until(lambda told=told: told.read_text() == "term\nended\n", "its own end")  # type: ignore[misc]
        wait_until(lambda job=job: slurm.state(job) == "COMPLETED", "its state")  # type: ignore[misc]


def test_the_tasks_of_an_array_find_their_index_and_have_files_of_their_own(slurm: Slurm) -> None:
    command = "echo $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT in $SLURM_ARRAY_JOB_ID"
    words = ("--parsable", "-W", "-a", "1-3,7%2", "-o", "out-%A_%a", "--wrap", command)
    job = slurm.ok("sbatch", *words).strip()
    for index in (1, 2, 3, 7):
        assert (slurm.shell.home / f"out-{job}_{index}").read_text() == f"{index} of 4 in {job}\n"
    rows = slurm.ok("sacct", "-X", "-n", "-P", "-j", job, "-o", "JobID,State").splitlines()
    assert rows == [f"{job}_{index}|COMPLETED" for index in (1, 2, 3, 7)]


def test_a_task_of_an_array_that_fails_leaves_the_others_to_run(slurm: Slurm) -> None:
    command = "test $SLURM_ARRAY_TASK_ID -ne 1 && sleep 1 && touch done-$SLURM_ARRAY_TASK_ID"
    waited = slurm.run("sbatch", "--parsable", "-W", "-a", "1-5%1", "--comment", "a note", "--wrap", command)
    assert waited.code == 1
    job = waited.out.strip()
    rows = slurm.ok("sacct", "-X", "-n", "-P", "-j", job, "-o", "JobID,State,ExitCode,Comment").splitlines()
    others = [f"{job}_{index}|COMPLETED|0:0|a note" for index in range(2, 6)]
    assert rows == [f"{job}_1|FAILED|1:0|a note", *others]
    assert sorted(path.name for path in slurm.shell.home.glob("done-*")) == [f"done-{index}" for index in range(2, 6)]


def test_a_job_is_refused_in_a_line_and_nothing_is_submitted(slurm: Slurm) -> None:
    before = slurm.shell.head()
    for words in (("-A", "nobody"), ("-d", "afterok:99999999"), ("--mem", "100G")):
        refused = slurm.run("sbatch", *words, "--wrap", "true")
        assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1), refused
        assert refused.err.startswith("sbatch: error: ")
    asked = slurm.run("sbatch", "--test-only", "--wrap", "true")
    assert (asked.code, asked.out, asked.err[:21]) == (0, "", "sbatch: Job 0 to star")
    told = [
        line for line in slurm.shell.ok("log", "--from", str(before + 1), "--json").splitlines() if "AppReg" in line
    ]
    assert told == []


def test_jobs_are_chosen_by_name_user_and_state_also_those_of_this_machines_user(slurm: Slurm) -> None:
    mine = slurm.ok("sbatch", "--parsable", "-H", "-J", "chosen", "--wrap", "true").strip()
    other = slurm.ok("sbatch", "--parsable", "-H", "-J", "chosen", "--wrap", "true", FAIRLOG_USER="bob").strip()
    login = slurm.ok("id", "-un").strip()
    names = slurm.ok("squeue", "-h", "-n", "chosen", "-u", f"{login},nobody", "-o", "%i %u").splitlines()
    assert names == [f"{mine} {login}"]
    assert slurm.ok("squeue", "-h", "--me", "-n", "chosen", "-o", "%i", FAIRLOG_USER="bob").split() == [other]
    said = slurm.run("squeue", "-h", "-n", "chosen", "-o", "%i", "-u", "no-such,bob")
    assert said == (0, f"{other}\n", "squeue: error: Invalid user: no-such\n")
    assert slurm.run("sacct", "-n", "-u", "no-such") == (1, "", "sacct: error: Invalid user id: no-such\n")
    assert slurm.run("scancel", "-u", "no-such") == (1, "", "scancel: error: Invalid user name: no-such\n")
    assert [slurm.ok(name, "-A", "no-such", "--noheader") for name in ("squeue", "sacct")] == ["", ""]
    slurm.ok("scancel", "-n", "chosen", "-u", "bob", "-t", "PENDING")
    left = slurm.ok("squeue", "-h", "-n", "chosen", "-o", "%i").split()
    assert left == [mine]
    slurm.ok("scancel", "--me", "-n", "chosen")
    assert slurm.ok("squeue", "-h", "-n", "chosen") == ""


def test_an_app_is_named_by_its_number_wherever_an_id_is_taken(slurm: Slurm) -> None:
    def ok(*words: str) -> str:
        return slurm.shell.ok(*words)

    first = ok("submit", "--company", "acme", "--user", "ann", "--hold", "--parsable", "--", "true").strip()
    app = slurm.shell.app(first)["app"]
    assert app.startswith("app-")
    second = slurm.shell.submit("--after", f"{first}:any", "--parsable", "--", "true")
    assert slurm.shell.app(second)["after"] == {app: "any"}
    assert f"app       {app} of ann" in ok("explain", first)
    (slurm.shell.home / "log.jsonl").write_text(ok("log", "--json"))
    for words in (("explain", first), ("log", "--app", first), ("app", first)):
        assert app in ok(*words, "log.jsonl")
    assert ok("release", first) == f"{app} released\n"
    wait_until(lambda: slurm.shell.app(second)["state"] == "finished", "both ends")
    assert ok("logs", first) == ""


STEPS = """#!/bin/bash
#SBATCH -n 2 -t 10
srun -l sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS, step $SLURM_STEP_ID' | sort
srun -n 1 --output step-%j.%s.%t --error step-%j.%s.%t sh -c 'echo out; echo err >&2'
srun -n 1 sh -c 'exit 3' 2> said; echo "code $?: $(cat said)"
srun nothere 2> /dev/null; echo code $?
srun -n 1 sh -c 'trap "echo heard; exit" USR1; echo > ready; while :; do sleep 0.1; done' &
step=$!
while [ ! -e ready ]; do sleep 0.1; done
kill -USR1 $step; wait $step
"""


def test_scontrol_shows_and_changes_jobs(slurm: Slurm) -> None:
    words = (
        "--parsable",
        "-H",
        "-J",
        "shown",
        "-t",
        "10",
        "-o",
        "%x-%j",
        "--comment",
        "two words",
        "--wrap",
        "sleep 600",
    )
    job = slurm.ok("sbatch", *words).strip()
    shown = slurm.ok("scontrol", "-o", "show", "job", job)
    login = slurm.ok("id", "-un").strip()
    for part in (
        f"JobId={job} JobName=shown UserId={login}(",
        " JobState=PENDING Reason=JobHeldUser ",
        " TimeLimit=00:10:00 ",
        " Comment=two words ",
        f" StdOut={slurm.shell.home}/shown-{job}\n",
    ):
        assert part in shown
    assert slurm.ok("scontrol", "update", f"JobId={job}", "TimeLimit=30", "Nice=5") == ""
    assert slurm.ok("squeue", "-h", "-j", job, "-o", "%l %y") == "30:00 5\n"
    shorter = slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=5")
    assert (shorter.code, shorter.err) == (1, "scontrol: error: a time limit can only be made longer than 00:30:00\n")
    slurm.ok("scontrol", "release", job)
    wait_until(lambda: slurm.state(job) == "RUNNING", "its beginning")
    assert "NodeList=worker-" in slurm.ok("scontrol", "show", "job", job)
    late = slurm.run("scontrol", "hold", job)
    assert (late.code, late.err.count("\n")) == (1, 1)
    slurm.ok("scancel", job)
    unknown = slurm.run("scontrol", "show", "job", "99999999")
    assert (unknown.code, unknown.out, unknown.err) == (1, "", "slurm_load_jobs error: Invalid job id specified\n")
    assert slurm.ok("scontrol", "show", "hostnames", "a[1-2],b").split() == ["a1", "a2", "b"]
    assert "MinJobAge               = 300 sec\n" in slurm.ok("scontrol", "show", "config")
    assert slurm.ok("scontrol", "ping") == "Slurmctld(primary) at fairlog is UP\n"


AGAIN = """#!/bin/bash
#SBATCH -c 2 -o again-%j --open-mode append --requeue
echo "run ${SLURM_RESTART_COUNT:-0} of $SLURM_JOB_ID"
[ -n "$SLURM_RESTART_COUNT" ] || { scontrol requeue "$SLURM_JOB_ID" && exit 255; }
"""


def test_a_job_that_puts_itself_back_runs_again_under_its_id(slurm: Slurm) -> None:
    """As one does that was warned, has written a checkpoint and ends: how it ended counts no more."""
    job = slurm.ok("sbatch", "--parsable", text=AGAIN).strip()
    wait_until(lambda: slurm.state(job) == "COMPLETED", "its second end")
    assert (slurm.shell.home / f"again-{job}").read_text() == f"run 0 of {job}\nrun 1 of {job}\n"
    assert slurm.shell.app(job)["restarts"] == 1
    late = slurm.run("scontrol", "requeue", job)
    assert (late.code, late.err.count("\n"), "already ended: finished" in late.err) == (1, 1, True)


LOOK = """#!/bin/bash
#SBATCH -c 1 -t 30 -J looks -o look-%A.%a -a 2-3 --dependency afterok:EARLIER
unset FAIRLOG_API FAIRLOG_TOKEN FAIRLOG_DATA XDG_DATA_HOME
export HOME=/nowhere
squeue -h -j "$SLURM_JOB_ID" -o "%A %j %T %l" | head -n 1
squeue -h -j "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" -o %i
sacct -n -X -P -j "$SLURM_ARRAY_JOB_ID" -o JobName,State | head -n 1
scontrol show job "$SLURM_JOB_ID" | grep -o " JobName=.*" | head -n 1
squeue -h -j EARLIER
squeue --me
scancel EARLIER
"""


def test_a_job_sees_itself_by_its_pass_and_no_other(slurm: Slurm) -> None:
    earlier = slurm.ok("sbatch", "--parsable", "--wrap", "true").strip()
    job = slurm.ok("sbatch", "--parsable", text=LOOK.replace("EARLIER", earlier)).strip()
    wait_until(lambda: slurm.state(f"{job}_2") == slurm.state(f"{job}_3") == "FAILED", "their ends")
    shown = (slurm.shell.home / f"look-{job}.2").read_text().splitlines()
    assert shown[:3] == [f"{job} looks RUNNING 30:00", f"{job}_2", "looks|RUNNING"]
    assert shown[3].startswith(" JobName=looks")
    refused = [line for line in shown if "error" in line]
    assert len(refused) == 3
    assert all("and submit with --export ALL,FAIRLOG_API,FAIRLOG_TOKEN" in line for line in refused)


BY_PASS = """#!/bin/bash
#SBATCH -c 1 -o by-pass-%j
unset FAIRLOG_API FAIRLOG_TOKEN FAIRLOG_DATA XDG_DATA_HOME
export HOME=/nowhere
"""


def test_a_job_cancels_and_signals_itself_by_its_pass(slurm: Slurm) -> None:
    trapped = "trap 't=1; echo trapped' USR1; scancel -s USR1 $SLURM_JOB_ID; until [ $t ]; do sleep 0.1; done\n"
    job = slurm.ok(
        "sbatch", "--parsable", text=f"{BY_PASS}{trapped}scancel $SLURM_JOB_ID; sleep 600; echo late\n"
    ).strip()
    wait_until(lambda: slurm.state(job).startswith("CANCELLED"), "its end")
    told = slurm.shell.home / f"by-pass-{job}"
    assert told.read_text().splitlines()[0] == "trapped"
    assert "late" not in told.read_text()
    assert "error" not in told.read_text()


def test_a_task_of_an_array_cancels_itself_and_no_other(slurm: Slurm) -> None:
    script = (
        "[ $SLURM_ARRAY_TASK_ID = 2 ] || { scancel $SLURM_JOB_ID; sleep 600; }; until [ -e gone ]; do sleep 0.1; done\n"
    )
    job = slurm.ok("sbatch", "--parsable", "-a", "1-2", text=BY_PASS + script).strip()
    wait_until(lambda: slurm.state(f"{job}_1").startswith("CANCELLED"), "its own end")
    (slurm.shell.home / "gone").touch()
    wait_until(lambda: slurm.state(f"{job}_2") == "COMPLETED", "the end of the other")


def test_a_task_of_an_array_is_ended_by_the_number_that_squeue_tells_of_it(slurm: Slurm) -> None:
    job = slurm.ok("sbatch", "--parsable", "-a", "1-2", "-o", "/dev/null", "--wrap", "sleep 600").strip()
    wait_until(lambda: slurm.ok("squeue", "-h", "-j", job, "-o", "%T").split() == ["RUNNING"] * 2, "their beginning")
    told = dict(line.split() for line in slurm.ok("squeue", "-h", "-j", job, "-o", "%i %A").splitlines())
    first, second = told[f"{job}_1"], told[f"{job}_2"]
    assert len({job, first, second}) == 3
    slurm.ok("scancel", first)
    wait_until(lambda: slurm.state(first) == slurm.state(f"{job}_1") == "CANCELLED by 0", "its end")
    assert slurm.ok("squeue", "-h", "-j", second, "-o", "%i %T") == f"{job}_2 RUNNING\n"
    assert f"JobId={second} ArrayJobId={job} ArrayTaskId=2 " in slurm.ok("scontrol", "show", "job", second)
    slurm.ok("scancel", job)


def test_sacct_tells_where_the_output_of_a_job_is(slurm: Slurm) -> None:
    job = slurm.ok("sbatch", "--parsable", "-W", "-o", "said-%j", "--wrap", "true").strip()
    home = slurm.shell.home
    told = slurm.ok("sacct", "-n", "-P", "-j", job, "-o", "JobID,StdOut,StdErr,StdIn").splitlines()
    assert told == [f"{job}|{home}/said-{job}|{home}/said-{job}|/dev/null", f"{job}.batch|||"]
    assert "StdOut" not in slurm.ok("sacct", "-P", "-l", "-j", job).partition("\n")[0]


def test_sdiag_counts_jobs_and_srun_waits_for_others(slurm: Slurm) -> None:
    def pending() -> int:
        return int(next(line for line in slurm.ok("sdiag").splitlines() if line.startswith("Jobs pending:"))[13:])

    before = pending()
    held = slurm.ok("sbatch", "--parsable", "-H", "-o", "/dev/null", "--wrap", "true").strip()
    assert pending() == before + 1
    later = subprocess.Popen(
        ["srun", "-d", f"afterany:{held}", "echo", "now"], env=slurm.env, cwd=slurm.shell.home, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: "Dependency" in slurm.ok("squeue", "-h", "--me", "-o", "%r"), "its waiting")
    slurm.ok("scancel", held)
    assert later.communicate(timeout=HOPELESS_S) == ("now\n", "")


def test_scontrol_requeues_what_runs_and_says_what_it_does_not(slurm: Slurm) -> None:
    job = slurm.ok("sbatch", "--parsable", "--wrap", "sleep 600").strip()
    kept = slurm.ok("sbatch", "--parsable", "--no-requeue", "--wrap", "sleep 600").strip()
    wait_until(lambda: [slurm.state(each) for each in (job, kept)] == ["RUNNING"] * 2, "their beginning")
    assert " Requeue=0 " in slurm.ok("scontrol", "-o", "show", "job", kept)
    refused = slurm.run("scontrol", "requeue", kept)
    assert (refused.code, refused.err.count("\n"), "--no-requeue" in refused.err) == (1, 1, True)
    assert slurm.ok("scontrol", "requeuehold", job) == ""
    assert slurm.shell.app(job)["onHold"] is True
    assert slurm.ok("squeue", "-h", "-j", job, "-o", "%t").strip() == "PD"
    wait_until(lambda: not slurm.shell.app(job)["executors"], "the end of what ran")
    slurm.ok("scontrol", "release", job)
    wait_until(lambda: slurm.state(job) == "RUNNING", "its beginning")
    assert " Requeue=1 Restarts=1 " in slurm.ok("scontrol", "-o", "show", "job", job)
    alone = slurm.run("scontrol", "requeue", f"{job}_1")
    assert (alone.code, alone.err) == (1, f"scontrol: error: Invalid job id specified for job {job}_1\n")
    both = slurm.ok("sacct", "-X", "-n", "-P", "-o", "JobID", "-o", "State", "-j", kept, "-j", job).split()
    assert both == [f"{each}|RUNNING" for each in sorted((job, kept), key=int)]
    slurm.ok("scancel", job, kept)


def test_nodes_and_accounts_are_listed(slurm: Slurm) -> None:
    assert slurm.ok("sinfo", "-o", "%P") == "PARTITION\nmain*\n"
    assert slurm.ok("sinfo", "-h", "-N", "-o", "%N %c %m").splitlines() == ["worker-1 4 4096", "worker-2 4 4096"]
    assert slurm.ok("sinfo", "-h", "-s", "-o", "%D %N") == "2 worker-[1-2]\n"
    login = slurm.ok("id", "-un").strip()
    assert slurm.ok("sacctmgr", "-n", "-s", "list", "user", login, "format=account%256").split() == ["acme"]
    assert slurm.ok("sshare", "-U", "--format", "Account%256", "--noheader").split() == ["acme"]
    shares = slurm.ok("sshare", "-n", "-P", "-o", "Account,User,RawShares,NormShares").splitlines()
    assert shares[:2] == ["acme||4|0.500000", "globex||4|0.500000"]


def test_srun_runs_a_program_as_often_as_the_job_has_tasks(slurm: Slurm) -> None:
    job = slurm.ok("sbatch", "--parsable", "-W", "-o", "steps.out", text=STEPS).strip()
    lines = (slurm.shell.home / "steps.out").read_text().splitlines()
    assert lines[:2] == ["0: 0 of 2, step 0", "1: 1 of 2, step 0"]
    assert lines[2].startswith("code 3: srun: error: ")
    assert lines[2].endswith(": task 0: Exited with exit code 3")
    assert lines[3:] == ["code 2", "heard"]
    assert (slurm.shell.home / f"step-{job}.1.0").read_text() == "out\nerr\n"


def test_all_processes_of_a_step_read_what_srun_is_given(slurm: Slurm) -> None:
    """As Slurm's: unless one of them is named, or none."""
    for words, lines in (((), 2), (("--input", "1"), 1), (("-i", "none"), 0)):
        outside = slurm.run("srun", "-n", "2", *words, "cat", text="one\ntwo\n")
        assert (outside.code, sorted(outside.out.split())) == (0, ["one"] * lines + ["two"] * lines), outside
    script = (
        "#!/bin/sh\n#SBATCH -n 3 -o fed\nseq 50000 | srun wc -l\nseq 9 | srun true; srun -w $SLURM_JOB_NODELIST echo\n"
    )
    slurm.ok("sbatch", "-W", text=script)
    assert (slurm.shell.home / "fed").read_text().split() == ["50000"] * 3


def test_files_of_a_step_are_named_none_or_by_the_number_of_a_process(slurm: Slurm) -> None:
    script = "#!/bin/sh\n#SBATCH -n 2 -o modes\nsrun -o none echo gone\nsrun -o 1 -l echo kept\nsrun -o all echo all\n"
    slurm.ok("sbatch", "-W", text=script)
    assert (slurm.shell.home / "modes").read_text().splitlines() == ["1: kept", "all", "all"]
    slurm.ok("sbatch", "-W", "-o", "none", "--wrap", "echo gone")
    assert not any((slurm.shell.home / name).exists() for name in ("none", "all", "1"))


def test_variables_stand_for_options(slurm: Slurm) -> None:
    files = {"SBATCH_OUTPUT": "of-%j.o", "SBATCH_ERROR": "of-%j.e", "SBATCH_INPUT": "given"}
    (slurm.shell.home / "given").write_text("read\n")
    job = slurm.ok("sbatch", "--parsable", "-W", "--wrap", "cat; echo wrong >&2", **files).strip()
    assert [(slurm.shell.home / f"of-{job}.{each}").read_text() for each in "oe"] == ["read\n", "wrong\n"]
    assert slurm.ok("sacct", "-X", "-n", "-P", "-j", job, SACCT_FORMAT="jobid,state") == f"{job}|COMPLETED\n"
    assert slurm.ok("squeue", "-h", "-t", "all", "-j", job, SQUEUE_FORMAT2="JobID:1,StateCompact:3")[1:] == "CD \n"
    assert slurm.ok("sinfo", "-h", SINFO_FORMAT="%n").split() == ["worker-1", "worker-2"]
    del slurm.env["FAIRLOG_COMPANY"]
    try:
        assert slurm.run("srun", "true").code == 1
        assert slurm.ok("srun", "sh", "-c", "echo $SLURM_JOB_ACCOUNT", SLURM_ACCOUNT="globex") == "globex\n"
    finally:
        slurm.env["FAIRLOG_COMPANY"] = "acme"
    note = slurm.run("sbatch", "-H", "--wrap", "true", SBATCH_EXCLUSIVE="")
    assert (note.code, note.err) == (0, "sbatch: note: without effect here: --exclusive\n")
    slurm.ok("scancel", "--me", "-t", "PENDING")


def test_srun_outside_a_job_is_a_job_of_its_own(slurm: Slurm) -> None:
    said = slurm.run("srun", "echo", "well")
    assert (said.code, said.out, said.err) == (0, "well\n", "")
    said = slurm.run("srun", "-n", "2", "-J", "mine", "sh", "-c", "echo hello; exit 3")
    assert (said.code, said.out) == (3, "hello\nhello\n")
    assert slurm.ok("squeue", "-h", "-t", "all", "-n", "mine", "-o", "%T") == "FAILED\n"


def test_no_more_tasks_of_an_array_run_at_once_than_it_says(slurm: Slurm) -> None:
    command = "date +%s%3N; sleep 0.3; date +%s%3N"
    job = slurm.ok("sbatch", "--parsable", "-W", "-a", "1-4%1", "-o", "one-%a.out", "--wrap", command).strip()
    spans = sorted([int(line) for line in (slurm.shell.home / f"one-{i}.out").read_text().split()] for i in range(1, 5))
    assert [begun >= ended for (_, ended), (begun, _) in pairwise(spans)] == [True] * 3
    held = slurm.ok("sbatch", "--parsable", "-H", "-a", "1-10,15%3", "--wrap", "true").strip()
    assert slurm.ok("squeue", "-h", "-j", held, "-o", "%i %K") == f"{held}_[1-10,15%3] 1-10,15%3\n"
    slurm.ok("scancel", held)
    lines = "#!/bin/sh\n#SBATCH -a 1-4%1 -o own-%a.out\n" + command
    (slurm.shell.home / "own.sh").write_text(lines)
    slurm.shell.ok("submit", "--company", "acme", "--user", "ann", "--wait", "own.sh")
    spans = sorted([int(line) for line in (slurm.shell.home / f"own-{i}.out").read_text().split()] for i in range(1, 5))
    assert [begun >= ended for (_, ended), (begun, _) in pairwise(spans)] == [True] * 3
    assert set(slurm.state(job).splitlines()) == {"COMPLETED"}


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("kill -9 $$", "F FAILED JobLaunchFailure 0:9 1"),
        ("kill -TERM $$", "F FAILED JobLaunchFailure 0:15 1"),
        ("sh -c 'kill -9 $$'; exit", "F FAILED NonZeroExitCode 137:0 137"),
        ("exit 255", "F FAILED NonZeroExitCode 255:0 255"),
        ("exit 0", "CD COMPLETED None 0:0 0"),
    ],
)
def test_a_signal_that_ends_the_script_is_told_from_an_exit_code(slurm: Slurm, command: str, told: str) -> None:
    done = slurm.run("sbatch", "--parsable", "-W", "-o", "/dev/null", "--wrap", command)
    job = done.out.strip()
    state = slurm.ok("squeue", "-h", "-t", "all", "-j", job, "-o", "%t %T %r").strip()
    code = slurm.ok("sacct", "-X", "-n", "-P", "-o", "ExitCode", "-j", job).strip()
    assert f"{state} {code} {done.code}" == told


def test_jobs_that_have_ended_keep_their_nodes_and_are_listed_on_demand(slurm: Slurm) -> None:
    job = slurm.ok("sbatch", "--parsable", "-W", "-J", "over", "-o", "/dev/null", "--wrap", "true").strip()
    wait_until(lambda: json.loads(slurm.shell.ok("app", job, "--json"))["executors"] == [], "its executor's end")
    (node,) = {
        slurm.ok("squeue", "-h", "-t", "all", *only, "-o", "%N").strip() for only in (("-j", job), ("-n", "over"))
    }
    assert node in slurm.ok("sinfo", "-h", "-N", "-o", "%N").split()
    assert slurm.ok("sacct", "-X", "-n", "-P", "-j", job, "-o", "NodeList").strip() == node
    assert f"   NodeList={node}\n   BatchHost={node}\n" in slurm.ok("scontrol", "show", "job", job)
    assert slurm.ok("squeue", "-h", "-j", job) == ""


def test_lists_of_nodes_have_the_columns_of_slurm(slurm: Slurm) -> None:
    lines = slurm.ok("sinfo", "-N").splitlines()
    assert lines[0] == "NODELIST   NODES PARTITION STATE "
    assert lines[1][:27] == "worker-1       1     main* "
    assert slurm.ok("sinfo", "-h", "-O", "NodeHost:12,CPUs:.6").splitlines() == [
        "worker-1         4",
        "worker-2         4",
    ]
    assert slurm.ok("sinfo", "-p", "none", "-h") == ""
    assert slurm.ok("sinfo", "-l").splitlines()[1].startswith("PARTITION AVAIL  TIMELIMIT   JOB_SIZE ROOT OVERSUBS ")
    assert slurm.ok("squeue", "-l").splitlines()[1].split()[:6] == [
        "JOBID",
        "PARTITION",
        "NAME",
        "USER",
        "STATE",
        "TIME",
    ]
    assert slurm.ok("scontrol", "show", "hostlist", "n1,n2,n3,x") == "n[1-3],x\n"
    asked = ("--parsable", "-c", "4", "-t", "10", "--wrap", "sleep 600")
    large = [slurm.ok("sbatch", *asked).strip() for _ in range(2)]
    behind = slurm.ok("sbatch", *asked).strip()
    wait_until(lambda: all(slurm.state(job) == "RUNNING" for job in large), "the first jobs")
    listed = slurm.ok("squeue", "-h", "--start", "-o", "%i %t %S")
    assert re.fullmatch(rf"(.*\n)*{behind} PD [0-9T:-]{{19}}\n(.*\n)*", listed), listed
    waits = slurm.run("sbatch", "--test-only", "-c", "4", "--wrap", "true")
    assert re.search(r"; it probably starts at [0-9T:-]{19}$", waits.err.strip()), waits.err
    slurm.ok("scancel", *large, behind)
    wait_until(lambda: slurm.run("sbatch", "--test-only", "--wrap", "true").err.find("to start at") > 0, "room")
    planned = slurm.run("sbatch", "--test-only", "--wrap", "true")
    assert re.fullmatch(
        r"sbatch: Job 0 to start at [0-9T:-]{19} using 1 processors on nodes worker-\d in .*\n", planned.err
    )


NEXTFLOW = """#!/bin/bash
#SBATCH -J nf-proc_(1)
#SBATCH -o {folder}/.command.log
#SBATCH --no-requeue
#SBATCH --signal B:USR2@30
#SBATCH -c 2
#SBATCH -t 00:05:00
#SBATCH --mem 300M
#SBATCH -p main
on_exit() {{ exit_status=${{nxf_main_ret:=$?}}; printf -- $exit_status > {folder}/.exitcode; exit $exit_status; }}
on_term() {{ set +e; [[ "$pid" ]] && kill "$pid"; }}
nxf_main() {{
    trap on_exit EXIT; trap on_term TERM INT USR2; trap '' USR1
    cd {folder}
    launch() {{ bash -uec 'echo hello; exit 3'; }}
    (set -o pipefail; (launch | tee .command.out) 3>&1 1>&2 2>&3 | tee .command.err) 3>&1 1>&2 2>&3 &
    pid=$!
    wait $pid || nxf_main_ret=$?
}}
nxf_main
"""


def test_what_nextflow_sends_and_asks_works(slurm: Slurm) -> None:
    folder = slurm.shell.home / "work"
    folder.mkdir()
    said = slurm.run("sbatch", text=NEXTFLOW.format(folder=folder))
    found = re.search(r"Submitted batch job (\d+)", said.out)
    assert found is not None
    wait_until((folder / ".exitcode").exists, "the exit code")
    wait_until(lambda: slurm.state(found[1]) == "FAILED", "its end")
    login = slurm.ok("id", "-un").strip()
    rows = slurm.ok("squeue", "--noheader", "-o", "%i %t", "-t", "all", "-p", "main", "-u", login).splitlines()
    assert all(len(row.split()) == 2 for row in rows)
    assert f"{found[1]} F" in rows
    assert (folder / ".command.log").read_text() == (folder / ".command.out").read_text() == "hello\n"
    slurm.ok("scancel", found[1])


def test_what_aiida_cromwell_and_dask_ask_works(slurm: Slurm) -> None:
    lines = "--no-requeue --job-name=aiida-1 --nodes=1 --ntasks-per-node=2 --time=0-00:10:00 --mem=200"
    said = slurm.run("sbatch", "-H", text=f"#!/bin/bash\n#SBATCH {lines}\ntrue\n").out
    job = re.findall(r"[Ss]ubmitted batch job\s+(\d+)", said)[0]
    form = "%i^^^%t^^^%r^^^%B^^^%u^^^%D^^^%C^^^%R^^^%P^^^%l^^^%M^^^%S^^^%j^^^%V"
    row = slurm.ok("squeue", "--noheader", "-o", form, f"--jobs={job},999999", SLURM_TIME_FORMAT="standard")
    words = row.strip().split("^^^")
    assert words[:3] == [job, "PD", "JobHeldUser"]
    assert words[5:12] == ["1", "2", "(JobHeldUser)", "main", "10:00", "0:00", "N/A"]
    assert (words[12], len(words), bool(datetime.fromisoformat(words[13]))) == ("aiida-1", 14, True)
    assert slurm.ok("scancel", job) == ""
    assert slurm.ok("squeue", "-j", job).count("\n") == 1
    wrapped = ("-J", "c", "-D", ".", "-o", "out", "-e", "err", "-t", "5", "-p", "main", "-c", "1", "--mem-per-cpu=200")
    assert re.fullmatch(r"Submitted batch job \d+\n", slurm.ok("sbatch", *wrapped, "--wrap", "/bin/bash out.sh"))
    script = slurm.shell.home / "dask.sh"
    script.write_text("#!/usr/bin/env bash\n#SBATCH -n 1\n#SBATCH -o dask-%J.out\n#SBATCH --mem=573M\necho $0\n")
    number = re.findall(r"\d+", slurm.ok("sbatch", str(script)))[0]
    script.unlink()
    wait_until(lambda: slurm.state(number) == "COMPLETED", "its end")
    assert (slurm.shell.home / f"dask-{number}.out").exists()


def test_what_the_plugin_of_snakemake_asks_works(slurm: Slurm) -> None:
    about = ("--job-name", "run-uuid", "--output", "logs/%j.log", "--export=ALL", "--comment", "rule_a", "-A", "acme")
    more = ("-p", "main", "-t", "5", "--mem", "400", "--ntasks=1", "--cpus-per-task=1", "-D", ".", "--wrap=touch made")
    (slurm.shell.home / "logs").mkdir()
    job = slurm.run("sbatch", "--parsable", *about, *more).out.strip().split(";")[0]
    shown = ("-X", "--parsable2", "--clusters", "all", "--noheader", "--format=JobIdRaw,State")
    asked = ("sacct", *shown, "--starttime", "now-2days", "--endtime", "now", "--name", "run-uuid")
    wait_until(lambda: slurm.ok(*asked) == f"{job}|COMPLETED\n", "its end")
    states = slurm.ok("squeue", "--format=%i|%T", "--states=all", "--noheader", "--name", "run-uuid")
    assert states == f"{job}|COMPLETED\n"
    assert re.search(r"MinJobAge\s+= 300 sec", slurm.ok("scontrol", "show", "config"))
    node = slurm.ok("sacct", "-j", job, "-n", "-X", "-o", "nodelist%-256").strip()
    assert node in slurm.ok("sinfo", "-h", "-N", "-o", "%N").split()
    assert slurm.ok("sinfo", "-o", "%P").splitlines() == ["PARTITION", "main*"]
    used = slurm.ok(
        "sacct", "--name=run-uuid", "--parsable2", "--noheader",
        "--format=JobID,JobName,Comment,Elapsed,TotalCPU,NNodes,NCPUS,MaxRSS,ReqMem",
    ).splitlines()  # fmt: skip
    assert [row.split("|")[:3] for row in used] == [[job, "run-uuid", "rule_a"], [f"{job}.batch", "batch", ""]]


def test_a_program_finds_a_home_that_it_can_write(slurm: Slurm) -> None:
    wrapped = ("--export=ALL,HOME=/nowhere", "--wrap", "mkdir -p ~/.cache/x && echo ok")
    slurm.ok("sbatch", "--parsable", "-W", "-o", "home.out", *wrapped)
    assert (slurm.shell.home / "home.out").read_text() == "ok\n"


def test_commands_leave_the_input_of_a_loop_to_it_unless_they_are_told_to_read_it(slurm: Slurm) -> None:
    whose = "--company acme --user ann"
    app = slurm.shell.ok("submit", *whose.split(), "--", "sleep", "600").strip()
    wait_until(lambda: slurm.shell.run("exec", app, "--", "true").code == 0, "its task")
    loop = "printf '1\\n2\\n' | while read n; do {} echo got $n; done"
    for command in (f"fairlog run {whose} --", f"fairlog exec {app} --"):
        assert slurm.run("sh", "-c", loop.format(command)).out == "got 1\ngot 2\n"
    assert slurm.run("sh", "-c", f"echo told | fairlog exec -i {app} -- cat") == (0, "told\n", "")
    slurm.shell.ok("kill", app)


def test_a_command_reads_the_input_that_it_is_given_and_exits_with_its_code(slurm: Slurm) -> None:
    whose = ("--company", "acme", "--user", "ann")
    text = "".join(f"{line}\n" for line in range(5_000))
    said = slurm.run("fairlog", "run", "-i", *whose, "--", "sh", "-c", "cat; echo oops >&2; exit 5", text=text)
    assert (said.code, said.out) == (5, text)
    assert "oops\n" in said.err
    assert slurm.run("srun", "-J", "reader", "sh", "-c", "cat; echo $SLURM_JOB_NAME", text="in\n").out == "in\nreader\n"
    ranks = slurm.run("srun", "-n", "2", "-l", "sh", "-c", "echo $SLURM_PROCID of $SLURM_NTASKS")
    assert sorted(ranks.out.splitlines()) == ["0: 0 of 2", "1: 1 of 2"]
    slurm.run("srun", "-o", "srun.out", "echo", "filed")
    assert (slurm.shell.home / "srun.out").read_text() == "filed\n"
    refused = slurm.shell.run("run", "-i", "--tasks", "2", *whose, "--", "cat")
    assert (refused.code, "--stdin is for a single task" in refused.err) == (2, True)
    refused = slurm.shell.run("run", "--tty", *whose, "--", "cat")
    assert (refused.code, "stdin and stdout are no terminals" in refused.err) == (2, True)


def test_srun_loses_nothing_of_what_its_program_prints(slurm: Slurm) -> None:
    whole = "".join(f"line {number}\n" for number in range(200_000))
    (slurm.shell.home / "whole").write_text(whole)
    said = slurm.run("srun", "cat", "whole")
    assert (said.code, said.err, len(said.out)) == (0, "", len(whole))
    assert said.out == whole


BOUNDED = """#!/bin/bash
#SBATCH -n 2 -c 1 -o steps
srun -n 1 -t 0:01 sleep 600; echo "code $?"
srun -n 3 true; echo "code $?"
srun -O -n 3 -l echo; echo "code $?"
srun -n 1 echo a : -n 1 echo b; echo "code $?"
"""


def test_a_step_has_its_time_and_the_processes_of_its_job(slurm: Slurm) -> None:
    slurm.ok("sbatch", "-W", text=BOUNDED)
    said = (slurm.shell.home / "steps").read_text()
    assert [line for line in said.splitlines() if line.startswith("code")] == ["code 143", "code 1", "code 0", "code 1"]
    for part in ("CANCELLED DUE TO TIME LIMIT ***", "More processors requested than permitted (3 of 2; ", "\n2: \n"):
        assert part in said
    assert "start each of those between the `:` with an srun of its own" in said


def test_what_srun_says_of_its_job_begins_as_slurm_has_it(slurm: Slurm) -> None:
    for words in (["-n", "100", "true"], ["-A", "nobody", "true"], ["--gres=foo:1", "true"], ["nonesuch"]):
        said = slurm.run("srun", *words)
        assert said.code
        lines = said.err.splitlines()
        assert lines[0].startswith("srun: error: "), said
        assert all(line.startswith("srun: ") for line in lines), said


SHOWN = "echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURM_NTASKS $SLURM_NNODES $SLURM_TASKS_PER_NODE"


def test_srun_runs_a_program_on_several_nodes_at_once(slurm: Slurm) -> None:
    """Each is an executor of a gang, with its share of the processes; all read stdin, and the largest code counts."""
    told = slurm.ok("srun", "-N", "2", "-n", "3", "-l", "-c", "2", "sh", "-c", f"{SHOWN}; cat", text="a line\n")
    assert sorted(told.splitlines()) == [
        *("0: 0 0 0 3 2 2,1", "0: a line", "1: 1 1 0 3 2 2,1", "1: a line"),
        *("2: 2 0 1 3 2 2,1", "2: a line"),
    ]
    assert slurm.ok("srun", "-n", "4", "--ntasks-per-node=2", "true") == ""
    hosts = slurm.ok("srun", "-N", "2", "sh", "-c", "scontrol show hostnames | wc -l; echo $SLURM_JOB_CPUS_PER_NODE")
    assert sorted(hosts.splitlines()) == ["1(x2)", "1(x2)", "2", "2"]
    failed = slurm.run("srun", "-J", "several", "-N", "2", "sh", "-c", "echo late; exit $((3 * SLURM_PROCID))")
    assert (failed.code, failed.out) == (3, "late\nlate\n")
    assert "task 1: Exited with exit code 3" in failed.err
    accounted = slurm.ok("sacct", "-X", "-n", "-P", "-a", "-o", "State,ExitCode", "--name", "several")
    assert accounted == "FAILED|3:0\n", "it has begun once"


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_srun_whose_command_is_refused_leaves_no_job_behind(slurm: Slurm, nodes: str) -> None:
    jobs = slurm.ok("sacct", "-X", "-n", "-P", "-a", "-o", "JobID")
    long = slurm.run("srun", "-N", nodes, "echo", *["word"] * 1200)
    assert (long.code, long.out, len(long.err.splitlines())) == (1, "", 1)
    assert long.err.startswith("srun: error: a command beside a task has at most 1000 words, and this one 12")
    assert slurm.ok("sacct", "-X", "-n", "-P", "-a", "-o", "JobID") == jobs
    assert "srun runs on at most 32 nodes, not 33; give fewer" in slurm.run("srun", "-N", "33", "true").err
    large = slurm.run("srun", "-N", nodes, "-J", "large", "echo", "x" * 70_000)
    assert (large.code, large.out) == (1, "")
    wait_until(lambda: slurm.ok("squeue", "-h", "-n", "large") == "", "its end")


def test_a_job_on_several_nodes_ends_with_its_srun(slurm: Slurm) -> None:
    words = [str(slurm.folder / "srun"), "-J", "lasting", "-N", "2", "sleep", "600"]
    with subprocess.Popen(words, env=slurm.env, cwd=slurm.shell.home, stderr=subprocess.DEVNULL) as begun:
        wait_until(lambda: slurm.ok("squeue", "-h", "-n", "lasting", "-t", "R", "-o", "%D") == "2\n", "its start")
        begun.terminate()
        assert begun.wait(HOPELESS_S) == 143
    wait_until(lambda: slurm.ok("squeue", "-h", "-n", "lasting") == "", "its end")
    states = slurm.ok("sacct", "-X", "-n", "-P", "-a", "-o", "State", "--name", "lasting")
    assert states.startswith("CANCELLED by ")


def test_a_job_that_waits_ends_with_its_srun_however_that_ends(slurm: Slurm) -> None:
    """Nothing of srun is left to end it after a SIGKILL, and nothing runs in the job that would notice."""
    full = [slurm.ok("sbatch", "--parsable", "-c", "4", "--wrap", "sleep 600").strip() for _ in range(2)]
    wait_until(lambda: all(slurm.state(job) == "RUNNING" for job in full), "a full cluster")
    for nodes in ("1", "2"):
        words = [str(slurm.folder / "srun"), "-J", "orphan", "-N", nodes, "true"]
        with subprocess.Popen(words, env=slurm.env, cwd=slurm.shell.home, stderr=subprocess.DEVNULL) as begun:
            wait_until(lambda: slurm.ok("squeue", "-h", "-n", "orphan", "-o", "%t") == "PD\n", "its job")
            begun.kill()
        wait_until(lambda: slurm.ok("squeue", "-h", "-n", "orphan") == "", "its end")
    assert slurm.ok("sacct", "-X", "-n", "-P", "-a", "-o", "State", "--name", "orphan").count("CANCELLED by ") == 2
    slurm.ok("scancel", *full)
    wait_until(lambda: slurm.ok("squeue", "-h", "-j", ",".join(full)) == "", "an empty cluster")


def test_srun_opens_a_terminal(slurm: Slurm) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["srun", "--pty", "sh", "-c", "test -t 0 && test -t 1 && echo here && read line && exit ${#line}"],
        env=slurm.env, cwd=slurm.shell.home, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        said = b""
        while b"here" not in said:
            said += os.read(ours, 4096)
        os.write(ours, b"seven77\n")
        while said:
            try:
                said = os.read(ours, 4096)
            except OSError:
                break
        assert process.wait(HOPELESS_S) == 7
    os.close(ours)
