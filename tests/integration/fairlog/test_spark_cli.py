"""Executors and drivers as in Spark, from the command line to processes on workers and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.cli_rig import Shell
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A cluster of two workers with 8 cores and 8 GiB each, and the company acme."""
    shell = Shell(tmp_path_factory.mktemp("spark") / "home")
    shell.ok("up", "--detach", "--workers", "2", "--cores", "8", "--memory", "8G")
    shell.ok("company", "add", "acme")
    shell.ok("settings", "set", "suspect_failures=0")
    yield shell
    shell.ok("down")


@pytest.fixture(autouse=True)
def _both_workers_are_free(shell: Shell) -> None:
    """An app has ended before its executors are gone."""
    wait_until(
        lambda: not any(each["grantedCores"] for each in json.loads(shell.ok("workers", "--json"))), "free workers"
    )


def sleepers(seconds: str = "987.5") -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", seconds]]


def succeeded(shell: Shell, name: str) -> int:
    """How many of the app's tasks have succeeded."""
    return [task["state"] for task in shell.app(name)["taskStates"]].count("succeeded")


def test_fixed_executors_run_the_apps_tasks(shell: Shell) -> None:
    script = "echo $FAIRLOG_CORES cores, $FAIRLOG_MEMORY_MB MiB"
    size = ["--executor-cores", "2", "--executor-memory", "700M", "--cores", "6", "--max-executors", "2"]
    name = shell.submit(*size, "--tasks", "6", "--wait", "--", "sh", "-c", script)
    assert shell.ok("logs", name) == "2 cores, 700 MiB\n" * 6
    entries = [json.loads(line) for line in shell.ok("log", "--json", "--app", name).splitlines()]
    granted = [entry["data"] for entry in entries if entry["type"] == "ExecutorAllocated"]
    assert [one["resources"] for one in granted] == [{"cores": 2, "memory_mb": 700}] * 2


def test_one_program_gets_all_cores_that_it_asks_for(shell: Shell) -> None:
    """Semantics A1, A7: once, in one executor."""
    name = shell.submit("--cores", "8", "--wait", "--", "sh", "-c", "echo $FAIRLOG_TASK_CORES of $FAIRLOG_CORES")
    assert shell.ok("logs", name) == "8 of 8\n"
    refusal = shell.run("submit", "--company", "acme", "--user", "ann", "--cores", "32", "--", "true")
    assert "a task of 32 cores does not fit into the largest executor, which has 16 cores" in refusal.err
    assert "--executor-cores 32" in refusal.err


def test_an_executor_that_finds_no_task_stays_and_is_not_replaced_by_another(shell: Shell) -> None:
    """Another app runs through both workers before the task ends that the first executor has."""
    flag, others = shell.home / "first", shell.home / "others"
    script = f"test $FAIRLOG_TASK_INDEX = 0 && flag={flag} || flag={others}; while ! test -e $flag; do sleep 0.05; done"
    size = ["--sizing", "one-per-worker", "--cores", "4", "--tasks", "4"]
    name = shell.submit(*size, "--", "sh", "-c", script)
    wait_until(lambda: len(shell.app(name)["executors"]) == 2, "both executors")
    others.touch()
    wait_until(lambda: succeeded(shell, name) == 3, "the other tasks")
    shell.submit(*size, "--wait", "--", "true")
    flag.touch()
    wait_until(lambda: shell.app(name)["state"] == "finished", "its end")
    entries = [json.loads(line) for line in shell.ok("log", "--json", "--app", name).splitlines()]
    assert len([entry for entry in entries if entry["type"] == "ExecutorAllocated"]) == 2


def test_a_killed_executor_is_replaced_and_its_task_runs_again(shell: Shell) -> None:
    flag = shell.home / "go"
    script = f"while ! test -e {flag}; do sleep 0.05; done; echo $FAIRLOG_EXECUTOR_ID"
    name = shell.submit("--executor-cores", "1", "--cores", "1", "--", "sh", "-c", script)
    wait_until(lambda: shell.app(name)["state"] == "running", "the first executor")
    assert shell.ok("kill", "--executor", f"{name}.0") == f"{name}.0 will stop\n"
    wait_until(lambda: [one["executor"] for one in shell.app(name)["executors"]] == [f"{name}.1"], "another one")
    flag.touch()
    wait_until(lambda: shell.app(name)["state"] == "finished", "its end")
    assert shell.ok("logs", name) == f"{name}.1\n"
    assert shell.run("kill", "--executor", f"{name}.1").err.startswith("Error: app")


def test_scaling_up_gives_an_app_more_executors(shell: Shell) -> None:
    size = ["--executor-cores", "1", "--cores", "3", "--max-executors", "1"]
    name = shell.submit(*size, "--tasks", "3", "--", "sleep", "600")
    wait_until(lambda: len(shell.app(name)["executors"]) == 1, "one executor")
    assert shell.ok("scale", name, "--executors", "2") == f"{name} scaled\n"
    assert len(shell.app(name)["executors"]) == 2
    assert shell.ok("scale", name, "--executors", "none") == f"{name} scaled\n"
    assert len(shell.app(name)["executors"]) == 3
    assert shell.run("scale", name, "--executors", "few").code == 2
    shell.ok("kill", name)


def test_a_driver_runs_on_a_worker_and_its_app_ends_with_it(shell: Shell) -> None:
    script = "echo I am $FAIRLOG_DRIVER_ID with $FAIRLOG_CORES cores; echo oops >&2"
    size = ["--driver-cores", "2", "--driver-memory", "512M", "--cores", "0"]
    name = shell.submit("--driver", *size, "--env", "A=b", "--wait", "--", "sh", "-c", script)
    assert shell.ok("logs", name, "--driver") == f"I am {name}.driver-0 with 2 cores\noops\n"
    found = shell.app(name)
    assert (found["state"], found["tasks"], found["executors"]) == ("finished", 0, [])
    assert shell.run("logs", shell.submit("--", "true"), "--driver").err.startswith("Error: app")
    assert shell.run("logs", name, "--driver", "--task", "1").code == 2


@pytest.mark.parametrize(
    ("command", "code", "why"),
    [
        (("sh", "-c", "exit 3"), 3, r"its driver ended with exit code 3"),
        (("sh", "-c", "kill -9 $$"), 137, r"its driver was ended by SIGKILL"),
        (("/no/such/program",), 127, r"command '/no/such/program' does not exist on worker \S+"),
    ],
    ids=["exit-code", "signal", "no-such-command"],
)
def test_a_driver_that_fails_fails_its_app_which_says_why(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], code: int, why: str
) -> None:
    """Whoever waits for it exits with the driver's code."""
    api = json.loads((shell.home / ".local/share/fairlog/up/up.json").read_text())["socket"]
    what = ("submit", "--company", "acme", "--user", "ann", "--driver", "--wait", "--", *command)
    with monkeypatch.context() as through:
        through.setitem(shell.env, "FAIRLOG_API", f"http+unix:{api}")
        assert shell.run(*what).code == code
    answer = shell.run(*what)
    assert answer.code == code
    assert re.search(rf" failed after \S+: {why}$", answer.err, re.MULTILINE)


def test_a_supervised_driver_is_started_again_until_it_succeeds(shell: Shell) -> None:
    mark = shell.home / "second"
    script = f"test -e {mark} && exec echo done; touch {mark}; exit 1"
    name = shell.submit("--driver", "--supervise", "--wait", "--", "sh", "-c", script)
    assert shell.ok("logs", name, "--driver").endswith("done\n")
    entries = [json.loads(line) for line in shell.ok("log", "--json", "--app", name).splitlines()]
    assert [entry["data"]["driver"] for entry in entries if entry["type"] == "DriverAllocated"] == [
        f"{name}.driver-0",
        f"{name}.driver-1",
    ]


def test_the_tasks_of_an_app_with_a_driver_run_beside_it_and_do_not_end_it(shell: Shell) -> None:
    flag = shell.home / "all"
    script = f'test -z "$FAIRLOG_TASK_INDEX" || exit 0; while ! test -e {flag}; do sleep 0.05; done; echo all of them'
    name = shell.submit("--driver", "--tasks", "5", "--cores", "4", "--", "sh", "-c", script)
    wait_until(lambda: succeeded(shell, name) == 5, "its tasks")
    assert shell.app(name)["state"] == "running"
    flag.touch()
    wait_until(lambda: shell.app(name)["state"] == "finished", "its end")
    assert shell.ok("logs", name, "--driver") == "all of them\n"


def test_killing_an_app_ends_its_driver_and_frees_what_it_held(shell: Shell) -> None:
    name = shell.submit("--driver", "--", "sh", "-c", "sleep 987.5 & sleep 987.5")
    wait_until(lambda: len(sleepers()) == 2, "the driver and what it has started")
    shell.ok("kill", name)
    wait_until(lambda: shell.app(name)["driver"] is None, "the driver's end")
    assert sleepers() == []


def test_a_driver_whose_process_is_killed_is_started_again_if_it_is_supervised(shell: Shell) -> None:
    name = shell.submit("--driver", "--supervise", "--", "sleep", "876.5")
    wait_until(lambda: len(sleepers("876.5")) == 1, "the driver")
    [first] = sleepers("876.5")
    keeper = first.parent()
    assert keeper is not None
    keeper.kill()
    wait_until(lambda: [one.pid for one in sleepers("876.5")] not in ([], [first.pid]), "the next one")
    assert shell.app(name)["driver"]["driver"] == f"{name}.driver-1"
    shell.ok("kill", name)
    wait_until(lambda: shell.app(name)["driver"] is None, "its end")


def test_executors_leave_a_decommissioned_worker_and_their_tasks_run_elsewhere(shell: Shell) -> None:
    flag = shell.home / "moved"
    script = f"while ! test -e {flag}; do sleep 0.05; done; echo $FAIRLOG_EXECUTOR_ID"
    name = shell.submit("--executor-cores", "1", "--cores", "1", "--", "sh", "-c", script)
    wait_until(lambda: shell.app(name)["state"] == "running", "the executor")
    host = shell.app(name)["executors"][0]["worker"]
    assert shell.ok("decommission", host) == f"{host} decommissioned\n"
    wait_until(lambda: [one["worker"] for one in shell.app(name)["executors"]] not in ([], [host]), "another worker")
    flag.touch()
    wait_until(lambda: shell.app(name)["state"] == "finished", "its end")
    assert shell.ok("logs", name) == f"{name}.1\n"


def test_variables_for_a_company_that_is_not_there_are_refused(shell: Shell) -> None:
    refusal = shell.run("spark", "env", "--company", "nobody", "--user", "ann")
    assert (refusal.code, refusal.out) == (1, "")
    assert "no company 'nobody' is registered" in refusal.err


SPARK = """#!/bin/sh
echo "$@"
test -e MARK && exit 0
touch MARK
exit 3
"""


@pytest.fixture
def spark(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark and a Java that only say what they are told: the first driver fails, the second one ends well."""
    home = shell.home / tmp_path.name  # which cells show
    for name, text in (("bin/spark-submit", SPARK), ("jars/spark-core_2.13-4.3.0.jar", ""), ("bin/java", "")):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text.replace("MARK", str(home / "mark")))
        (home / name).chmod(0o755)
    for name in ("SPARK_HOME", "JAVA_HOME"):
        monkeypatch.setitem(shell.env, name, str(home))


@pytest.mark.usefixtures("spark")
def test_who_waits_for_a_spark_driver_sees_its_output_and_exits_with_its_code(shell: Shell) -> None:
    answer = shell.run(
        "spark-submit", "--company", "acme", "--user", "ann", "--wait", "--verbose", "x.py", "--supervise"
    )
    assert (answer.code, answer.out.splitlines()[1:]) == (3, ["--verbose x.py --supervise"]), answer.err
    assert "its driver ended with exit code 3" in answer.err


@pytest.mark.usefixtures("spark")
def test_a_supervised_spark_driver_is_started_again(shell: Shell) -> None:
    name = shell.ok("spark-submit", "--company", "acme", "--user", "ann", "--wait", "--supervise", "x.py").split()[0]
    assert shell.ok("logs", name, "--driver").endswith("x.py\n")
    assert shell.ok("log", "--json", "--app", name).count('"DriverAllocated"') == 2


def test_spark_submit_refuses_numbers_that_it_cannot_read(shell: Shell) -> None:
    """Before it looks for Spark, and before it submits anything."""
    before = shell.ok("apps", "--all", "--json")
    for option in ("--driver-cores", "--executor-cores"):
        answer = shell.run("spark-submit", "--company", "acme", "--user", "ann", option, "many", "x.py")
        name = option.removeprefix("--").replace("-", ".")
        assert answer.err == f"Error: spark.{name} is a whole number of at least 1, not 'many'\n"
        assert answer.code == 1
    assert shell.ok("apps", "--all", "--json") == before


@pytest.mark.parametrize("option", ["--wait", "--company", "--data"])
def test_fairlogs_options_among_those_of_spark_submit_are_told_where_they_belong(shell: Shell, option: str) -> None:
    answer = shell.run("spark-submit", "--company", "acme", "--user", "ann", "--conf", "spark.a=b", option, "x.py")
    told = f"Error: {option} is an option of fairlog; put it before those of spark-submit\n"
    assert (answer.code, answer.out, answer.err) == (1, "", told)
