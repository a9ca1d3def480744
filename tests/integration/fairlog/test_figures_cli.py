"""The verbs that take figures, on a store that holds a log."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from fairlog.cli.main import cli
from fairlog.local.store import EmbeddedStore
from scheduler.model.commands import AddDepartment, MoveCompany, RegisterCompany
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from tests.property.given import Cluster
from tests.unit.recorded import exported, put
from tests.unit.witness.test_fairness import two_companies
from tests.unit.witness.test_whatif import job

if TYPE_CHECKING:
    from redis import Redis


def keep(connection: Redis, cluster: Cluster) -> None:
    """Write the cluster's log into the store, turn by turn."""
    put(EventLog(connection, Keys("default")), cluster.records)


@pytest.fixture(autouse=True)
def _kept(connection: Redis) -> None:
    keep(connection, two_companies())


def run(store: EmbeddedStore, *arguments: str) -> Result:
    return CliRunner(env={"HOME": "/nowhere"}).invoke(cli, ["--store", store.url, *arguments])


def test_fairness_prints_a_line_a_company_and_its_json_the_figures(store: EmbeddedStore) -> None:
    found = json.loads(run(store, "fairness", "--json").output)
    assert [row["company"] for row in found["rows"]] == ["acme", "tiny"]
    table = run(store, "fairness").output
    assert re.search(r"^tiny .* 88 core-s", table, re.MULTILINE)
    assert found["log"]["digest"] in table


def test_fairness_by_user_names_both(store: EmbeddedStore) -> None:
    assert re.search(r"^tiny +tim ", run(store, "fairness", "--by", "user").output, re.MULTILINE)


def test_a_span_can_be_given_by_times_and_by_positions(store: EmbeddedStore) -> None:
    options = ["--from", "1970-01-01T00:00:05", "--to", "1970-01-01T00:00:15Z"]
    found = json.loads(run(store, "fairness", *options, "--json").output)
    assert (found["fromAt"], found["toAt"]) == (5_000, 15_000)


@pytest.mark.parametrize(
    ("file", "code", "why"),
    [
        ("", 2, "the name of a file must not be empty"),
        ("/nowhere/p.html", 1, "folder /nowhere does not exist"),
    ],
)
def test_a_page_that_cannot_be_written_is_one_sentence(store: EmbeddedStore, file: str, code: int, why: str) -> None:
    answer = run(store, "fairness", "--html", file)
    assert answer.exit_code == code
    assert re.fullmatch(r"Error: .+", answer.output.splitlines()[-1])
    assert why in answer.output


def test_a_page_takes_the_place_of_no_special_file(store: EmbeddedStore, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    answer = run(store, "fairness", "--html", str(pipe))
    assert (answer.exit_code, answer.output) == (
        1,
        f"Error: {pipe} cannot be written: it is a folder or a device; name a file\n",
    )
    assert pipe.is_fifo()


def test_fairness_writes_a_page(store: EmbeddedStore, tmp_path: Path) -> None:
    answer = run(store, "fairness", "--html", str(tmp_path / "page.html"))
    assert answer.exit_code == 0
    page = (tmp_path / "page.html").read_text()
    held = re.search(r'<script type="application/json" id="figures">(.+?)</script>', page)
    assert held is not None
    found = json.loads(held[1])
    assert [row["company"] for row in found["report"]["rows"]] == ["acme", "tiny"]
    assert {wait["company"] for wait in found["waits"]} == {"acme", "tiny"}
    assert not re.search(r"https?://(?!www\.w3\.org/)", page)


def test_a_statement_in_csv_names_the_log_on_every_line(store: EmbeddedStore) -> None:
    answer = run(store, "statement", "--company", "tiny", "--month", "1970-01", "--csv")
    lines = list(csv.DictReader(io.StringIO(answer.output)))
    assert [(line["level"], line["user"], line["app"]) for line in lines] == [
        ("app", "tim", "small"),
        ("user", "tim", ""),
        ("company", "", ""),
    ]
    assert {line["log_digest"] for line in lines} == {two_companies().records[-1].digest}
    assert {line["requestedCoreMs"] for line in lines} == {str(8 * 31_000)}


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_a_statements_month_is_one_of_utc_wherever_it_is_asked_for(
    store: EmbeddedStore, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log begins with the month, so it has no entry in one that begins later, nor one in its last hours."""
    here = run(store, "statement", "--company", "acme", "--month", "1970-01", "--json").output
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", zone)
        time.tzset()
        assert run(store, "statement", "--company", "acme", "--month", "1970-01", "--json").output == here
    time.tzset()


def test_a_statement_as_a_table_and_as_json_say_the_same(store: EmbeddedStore) -> None:
    said = json.loads(run(store, "statement", "--company", "acme", "--month", "1970-01", "--json").output)
    table = run(store, "statement", "--company", "acme", "--month", "1970-01").output
    assert said["log"]["digest"] in table
    assert f"{said['total']['grantedCoreHours']:.3f}" in table


def test_a_statement_by_department_ends_with_the_whole(store: EmbeddedStore, connection: Redis) -> None:
    connection.flushall()
    cluster = Cluster()
    cluster.turn(AddDepartment(department="r"), AddDepartment(department="p", parent="r"))
    for company, department in (("acme", "p"), ("tiny", "r"), ("solo", "")):
        cluster.turn(RegisterCompany(company=company), MoveCompany(company=company, department=department))
        cluster.submit(f"{company}-1", 4, company=company)
    cluster.worker("w1", 16)
    cluster.turn(MoveCompany(company="solo", department="r"), after_s=10)
    cluster.turn(AddDepartment(department="empty"), after_s=10)
    keep(connection, cluster)
    table = run(store, "statement", "--by", "company", "--month", "1970-01").output
    first = [line.split()[:2] for line in table.splitlines()[4:]]
    named = ["r/p acme", "r/p all", "r solo", "r tiny", "r all", "- solo", "all all"]
    assert [" ".join(each) for each in first[1:]] == named
    lines = list(
        csv.DictReader(io.StringIO(run(store, "statement", "--by", "user", "--month", "1970-01", "--csv").output))
    )
    by_level = Counter[str]()
    for line in lines:
        by_level[line["level"]] += int(line["requestedCoreMs"]) if line["department"] in ("r", "") else 0
    assert by_level["cluster"] == by_level["department"] + sum(
        int(line["requestedCoreMs"]) for line in lines if line["level"] == "company" and not line["department"]
    )
    assert by_level["cluster"] > 0
    found = run(store, "fairness", "--by", "department").output
    rows = [line.split()[:2] for line in found.splitlines() if line[:2] in ("r ", "p ", "- ")]
    assert rows[: len(rows) // 2] == [["p", "-"], ["r", "-"], ["-", "solo"]]
    said = json.loads(
        run(store, "statement", "--department", "r", "--by", "department", "--month", "1970-01", "--json").output
    )
    assert [row["departments"] for row in said["rows"]] == [["p"]]
    assert run(store, "statement", "--department", "r", "--month", "1970-01").output.startswith(
        "department r, 1970-01\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["statement", "--company", "nobody", "--month", "1970-01"], 1, "no company 'nobody'"),
        (["statement", "--company", "tiny", "--month", "2031-05"], 1, "the log has no entry in 2031-05"),
        (["statement", "--company", "tiny", "--month", "2031-13"], 2, "write it like 2026-03"),
        (["statement", "--company", "tiny", "--month", "1970-01", "--csv", "--json"], 2, "cannot be combined"),
        (["statement", "--department", "nowhere", "--month", "1970-01"], 1, "there is no department 'nowhere'"),
        (["statement", "--department", "", "--month", "1970-01"], 2, "name a department"),
        (["statement", "--by", "user", "--company", "acme", "--month", "1970-01"], 2, "cannot be combined"),
        (["statement", "--by", "app", "--month", "1970-01"], 2, "'app' is not one of"),
        (["fairness", "--from", "soon"], 2, "neither a log position (1 or more) nor a time"),
        (["fairness", "--from", "999"], 1, "the log has no entry in that span"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_answered_is_one_sentence(
    store: EmbeddedStore, arguments: list[str], code: int, why: str
) -> None:
    answer = run(store, *arguments)
    assert answer.exit_code == code
    assert why in answer.output
    assert answer.output.startswith("Error: ")
    assert answer.output.count("\n") == 1


def test_whatif_under_the_same_rules_says_that_every_decision_is_the_same(store: EmbeddedStore) -> None:
    assert run(store, "whatif").output.endswith("Every decision is the same.\n")
    found = json.loads(run(store, "whatif", "--json").output)
    assert found["firstDifference"] is None
    assert found["log"] == found["other"]


def test_whatif_shows_both_worlds_side_by_side_and_where_they_part(store: EmbeddedStore) -> None:
    lines = run(store, "whatif", "--add-workers", "1x16x64G").output.splitlines()
    assert any(re.fullmatch(r"tiny +short, core-s +88\.0 +0\.0", line) for line in lines)
    assert "Decision 2 is the first that differs:" in lines


def test_whatif_takes_settings_and_quotas(store: EmbeddedStore, tmp_path: Path) -> None:
    options = ["--set", "max_executor_cores=8", "--placement", "pack", "--quota", "acme=8,1T", "--json"]
    found = json.loads(run(store, "whatif", *options).output)
    assert (found["log"]["refused"], found["other"]["refused"]) == (0, 0)
    file = tmp_path / "log.jsonl"
    file.write_text(exported(two_companies(borrowing=False).records))
    found = json.loads(run(store, "whatif", str(file), "--quota", "acme=8,1T", "--json").output)
    assert (found["log"]["refused"], found["other"]["refused"]) == (0, 0)
    found = json.loads(run(store, "whatif", str(file), "--quota", "acme=1,1G", "--json").output)
    assert (found["log"]["refused"], found["other"]["refused"]) == (0, 1)


def test_whatif_takes_a_trace_without_any_store(tmp_path: Path) -> None:
    trace = tmp_path / "some.swf"
    trace.write_text(f"; Nodes: 1 x 4 processors, 4 GiB each\n{job(1, 0, 100, 4, 1)}{job(2, 5, 50, 4, 2)}")
    answer = CliRunner(env={"HOME": "/nowhere"}).invoke(
        cli, ["whatif", "--trace", str(trace), "--add-workers", "1x4x4G", "--json"]
    )
    found = json.loads(answer.output)
    assert [found[side]["makespanMs"] for side in ("log", "other")] == [150_000, 100_000]


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["whatif", "--placement", "sideways"], 1, "placement cannot be 'sideways'"),
        (["whatif", "--quota", "nobody=8,8G"], 1, "no company 'nobody'"),
        (["whatif", "--quota", "acme=8"], 2, "write it like acme=512,1T"),
        (["whatif", "--add-workers", "4x16"], 2, "write it like 4x16x64G"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_rules_that_make_no_sense_are_one_sentence(
    store: EmbeddedStore, arguments: list[str], code: int, why: str
) -> None:
    answer = run(store, *arguments)
    assert (answer.exit_code, answer.output.count("\n")) == (code, 1)
    assert why in answer.output
