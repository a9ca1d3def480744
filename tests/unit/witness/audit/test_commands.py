"""What is not as the command behind it would have caused it is named where it stands, though the chain is whole."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlog.cli.render import log_json
from scheduler.model.commands import (
    AcceptLog,
    AddAccount,
    AddDepartment,
    AddWindow,
    CancelTask,
    ChangeAccount,
    ChangeCompany,
    ChangeDepartment,
    Command,
    DecommissionWorker,
    EndedDriver,
    EndedExecutor,
    ExtendApp,
    GrantRole,
    HoldApp,
    IssueToken,
    KillApp,
    LoseWorker,
    MoveCompany,
    Private,
    RegisterCompany,
    RegisterKind,
    ReleaseApp,
    RemoveAccount,
    RemoveCompany,
    RemoveDepartment,
    RemoveWindow,
    RemoveWorker,
    ReprioritizeApp,
    RequeueApp,
    RestoreLog,
    RevokeRole,
    RevokeToken,
    ScaleApp,
    SetLimit,
    ShowApps,
    SignalApp,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.events import (
    EVENT_TYPES,
    CommandRefused,
    CompanyRegistered,
    CompanyRemoved,
    Event,
    KeyChanged,
    LogAccepted,
    LogRestored,
)
from scheduler.model.resources import Resources
from scheduler.model.sender import NOBODY, local
from scheduler.service.keyring import Keyring
from scheduler.store.codec import Fact, lines_of, read_export
from tests.property.given import Cluster, submission, worker
from tests.unit.recorded import edited, facts, rechained, stored, without
from tests.unit.recorded import said as stated
from witness.audit.audit import Audit, audit

GOLDEN = Path(__file__).parents[3] / "golden"


def golden() -> dict[str, list[Fact]]:
    """Recorded histories by the types that they hold."""
    logs: dict[str, list[Fact]] = {}
    for file in sorted(GOLDEN.glob("*.jsonl")):
        with file.open("rb") as lines:
            log = list(read_export(lines))
        logs |= {record.type: log for record in log}
    return logs


def lively() -> list[Fact]:
    """A cluster in which executors, drivers and workers end, one way or another, and take something along."""
    cluster = Cluster({"max_executor_failures": 1})
    cluster.company("acme", 128, 262144)
    for name in ("w1", "w2", "w3", "w4"):
        cluster.worker(name, 16)
    cluster.turn(SubmitApp(app="d1", company="acme", user="ann", driver=True, command=("true",)))
    cluster.submit("a1", 24)
    cluster.submit("a2", 6, per_task_mb=None)
    cluster.submit("a3", 8)
    cluster.turn(ChangeCompany(company="acme", cores=96, memory_mb=131072))
    cluster.turn(ScaleApp(app="a3", executors=1))
    cluster.turn(StartedExecutor(executor="a1.0"))
    cluster.ended("a1.0", done=True)
    cluster.turn(EndedExecutor(executor="a1.1", reason="exited"))
    cluster.turn(DecommissionWorker(worker="w2"))
    cluster.turn(LoseWorker(worker="w3", last_seen=5))
    cluster.turn(EndedDriver(driver="d1.driver-0", reason="failed", exit_code=3, detail="it was stopped by signal 9"))
    cluster.ended("a2.0", failed=True)
    cluster.turn(RemoveWorker(worker="w4"))
    *done, last = cluster.state.workers["w4"].executors
    for executor in done:
        cluster.ended(executor, done=True)
    cluster.ended(last)
    cluster.company("bolt")
    cluster.turn(RemoveCompany(company="bolt"))
    cluster.turn(replace(submission("h1", 4), hold=True), ReprioritizeApp(app="h1", priority=3))
    cluster.turn(replace(submission("h2", 4), after={"any": ("h1",)}))
    cluster.turn(ReleaseApp(app="h1"), HoldApp(app="h2"))
    cluster.turn(replace(submission("h3", 4), begin=cluster.state.at + 2000))
    cluster.turn(after_s=2)
    cluster.turn(RegisterKind(kind="gpu"))
    return facts(cluster)


def patient() -> list[Fact]:
    """A cluster in which a worker has labels, and a lost one is forgotten."""
    cluster = Cluster({"remember_lost_s": 5})
    cluster.company("acme", 16, 1 << 20)
    for name in ("w1", "w2"):
        cluster.worker(name, 16)
    cluster.turn(replace(worker("w1", 16), labels={"zone": "north"}))
    cluster.turn(LoseWorker(worker="w2"))
    cluster.submit("a1", 8)
    cluster.submit("a2", 16)
    cluster.turn(after_s=2)
    cluster.turn(after_s=10)
    return facts(cluster)


LOG = lively()


def timed() -> list[Fact]:
    """A cluster with a limit, in which an app is warned, extended and stopped at the end of its time."""
    cluster = Cluster()
    cluster.company("acme")
    cluster.worker("w1", 8)
    cluster.turn(SetLimit(scope="company", name="max_cores", company="acme", value=8))
    cluster.turn(
        SubmitApp(app="t1", company="acme", user="ann", cores=4, max_runtime_s=20, warn=("USR1", 5), command=("true",))
    )
    cluster.turn(StartedExecutor(executor="t1.0"))
    cluster.turn(after_s=15)
    cluster.turn(SignalApp(app="t1", signal="USR2", task=0, whole=True))
    cluster.turn(RequeueApp(app="t1", task=0, executor="t1.0"))
    cluster.turn(CancelTask(app="t1", task=0))
    cluster.turn(ExtendApp(app="t1", by_s=10))
    cluster.turn(after_s=20)
    cluster.turn(after_s=20)
    cluster.ended("t1.0")
    cluster.turn(SubmitApp(app="t2", company="acme", user="ann", cores=4, command=("true",)))
    cluster.turn(RequeueApp(app="t2"))
    cluster.ended("t2.0")
    cluster.turn(KillApp(app="t2"))
    cluster.ended("t2.1")
    return facts(cluster)


def windowed() -> list[Fact]:
    """A cluster with a window for which a worker closes, and one that is off."""
    cluster = Cluster({"kill_grace_s": 5})
    cluster.company("acme")
    cluster.worker("w1", 8)
    cluster.submit("a1", 8)
    at = cluster.state.at
    cluster.turn(AddWindow(window="x1", workers=("w1",), begin=at + 60_000, end=at + 90_000, notice_s=20))
    cluster.turn(AddWindow(window="x2", workers=("w1",), begin=at + 90_000, end=at + 95_000))
    cluster.turn(RemoveWindow(window="x2"))
    cluster.turn(after_s=40)
    for executor in list(cluster.state.executors):
        cluster.ended(executor)
    cluster.turn(after_s=60)
    return facts(cluster)


def departed() -> list[Fact]:
    """A cluster with departments, of which one is gone again."""
    cluster = Cluster()
    cluster.company("acme")
    cluster.worker("w1", 8)
    cluster.turn(AddDepartment(department="d1", part="1/2"), AddDepartment(department="d2", parent="d1"))
    cluster.turn(MoveCompany(company="acme", department="d2"))
    cluster.submit("a1", 8)
    cluster.turn(ChangeDepartment(department="d1", borrow_limit="none"))
    cluster.turn(SetLimit(scope="department", name="max_cores", department="d1", value=8))
    cluster.turn(MoveCompany(company="acme", department="d1"), RemoveDepartment(department="d2"))
    return facts(cluster)


def inhabited() -> list[Fact]:
    """A cluster whose accounts, roles and tokens come and go."""
    cluster = Cluster()
    cluster.company("acme")
    cluster.turn(
        AddAccount(account="acme/ann", display="Ann"),
        AddAccount(account="worker/w1", host="h1", cores=4, memory_mb=1024),
        GrantRole(account="acme/ann", role="admin"),
        AddDepartment(department="research"),
        GrantRole(account="acme/ann", role="admin", department="research"),
        IssueToken(token="00000001", account="acme/ann", hash="ab" * 32),
        IssueToken(token="00000002", account="acme/ann", hash="cd" * 32, role="user"),
        ChangeAccount(account="acme/ann", display="Ann A."),
        ShowApps(company="acme", shown=True),
        by=local(1000),
    )
    cluster.turn(
        RevokeRole(account="acme/ann", role="admin", department="research"),
        RevokeRole(account="acme/ann", role="user"),
        RevokeToken(token="00000001"),
        RemoveAccount(account="acme/ann"),
        by=local(1000),
    )
    return facts(cluster)


def doubtful() -> list[Fact]:
    """A cluster with a worker on which executors of two apps fail quickly, and which ends its probe well."""
    cluster = Cluster({"suspect_failures": 2})
    cluster.company("acme")
    for number in range(4):
        cluster.worker(f"w{number}", 4 if number else 16)
    for app in ("a1", "a2"):
        cluster.submit(app, 4)
        cluster.ended(f"{app}.0", failed=True)
    cluster.turn(after_s=61)
    cluster.submit("a3", 4)
    cluster.ended("a3.0", done=True)
    return facts(cluster)


def restored() -> list[Fact]:
    """A log that was restored while an executor ran, by one who does not have its masters' key."""
    before, ring = Keyring.new(), Keyring.new()
    cluster = Cluster({})
    cluster.company("acme")
    cluster.worker("w1", 16)
    cluster.submit("a1", 4)
    turn = cluster.begin()
    turn.record(KeyChanged(key=before.master, public=before.public(before.master)))
    turn.settle()
    cluster._note(turn)
    cluster.turn(RestoreLog(ring.master, ring.public(ring.master)), by=local(1000))
    cluster.turn(AcceptLog(seq=2, digest="2" * 64, known=40, known_digest="4" * 64, by="master m1"), by=local(1000))
    return facts(cluster)


def entitled() -> list[Fact]:
    """A cluster that shares by entitlement, where room is made for one company and no longer needed then."""
    cluster = Cluster({"reclaim_patience_s": 60})
    for company in ("acme", "globex"):
        cluster.company(company)
    cluster.worker("w1", 16)
    cluster.submit("a1", 16)
    cluster.submit("g1", 4, company="globex")
    cluster.worker("w2", 16)
    return facts(cluster)


def in_slots() -> list[Fact]:
    """A cluster of one executor of globex, which awaits a slot, has it, obeys nobody, and awaits another one."""
    cluster = Cluster({"reclaim_patience_s": 60, "slot_s": 60, "never_fits": "wait"})
    for company in ("acme", "globex"):
        cluster.company(company)
    cluster.worker("w1", 16)
    for app, company, each in (("a1", "acme", 4), ("g1", "globex", 16)):
        asked = SubmitApp(app=app, company=company, user="ann", cores=16, tasks=99, command=("true",))
        cluster.turn(replace(asked, executor_cores=each, executor_memory_mb=1024))
    cluster.turn(after_s=60)
    cluster.turn(after_s=120)
    return facts(cluster)


def position(kind: str, said: dict[str, object]) -> int:
    """Where the log has an entry of that type that says so."""
    places = [r.seq for r in LOG if r.type == kind and said.items() <= stated(r).items()]
    return places[0]


PATIENT = patient()
LOGS = {
    record.type: log
    for log in (
        timed(),
        windowed(),
        departed(),
        doubtful(),
        inhabited(),
        restored(),
        entitled(),
        in_slots(),
        LOG,
        PATIENT,
    )
    for record in log
} | golden()


def test_a_lively_log_has_no_deviation() -> None:
    assert audit(LOG) == audit(PATIENT) == []


def test_a_restored_log_has_no_deviation_and_the_audit_says_who_named_its_key() -> None:
    audited, log = Audit(), restored()
    assert list(audited.deviations(log)) == []
    [event] = [record for record in log if isinstance(record.event, LogRestored)]
    [accepted] = [record for record in log if isinstance(record.event, LogAccepted)]
    assert [each[:2] for each in audited.restored] == [(event.seq, "local/1000"), (accepted.seq, "local/1000")]
    assert "receipts of positions 3 to 40 are broken" in str(audited.restored[1])
    assert f"the key {stated(event)['key']} signs since" in str(audited.restored[0])


def test_a_restore_with_the_public_half_of_another_key_is_named() -> None:
    log = restored()
    seq = next(record.seq for record in log if record.type == "LogRestored")
    public = Keyring.new()
    found = audit(rechained(edited(log, seq, public=public.public(public.master))))
    assert (found[0].seq, found[0].rule) == (seq, "I7")


STATED = {"CommandRefused", "RefusalsOmitted", "KeyChanged", "LogSealed"}
"""What a master states by itself."""
EARLIER = {"RoomReserved", "ReservationLapsed", "RoomHeld", "HoldEnded"}
"""What stands in logs of an earlier edition of the rules alone."""


@pytest.mark.parametrize("kind", sorted(EVENT_TYPES.keys() - STATED - EARLIER))
def test_an_entry_that_was_doubled_is_named_at_its_own_position_whatever_it_is(kind: str) -> None:
    log = appended(KNOWN, REFUSED) if kind == "CommandRefused" else LOGS[kind]
    places = [number for number, record in enumerate(log, start=1) if record.type == kind]
    for seq in {places[0], places[len(places) // 2], places[-1]}:
        found = next(Audit().deviations(rechained([*log[:seq], log[seq - 1], *log[seq:]])))
        assert found.seq == seq + 1, found


WINDOWED = windowed()


@pytest.mark.parametrize("kind", ["ExecutorRevoked", "WorkerChanged"])
def test_a_log_in_which_something_outlives_the_beginning_of_a_window_breaks_its_rule(kind: str) -> None:
    assert audit(WINDOWED) == []
    told = [each.seq for each in WINDOWED if each.type == kind and stated(each).get("window")]
    found = audit(rechained(without(WINDOWED, told[0])))
    assert (found[0].seq, found[0].rule) == (told[0], "W14")


def test_a_log_that_tells_somebody_too_late_of_a_window_breaks_its_rule() -> None:
    told, *_ = [each for each in WINDOWED if each.type == "ExecutorRevoked"]
    late = rechained(edited(WINDOWED, told.seq, deadline=stated(told)["deadline"] + 60_000))
    found = audit(late)
    assert (found[0].seq, found[0].rule) == (told.seq, "W14")


@pytest.mark.parametrize(
    ("kind", "said", "rule"),
    [
        ("ExecutorRemoved", {"reason": "lost"}, "W2"),
        ("AppRemoved", {"app": "d1"}, "D3"),
        ("AppRemoved", {"app": "a2"}, "W5"),
        ("WorkerRemoved", {"reason": "removed"}, "W3"),
        ("ExecutorRemoved", {"reason": "killed"}, "W3"),
    ],
)
def test_what_a_command_took_along_and_is_left_out_is_missed_where_it_was(
    kind: str, said: dict[str, object], rule: str
) -> None:
    seq = position(kind, said)
    found = audit(rechained(without(LOG, seq)))
    assert (found[0].seq, found[0].rule) == (seq, rule)
    assert found[0].due.startswith(kind)


@pytest.mark.parametrize(
    ("kind", "said", "changes", "rule"),
    [
        ("AppRegistered", {"app": "a2"}, {"requested": Resources(16, 4096)}, "A1"),
        ("AppRegistered", {"app": "a2"}, {"requested": Resources(8, 512)}, "A1"),
        ("AppRegistered", {"app": "a2"}, {"cores": 200, "requested": Resources(200, 102400)}, "A1"),
        ("AppRegistered", {"app": "a2"}, {"company": "nobody"}, "A1"),
        ("ExecutorRemoved", {"reason": "lost"}, {"reason": "killed"}, "W2"),
        ("AppRemoved", {"app": "d1"}, {"reason": "finished"}, "D3"),
        ("WorkerRemoved", {"reason": "removed"}, {"last_seen": 7}, "W3"),
        ("WorkerChanged", {"status": "leaving"}, {"offer": Resources(2, 1024)}, "W3"),
        ("CompanyChanged", {}, {"amounts": Resources(1, 131072)}, "C2"),
    ],
)
def test_what_came_of_a_command_and_was_edited_is_named(
    kind: str, said: dict[str, object], changes: dict[str, object], rule: str
) -> None:
    seq = position(kind, said)
    found = audit(rechained(edited(LOG, seq, **changes)))
    assert (found[0].seq, found[0].rule) == (seq, rule)


@pytest.mark.parametrize(
    "kind",
    [
        ("ExecutorRemoved", "AppRemoved"),
        ("DriverRemoved", "AppRemoved"),
        ("ExecutorRemoved", "WorkerRemoved"),
    ],
)
def test_what_came_of_one_command_and_was_exchanged_is_named_where_it_begins(kind: tuple[str, str]) -> None:
    one = next(n for n, (r, s) in enumerate(pairwise(LOG)) if (r.type, s.type) == kind and r.cause)
    log = [*LOG[:one], LOG[one + 1], LOG[one], *LOG[one + 2 :]]
    found = audit(rechained(log))
    assert found[0].seq == one + 1


def appended(command: Command, event: Event, private: Private | None = None) -> list[Fact]:
    """The log with one more turn that takes this command, which is said to have caused this event."""
    last = LOG[-1]
    return [*LOG, Fact(last.seq + 1, last.at + 1000, last.seq + 1, "more", event, "", command, NOBODY, private, 1)]


def told(log: list[Fact], *, public: bool = False) -> list[Fact]:
    """What an export of such a log tells."""
    lines = [log_json(line) for record in stored(log) for line in lines_of(record, public=public)]
    return list(read_export(f"{line}\n".encode() for line in lines))


KNOWN, FRESH = RegisterCompany(company="acme"), RegisterCompany(company="fresh")
SUBMITTED = SubmitApp(app="z1", company="acme", user="ann", cores=8)
REFUSED = CommandRefused(
    error="DuplicateCompany", message="company 'acme' is registered already; `fairlog company set` changes it"
)


def test_a_refusal_that_was_due_is_as_due() -> None:
    assert audit(told(appended(KNOWN, REFUSED))) == []


def test_a_refusal_whose_sentence_another_version_worded_differently_is_as_due() -> None:
    assert audit(told(appended(KNOWN, CommandRefused(error="DuplicateCompany", message="no")))) == []


@pytest.mark.parametrize(("at", "too_many"), [(120_000, [61]), (120_059, [61]), (179_999, [61]), (180_000, [])])
def test_a_refusal_beyond_those_of_a_minute_is_named(at: int, too_many: list[int]) -> None:
    cluster = Cluster()
    cluster.company("acme")
    log = facts(cluster)
    first = len(log) + 1
    for seq in range(first, first + 61):
        when = at if seq == first + 60 else 120_000
        log.append(Fact(seq, when, seq, f"{seq}", REFUSED, "", KNOWN, NOBODY, None, 1))
    found = audit(told(log))
    assert [(each.seq, each.rule) for each in found] == [(first + number - 1, "T3") for number in too_many]


@pytest.mark.parametrize(
    ("command", "event", "due"),
    [
        (FRESH, REFUSED, "CompanyRegistered company=fresh"),
        (KNOWN, CommandRefused(error="UnknownCompany", message=REFUSED.message), "CommandRefused error=Dup"),
        (KNOWN, CompanyRegistered(company="acme"), "CommandRefused error=DuplicateCompany"),
        (RemoveCompany(company="acme"), CompanyRemoved(company="acme"), "CommandRefused error=CompanyInUse"),
        (StartedExecutor(executor="nobody.0"), REFUSED, "CommandRefused error=UnknownExecutor"),
    ],
)
def test_a_refusal_that_was_not_due_and_an_acceptance_where_one_was_are_named(
    command: Command, event: Event, due: str
) -> None:
    found = audit(told(appended(command, event)))
    assert [(each.seq, each.rule) for each in found] == [(len(LOG) + 1, "T3")]
    assert found[0].due.startswith(due)


def test_a_refusal_that_private_parts_may_explain_is_believed_if_withheld() -> None:
    refused = CommandRefused(error="InvalidCommand", message="an app needs a command; add it as `-- CMD ARG…`")
    runs = appended(SUBMITTED, refused, Private(command=("true",)))
    assert [(each.seq, each.rule) for each in audit(told(runs))] == [(len(LOG) + 1, "T3")]
    assert audit(told(runs, public=True)) == []
    assert audit(told(appended(SUBMITTED, refused, Private(command=())))) == []


def test_a_command_that_was_edited_is_named_at_what_it_caused() -> None:
    seq = position("AppRegistered", {"app": "a2"})
    command = LOG[seq - 1].command
    assert isinstance(command, SubmitApp)
    log = [*LOG[: seq - 1], replace(LOG[seq - 1], command=replace(command, cores=16)), *LOG[seq:]]
    found = audit(rechained(log))
    assert (found[0].seq, found[0].done.split()[0], "cores=16" in found[0].due) == (seq, "AppRegistered", True)


def test_events_that_two_commands_of_one_turn_exchanged_are_both_named() -> None:
    cluster = Cluster()
    cluster.company("acme")
    cluster.worker("w1", 16)
    cluster.worker("w2", 16)
    cluster.submit("a1", 8)
    cluster.turn(StartedExecutor(executor="a1.0"), StartedExecutor(executor="a1.1"))
    log = facts(cluster)
    one, other = log[-2:]
    log[-2:] = [replace(one, event=other.event), replace(other, event=one.event)]
    assert [each.seq for each in audit(rechained(log))] == [len(log) - 1, len(log)]


def test_a_command_that_was_edited_and_not_chained_anew_is_named_as_its_turn() -> None:
    seq = position("AppRegistered", {"app": "a2"})
    lines = [log_json(line) for record in stored(LOG) for line in lines_of(record)]
    lines[seq - 1] = lines[seq - 1].replace('"cores":6,', '"cores":7,', 1)
    found = audit(read_export(f"{line}\n".encode() for line in lines))
    assert [(each.seq, each.rule) for each in found] == [(LOG[seq - 1].turn, "chain")]
