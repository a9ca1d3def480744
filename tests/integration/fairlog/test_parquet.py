"""The log as Parquet: what is read back is what the log says, each fact in a column of its type."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from pyarrow import parquet

from fairlog.cli.main import cli
from fairlog.cli.parquet import TEXT, TRUTH, WHOLE
from fairlog.local.store import EmbeddedStore
from scheduler.model.commands import RegisterCompany, RegisterKind
from scheduler.model.events import EVENT_TYPES, AppRegistered
from scheduler.model.resources import Resources
from scheduler.store.codec import EventLine, Record, lines_of
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from tests.property.given import Cluster, recorded, submission, worker
from tests.property.histories import played, seeded
from tests.unit.recorded import put

if TYPE_CHECKING:
    from redis import Redis

PARTS = {
    **dict.fromkeys(("requested_cores", "requested_memory_mb"), "requested"),
    **dict.fromkeys(("driver_cores", "driver_memory_mb", "has_driver"), "driver"),
    **dict.fromkeys(("sizing", "executor_cores", "executor_memory_mb", "memory_per_task_mb"), "sizing"),
    "unlimited": "cores",
}
"""Columns that hold a part of a field -> the field."""


@cache
def history() -> list[Record]:
    """The log of a cluster with many apps."""
    return recorded(played(seeded(7, 60)))


@cache
def told() -> list[EventLine]:
    """Its lines."""
    return [line for record in history() for line in lines_of(record)]


@pytest.fixture
def written(store: EmbeddedStore, connection: Redis) -> EmbeddedStore:
    """A store with the log of a random history."""
    put(EventLog(connection, Keys("default")), history())
    return store


def run(store: EmbeddedStore, *arguments: object) -> Result:
    return CliRunner(env={"HOME": "/nowhere"}).invoke(cli, ["--store", store.url, "log", *map(str, arguments)])


def rows(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
    return found


def test_every_entry_is_a_row_with_what_its_event_says(written: EmbeddedStore, tmp_path: Path) -> None:
    file = tmp_path / "log.parquet"
    answer = run(written, "--parquet", file)
    assert (answer.exit_code, answer.output) == (0, f"{len(told())} log entries written to {file}\n")
    found = rows(file)
    assert [
        (
            *(row["seq"], row["type"], round(row["at"].timestamp() * 1000), row["turn"]),
            *(row["cause"] or "", json.loads(row["data"]), row["digest"]),
        )
        for row in found
    ] == [(line.seq, line.type, line.at, line.turn, line.cause, line.data, line.digest) for line in told()]
    for row in found:
        said = _columns(row["type"], json.loads(row["data"]))
        for name in (*TEXT, *WHOLE, *TRUTH):
            if name != "app" or "app" in said:
                assert row[name] == said.get(name)
    assert {row["app"] for row in found if row["type"] == "ExecutorChanged"} <= {
        row["app"] for row in found if row["company"]
    }
    shares = [row["share"] for row in found if row["type"] == "AppAdmitted"]
    assert any(shares)
    assert all(isinstance(share, float) for share in shares)
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]


def _columns(kind: str, said: dict[str, Any]) -> dict[str, Any]:
    """The columns of an event that states these values."""
    if kind == "AppRegistered":
        driver = said.pop("driver")
        said |= {"has_driver": driver is not None, "unlimited": said["cores"] is None}
        said |= {f"driver_{name}": amount for name, amount in (driver or {}).items()}
    said |= {f"requested_{name}": amount for name, amount in (said.get("requested") or {}).items()}
    for vector in ("offer", "amounts", "resources"):
        said |= said.get(vector) or {}
    if "sizing" in said:
        said["sizing"], size, *_ = said["sizing"]
        each = size if said["sizing"] == "fixed" else (None, size if said["sizing"] == "one-per-worker" else None)
        said["executor_cores"], said["executor_memory_mb"], *_ = each
        said["memory_per_task_mb"] = size if said["sizing"] == "computed" else None
    return said


def test_amounts_of_further_kinds_are_maps(store: EmbeddedStore, connection: Redis, tmp_path: Path) -> None:
    """Semantics R4."""
    cluster = Cluster()
    cluster.turn(RegisterKind(kind="gpu"), RegisterCompany(company="acme"))
    cluster.turn(replace(worker("w1", 16), resources={"gpu": ("0", "1")}))
    cluster.turn(replace(submission("a1", 4), task_resources={"gpu": "1/4"}))
    put(EventLog(connection, Keys("default")), recorded(cluster))
    run(store, "--parquet", tmp_path / "p")
    found = {row["type"]: (row["resources"], row["requested_resources"]) for row in rows(tmp_path / "p")}
    assert found == dict.fromkeys(found, (None, None)) | {
        "WorkerRegistered": ([("gpu", 2)], None),
        "AppRegistered": (None, [("gpu", 1)]),
        "ExecutorAllocated": ([("gpu", 1)], None),
    }


def test_times_are_times_in_utc(written: EmbeddedStore, tmp_path: Path) -> None:
    run(written, "--parquet", tmp_path / "p", "--to", 1)
    assert rows(tmp_path / "p")[0]["at"] == datetime.fromtimestamp(told()[0].at / 1000, UTC)
    assert str(parquet.read_schema(tmp_path / "p").field("at").type) == "timestamp[ms, tz=UTC]"


def test_a_span_and_an_app_are_chosen_as_when_the_log_is_printed(written: EmbeddedStore, tmp_path: Path) -> None:
    app = next(record.data["app"] for record in told() if record.type == "AppAdmitted")
    options = ("--from", 5, "--to", len(told()) - 3, "--app", app)
    run(written, "--parquet", tmp_path / "p", *options)
    printed = [json.loads(line)["seq"] for line in run(written, *options, "--json").output.splitlines()]
    assert [row["seq"] for row in rows(tmp_path / "p")] == printed


def test_a_damaged_log_leaves_the_file_that_was_there(
    written: EmbeddedStore, connection: Redis, tmp_path: Path
) -> None:
    file = tmp_path / "log.parquet"
    run(written, "--parquet", file, "--to", 3)
    turn = told()[8].turn
    connection.xdel(Keys("default").log, f"{max(line.seq for line in told() if line.turn == turn)}-0")
    answer = run(written, "--parquet", file)
    assert (answer.exit_code, f"log position {turn}" in answer.output) == (1, True)
    assert len(rows(file)) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]


def test_without_its_library_one_sentence_says_what_to_install(
    written: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlog.cli.params.find_spec", lambda _: None)
    answer = run(written, "--parquet", tmp_path / "p")
    assert answer.output == "Error: --parquet needs pyarrow: pip install 'fairlog[parquet]'\n"
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--json",), 2, "--parquet and --json cannot be combined"),
        (("--follow",), 2, "--parquet and --follow cannot be combined"),
        (("--app", "nobody"), 1, "no app 'nobody' is known"),
    ],
)
def test_what_makes_no_sense_is_refused_and_no_file_is_left(
    written: EmbeddedStore, tmp_path: Path, options: tuple[str, ...], code: int, said: str
) -> None:
    answer = run(written, "--parquet", tmp_path / "p", *options)
    assert (answer.exit_code, said in answer.output) == (code, True)
    assert list(tmp_path.iterdir()) == []


def test_every_column_is_a_fact_that_some_event_states_in_that_type() -> None:
    kinds = dict.fromkeys(TEXT, str) | dict.fromkeys(WHOLE, int) | dict.fromkeys(TRUTH, bool)
    for name, kind in kinds.items():
        if name in PARTS:
            assert PARTS[name] in AppRegistered.__struct_fields__
            continue
        if name == "memory_mb":
            assert any(Resources in get_type_hints(model).values() for model in EVENT_TYPES.values())
            continue
        models = [model for model in EVENT_TYPES.values() if name in model.__struct_fields__]
        models = [model for model in models if name != "driver" or model is not AppRegistered]
        stated = [get_type_hints(model)[name] for model in models]
        assert stated, name
        for annotation in stated:
            assert all(each is kind or isinstance(each, kind) for each in _leaves(annotation)), (name, annotation)


def _leaves(annotation: object) -> list[object]:
    """The types, and values of literals, that an annotation is made of, None apart."""
    parts = get_args(annotation)
    return [leaf for part in parts for leaf in _leaves(part)] if parts else [annotation][annotation is type(None) :]
