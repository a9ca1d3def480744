"""What the log stores of a turn, byte for byte, how it is told and printed, and what cannot be read."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import asdict, replace

from scheduler.model.commands import EndedExecutor, LoseWorker, Private, SubmitApp, Taken
from scheduler.model.errors import UnreadableRecord
from scheduler.model.events import (
    EVENT_TYPES,
    AccountAdded,
    AccountChanged,
    AccountRemoved,
    AppAdmitted,
    AppChanged,
    AppDelayed,
    AppDue,
    AppExpired,
    AppExtended,
    AppHeld,
    AppReady,
    AppRegistered,
    AppReleased,
    AppRemoved,
    AppReprioritized,
    AppRequeued,
    AppSignalled,
    AppsShown,
    AppWarned,
    ClusterConfigured,
    CommandRefused,
    CompanyChanged,
    CompanyMoved,
    CompanyRegistered,
    CompanyRemoved,
    Computed,
    DepartmentAdded,
    DepartmentChanged,
    DepartmentRemoved,
    Dependency,
    DriverAllocated,
    DriverRemoved,
    EditionChanged,
    Elastic,
    Event,
    ExecutorAllocated,
    ExecutorChanged,
    ExecutorRemoved,
    ExecutorRevoked,
    ExecutorsRequested,
    Fixed,
    HoldEnded,
    KeyChanged,
    KindRegistered,
    LimitSet,
    Locations,
    LogAccepted,
    LogRestored,
    LogSealed,
    LostWorkersForgotten,
    MasterElected,
    NeedBegan,
    NeedEnded,
    OnePerWorker,
    RefusalsOmitted,
    ReservationLapsed,
    RevocationWithdrawn,
    RoleGranted,
    RoleRevoked,
    RoomHeld,
    RoomReserved,
    Shares,
    SlotAwaited,
    SlotBegan,
    SlotEnded,
    TargetEnded,
    TargetSet,
    TaskCancelled,
    TaskRequeued,
    TokenIssued,
    TokenRevoked,
    Wanted,
    Warn,
    WindowAdded,
    WindowRemoved,
    WorkerChanged,
    WorkerCleared,
    WorkerLabelled,
    WorkerProbed,
    WorkerRegistered,
    WorkerRemoved,
    WorkerSuspected,
)
from scheduler.model.resources import Resources
from scheduler.model.sender import NOBODY, By
from scheduler.store.codec import (
    FIELDS,
    GENESIS_DIGEST,
    OLD_SCHEMA,
    Fact,
    Record,
    chained,
    check,
    commitment,
    encode_turn,
    entry_line,
    facts,
    lines_of,
    read_entry,
    read_lines,
    record_of,
    stored,
    tell,
    told,
)

EVENTS: list[Event] = [
    MasterElected(master="m1"),
    ClusterConfigured(),
    CompanyRegistered(company="Société Générale", amounts=Resources(512, 1048576)),
    CompanyChanged(company="Société Générale", part="1/4"),
    CompanyRemoved(company="Société Générale"),
    WorkerRegistered(worker="w1", node="n1", host="n1.example", rack="", offer=Resources(16, 65536)),
    WorkerChanged(worker="w1", status="draining", offer=Resources(16, 65536)),
    AppRegistered(
        app="a1",
        company="acme",
        user='ann "the\tuser"',
        kind="sql",
        cores=6,
        requested=Resources(8, 4096),
        tasks=6,
        sizing=Computed(),
        retries=2,
        time_limit_s=600,
    ),
    AppAdmitted(app="a1", company="acme", user="ann", share="1/8"),
    ExecutorAllocated(app="a1", executor="a1.0", worker="w1", resources=Resources(4, 2048)),
    ExecutorChanged(executor="a1.0"),
    ExecutorRemoved(app="a1", executor="a1.0", worker="w1", reason="exited", exit_code=0, done=True),
    AppChanged(app="a1", requested=Resources(8, 4096), sizing=Computed(512)),
    AppRemoved(app="a1", reason="failed", detail="task 3 ended with exit code 1"),
    WorkerRemoved(worker="w1", reason="lost", last_seen=1735689600000),
    ClusterConfigured(admission="open", spread_out_drivers=False, max_drivers=4, max_driver_share="1/1"),
    AppRegistered(
        app="a2",
        company="acme",
        user='ann "the\tuser"',
        kind="sql",
        cores=None,
        requested=Resources(1, 1024),
        tasks=6,
        sizing=OnePerWorker(1000),
        retries=2,
        time_limit_s=600,
        executor_limit=2,
        driver=Resources(1, 1024),
        supervise=True,
    ),
    DriverAllocated(app="a2", driver="a2.driver-0", worker="w1", resources=Resources(1, 1024)),
    AppChanged(app="a2", requested=Resources(1, 1024), sizing=Computed(512), executor_limit=3),
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
        kind="sql",
        cores=4,
        requested=Resources(4, 1024),
        tasks=6,
        sizing=Fixed(Resources(3, 1000), counted=True),
        retries=2,
        time_limit_s=600,
        executor_limit=1,
        elastic=Elastic(1, 8, 4, 1),
        priority=-2,
        after=(Dependency("a1", "not-ok"),),
        on_hold=True,
        max_runtime_s=7200,
        warn=Warn("USR1", 300),
    ),
    ExecutorAllocated(app="a3", executor="a3.0", worker="w1", resources=Resources(4, 2048), locality="rack"),
    ExecutorChanged(executor="a3.0", idle=True),
    AppChanged(
        app="a3",
        requested=Resources(8, 4096),
        sizing=Fixed(Resources(4, 2048), counted=True),
        executor_limit=2,
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
    RoomReserved(app="a3"),
    ExecutorsRequested(
        app="a3", pending=(Wanted(Locations(("h1.example",), ("/r1",)), 3, 5), Wanted(Locations(), 1, 6))
    ),
    CommandRefused(error="UnknownApp", message="no app 'a9' is known"),
    RefusalsOmitted(count=7, since=1735689600000),
    ReservationLapsed(app="a3"),
    LostWorkersForgotten(workers=("w0",)),
    RoomHeld(worker="w1", app="a4", amounts=Resources(4, 2048), reason="reclaim"),
    ExecutorRevoked(
        app="a3",
        executor="a3.0",
        worker="w1",
        reason="reclaimed",
        hold=37,
        claimant="a4",
        claimant_company="globex",
        rule="E2",
        since=1735689500000,
        deadline=1735689900000,
        shares=Shares("0/1", "1/4", "2/1", "7/4"),
    ),
    HoldEnded(hold=37, worker="w1", app="a4", reason="part-reached"),
    EditionChanged(edition=3),
    NeedBegan(app="a4", units=2, date=1735689900000),
    TargetSet(worker="w1", app="a4", amounts=Resources(4, 2048), why="plan"),
    TargetEnded(target=40, worker="w1", app="a4", reason="stays"),
    NeedEnded(app="a4"),
    RevocationWithdrawn(app="a3", executor="a3.0", worker="w1"),
    AppReprioritized(app="a3", priority=7),
    AppHeld(app="a3"),
    AppReleased(app="a3"),
    AppReady(app="a3"),
    KindRegistered(kind="gpu"),
    WorkerSuspected(worker="w1", executors=("a1.0", "a2.0"), until=1735689660000, times=2),
    WorkerProbed(worker="w1"),
    WorkerCleared(worker="w1", reason="ended-well"),
    LimitSet(name="max_cores", value=100, company="acme", user="*"),
    LimitSet(name="max_cores", value=100, department="research"),
    AppWarned(app="a3", signal="USR1"),
    AppExtended(app="a3", max_runtime_s=9000),
    AppExpired(app="a3"),
    AccountAdded(account="acme/ann", company="acme", display="Ann"),
    AccountAdded(account="worker/w1", company=None, host="h1", offer=Resources(8, 4096, (("gpu", 2),))),
    AccountChanged(account="acme/ann", display="Ann A."),
    RoleGranted(account="acme/ann", role="admin"),
    RoleGranted(account="acme/ann", role="admin", department="research"),
    RoleRevoked(account="acme/ann", role="admin", department="research"),
    TokenIssued(
        token="0a1b2c3d",
        account="acme/ann",
        role="admin",
        scopes=("submit", "read"),
        expires=1735689660000,
        hash="ab" * 32,
        replaces="00000000",
    ),
    TokenRevoked(token="0a1b2c3d"),
    AppsShown(company="acme", shown=True),
    RoleRevoked(account="acme/ann", role="admin"),
    AccountRemoved(account="acme/ann"),
    KeyChanged(key="00ff" * 4, public="cd" * 32, signature="ef" * 64),
    LogSealed(seq=61, digest="12" * 32, key="00ff" * 4, signature="34" * 64, reads="56" * 32),
    AppRegistered(
        app="a3",
        company="acme",
        user="ann",
        kind="batch",
        cores=2,
        requested=Resources(2, 2048),
        tasks=0,
        sizing=Fixed(Resources(1, 1024), counted=True),
        executor_limit=2,
        programs=True,
        grace_s=60,
        owner_timeout_s=30,
    ),
    ExecutorRemoved(
        app="a3", executor="a3.0", worker="w1", reason="failed", exit_code=137, detail="used 9 MiB, above 8"
    ),
    WorkerLabelled(worker="w1", labels={"zone": "north"}, taints=("spot",)),
    LogRestored(key="00ff" * 4, public="cd" * 32),
    LogAccepted(seq=12, digest="ab" * 32, known=57, known_digest="cd" * 32, by="master m1"),
    SlotAwaited(app="a4", date=1735689900000),
    SlotBegan(app="a4", units=1),
    SlotEnded(app="a4"),
    AppSignalled(app="a3", signal="USR2", task=3, whole=True),
    AppDelayed(app="a3", until=1735689900000),
    AppDue(app="a3"),
    TaskCancelled(app="a3", task=2),
    AppRequeued(app="a3"),
    TaskRequeued(app="a3", task=2, executor="a3.1"),
    WindowAdded(
        window="x1",
        workers=("w1", "w2"),
        begin=1735689900000,
        end=1735693500000,
        notice_s=300,
        company="acme",
        reason="new disks",
    ),
    ExecutorRevoked(app="a3", executor="a3.0", worker="w1", reason="reclaimed", deadline=1735689865000, window="x1"),
    WindowRemoved(window="x1"),
    AppRegistered(
        app="a5",
        company="acme",
        user="ann",
        kind="batch",
        cores=2,
        requested=Resources(2, 2048),
        tasks=0,
        sizing=Fixed(Resources(1, 1024), counted=True),
        executor_limit=2,
        programs=True,
        gang=True,
        max_failures=1,
    ),
    ExecutorRevoked(app="a5", executor="a5.1", worker="w1", gang=True),
    ExecutorRemoved(app="a5", executor="a5.1", worker="w1", reason="gang"),
    DepartmentAdded(
        department="d1", amounts=Resources.of(64, 32768, gpu=2), kinds=("gpu",), borrow_limit="1/2", lend_limit="0/1"
    ),
    DepartmentChanged(department="d2", parent="d1", part="1/4"),
    CompanyMoved(company="Société Générale", department="d1"),
    DepartmentRemoved(department="d1"),
]
"""An event of every type, in the order of the file."""

ANN = By("acme/ann", "t1", "user", "api-1")
COMMANDS: list[Taken] = [
    Taken(1, 1, "", NOBODY, LoseWorker(worker="w0", last_seen=5)),
    Taken(
        7,
        1,
        "c-1",
        ANN,
        SubmitApp(
            app="a1",
            company="acme",
            user='ann "the\tuser"',
            name="数え",
            tasks=6,
            command=("sh", "-c", 'echo "a\nb"'),
            env=("TOKEN",),
            cwd="/srv",
        ),
    ),
    Taken(11, 2, "c-2.1", NOBODY, EndedExecutor(executor="a1.0", reason="exited", exit_code=0, done=True)),
    Taken(16, 1, "c-3", NOBODY, SubmitApp(app="a2", company="acme", user="ann", command=("true",))),
]
"""Commands behind some of these events."""

STORED = Path(__file__).with_name("test_codec_schema2.jsonl").read_bytes().splitlines(keepends=True)
"""The same as two turns, each an entry on a line. It was not made by the code under test."""
SALT = "00112233445566778899aabbccddeeff"
FIRST = MasterElected(master="m1")
PRIVATE = Private(name="数え", command=("sh", "-c", 'echo "a\nb"'), env=("TOKEN",), cwd="/srv")


def turn(*events: Event, first: int = 1, previous: str = GENESIS_DIGEST) -> Record:
    return encode_turn([(event, "") for event in events], first=first, at=5, previous=previous)


def chain() -> list[Record]:
    """The records that store `EVENTS`, as the file has them."""
    one = encode_turn(
        [(event, "") for event in EVENTS],
        COMMANDS,
        first=1,
        at=1735689600001,
        previous=GENESIS_DIGEST,
        salt=SALT.__str__,
    )
    return [one, turn(FIRST, first=one.last + 1, previous=one.digest)]


def forged(record: Record, **changes: Any) -> Record:
    """The record with other fields, its digest right."""
    record = record._replace(**changes)
    _, _, at, events, commands, _, _ = record
    return record._replace(digest=chained(GENESIS_DIGEST, record.first, record.last, at, events, commands))


def refused(record: Record) -> str:
    with pytest.raises(UnreadableRecord) as raised:
        told(record)
    return str(raised.value)


def test_there_is_an_event_of_every_type() -> None:
    assert {type(event).__name__ for event in EVENTS} == EVENT_TYPES.keys()


def test_a_turn_is_stored_exactly_as_schema_2_says() -> None:
    assert [entry_line(record) for record in chain()] == STORED


def test_a_turn_is_read_back_as_it_was() -> None:
    found = list(facts(read_lines(STORED), 0, GENESIS_DIGEST))
    assert [fact.event for fact in found] == [*EVENTS, FIRST]
    assert [fact.seq for fact in found] == list(range(1, len(found) + 1))
    last = len(EVENTS)
    assert {fact.turn for fact in found[:last]} == {1}
    assert (found[last].turn, found[last].at) == (last + 1, 5)
    assert [fact.seq for fact in found if fact.digest] == [last, last + 1]
    assert [fact.digest for fact in found if fact.digest] == [record.digest for record in chain()]


def test_the_first_event_of_a_command_tells_of_it_and_all_of_them_name_it() -> None:
    found = {fact.seq - 1: fact for fact in told(chain()[0])}
    named = {place: fact.cause for place, fact in found.items() if fact.cause}
    assert named == {7: "c-1", 11: "c-2.1", 12: "c-2.1", 16: "c-3"}
    begun = {place: (fact.command, fact.by, fact.caused) for place, fact in found.items() if fact.command is not None}
    public = [
        SubmitApp(app="a1", company="acme", user='ann "the\tuser"', tasks=6),
        SubmitApp(app="a2", company="acme", user="ann"),
    ]
    assert begun == {
        1: (COMMANDS[0].command, NOBODY, 1),
        7: (public[0], ANN, 1),
        11: (COMMANDS[2].command, NOBODY, 2),
        16: (public[1], NOBODY, 1),
    }
    assert {place: fact.private for place, fact in found.items() if fact.private is not None} == {
        7: PRIVATE,
        16: Private(command=("true",)),
    }


def test_who_needs_no_facts_hears_the_same_events() -> None:
    for record in chain():
        heard: list[tuple[object, ...]] = []
        tell(record, lambda event, at, cause="", private=None, by=NOBODY: heard.append((event, at, cause, private, by)))  # noqa: B023
        assert heard == [(fact.event, fact.at, fact.cause, fact.private, fact.by) for fact in told(record)]


def test_anyone_can_recompute_the_chain_and_the_commitments_from_an_export() -> None:
    """With the standard library alone, from what `docs` say of the form."""
    lines = [line.as_json() for record in chain() for line in lines_of(record)]
    previous, first, turn_of = "0" * 64, 1, []
    for line in lines:
        turn_of.append(line)
        if "digest" not in line:
            continue
        events = [[each["type"], *map(_as_stored, each["data"].values())] for each in turn_of]
        commands = []
        for number, each in enumerate(turn_of):
            if "command" in each:
                sender = [*each["by"].values()] if each["by"] else ""
                rest = each["events"], each["cause"], sender, each["command"], each["commit"]
                commands.append([number, *rest])
            if "private" in each:
                private = dict(each["private"])
                assert each["commit"] == _hash(private.pop("salt"), _compact(private))
        fields = previous, str(first), str(line["seq"]), str(line["at"]), _compact(events), _compact(commands)
        previous = _hash(*fields)
        assert previous == line["digest"]
        first, turn_of = line["seq"] + 1, []


def _as_stored(value: object) -> object:
    """Resources are stored as [cores, MiB, [amounts of further kinds]]."""
    if isinstance(value, dict) and value.keys() >= {"cores", "memory_mb"}:
        (_, cores), (_, memory_mb), *others = value.items()
        return [cores, memory_mb, others]
    return value


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _hash(*fields: str) -> str:
    parts = [field.encode() for field in fields]
    return blake2b(b"".join(b"%d:%b" % (len(part), part) for part in parts), digest_size=32).hexdigest()


def test_lines_read_back_are_the_records_to_the_byte() -> None:
    for public in (False, True):
        texts = [json.dumps(line.as_json()).encode() for record in chain() for line in lines_of(record, public=public)]
        assert list(read_lines(texts)) == [
            record._replace(private=b"" if public else record.private) for record in chain()
        ]


def test_what_is_withheld_leaves_digests_and_everything_else_as_they_are() -> None:
    record = chain()[0]
    public = record._replace(private=b"")
    check(public, 0, GENESIS_DIGEST)
    assert [replace(fact, private=None) for fact in told(record)] == told(public)
    assert PRIVATE.name not in "".join(map(str, lines_of(record, public=True)))


def test_no_part_of_the_private_part_can_be_changed() -> None:
    record = chain()[0]
    for part, instead in (
        ("数え", "数う"),
        ("TOKEN", "TOKEM"),
        ("/srv", "/srw"),
        (SALT, SALT[:-1] + "0"),
        ("[1,", "[3,"),
    ):
        private = record.private.replace(part.encode(), instead.encode(), 1)
        assert private != record.private
        assert "was altered: it does not match its commitment" in refused(record._replace(private=private))
    for private in (b"{}", b"[", record.private.replace(b",", b", ", 1), b'[[0,"",{}]]'):
        assert "was altered" in refused(record._replace(private=private))


NEWER = "; if a newer fairlog wrote it, this one is too old for the log: upgrade it here"


@pytest.mark.parametrize(
    ("part", "instead", "why"),
    [
        ("events", b'["CompanyPainted","c"]', "the event type 'CompanyPainted' is unknown"),
        ("events", b'["CompanyRemoved","c","red"]', "CompanyRemoved holds data that cannot be read: "),
        ("commands", b'[[0,1,"","",{"type":"PaintCompany"},""]]', "the turn's commands cannot be read: "),
        ("commands", b'[[0,1,"","",{"type":"KillApp","app":"a","paint":"red"},""]]', "the turn's commands cannot be"),
    ],
)
def test_who_is_too_old_for_an_entry_that_was_not_altered_says_so(part: str, instead: bytes, why: str) -> None:
    found = refused(forged(turn(FIRST, first=7), **{part: b"[" + instead + b"]" if part == "events" else instead}))
    assert found.startswith(f"log position 7: {why}")
    assert found.endswith(NEWER)


def test_a_private_part_of_a_newer_version_was_not_altered() -> None:
    record = chain()[0]
    _, salt, part = json.loads(record.private)[0]
    kept = Raw(json.dumps(part, separators=(",", ":"), ensure_ascii=False).encode())
    newer = Raw(json.dumps({**part, "paint": "red"}, separators=(",", ":"), ensure_ascii=False).encode())
    before, after = (commitment(salt, each).encode() for each in (kept, newer))
    assert before in record.commands
    private = record.private.replace(bytes(kept), bytes(newer), 1)
    found = refused(forged(record, commands=record.commands.replace(before, after), private=private))
    assert found.startswith("log position 1: the turn's private parts cannot be read: ")
    assert found.endswith(NEWER)


def test_no_event_holds_a_float() -> None:
    for event in EVENTS:
        assert not any(isinstance(value, float) for value in asdict(event).values())


def test_an_event_stored_before_its_type_got_more_fields_is_read_with_their_defaults() -> None:
    record = forged(turn(FIRST), events=b'[["CompanyRegistered","acme",null]]')
    assert told(record)[0].event == CompanyRegistered(company="acme")
    (line,) = lines_of(record)
    assert line.data == {"company": "acme", "amounts": None}
    assert list(read_lines([json.dumps(line.as_json()).encode()])) == [record]


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ('["Surprise"]', "the event type 'Surprise' is unknown"),
        ("[]", "the event type '' is unknown"),
        ("[7]", "the event type 7 is unknown"),
        ('["CompanyRemoved","c",1]', "CompanyRemoved holds data that cannot be read"),
        ('["CompanyRemoved"]', "CompanyRemoved holds data that cannot be read"),
        ('["CompanyRemoved",1]', "CompanyRemoved holds data that cannot be read"),
        ('["CompanyRemoved",null]', "CompanyRemoved holds data that cannot be read"),
        ('["ExecutorAllocated","a","a.0","w",[4.5,2048]]', "ExecutorAllocated holds data that cannot be read"),
        ('["ExecutorAllocated","a","a.0","w",["4",2048]]', "ExecutorAllocated holds data that cannot be read"),
        ('["ExecutorAllocated","a","a.0","w",[true,2048]]', "ExecutorAllocated holds data that cannot be read"),
    ],
)
def test_an_event_that_cannot_be_understood_is_named_with_its_position(events: str, why: str) -> None:
    text = f'[["MasterElected","m1"],{events}]'.encode()
    assert refused(forged(turn(FIRST, FIRST, first=7), events=text)).startswith(f"log position 8: {why}")


@pytest.mark.parametrize("events", [b"", b"[", b"null", b"{}", b"\xff", b'[["MasterElected","m1"]]x', b"[7]"])
def test_a_turn_whose_events_cannot_be_read_is_named_with_its_position(events: bytes) -> None:
    assert refused(forged(turn(FIRST, first=7), events=events)).startswith("log position 7: ")


@pytest.mark.parametrize(
    "commands",
    [
        b'[[1,1,"","",{"type":"KillApp","app":"a"},""]]',
        b'[[0,2,"","",{"type":"KillApp","app":"a"},""]]',
        b'[[0,0,"","",{"type":"KillApp","app":"a"},""]]',
        b'[[-1,1,"","",{"type":"KillApp","app":"a"},""]]',
        b'[[0,1,"","",{"type":"KillApp","app":"a"},""],[0,1,"","",{"type":"KillApp","app":"a"},""]]',
        b'[[0,1,"","",{"type":"Paint"},""]]',
        b'[[0,1,"",""]]',
        b"{}",
    ],
)
def test_commands_that_do_not_fit_their_turn_are_refused(commands: bytes) -> None:
    assert refused(forged(turn(FIRST, first=7), commands=commands)).startswith("log position 7: ")


def test_a_turn_without_events_is_refused() -> None:
    assert "the turn has 0 events" in refused(forged(turn(FIRST, first=7), events=b"[]", last=6))


def test_a_turn_of_more_or_fewer_events_than_positions_is_refused() -> None:
    for last in (6, 8):
        assert "the turn has 1 event for" in refused(forged(turn(FIRST, first=7), last=last))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("at", 6),
        ("last", 2),
        ("events", b'[["MasterElected","m2"]]'),
        ("commands", b'[[0,1,"","",{"type":"KillApp","app":"a"},""]]'),
        ("digest", "0" * 64),
    ],
)
def test_an_altered_turn_is_named_with_its_positions(field: str, value: Any) -> None:
    record = turn(FIRST)
    check(record, 0, GENESIS_DIGEST)
    with pytest.raises(UnreadableRecord, match=r"^log position 1: entr.* altered: the digest is .*, but the chain"):
        check(record._replace(**{field: value}), 0, GENESIS_DIGEST)
    altered = chain()[0]._replace(at=7)
    with pytest.raises(UnreadableRecord, match=f"^log position 1: entries 1 to {len(EVENTS)} were altered"):
        check(altered, 0, GENESIS_DIGEST)


def test_a_turn_in_a_wrong_place_is_named_with_the_position_that_it_should_have() -> None:
    one, two = chain()
    with pytest.raises(UnreadableRecord, match=f"^log position 1: the entry is missing; the next one .* {two.first}$"):
        check(two, 0, GENESIS_DIGEST)
    with pytest.raises(UnreadableRecord, match=f"^log position {two.first}: entry 1 is repeated here"):
        check(one, one.last, one.digest)


def raw(record: Record, **changes: bytes) -> tuple[bytes, list[bytes]]:
    """The record as the store gives it."""
    fields = {
        name: value if isinstance(value, bytes) else str(value).encode() for name, value in stored(record).items()
    }
    return b"%d-0" % record.last, [
        part for name, value in (fields | changes).items() for part in (name.encode(), value)
    ]


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def test_a_stream_entry_is_read_as_the_record_that_it_stores() -> None:
    assert [record_of(raw(record)) for record in chain()] == chain()


@pytest.mark.parametrize("changes", [{"at": b"x"}, {"at": b"+5"}, {"first": b"01"}, {"at": b" 5"}, {"digest": b"\xff"}])
def test_a_stream_entry_with_an_invalid_number_or_text_is_named_with_its_position(
    changes: dict[str, bytes],
) -> None:
    with pytest.raises(UnreadableRecord, match=r"^log position 1: the entry has an invalid number or text"):
        record_of(raw(turn(FIRST), **changes))


def test_a_stream_entry_with_other_fields_is_named_with_its_position() -> None:
    entry, flat = raw(turn(FIRST))
    for fields in (flat[2:], [*flat, b"more", b"x"]):
        with pytest.raises(UnreadableRecord, match=r"^log position 1: the entry has the fields .* instead of first"):
            record_of((entry, fields))


def test_a_log_of_schema_1_is_refused_by_the_name_of_the_version_that_reads_it() -> None:
    line = b'{"seq":1,"type":"MasterElected","v":1,"at":5,"turn":1,"cause":"","data":{"master":"m"},"digest":"14be"}'
    with pytest.raises(UnreadableRecord, match=OLD_SCHEMA):
        list(read_lines([line]))
    flat = [
        b"type",
        b"MasterElected",
        b"v",
        b"1",
        b"at",
        b"5",
        b"turn",
        b"1",
        b"cause",
        b"",
        b"data",
        b"{}",
        b"digest",
        b"",
    ]
    with pytest.raises(UnreadableRecord, match=OLD_SCHEMA):
        record_of((b"1-0", flat))
    assert "fairlog 0.1" in OLD_SCHEMA


def test_a_line_that_is_no_whole_entry_is_named_with_the_position_it_should_have() -> None:
    with pytest.raises(UnreadableRecord, match=r"^log position 4: the line is not a log entry"):
        read_entry(b'{"first":4}', 4)


def test_the_fields_of_an_entry_are_always_these_in_this_order() -> None:
    assert FIELDS == ("first", "at", "events", "commands", "private", "digest")
    assert tuple(stored(turn(FIRST))) == FIELDS


def test_a_commitment_differs_with_the_salt() -> None:
    assert commitment("00", PRIVATE) != commitment("01", PRIVATE)


@pytest.mark.parametrize("name", ["master", "anything"])
def test_events_cannot_be_changed_once_they_are_facts(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(FIRST, name, "m2")


def test_a_fact_names_the_type_of_its_event() -> None:
    assert Fact(1, 1, 1, "", FIRST).type == "MasterElected"
