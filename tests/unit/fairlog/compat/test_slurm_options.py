"""Every option of Slurm's commands acts, is refused, or is named on stderr, unless it asks for what is so anyway."""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from fairlog.compat.slurm import road as roads
from fairlog.compat.slurm import sacct, sacctmgr, sbatch, scancel, scontrol, sdiag, sinfo, squeue, srun, sshare, tables
from fairlog.compat.slurm.start import COMMANDS, main
from fairlog.compat.slurm.words import ACTS, IDLE, LEFT, Option
from fairlog.engines import keys

NOW_S = 1_700_000_000
NOW = 1000 * NOW_S


def _app(number: int, **about: Any) -> dict[str, Any]:
    return {
        "app": f"app-{number}", "submittedSeq": number, "company": "acme", "user": "ann", "name": "job",
        "state": "running", "onHold": False, "ready": True, "tasks": 1, "coresPerTask": 2, "requestedCores": 2,
        "requestedMemory": 1024, "memoryPerTask": 1024, "submittedAt": NOW - 90_000, "admittedAt": NOW - 60_000,
        "startedAt": NOW - 60_000, "endedAt": None, "detail": "", "reason": None, "array": None, "cwd": "/w",
        "priority": 0, "timeLimit": None, "maxRuntime": 600, "after": None, "beginAt": None, "readyAt": NOW - 90_000,
        "noRequeue": False, "executorLimit": None, "restarts": 0, "workers": ["w1"], "taskStates": [_task()], **about,
    }  # fmt: skip


def _task() -> dict[str, Any]:
    return {
        "state": "running", "exit_code": None, "started_at": NOW - 60_000, "ended_at": None, "message": "",
        "cpu_ms": 1_000, "peak_mb": 100, "attempts": 1, "worker": "w1", "executor": "e1",
    }  # fmt: skip


PENDING: dict[str, Any] = {"state": "pending", "admittedAt": None, "startedAt": None, "workers": [], "taskStates": []}
APPS = [
    _app(17),
    _app(18, array="1-3", tasks=3, memoryPerTask=512, name="many", **PENDING),
    _app(19, state="failed", endedAt=NOW - 1_000),
]
WORKERS = [
    {
        "worker": name, "host": f"{name}.example", "status": status, "cores": cores, "grantedCores": 0, "memory": 4096,
        "grantedMemory": 0, "reason": reason, "labels": {}, "since": NOW, "offeredResources": {},
    }
    for name, status, cores, reason in (("w1", "alive", 4, ""), ("w2", "alive", 8, ""), ("w3", "lost", 8, "gone"))
]  # fmt: skip
ANSWERS: dict[str, Any] = {
    "/v1/whoami": {"account": "acme/ann", "role": "user"},
    "/v1/companies": [{"company": "acme"}, {"company": "globex"}],
    "/v1/accounts": [{"account": "acme/ann"}, {"account": "acme/bob"}, {"account": "globex/cid"}],
    "/v1/settings": {"own_sizes": "any", "kill_grace_s": 30, "notify_targets": "@example.org"},
    "/v1/workers": WORKERS,
    "/v1/windows": [],
    "/v1/estimates": {"estimates": []},
    "/v1/status": {"master": "m"},
    "/v1/shares": {
        "companies": [{"company": each, "quotaCores": "4", "heldCores": 2} for each in ("acme", "globex")],
        "users": [{"company": "acme", "user": "ann", "heldCores": 2}],
    },
}


class SameAnswers:
    """An API that tells always the same; what it is asked and sent is kept."""

    calls: list[object] = []  # noqa: RUF012 (each command makes an instance of its own)
    is_inside, token, urls = False, "", ("http://127.0.0.1:1",)

    def get(self, path: str, **query: str | int) -> Any:
        self.calls.append((path, query))
        if path == "/v1/apps":
            ids = str(query.get("ids", "")).split(",")
            return [dict(app) for app in APPS if ids == [""] or str(app["submittedSeq"]) in ids]
        if path.startswith("/v1/apps/app-0000"):
            ended = {"submittedSeq": 20, "endedAt": NOW, "state": "failed"}
            return [{"exit_code": 3, "message": ""}] if path.endswith("/tasks") else ended
        if path.startswith("/v1/apps/"):
            return next(app for app in APPS if app["app"] == path.rpartition("/")[2])
        return ANSWERS[path]

    def send(self, command: dict[str, Any]) -> int:
        return self.send_many([command])[0]

    def send_many(self, commands: list[dict[str, Any]]) -> list[int]:
        self.calls += commands
        return [1] * len(commands)

    def post(self, path: str, body: object) -> Any:
        self.calls.append((path, body))
        return {"value": {"requestedCores": 1, "starts": True, "executors": [{"worker": "w1"}]}}


class Outcome(NamedTuple):
    """What there is to see of a command: nothing else can have come of an option."""

    code: int
    out: str
    err: str
    calls: list[object]
    files: dict[str, str]


class _Replaced(Exception):
    """The process would be another program now."""


class Console:
    """A folder in which commands are typed, and what comes of each."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.patch, self.capfd = folder, patch, capfd

    def type(self, command: str, words: Sequence[str], **env: str) -> Outcome:
        """What comes of the words, and in a folder as it was before."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "sub").mkdir(parents=True)
        for name, text in (("script", "#!/bin/sh\necho\n"), ("f", "read\n")):
            (self.folder / name).write_text(text)
        self.patch.chdir(self.folder)
        self.capfd.readouterr()
        SameAnswers.calls = []
        with self.patch.context() as now:
            for name, value in env.items():
                now.setenv(name, value)
            now.setattr(sys, "stdin", io.StringIO("n\n"))
            code = main(command, list(words))
        out, err = self.capfd.readouterr()
        files = {
            str(each.relative_to(self.folder)): each.read_text() for each in self.folder.rglob("*") if each.is_file()
        }
        return Outcome(code, out, err, SameAnswers.calls, files)


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Console]:
    for name in list(os.environ):
        if name.startswith(("SLURM", "SBATCH", "SQUEUE", "SACCT", "SINFO", "SCANCEL", "SRUN", "FAIRLOG")):
            monkeypatch.delenv(name)
    for module in (sbatch, squeue, scancel, sacct, scontrol, sinfo, sacctmgr, sshare, sdiag):
        monkeypatch.setattr(module, "ApiRoad", SameAnswers)
    monkeypatch.setattr(roads, "ApiRoad", SameAnswers)
    monkeypatch.setattr(roads, "login", lambda: "ann")
    monkeypatch.setattr(sacct, "login", lambda: "ann")
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setattr(os, "urandom", bytes)
    monkeypatch.setattr(keys, "draw_keys", lambda _: keys.AppKeys("authority", "certificate", "key"))
    monkeypatch.setattr(time, "time", lambda: float(NOW_S))
    monkeypatch.setattr(time, "sleep", _interrupt)
    before = {number: signal.getsignal(number) for number in srun._PASSED_ON}
    yield Console(tmp_path / "here", monkeypatch, capfd)
    for number, handler in before.items():
        signal.signal(number, handler)


def _interrupt(_: float) -> NoReturn:
    raise KeyboardInterrupt


class Try(NamedTuple):
    """How an option is tried: its value, and the words beside which it is to make a difference."""

    value: str = ""
    beside: Sequence[str] = ()


_SHOWING = """
env | grep -E '^(SLURM|KEPT)' | sort
pwd
cat
echo e >&2
[ $SLURM_NTASKS.$SLURM_PROCID != 2.0 ] || sleep 2
exit $SLURM_PROCID
"""
STEP = ("sh", "-c", _SHOWING)
"""A program that shows what there is to see of a step."""
ENDS: dict[str, Sequence[str]] = {"sbatch": ["script"], "srun": STEP, "step": STEP}
"""Words that come after the options."""
USUAL = {
    "scancel": ["17"],
    "sacct": ["-j", "17"],
    "scontrol": ["show", "job", "17"],
    "sacctmgr": ["list", "user"],
}
"""Words beside which options are tried that name no others."""
_JOB = {
    "account": Try("globex"),
    "cpus-per-task": Try("2"),
    "chdir": Try("sub"),
    "error": Try("e"),
    "gpus": Try("2"),
    "gpus-per-node": Try("2"),
    "gpus-per-task": Try("2"),
    "gres": Try("gpu:2"),
    "input": Try("f"),
    "job-name": Try("other"),
    "mem": Try("100M"),
    "mem-per-cpu": Try("100M"),
    "mem-per-gpu": Try("100M", ["-G", "1"]),
    "cpus-per-gpu": Try("2", ["-G", "1"]),
    "nodes": Try("2"),
    "ntasks": Try("2"),
    "ntasks-per-node": Try("2"),
    "output": Try("o"),
    "quiet": Try("", ["--exclusive"]),
    "time": Try("5"),
    "open-mode": Try("append", ["-o", "f"]),
    "export": Try("NONE"),
    "constraint": Try("zone=north"),
    "comment": Try("text"),
}
_SRUN = {
    "begin": Try("now+1hour"),
    "dependency": Try("afterok:17"),
    "hold": Try(),
    "overcommit": Try("", ["-n", "9"]),
    "jobid": Try("99"),
    "kill-on-bad-exit": Try("1", ["-n", "2"]),
    "label": Try(),
    "pty": Try(),
    **_JOB,
}
TRIES: dict[str, dict[str, Try]] = {
    "sbatch": {
        "array": Try("1-3"),
        "begin": Try("now+1hour"),
        "dependency": Try("afterok:17"),
        "hold": Try(),
        "nice": Try("5"),
        "no-requeue": Try(),
        "parsable": Try(),
        "requeue": Try("", ["--no-requeue"]),
        "signal": Try("USR1@5", ["-t", "10"]),
        "test-only": Try(),
        "wait": Try(),
        "wrap": Try("true"),
        "mail-type": Try("END", ["--mail-user", "ann@example.org"]),
        "mail-user": Try("ann@example.org", ["--mail-type", "END"]),
        **_JOB,
    },
    "squeue": {
        "account": Try("globex"),
        "name": Try("many"),
        "user": Try("bob"),
        "array": Try(),
        "array-unique": Try(),
        "Format": Try("JobID"),
        "format": Try("%j"),
        "iterate": Try("9"),
        "jobs": Try("17"),
        "long": Try(),
        "me": Try(),
        "nodelist": Try("w2"),
        "noconvert": Try("", ["-o", "%m"]),
        "noheader": Try(),
        "sort": Try("-i"),
        "start": Try(),
        "states": Try("all"),
        "json": Try(),
    },
    "scancel": {
        "account": Try("globex"),
        "full": Try("", ["-s", "USR1", "17"]),
        "interactive": Try(),
        "me": Try(),
        "jobname": Try("many"),
        "name": Try("many"),
        "nodelist": Try("w2"),
        "quiet": Try("", ["99"]),
        "signal": Try("USR1"),
        "state": Try("PENDING"),
        "user": Try("bob"),
        "verbose": Try(),
        "qos": Try("high"),
        "partition": Try("other"),
    },
    "sacct": {
        "accounts": Try("globex"),
        "allusers": Try("", []),
        "allocations": Try(),
        "array": Try("", ["-j", "18"]),
        "brief": Try(),
        "delimiter": Try(",", ["-j", "17", "-P"]),
        "endtime": Try("2000-01-01"),
        "format": Try("JobID"),
        "helpformat": Try(),
        "jobs": Try("18"),
        "long": Try(),
        "name": Try("many"),
        "noconvert": Try("", ["-j", "17", "-o", "ReqMem"]),
        "nodelist": Try("w2"),
        "noheader": Try(),
        "parsable": Try(),
        "parsable2": Try(),
        "starttime": Try("2000-01-01"),
        "state": Try("PENDING"),
        "units": Try("K", ["-j", "17", "-o", "ReqMem"]),
        "uid": Try("bob"),
        "user": Try("bob"),
        "json": Try(),
    },
    "srun": _SRUN,
    "step": _SRUN | {"time": Try("0:01", ["-n", "2"])},
    "scontrol": {"oneliner": Try(), "quiet": Try("", ["-v", "show", "job", "17"])},
    "sinfo": {
        "dead": Try(),
        "exact": Try("", ["-o", "%c %D %t"]),
        "format": Try("%P"),
        "noheader": Try(),
        "long": Try(),
        "nodes": Try("w2"),
        "Node": Try(),
        "partition": Try("other"),
        "responding": Try(),
        "list-reasons": Try(),
        "summarize": Try(),
        "sort": Try("-N", ["-N"]),
        "states": Try("down"),
        "Format": Try("CPUs"),
        "json": Try(),
    },
    "sacctmgr": {
        "noheader": Try(),
        "parsable": Try(),
        "parsable2": Try(),
        "associations": Try(),
        "quiet": Try("", ["-v", "list", "user"]),
    },
    "sshare": {
        "noheader": Try(),
        "parsable": Try(),
        "parsable2": Try(),
        "accounts": Try("globex"),
        "all": Try(),
        "format": Try("Account"),
        "users": Try("bob"),
        "Users": Try(),
    },
    "sdiag": {},
}
"""Command -> the options that act, and how each is tried; `step` is srun in a job."""
OF_ITSELF = ("help", "usage", "version")
OPTIONS = [(command, option) for command in COMMANDS for option in getattr(tables, command.upper())]
IN_A_JOB = {
    "SLURM_JOB_ID": "17",
    "SLURM_NTASKS": "1",
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_JOB_NODELIST": "w1",
}


def typed(option: Option, value: str) -> list[str]:
    return [f"--{option.name}={value}" if value else f"--{option.name}"]


def comes_of(console: Console, command: str, words: Sequence[str], beside: Sequence[str]) -> list[Outcome]:
    """What comes of the words; of an srun outside a job, also of the one that begins in the job of it."""
    if command == "step":
        return [console.type("srun", [*beside, *words, *STEP], **IN_A_JOB)]
    if command != "srun":
        return [console.type(command, [*beside, *words, *ENDS.get(command, [])])]
    made: list[list[str]] = []

    def become(_: str, program: list[str], __: dict[str, str]) -> NoReturn:
        made.append(program)
        raise _Replaced

    with console.patch.context() as outside:
        outside.setattr(os, "execve", become)
        outside.setattr(sys, "argv", ["/srun"])
        try:
            return [console.type("srun", [*beside, *words, *STEP])]
        except _Replaced:
            _, err = console.capfd.readouterr()
    asked, inner = made[0][: made[0].index("/srun")], made[0][made[0].index("/srun") + 1 :]
    told = [asked[at + 1].partition("=") for at, word in enumerate(asked) if word == "--env"]
    env = {name: value for name, _, value in told}
    return [Outcome(0, "", err, [asked], {}), console.type("srun", inner, **(IN_A_JOB | env))]


@pytest.mark.parametrize(
    ("command", "option"),
    [(command, option) for command, option in (*OPTIONS, *(("step", each) for each in tables.SRUN))],
    ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_every_option_acts_is_refused_or_is_named(command: str, option: Option, console: Console) -> None:
    trial = TRIES[command].get(option.name) or Try("x" if option.value else "")
    beside = trial.beside or USUAL.get(command, []) if option.name != "allusers" else []
    without = comes_of(console, command, [], beside)
    with_it = comes_of(console, command, typed(option, trial.value), beside)
    if option.effect == ACTS:
        assert option.name in TRIES[command] or option.name in OF_ITSELF
        assert with_it != without
        return
    assert option.name not in TRIES[command]
    said = "".join(each.err for each in with_it)
    if option.effect == LEFT:
        assert f"--{option.name} is refused: " in said
        assert [each.code for each in with_it] == [1]
        assert not with_it[0].calls
        return
    assert option.effect == IDLE
    if option.holds != ("",):
        note = f"{'srun' if command == 'step' else command}: note: without effect here: "
        assert [line for line in said.splitlines() if line.startswith(note) and f"--{option.name}" in line]
        assert [each._replace(err="") for each in with_it] == [each._replace(err="") for each in without]
    for value in option.holds:
        assert comes_of(console, command, typed(option, value), beside) == without
