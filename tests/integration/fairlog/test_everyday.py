"""The verbs of every day against a running cluster: choosing, listing, following, running again; and wrong input."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from fairlog.cli.main import cli
from tests.integration.cli_rig import ROOT, Shell
from tests.waiting import HOPELESS_S, wait_until


class Said(NamedTuple):
    """What a verb answered."""

    code: int
    out: str
    err: str


class Here:
    """A cluster of two workers with 4 cores each, and the verbs called in this process."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.url = str(shell.status()["store"]["url"])
        self.env: dict[str, str | None] = {name: None for name in os.environ if name.startswith(("FAIRLOG", "XDG"))}
        self.env |= {**shell.env, "FAIRLOG_COMPANY": "acme", "FAIRLOG_USER": "ann"}
        self.socket = json.loads((shell.home / ".local/share/fairlog/up/up.json").read_text())["socket"]

    def run(self, *arguments: str, text: str = "") -> Said:
        """A verb of this home."""
        before = Path.cwd()
        os.chdir(self.shell.home)
        try:
            answer = CliRunner(env=self.env).invoke(cli, arguments, input=text, prog_name="fairlog")
        finally:
            os.chdir(before)
        if answer.exception is not None and not isinstance(answer.exception, SystemExit):
            raise answer.exception
        return Said(answer.exit_code, answer.stdout, answer.stderr)

    def ok(self, *arguments: str) -> str:
        """What a verb that must succeed prints."""
        said = self.run(*arguments)
        assert said.code == 0, said
        return said.out

    def submit(self, *arguments: str) -> str:
        """The id of an app."""
        return self.ok("submit", *arguments).splitlines()[0]

    def apps(self, *arguments: str) -> list[dict[str, Any]]:
        """What `apps --json` lists."""
        found: list[dict[str, Any]] = json.loads(self.ok("apps", "--json", *arguments))
        return found

    def started(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """A verb that goes on, as a process of its own."""
        env = {name: value for name, value in self.env.items() if value is not None}
        command = [sys.executable, "-m", "fairlog", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, cwd=self.shell.home, stdin=stdin, stdout=pipe, stderr=pipe, text=True)


TOLD_OF_ERRORS = re.compile(r"^ +(half of the last \d+ estimates were|the last estimate was) off by ", re.MULTILINE)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    shell = Shell(tmp_path_factory.mktemp("everyday") / "home")
    shell.ok("up", "--detach", "--workers", "2", "--masters", "1", "--cores", "4", "--memory", "4G")
    for company in ("acme", "globex"):
        shell.ok("company", "add", company)
    yield Here(shell)
    shell.run("down")


@pytest.fixture
def here(rig: Here, request: pytest.FixtureRequest) -> Here:
    """The verbs go through the store, or with the parameter `api` through the API."""
    rig.env["FAIRLOG_API"] = f"http+unix:{rig.socket}" if getattr(request, "param", "") == "api" else None
    return rig


number = count()
"""For names that only one test uses."""
both = pytest.mark.parametrize("here", ["store", "api"], indirect=True)


@pytest.mark.parametrize("here", ["api"], indirect=True)
def test_a_command_runs_beside_the_tasks_of_a_running_app(here: Here) -> None:
    app = here.submit("--cores", "1", "--env", "WORD=hush", "sh", "-c", "touch $FAIRLOG_SCRATCH/mark; sleep 600")
    sleeps = "test -e $FAIRLOG_SCRATCH/mark && pgrep sleep"
    wait_until(lambda: here.run("exec", app, "--", "sh", "-c", sleeps).code == 0, "its task")
    script = "echo $WORD of $FAIRLOG_APP_ID; pgrep -c sleep; echo oops >&2; exit 7"
    assert here.run("exec", app, "--task", "0", "--", "sh", "-c", script) == (7, f"hush of {app}\n1\n", "oops\n")
    text = "".join(f"{line}\n" for line in range(20_000))
    process = here.started("exec", "-i", app, "--", "tee", "/dev/stderr", stdin=subprocess.PIPE)
    assert process.communicate(text, timeout=HOPELESS_S) == (text, text)
    assert here.run("exec", app, "--", "no-such").err == "Error: command 'no-such' does not exist in the cell\n"
    here.ok("kill", app)
    assert here.run("exec", app, "--", "true").err.startswith(f"Error: app {app!r} is killed: it has no executor")


@both
def test_output_goes_where_the_user_says_and_logs_print_it_as_well(here: Here) -> None:
    folder = here.shell.home / f"job{next(number)}"
    (folder / "out").mkdir(parents=True)
    words = ("--chdir", folder.name, "-o", "out/%x-%j-%a-%u", "--wait")
    app = here.submit("-J", "mine", *words, "--", "sh", "-c", "pwd; echo oops >&2; pwd")
    text = f"{folder}\noops\n{folder}\n"
    assert (folder / "out" / f"mine-{app}-0-ann").read_text() == text
    assert here.ok("logs", app) == text
    again = here.ok("resubmit", app, "--wait").splitlines()[0]
    assert (folder / "out" / f"mine-{again}-0-ann").read_text() == text
    several = here.submit(
        "--array", "3,7", *words, "--error", "out/%A.%a.err", "sh", "-c", "echo $FAIRLOG_TASK_INDEX >&2"
    )
    assert [(folder / "out" / f"{several}.{index}.err").read_text() for index in (3, 7)] == ["3\n", "7\n"]
    shown = json.loads(here.ok("app", several, "--json"))
    assert (shown["output"], shown["error"]) == (f"{folder}/out/%x-%j-%a-%u", f"{folder}/out/%A.%a.err")
    refused = here.run("submit", "-n", "2", "-o", "out", "true")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.endswith("put %a into --output, or say --open-mode append\n")
    assert "'%q', which stands for nothing" in here.run("submit", "-o", "%q", "true").err
    assert "'out/' names no file; write it like out/%a.txt" in here.run("submit", "-o", "out/", "true").err


def test_a_script_is_found_from_the_folder_in_which_it_runs(here: Here) -> None:
    mark = f"job{next(number)}"
    (here.shell.home / mark).mkdir()
    (here.shell.home / mark / "job.sh").write_text("#!/bin/sh\npwd\n")
    app, folder = here.ok("submit", "-D", mark, "--cores", "1", "--wait", f"{mark}/job.sh").splitlines()
    assert folder == str(here.shell.home / mark)
    found = json.loads(here.ok("app", app, "--json"))
    assert (found["requestedCores"], found["requestedMemory"]) == (1, 512)


@both
def test_a_script_runs_as_it_was_submitted_whatever_becomes_of_its_file(here: Here) -> None:
    script = here.shell.home / f"job{next(number)}.sh"
    script.write_text("#!/bin/sh\necho as submitted $1\n")
    app = here.submit("--hold", script.name, "a")
    script.write_text("#!/bin/sh\necho edited\n")
    assert "is not the script that was submitted" in here.run("resubmit", app).err
    script.unlink()
    assert "give the script with --script FILE" in here.run("resubmit", app).err
    here.ok("release", app)
    wait_until(lambda: here.ok("logs", app) == "as submitted a\n", "its output")
    large = b"#!/usr/bin/env python3\nimport sys; print(sys.argv[1:])\n" + b"#" * 3_000_000
    (here.shell.home / "large").write_bytes(large)
    assert here.ok("submit", "--script", "large", "--wait", "--", "-x").splitlines()[1] == "['-x']"
    said = here.run("submit", "--script", "-", "--wait", "--", "b", text="#!/bin/sh\necho by stdin $1\n")
    assert (said.code, said.out.splitlines()[1:]) == (0, ["by stdin b"])


@both
def test_a_signal_reaches_the_tasks_that_are_meant(here: Here) -> None:
    script = "trap 'echo got it; exit 5' USR1; echo begun; while :; do sleep 0.1; done"
    app = here.submit("--array", "3,7", "--cores", "2", "sh", "-c", script)
    wait_until(lambda: here.ok("logs", app).splitlines() == ["begun"] * 2, "its tasks")
    assert "has no task 4; its tasks are 3,7" in here.run("signal", app, "USR1", "--task", "4").err
    assert "the signal must be one of HUP, INT" in here.run("signal", app, "NOPE").err
    assert here.ok("signal", app, "SIGUSR1", "--task", "7") == f"{app} gets USR1\n"
    wait_until(lambda: here.ok("logs", app, "--task", "7") == "begun\ngot it\n", "the signal")
    assert here.ok("logs", app, "--task", "3") == "begun\n"
    wait_until(lambda: here.run("signal", app, "USR1").code, "its end")
    inner = "trap 'echo child; exit 6' USR2; echo up; while :; do sleep 0.1; done"
    outer = 'trap "" USR1; trap : USR2; sh -c "$INNER"; exit 7'
    child = here.submit("--cores", "1", "--env", f"INNER={inner}", "sh", "-c", outer)
    wait_until(lambda: here.ok("logs", child) == "up\n", "its child")
    for options in (("USR1", "--all-processes"), ("USR1",), ("USR2", "--all-processes")):
        assert here.ok("logs", child) == "up\n"
        here.ok("signal", child, *options)
    wait_until(lambda: "child\n" in here.ok("logs", child), "the signal to all processes")


def _sleeps(here: Here, app: str, visitor: subprocess.Popen[str], seconds: int) -> bool:
    """Whether the command of that visitor, a sleep of so many seconds, runs beside the app."""
    assert visitor.poll() is None, visitor.communicate()
    asked = here.run("exec", app, "--", "pgrep", "-f", f"sleep {seconds}")
    assert asked.code in (0, 1), asked
    return asked.code == 0


def test_a_visitor_has_a_terminal_and_the_command_ends_with_both(here: Here) -> None:
    app = here.submit("--cores", "1", "sleep", "600")
    ours, theirs = pty.openpty()
    env = {name: value for name, value in here.env.items() if value is not None}
    command = [sys.executable, "-m", "fairlog", "exec", app, "--", "sh", "-c", "stty size; cat; echo over"]
    wait_until(lambda: here.run("exec", app, "--", "true").code == 0, "its executor")
    process = subprocess.Popen(command, env=env, cwd=here.shell.home, stdin=theirs, stdout=theirs, stderr=theirs)
    said = b""
    while b"0 0" not in said and b" 80" not in said:
        said += os.read(ours, 1000)
    os.write(ours, b"typed\n\x03")
    assert process.wait(HOPELESS_S) == 130
    for end in (ours, theirs):
        os.close(end)
    visitor = here.started("exec", app, "--", "sleep", "601")
    wait_until(partial(_sleeps, here, app, visitor, 601), "the command")
    visitor.send_signal(signal.SIGINT)
    visitor.communicate(timeout=HOPELESS_S)
    assert visitor.returncode == 130
    wait_until(lambda: here.run("exec", app, "--", "pgrep", "-f", "sleep 601").code == 1, "its end")
    last = here.started("exec", app, "--", "sleep", "602")
    wait_until(partial(_sleeps, here, app, last, 602), "the command")
    here.ok("kill", app)
    last.communicate(timeout=HOPELESS_S)
    assert last.returncode == 137


@both
def test_an_app_of_programs_tells_what_they_used_as_tasks_do(here: Here) -> None:
    busy = "import time; block = b'x' * 60_000_000\nwhile time.process_time() < 0.3: pass"
    asked = ("--executor-program", "--executors", "2", "--cores", "8", "--executor-cores", "4", "--as-many-as-fit")
    app = here.submit(*asked, "--wait", "--", sys.executable, "-c", busy)
    found = json.loads(here.ok("app", app, "--json"))
    assert (found["cpuMs"] >= 600, found["peakMemory"] >= 60) == (True, True), found
    assert re.search(r"cpu time +\S.* of its programs\npeak memory +\S+ of a program", here.ok("app", app))
    [listed] = [each for each in here.apps("--ended") if each["app"] == app]
    assert (listed["cpuMs"], listed["peakMemory"]) == (found["cpuMs"], found["peakMemory"])


@both
def test_apps_are_listed_with_cause_and_wait_filtered_sorted_and_cut(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (here.submit("--hold", "--name", name, "true") for name in ("etl-1", "etl-2"))
    other = here.submit("--hold", "--company", "globex", "--user", "bob", "true")
    assert {(app["company"], app["user"]) for app in here.apps()} == {("acme", "ann")}
    for name in ("FAIRLOG_COMPANY", "FAIRLOG_USER"):
        monkeypatch.setitem(here.env, name, None)
    found = {app["app"]: app for app in here.apps()}
    assert [found[app]["reason"] for app in (one, two, other)] == ["hold"] * 3
    assert all(app["waitedMs"] >= 0 for app in found.values())
    names = ("--name", "etl-*", "-o", "app")
    assert here.ok("apps", *names).split() == [one, two]
    assert here.ok("apps", *names, "--sort", "-submitted", "--limit", "1").split() == [two]
    assert here.run("apps", "--name", "nothing", "-o", "app")[1:] == ("", "No app matches.\n")
    assert here.ok("apps", *names[:2], "-o", "app,rule", "--no-header").split() == [one, "J3", two, "J3"]
    assert "APP" in here.ok("apps", *names[:2], "-o", "app,rule")
    assert [app["app"] for app in here.apps("--company", "globex")] == [other]
    assert [app["app"] for app in here.apps("--user", "bob", "--state", "not-ready", "--reason", "hold")] == [other]
    assert here.apps("--user", "bob", "--state", "running") == here.apps("--until", "-1h") == []
    assert [app["app"] for app in here.apps("--since", "-1h")] == [app["app"] for app in here.apps()]
    assert here.ok("apps", "--user", "bob", "--name", "nothing") == "No app matches.\n"
    assert here.ok("apps", *names[:2], "-o", "NAME,rule") == "NAME   RULE\netl-1  J3\netl-2  J3\n"
    for app in (one, two, other):
        here.ok("kill", app)


@both
@pytest.mark.parametrize(
    "verb",
    [
        ("apps",),
        ("apps", "--json"),
        ("apps", "--all", "-o", "app"),
        ("apps", "--ended"),
        ("apps", "--at", "-1s"),
        ("efficiency",),
        ("kill", "--yes"),
        ("release", "--dry-run"),
        ("logs",),
    ],
)
def test_a_filter_that_names_nobody_is_refused_and_the_nearest_name_told(here: Here, verb: tuple[str, ...]) -> None:
    here.ok("kill", here.submit("--hold", "--company", "globex", "--user", "bob", "true"))
    ends = "`fairlog company list` lists the companies\n"
    said = f"Error: no company 'globx' is registered; did you mean 'globex'? {ends}"
    assert here.run(*verb, "--company", "globx") == (1, "", said)
    assert here.run(*verb, "--company", "zzz") == (1, "", f"Error: no company 'zzz' is registered; {ends}")
    ends = "`fairlog shares` lists the users\n"
    said = f"Error: no user 'bobb' of company 'globex' is known; did you mean 'bob'? {ends}"
    assert here.run(*verb, "--company", "globex", "--user", "bobb") == (1, "", said)
    assert here.run(*verb, "--company", "globex", "--user", "bob", "--name", "nothing").code == 0


@both
def test_a_company_without_apps_is_no_error_and_workers_are_told_alike(here: Here) -> None:
    here.ok("company", "add", "initech")
    assert here.ok("apps", "--company", "initech") == "No app matches.\n"
    assert here.apps("--company", "initech") == []
    here.ok("company", "remove", "initech")
    said = here.run("drain", "--host", "no-such", "--yes")
    assert said == (1, "", "Error: no worker has the host 'no-such'; `fairlog workers` lists the workers\n")
    said = here.run("drain", "--user", "zzz", "--yes")
    assert said == (1, "", "Error: no user 'zzz' is known; `fairlog shares` lists the users\n")


def test_a_filter_shows_what_it_hits_and_changes_nothing_unasked(here: Here) -> None:
    apps = [here.submit("--hold", "--name", "bulk", "true") for _ in range(3)]
    unasked = here.run("kill", "--name", "bulk")
    assert (unasked.code, unasked.out) == (2, "")
    assert "kill: 3 apps" in unasked.err
    assert unasked.err.splitlines()[-1].endswith("add --yes to go on without asking; see `fairlog kill --help`")
    dry = here.run("release", "--name", "bulk", "--dry-run")
    assert (dry.code, dry.out) == (0, "")
    assert all(app in dry.err for app in apps)
    assert here.run("kill", "--name", "mine", "--user", "ann", "--yes") == (0, "", "no app matches; nothing to kill\n")
    assert {app["state"] for app in here.apps("--name", "bulk")} == {"pending"}
    assert here.ok("kill", "--name", "bulk", "--yes").splitlines() == [f"{app} killed" for app in apps]
    assert here.apps("--name", "bulk") == []
    ids = [event["cause"] for event in map(json.loads, here.ok("log", "--json").splitlines()) if event.get("command")]
    assert len(set(ids)) == len(ids)


def test_on_a_terminal_a_filter_asks(here: Here) -> None:
    app = here.submit("--hold", "--name", "asked", "true")
    for answer, state in (("n\n", "pending"), ("y\n", "killed")):
        master, slave = pty.openpty()
        env = {name: value for name, value in here.env.items() if value is not None}
        command = [sys.executable, "-m", "fairlog", "kill", "--name", "asked"]
        process = subprocess.Popen(command, env=env, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        os.write(master, answer.encode())
        assert process.wait(HOPELESS_S) == (0 if answer == "y\n" else 130)
        os.close(master)
        assert [each["state"] for each in here.apps("--all", "--name", "asked")] == [state]
    assert json.loads(here.ok("app", app, "--json"))["state"] == "killed"


@both
def test_an_app_is_named_by_a_unique_beginning_of_its_id(here: Here) -> None:
    apps = [here.submit("--hold", "true") for _ in range(2)]
    assert here.ok("hold", apps[0][4:12]) == f"{apps[0]} is on hold\n"
    assert json.loads(here.ok("app", apps[1][:12], "--json"))["app"] == apps[1]
    assert f"app       {apps[1]} of ann" in here.ok("explain", apps[1][:12])
    ambiguous = here.run("kill", "app-")
    assert (ambiguous.code, ambiguous.out) == (1, "")
    assert re.fullmatch(r"Error: \d+ apps begin with 'app-': app-.*; write more of one\n", ambiguous.err)
    assert here.run("kill", "zzz").err == "Error: no app 'zzz' is known; `fairlog apps --all` lists the apps\n"
    assert here.ok("kill", *(app[:13] for app in apps)) == "".join(f"{app} killed\n" for app in apps)


@both
def test_logs_of_many_tasks_are_told_apart_cut_and_chosen(here: Here) -> None:
    name = f"many-{next(number)}"
    script = "echo one; echo task $FAIRLOG_TASK_INDEX; test $FAIRLOG_TASK_INDEX -ne 8"
    one_by_one = ("--cores", "4", "--cores-per-task", "4")  # the failure of the last one ends the app
    app = here.submit("--array", "3,7-8", *one_by_one, "--name", name, "sh", "-c", script)
    ended = here.run("logs", "--follow", "--prefix", app)
    assert sorted(ended.out.splitlines()) == sorted(
        f"[{index}] {line}" for index in (3, 7, 8) for line in ("one", f"task {index}")
    )
    assert here.ok("logs", app, "--tail", "1") == "task 3\ntask 7\ntask 8\n"
    assert here.ok("logs", app, "--task", "7", "--prefix") == "[7] one\n[7] task 7\n"
    assert here.ok("logs", app, "--since", "now") == ""
    assert here.ok("logs", app, "--since", "-1h", "--task", "3") == "one\ntask 3\n"
    assert here.run("logs", app, "--task", "4").err == f"Error: app {app!r} has no task 4; its tasks are 3,7-8\n"
    failed = here.run("logs", "--name", name, "--state", "failed", "--tail", "1")
    assert failed.out == "task 3\ntask 7\ntask 8\n"
    again = here.ok("resubmit", app, "--failed").strip()
    wait_until(lambda: here.apps("--all", "--name", name)[-1]["endedAt"] is not None, "its end")
    assert here.ok("logs", again) == "one\ntask 8\n"
    assert json.loads(here.ok("app", again, "--json"))["array"] == "8"
    assert re.search(r"^ +8  failed +1 ", here.ok("app", again), re.MULTILINE)


@both
def test_an_app_is_submitted_again_with_its_variables_and_staged_files(here: Here, tmp_path: Path) -> None:
    staged = tmp_path / "staged"
    staged.write_text("of a file\n")
    program = ("sh", "-c", "echo $A; cat $FAIRLOG_SCRATCH/staged")
    app = here.submit("--env", "A=b", "--stage", str(staged), "--retries", "1", "--wait", *program)
    missing = here.run("resubmit", app)
    assert (missing.code, missing.out) == (2, "")
    assert "give the staged files again with --stage FILE" in missing.err
    missing = here.run("resubmit", app, "--stage", str(staged))
    assert "give the values of A again with --env NAME=VALUE or --env-file" in missing.err
    again = here.run("resubmit", app, "--env", "A=c", "--stage", str(staged), "--wait")
    assert re.fullmatch(r"app-\w+\nc\nof a file\n", again.out)
    assert json.loads(here.ok("app", again.out.splitlines()[0], "--json"))["retries"] == 1
    done = here.run("resubmit", app, "--failed")
    assert done.err == f"Error: every task of app {app!r} has succeeded; nothing is left to run again\n"


@both
def test_run_streams_and_exits_with_the_code(here: Here) -> None:
    said = here.run("run", "sh", "-c", "echo out; exit 4")
    assert (said.code, said.out) == (4, "out\n")
    assert re.fullmatch(r"app-\w+ submitted\n(app-\w+ (running|waits: ).*\n)*app-\w+ failed after .*\n", said.err)
    several = here.run("run", "--tasks", "2", "echo", "x")
    assert (several.code, several.out) == (0, "x\nx\n")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_run_kills_the_app(here: Here, sent: signal.Signals) -> None:
    script = "trap 'sleep 1; echo last; exit' TERM; echo begun; while :; do sleep 0.05; done"
    going = here.started("run", "--name", "signalled", "sh", "-c", script)
    assert going.stdout is not None
    assert going.stdout.readline() == "begun\n"
    going.send_signal(sent)
    out, said = going.communicate(timeout=HOPELESS_S)
    assert (going.returncode, out) == (128 + sent, "last\n"), said
    app = said.split()[0]
    assert here.apps("--all", "--name", "signalled")[-1]["state"] == "killed"
    assert here.ok("logs", "--stdout", app) == "begun\nlast\n"


@pytest.mark.parametrize("verb", [["run"], ["submit", "--wait"], ["submit", "--wait", "--array", "0"]], ids=" ".join)
@both
def test_who_waits_is_told_for_what_and_when_that_changes(here: Here, verb: list[str]) -> None:
    going = here.started(*verb, "--hold", "--name", "patient", "sh", "-c", "echo ran")
    assert going.stderr is not None
    reasons = (line for line in going.stderr if " waits: " in line)
    app, said = next(reasons).split(" waits: ")
    assert said.startswith("hold (J3): ")
    here.ok("drain", "worker-1")
    here.ok("drain", "worker-2")
    try:
        here.ok("release", app)
        assert next(reasons).startswith(f"{app} waits: no-live-worker (")
    finally:
        here.ok("undrain", "worker-1", "worker-2")
    out, _ = going.communicate(timeout=HOPELESS_S)
    assert (going.returncode, out.splitlines()[-1]) == (0, "ran")


@both
def test_a_plan_tells_where_or_why_not_and_submits_nothing(here: Here) -> None:
    def planned(*arguments: str) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(here.ok("submit", "--plan", "--json", *arguments, "true"))
        return said

    wait_until(lambda: not any(app["grantedCores"] for app in here.apps("--all")), "the cores to be free")
    before = changes(here)
    found = planned("--cores", "4")
    assert (found["starts"], len(found["executors"]), found["waitsFor"]) == (True, 1, None)
    assert re.match(r"starts    now, with 4 cores, \S+ requested\nEXECUTOR ", here.ok("submit", "--plan", "true"))
    held = planned("--hold")
    assert (held["starts"], held["waitsFor"]["rule"], held["ahead"]) == (False, "J3", [])
    refused = here.run("submit", "--plan", "--cores-per-task", "64", "true")
    assert (refused.code, refused.out) == (1, "")
    assert changes(here) == before
    busy = [here.submit("--tasks", "8", "--cores", "8", "--name", "busy", "sleep", "600") for _ in range(2)]
    behind = planned()
    assert (behind["starts"], behind["queue"], behind["ahead"][0]["app"]) == (False, {"place": 2, "of": 2}, busy[1])
    assert f"behind    {busy[1]} of ann at acme" in here.ok("submit", "--plan", "true")
    here.ok("kill", *busy)
    wait_until(lambda: not any(app["grantedCores"] for app in here.apps("--all")), "the cores to be free")


@both
def test_an_app_that_waits_is_told_when_it_may_start(here: Here) -> None:
    first = here.submit("--tasks", "8", "--cores", "8", "--max-runtime", "10m", "sleep", "600")
    second = here.submit("--tasks", "8", "--cores", "8", "true")
    held = here.submit("--hold", "true")
    wait_until(lambda: any(app["app"] == first and app["grantedCores"] for app in here.apps()), "the first to start")
    found = json.loads(here.ok("explain", second, "--json"))["estimate"]
    assert found["earliest"] < found["latest"] <= found["earliest"] + 700_000
    told = here.ok("explain", second)
    assert re.search(r"^starts    probably at .* at the latest$", told, re.MULTILINE)
    assert "starts    not by itself: it is on hold" in here.ok("explain", held)
    rows = dict(line.split(None, 1) for line in here.ok("apps", "--no-header", "-o", "app,starts-by").splitlines())
    assert (rows[held], rows[first]) == ("-", "-")
    assert rows[second].startswith("20")
    assert here.ok("apps", "-o", "app", "--sort", "starts").splitlines()[0] == second
    end = json.loads(here.ok("app", first, "--json"))["submittedSeq"] - 1
    assert second not in here.ok("apps", "-o", "app,starts", "--at", str(end))
    here.ok("kill", first, second, held)
    wait_until(lambda: not any(app["grantedCores"] for app in here.apps("--all")), "the cores to be free")


@pytest.mark.parametrize("here", ["api"], indirect=True)
def test_what_was_told_of_a_start_is_compared_with_it(here: Here) -> None:
    def errors() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(here.ok("explain", held, "--json"))["estimate"].get("errors") or {
            "number": 0
        }
        return found

    held = here.submit("--hold", "true")
    first = here.submit("--tasks", "8", "--cores", "8", "--max-runtime", "10m", "sleep", "600")
    second = here.submit("--tasks", "8", "--cores", "8", "sleep", "600")
    before = errors()["number"]
    assert json.loads(here.ok("explain", second, "--json"))["estimate"]["latest"]
    here.ok("kill", first)
    wait_until(lambda: errors()["number"] == before + 1, "the comparison")
    assert 0 < errors()["medianMs"] <= errors()["p90Ms"] < 700_000
    assert re.search(TOLD_OF_ERRORS, here.ok("explain", held)) is None
    third = here.submit("--tasks", "8", "--cores", "8", "true")
    assert re.search(TOLD_OF_ERRORS, here.ok("explain", third))
    here.ok("kill", second, third, held)
    wait_until(lambda: not any(app["grantedCores"] for app in here.apps("--all")), "the cores to be free")


@both
def test_ended_apps_come_from_the_log_also_when_they_are_forgotten(here: Here) -> None:
    name = f"forgotten-{next(number)}"
    app = here.submit("--name", name, "--wait", "true")
    here.ok("settings", "set", "retained_apps=0")
    wait_until(lambda: here.apps("--all", "--name", name) == [], "it to be forgotten")
    listed = here.apps("--ended", "--name", name)
    assert [(each["app"], each["state"], each["coreMs"] > 0) for each in listed] == [(app, "finished", True)]
    assert here.apps("--ended", "--name", name, "--until", "-1h") == []
    assert here.apps("--ended", "--name", name, "--since", "today") == listed
    assert here.apps("--ended", "--name", name, "--month", "2020-01") == []
    assert re.search(rf"^{app} .* finished .* 0\.\d\d\d ", here.ok("apps", "--ended", "--name", name), re.MULTILINE)
    here.ok("settings", "set", "retained_apps=1000")


@both
def test_a_worker_drains_with_a_reason_and_the_wait_ends_when_it_is_empty(here: Here) -> None:
    host = socket.gethostname()
    assert here.ok("drain", host, "--reason", "new disk", "--wait") == "worker-1 draining\nworker-2 draining\n"
    shown = json.loads(here.ok("workers", "--json"))
    assert [(each["status"], each["reason"], each["since"] > 0) for each in shown] == [
        ("draining", "new disk", True)
    ] * 2
    assert re.search(r"^worker worker-1 is draining since \S+ \S+Z: new disk$", here.ok("workers"), re.MULTILINE)
    assert here.run("undrain", "worker-").err.startswith("Error: 2 workers begin with 'worker-': worker-1, worker-2;")
    assert here.ok("undrain", host) == "worker-1 back in service\nworker-2 back in service\n"
    assert {each["reason"] for each in json.loads(here.ok("workers", "--json"))} == {""}
    assert here.run("drain", "--name", "worker-*").code == 2
    assert here.ok("drain", "--name", "*-1", "--yes") == "worker-1 draining\n"
    here.ok("undrain", "worker-1")


def test_top_shows_shares_queue_and_workers_once_where_there_is_no_terminal(here: Here) -> None:
    app = here.submit("--hold", "--name", "queued", "true")
    lines = here.ok("top").splitlines()
    assert [line.split()[0] for line in lines if line.isupper() or line.startswith(("COMPANY", "APP", "WORKER"))][
        :1
    ] == ["COMPANY"]
    assert any(line.startswith(app) and " hold " in line for line in lines)
    assert any(line.startswith("worker-1") for line in lines)
    here.ok("kill", app)


@pytest.mark.parametrize("verb", ["apps", "workers", "shares"])
def test_tables_fit_a_narrow_terminal(here: Here, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    app = here.submit("--hold", "--name", "a name that is rather long", "true")
    for name, value in {"TERM": "xterm", "FORCE_COLOR": "1", "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    table = here.ok(verb)
    here.ok("kill", app)
    assert max((len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in table.splitlines()), default=0) <= 60


def test_the_shell_completes_what_the_cluster_knows(here: Here) -> None:
    app = here.submit("--hold", "--name", "completed", "true")

    def completed(line: str) -> set[str]:
        words = line.split(" ")
        env = {"_FAIRLOG_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        answer = CliRunner(env={**here.env, **env}).invoke(
            cli, [], prog_name="fairlog", complete_var="_FAIRLOG_COMPLETE"
        )
        return {each.partition(",")[2] for each in answer.stdout.splitlines()}

    assert app in completed("fairlog kill app-")
    assert completed("fairlog apps --company ") == {"acme", "globex"}
    assert completed("fairlog drain wor") == {"worker-1", "worker-2"}
    assert completed("fairlog settings set default_co") == {"default_cores="}
    here.ok("kill", app)


@both
@pytest.mark.parametrize("verb", ["apps", "status", "log", "company add initech"])
def test_a_cluster_that_is_not_there_is_refused_and_the_nearest_named(here: Here, verb: str) -> None:
    said = here.run("--cluster", "defualt", *verb.split())
    assert (said.code, said.out) == (1, "")
    assert re.fullmatch(r"Error: .*has no cluster 'defualt'.*did you mean `--cluster default`\?\n", said.err)
    assert here.run("--cluster", "default", "apps").code == 0


WRONG = """
ps
token list nobody
account list --company nobody
settings set min_executor_cores=4 min_executor_cores=8
limit set max_cores=4 max_cores=8
alerts --once --short -1m
alerts --once --webhook http://x:99999/
alerts --once --webhook http://x:0/
sumbit true
apps --sort nmae
apps -o app,nope
apps --reason cheese
apps --state walking
apps --since soon
apps --since 2026-03-02 --until 2026-03-01
apps --month 2026-13
apps --limit -1
apps --watch
apps --watch --json
apps --watch --ended
submit --tasks 0 true
submit --array 1-0 true
submit --env A true
submit --env-file /nowhere true
submit --export NOT_SET_HERE true
submit --file /nowhere true
submit --time-limit 1:30 true
submit --cores-per-task 64 true
submit --company nobody true
submit --json true
submit --plan --company nobody true
resubmit nobody
resubmit nobody --failed
run --cores many true
run
kill
kill nobody
kill --user ann --executor
kill --user nobody --state walking
hold
release nobody
logs
logs nobody
logs nobody --tail -1
logs nobody --raw --prefix
logs nobody --task 1 --driver
logs nobody --since tomorrow
drain
drain nobody
drain --state sleeping
drain --name worker-* --reason x
undrain nobody
top --every 0
top --every never
explain nobody
app nobody
extend nobody --by 1x
log --from 10:00:00:00
settings set default_max_runtime_s=1x
--store nonsense status
--data /nowhere status
--cluster a/b apps
account add nobody
account add a/b/c
account grant acme/nobody admin
alerts --once --command '
alerts --once --command /nowhere/tell
alerts --once --disk 101%
alerts --once --ignore nothing
alerts --once --webhook ftp://x
apps --at 99999999
apps --limit 0
audit --expect 1:xyz
audit --follow --to 5
audit --from 5 --to 1
audit --seals /nowhere
company add a/b
company add x --part 200%
company set nobody
department set nobody
decommission nobody
exec nobody -- true
exec nobody --task 0 --executor 0 -- true
fairness --by colour
fairness --from 99999999
fairness --html /nowhere/x.html
limit set max_cores=1 --user ann
login --api nonsense
logs nobody --task x
remove --force nobody
reprioritize nobody 99999
restore /nowhere
run --raw --prefix true
run --tasks 0 true
scale nobody --executors x
statement --company acme --month 1999-01
statement --company nobody --month 2026-01
status --ready --at 1
token new acme/nobody
token revoke nothing
top extra
whatif --add-workers 1x1
whatif --companies 2
whatif --quota acme=x,4G
whatif --set nope=1
whatif --trace /nowhere
worker --api ftp://x
worker --discover /nowhere/gpus
worker --gpu-use nvidia-smi
worker --id a/b
worker --json
worker --memory 0
worker --resource gpu
worker invite a/b
worker invite w1 --cores 4
""".strip().splitlines()


@pytest.mark.parametrize("line", ["keys new", "keys share", "log --parquet", "--data", "alerts --once --state"])
def test_a_file_without_a_name_is_refused(here: Here, line: str) -> None:
    said = here.run(*line.split(), "", "copy")
    assert (said.code, said.out) == (2, "")
    assert re.fullmatch(r"Error: [^\n]*the name of a (file|directory) must not be empty[^\n]*\n", said.err)


@pytest.mark.parametrize(
    ("here", "line"), [(("store", "api")[place % 2], line) for place, line in enumerate(WRONG)], indirect=["here"]
)
def test_wrong_input_is_one_sentence_and_changes_nothing(here: Here, line: str) -> None:
    before = changes(here)
    said = here.run(*line.split())
    assert said.code in (1, 2)
    assert said.out == ""
    assert re.fullmatch(r"(?s)(.*\n)?Error: [^\n]+\n", said.err)
    assert changes(here) == before


def changes(here: Here) -> list[str]:
    """The ids of the commands that were carried out, but for what workers report."""
    events = (json.loads(line) for line in here.ok("log", "--json").splitlines())
    reports = {"StartedExecutor", "EndedExecutor", "EndApp", "EndedDriver", "ReportBacklog"}
    return [
        each["cause"]
        for each in events
        if each.get("command", {"type": "EndApp"})["type"] not in reports and each["type"] != "CommandRefused"
    ]
