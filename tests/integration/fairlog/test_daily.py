"""What the verbs of every day cost: what they load, and how often they ask."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fairlog.api.client import ApiClient
from fairlog.api.questions import PAGE
from scheduler.model.commands import BATCH, SubmitApp
from scheduler.model.targets import place_of
from tests.integration.cli_rig import Shell
from tests.unit.fairlog.watch.test_alerts import answering
from tests.waiting import HOPELESS_S, wait_until

MANY = 2 * BATCH + 1
"""More apps than two batches, or four pages, hold."""
HEAVY = frozenset(
    [
        "asyncio",
        "cryptography",
        "fakeredis",
        "httpx",
        "importlib.metadata",
        "pydantic",
        "redis",
        "rich",
        "rq",
        "structlog",
        "uvicorn",
        "zipfile",
    ]
)
"""What takes long to load and nobody needs who asks an API server."""
RULES = re.compile(
    r"scheduler\.rules|recovery\.(archive|failover)|witness\.(?!(failing|hours)$)|workers\.(?!locks$)|"
    r"fairlog\.watch\.(?!elections$)"
)
"""What reads, decides and explains the log, which API servers have loaded."""
COMMANDS = frozenset(["scheduler.model.commands", "scheduler.model.events"])
"""What only verbs need that change something, or read the log itself."""
MOST_MODULES = 260
"""A verb's CPU time is nearly all the loading of its modules, so they have a budget; 0.25 s is what it may take."""
MOST_TO_READ = 240
"""Those of a verb that only reads."""
READING = (
    "apps",
    "apps --json",
    "apps --user bea --state pending",
    "app bea-0000",
    "explain bea-0000",
    "explain bea-0000 --json",
    "logs bea-0000",
    "workers",
    "shares",
    "company list",
    "limit list",
    "resource list",
    "settings",
    "edition",
    "account list",
    "token list",
    "fairness",
    "fairness --by user",
    "statement --company acme --month {month}",
    "efficiency",
    "whoami",
    "status",
    "status --json",
)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A running `up` with a company."""
    shell = Shell(tmp_path_factory.mktemp("daily"))
    shell.ok("up", "--detach", "--workers", "1", "--cores", "4", "--memory", "4G")
    try:
        shell.ok("company", "add", "acme")
        yield shell
    finally:
        shell.run("down")


@pytest.fixture(scope="module")
def api(shell: Shell) -> Iterator[ApiClient]:
    """The API of that `up`."""
    said = json.loads((shell.home / ".local/share/fairlog/up/up.json").read_text())
    with ApiClient(f"http+unix:{said['socket']}", token="") as client:
        yield client


def held(user: str, number: int) -> list[SubmitApp]:
    """So many submissions of the user that stay pending."""
    return [named(f"{user}-{each:04}", user) for each in range(number)]


def named(app: str, user: str, name: str = "true") -> SubmitApp:
    """A submission that stays pending."""
    return SubmitApp(app=app, company="acme", user=user, tasks=1, hold=True, command=("true",), name=name)


def loaded_by(shell: Shell, typed: str, **environment: str) -> set[str]:
    """The modules that the verb loads, which must succeed."""
    month = f"{datetime.now(UTC):%Y-%m}"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "fairlog", *typed.format(month=month).split()],
        env={**shell.env, **environment},
        cwd=shell.home,
        capture_output=True,
        text=True,
        check=True,
        timeout=HOPELESS_S,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize(
    "typed",
    [
        "submit --company acme --user bea --hold -- true",
        "kill --user bea --yes",
        "hold --user bea --yes",
        *READING,
    ],
)
def test_a_daily_verb_loads_only_what_asks_an_api_server(shell: Shell, api: ApiClient, typed: str) -> None:
    api.send_many(held("bea", 1))
    loaded = loaded_by(shell, typed)
    assert not loaded & HEAVY
    assert not [name for name in sorted(loaded) if RULES.match(name)]
    assert len(loaded) <= MOST_MODULES


@pytest.mark.parametrize("typed", READING)
def test_a_verb_that_reads_loads_neither_commands_nor_events(shell: Shell, api: ApiClient, typed: str) -> None:
    api.send_many(held("bea", 1))
    loaded = loaded_by(shell, typed)
    assert not loaded & COMMANDS
    assert len(loaded) <= MOST_TO_READ


@pytest.mark.parametrize("typed", ["log", "log --json --app bea-0000", "checkpoint"])
def test_the_log_from_an_api_server_is_verified_without_rules_and_store(
    shell: Shell, api: ApiClient, typed: str
) -> None:
    api.send_many(held("bea", 1))
    loaded = loaded_by(shell, typed, FAIRLOG_API=api._urls[0])
    assert not loaded & HEAVY
    assert not [name for name in sorted(loaded) if RULES.match(name)]


def test_what_the_server_worked_out_is_what_the_log_says(shell: Shell, api: ApiClient) -> None:
    api.send_many(held("fay", 1))
    month = f"{datetime.now(UTC):%Y-%m}"
    copy = shell.home / "log.jsonl"
    for typed in (["explain", "fay-0000"], ["fairness"], ["statement", "--company", "acme", "--month", month]):
        while True:  # a seal may be logged in between
            copy.write_text(shell.ok("log", "--json"))
            from_server, from_file = (json.loads(shell.ok(*typed, *more, "--json")) for more in ([], [str(copy)]))
            if from_server.get("log") == from_file.get("log"):
                break
        assert from_server.keys() == from_file.keys()
        assert from_server["verdict"] is None
        for name in ("company", "companies", "rows", "waitsFor", "app"):
            assert from_server.get(name) == from_file.get(name)


def test_thousands_of_apps_are_killed_in_batches_and_each_is_told_of(shell: Shell, api: ApiClient) -> None:
    apps = held("cid", MANY)
    api.send_many(apps)
    before = api.view("cluster")["head"]
    said = shell.ok("kill", "--user", "cid", "--yes").splitlines()
    assert said == [f"{each.app} killed" for each in apps]
    turns = {event["turn"] for event in api.log(before)}
    assert len(turns) < MANY / 100  # a turn for each batch, not one for each app


def test_a_refused_command_of_a_batch_is_told_of_and_the_others_are_carried_out(shell: Shell, api: ApiClient) -> None:
    api.send_many(held("dan", 2))
    shell.ok("kill", "dan-0001")
    answer = shell.run("kill", "dan-0000", "dan-0001")
    assert (answer.code, answer.out) == (1, "dan-0000 killed\n")
    assert answer.err == "Error: app 'dan-0001' has already ended: killed\n"
    assert shell.run("kill", "--executor", "dan-0000-0", "nothing").code == 1


def test_a_list_is_one_answer_and_its_columns_stand_below_each_other(shell: Shell, api: ApiClient) -> None:
    apps = held("eva", PAGE + 2)
    api.send_many([*apps, named("eva-x", "eva", "統計")])
    lines = shell.ok("apps", "--user", "eva", "-o", "app,name,cores").splitlines()
    assert lines[:2] == ["APP       NAME  CORES", "eva-0000  true  0 of 4"]
    assert lines[-1] == "eva-x     統計  0 of 4"  # whose two characters take four columns
    assert len(lines) == len(apps) + 2
    listed = json.loads(shell.ok("apps", "--user", "eva", "--json"))
    assert [each["app"] for each in listed] == [*(each.app for each in apps), "eva-x"]


def test_a_verb_goes_to_the_store_where_the_api_server_does_not_answer(shell: Shell, tmp_path: Path) -> None:
    record = shell.home / ".local/share/fairlog/up/up.json"
    kept = record.read_text()
    try:
        record.write_text(json.dumps({**json.loads(kept), "socket": str(tmp_path / "nobody")}))
        name = shell.submit("--hold", "--", "true")
        assert shell.app(name)["state"] == "pending"
    finally:
        record.write_text(kept)
    assert shell.app(name)["state"] == "pending"


def test_an_api_server_explains_an_app_as_the_log_does(shell: Shell, api: ApiClient, tmp_path: Path) -> None:
    """Also what people have said of its end, which a user's own `up` withholds from nobody."""
    api.send_many(held("gus", 2))
    shell.ok("kill", "gus-0000", "--reason", "no longer needed")
    number = str(api.view("app", app="gus-0000")["submittedSeq"])
    typed = [["explain", "gus-0000"], ["explain", number], ["explain", "gus-0000", "--json"], ["explain", "gus"]]
    told = [shell.run(*each) for each in typed]
    assert "no longer needed" in told[0].out
    record = shell.home / ".local/share/fairlog/up/up.json"
    kept = record.read_text()
    try:
        record.write_text(json.dumps({**json.loads(kept), "socket": str(tmp_path / "nobody")}))
        read = [shell.run(*each) for each in typed]
    finally:
        record.write_text(kept)
    assert [each.code for each in told] == [each.code for each in read] == [0, 0, 0, 1]
    assert (told[0].out, told[1].out, told[3].err) == (read[0].out, read[1].out, read[3].err)
    ours, theirs = (json.loads(each[2].out) for each in (told, read))
    growing = dict.fromkeys(("at", "head"), 0)
    assert {**ours, **growing} == {**theirs, **growing}
    assert ours["verdict"] is None


def test_an_app_that_the_state_has_forgotten_is_explained_from_the_log(shell: Shell, api: ApiClient) -> None:
    api.send_many(held("hal", 2))
    before = api.view("settings")["retained_apps"]
    shell.ok("settings", "set", "retained_apps=1")
    try:
        shell.ok("kill", "hal-0000")
        shell.ok("kill", "hal-0001")
        assert shell.run("app", "hal-0000").code == 1
        assert "killed" in shell.ok("explain", "hal-0000").splitlines()[0]
    finally:
        shell.ok("settings", "set", f"retained_apps={before}")


def test_shares_names_what_is_occupied_at_three_levels_as_its_json_does(shell: Shell, api: ApiClient) -> None:
    api.send_many(held("fay", 1))
    said = json.loads(shell.ok("shares", "--json"))
    lines = shell.ok("shares").splitlines()
    assert lines[0].split()[:4] == ["COMPANY", "USER", "OCCUPIED", "WEIGHT"]
    assert lines[1].split()[0] == "waitingApps"
    assert lines[2].split()[0] == "acme"
    assert "fay" in [line.split()[0] for line in lines[3:]]
    levels = [said["waitingApps"], *said["companies"], *said["users"]]
    assert all({"occupiedCores", "occupiedMemory"} <= level.keys() for level in levels)


def test_the_environment_names_the_company_of_a_statement(shell: Shell) -> None:
    refused = shell.run("statement", "--month", "2026-03")
    assert (refused.code, "--company" in refused.err) == (2, True)
    shell.env["FAIRLOG_COMPANY"] = "hooli"
    try:
        named = shell.run("statement", "--month", "2026-03")
    finally:
        del shell.env["FAIRLOG_COMPANY"]
    assert (named.code, named.err) == (1, "Error: the log has no entry in 2026-03\n")


_BURN = "import time\nblock = bytearray(60 << 20)\nwhile time.process_time() < 0.5: pass"


def test_what_an_app_used_is_in_the_log_and_a_hint_to_who_submits_its_like(shell: Shell) -> None:
    job = "--company", "acme", "--user", "una", "--name", "burn", "--cores", "1", "--memory-per-task", "2G"
    first = shell.run("submit", *job, "--wait", "--", sys.executable, "-c", _BURN)
    assert "note: the last" not in first.err
    app = first.out.split()[0]
    (row,) = wait_until(
        lambda: json.loads(shell.ok("efficiency", "--by", "app", "--name", "burn", "--json")), "the executor's end"
    )
    assert (row["app"], row["user"], row["peakOfMemory"]) == (app, "una", 2048)
    assert row["cpuMs"] >= 500
    assert 60 <= row["peakMemory"] < 1024
    assert row["coreMs"] == row["toldCoreMs"] > 0
    assert f"{row['peakMemory']} MiB" in shell.ok("efficiency", "--user", "una")
    assert re.search(
        r"^used +0\.\d{3} of 0\.\d{3} core-h, .* as their workers say \(O5\)$", shell.ok("explain", app), re.MULTILINE
    )
    month = f"{datetime.now(UTC):%Y-%m}"
    assert "\nused      " in shell.ok("statement", "--company", "acme", "--month", month)
    cells = shell.ok("apps", "--all", "--user", "una", "-o", "app,cpu-used,memory-used", "--no-header").split()
    assert cells[0] == app
    assert all(re.fullmatch(r"\d+%", cell) for cell in cells[1:])
    hinted = shell.run("submit", *job, "--", "true")
    assert f"note: the last run of this name used at most {row['peakMemory']} MiB of 2 GiB; `fairlog" in hinted.err
    assert "note: the last" not in shell.run("submit", *job[:4], "--name", "other", "--", "true").err
    assert "note: the last" not in shell.run("submit", *job, "--parsable", "--", "true").err


def test_efficiency_refuses_a_span_that_ends_before_it_begins(shell: Shell) -> None:
    refused = shell.run("efficiency", "--since", "2026-03-02", "--until", "2026-03-01")
    assert refused.code == 2
    assert "--until comes before --since" in refused.err


def test_the_end_of_an_app_is_told_once_to_whom_its_user_names_where_that_is_allowed(
    shell: Shell, tmp_path: Path
) -> None:
    who = "--company", "acme", "--user", "una"
    tell = "alerts", "--apps", "--once", "--state", str(tmp_path / "book.json")
    with answering(200) as (url, told):
        refused = shell.run("submit", *who, "--notify", url, "--", "true")
        assert (refused.code, refused.out) == (1, "")
        assert "an operator allows places in the setting notify_targets, which are now none" in refused.err
        shell.ok("settings", "set", f"notify_targets={place_of(url)}")
        shell.ok(*tell)
        app = shell.ok("submit", *who, "--name", "told", "--wait", "--notify", url, "--", "true").split()[0]
        assert json.loads(shell.ok("app", app, "--json"))["notify"] == url
        wait_until(lambda: told if shell.run(*tell).code == 0 else None, "the end to be told")
        shell.ok(*tell)
    ((_, message),) = told
    assert (message["app"], message["name"], message["state"]) == (app, "told", "finished")
    assert message["cpuMs"] >= 0
    assert url not in shell.ok("log", "--public", "--json")
    assert url in shell.ok("log", "--json")
    for wrong, why in (("ftp://h/x", "is a URL like https://HOST/PATH"), ("", "is a URL like https://HOST/PATH")):
        bad = shell.run("submit", *who, "--notify", wrong, "--", "true")
        assert (bad.code, why in bad.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--smtp", "smtp://h"), "--smtp needs --mail-from"),
        (("--mail-from", "a@b"), "--mail-from needs --smtp"),
        (("--smtp", "http://h", "--mail-from", "a@b"), "a server for mail is a URL like smtps://"),
        (("--smtp", "smtp://h", "--mail-from", "ab"), "an address of mail is written like"),
    ],
)
def test_alerts_refuse_what_cannot_send_mail(shell: Shell, options: tuple[str, ...], why: str) -> None:
    refused = shell.run("alerts", "--once", "--apps", *options)
    assert (refused.code, why in refused.err) == (2, True)
