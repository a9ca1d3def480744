"""Masters as processes: one serves, the others follow the log and take over, whatever becomes of the first."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis
from rq import Queue, Worker

from fairlog.cli.main import main
from fairlog.local.store import EmbeddedStore
from recovery.failover.follower import Follower
from recovery.failover.lease import Lease, Member, last_sign, members
from recovery.failover.master import Master
from recovery.replay.rebuild import rebuild
from scheduler.model.commands import RegisterCompany
from scheduler.model.errors import InvariantViolated, StaleLog, UnreadableRecord
from scheduler.model.events import AppAdmitted
from scheduler.service.client import CommandClient
from scheduler.service.reconcile import stored_grants
from scheduler.service.scheduler import Scheduler
from scheduler.store.codec import encode_turn
from scheduler.store.connection import clock_ms
from scheduler.store.eventlog import GENESIS, EventLog
from scheduler.store.keys import Keys
from tests.integration.forked import Forked
from tests.integration.servers import a_standby_waits
from tests.waiting import HOPELESS_S, wait_until

Start = Callable[..., Forked]


@pytest.fixture
def keys() -> Keys:
    return Keys(f"test-{uuid4().hex[:8]}")


@pytest.fixture
def client(connection: Redis, keys: Keys) -> CommandClient:
    return CommandClient(connection, keys.cluster, timeout_s=HOPELESS_S)


@pytest.fixture
def start(store: EmbeddedStore, keys: Keys) -> Iterator[Start]:
    """Starts master processes, which end with the test."""
    started: list[Forked] = []

    def start(*options: str) -> Forked:
        command = ["master", "--store", store.url, "--cluster", keys.cluster, *options]
        process = Forked(main, *command, environment=os.environ, log=Path(os.devnull))
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def serving_pid(client: CommandClient) -> int | None:
    serving, _ = members(client.store, client.keys)
    return serving.pid if serving else None


def two_masters(start: Start, client: CommandClient, *, lease: str = "3600") -> tuple[Forked, Forked]:
    """One master that serves with this lease (s), and one that stands by with the state ready.

    A lease of an hour runs out only where a test lets it.
    """
    first = start("--lease", lease)
    wait_until(lambda: serving_pid(client) == first.pid, "the first master")
    second = start("--lease", "3600")
    wait_until(lambda: len(members(client.store, client.keys)[1]) == 1, "the standby")
    client.send(RegisterCompany(company="acme"))
    return first, second


def let_the_lease_run_out(client: CommandClient) -> None:
    client.store.pexpire(client.keys.lease, 1)


def test_releasing_the_lease_wakes_a_standby_at_once(connection: Redis, keys: Keys, log: EventLog) -> None:
    first, second = (Lease(connection, keys, Member(name, 1, "there"), 60_000) for name in ("m1", "m2"))
    assert first.take()
    assert not second.take()
    assert 0 < second.left_ms <= 60_000
    first.release()
    assert log.follow(GENESIS, wait_ms=60_000, bell=second.bell) == []
    assert second.take()
    assert not first.take()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(log.follow, GENESIS, wait_ms=60_000, bell=first.bell)
        wait_until(lambda: a_standby_waits(connection), "it to wait")
        second.release()
        assert waiting.result(HOPELESS_S) == []


def elections(log: EventLog) -> int:
    return sum(fact.type == "MasterElected" for fact in log.facts())


def test_a_standby_takes_over_once_a_killed_masters_lease_expires(
    start: Start, client: CommandClient, connection: Redis, keys: Keys
) -> None:
    first, second = two_masters(start, client)
    first.kill()
    first.wait()
    assert serving_pid(client) == first.pid
    let_the_lease_run_out(client)
    client.send(RegisterCompany(company="next"))
    assert serving_pid(client) == second.pid
    assert elections(EventLog(connection, keys)) == 2


def test_an_idle_master_renews_its_lease_before_it_expires(start: Start, client: CommandClient, keys: Keys) -> None:
    first = start("--lease", "9")
    wait_until(lambda: serving_pid(client) == first.pid, "the master")
    left_ms = [9_000]

    def is_renewed() -> bool:
        left_ms.append(client.store.pttl(keys.lease))
        return left_ms[-1] > left_ms[-2]

    wait_until(is_renewed, "the lease to be renewed")
    assert min(left_ms) > 0
    assert left_ms[-1] <= 9_000


def test_a_waiting_master_told_to_stop_hands_over_before_its_lease_expires(
    start: Start, client: CommandClient, connection: Redis, keys: Keys
) -> None:
    first, second = two_masters(start, client)
    first.terminate()
    assert first.wait(HOPELESS_S) == 0
    client.send(RegisterCompany(company="next"))
    assert serving_pid(client) == second.pid
    assert elections(EventLog(connection, keys)) == 2


def test_a_master_paused_past_its_lease_stands_by_and_commits_nothing(
    start: Start, client: CommandClient, connection: Redis, keys: Keys
) -> None:
    first, second = two_masters(start, client, lease="3")
    os.kill(first.pid, signal.SIGSTOP)
    client.send(RegisterCompany(company="next"))
    log = EventLog(connection, keys)
    before = log.head()
    os.kill(first.pid, signal.SIGCONT)
    wait_until(lambda: a_standby_waits(connection), "the first master to stand by")
    assert (log.head(), serving_pid(client)) == (before, second.pid)
    second.terminate()
    assert second.wait(HOPELESS_S) == 0
    client.send(RegisterCompany(company="third"))
    wait_until(lambda: serving_pid(client) == first.pid, "the first master to renew its lease")
    client.send(RegisterCompany(company="fourth"))
    assert elections(log) == 3


def test_a_master_that_was_held_up_on_its_way_to_office_deposes_nobody(connection: Redis, keys: Keys) -> None:
    """Its lease has run out since it took it, and the master that has it now was elected and serves."""
    log = EventLog(connection, keys)
    first, late = (
        Master(EventLog(connection, keys), Member(name, 1, "here"), lease_s=3600) for name in ("first", "late")
    )
    assert late.lease.take()
    connection.delete(keys.lease)
    assert first.lease.take()
    first.scheduler.take_over()
    CommandClient(connection, keys.cluster).notify(RegisterCompany(company="acme"))
    with pytest.raises(StaleLog, match="another master has taken the lease"):
        late.scheduler.take_over()
    assert elections(log) == 1
    late._keep_what_was_folded()
    assert (late.follower.position, late.follower.state.master) == (log.head(), "first")
    first.answer()
    assert "acme" in first.scheduler.state.companies


def test_a_lease_below_a_second_is_refused(start: Start) -> None:
    assert start("--lease", "0.5").wait(HOPELESS_S) == 2


HOUR_MS = 3_600_000


@pytest.mark.parametrize("left_ms", [None, HOUR_MS, 1 << 40], ids=["without end", "an hour", "34 years"])
@pytest.mark.parametrize("term", [None, b"60000", b"junk", b"-1", str(1 << 50).encode()])
def test_a_lease_longer_than_its_term_gets_one_term(
    connection: Redis, keys: Keys, left_ms: int | None, term: bytes | None
) -> None:
    """Somebody has written it, or the store has failed over and the new primary's clock is behind."""
    lease = Lease(connection, keys, Member("m1", 1, "there"), 60_000)
    connection.set(keys.lease, "nobody", px=left_ms)
    if term is not None:
        connection.set(keys.lease_term, term)
    assert not lease.take()
    assert 0 < lease.left_ms <= 60_000
    assert 0 < connection.pttl(keys.lease) <= 60_000
    connection.delete(keys.lease)
    assert lease.take()


def test_a_lease_without_end_is_taken_once_its_term_is_over(connection: Redis, keys: Keys) -> None:
    lease = Lease(connection, keys, Member("m1", 1, "there"), 50)
    connection.set(keys.lease, "nobody")
    assert not lease.take()
    wait_until(lease.take, "the lease to lapse")


def test_a_living_holder_whose_lease_was_made_endless_keeps_it(connection: Redis, keys: Keys) -> None:
    holder, other = (Lease(connection, keys, Member(name, 1, "there"), 60_000) for name in ("m1", "m2"))
    assert holder.take()
    for tamper in (connection.persist, lambda name: connection.pexpire(name, 100 * HOUR_MS)):
        tamper(keys.lease)
        assert not other.take()
        assert holder.take()
        assert 0 < connection.pttl(keys.lease) <= 60_000
        assert not other.take()


def test_the_holder_of_the_lease_knows_when_the_one_before_gave_its_last_sign(connection: Redis, keys: Keys) -> None:
    first, second = (Lease(connection, keys, Member(name, 1, "there"), 60_000) for name in ("m1", "m2"))
    assert first.take()
    assert (last_sign(connection, keys, "m1"), last_sign(connection, keys, "m2")) == (0, 0)
    before = clock_ms(connection.time())
    assert first.take()
    after = clock_ms(connection.time())
    connection.delete(keys.lease)
    for _ in range(2):
        assert second.take()
        assert before <= last_sign(connection, keys, "m2") <= after
    assert last_sign(connection, keys, "m1") == 0


def test_a_holder_that_has_not_served_leaves_no_sign(connection: Redis, keys: Keys) -> None:
    first, refusing, third = (Lease(connection, keys, Member(name, 1, "there"), 60_000) for name in ("m1", "m2", "m3"))
    assert first.take()
    served = clock_ms(connection.time())
    connection.delete(keys.lease)
    for _ in range(2):
        wait_until(lambda: clock_ms(connection.time()) > served, "a moment to pass")
        assert refusing.take()
        refusing.release(served=False)
    assert third.take()
    assert 0 < last_sign(connection, keys, "m3") <= served


def test_keys_of_another_type_keep_no_master_out(connection: Redis, keys: Keys) -> None:
    member = Member("m1", 1, "there")
    lease = Lease(connection, keys, member, 60_000)
    for action in (lease.take, lease.appear, lease.release, lease.take):
        for key in (keys.lease, keys.lease_term, keys.handover, keys.office, keys.masters):
            connection.delete(key)
            connection.rpush(key, "nobody")
        action()
    lease.appear()
    assert members(connection, keys) == (member, [])


def test_tools_of_rq_show_the_active_master_and_those_that_stand_by(
    connection: Redis, keys: Keys, start: Start
) -> None:
    def states() -> list[str]:
        queue = Queue(keys.master_queue, connection=connection)
        found = [str(worker.get_state()) for worker in Worker.all(connection=connection, queue=queue)]
        return sorted("active" if state in {"busy", "idle", "started"} else state for state in found)

    start()
    wait_until(lambda: states() == ["active"], "the active master")
    standby = start()
    wait_until(lambda: states() == ["active", "suspended"], "the standby")
    standby.terminate()
    standby.wait(HOPELESS_S)
    assert states() == ["active"]


@pytest.mark.parametrize("text", ["nobody", "[]", '{"id": "m1"}', '{"id": [], "pid": 1, "host": "h"}', b"\xff"])
def test_a_holder_that_is_no_master_is_not_shown(connection: Redis, keys: Keys, text: str) -> None:
    connection.set(keys.lease, text)
    connection.zadd(keys.masters, {text: 1 << 50})
    assert members(connection, keys) == (None, [])


def test_a_master_serves_although_the_lease_was_made_endless(client: CommandClient, keys: Keys, start: Start) -> None:
    client.store.set(keys.lease, "nobody")
    start("--lease", "1")
    client.send(RegisterCompany(company="first"))


@pytest.fixture
def log(connection: Redis, keys: Keys) -> EventLog:
    return EventLog(connection, keys)


@pytest.fixture
def scheduler(log: EventLog) -> Scheduler:
    made = Scheduler(log, "first", lambda: rebuild(log))
    made.take_over()
    return made


def test_a_follower_has_the_state_at_the_end_of_the_log(
    scheduler: Scheduler, client: CommandClient, log: EventLog
) -> None:
    follower = Follower(log)
    assert follower.follow(1)
    assert not follower.follow(1)
    client.notify(*(RegisterCompany(company=f"c{number}") for number in range(9)))
    scheduler.turn()
    assert follower.follow(1)
    assert (follower.position, follower.state.digest()) == (log.head(), scheduler.state.digest())
    client.notify(RegisterCompany(company="last"))
    scheduler.turn()
    state, position = follower.give()
    assert (position, state.digest()) == (log.head(), scheduler.state.digest())
    assert follower.position == GENESIS


def test_a_follower_hands_over_its_state_without_folding_again(
    scheduler: Scheduler, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(log)
    follower.follow(1)
    monkeypatch.setattr("recovery.failover.follower.rebuild", None)
    assert follower.give()[0].digest() == scheduler.state.digest()


def cut_off(log: EventLog, entries: int) -> None:
    """The log loses its last entries and its memory of them, as by a store that failed over."""
    held: Any = log.store.xrange(log.keys.log)
    log.store.delete(log.keys.log)
    for entry, fields in held[:-entries]:
        log.store.xadd(log.keys.log, fields, id=entry)


@pytest.mark.parametrize("written_since", [0, 1, 3])
def test_a_follower_of_a_lost_tail_folds_the_log_again(
    scheduler: Scheduler, client: CommandClient, log: EventLog, written_since: int
) -> None:
    client.notify(RegisterCompany(company="a"), RegisterCompany(company="b"))
    scheduler.turn()
    follower = Follower(log)
    follower.follow(1)
    cut_off(log, 2)
    second = Scheduler(log, "second", lambda: rebuild(log))
    if written_since:
        second.take_over()
        client.notify(*(RegisterCompany(company=f"other{number}") for number in range(written_since - 1)))
        second.turn()
        follower.follow(1)
    state, position = follower.give()
    assert (position, state.digest()) == (log.head(), rebuild(log)[0].digest())
    assert "a" not in state.companies


def test_a_master_folds_only_the_new_tail_when_the_log_has_grown(
    scheduler: Scheduler, client: CommandClient, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Master(log, Member("other", 2, "there"))
    other.follower.follow(1)
    monkeypatch.setattr("recovery.failover.follower.rebuild", None)

    def read_late(*of: Any) -> Any:
        """The first time, the one in office commits a turn meanwhile."""
        monkeypatch.setattr("scheduler.service.scheduler.stored_grants", stored_grants)
        client.notify(RegisterCompany(company="late"))
        scheduler.turn()
        return stored_grants(*of)

    monkeypatch.setattr("scheduler.service.scheduler.stored_grants", read_late)
    other.scheduler.take_over()
    assert "late" in other.scheduler.state.companies
    assert (other.scheduler.position, other.scheduler.state.master) == (log.head(), "other")
    assert elections(log) == 2


def test_a_log_that_cannot_be_read_stops_the_follower_at_its_position(scheduler: Scheduler, log: EventLog) -> None:
    log.store.xadd(log.keys.log, {"type": "Nonsense"}, id="4-0")
    assert scheduler.position.seq == 3
    for _ in range(2):
        with pytest.raises(UnreadableRecord, match=r"^log position 4: "):
            Follower(log).follow(1)


def test_a_log_that_contradicts_itself_stops_a_standby_at_its_position(
    scheduler: Scheduler, log: EventLog, store: EmbeddedStore, keys: Keys
) -> None:
    admitted = AppAdmitted(app="nobody", company="acme", user="ann", share="0/1")
    log.begin_commit(
        scheduler.position, encode_turn([(admitted, "")], first=4, at=1, previous=log.head().digest)
    ).finish()
    log.store.set(keys.lease, "held by another")
    with Redis.from_url(store.url) as own, pytest.raises(InvariantViolated, match=r"^log position 4: "):
        Master(EventLog(own, keys), Member("standby", 2, "there")).run()
