"""The continuous audit: what is appended is checked, a restart goes on, no trouble of the log or store is missed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import fakeredis
import pytest
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import NoPermissionError
from structlog.testing import capture_logs

from fairlog.watch import auditor as auditing
from fairlog.watch.auditor import Auditor
from fairlog.watch.conditions import AuditedTo, found
from fairlog.watch.surroundings import audited_to, look_around
from recovery.archive.archive import archive, open_log
from recovery.replay.rebuild import fold
from scheduler.model.commands import RegisterCompany
from scheduler.model.events import MasterElected
from scheduler.model.sender import local
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.store.codec import GENESIS_DIGEST, Record, encode_turn, stored
from scheduler.store.eventlog import Position
from tests.unit.recorded import facts, put, rechained, without
from tests.unit.recorded import stored as records_of
from tests.unit.recovery.archive.archived import KEYS, RECORDS, commit

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.store.eventlog import EventLog

HALF = len(RECORDS) // 2
END = RECORDS[-1].last
ADMITTED = [fact.seq for fact in facts(RECORDS) if fact.type == "AppAdmitted"]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "WAIT_MS", 1)
    monkeypatch.setattr(auditing, "SAY_EVERY_S", 0)


def work_off(auditor: Auditor) -> AuditedTo:
    """Audit until the log has no more, or cannot be read."""
    while True:
        before = auditor.position
        if auditor.step() or auditor.position == before:
            return auditor.findings


def begun(log: EventLog, folder: Path | None = None) -> Auditor:
    auditor = Auditor(log, folder)
    auditor.resume()
    return auditor


def said(fake: Redis) -> AuditedTo:
    found = audited_to(fake, KEYS)
    assert found is not None
    return found


def test_it_audits_what_is_appended_and_says_how_far_it_is(fake: fakeredis.FakeRedis) -> None:
    auditor = begun(commit(fake, RECORDS[:HALF]))
    assert work_off(auditor).seq == RECORDS[HALF - 1].last
    assert said(fake).seq == RECORDS[HALF - 1].last
    commit(fake)
    now = work_off(auditor)
    assert (now.seq, now.digest, now.deviations) == (END, RECORDS[-1].digest, 0)
    assert said(fake)[:2] == now[:2]
    assert now.events == END
    assert now.decisions > 20


def test_a_deviation_is_a_line_of_its_log_and_a_condition(fake: fakeredis.FakeRedis) -> None:
    forged = records_of(without(facts(RECORDS), ADMITTED[-1]))
    auditor = begun(put_all(fake, forged))
    with capture_logs() as logs:
        now = work_off(auditor)
    assert now.first == ADMITTED[-1]
    assert now.deviations >= 1
    assert now.seq == forged[-1].last, "it goes on behind a deviation"
    alarms = [each for each in logs if each["event"] == "the log breaks its rules"]
    assert (alarms[0]["log_level"], alarms[0]["seq"]) == ("error", ADMITTED[-1])
    around = look_around(fake, KEYS)
    told = [each for each in found(ClusterState(), around) if each.condition == "deviation"]
    assert f"From {ADMITTED[-1]} on this log does not follow its rules" in told[0].sentence


def put_all(fake: Redis, records: list[Record]) -> EventLog:
    log = open_log(fake, KEYS)
    put(log, records)
    return log


@pytest.mark.parametrize("planted", [False, True])
def test_a_restart_goes_on_from_a_checkpoint_and_forgets_nothing(
    fake: fakeredis.FakeRedis, tmp_path: Path, *, planted: bool
) -> None:
    records = records_of(without(facts(RECORDS), ADMITTED[3])) if planted else RECORDS
    first = begun(put_all(fake, records[:HALF]), tmp_path)
    before = work_off(first)
    first.keep()
    put_all(fake, records[HALF:])
    again = begun(open_log(fake, KEYS), tmp_path)
    assert again.findings._replace(at=0, host="") == before._replace(at=0, host="")
    after = work_off(again)
    whole = work_off(begun(open_log(fake, KEYS)))
    assert (after.seq, after.events, after.decisions) == (whole.seq, whole.events, whole.decisions)
    assert (after.first, after.verdict) == (whole.first, whole.verdict)
    assert bool(after.deviations) is planted


def test_from_every_checkpoint_the_rest_of_a_log_is_audited_as_without(tmp_path: Path) -> None:
    """The ledgers that the audit keeps beside the state's follow from a state as well."""
    log = put_all(fakeredis.FakeRedis(server=fakeredis.FakeServer()), RECORDS)
    walking = begun(log, tmp_path)
    for number, record in enumerate(RECORDS):
        assert walking.hear(record) == []
        if number % 10 == 9:
            walking.keep()
            rest = begun(log, tmp_path)
            assert rest.position == Position(record.last, record.digest)
            assert [each for later in RECORDS[number + 1 :] for each in rest.hear(later)] == []
    assert len(list(tmp_path.glob("*.audited"))) == auditing.KEPT


@pytest.mark.parametrize("spoil", [lambda text: text[:-9], lambda text: b"{}\n" + text, lambda _: b""])
def test_a_checkpoint_that_was_altered_is_passed_over(fake: fakeredis.FakeRedis, tmp_path: Path, spoil: Any) -> None:
    log = commit(fake)
    auditor = begun(log, tmp_path)
    for record in RECORDS[:HALF]:
        auditor.hear(record)
    auditor.keep()
    for record in RECORDS[HALF:]:
        auditor.hear(record)
    auditor.keep()
    newest = max(tmp_path.glob("*.audited"))
    newest.write_bytes(spoil(newest.read_bytes()))
    assert begun(log, tmp_path).position.seq == RECORDS[HALF - 1].last
    for each in tmp_path.glob("*.audited"):
        each.write_bytes(b"nothing")
    assert begun(log, tmp_path).position.seq == 0


def test_a_log_that_lost_its_end_is_audited_again_from_where_it_agrees(
    fake: fakeredis.FakeRedis, tmp_path: Path
) -> None:
    whole = facts(RECORDS)
    one, other = records_of(whole), records_of(without(whole, ADMITTED[-12]))
    log = put_all(fake, one[:HALF])
    auditor = begun(log, tmp_path)
    work_off(auditor)
    auditor.keep()
    put_all(fake, one[HALF:])
    work_off(auditor)
    fake.delete(KEYS.log)
    put_all(fake, other)
    auditor._look_again()
    now = work_off(auditor)
    assert now.rewound_from == END
    assert now.rewound_at > 0
    assert now.seq == log.head().seq == other[-1].last
    told = [each.condition for each in found(ClusterState(), look_around(fake, KEYS))]
    assert "rewound" in told


@pytest.mark.parametrize("restarted", [False, True])
def test_a_log_that_has_its_end_again_has_lost_nothing(
    fake: fakeredis.FakeRedis, tmp_path: Path, *, restarted: bool
) -> None:
    """An older copy of the store was started, and then the right one, with the auditor or without."""
    auditor = begun(log := put_all(fake, RECORDS), tmp_path)
    work_off(auditor)
    fake.delete(KEYS.log)
    put_all(fake, RECORDS[:HALF])
    auditor._look_again()
    assert work_off(auditor).rewound_from == END
    auditor.keep()
    put_all(fake, RECORDS[HALF:])
    auditor = begun(log, tmp_path) if restarted else auditor
    with capture_logs() as logged:
        now = work_off(auditor)
    assert (now.seq, now.rewound_from, now.rewound_at, now.rewound_lost) == (END, 0, 0, "")
    assert [each["audited"] for each in logged if each["event"] == "the log holds again what was audited"] == [END]
    auditor.say(at_once=True)
    told = [each.condition for each in found(ClusterState(), look_around(fake, KEYS))]
    assert "rewound" not in told


def grown(records: list[Record], number: int) -> list[Record]:
    """The records, and as many turns that another master has lawfully added, with a company each."""
    log, state = list(records), ClusterState()
    for fact in facts(records):
        fold(state, fact)
    for each in range(number):
        turn = Turn(state, state.at + 1_000)
        if not each:
            turn.record(MasterElected(master="other"))
        turn.take(RegisterCompany(company=f"new{each}"), f"other-{each}", local(7))
        turn.settle()
        log.append(encode_turn(turn.entries, turn.commands, first=turn.first, at=turn.at, previous=log[-1].digest))
    return log


def lost_and_grown(fake: Redis, number: int) -> tuple[list[Record], set[str]]:
    """The log after a failover has dropped its second half and another master went on; the commands that are gone."""
    after = grown(RECORDS[:HALF], number)
    fake.delete(KEYS.log)
    put_all(fake, after)
    return after, {fact.cause for fact in facts(RECORDS)[RECORDS[HALF].first - 1 :] if fact.command and fact.cause}


@pytest.mark.parametrize("again", [False, True])
def test_a_log_that_lost_its_end_breaks_no_rule_and_its_loss_is_named_once(
    fake: fakeredis.FakeRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    """Also if it was read again up to what is lost, and if the auditor was stopped meanwhile."""
    monkeypatch.setattr(auditing, "AGAIN_EVERY_S", 0.0)
    monkeypatch.setattr(auditing, "PAGE", len(RECORDS) - 3)
    auditor = begun(put_all(fake, RECORDS), tmp_path)
    work_off(auditor)
    auditor.step()
    auditor.keep()
    after, gone = lost_and_grown(fake, 2 * len(RECORDS))
    with capture_logs() as logged:
        if again:
            auditor = begun(open_log(fake, KEYS), tmp_path)
        for _ in range(2 * len(RECORDS)):
            work_off(auditor)
    now = auditor.findings
    assert (now.seq, now.deviations, now.verdict) == (after[-1].last, 0, "")
    assert now.rewound_from == END
    named = [each["command"] for each in logged if each["event"] == "a command is not in the log any more"]
    assert (len(named), set(named)) == (len(gone), gone)
    [condition] = [each for each in found(ClusterState(), look_around(fake, KEYS)) if each.condition == "rewound"]
    assert condition.sentence.endswith(f" and {len(gone) - 3} more")
    auditor.keep()
    with capture_logs() as logged:
        later = begun(open_log(fake, KEYS), tmp_path)
        work_off(later)
    assert [each for each in logged if each["log_level"] == "error"] == []
    assert later.findings._replace(at=0, host="") == now._replace(at=0, host="")


def test_a_command_that_was_carried_out_again_is_not_lost(fake: fakeredis.FakeRedis) -> None:
    one = grown(RECORDS[:HALF], 3)
    auditor = begun(put_all(fake, one))
    work_off(auditor)
    fake.delete(KEYS.log)
    put_all(fake, [*RECORDS[: HALF - 1], *grown(RECORDS[: HALF - 1], 2)[HALF - 1 :]])
    auditor._look_again()
    lost = auditor.findings.rewound_lost
    assert [number for number in range(3) if f"RegisterCompany of local/7 (new{number})" in lost] == [2]


def test_what_the_replicas_have_not_confirmed_is_not_audited_yet(fake: fakeredis.FakeRedis) -> None:
    """So a failover that drops it is nothing to tell of."""
    settled = RECORDS[HALF - 1].last
    fake.set(KEYS.settled, settled)
    auditor = begun(put_all(fake, RECORDS))
    assert work_off(auditor).seq == settled
    assert auditor.step() > 0, "it would ask the store without a pause"
    after, _ = lost_and_grown(fake, 5)
    auditor._look_again()
    fake.set(KEYS.settled, after[-1].last)
    now = work_off(auditor)
    assert (now.seq, now.deviations, now.rewound_at) == (after[-1].last, 0, 0)


def test_a_restart_finds_that_the_log_was_written_anew(fake: fakeredis.FakeRedis, tmp_path: Path) -> None:
    """The newest of the checkpoints that it does not hold is what it is told of, also if there are several."""
    auditor = begun(put_all(fake, RECORDS[:HALF]), tmp_path)
    work_off(auditor)
    auditor.keep()
    put_all(fake, RECORDS[HALF:])
    work_off(auditor)
    auditor.keep()
    fake.delete(KEYS.log)
    put_all(fake, RECORDS[:3])
    with capture_logs() as logged:
        again = begun(open_log(fake, KEYS), tmp_path)
    assert [each["audited"] for each in logged if each["log_level"] == "error"] == [END]
    assert again.findings.rewound_from == END
    assert work_off(again).seq == RECORDS[2].last


def test_an_altered_entry_is_told_once_and_audited_once_it_is_mended(fake: fakeredis.FakeRedis) -> None:
    auditor = begun(commit(fake, RECORDS[:HALF]))
    work_off(auditor)
    broken = RECORDS[HALF]._replace(at=RECORDS[HALF].at + 1)
    fake.xadd(KEYS.log, cast("Any", stored(broken)), id=f"{broken.last}-0")
    for _ in range(3):
        assert auditor.step() > 0
    assert auditor.findings.deviations == 1
    assert auditor.findings.verdict.startswith(f"From {broken.first} on this log cannot be trusted")
    assert "altered" in said(fake).trouble
    fake.delete(KEYS.log)
    auditor.log.store.delete(KEYS.log)
    put_all(fake, RECORDS)
    assert work_off(auditor).seq == END
    assert (auditor.findings.deviations, auditor.findings.trouble) == (1, "")


@pytest.mark.parametrize("place", [0, HALF, len(RECORDS) - 1])
def test_an_entry_that_is_altered_after_its_audit_is_found_and_told_once(
    fake: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setattr(auditing, "AGAIN_EVERY_S", 0.0)
    monkeypatch.setattr(auditing, "PAGE", 3)
    auditor = begun(commit(fake))
    work_off(auditor)
    whole = len(RECORDS)
    for _ in range(whole):
        auditor.step()
    assert auditor.findings.deviations == 0
    altered = RECORDS[place]._replace(at=RECORDS[place].at + 1)
    fake.delete(KEYS.log)
    put_all(fake, [*RECORDS[:place], altered, *RECORDS[place + 1 :]])
    for _ in range(2 * whole):
        auditor.step()
    assert (auditor.findings.deviations, auditor.findings.first, auditor.findings.seq) == (1, altered.first, END)
    auditor.say(at_once=True)
    assert "deviation" in [each.condition for each in found(ClusterState(), look_around(fake, KEYS))]


def test_it_reads_on_through_the_archive_and_waits_for_one_that_is_away(
    fake: fakeredis.FakeRedis, tmp_path: Path
) -> None:
    log = commit(fake)
    list(archive(log, (tmp_path / "old").as_uri(), retain=30))
    (tmp_path / "old").rename(tmp_path / "gone")
    auditor = begun(log)
    assert auditor.step() > 0
    assert "cannot be read" in said(fake).trouble
    assert auditor.findings.deviations == 0, "that a file is away is no deviation"
    (tmp_path / "gone").rename(tmp_path / "old")
    assert work_off(auditor).seq == END
    assert said(fake).trouble == ""


def test_entries_that_are_archived_meanwhile_are_no_trouble(fake: fakeredis.FakeRedis, tmp_path: Path) -> None:
    auditor = begun(commit(fake))
    work_off(auditor)
    list(archive(auditor.log, tmp_path.as_uri(), retain=0))
    auditor._look_again()
    assert work_off(auditor).seq == END
    assert auditor.findings.rewound_at == 0


def test_it_waits_for_a_store_that_is_away_and_keeps_a_checkpoint_when_it_stops(
    fake: fakeredis.FakeRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = commit(fake)
    follow, failures = log.follow, iter([StoreConnectionError("away")] * 3)

    def away(*args: Any, **options: Any) -> list[Record]:
        for failure in failures:
            raise failure
        return follow(*args, **options)

    monkeypatch.setattr(log, "follow", away)
    auditor, stopping = Auditor(log, tmp_path), threading.Event()
    running = threading.Thread(target=auditor.run, args=(stopping,))
    running.start()
    try:
        for _ in _until(lambda: auditor.findings.seq == END):
            pass
    finally:
        stopping.set()
        running.join()
    assert [path.name for path in tmp_path.glob("*")] == [f"prod-{END:015}.audited"]
    assert said(fake).seq == END


def _until(done: Any) -> Iterator[None]:
    pause = threading.Event()
    for _ in range(3_000):
        if done():
            return
        pause.wait(0.01)
        yield
    raise AssertionError("it did not happen")


class Refusing(fakeredis.FakeRedis):
    """A store whose user may write nothing."""

    def set(self, *_: Any, **__: Any) -> Any:
        raise NoPermissionError("this user has no permissions to run the 'set' command")


def test_without_the_right_to_say_so_it_audits_all_the_same(fake: fakeredis.FakeRedis) -> None:
    commit(fake)
    log = open_log(Refusing(server=fake.connection_pool.connection_kwargs["server"]), KEYS)
    with capture_logs() as logs:
        assert work_off(begun(log)).seq == END
    assert len([each for each in logs if "cannot write its position" in each["event"]]) == 1


def test_an_empty_log_is_waited_for(fake: fakeredis.FakeRedis) -> None:
    auditor = begun(open_log(fake, KEYS))
    assert work_off(auditor).digest == GENESIS_DIGEST
    commit(fake)
    assert work_off(auditor).seq == END


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"seq": 1}', b'{"strange": 1}'])
def test_what_somebody_else_wrote_into_its_key_is_passed_over(fake: fakeredis.FakeRedis, text: bytes) -> None:
    fake.set(KEYS.audited, text)
    assert audited_to(fake, KEYS) is None


def test_a_forged_log_with_a_valid_chain_is_found_from_a_checkpoint_on(
    fake: fakeredis.FakeRedis, tmp_path: Path
) -> None:
    forged = records_of(rechained(without(facts(RECORDS), ADMITTED[-1])))
    cut = next(number for number, each in enumerate(forged) if each.last >= ADMITTED[-1] - 20)
    auditor = begun(put_all(fake, forged[:cut]), tmp_path)
    work_off(auditor)
    auditor.keep()
    put_all(fake, forged[cut:])
    assert work_off(begun(open_log(fake, KEYS), tmp_path)).first == ADMITTED[-1]
