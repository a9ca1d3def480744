"""What the verbs say of a log that lies in a store: audit, explain, and the past."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from fairlog.cli.main import cli
from fairlog.local.store import EmbeddedStore
from scheduler.model.commands import EndApp
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import look
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from tests.property.given import Cluster
from tests.unit.recorded import facts, put
from tests.unit.recorded import said as stated

if TYPE_CHECKING:
    from redis import Redis


def history() -> Cluster:
    """An app that runs and ends, and one that waits for it."""
    cluster = Cluster()
    cluster.company("acme")
    cluster.worker("w1", 16)
    cluster.submit("a1", 16)
    cluster.submit("a2", 16, user="bob")
    cluster.ended("a1.0", done=True)
    cluster.turn(EndApp(app="a1", reason="finished"))
    return cluster


CLUSTER = history()
LOG = facts(CLUSTER)


@pytest.fixture
def written(store: EmbeddedStore, connection: Redis) -> EmbeddedStore:
    """A store with the log of that cluster."""
    put(EventLog(connection, Keys("default")), CLUSTER.records)
    return store


def run(store: EmbeddedStore, *arguments: object) -> Result:
    return CliRunner(env={"FAIRLOG_STORE": store.url}).invoke(cli, [*map(str, arguments)])


def said(store: EmbeddedStore, *arguments: object) -> Any:
    answer = run(store, *arguments, "--json")
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.output)


def at(seq: int) -> ClusterState:
    """The state at that position."""
    state = ClusterState()
    for logged in CLUSTER.log[:seq]:
        state.apply(logged.event, at=logged.at, cause=logged.cause, private=logged.private)
    return state


def test_the_log_of_a_store_is_audited(written: EmbeddedStore) -> None:
    assert said(written, "audit") == []


def test_what_an_export_says_is_audited_like_the_log_itself(written: EmbeddedStore) -> None:
    exported = run(written, "log", "--json").output
    answer = CliRunner(env={"FAIRLOG_STORE": None, "HOME": "/nowhere"}).invoke(cli, ["audit", "-"], input=exported)
    assert answer.exit_code == 0
    assert answer.output.startswith("This log follows its rules: ")
    assert answer.output.endswith(f"up to {len(LOG)}:{LOG[-1].digest}.\n")


@pytest.mark.parametrize("seq", [3, len(LOG)])
def test_an_entry_that_was_taken_out_of_the_store_is_missed(
    written: EmbeddedStore, connection: Redis, seq: int
) -> None:
    turn = LOG[seq - 1].turn
    connection.xdel(Keys("default").log, f"{max(line.seq for line in LOG if line.turn == turn)}-0")
    answer = run(written, "audit", "--json")
    assert answer.exit_code == 1
    assert [(each["seq"], each["rule"]) for each in json.loads(answer.output)] == [(turn, "chain")]


@pytest.mark.parametrize("view", ["apps", "workers", "shares"])
def test_a_list_shows_the_past_as_it_was(written: EmbeddedStore, view: str) -> None:
    for seq in (1, 2, 4, len(LOG)):
        shown = said(written, view, "--at", seq)
        assert (known(shown) if view == "apps" else shown) == look(at(seq), view, {})


def test_a_time_shows_what_was_so_at_that_time(written: EmbeddedStore) -> None:
    for record in LOG[2:]:
        last = max(other.seq for other in LOG if other.at == record.at)
        moment = datetime.fromtimestamp(record.at / 1000, UTC).isoformat()
        assert known(said(written, "apps", "--at", moment)) == look(at(last), "apps", {})


def known(shown: Any) -> Any:
    """A list of apps without what the verb adds to the view: why they wait, and for how long."""
    added = {"reason", "rule", "waitedMs"}
    return [{name: value for name, value in each.items() if name not in added} for each in shown]


def test_an_app_is_shown_as_it_was_without_its_tasks(written: EmbeddedStore) -> None:
    admitted = next(record.seq for record in LOG if record.type == "AppAdmitted" and stated(record)["app"] == "a2")
    assert said(written, "app", "a2", "--at", admitted - 1)["state"] == "pending"
    then = said(written, "app", "a2", "--at", admitted)
    assert (then["state"], then["taskStates"]) == ("waiting", [])
    assert "EXECUTOR" not in run(written, "app", "a2", "--at", admitted).output


def test_the_status_of_the_past_names_the_workers_of_then(written: EmbeddedStore) -> None:
    assert [said(written, "status", "--at", seq)["workers"] for seq in (2, 3)] == [
        [],
        [{"worker": "w1", "pid": None, "host": "w1.example", "status": "alive", "suspicion": None}],
    ]
    assert "none elected yet" in run(written, "status", "--at", 1).output


def test_explain_tells_what_an_app_waits_for_and_what_it_waited_for_then(written: EmbeddedStore) -> None:
    registered = next(record.seq for record in LOG if record.type == "AppRegistered" and stated(record)["app"] == "a2")
    then = said(written, "explain", "a2", "--at", registered)
    assert (then["head"], then["waitsFor"]["rule"]) == (registered, "H4")
    now = said(written, "explain", "a2")
    assert (now["state"], now["waitsFor"], now["waited"]["ms"]) == ("waiting", None, 1000)
    told = run(written, "explain", "a2").output
    assert "waited    1000 ms in all" in told
    assert "executor  a2.0" in told


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["apps", "--at", 999], f"the log ends at position {len(LOG)}, before 999"),
        (["apps", "--at", "2999-01-01"], "; 2999-01-01 00:00:00.000Z is in the future"),
        (["explain", "a2", "--at", "2999-01-01"], f"the log ends at position {len(LOG)}, 1970-01-01 00:00:"),
        (["apps", "--at", "1960-01-01"], "the log begins after 1960-01-01 00:00:00.000Z"),
        (["apps", "--at", "0"], "'0' is neither a log position (1 or more) nor a time such as 2026-03-01T12:00:00"),
        (["status", "--at", 1, "--ready"], "--ready checks the present; leave out --at"),
        (["apps", "--at", "soon"], "'soon' is neither a log position (1 or more) nor a time"),
        (["explain", "nobody"], "no app 'nobody'"),
    ],
)
def test_a_past_that_never_was_is_refused(written: EmbeddedStore, arguments: list[object], sentence: str) -> None:
    answer = run(written, *arguments)
    assert answer.exit_code
    assert sentence in answer.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "a2", "--at", str(len(LOG))),
        ("fairness",),
        ("statement", "--company", "acme", "--month", "1970-01"),
        ("whatif", "--set", "placement=pack"),
        ("audit", "--from", "1970-01-01 00:00:03"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_export_says_what_the_store_says_and_needs_none(
    written: EmbeddedStore, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(run(written, "log", "--json").output)
    answer = CliRunner(env={"FAIRLOG_STORE": None, "HOME": "/nowhere"}).invoke(cli, [*arguments, str(file), "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.output) == said(written, *arguments)


def test_a_damaged_export_is_refused_with_the_file_and_the_position(written: EmbeddedStore, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(run(written, "log", "--json").output.replace('"a2"', '"a3"', 1))
    answer = CliRunner(env={"FAIRLOG_STORE": None, "HOME": "/nowhere"}).invoke(cli, ["fairness", str(file)])
    altered = next(record.turn for record in LOG if stated(record).get("app") == "a2")
    assert answer.exit_code == 1
    assert f"{file}: log position {altered}: " in answer.output


def test_the_log_is_printed_between_times(written: EmbeddedStore) -> None:
    begins, ends = LOG[3].at, LOG[-4].at
    times = [datetime.fromtimestamp(at / 1000, UTC).isoformat() for at in (begins, ends)]
    printed = run(written, "log", "--from", times[0], "--to", times[1], "--json").output.splitlines()
    assert [json.loads(line)["seq"] for line in printed] == [r.seq for r in LOG if begins <= r.at <= ends]


def test_an_audit_between_times_names_only_what_lies_there(written: EmbeddedStore, tmp_path: Path) -> None:
    """The chain is broken at an entry and stays so; its position tells which spans have to say so."""
    file = tmp_path / "log.jsonl"
    file.write_text(run(written, "log", "--json").output.replace('"a2"', '"a3"', 1))
    altered = next(record for record in LOG if stated(record).get("app") == "a2")
    before, then = (datetime.fromtimestamp(at / 1000, UTC).isoformat() for at in (altered.at - 1, altered.at))
    runner = CliRunner(env={"FAIRLOG_STORE": None, "HOME": "/nowhere"})
    codes = [runner.invoke(cli, ["audit", str(file), *span]).exit_code for span in (("--to", before), ("--to", then))]
    assert codes == [0, 1]
    late = runner.invoke(cli, ["audit", str(file), "--from", "2031-01-01"])
    assert (late.exit_code, "before --from 2031-01-01" in late.output) == (1, True)
