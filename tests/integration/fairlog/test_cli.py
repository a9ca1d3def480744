"""Every verb against a running cluster, and every wrong input that is not the command line's own to refuse."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from fairlog.client import StoreClient
from fairlog.local.store import EmbeddedStore, bundled_server
from scheduler.model.events import CommandRefused, LogSealed, RefusalsOmitted
from scheduler.store.codec import GENESIS_DIGEST
from scheduler.store.eventlog import EventLog
from tests.integration.cli_rig import Shell
from tests.waiting import HOPELESS_S, wait_until

LONG = "x" * 100_000
OF_ONE_APP = ("app", "explain", "logs", "kill", "hold", "resubmit")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A cluster of two workers with 8 cores each, and the companies acme (no quota of its own) and small (8 cores)."""
    shell = Shell(tmp_path_factory.mktemp("cli") / "home")
    shell.ok("up", "--detach", "--workers", "2", "--cores", "8", "--memory", "8G")
    shell.ok("company", "add", "acme")
    shell.ok("company", "add", "small", "--cores", "8", "--memory", "4G")
    yield shell
    shell.ok("down")


@pytest.fixture(scope="module")
def client(shell: Shell) -> Iterator[StoreClient]:
    """A program's connection to the cluster."""
    client = StoreClient(shell.status()["store"]["url"], keyring=shell.keyring())
    yield client
    client.store.close()


def submit(shell: Shell, *arguments: str) -> str:
    return shell.submit(*arguments)


def wait_for_rest(client: StoreClient) -> None:
    """Return once no executor is left of the apps that have ended, so that nothing is logged of one any more."""
    wait_until(lambda: all(worker["executors"] == 0 for worker in client.view("workers")), "the cluster to be at rest")


def test_submit_prints_the_apps_id_alone_and_the_app_is_in_the_log_by_then(shell: Shell) -> None:
    printed = shell.ok("submit", "--company", "acme", "--user", "ann", "--", "true")
    assert re.fullmatch(r"app-[0-9a-f]{12}\n", printed)
    first = json.loads(shell.ok("log", "--json", "--app", printed.strip()).splitlines()[0])
    assert first["type"] == "AppRegistered"
    assert first["private"].items() >= {"command": ["true"], "cwd": str(shell.home), "name": "true"}.items()


def test_who_has_no_account_names_company_and_user(shell: Shell) -> None:
    for given in (("--company", "acme"), ("--user", "ann")):
        answer = shell.run("submit", *given, "--", "true")
        assert (answer.code, answer.out) == (2, "")
        assert "give --company and --user" in answer.err


def test_every_option_of_submit_reaches_the_log(shell: Shell) -> None:
    options = ["--cores", "6", "--memory-per-task", "1G", "--tasks", "4", "--name", "Ü 1", "--kind", "sql"]
    more = ["--cores-per-task", "2", "--retries", "3", "--time-limit", "10m", "--env", "K=v", "--env", "A="]
    app = submit(shell, *options, *more, "--", "true")
    first = json.loads(shell.ok("log", "--json", "--app", app).splitlines()[0])
    wanted = {"cores": 8, "sizing": ["computed", 1024, []], "tasks": 4, "cores_per_task": 2, "kind": "sql"}
    assert first["data"].items() >= {**wanted, "retries": 3, "time_limit_s": 600}.items()
    assert first["data"]["requested"] == {"cores": 8, "memory_mb": 4096}
    assert first["private"].items() >= {"name": "Ü 1", "env": ["A", "K"]}.items()


def test_kinds_of_resources_are_registered_offered_requested_and_shown(shell: Shell) -> None:
    """Semantics R1-R5; the worker discovers what it offers."""
    unknown = shell.run("submit", "--company", "acme", "--user", "ann", "--task-resource", "gpu=1", "--", "true")
    assert "no kind of resources 'gpu' is registered; register it with `fairlog resource add gpu`" in unknown.err
    assert shell.ok("resource", "add", "gpu") == "gpu registered\n"
    assert shell.ok("resource", "add", "gpu") == "gpu is registered already\n"
    found = """echo '{"name": "gpu", "addresses": ["5", "7"]}'"""
    plain = ("--launcher", "plain", "--unsafe-plain")  # its folders are in the home of its user, where cells are not
    worker = shell.start("worker", "--id", "gpus", "--cores", "4", "--memory", "4G", "--discover", found, *plain)
    wait_until(lambda: '"gpus"' in shell.ok("workers", "--json"), "the worker with GPUs")
    sized = ("--executor-cores", "2", "--executor-resource", "gpu=1", "--cores", "2", "--tasks", "1", "--wait")
    app = submit(shell, *sized, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert shell.ok("logs", app) == "5\n"
    wait_until(lambda: not shell.app(app)["executors"], "its executors to be gone")
    assert json.loads(shell.ok("resource", "list", "--json")) == [
        {"kind": "gpu", "offered": 2, "granted": 0, "workers": 1}
    ]
    assert "gpu=5,7" in shell.ok("workers")
    shell.ok("company", "add", "few", "--cores", "8", "--memory", "8G", "--resource", "gpu=1")
    assert "gpu=1" in shell.ok("company", "list")
    shell.ok("remove", "--force", "gpus")
    worker.terminate()
    worker.communicate(timeout=HOPELESS_S)
    shell.ok("company", "remove", "few")


def test_wait_exits_with_0_when_the_app_finished(shell: Shell) -> None:
    answer = shell.run("submit", "--company", "acme", "--user", "ann", "--wait", "--", "true")
    assert answer.code == 0
    assert re.fullmatch(r"app-\w+\n", answer.out)
    assert re.search(r"^app-\w+ finished after ", answer.err, re.MULTILINE)


def test_wait_prints_the_output_of_a_single_task_after_the_id(shell: Shell) -> None:
    one, two = ("submit", "--company", "acme", "--user", "ann", "--wait"), ("--tasks", "2")
    answer = shell.run(*one, "--", "sh", "-c", "echo here")
    assert re.fullmatch(r"app-\w+\nhere\n", answer.out)
    assert re.fullmatch(r"app-\w+\n", shell.ok(*one, *two, "--", "sh", "-c", "echo here"))


@pytest.mark.parametrize(
    ("command", "why", "code"),
    [
        (["sh", "-c", "exit 3"], "3", 3),
        (["sh", "-c", "kill -9 $$"], "SIGKILL", 137),
        (["no-such-program"], "command 'no-such-program' does not exist on worker", 127),
    ],
)
def test_wait_exits_with_the_tasks_code_and_says_why(shell: Shell, command: list[str], why: str, code: int) -> None:
    answer = shell.run("submit", "--company", "acme", "--user", "ann", "--tasks", "1", "--wait", "--", *command)
    assert answer.code == code
    ended = re.search(r"^app-\w+ failed after .*: (.*)$", answer.err, re.MULTILINE)
    assert ended is not None, answer.err
    assert why in ended[1]


@pytest.mark.parametrize("how", ["--tasks 3", "--driver", "--executor-program", "--executor-program --executors 3"])
def test_what_no_worker_can_start_exits_as_in_a_shell_however_it_is_to_run(shell: Shell, how: str) -> None:
    who = "--company", "acme", "--user", "ann"
    for verb in (("submit", "--wait"), ("run",)):
        answer = shell.run(*verb, *who, *how.split(), "--", "no-such-program")
        assert answer.code == 127, answer
    elsewhere = shell.run("run", *who, *how.split(), "--", "/no/such/folder/program")
    assert elsewhere.code == 127, elsewhere


def test_an_interrupt_ends_the_waiting_and_says_that_the_app_goes_on(shell: Shell) -> None:
    waiting = shell.start("submit", "--company", "acme", "--user", "ann", "--wait", "--", "sleep", "600")
    assert waiting.stdout is not None
    app = waiting.stdout.readline().strip()
    waiting.stdout.readline()
    waiting.send_signal(signal.SIGINT)
    said = waiting.communicate(timeout=HOPELESS_S)[0]
    assert waiting.returncode == 130
    assert said.rstrip().splitlines()[-1] == f"{app} keeps running; `fairlog kill {app}` ends it"
    shell.ok("kill", app)


def test_a_killed_app_ends_at_once_and_wait_exits_with_1(shell: Shell) -> None:
    waiting = shell.start("submit", "--company", "acme", "--user", "ann", "--wait", "--", "sleep", "600")
    assert waiting.stdout is not None
    app = waiting.stdout.readline().strip()
    assert shell.run("kill", app) == (0, f"{app} killed\n", "")
    rest, _ = waiting.communicate(timeout=HOPELESS_S)
    assert waiting.returncode == 1
    assert f"{app} killed" in rest
    again = shell.run("kill", app)
    assert again == (1, "", f"Error: app {app!r} has already ended: killed\n")
    wait_until(lambda: shell.ok("app", app, "--json").find('"executors": []') > 0, "its executors to be gone")


def test_several_apps_are_killed_together_or_with_one_unknown_none(shell: Shell) -> None:
    one, two = (submit(shell, "--", "sleep", "600") for _ in range(2))
    answer = shell.run("kill", one, "nope", two)
    assert answer.code == 1
    assert not answer.out
    assert answer.err.startswith("Error: no app 'nope' is known")
    assert shell.ok("kill", one, two) == f"{one} killed\n{two} killed\n"


def test_logs_prints_the_tasks_output_in_their_order(shell: Shell) -> None:
    app = submit(shell, "--tasks", "3", "--wait", "--", "sh", "-c", "printf 'task %s' $FAIRLOG_TASK_INDEX; echo x >&2")
    assert shell.ok("logs", app) == "task 0x\ntask 1x\ntask 2x\n"
    assert shell.ok("logs", app, "--task", "1") == "task 1x\n"
    none = shell.run("logs", app, "--task", "3")
    assert none == (1, "", f"Error: app {app!r} has no task 3; its tasks are 0 to 2\n")


def test_logs_follow_prints_what_comes_until_the_app_ends(shell: Shell) -> None:
    flag = shell.home / "go"
    app = submit(
        shell, "--tasks", "1", "--", "sh", "-c", f"echo one; while ! [ -e {flag} ]; do sleep 0.05; done; echo two"
    )
    following = shell.start("logs", "--follow", app)
    assert following.stdout is not None
    assert following.stdout.readline() == "one\n"
    flag.touch()
    rest, _ = following.communicate(timeout=HOPELESS_S)
    assert (rest, following.returncode) == ("two\n", 0)


def test_values_of_the_environment_reach_the_task_and_never_the_log(shell: Shell) -> None:
    app = submit(shell, "--tasks", "1", "--env", "TOKEN=hush-hush", "--wait", "--", "sh", "-c", "echo $TOKEN")
    assert shell.ok("logs", app) == "hush-hush\n"
    assert "hush-hush" not in shell.ok("log", "--json").replace("echo $TOKEN", "")


def test_status_warns_of_a_log_that_fills_the_store_and_not_before(shell: Shell) -> None:
    assert shell.run("status").err == ""
    warned = shell.run("status", "--warn-at", "0")
    assert warned.code == 0
    assert warned.err.startswith("Warning: the log takes ")


def test_status_counts_the_apps_that_no_live_worker_is_large_enough_for(shell: Shell) -> None:
    """Semantics N3: they wait under `never_fits=wait`."""
    assert shell.ok("status").startswith("health    all is well\n")
    shell.ok("settings", "set", "never_fits=wait")
    app = submit(shell, "--cores", "64", "--executor-cores", "64", "--", "true")
    answer = shell.run("status")
    assert answer.code == 3
    assert answer.out.startswith("health    1 app can never start\nwarning   they need a larger worker than is live: ")
    past = shell.ok("status", "--at", f"{shell.status()['head']}")
    assert "apps      1 app needs a larger worker than was live\n" in past
    shell.ok("kill", app)
    shell.ok("settings", "set", "never_fits=refuse")
    assert shell.ok("status").startswith("health    all is well\n")


def test_status_has_the_fields_that_programs_rely_on(shell: Shell) -> None:
    status = shell.status()
    assert list(status) == [
        *("cluster", "head", "health", "master", "standbys", "election", "workers", "tooLarge", "store")
    ]
    assert status["health"] == {"severity": "ok", "sentence": "all is well", "conditions": []}
    assert set(status["master"]) == {"id", "pid", "host"}
    assert [set(standby) for standby in status["standbys"]] == [{"id", "pid", "host"}]
    assert set(status["election"]) == {"master", "before", "at", "unservedMs"}
    assert status["election"]["master"] == status["master"]["id"]
    assert [worker["worker"] for worker in status["workers"]] == ["worker-1", "worker-2"]
    assert all(set(worker) == {"worker", "pid", "host", "status", "suspicion"} for worker in status["workers"])
    assert status["store"]["url"].startswith("unix://")
    assert Path(f"/proc/{status['store']['pid']}").exists()
    assert "master " in shell.ok("status")
    assert f"elected   {status['master']['id']} at " in shell.ok("status")


def test_apps_lists_those_that_have_not_ended_and_all_of_them_on_request(shell: Shell) -> None:
    app = submit(shell, "--cores", "4", "--", "sleep", "600")
    listed = {each["app"]: each for each in json.loads(shell.ok("apps", "--json"))}
    wanted = {"company": "acme", "user": "ann", "name": "sleep", "requestedCores": 4, "requestedMemory": 2048}
    assert listed[app].items() >= wanted.items()
    assert set(listed[app]) >= {"state", "grantedCores", "grantedMemory", "submittedAt"}
    assert app in shell.ok("apps")
    shell.ok("kill", app)
    assert app not in shell.ok("apps", "--json")
    assert {each["app"]: each["state"] for each in json.loads(shell.ok("apps", "--all", "--json"))}[app] == "killed"


def test_app_shows_its_executors_and_tasks(shell: Shell) -> None:
    app = submit(shell, "--tasks", "2", "--wait", "--", "true")
    shown = json.loads(shell.ok("app", app, "--json"))
    assert shown["state"] == "finished"
    assert [(task["state"], task["exitCode"]) for task in shown["taskStates"]] == [("succeeded", 0)] * 2
    wait_until(lambda: not shell.app(app)["executors"], "its executors to be gone")
    table = shell.ok("app", app)
    for line in (
        r"state +finished",
        r"cores per task +1",
        r"requested cores +4",
        r"requested memory +2G",
        r"granted memory +0G",
    ):
        assert re.search(rf"^{line}$", table, re.MULTILINE)


def test_shares_has_the_ledgers_at_all_three_levels(shell: Shell) -> None:
    shares = json.loads(shell.ok("shares", "--json"))
    balance = {"occupiedCores", "occupiedMemory", "grantedCores", "grantedMemory"}
    assert set(shares["waitingApps"]) == balance
    stands = {
        f"{what}{kind}"
        for what in ("demand", "entitled", "held", "lent", "leaving", "below")
        for kind in ("Cores", "Memory")
    }
    numbers = stands | {f"{what}{kind}" for what in ("quota", "cap") for kind in ("Cores", "Memory")}
    assert set(shares["companies"][0]) == balance | numbers | {"company", "share"}
    assert all(re.fullmatch(r"\d+/\d+", company["share"]) for company in shares["companies"])
    assert balance | stands | {"company", "user"} == set(shares["users"][0])
    heading, everybody, *_ = shell.ok("shares").splitlines()
    assert heading.split()[:3] == ["COMPANY", "USER", "OCCUPIED"]
    assert everybody.startswith("waitingApps ")


def _stored(value: Any) -> Any:
    """Shown resources as the log stores them: an array instead of an object by kind."""
    match value:
        case {"cores": cores, "memory_mb": memory_mb, **others}:
            return [cores, memory_mb, [list(amount) for amount in others.items()]]
        case list():
            return [_stored(each) for each in value]
    return value


def test_the_logs_chain_can_be_recomputed_from_its_json(shell: Shell) -> None:
    submit(shell, "--wait", "--", "true")
    digest, seq = GENESIS_DIGEST, 0
    turn: list[dict[str, Any]] = []
    for line in shell.ok("log", "--json").splitlines():
        turn.append(json.loads(line))
        seq += 1
        assert (turn[-1]["seq"], turn[-1]["turn"]) == (seq, turn[0]["seq"])
        if "digest" in turn[-1]:
            events = [[one["type"], *map(_stored, one["data"].values())] for one in turn]
            commands = [
                (at, one["events"], one["cause"], [*one["by"].values()], one["command"], one["commit"])
                for at, one in enumerate(turn)
                if "command" in one
            ]
            parts = [digest, turn[0]["seq"], seq, turn[0]["at"], _compact(events), _compact(commands)]
            texts = [str(part).encode() for part in parts]
            digest = blake2b(b"".join(b"%d:%b" % (len(text), text) for text in texts), digest_size=32).hexdigest()
            assert turn[-1]["digest"] == digest
            turn = []
    assert (seq > 10, turn) == (True, [])


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def test_a_part_of_the_log_can_be_read(shell: Shell) -> None:
    entries = [json.loads(line)["seq"] for line in shell.ok("log", "--from", "3", "--to", "5", "--json").splitlines()]
    assert entries == [3, 4, 5]
    head = shell.head()
    for verb in ("log", "replay", "audit", "fairness"):
        for option in ("--from", "--to"):
            answer = shell.run(verb, option, "1000000")
            assert (answer.code, answer.err.count("\n")) == (1, 1), (verb, option, answer)
            ends = int(re.search(r"ends at (?:position )?(\d+)", answer.err)[1])  # type: ignore[index]
            assert head <= ends < 1000000
            assert option == "--from" or f"the log ends at position {ends}, before 1000000" in answer.err
            answer = shell.run(verb, option, "2101-01-01")
            assert (answer.code, answer.err.count("\n")) == (1, 1), (verb, option, answer)
            assert "the log" in answer.err
    assert shell.ok("log", "--to", "1").split()[:1] == ["1"]


def test_log_follow_prints_events_as_they_come(shell: Shell, client: StoreClient) -> None:
    wait_for_rest(client)
    head = shell.head()
    following = shell.start("log", "--follow", "--from", str(head + 1), "--to", str(head + 2), "--json")
    shell.ok("company", "add", "late")
    shell.ok("company", "add", "later")
    printed, _ = following.communicate(timeout=HOPELESS_S)
    told = [json.loads(line)["data"].get("company") for line in printed.splitlines()]
    assert "late" in told  # a seal may stand beside it
    assert len(told) == 2
    assert following.returncode == 0


def test_companies_are_added_changed_listed_and_removed(shell: Shell) -> None:
    shell.ok("company", "add", "beta", "--part", "25%")
    assert {each["company"]: each["quota"] for each in json.loads(shell.ok("company", "list", "--json"))}[
        "beta"
    ] == "1/4"
    shell.ok("company", "set", "beta", "--cores", "8", "--memory", "4G")
    listed = {each["company"]: each for each in json.loads(shell.ok("company", "list", "--json"))}
    assert (listed["beta"]["quotaCores"], listed["beta"]["quotaMemory"], listed["beta"]["borrow"]) == (8, 4096, False)
    shell.ok("company", "set", "beta", "--borrow")
    said = shell.run("company", "set", "beta", "--end-idle")
    assert (said.code, said.err.startswith("--end-idle ends nothing yet: the setting idle_end_s is none")) == (0, True)
    shell.ok("company", "set", "beta", "--keep-idle")
    listed = {each["company"]: each for each in json.loads(shell.ok("company", "list", "--json"))}
    assert (listed["beta"]["quotaCores"], listed["beta"]["borrow"], listed["beta"]["usedCoreMs"]) == (8, True, 0)
    assert "beta" in shell.ok("company", "list")
    shell.ok("company", "remove", "beta")
    assert "beta" not in shell.ok("company", "list")


def test_a_departments_limits_are_set_shown_and_removed(shell: Shell) -> None:
    shell.ok("department", "add", "lab")
    shell.ok("company", "add", "optics")
    shell.ok("company", "move", "optics", "lab")

    def limits() -> list[tuple[object, ...]]:
        shown = json.loads(shell.ok("limit", "list", "--json"))
        return [(each["scope"], each["department"], each["limit"], each["value"], each["present"]) for each in shown]

    answer = shell.ok("limit", "set", "--department", "lab", "max_cores=8", "max_running_apps=1")
    assert answer == "max_cores set\nmax_running_apps set\n"
    of_lab = [("department", "lab", "max_cores", 8, 0), ("department", "lab", "max_running_apps", 1, 0)]
    assert limits() == of_lab
    again = shell.run("limit", "set", "--department", "lab", "max_cores=8")
    assert (again.code, again.out) == (0, "max_cores has this value already\n")
    assert re.search(r"^department +lab +max_cores +8 +0$", shell.ok("limit", "list").replace("-", ""), re.MULTILINE)
    submitting = ("submit", "--company", "optics", "--user", "ann", "--tasks", "9", "--cores-per-task", "1", "--cores")
    larger = shell.run(*submitting, "9", "--", "true")
    assert (larger.code, larger.out) == (1, "")
    assert larger.err.startswith("Error: limit max_cores of department lab is 8, and the app alone requests 12 cores")
    one, two = (shell.ok(*submitting, "4", "--", "sleep", "600").strip() for _ in range(2))
    wait_until(lambda: shell.app(one)["state"] == "running", "the first app to run")
    assert limits() == [("department", "lab", "max_cores", 8, 4), ("department", "lab", "max_running_apps", 1, 1)]
    assert "max_running_apps" in shell.ok("explain", two)
    assert "lab" in shell.ok("explain", two)
    removed = shell.ok("limit", "set", "--department", "lab", "max_cores=none", "max_running_apps=none")
    assert removed == "max_cores removed\nmax_running_apps removed\n"
    assert limits() == []
    wait_until(lambda: shell.app(two)["state"] == "running", "the second app to run without the limit")
    shell.ok("kill", one, two)
    for words, code, why in (
        (["--department", "nowhere", "max_cores=1"], 1, "there is no department 'nowhere'"),
        (["--department", "lab", "nothing=1"], 1, "no limit is named 'nothing'"),
        (["--department", "lab", "max_cores=much"], 2, "'much' is neither a whole number nor"),
        (["--department", "lab", "max_cores=-1"], 1, "limit max_cores must be"),
        (["--department", "lab", "--company", "optics", "max_cores=1"], 2, "leave one of them out"),
        (["--department", "", "max_cores=1"], 2, "name a department"),
    ):
        refused = shell.run("limit", "set", *words)
        assert (refused.code, refused.out) == (code, ""), refused
        assert why in refused.err
        assert "Traceback" not in refused.err
    assert limits() == []


def test_settings_are_shown_and_changed_without_a_restart(shell: Shell) -> None:
    assert json.loads(shell.ok("settings", "--json"))["default_cores"] == 8
    shell.ok("settings", "set", "default_cores=4", "max_executor_memory_mb=8G")
    changed = json.loads(shell.ok("settings", "show", "--json"))
    assert (changed["default_cores"], changed["max_executor_memory_mb"]) == (4, 8192)
    shell.ok("settings", "set", "default_cores=8", "max_executor_memory_mb=16G")
    assert "nothing to change" in shell.ok("settings", "set", "default_cores=8")


def test_a_worker_is_drained_and_taken_back(shell: Shell) -> None:
    def states() -> dict[str, str]:
        return {each["worker"]: each["status"] for each in json.loads(shell.ok("workers", "--json"))}

    shell.ok("drain", "worker-2")
    assert states() == {"worker-1": "alive", "worker-2": "draining"}
    app = submit(shell, "--cores", "16", "--tasks", "16", "--", "true")
    wait_until(lambda: '"finished"' in shell.ok("app", app, "--json"), "the app to finish on the other worker")
    assert "worker=worker-2" not in shell.ok("log", "--app", app)
    shell.ok("undrain", "worker-2")
    assert states() == {"worker-1": "alive", "worker-2": "alive"}
    assert "worker-2" in shell.ok("workers")


SUBMIT = ("submit", "--company", "acme", "--user", "ann")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("submit", "--company", "nope", "--user", "u", "--", "true"), "no company 'nope'"),
        ((*SUBMIT, "--cores", "0", "--", "true"), "cores must be between"),
        ((*SUBMIT, "--cores", "-1", "--", "true"), "cores must be between"),
        ((*SUBMIT, "--cores", "1000000000", "--", "true"), "cores must be between"),
        ((*SUBMIT, "--memory-per-task", "0", "--", "true"), "memory per task"),
        ((*SUBMIT, "--tasks", "0", "--", "true"), "tasks must be"),
        ((*SUBMIT, "--retries", "-1", "--", "true"), "retries must be"),
        ((*SUBMIT, "--time-limit", "0", "--", "true"), "time limit"),
        ((*SUBMIT, "--name", LONG, "--", "true"), "at most 128 characters"),
        ((*SUBMIT, "--name", "a\nb", "--", "true"), "control characters"),
        ((*SUBMIT, "--env", "A\x01=1", "--", "true"), "environment variable"),
        ((*SUBMIT, "--", ""), "needs a command"),
        (("submit", "--company", LONG, "--user", "u", "--", "true"), "no company"),
        (("submit", "--company", "acme", "--user", LONG, "--", "true"), "at most 128 characters"),
        (("submit", "--company", "acme", "--user", "\x1b[31m", "--", "true"), "control characters"),
        (("submit", "--company", "small", "--user", "u", "--cores", "12", "--", "true"), "12 cores, but the quota"),
        (("company", "add", "acme"), "registered already"),
        (("company", "add", "tiny", "--cores", "-1", "--memory", "4G"), "quota's cores must be between 0"),
        (("company", "add", "tiny", "--cores", "8"), "both --cores and --memory"),
        (("company", "add", LONG), "1 to 63 lower-case letters"),
        (("company", "add", "a\tb"), "`fairlog company add a-b`, for example"),
        (("company", "add", "A B"), "a company's name has 1 to 63 lower-case letters"),
        (("submit", "--company", "acme", "--user", "a/b", "--", "true"), "a user's name has neither blanks nor '/'"),
        (("company", "set", "nope", "--part", "1/2"), "no company 'nope'"),
        (("company", "set", "nope", "--cores", "1"), "no company 'nope'"),
        (("company", "remove", "nope"), "no company 'nope'"),
        (("settings", "set", "nope=1"), "no setting is named"),
        (("settings", "set", "min_executor_cores=3"), "even"),
        (("settings", "set", "max_executor_cores=12"), "power of two"),
        (("settings", "set", "min_executor_memory_mb=300"), "multiple of 256"),
        (("settings", "set", "placement=anywhere"), "one of"),
        (("kill", "nope"), "no app 'nope'"),
        (("app", "nope"), "no app 'nope'"),
        (("logs", "nope"), "no app 'nope'"),
        (("log", "--app", "nope"), "no app 'nope'"),
        *(((verb, name), f"no app {name!r} is known") for verb in OF_ONE_APP for name in ("", "x/events", "..")),
        (("drain", "worker-1", "nope"), "no worker 'nope'"),
        (("decommission", "worker-1", "nope"), "no worker 'nope'"),
        (("remove", "--force", "worker-1", "nope"), "no worker 'nope'"),
        (("drain", "nope"), "no worker 'nope'"),
        (("undrain", "nope"), "no worker 'nope'"),
        (("remove", "nope"), "no worker 'nope'"),
        (("apps", "--cluster", "a b"), "cluster's name"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else " ".join(value)[:60],
)
def test_what_the_rules_refuse_is_one_sentence_and_changes_nothing(
    shell: Shell, client: StoreClient, arguments: tuple[str, ...], why: str
) -> None:
    wait_for_rest(client)
    log = EventLog(client.store, client.keys)
    before = log.head()
    answer = shell.run(*arguments)
    assert (answer.code, answer.out) == (1, "")
    assert re.fullmatch(r"Error: [ -~…]+\n", answer.err)
    assert why in answer.err
    assert len(answer.err) < 700
    events = [fact.event for fact in log.facts(before)]
    refused = [event for event in events if not isinstance(event, LogSealed | RefusalsOmitted)]  # of earlier ones
    assert len(refused) <= 1  # none where no command was sent
    assert all(isinstance(event, CommandRefused) and why in event.message for event in refused)


def test_a_reader_that_goes_away_is_no_error(shell: Shell) -> None:
    answer = shell.sh("fairlog log | head -n 1; fairlog apps --all --json | head -n 1")
    assert answer.code == 0
    assert answer.err == ""


def test_the_verbs_work_together_in_a_shell(shell: Shell) -> None:
    script = 'app=$(fairlog submit --company acme --user ann --tasks 2 -- echo "a b") && fairlog logs --follow "$app"'
    assert shell.sh(script) == (0, "a b\na b\n", "")


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[EmbeddedStore]:
    """A durable store that no master serves."""
    with EmbeddedStore(tmp_path / "lone") as store:
        yield store


def test_without_a_master_what_can_be_read_is_read_from_the_log(lone: EmbeddedStore, tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home")
    status = shell.run("status", "--json", "--store", lone.url)
    assert status.code == 1
    said = status.json()
    health = said.pop("health")
    assert (health["severity"], health["sentence"]) == ("critical", "no master is active")
    assert said == {
        "cluster": "default",
        "head": 0,
        "master": None,
        "standbys": [],
        "election": None,
        "workers": [],
        "tooLarge": 0,
        "store": {"url": lone.url, "pid": None},
    }
    assert shell.ok("apps", "--json", "--store", lone.url) == "[]\n"
    assert json.loads(shell.ok("settings", "--json", "--store", lone.url))["default_cores"] == 8
    assert "none active" in shell.run("status", "--store", lone.url).out


def test_a_log_that_cannot_be_read_is_named_with_its_position(lone: EmbeddedStore, tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home")
    with Redis.from_url(lone.url) as store:
        store.xadd("fairlog:{default}:log", {"type": "Nonsense"}, id="1-0")
    for verb in ("apps", "log", "shares"):
        answer = shell.run(verb, "--store", lone.url)
        assert (answer.code, answer.out) == (1, "")
        assert answer.err.startswith("Error: log position 1: ")
    status = shell.run("status", "--json", "--store", lone.url).json()
    assert status["head"] == 1
    assert status["health"]["sentence"].startswith("the log cannot be read: log position 1: ")


@pytest.mark.parametrize("verb", [("apps",), (*SUBMIT, "--", "true"), ("master",), ("worker",)])
def test_a_store_whose_settings_break_the_promises_is_refused_with_the_setting(
    tmp_path: Path, verb: tuple[str, ...]
) -> None:
    socket = tmp_path / "s"
    settings = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen([str(bundled_server()), *settings], stdout=subprocess.DEVNULL) as server:
        try:
            wait_until(socket.exists, "the store")
            shell, place = Shell(tmp_path / "home"), ("--store", f"unix://{socket}")
            answer = shell.run(verb[0], *place, *verb[1:])
            status = shell.run("status", "--json", *place).json()
        finally:
            server.terminate()
    assert [each["condition"] for each in status["health"]["conditions"]][:1] == ["durability"], "which is told"
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        "Error: the store is configured with appendonly no, which can lose data; run `CONFIG SET "
        "appendonly yes` on it\n"
    )
