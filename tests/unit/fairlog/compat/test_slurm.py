"""Slurm's commands: how they read what is typed, what they make of it, and how they print what there is."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from fairlog.compat.slurm import (
    as_json,
    batch,
    folder,
    jobs,
    nodes,
    road,
    sacct,
    sacctmgr,
    sbatch,
    scancel,
    scontrol,
    sdiag,
    sinfo,
    squeue,
    sshare,
    tables,
    times,
)
from fairlog.compat.slurm.start import COMMANDS, main
from fairlog.compat.slurm.words import ACTS, IDLE, LEFT, Option, SlurmError, read, read_variables, with_variables
from scheduler.model.versions import HEADER, MESSAGES
from tests.waiting import HOPELESS_S

if TYPE_CHECKING:
    from fairlog.compat.slurm.road import Me

TABLE = (
    Option("-n --number", "N", ACTS, ""),
    Option("-f --flag", "", ACTS, ""),
    Option("--flat", "", IDLE, ""),
    Option("-o --often", "[N]", ACTS, ""),
    Option("--gone", "", LEFT, "not here"),
)


def told(words: list[str], **more: Any) -> tuple[list[tuple[str, str]], list[str]]:
    given, rest = read(TABLE, words, **more)
    return [(option.name, value) for option, value in given], rest


def test_words_are_read_by_the_rules_of_getopt_long() -> None:
    assert told(["-fn5", "x", "--num", "7", "--often", "y", "-o3", "--often=2", "--", "-f"]) == (
        [("flag", ""), ("number", "5"), ("number", "7"), ("often", ""), ("often", "3"), ("often", "2")],
        ["x", "y", "-f"],
    )
    assert told(["-f", "script", "-n", "1"], mixed=False) == ([("flag", "")], ["script", "-n", "1"])
    assert told(["--flag", "-"]) == ([("flag", "")], ["-"])
    for words, why in {
        ("--fla",): "option '--fla' is ambiguous",
        ("--nothing",): "unrecognized option '--nothing'",
        ("-x",): "invalid option -- 'x'",
        ("-n",): "option '-n' requires an argument",
        ("--flag=1",): "option '--flag' doesn't allow an argument",
    }.items():
        with pytest.raises(SlurmError, match=why):
            read(TABLE, list(words))


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_has_two_options_of_one_name_or_letter(command: str) -> None:
    table = getattr(tables, command.upper())
    for named in ([option.name for option in table], [option.letter for option in table if option.letter]):
        assert len(named) == len(set(named)), sorted(named)
    assert all(option.note for option in table)


@pytest.mark.parametrize(
    ("text", "seconds"),
    {
        "90": 5400,
        "1:30": 90,
        "2:00:00": 7200,
        "1-0": 86400,
        "1-02:03": 93780,
        "1-02:03:04": 93784,
        "00:00:10": 10,
        "infinite": None,
        "UNLIMITED": None,
        "0": None,
    }.items(),
)
def test_time_limits_are_read_in_every_form_of_slurm(text: str, seconds: int | None) -> None:
    assert times.read_limit(text) == seconds


@pytest.mark.parametrize("text", ["25:61", "1:60:00", "1-24", "1:2:3:4", "x", "", "-5", "1.5", "1-2-3", "\u0663"])
def test_a_time_limit_that_cannot_be_one_is_refused(text: str) -> None:
    with pytest.raises(SlurmError, match="Invalid --time specification"):
        times.read_limit(text)


@pytest.fixture
def in_utc() -> Iterator[None]:
    """Local time is UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_utc")
def test_times_are_printed_as_slurm_prints_them_and_read_as_it_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [times.clock(each) for each in (7, 3723, 93784, None)] == ["0:07", "1:02:03", "1-02:03:04", "UNLIMITED"]
    assert [times.elapsed(each) for each in (7, 93784)] == ["00:00:07", "1-02:03:04"]
    assert times.moment(0) == "1970-01-01T00:00:00"
    assert times.read_moment("1970-01-02", "starttime") == 86_400_000
    assert times.read_moment("1970-01-01T00:01", "starttime") == 60_000
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    assert times.read_moment("now-2hours", "starttime") == 2_800_000
    assert times.read_moment("01:00", "begin", ahead=True) == 90_000_000
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    assert times.read_moment("now-2hours", "starttime") == 2_800_000
    assert [times.read_moment("01:00", "begin", ahead=ahead) for ahead in (False, True)] == [3_600_000, 90_000_000]
    with pytest.raises(SlurmError, match="Invalid --starttime specification: soon"):
        times.read_moment("soon", "starttime")


def test_lines_of_options_end_with_the_first_command_and_are_quoted_as_in_a_shell() -> None:
    script = (
        '#!/bin/sh\n#SBATCH -J \'my job\' --mem=2G # a comment\n\n# more\n#SBATCH\t--comment="a \\" b#c"\n'
        "#SBATCHES -n 5\n##SBATCH -n 6\necho\n#SBATCH -n 7\n"
    )
    assert batch.directives(script.encode()) == ["-J", "my job", "--mem=2G", '--comment=a " b#c']
    with pytest.raises(SlurmError, match="line 2 of the script: a quotation mark is not closed"):
        batch.directives(b"#!/bin/sh\n#SBATCH -J 'x\n")


def test_what_is_no_script_is_refused() -> None:
    for content, why in {
        b"": "empty",
        b"echo\n": "first line must start with #!",
        b"#!/bin/sh\r\necho\r\n": "DOS line breaks",
        b"#!/bin/sh\n\0": "NULL character",
        b"#!/bin/sh\n" + b"#" * batch.MOST_BYTES: "more than",
    }.items():
        with pytest.raises(SlurmError, match=why):
            batch.checked(content)
    assert batch.checked(b"#!/bin/sh\necho \xff\n") == b"#!/bin/sh\necho \xff\n"


def test_arrays_are_read_with_their_steps_and_how_many_run_at_once() -> None:
    assert sbatch.read_array("1-10,15,20-30:5%3") == ("1-10,15,20-30:5", 3)
    assert sbatch.read_array("[1-3,5]%2") == ("1-3,5", 2)
    assert sbatch.members("0-6:3,2,2-4") == [0, 2, 3, 4, 6]
    for text in ("5-1", "x", "", "1-", "1:2", "1-5:0", "1%0", "1%x", "-1", "[1-3", "[]"):
        with pytest.raises(SlurmError, match="Invalid job array specification"):
            sbatch.read_array(text)


def test_dependencies_signals_sizes_and_patterns_are_what_fairlog_calls_them() -> None:
    assert sbatch.read_dependencies("afterok:1:2,afterany:3") == {
        "after": {"ok": ["1", "2"], "any": ["3"]},
        "singleton": False,
    }
    assert sbatch.read_dependencies("singleton,after:7") == {"after": {"began": ["7"]}, "singleton": True}
    assert sbatch.read_dependencies("7,9,afterok:1")["after"] == {"any": ["7", "9"], "ok": ["1"]}
    assert sbatch.read_dependencies(None) == {"after": {}, "singleton": False}
    assert jobs.after_of(app(after={"a": "ok", "b": "not-ok", "c": "began"})) == (
        "afterok:a(unfulfilled),afternotok:b(unfulfilled),after:c(unfulfilled)"
    )
    for text in (
        "afterok",
        "afterok:",
        "afterok:x",
        "foo:1",
        "afterok:1?afterok:2",
        "singleton:1",
        "after:1+5",
        "aftercorr:1",
    ):
        with pytest.raises(SlurmError, match="Job dependency problem"):
            sbatch.read_dependencies(text)
    assert sbatch.read_signal("B:USR2@30") == ("script", "USR2", 30)
    assert [sbatch.read_signal(each) for each in ("SIGUSR1", "10@5")] == [("steps", "USR1", 60), ("steps", "USR1", 5)]
    for text in ("FOO", "USR1@x", "Q:USR1"):
        with pytest.raises(SlurmError, match="Invalid --signal"):
            sbatch.read_signal(text)
    assert [sbatch.read_memory(each, "mem") for each in ("100", "2G", "1.5g", "512M", "2048K", "1T")] == [
        100, 2048, 1536, 512, 2, 1048576,
    ]  # fmt: skip
    for text in ("0", "x", "", "-1", "0K"):
        with pytest.raises(SlurmError, match="Invalid --mem specification"):
            sbatch.read_memory(text, "mem")
    assert sbatch.pattern("%x-%J_%4a.%%.%N", "output") == "%x-%j_%4a.%%.%N"
    assert sbatch.pattern(r"a\%j", "output") == "a%%j"
    with pytest.raises(SlurmError, match="--output has %q, which stands for nothing here"):
        sbatch.pattern("%q", "output")
    assert [sbatch.read_nice(each) for each in (None, "", "5", "-7", "9999")] == [0, 100, 5, -7, 1000]


def asked(*words: str) -> sbatch.SbatchOptions:
    return sbatch.SbatchOptions(read(tables.SBATCH, list(words))[0])


def test_cores_memory_and_kinds_of_a_job_are_those_of_all_its_tasks() -> None:
    assert sbatch.memory_of(asked("--mem-per-cpu=100"), 3, 2) == 600
    assert sbatch.memory_of(asked("--mem-per-cpu=6"), 3, 2) == 36
    assert sbatch.memory_of(asked("--mem=31"), 3, 2) is None
    assert sbatch.memory_of(asked("--mem-per-gpu=100", "--gres=gpu:2"), 3, 2) == 200
    assert sbatch.processes_of(asked("-n", "2", "--gpus=4", "--cpus-per-gpu=3")) == (2, 6)
    assert sbatch.processes_of(asked("-n", "2", "-c", "4")) == (2, 4)
    for words in (["--cpus-per-gpu=2"], ["--cpus-per-gpu=2", "-c", "1", "-G", "1"], ["-G", "0", "--cpus-per-gpu=2"]):
        with pytest.raises(SlurmError, match="cpus-per-gpu"):
            sbatch.processes_of(asked(*words))
    with pytest.raises(SlurmError, match="--mem-per-gpu needs a number of them"):
        sbatch.memory_of(asked("--mem-per-gpu=1G"), 1, 1)
    assert sbatch.gpus_of(asked("--gres=gpu:a100:2,fpga"), 1) == {"gpu": 2, "fpga": 1}
    assert sbatch.gpus_of(asked("--gpus-per-task=2"), 3) == {"gpu": 6}
    assert sbatch.gpus_of(asked("-G", "a100:1"), 3) == {"gpu": 1}
    for text in ("x", "0"):
        with pytest.raises(SlurmError, match="is not a valid node count"):
            sbatch.check_nodes(asked("--nodes", text))


def test_a_job_finds_what_export_says_and_no_variable_of_the_job_that_submits_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name in ("PATH", "MINE", "SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "FAIRLOG_TOKEN"):
        monkeypatch.setenv(name, "1")
    assert sbatch.exported(None) == {"PATH": "1", "MINE": "1"}
    assert sbatch.exported("NONE") == {}
    assert sbatch.exported("MINE,OTHER=x=y,GONE") == {"MINE": "1", "OTHER": "x=y"}
    assert sbatch.exported("ALL,MINE=2") == {"PATH": "1", "MINE": "2"}
    assert sbatch.exported("A=\"x,y\",B='1,2',C=it's,D=") == {"A": '"x,y"', "B": "'1,2'", "C": "it's", "D": ""}


def test_the_processes_of_a_job_are_shared_out_among_its_nodes() -> None:
    assert sbatch.shares(5, 2) == [3, 2]
    assert sbatch.shares(7, 3) == [3, 2, 2]
    assert sbatch.times_each([3, 2, 2]) == "3,2(x2)"
    assert sbatch.times_each([4]) == "4"
    for words, number, size in (
        (["-N", "2"], 2, (2, 1)),
        (["-N", "2-4", "--ntasks-per-node=3", "-c", "2"], 2, (6, 2)),
        (["-n", "4", "--ntasks-per-node=2"], 2, (4, 1)),
        (["-n", "1", "--ntasks-per-node=2"], 1, (1, 1)),
        (["--ntasks-per-node=2"], 1, (2, 1)),
    ):
        assert (sbatch.nodes_of(asked(*words)), sbatch.processes_of(asked(*words))) == (number, size), words


def test_parts_of_values_that_have_no_effect_are_named() -> None:
    for words, said in {
        (
            "--gres=gpu:a100:2",
            "-G",
            "a100:1",
        ): "the type a100 of resources (--constraint chooses workers by their labels)",
        ("--mail-type=BEGIN,END", "--mail-user=ann@example.org"): "BEGIN of --mail-type (the end is told)",
        ("--mail-type=BEGIN",): "BEGIN of --mail-type (the end is told)",
        ("--mem-per-cpu=7", "-c", "4"): "less memory than 32 MiB, in which no program starts",
        ("--mem-per-cpu=20", "-N", "2"): "less memory than 32 MiB, in which no program starts",
        ("--nice=-5000",): "what of --nice=-5000 is beyond 1000",
        ("-N", "1", "-n", "4", "--ntasks-per-node=2"): "--ntasks-per-node, of which --nodes has fewer than --ntasks",
        ("--signal=R:USR1",): "the R of --signal (nothing is reserved by name)",
    }.items():
        assert sbatch.parts_without_effect(asked(*words)) == [said]
    for words in (
        ("--gres=gpu:2,fpga",),
        ("--mail-type=END",),
        ("--nice=-1000",),
        ("--mem=32",),
        ("-n", "1", "--ntasks-per-node=2"),
    ):
        assert sbatch.parts_without_effect(asked(*words)) == []
    assert sbatch.parts_without_effect(asked("--mail-type=BEGIN", "--mail-user=ann@example.org")) == []


def app(**about: Any) -> dict[str, Any]:
    """An app as the API tells it."""
    return {
        "app": "app-1", "submittedSeq": 17, "company": "acme", "user": "ann", "name": "job", "state": "running",
        "onHold": False, "ready": True, "tasks": 1, "coresPerTask": 2, "requestedCores": 2, "requestedMemory": 1024,
        "memoryPerTask": 512, "submittedAt": 1000, "admittedAt": 2000, "startedAt": 2000, "endedAt": None, "detail": "",
        "reason": None, "array": None, "cwd": "/w", "priority": 0, "timeLimit": None, "maxRuntime": 600, "after": None,
        "beginAt": None, "readyAt": 1000,
        "workers": ["w1"], **about,
    }  # fmt: skip


def task(state: str, **about: Any) -> dict[str, Any]:
    """The state of a task as the API tells it."""
    known = {
        "exit_code": None,
        "started_at": None,
        "ended_at": None,
        "message": "",
        "cpu_ms": 0,
        "peak_mb": 0,
        "attempts": 1,
    }
    return {"state": state, **known, **about}


@pytest.mark.parametrize(
    ("about", "state", "reason"),
    [
        ({}, "RUNNING", "None"),
        ({"state": "pending", "reason": "queue"}, "PENDING", "Priority"),
        ({"state": "pending", "reason": "hold", "onHold": True}, "PENDING", "JobHeldUser"),
        ({"state": "pending", "reason": "dependency"}, "PENDING", "Dependency"),
        ({"state": "pending", "reason": "begin", "beginAt": 9000}, "PENDING", "BeginTime"),
        ({"state": "pending", "reason": "beyond-limit"}, "PENDING", "QOSMaxJobsPerUserLimit"),
        ({"state": "waiting", "reason": "workers-full"}, "PENDING", "Resources"),
        ({"state": "finished", "endedAt": 9000}, "COMPLETED", "None"),
        ({"state": "failed", "endedAt": 9000, "detail": "task 0 ended with exit code 3"}, "FAILED", "NonZeroExitCode"),
        ({"state": "failed", "endedAt": 9000, "detail": "it ran out of memory"}, "OUT_OF_MEMORY", "OutOfMemory"),
        ({"state": "failed", "endedAt": 9000, "detail": "it was lost with worker w1"}, "NODE_FAIL", "NodeDown"),
        ({"state": "killed", "endedAt": 9000}, "CANCELLED", "None"),
        ({"state": "expired", "endedAt": 9000}, "TIMEOUT", "TimeLimit"),
        ({"state": "unmet", "endedAt": 9000}, "CANCELLED", "DependencyNeverSatisfied"),
    ],
)
def test_states_and_reasons_are_slurms(about: dict[str, Any], state: str, reason: str) -> None:
    job = jobs.SlurmJob(app(**about), [])
    assert (job.state, job.reason) == (state, reason)


def test_a_task_of_an_array_that_was_cancelled_is_so_at_once() -> None:
    known = app(array="1-4", tasks=4, cancelled=[1, 3], taskStates=[task("running"), *[task("queued")] * 3])
    assert [(job.id, job.state) for job in jobs.jobs_of(known, apart=False)] == [
        ("17_[3%1]", "PENDING"),
        ("17_1", "RUNNING"),
        ("17_2", "CANCELLED"),
        ("17_4", "CANCELLED"),
    ]


def test_json_has_a_job_as_slurm_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    held = jobs.SlurmJob(app(state="pending", reason="begin", beginAt=9_000_000, comment="c"), [])
    ran = jobs.SlurmJob(
        app(state="failed", endedAt=65_000, detail="task 1 failed", array="3-4", tasks=2, timeLimit=61),
        [task("failed", exit_code=3, attempts=1, started_at=5_000, ended_at=65_000, cpu_ms=1_500, peak_mb=2)],
        4,
    )
    shown = as_json.of_queue(held)
    assert (shown["job_id"], shown["job_state"], shown["state_reason"]) == (17, "PENDING", "BeginTime")
    assert (shown["start_time"], shown["end_time"], shown["time_limit"], shown["nodes"]) == (9_000, 0, 10, "")
    array = as_json.of_queue(ran)
    assert (array["array_job_id"], array["array_task_id"], array["exit_code"], array["time_limit"]) == (17, 4, 768, 2)
    told = as_json.of_account(ran, steps=True)
    assert told["state"] == {"current": "FAILED", "reason": "NonZeroExitCode"}
    assert told["exit_code"] == {"status": "ERROR", "return_code": 3}
    assert (told["time"]["start"], told["time"]["end"], told["time"]["elapsed"]) == (5, 65, 60)
    assert told["time"]["total"] == {"seconds": 1, "microseconds": 500_000}
    assert told["steps"][0]["tres"]["requested"]["max"][0]["count"] == 2 << 20
    assert as_json.of_account(held, steps=True)["steps"] == as_json.of_account(ran, steps=False)["steps"] == []
    stopped = jobs.SlurmJob(app(state="killed", endedAt=9_000), [task("stopped", started_at=5_000)])
    assert as_json.of_account(stopped, steps=False)["exit_code"]["signal"] == {"signal_id": 15}
    assert as_json.print_document("jobs", [shown]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["errors"], document["jobs"]) == ([], [shown])
    assert document["meta"]["Slurm"] == {"version": {"major": 22, "micro": 8, "minor": 5}, "release": "22.05.8"}


def test_a_gang_has_as_many_nodes_and_tasks_as_it_has_workers_and_programs() -> None:
    job = jobs.SlurmJob(app(tasks=0, workers=["w1", "w2"], requestedCores=4, coresPerTask=1), [])
    job.detail = {"noRequeue": False, "executorProgram": True, "executorLimit": 2}
    lines = " ".join(scontrol._job_lines(job))
    assert "NumNodes=2 NumCPUs=4 NumTasks=2 CPUs/Task=2 " in lines
    assert ",node=2," in lines
    assert as_json.of_queue(job)["node_count"] == as_json.of_account(job, steps=False)["allocation_nodes"] == 2
    assert sacct.FIELDS["NNodes"][1](sacct.Row(job, "", "M")) == 2


def test_what_workers_say_of_memory_and_time_is_read_as_such() -> None:
    used = f"the tasks of executor a.0 used 107 MiB; {100} MiB are granted"
    assert [jobs.failed_as(why) for why in (used, "task 0 exceeded its time limit of 5 s", "exit code 1")] == [
        "OUT_OF_MEMORY",
        "TIMEOUT",
        "FAILED",
    ]


def test_the_copy_of_a_script_is_the_one_that_workers_look_for() -> None:
    from scheduler.model.staged import MOST_SCRIPT_BYTES, SCRIPT, digest_of, script_of_value

    assert (sbatch.SCRIPT, batch.MOST_BYTES) == (SCRIPT, MOST_SCRIPT_BYTES)
    assert batch.command_of(["a"], how="either", stdin="")[batch.PLACE :] == [batch.NAME, "/dev/null", "", "a"]
    of_file = batch.command_of(["a", "b"], how="either", stdin="", file="/w/job.sh")
    assert [batch.typed(each) for each in (of_file, [*of_file[:6], ""], ["sleep", "9"], [])] == [
        "/w/job.sh a b",
        "",
        "sleep 9",
        "",
    ]

    class Road:
        """An API that knows no company but the one that is named."""

    me = cast("Me", SimpleNamespace(user="ann", company="acme"))
    fields, secrets = sbatch.submission(
        asked(), (b"#!/bin/sh\n\xff\n", [], "job", ""), cast("road.ApiRoad", Road()), me
    )
    assert fields["script"] == digest_of(script_of_value(secrets[SCRIPT]))
    assert fields["command"][fields["script_at"]] == batch.NAME
    assert set(fields["env"]) == set(secrets)


def test_a_window_is_shown_as_a_reservation() -> None:
    window = {"window": "disks", "begin": 1_000_000, "end": 8_200_000, "company": None, "workers": ["w1", "w2"]}
    name, nodes, whose, state = scontrol.reservation_lines(window, 999_999)
    assert name.startswith("ReservationName=disks StartTime=")
    assert name.endswith(" Duration=02:00:00")
    assert nodes == "Nodes=w[1-2] NodeCnt=2 PartitionName=(null) Flags=MAINT,SPEC_NODES"
    assert "Accounts=(null)" in whose
    assert state.startswith("State=INACTIVE ")
    _, nodes, whose, state = scontrol.reservation_lines(window | {"company": "acme"}, 1_000_000)
    assert nodes.endswith("Flags=SPEC_NODES")
    assert "Accounts=acme" in whose
    assert state.startswith("State=ACTIVE ")


def test_every_cause_of_waiting_has_a_reason_that_slurm_knows() -> None:
    from scheduler.model.causes import CAUSES

    known = {
        "Priority",
        "Resources",
        "Dependency",
        "BeginTime",
        "Cleaning",
        "JobHeldUser",
        "QOSMaxJobsPerUserLimit",
        "AssocGrpCpuLimit",
        "ReqNodeNotAvail",
    }
    assert {jobs.reason_of(app(state="pending", reason=cause)) for cause in CAUSES} == known


def test_tasks_wait_for_those_that_run_beside_them() -> None:
    states = [task("running", started_at=2000), task("queued"), task("queued")]
    array = app(array="1-3", tasks=3, taskStates=states, coresPerTask=1, requestedCores=1)
    for apart, ids in ((False, ["17_[2-3%1]"]), (True, ["17_2", "17_3"])):
        waits = [job for job in jobs.jobs_of(array, apart=apart) if job.state == "PENDING"]
        assert [(job.id, job.reason) for job in waits] == [(each, "JobArrayTaskLimit") for each in ids]
    array |= {"taskStates": [], "admittedAt": None, "state": "pending"}
    (waiting,) = jobs.jobs_of({**array, "reason": "no-room"}, apart=False)
    assert waiting.reason == "Resources"
    (held,) = jobs.jobs_of({**array, "onHold": True}, apart=False)
    assert held.reason == "JobHeldUser"


def test_jobs_that_others_wait_for_are_named_by_their_numbers() -> None:
    class Road:
        """An API that knows two apps."""

        is_inside = False

        def get(self, _: str, **asked: Any) -> Any:
            assert asked["ids"] == "app-2,app-3"
            return [app(app="app-2", submittedSeq=5), app(app="app-3", submittedSeq=9, array="1-2")]

    waiting = app(after={"app-2": "ok", "app-3": "not-ok"})
    (numbered,) = jobs.with_numbers(cast("road.ApiRoad", Road()), [waiting])
    assert jobs.after_of(numbered) == "afterok:5(unfulfilled),afternotok:9_*(unfulfilled)"
    assert jobs.with_numbers(cast("road.ApiRoad", None), [app()]) == [app()]


@pytest.mark.parametrize("left", [[], ["w2"]], ids=["none is left", "one leaves later"])
def test_a_job_that_has_ended_ran_where_its_executors_were_granted(left: list[str]) -> None:
    granted = {"entries": [{"data": {"worker": "w2"}}, {"data": {"worker": "w1"}}]}

    class Road:
        """An API that knows one app and its executors, the last one first."""

        def get(self, path: str, **_: Any) -> Any:
            return granted if path == "/v1/entries" else {"admittedSeq": 18}

    ended = app(executors=2, endedAt=9000, workers=left)
    (known,) = jobs.with_nodes(cast("road.ApiRoad", Road()), [ended])
    assert known["workers"] == ["w1", "w2"]


def test_all_fields_are_printed_with_a_mark_between() -> None:
    for known in (squeue.FIELDS, sinfo.FIELDS):
        columns, end = squeue.read_columns("%all", known, "job")
        assert ("".join(each.shown(each.letter) for each in columns), end) == ("|".join(known), "")


def test_every_field_that_slurm_names_is_there() -> None:
    names = "STDERR STDIN exit_code EligibleTime tres-alloc Requeue cpus-per-task BatchFlag RestartCnt tres-per-task"
    columns, _ = squeue.read_names(names.replace(" ", ","))
    job = jobs.SlurmJob(app(state="finished", endedAt=9000), [task("succeeded", attempts=3, exit_code=0)])
    job.detail = {"output": "/w/%x-%j.out", "error": None, "noRequeue": True, "command": [], "restarts": None}
    shown = {each.letter: squeue.COLUMNS[each.letter][2](job) for each in columns}
    assert (shown["STDERR"], shown["STDIN"], shown["Requeue"]) == ("/w/job-17.out", "/dev/null", 0)
    assert (shown["RestartCnt"], shown["tres-per-task"]) == (2, "N/A")
    assert shown["tres-alloc"] == "cpu=2,mem=512M,node=1,billing=2"


def test_an_array_is_a_line_of_pending_tasks_and_one_for_each_that_has_begun() -> None:
    states = [
        task("succeeded", started_at=2000, ended_at=3000, exit_code=0),
        task("running", started_at=2000),
        task("failed", started_at=2000, ended_at=4000, exit_code=3),
        task("queued"),
        task("queued"),
    ]
    array = app(array="1-4,9", tasks=5, taskStates=states)
    found = jobs.jobs_of(array, apart=False)
    assert [(job.id, job.state) for job in found] == [
        ("17_[4,9%1]", "PENDING"),
        ("17_1", "COMPLETED"),
        ("17_2", "RUNNING"),
        ("17_3", "FAILED"),
    ]
    assert [job.id for job in jobs.jobs_of(array, apart=True)] == ["17_1", "17_2", "17_3", "17_4", "17_9"]
    ended = [job.state for job in jobs.jobs_of({**array, "state": "killed", "endedAt": 5000}, apart=True)]
    assert ended == ["COMPLETED", "CANCELLED", "FAILED", "CANCELLED", "CANCELLED"]
    named = jobs.Named(["17_[2-3]", "18.batch"], "Invalid job id: ")
    assert [job.id for job in found if named.takes(job)] == ["17_2", "17_3"]
    assert [*named.indexes] == ["17", "18"]
    for text in ("x", "17_x", "17_", "-1", "\u0661"):
        with pytest.raises(SlurmError, match="Invalid job id: "):
            jobs.Named([text], "Invalid job id: ")


def test_squeue_prints_fields_by_letters_widths_and_names() -> None:
    job = jobs.SlurmJob(app(), [task("running", started_at=2000)])

    def line(text: str) -> str:
        columns, end = squeue.read_format(text)
        return "".join(each.shown(squeue.FIELDS[each.letter][2](job)) for each in columns) + end

    assert (
        line("%i^^^%t^^^%r^^^%B^^^%u^^^%D^^^%C^^^%P^^^%l^^^%j|")
        == "17^^^R^^^None^^^w1^^^ann^^^1^^^2^^^main^^^10:00^^^job|"
    )
    assert line("%.5i|%5u|%.2j|%100%") == "   17|ann  |jo|%"
    assert [each.width for each in squeue.read_names("JobID:8,State")[0]] == [8, 20]
    for text in ("%!", "%"):
        with pytest.raises(SlurmError, match="Invalid job format specification"):
            squeue.read_format(text)
    both = [jobs.SlurmJob(app(submittedSeq=number, user=user), []) for number, user in ((9, "b"), (10, "a"), (11, "b"))]
    assert [each.number for each in squeue.sorted_by(both, "u,-i")] == [10, 11, 9]
    assert jobs.states_named("pd,Running,CG") == {"PENDING", "RUNNING", "COMPLETING"}
    with pytest.raises(SlurmError, match="Invalid job state specified: foo"):
        jobs.states_named("foo")


def test_sacct_prints_columns_for_people_and_marks_for_programs() -> None:
    ended = app(state="failed", endedAt=64_000, detail="task 0 ended with exit code 3")
    job = jobs.SlurmJob(
        ended, [task("failed", started_at=2000, ended_at=64_000, exit_code=3, cpu_ms=61_500, peak_mb=8)]
    )
    columns = sacct.read_fields("JobID,State,ExitCode,Elapsed,TotalCPU,MaxRSS,ReqMem,NNodes,CPUTimeRAW")
    rows = [[str(sacct.FIELDS[name][1](sacct.Row(job, step, ""))) for name, _ in columns] for step in ("", "batch")]
    assert rows == [
        ["17", "FAILED", "3:0", "00:01:02", "01:01.500", "", "512M", "1", "124"],
        ["17.batch", "FAILED", "3:0", "00:01:02", "01:01.500", "8192K", "", "1", "124"],
    ]
    few = sacct.read_fields("jobid%6,state%-8,exitcode")
    table = [["17", "FAILED", "3:0"], ["12345678", "CANCELLED by 0", "0:15"]]
    assert sacct.lines({}, few, table) == [
        "JobID  State    ExitCode ",
        "------ -------- -------- ",
        "17     FAILED        3:0 ",
        "12345+ CANCELL+     0:15 ",
    ]
    assert sacct.lines({"parsable2": "", "noheader": ""}, few, table[:1]) == ["17|FAILED|3:0"]
    assert sacct.lines({"parsable": "", "delimiter": ";"}, few, []) == ["JobID;State;ExitCode;"]
    with pytest.raises(SlurmError, match='Invalid field requested: "foo"'):
        sacct.read_fields("foo")
    assert jobs.SlurmJob(app(state="killed", endedAt=3000), []).code == (0, 15)
    said = {"rank 1 ended with exit code 3": (3, 0), "42": (1, 0)}  # the latter by whoever has ended the app
    assert {each: jobs.SlurmJob(app(state="failed", endedAt=3000, detail=each), []).code for each in said} == said
    assert sacct.steps_named(["17.0", "17.batch", "18.0", "18", "19_3"]) == {
        "17": {"0", "batch"},
        "18": None,
        "19": None,
    }


@pytest.mark.usefixtures("in_utc")
@pytest.mark.parametrize(
    ("text", "ahead", "found"),
    [
        ("0101", False, "2026-01-01T00:00:00"),
        ("0101", True, "2027-01-01T00:00:00"),
        ("112726", True, "2026-11-27T00:00:00"),
        ("11.27.26", False, "2026-11-27T00:00:00"),
        ("11/27/26-10:30", False, "2026-11-27T10:30:00"),
        ("1127-10:00", False, "2026-11-27T10:00:00"),
        ("4/1", False, "2026-04-01T00:00:00"),
        ("10:00AM", False, "2026-06-15T10:00:00"),
        ("10:00am", True, "2026-06-16T10:00:00"),
        ("12:30:05 pm", True, "2026-06-15T12:30:05"),
        ("12:30am", False, "2026-06-15T00:30:00"),
        ("1970-01-01-00:00:01", False, "1970-01-01T00:00:01"),
        ("1970-01-01", False, "1970-01-01T00:00:00"),
        ("2027-02-03 04:05", True, "2027-02-03T04:05:00"),
        ("2027-02-03T", True, "2027-02-03T00:00:00"),
        ("tomorrow 16:00", True, "2026-06-16T16:00:00"),
        ("4:00 pm  tomorrow", True, "2026-06-16T16:00:00"),
        ("noon today", True, "2026-06-15T12:00:00"),
        ("03:04 01/02", True, "2027-01-02T03:04:00"),
        ("now + 1 hour", True, "2026-06-15T13:00:00"),
        ("uts1781524801", True, "2026-06-15T12:00:01"),
    ],
)
def test_days_and_hours_are_read_in_the_forms_of_slurm(
    text: str, *, ahead: bool, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1781524800.0  # 2026-06-15T12:00:00 UTC
    monkeypatch.setattr("time.time", lambda: now)
    assert times.moment(times.read_moment(text, "starttime", ahead=ahead)) == found


@pytest.mark.usefixtures("in_utc")
def test_relative_times_are_told_by_the_days_that_they_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    now, day = 1781524800.0, 86400
    monkeypatch.setattr("time.time", lambda: now)
    monkeypatch.setattr("time.localtime", lambda at=now: time.gmtime(at))
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    assert [times.moment(round(1000 * (now + days * day))) for days in (0, -1, 1, 3, 9, -3, 400)] == [
        "12:00:00", "Ystday 12:00", "Tomorr 12:00", "Thu 12:00", "24 Jun 12:00", "12 Jun 12:00", "20 Jul 2027",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "1301",
        "0230",
        "112",
        "13:00pm",
        "0am",
        "1127-25:00",
        "1/2/3/4",
        "11.27/26",
        "a/b",
        "",
        "today tomorrow",
        "16:00 17:00",
        "utsx",
        "-16:00",
    ],
)
def test_what_is_no_day_and_no_hour_is_refused(text: str) -> None:
    with pytest.raises(SlurmError, match="Invalid --starttime specification"):
        times.read_moment(text, "starttime")


def test_fields_of_which_nothing_is_measured_are_there_and_empty() -> None:
    names = "Planned,MaxRSSNode,MaxRSSTask,AveVMSize,MaxDiskRead,TRESUsageInTot,TRESUsageInMaxNode"
    job = jobs.SlurmJob(app(), [task("succeeded", started_at=2000, worker="w1", peak_mb=5)])
    row = sacct.Row(job, "batch", "M")
    shown = [sacct.FIELDS[name][1](row) for name, _ in sacct.read_fields(names)]
    assert shown == ["", "w1", 0, "5M", "", "", ""]
    assert sacct.FIELDS["Planned"][1](sacct.Row(job, "", "")) == "00:00:01"


def test_nodes_are_known_by_their_workers_names_and_by_their_hosts() -> None:
    class Road:
        """An API that knows three workers on two hosts."""

        def get(self, _: str, **__: Any) -> Any:
            about = {"cores": 4, "grantedCores": 0, "memory": 1, "grantedMemory": 0, "reason": "", "status": "live"}
            return [about | {"worker": f"w{n}", "host": "b.example.org" if n == 3 else "a"} for n in (1, 2, 3)]

    known = cast("road.ApiRoad", Road())
    assert nodes.workers_named(known, "") == set()
    for text, found in {"a": {"w1", "w2"}, "b": {"w3"}, "b.example.org": {"w3"}, "w[1,3]": {"w1", "w3"}}.items():
        assert nodes.workers_named(known, text) & {"w1", "w2", "w3"} == found
    assert nodes.workers_named(known, "gone") == {"gone"}


def test_lists_of_hosts_are_written_out_and_together_again() -> None:
    assert nodes.hosts_of("a[1-3,7],b2,c[08-10]x[1-2]") == [
        "a1", "a2", "a3", "a7", "b2", "c08x1", "c08x2", "c09x1", "c09x2", "c10x1", "c10x2",
    ]  # fmt: skip
    assert nodes.list_of(["w1", "w2", "w3", "w7", "n01", "n02", "head"]) == "w[1-3,7],n[01-02],head"
    assert nodes.list_of(["w1"]) == "w1"
    for text in ("a[1-", "a[x]", "a[3-1]", "a[1-99999]"):
        with pytest.raises(SlurmError, match="Invalid hostlist"):
            nodes.hosts_of(text)


@pytest.mark.parametrize(
    ("status", "used", "state", "counts"),
    [
        ("alive", 0, "idle", (0, 4, 0, 4)),
        ("alive", 1, "mix", (1, 3, 0, 4)),
        ("alive", 4, "alloc", (4, 0, 0, 4)),
        ("draining", 1, "drng", (1, 0, 3, 4)),
        ("draining", 0, "drain", (0, 0, 4, 4)),
        ("lost", 0, "down", (0, 0, 4, 4)),
    ],
)
def test_workers_are_nodes_in_slurms_states(status: str, used: int, state: str, counts: tuple[int, ...]) -> None:
    worker = {"worker": "w1", "status": status, "cores": 4, "grantedCores": used, "memory": 9, "grantedMemory": 0}
    node = nodes.SlurmNode({**worker, "reason": None, "host": "h"})
    assert (node.state, node.counts) == (state, counts)


def test_shares_are_quotas_and_usage_is_what_is_held() -> None:
    shares = {
        "companies": [
            {"company": "acme", "quotaCores": 6, "heldCores": 3},
            {"company": "globex", "quotaCores": "2/1", "heldCores": 1},
        ],
        "users": [{"company": "acme", "user": "ann", "heldCores": 2}],
    }
    assert sshare.figures(shares) == {
        ("acme", ""): {"shares": 6, "part": "0.750000", "usage": 3, "used": "0.750000", "level": "1.000000"},
        ("globex", ""): {"shares": 2, "part": "0.250000", "usage": 1, "used": "0.250000", "level": "1.000000"},
        ("acme", "ann"): {"usage": 2, "used": "0.500000"},
    }
    none = {"companies": [{"company": "acme", "quotaCores": 0, "heldCores": 0}], "users": []}
    told = {"shares": 0, "part": "0.000000", "usage": 0, "used": "0.000000", "level": "inf"}
    assert sshare.figures(none)["acme", ""] == told


def test_labels_of_workers_are_features_of_nodes() -> None:
    worker = {"worker": "w1", "status": "alive", "cores": 4, "grantedCores": 0, "memory": 9, "grantedMemory": 0}
    one, other = (
        nodes.SlurmNode({**worker, "reason": "", "labels": labels})
        for labels in ({"zone": "north", "gpu": "a100"}, {"zone": "north"})
    )
    assert nodes.features([one]) == "gpu=a100,zone=north"
    assert nodes.features([one, other]) == "zone=north"
    assert nodes.features([nodes.SlurmNode({**worker, "reason": "", "labels": {}})]) == "(null)"
    assert nodes.features([]) == "(null)"
    assert sbatch.read_constraint("zone=north & gpu") == ["zone=north", "gpu"]
    for text in ("a|b", "!a", "[a]", "a*2", "a,b", "&", "a&&b", ""):
        with pytest.raises(SlurmError, match="Invalid feature specification"):
            sbatch.read_constraint(text)


REFUSED = {
    ("sbatch", "--foo", "ok"): 255,
    ("sbatch", "bare"): 1,
    ("sbatch", "dos"): 1,
    ("sbatch", "none"): 1,
    ("sbatch", "empty"): 1,
    ("sbatch", "bad"): 255,
    ("sbatch", "-t", "25:61", "ok"): 255,
    ("sbatch", "--mem", "0", "ok"): 255,
    ("sbatch", "-a", "5-1", "ok"): 1,
    ("sbatch", "-d", "afterok", "ok"): 1,
    ("sbatch", "-d", "afterok:17_1", "ok"): 1,
    ("sbatch", "-n", "0", "ok"): 1,
    ("sbatch", "--mem", "1G", "--mem-per-cpu", "100M", "ok"): 1,
    ("sbatch", "--mem-per-cpu", "100M", "sized"): 1,
    ("sbatch", "--bb", "x", "ok"): 1,
    ("sbatch", "--container", "x", "ok"): 1,
    ("sbatch", "--uid", "bob", "ok"): 1,
    ("sacct", "--batch-script"): 1,
    ("sinfo", "-t", "bogus"): 1,
    ("squeue", "--steps"): 1,
    ("scontrol", "update", "nodename=worker-1", "state=drain"): 1,
    ("scontrol", "update", "PartitionName=main", "state=down"): 1,
    ("sbatch", "-N", "2", "-a", "1-3", "ok"): 1,
    ("sbatch", "-N", "2", "-n", "1", "ok"): 1,
    ("sbatch", "-n", "4", "--ntasks-per-node=2", "-G", "4", "ok"): 1,
    ("scontrol", "ping", "x"): 1,
    ("scontrol", "show", "config", "x"): 1,
    ("scontrol", "show", "partition", "main", "x"): 1,
    ("sacctmgr", "list", "user", "foo=x"): 1,
    ("sacctmgr", "list", "user", "format=foo"): 1,
    ("sbatch", "--wrap", "true", "ok"): 1,
    ("sbatch", "-w", "host", "ok"): 1,
    ("squeue", "--foo"): 1,
    ("squeue", "-j", "x"): 1,
    ("squeue", "-t", "foo"): 1,
    ("squeue", "-o", "%!"): 1,
    ("scancel",): 1,
    ("scancel", "x"): 1,
    ("scancel", "-s", "FOO", "17"): 1,
    ("scancel", "-t", "foo"): 1,
    ("sacct", "-o", "foo"): 1,
    ("sacct", "-S", "soon"): 1,
    ("sacct", "--foo"): 1,
    ("scontrol",): 1,
    ("scontrol", "show", "foo"): 1,
    ("scontrol", "fly"): 1,
    ("scontrol", "suspend", "17"): 1,
    ("scontrol", "update", "TimeLimit=5"): 1,
    ("scontrol", "update", "JobId=17", "NumNodes=2"): 1,
    ("scontrol", "hold"): 1,
    ("scontrol", "requeue"): 1,
    ("scontrol", "requeuehold", "17_3"): 1,
    ("scontrol", "hold", "17_3"): 1,
    ("scontrol", "release", "17_[3-4]"): 1,
    ("scontrol", "requeue", "17_x"): 1,
    ("sinfo", "--foo"): 1,
    ("sinfo", "-o", "%!"): 1,
    ("sacctmgr", "add", "user", "ann"): 1,
    ("sacctmgr", "list", "foo"): 1,
    ("sshare", "--foo"): 1,
    ("sshare", "-o", "Account,Foo"): 1,
    ("sdiag", "--foo"): 1,
    ("sdiag", "x"): 1,
    ("sdiag", "--reset"): 1,
    ("scontrol", "sh", "job"): 1,
    ("srun",): 1,
    ("srun", "--pty", "bash"): 1,
    ("srun", "--jobid", "17", "true"): 1,
    ("srun", "-N", "2", "-n", "1", "true"): 1,
    ("srun", "-N", "2", "--pty", "true"): 1,
    ("srun", "-N", "2", "-K", "true"): 1,
    ("srun", "-N", "2", "-o", "file", "true"): 1,
    ("srun", "-n", "4", "--ntasks-per-node=2", "-e", "file.%n", "true"): 1,
}


@pytest.mark.parametrize("command", tables.VARIABLES)
def test_each_variable_stands_for_an_option_that_is_there(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tables.SRUN if command == "step" else getattr(tables, command.upper())
    for variable, name in tables.VARIABLES[command].items():
        with monkeypatch.context() as only:
            only.setenv(variable, "3")
            option = next(each for each in table if each.name == name)
            assert (option, "3" if option.value else "") in read_variables(table, tables.VARIABLES[command])


def test_a_shape_of_the_command_line_is_stronger_than_one_of_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT2", "JobID")
    monkeypatch.setenv("SQUEUE_USERS", "ann")

    def named(*words: str) -> dict[str, str]:
        found = with_variables(tables.SQUEUE, tables.VARIABLES["squeue"], read(tables.SQUEUE, list(words))[0], _SHAPES)
        return {option.name: value for option, value in found}

    assert named() == {"Format": "JobID", "user": "ann"}
    assert named("-o", "%i") == {"format": "%i", "user": "ann"}
    assert named("-u", "bob") == {"Format": "JobID", "user": "bob"}


_SHAPES = ("format", "Format")


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_bad_input_is_refused_in_a_line_before_anything_is_sent(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in {
        "ok": "#!/bin/sh\n",
        "bare": "echo\n",
        "dos": "#!/bin/sh\r\n",
        "empty": "",
        "bad": "#!/bin/sh\n#SBATCH --foo\n",
        "sized": "#!/bin/sh\n#SBATCH --mem=1G\n",
    }.items():
        (tmp_path / name).write_bytes(text.encode())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    class Road:
        """An API that is asked who asks, and nothing else."""

        def get(self, path: str, **_: object) -> Any:
            assert path in ("/v1/whoami", "/v1/companies")
            return {"account": "acme/ann", "role": "user"} if path == "/v1/whoami" else [{"company": "acme"}]

        def send(self, _: object) -> int:
            raise AssertionError("nothing is sent")

    for module in (sbatch, squeue, scancel, sacct, scontrol, sinfo, sacctmgr, sshare, sdiag):
        monkeypatch.setattr(module, "ApiRoad", Road)
    code = main(words[0], list(words[1:]))
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (REFUSED[words], "", 1)
    assert said.err.startswith(f"{words[0]}: error: ")


def test_the_commands_are_programs_in_a_folder_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    made = folder.folder()
    assert made == tmp_path / "env" / "libexec" / "fairlog-slurm"
    assert sorted(each.name for each in made.iterdir()) == sorted(COMMANDS)
    assert all(os.access(each, os.X_OK) for each in made.iterdir())
    (made / "sbatch").write_text("another version's")
    (made / "gone").write_text("another version's")
    folder.folder()
    assert "another" not in (made / "sbatch").read_text()
    assert sorted(each.name for each in made.iterdir()) == sorted(COMMANDS)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert folder.folder().parent == tmp_path / "data" / "fairlog"


def test_a_command_loads_nothing_that_is_slow_to_load() -> None:
    slow = "click msgspec pydantic redis rq httpx http.client email ssl anyio starlette tempfile platformdirs"
    program = (
        "import sys; from fairlog.compat.slurm.start import main; main('squeue', ['--foo']);"
        "import fairlog.compat.slurm.squeue, fairlog.compat.slurm.sacct;"
        f"print([name for name in {slow!r}.split() if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def of_task(scratch: Path) -> dict[str, str]:
    """The environment of a task."""
    known = {"FAIRLOG_APP_NUMBER": "1", "FAIRLOG_TASK_INDEX": "0", "FAIRLOG_SCRATCH": str(scratch)}
    return {**os.environ, **known, "SLURM_SUBMIT_CHDIR": str(scratch)}


@pytest.mark.skipif(batch.shell() != "bash", reason="there is no bash, which alone can tell how a script has ended")
def test_how_a_script_ended_is_known_also_if_it_ends_at_once(tmp_path: Path) -> None:
    script = tmp_path / "script"
    words = ["bash", "-c", batch.PRELUDE, "script", str(script), "/dev/null", ""]
    for line, code in (("kill -9 $$", -9), ("kill -TERM $$", -15), ("exit 137", 137)):
        script.write_text(f"#!/bin/sh\n{line}\n")
        assert {subprocess.run(words, env=of_task(tmp_path), check=False).returncode for _ in range(20)} == {code}


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_signal_on_which_the_script_ends_leaves_its_exit_code(shell: str, tmp_path: Path) -> None:
    script, passes_on = tmp_path / "script", tmp_path / "passes-on"
    script.write_text("#!/bin/sh\ntrap 'exit 7' USR2\necho $$\nwhile :; do sleep 0.05; done\n")
    ended = 'until [ ! -e /proc/$p ] || grep -q ") Z" /proc/$p/stat; do sleep 0.01; done'
    passes_on.write_text(f"#!/bin/sh\np=$(cat {tmp_path}/pid)\nkill -USR2 $p\n{ended}\n")
    passes_on.chmod(0o700)
    words = [shell, "-c", batch.PRELUDE, str(passes_on), str(script), "/dev/null", ""]
    with subprocess.Popen(words, env=of_task(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        (tmp_path / "pid").write_text(process.stdout.readline())
        process.send_signal(signal.SIGUSR2)
        assert process.wait(HOPELESS_S) == 7


def test_each_request_states_the_version_of_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who states none is taken for one of the first version, and refused as too old by a later server."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as beside:
        monkeypatch.setenv("FAIRLOG_API", f"http://127.0.0.1:{server.getsockname()[1]}")
        for name in ("FAIRLOG_STORE", "FAIRLOG_DATA"):
            monkeypatch.delenv(name, raising=False)

        def answered() -> bytes:
            line, _ = server.accept()
            with line:
                asked = line.recv(1 << 16)
                line.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"value": 7}')
                return asked

        heard = beside.submit(answered)
        assert road.ApiRoad().get("/v1/status") == 7
        assert f"\r\n{HEADER}: {MESSAGES}\r\n".encode() in heard.result()


def test_a_range_of_nodes_begins_with_its_smaller_number() -> None:
    assert [sbatch.nodes_of(asked("-N", text)) for text in ("2-2", "2-3")] == [2, 2]
    with pytest.raises(SlurmError, match=r"^--nodes=3-2 has its larger number first; give --nodes=2-3$"):
        sbatch.nodes_of(asked("-N", "3-2"))
    for text in ("0", "0-3", "2-", "-2", "2-3-4", "1000000", ""):
        with pytest.raises(SlurmError, match=rf'^"{text}" is not a valid node count$'):  # as Slurm's own
            sbatch.nodes_of(asked("-N", text))


def test_a_number_that_is_too_long_is_refused_as_any_that_is_none() -> None:
    long = "9" * 5000
    for read_it in (
        lambda: sbatch.nodes_of(asked("-N", long)),
        lambda: asked("-n", long).number("ntasks", 1),
        lambda: sbatch.memory_of(asked("--mem", long), 1, 1),
        lambda: sbatch.read_nice(long),
        lambda: sbatch.gpus_of(asked("-G", long), 1),
        lambda: sbatch.read_array(f"1-3%{long}"),
        lambda: sbatch.read_signal(f"USR1@{long}"),
        lambda: times.read_limit(long),
        lambda: times.read_limit(f"{long}-1"),
        lambda: times.read_moment(f"now+{long}", "begin"),
        lambda: times.read_moment(f"{long}:30", "begin"),
        lambda: squeue.run(["--iterate", long]),
        lambda: scontrol.run(["update", "JobId=1", f"Nice={long}"]),
    ):
        with pytest.raises(SlurmError) as refused:
            read_it()
        assert len(str(refused.value)) < 120


def test_a_field_is_no_wider_than_anybody_reads() -> None:
    long = "9" * 5000
    assert squeue.read_format(f"%.{long}i")[0][0].width == squeue.read_names(f"JobID:{long}")[0][0].width == 9999
    assert sinfo.read_long(f"NodeHost:{long}")[0][0].width == 9999
    assert sacct.read_fields(f"JobID%-{long},State%010") == [("JobID", -9999), ("State", 10)]
