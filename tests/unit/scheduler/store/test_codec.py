"""What the log stores of an event, byte for byte, and what cannot be read."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler.model.errors import UnreadableRecord
from scheduler.model.events import (
    EVENT_TYPES,
    AppAdmitted,
    AppChanged,
    AppRegistered,
    AppRemoved,
    ClusterConfigured,
    CompanyChanged,
    CompanyRegistered,
    CompanyRemoved,
    DriverAllocated,
    DriverRemoved,
    Elastic,
    Event,
    ExecutorAllocated,
    ExecutorChanged,
    ExecutorRemoved,
    ExecutorRevoked,
    MasterElected,
    WorkerChanged,
    WorkerRegistered,
    WorkerRemoved,
)
from scheduler.store import codec
from scheduler.store.codec import FIELDS, GENESIS_DIGEST, Record, decode, encode, read_record

EVENTS: list[Event] = [
    MasterElected(master="m1"),
    ClusterConfigured(),
    CompanyRegistered(company="Société Générale", cores=512, memory_mb=1048576),
    CompanyChanged(company="Société Générale", part="1/4"),
    CompanyRemoved(company="Société Générale"),
    WorkerRegistered(worker="w1", node="n1", host="n1.example", rack="", cores=16, memory_mb=65536),
    WorkerChanged(worker="w1", status="draining", cores=16, memory_mb=65536),
    AppRegistered(
        app="a1",
        company="acme",
        user='ann "the\tuser"',
        name="数え",
        kind="sql",
        cores=6,
        requested_cores=8,
        memory_per_task_mb=None,
        requested_memory_mb=4096,
        tasks=6,
        command=("sh", "-c", 'echo "a\nb"'),
        env=("TOKEN",),
        cwd="/srv",
        retries=2,
        time_limit_s=600,
    ),
    AppAdmitted(app="a1", company="acme", user="ann", share="1/8"),
    ExecutorAllocated(app="a1", executor="a1.0", worker="w1", cores=4, memory_mb=2048),
    ExecutorChanged(executor="a1.0"),
    ExecutorRemoved(app="a1", executor="a1.0", worker="w1", reason="exited", exit_code=0, done=True),
    AppChanged(app="a1", requested_cores=8, requested_memory_mb=4096, done_cores=0),
    AppRemoved(app="a1", reason="failed", detail="task 3 ended with exit code 1"),
    WorkerRemoved(worker="w1", reason="lost", last_seen=1735689600000),
    ClusterConfigured(admission="open", spread_out_drivers=False, max_drivers=4, max_driver_share="1/1"),
    AppRegistered(
        app="a2",
        company="acme",
        user='ann "the\tuser"',
        name="数え",
        kind="sql",
        cores=0,
        requested_cores=1,
        memory_per_task_mb=None,
        requested_memory_mb=1024,
        tasks=6,
        command=("sh", "-c", 'echo "a\nb"'),
        env=("TOKEN",),
        cwd="/srv",
        retries=2,
        time_limit_s=600,
        sizing="fixed",
        executor_cores=3,
        executor_memory_mb=1000,
        executor_limit=2,
        driver=True,
        driver_cores=1,
        driver_memory_mb=1024,
        supervise=True,
        unlimited=True,
    ),
    DriverAllocated(app="a2", driver="a2.driver-0", worker="w1", cores=1, memory_mb=1024),
    AppChanged(app="a2", requested_cores=1, requested_memory_mb=1024, done_cores=0, executor_limit=3),
    ExecutorRevoked(app="a2", executor="a2.0", worker="w1"),
    DriverRemoved(app="a2", driver="a2.driver-0", worker="w1", reason="exited", exit_code=0),
    ClusterConfigured(
        admission="open",
        spread_out_drivers=False,
        max_drivers=4,
        max_driver_share="1/1",
        half_life_s=1800,
        quota_patience_s=300,
    ),
    ClusterConfigured(
        admission="open",
        spread_out_drivers=False,
        max_drivers=4,
        max_driver_share="1/1",
        half_life_s=1800,
        quota_patience_s=300,
        executor_idle_timeout_s=30,
        elastic_step_ms=500,
        locality_wait_host_ms=0,
        locality_wait_rack_ms=10,
    ),
    AppRegistered(
        app="a3",
        company="acme",
        user='ann "the\tuser"',
        name="数え",
        kind="sql",
        cores=4,
        requested_cores=4,
        memory_per_task_mb=None,
        requested_memory_mb=1024,
        tasks=6,
        command=("sh", "-c", 'echo "a\nb"'),
        env=("TOKEN",),
        cwd="/srv",
        retries=2,
        time_limit_s=600,
        sizing="fixed",
        executor_cores=3,
        executor_memory_mb=1000,
        executor_limit=1,
        elastic=Elastic(1, 8, 4, 1),
    ),
    ExecutorAllocated(app="a3", executor="a3.0", worker="w1", cores=4, memory_mb=2048, locality="rack"),
    ExecutorChanged(executor="a3.0", idle=True),
    AppChanged(
        app="a3",
        requested_cores=8,
        requested_memory_mb=4096,
        done_cores=0,
        executor_limit=2,
        executor_cores=4,
        executor_memory_mb=2048,
        preferring_tasks=30,
        preferred_hosts={"h1.example": 30, "hé2": 10},
        backlog_executors=5,
        next_step=2,
    ),
    ClusterConfigured(
        admission="open",
        spread_out_drivers=False,
        max_drivers=4,
        max_driver_share="1/1",
        half_life_s=1800,
        quota_patience_s=300,
        executor_idle_timeout_s=30,
        elastic_step_ms=500,
        locality_wait_host_ms=0,
        locality_wait_rack_ms=10,
        archive_url="s3://bücket/fairlog",
        archive_after_events=100_000,
        archive_retain_events=250_000,
    ),
]
"""An event of every type, in the order of the file."""

STORED = Path(__file__).with_name("test_codec_schema1.jsonl").read_text(encoding="utf-8").splitlines()
"""The same as `fairlog log --json` prints them, a chain of its own. It was not made by the code under test.

Its older lines lack the optional fields that came later.
"""
WHOLE = [
    seq
    for seq, (line, event) in enumerate(zip(STORED, EVENTS, strict=True), start=1)
    if json.loads(line)["data"].keys() == set(type(event).__struct_fields__)
]
"""The positions of the lines that state every field there is today."""

FIRST = MasterElected(master="m1")


def chain() -> list[Record]:
    """The records that store `EVENTS`, each behind the line of the file before it."""
    records: list[Record] = []
    previous = GENESIS_DIGEST
    for seq, event in enumerate(EVENTS, start=1):
        place = json.loads(STORED[seq - 1])
        records.append(
            encode(event, seq=seq, at=place["at"], turn=place["turn"], cause=place["cause"], previous=previous)
        )
        previous = place["digest"]
    return records


def stored(record: Record, **altered: str) -> dict[str, str]:
    """The fields of a stream entry, some of them altered."""
    return {**{name: str(value) for name, value in record._asdict().items() if name != "seq"}, **altered}


def first_record() -> Record:
    return encode(FIRST, seq=1, at=5, turn=1, cause="", previous=GENESIS_DIGEST)


def test_the_file_holds_every_type_of_event() -> None:
    assert {json.loads(line)["type"] for line in STORED} == EVENT_TYPES.keys()


def test_a_line_of_every_type_states_all_that_the_type_has_today() -> None:
    assert {type(EVENTS[seq - 1]).__name__ for seq in WHOLE} == EVENT_TYPES.keys()


@pytest.mark.parametrize("seq", range(1, len(EVENTS) + 1), ids=lambda seq: type(EVENTS[seq - 1]).__name__)
def test_a_line_written_before_its_type_got_more_fields_reads_as_the_same_event(seq: int) -> None:
    line = json.loads(STORED[seq - 1])
    data = json.dumps(line["data"], separators=(",", ":"), ensure_ascii=False)
    assert decode(Record(**{**line, "data": data})) == EVENTS[seq - 1]


@pytest.mark.parametrize("seq", WHOLE, ids=lambda seq: type(EVENTS[seq - 1]).__name__)
def test_an_event_is_stored_exactly_as_schema_1_says(seq: int) -> None:
    record = chain()[seq - 1]
    assert json.dumps(record.as_json(), separators=(",", ":"), ensure_ascii=False) == STORED[seq - 1]


@pytest.mark.parametrize("seq", range(1, len(EVENTS) + 1), ids=lambda seq: type(EVENTS[seq - 1]).__name__)
def test_an_event_is_read_back_as_it_was(seq: int) -> None:
    assert decode(chain()[seq - 1]) == EVENTS[seq - 1]


def test_anyone_can_recompute_the_chain_from_an_export() -> None:
    previous = "0" * 32
    for line in STORED:
        entry = json.loads(line)
        data = json.dumps(entry["data"], separators=(",", ":"), ensure_ascii=False)
        fields = previous, *(entry[name] for name in ("seq", "type", "v", "at", "turn", "cause")), data
        previous = blake2b("\n".join(map(str, fields)).encode(), digest_size=16).hexdigest()
        assert previous == entry["digest"]


def test_the_fields_of_an_entry_are_always_these_in_this_order() -> None:
    assert FIELDS == ("type", "v", "at", "turn", "cause", "data", "digest")
    assert Record._fields == ("seq", *FIELDS)


def test_no_event_holds_a_float() -> None:
    """Schema 1: no floats."""
    for model in EVENT_TYPES.values():
        assert "number" not in json.dumps(msgspec.json.schema(model)).replace("integer", "")


def test_an_entry_without_an_optional_field_is_read_with_its_default() -> None:
    data = '{"company":"acme","cores":null,"memory_mb":null,"part":null}'
    record = first_record()._replace(type="CompanyRegistered", data=data)
    assert decode(record) == CompanyRegistered(company="acme")


def test_an_older_version_is_brought_up_to_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(data: dict[str, Any]) -> dict[str, Any]:
        return {"company": data["tenant"]}

    monkeypatch.setattr(CompanyRemoved, "v", 2)
    monkeypatch.setitem(codec.UPCASTS, ("CompanyRemoved", 1), renamed)
    record = first_record()._replace(type="CompanyRemoved", v=1, data='{"tenant":"acme"}')
    assert decode(record) == CompanyRemoved(company="acme")


def test_an_older_version_without_a_way_up_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompanyRemoved, "v", 2)
    record = first_record()._replace(seq=9, type="CompanyRemoved", v=1, data='{"company":"acme"}')
    with pytest.raises(UnreadableRecord, match=r"log position 9: CompanyRemoved"):
        decode(record)


def test_an_event_of_an_unknown_type_is_named_with_its_position() -> None:
    with pytest.raises(UnreadableRecord, match=r"^log position 7: an event of the unknown type 'Surprise'$") as raised:
        decode(first_record()._replace(seq=7, type="Surprise"))
    assert raised.value.seq == 7


def test_an_event_of_a_newer_version_is_named_with_its_position() -> None:
    with pytest.raises(
        UnreadableRecord, match=r"^log position 7: MasterElected version 2 was written by a newer program"
    ):
        decode(first_record()._replace(seq=7, v=2))


@pytest.mark.parametrize(
    "data",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"master":1}',
        '{"master":"m1","more":1}',
        '{"master":null}',
        '{"master":"m1"}x',
    ],
)
def test_data_that_does_not_fit_its_type_is_named_with_its_position(data: str) -> None:
    with pytest.raises(UnreadableRecord, match=r"^log position 7: MasterElected holds data that cannot be read"):
        decode(first_record()._replace(seq=7, data=data))


def test_amounts_are_whole_numbers_and_nothing_that_looks_like_them() -> None:
    for cores in ("4.0", '"4"', "true"):
        data = f'{{"app":"a","executor":"a.0","worker":"w","cores":{cores},"memory_mb":2048}}'
        with pytest.raises(UnreadableRecord, match=r"log position 1: ExecutorAllocated"):
            decode(first_record()._replace(type="ExecutorAllocated", data=data))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "MasterElectex"),
        ("v", "2"),
        ("at", "6"),
        ("turn", "2"),
        ("cause", "x"),
        ("data", '{"master":"m2"}'),
        ("digest", "0" * 32),
    ],
)
def test_an_altered_entry_is_named_with_its_position(field: str, value: str) -> None:
    record = first_record()
    assert read_record(1, stored(record), GENESIS_DIGEST) == record
    with pytest.raises(UnreadableRecord, match=r"^log position 1: the digest is .* the entry was altered$"):
        read_record(1, stored(record, **{field: value}), GENESIS_DIGEST)


def test_an_entry_behind_a_missing_one_is_named_with_its_position() -> None:
    records = chain()
    with pytest.raises(UnreadableRecord, match=r"^log position 3: the digest is"):
        read_record(3, stored(records[2]), records[0].digest)
    with pytest.raises(UnreadableRecord, match=r"^log position 2: the digest is"):
        read_record(2, stored(records[2]), records[1].digest)


@pytest.mark.parametrize("field", FIELDS)
def test_an_entry_that_lacks_a_field_is_named_with_its_position(field: str) -> None:
    fields = stored(first_record())
    del fields[field]
    with pytest.raises(UnreadableRecord, match=r"^log position 1: the entry has the fields "):
        read_record(1, fields, GENESIS_DIGEST)


@pytest.mark.parametrize("field", ["v", "at", "turn"])
def test_an_entry_with_a_number_that_is_none_is_named_with_its_position(field: str) -> None:
    fields = stored(first_record(), **{field: "x"})
    fields["digest"] = blake2b(
        "\n".join((GENESIS_DIGEST, "1", *list(fields.values())[:-1])).encode(), digest_size=16
    ).hexdigest()
    with pytest.raises(UnreadableRecord, match=r"^log position 1: the entry has a number that is none"):
        read_record(1, fields, GENESIS_DIGEST)


@pytest.mark.parametrize(("field", "value"), [("v", "01"), ("at", "+5"), ("turn", " 1")])
def test_a_number_written_another_way_breaks_the_chain(field: str, value: str) -> None:
    with pytest.raises(UnreadableRecord, match=r"^log position 1: the digest is"):
        read_record(1, stored(first_record(), **{field: value}), GENESIS_DIGEST)


def test_a_field_that_is_foreign_to_the_schema_is_named_with_its_position() -> None:
    with pytest.raises(UnreadableRecord, match=r"^log position 1: the entry has the fields .*, more instead of"):
        read_record(1, stored(first_record(), more="x"), GENESIS_DIGEST)


@pytest.mark.parametrize("name", ["master", "v", "anything"])
def test_events_cannot_be_changed_once_they_are_facts(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(FIRST, name, "m2")
