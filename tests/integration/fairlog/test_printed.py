"""No verb prints what would control a terminal, whatever tenants, workers and logs from elsewhere say."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from fairlog.cli.main import VERBS, cli
from scheduler.model.commands import (
    AddAccount,
    EndedExecutor,
    IssueToken,
    KillApp,
    RegisterCompany,
    RegisterWorker,
    SetLimit,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.events import AppRemoved
from scheduler.model.sender import By
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from tests.property.given import Cluster
from tests.unit.recorded import put

if TYPE_CHECKING:
    import fakeredis

HOSTILE = "\x1b]52;c;eA==\x07\x1b[31m\u202eevil\x9b2J\u2066\n\x00fake  line\x7f\r\x08=1+1"
TYPED = HOSTILE.replace("\x00", "")
"""As an argument: a name from elsewhere that somebody has copied."""
OUTPUT = b"=\x1b[31mred\x1b]52;c;eA==\x07\x1b[2J\xe2\x80\xae\x07\x08 \xff end\r\n"
KEYS = Keys("default")
SHOWN = {
    "company",
    "limit",
    "apps",
    "app",
    "workers",
    "shares",
    "top",
    "log",
    "explain",
    "replay",
    "fairness",
    "statement",
    "efficiency",
    "account",
    "token",
}
"""Verbs whose answers name companies, users or hosts."""


def hostile_cluster() -> Cluster:
    """A cluster whose names, command lines and details are as bad as they can be, as an edited log might tell."""
    cluster = Cluster(each_refusal=False)
    cluster.turn(RegisterCompany(company=HOSTILE), RegisterCompany(company="acme"))
    cluster.turn(RegisterWorker(worker="w", node=HOSTILE, host=HOSTILE, rack=HOSTILE, cores=16, memory_mb=65536))
    cluster.turn(SetLimit(scope="user", name="max_cores", value=500, company=HOSTILE, user=HOSTILE))
    for app in ("a", "b", "c"):
        cluster.turn(
            SubmitApp(
                app=app,
                company=HOSTILE,
                user=f"=1+1{HOSTILE}",
                cores=8,
                name=HOSTILE,
                command=("sh", HOSTILE),
                env=(HOSTILE,),
                cwd=HOSTILE,
            )
        )
    (first, *_) = cluster.state.executors
    app = cluster.state.executors[first].app
    cluster.turn(StartedExecutor(executor=first))
    cluster.turn(EndedExecutor(executor=first, reason="failed", exit_code=1, unstartable=HOSTILE))
    assert app in cluster.state.apps
    by = By(f"local/{HOSTILE}", "", "operator", HOSTILE)
    cluster.turn(AddAccount(account="op/root", display=HOSTILE), AddAccount(account="auditor/x", display="=1+1"), by=by)
    cluster.turn(AddAccount(account="worker/w", host=HOSTILE, display=HOSTILE), by=by)
    cluster.turn(
        IssueToken(token=HOSTILE, account="op/root", hash="ab" * 32), KillApp(app="b", reason=f"why {HOSTILE}"), by=by
    )
    return cluster


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, fake: fakeredis.FakeRedis, tmp_path: Path) -> fakeredis.FakeRedis:
    """A store with that cluster's log, no master, and outputs of tasks."""
    monkeypatch.chdir(tmp_path)
    for module in ("command.decide", "command.limiting", "command.demand", "command.membership", "checks.validate"):
        monkeypatch.setattr(f"scheduler.rules.{module}.check_name", lambda *_: None)
    monkeypatch.setattr("scheduler.rules.command.membership._TOKEN", re.compile(".*", re.DOTALL))
    killed = [AppRemoved(app="b", reason="killed")]
    monkeypatch.setattr("scheduler.rules.command.decide._kill", lambda *_: killed)
    cluster = hostile_cluster()
    put(EventLog(fake, KEYS), cluster.records)
    for app in cluster.state.apps:
        task = {"state": "failed", "message": HOSTILE, "attempts": 1, "exit_code": 1, "executor": HOSTILE}
        fake.hset(KEYS.tasks(app), mapping={"tasks": 1, "filled": 1, "0": json.dumps(task)})
        fake.hset(KEYS.output(app), "0", OUTPUT)
    fake.hset(KEYS.agents, "w", json.dumps({"pid": 1, "host": HOSTILE, "started_s": 1}))
    monkeypatch.setattr("fairlog.cli.road.connect", lambda _: fake)
    monkeypatch.setattr("fairlog.cli.road.check_store", lambda *_, **__: None)
    monkeypatch.setattr(
        "scheduler.service.client.CommandClient._ask", lambda *_: {"error": "InvalidCommand", "message": HOSTILE}
    )
    return fake


def controls(text: str) -> set[str]:
    """What of the text a terminal would obey."""
    bidirectional = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return {
        one
        for one in text
        if one != "\n" and (unicodedata.category(one) == "Cc" or unicodedata.bidirectional(one) in bidirectional)
    } - {"\t"}


def ask(*arguments: str) -> Result:
    asked = ["--store", "redis://here", *arguments]
    answer = CliRunner(env={"HOME": "/nowhere", "FAIRLOG_STORE": None}).invoke(cli, asked)
    assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.exc_info
    return answer


def run(*arguments: str) -> str:
    answer = ask(*arguments)
    return answer.output + answer.stderr


WHY = ["--reason", "a test"]
CALLS: dict[str, list[list[str]]] = {
    "status": [[], ["--json"]],
    "alerts": [["--nonsense", TYPED], ["--webhook", TYPED], ["--once", "--state", f"{TYPED}/{TYPED}"]],
    "company": [["list"], ["list", "--json"], ["add", TYPED], ["remove", TYPED], ["move", "acme", TYPED]],
    "department": [
        ["list"],
        ["list", "--json"],
        ["add", TYPED],
        ["add", "labs", "--in", TYPED],
        ["set", TYPED, "--lend-limit", TYPED],
        ["remove", TYPED],
    ],
    "limit": [["list"], ["list", "--json"]],
    "resource": [["list"], ["add", "gpu"]],
    "edition": [[], ["--json"], [TYPED]],
    "settings": [[], ["--json"], ["--set", f"default_cores={TYPED}"]],
    "submit": [["--company", TYPED, "--user", TYPED, "--", "true"]],
    "run": [["--company", TYPED, "--user", TYPED, "--", "true"]],
    "mpirun": [["--company", TYPED, "--user", TYPED, "--executors", "2", "--", TYPED]],
    "torchrun": [["--company", TYPED, "--user", TYPED, "--executors", "2", "--", TYPED]],
    "resubmit": [[TYPED]],
    "finish": [["a"], [TYPED]],
    "kill": [["a"], [TYPED]],
    "scale": [["a", "--executors", "1"]],
    "extend": [["a", "--by", "1h"]],
    "reprioritize": [["a", "3"]],
    "signal": [["a", "USR1"], [TYPED, "USR1"], ["a", TYPED]],
    "slurm": [["path"]],
    "hold": [["a"]],
    "release": [["a"]],
    "requeue": [["a"]],
    "apps": [[], ["--all"], ["--all", "--json"]],
    "app": [["a"], ["b"], ["c"], ["a", "--json"], [TYPED]],
    "workers": [[], ["--json"]],
    "drain": [["w"]],
    "decommission": [["w"]],
    "undrain": [["w"]],
    "remove": [["w"]],
    "window": [
        ["list"],
        ["list", "--json"],
        ["add", TYPED, "--workers", TYPED, "--from", "+1h", "--to", "+2h"],
        ["add", "--workers", "all", "--from", TYPED, "--to", "+2h"],
        ["remove", TYPED],
    ],
    "shares": [[], ["--json"]],
    "exec": [["--nonsense", TYPED], [TYPED, "--", "true"]],
    "logs": [["a", *WHY], ["b", *WHY], ["c", "--task", "0", *WHY]],
    "log": [[], ["--json"]],
    "backup": [[TYPED]],
    "restore": [[TYPED]],
    "recover": [["--accept", "3"]],
    "archive": [[]],
    "import": [[TYPED]],
    "explain": [["a"], ["b"], ["c"], ["a", "--json"], [TYPED]],
    "audit": [[], ["--all"], ["--json"]],
    "checkpoint": [[]],
    "replay": [[], ["--json"]],
    "fairness": [[], ["--json"], ["--by", "user"]],
    "statement": [
        ["--company", TYPED, "--month", "1970-01"],
        ["--company", TYPED, "--month", "1970-01", "--csv"],
        ["--by", "user", "--month", "1970-01"],
    ],
    "efficiency": [[], ["--json"], ["--by", "app"], ["--name", TYPED], ["--by", "company", "--user", TYPED]],
    "whatif": [["--set", "placement=pack"], ["--set", "placement=pack", "--json"]],
    "simulate": [[TYPED]],
    "help": [[], ["company", "add"], [TYPED], ["apps", TYPED]],
    "up": [["--nonsense", TYPED]],
    "down": [[]],
    **{verb: [["--nonsense", TYPED]] for verb in ("api", "login", "logout", "whoami", "store", "page")},
    **{verb: [["--nonsense", TYPED]] for verb in ("pool", "rq", "spark", "spark-submit")},
    "top": [["--once"]],
    "account": [["list"], ["list", "--json"], ["add", TYPED], ["remove", TYPED], ["rename", "op/root", TYPED]],
    "token": [["list"], ["list", "--json"], ["new", TYPED], ["revoke", TYPED]],
    "keys": [["new", TYPED], ["rotate", TYPED], ["share", TYPED, TYPED]],
    "reads": [[], ["--json"]],
    "demo": [["--nonsense", TYPED]],
    "master": [["--nonsense", TYPED]],
    "worker": [["--nonsense", TYPED]],
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_prints_what_a_terminal_would_obey(verb: str, store: fakeredis.FakeRedis) -> None:
    assert store.exists(KEYS.log)
    told = ""
    for arguments in CALLS[verb]:
        shown = run(verb, *arguments)
        assert not controls(shown), (arguments, shown)
        told += shown
    assert verb not in SHOWN or "evil" in told


def test_output_is_raw_only_where_that_is_asked_for(store: fakeredis.FakeRedis) -> None:
    assert store.exists(KEYS.log)
    assert run("logs", "a", *WHY) == "=red \ufffd end\n"
    assert ask("logs", "a", "--raw", *WHY).stdout_bytes == OUTPUT


def test_no_cell_of_a_statement_is_a_formula(store: fakeredis.FakeRedis) -> None:
    assert store.exists(KEYS.log)
    said = ask("statement", "--company", HOSTILE, "--month", "1970-01", "--csv").stdout
    rows = list(csv.reader(io.StringIO(said)))
    assert any("evil" in cell for row in rows for cell in row)
    assert any(cell.startswith("'=1+1") for row in rows for cell in row)
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@"))]


def test_a_page_of_charts_shows_names_as_text(store: fakeredis.FakeRedis, tmp_path: Path) -> None:
    assert store.exists(KEYS.log)
    page = tmp_path / "page.html"
    run("fairness", "--html", str(page))
    table = page.read_text().partition("<table>")[2].partition("</table>")[0]
    assert "evil" in table
    assert not controls(table)
