"""What programs that watch a cluster read of Slurm's commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlog.compat.slurm import (
    as_json,
    jobs,
    nodes,
    sacct,
    sacctmgr,
    sbatch,
    scontrol,
    sdiag,
    sinfo,
    squeue,
    srun,
    sshare,
)
from fairlog.compat.slurm.sbatch import SbatchOptions
from fairlog.compat.slurm.start import main
from fairlog.compat.slurm.tables import SRUN
from fairlog.compat.slurm.words import SlurmError, read
from tests.unit.fairlog.compat.test_slurm import app, task


def node(name: str, **about: Any) -> nodes.SlurmNode:
    """A node of four cores."""
    known = {"worker": name, "host": "h", "status": "alive", "cores": 4, "memory": 4096, "labels": {}, "since": 1000}
    return nodes.SlurmNode({**known, "grantedCores": 0, "grantedMemory": 0, "reason": "", **about})


GRAPHICS = {"resources": {"gpu": ["0", "1"]}, "grantedResources": {"gpu": ["1"]}, "grantedCores": 1}


def test_what_nodes_have_beside_cores_and_what_of_it_is_granted_is_listed() -> None:
    graphics, plain = node("w1", **GRAPHICS, grantedMemory=512), node("w2")
    assert (graphics.gres, graphics.gres_used) == ("gpu:2", "gpu:1")
    assert graphics.tres == "cpu=4,mem=4096M,billing=4,gres/gpu=2"
    assert graphics.tres_used == "cpu=1,mem=512M,gres/gpu=1"
    assert (plain.gres, plain.gres_used) == ("(null)", "(null)")
    assert (plain.tres, plain.tres_used) == ("cpu=4,mem=4096M,billing=4", "")
    lost = node("w3", status="lost", offeredResources={"gpu": 4})
    assert (lost.gres, lost.gres_used) == ("gpu:4", "gpu:0")
    shown = as_json.of_node(graphics)
    assert (shown["gres"], shown["gres_used"], shown["tres_used"]) == ("gpu:2", "gpu:1", graphics.tres_used)
    assert (as_json.of_node(plain)["gres"], as_json.of_node(plain)["tres_used"]) == ("", None)
    lines = scontrol._node_lines(graphics)
    assert {"Gres=gpu:2", "GresUsed=gpu:1", f"CfgTRES={graphics.tres}", f"AllocTRES={graphics.tres_used}"} <= {*lines}


def test_the_granted_cores_of_a_node_are_its_load() -> None:
    group = [node("w1", grantedCores=2), node("w2")]
    assert [sinfo.FIELDS["O"][1](each) for each in ([], group[:1], group)] == [0, "2.00", "0.00+"]
    assert " CPULoad=2.00" in scontrol._node_lines(group[0])[1]
    assert node("w3", status="lost").load == "N/A"


def test_what_jobs_ask_for_beside_cores_is_listed() -> None:
    one = jobs.SlurmJob(app(requestedResources={"gpu": 2}), [task("running", started_at=2000)])
    assert (one.gres_per_node, one.tres) == ("gres:gpu:2", "cpu=2,mem=512M,node=1,billing=2,gres/gpu=2")
    fields = sacct.FIELDS
    assert fields["AllocTRES"][1](sacct.Row(one, "", "")) == "billing=2,cpu=2,gres/gpu=2,mem=512M,node=1"
    assert as_json.of_queue(one)["tres_per_node"] == "gres:gpu:2"
    listed = as_json.of_account(one, steps=False)["tres"]["allocated"]
    assert listed[-1] == {"type": "gres", "name": "gpu", "id": 1001, "count": 2}
    asks = {"requestedResources": {"gpu": 3}, "requestedCores": 6, "tasks": 3, "array": "1-3"}
    assert jobs.SlurmJob(app(**asks), [task("running")], 2).kinds == {"gpu": 1}
    gang = app(requestedResources={"gpu": 4}, tasks=0, executors=2, executorCores=3, executorMemory=700)
    assert jobs.SlurmJob(gang, []).gres_per_node == "gres:gpu:2"
    waits = jobs.SlurmJob(app(state="pending", admittedAt=None, startedAt=None), [])
    assert (waits.gres_per_node, waits.tres) == ("N/A", "cpu=2,mem=512M,node=1,billing=2")


def test_each_task_of_an_array_has_a_number_of_its_own_which_names_it() -> None:
    array = {"array": "0-4", "tasks": 5, "requestedCores": 10}
    found = [jobs.SlurmJob(app(**array), [task("running")], index) for index in (0, 4)]
    numbers = [each.own_number for each in found]
    assert numbers == [10_000_000_017, 50_000_000_017]
    assert [squeue.FIELDS["A"][2](each) for each in found] == numbers
    assert [as_json.of_queue(each)["job_id"] for each in found] == numbers
    assert jobs.SlurmJob(app(**array), [], None, [1, 2]).own_number == jobs.SlurmJob(app(), []).own_number == 17
    assert jobs.split(f"{numbers[0]},17, {numbers[1]}.batch,17_3,x") == ["17_0", "17", "17_4.batch", "17_3", "x"]
    assert sbatch.read_dependencies(f"afterany:{numbers[0]}:{numbers[1]}")["after"] == {"any": ["17"]}
    named = jobs.Named(jobs.split(f"{numbers[1]}"), "")
    assert [named.takes(each) for each in found] == [False, True]


@pytest.mark.parametrize(
    ("text", "shown"),
    {
        "JobID: ,State:|": "17 RUNNING|",
        "JobID:.5,State:3;": "   17RUN;",
        "jobid:###turm###,name:###turm###": "17###turm###job###turm###",
        "JobID:x,State": "17xRUNNING             ",
        "GRES:.5,CPUsPerTask:": "  N/A2",
    }.items(),
)
def test_fields_by_their_names_have_widths_and_what_follows_them(text: str, shown: str) -> None:
    job = jobs.SlurmJob(app(), [task("running", started_at=2000)])
    columns, end = squeue.read_names(text)
    assert "".join(each.shown(squeue.COLUMNS[each.letter][2](job)) for each in columns) + end == shown


@pytest.mark.parametrize(
    ("text", "lines"),
    {
        "%N|%G": ["w1|gpu:2", "w[2-3]|(null)"],
        "%D": ["3"],
        "%A %D": ["1/2 3"],
        "%D %c": ["3 4"],
        "Nodes: ,GresUsed: ,Gres:": ["1 gpu:1 gpu:2", "2 (null) (null)"],
        "NodeList:,AllocMem:.5": ["w[1-3]    0"],
        "StateComplete:,Port: ,Extra:": ["mixed0 (null)", "idle0 (null)"],
    }.items(),
)
def test_nodes_are_listed_together_that_differ_in_nothing_that_is_shown(
    text: str, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [node("w1", **GRAPHICS), node("w2"), node("w3")]
    monkeypatch.setattr(sinfo, "ApiRoad", lambda: None)
    monkeypatch.setattr(sinfo, "nodes", lambda _: found)
    assert sinfo.run(["-h", "-o" if "%" in text else "-O", text]) == 0
    assert capsys.readouterr().out.splitlines() == lines


def test_all_fields_of_nodes_are_had_by_one_name() -> None:
    assert [each.letter for each in sinfo.read_long("All")[0]] == list(sinfo.FIELDS)


class Limited:
    """An API that tells of two companies and of limits."""

    def get(self, path: str, **_: object) -> Any:
        """What the path has."""
        limits = [
            {"scope": "cluster", "company": None, "user": None, "limit": "max_running_apps", "value": 99},
            {"scope": "company", "company": "acme", "user": None, "limit": "max_running_apps", "value": 8},
            {"scope": "user", "company": "acme", "user": "ann", "limit": "max_cores", "value": 4},
            {"scope": "user", "company": "acme", "user": "ann", "limit": "max_memory_mb", "value": 512},
        ]
        shares = {"company": "acme", "quotaCores": "3", "heldCores": 1}, {"company": "b", "quotaCores": "1"}
        return {
            "/v1/whoami": {"account": "acme/ann", "role": "user"},
            "/v1/companies": [{"company": "acme"}, {"company": "b"}],
            "/v1/accounts": [{"account": "acme/ann"}],
            "/v1/limits": limits,
            "/v1/shares": {"companies": [shares[0], {**shares[1], "heldCores": 3}], "users": []},
        }[path]


@pytest.mark.parametrize(
    ("words", "lines"),
    {
        ("assoc", "format=User,Account,GrpCPU,GrpMem,GrpJobs,GrpSubmit"): ["ann|acme|4|512||"],
        ("account", "format=Account,GrpJobs,GrpTRES"): ["acme|8|", "b||"],
        ("assoc", "where", "user='ann'", "format='Account,GrpTRES,MaxSubmitJobs'"): ["acme|cpu=4,mem=512|"],
        ("assoc", "format=Fairshare,ParentName,MaxWallDurationPerJob"): ["1||"],
        ("qos", "format=Name,MaxTRESPerUser,MaxJobsPerUser,Priority,Flags,Preempt"): ["normal|||||"],
    }.items(),
)
def test_limits_are_told_where_there_are_some_and_other_fields_are_empty(
    words: tuple[str, ...], lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sacctmgr, "ApiRoad", Limited)
    assert main("sacctmgr", ["-nP", "show", *words]) == 0
    assert capsys.readouterr().out.splitlines() == lines


def test_a_company_has_a_level_by_its_quota_and_no_number_orders_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sshare, "ApiRoad", Limited)
    assert main("sshare", ["-n", "-P", "-o", "account,fairshare,levelfs"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == ["acme||3.000000", "b||0.333333", "acme||"]
    assert said.err.startswith("sshare: note: FairShare is empty: ")


def test_commands_and_what_they_show_may_be_shortened() -> None:
    shown = ("jobs", "jobid", "nodes")
    assert [scontrol.spelled_out(word, shown) for word in ("job", "jobid", "n", "x", "")] == [
        "jobs", "jobid", "nodes", None, None,
    ]  # fmt: skip


def test_jobs_of_today_are_counted_by_how_they_ended() -> None:
    day = 86_400_000
    ended = [
        jobs.SlurmJob(app(state=state, detail=why, submittedAt=day - 1, startedAt=day, endedAt=day + 1), [])
        for state, why in (
            ("finished", ""),
            ("failed", "task 0 ended with exit code 3"),
            ("expired", ""),
            ("killed", ""),
            ("failed", "it was lost with worker w1"),
        )
    ]
    old = jobs.SlurmJob(app(submittedAt=1, startedAt=2), [])
    new = jobs.SlurmJob(app(state="pending", submittedAt=day, admittedAt=None, startedAt=None), [])
    counts = [line.partition(":") for line in sdiag.report([*ended, old, new], day, day + 2) if line.startswith("Jobs")]
    assert {name.removeprefix("Jobs "): int(number) for name, _, number in counts} == {
        "submitted": 1, "started": 5, "completed": 3, "canceled": 1, "failed": 1, "pending": 1, "running": 1,
    }  # fmt: skip


def test_an_srun_outside_a_job_waits_for_what_sbatch_would() -> None:
    def words(*options: str) -> list[str]:
        return srun._waits(SbatchOptions(read(SRUN, list(options))[0]))

    assert words() == []
    assert words("-d", "afterany:17:18,singleton", "-H") == [
        "--after", "17:any", "--after", "18:any", "--singleton", "--hold",
    ]  # fmt: skip
    assert words("-b", "2999-01-02T03:04") == ["--begin", "2999-01-02T03:04:00"]
    with pytest.raises(SlurmError, match="Job dependency problem"):
        words("-d", "x:17")


def test_a_script_of_several_parts_is_told_that_a_job_has_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "parts.sh"
    script.write_text("#!/bin/sh\n#SBATCH -n 1\n#SBATCH hetjob\n#SBATCH -n 2\n")
    assert main("sbatch", [str(script)]) == 255
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "a job has one part: submit each with an sbatch of its own" in said
