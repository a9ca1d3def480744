"""The log and the service on real servers: the fence, answers, dead letters, tampering."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace
from redis import Redis

from fairlog.local.store import EmbeddedStore
from recovery.failover.lease import Member, members
from recovery.failover.master import Master, run_master
from recovery.replay.rebuild import rebuild
from scheduler.model.commands import (
    Command,
    ConfigureCluster,
    DecommissionWorker,
    DrainWorker,
    EndedExecutor,
    KillApp,
    LoseWorker,
    RegisterCompany,
    RegisterKind,
    RegisterWorker,
    SetLimit,
    SubmitApp,
    write_command,
)
from scheduler.model.errors import (
    Deposed,
    DuplicateApp,
    IdReused,
    InternalError,
    NoMaster,
    UnknownCompany,
    UnreadableRecord,
    UnsuitableStore,
)
from scheduler.model.events import CommandRefused, Event, RefusalsOmitted
from scheduler.model.sender import By
from scheduler.rules.checks.validate import NEW_CLUSTER
from scheduler.rules.command.decide import decide
from scheduler.rules.command.decide import decide as decide_soundly
from scheduler.rules.stage import turn as turn_module
from scheduler.rules.state.cluster import ClusterState
from scheduler.service.client import CommandClient
from scheduler.service.heartbeats import BEAT_LUA
from scheduler.service.receipts import Receipt
from scheduler.service.scheduler import Scheduler
from scheduler.service.signing import reply_name
from scheduler.store.codec import chained, encode_turn
from scheduler.store.doorbell import RING_LUA
from scheduler.store.durability import check_store
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys, bell_id, queue_key
from tests.waiting import HOPELESS_S, wait_until
from witness.audit.audit import audit

ACME = RegisterCompany(company="acme")
WORKER = RegisterWorker(worker="w1", node="n", host="h", cores=16, memory_mb=32768)


def submission(app: str, **more: Any) -> SubmitApp:
    return SubmitApp(**{"app": app, "company": "acme", "user": "ann", "command": ("true",), **more})


@pytest.fixture
def keys() -> Keys:
    return Keys(f"test-{uuid4().hex[:8]}")


@pytest.fixture
def log(connection: Redis, keys: Keys) -> EventLog:
    return EventLog(connection, keys)


@pytest.fixture
def scheduler(connection: Redis, keys: Keys) -> Scheduler:
    return master(connection, keys, "first")


@pytest.fixture
def client(connection: Redis, keys: Keys) -> CommandClient:
    return CommandClient(connection, keys.cluster, timeout_s=HOPELESS_S)


@pytest.fixture
def serving(store: EmbeddedStore, keys: Keys) -> Iterator[Master]:
    """A master that serves in a thread of its own until the test ends."""
    running = Master(EventLog(Redis.from_url(store.url), keys), Member("serving", 1, "here"), lease_s=60)
    thread = threading.Thread(target=running.run)
    thread.start()
    yield running
    tell_to_stop(running)
    thread.join(timeout=HOPELESS_S)
    assert not thread.is_alive()


def tell_to_stop(master: Master) -> None:
    """Have a master that serves in a thread stop now, and not when its wait for a ring is over."""
    master.worker.stop()
    queue = master.log.keys.master_queue
    master.log.store.eval(RING_LUA, 1, queue_key(queue), bell_id(queue))


def master(connection: Redis, keys: Keys, name: str) -> Scheduler:
    log = EventLog(connection, keys)
    made = Scheduler(log, name, lambda: rebuild(log))
    made.take_over()
    return made


def types(log: EventLog) -> list[str]:
    return [fact.type for fact in log.facts()]


def answer(client: CommandClient, identity: str) -> dict[str, Any]:
    text: Any = client.store.lpop(client.keys.reply(identity))
    found: dict[str, Any] = json.loads(text)
    return found


def ask(client: CommandClient, *commands: Command) -> list[str]:
    """Put commands into the inbox, each with an answer of its own; their ids."""
    identities = [uuid4().hex for _ in commands]
    for identity, command in zip(identities, commands, strict=True):
        client._put((identity, "command", write_command(command), identity))
    return identities


def test_the_first_master_writes_down_its_election_and_the_rules_in_force(scheduler: Scheduler, log: EventLog) -> None:
    assert types(log) == ["MasterElected", "EditionChanged", "ClusterConfigured"]
    assert scheduler.position == log.head()


def test_a_turn_takes_all_inputs_then_admits_then_places(
    scheduler: Scheduler, client: CommandClient, log: EventLog
) -> None:
    client.notify(ACME, WORKER, submission("a"), submission("b"))
    assert scheduler.turn() == 4
    records = list(log.facts())[3:]
    assert [record.type for record in records] == [
        *("CompanyRegistered", "WorkerRegistered", "AppRegistered", "AppRegistered"),
        *("AppAdmitted", "AppAdmitted"),
        *("ExecutorAllocated", "ExecutorAllocated"),
    ]
    assert {record.turn for record in records} == {4}
    assert client.store.xlen(client.keys.inbox) == 0


def test_a_turn_runs_without_input_once_a_timer_is_due(
    scheduler: Scheduler, client: CommandClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Semantics T1: once for each such time."""
    ask(client, RegisterCompany(company="acme"), WORKER)
    scheduler.turn()
    begin = scheduler.state.at + 1000
    ask(client, replace(submission("a1"), begin=begin))
    scheduler.turn()
    settled: list[int] = []
    settle = turn_module.Turn.settle

    def noted(turn: turn_module.Turn, *, due: bool) -> bool:
        settled.append(turn.at)
        return settle(turn, due=due)

    monkeypatch.setattr(turn_module.Turn, "settle", noted)
    due = scheduler.state.timers.next(0)
    assert due == begin
    wait_until(lambda: scheduler.turn() == 0 and bool(settled), "the turn")
    for _ in range(3):
        scheduler.turn()
    assert len(settled) == 1
    assert settled[0] >= due


def test_what_a_decommission_ends_is_placed_anew_in_a_turn_that_waits_for_nothing(
    scheduler: Scheduler, client: CommandClient, log: EventLog
) -> None:
    """Semantics W3: once, and the audit finds both turns right."""
    other = RegisterWorker(worker="w2", node="n2", host="h2", cores=16, memory_mb=32768)
    ask(client, ACME, WORKER, submission("a"))
    scheduler.turn()
    ask(client, other)
    scheduler.turn()
    ask(client, DecommissionWorker(worker="w1"))
    scheduler.turn()
    assert not scheduler.state.apps["a"].executors
    assert scheduler.quiet_s() == 0
    assert scheduler.turn() == 0
    assert {one.worker for one in scheduler.state.apps["a"].executors.values()} == {"w2"}
    assert scheduler.quiet_s() > 0
    head = log.head()
    scheduler.turn()
    assert log.head() == head
    assert audit([*log.facts()]) == []


def test_an_answer_gives_the_log_position_or_the_reason_of_a_refusal(
    scheduler: Scheduler, client: CommandClient
) -> None:
    good, bad = ask(client, ACME, submission("a", company="nobody"))
    scheduler.turn()
    assert answer(client, good) == {"id": good, "seq": 4}
    refusal = answer(client, bad)
    assert refusal["error"] == "UnknownCompany"
    assert "nobody" in refusal["message"]


def test_refused_commands_are_logged_with_their_refusals_and_change_nothing_else(
    scheduler: Scheduler, client: CommandClient, log: EventLog
) -> None:
    """Semantics T3."""
    commands = (submission("a"), KillApp(app="a"), ConfigureCluster(settings={"placement": "sideways"}))
    asked = ask(client, *commands)
    scheduler.turn()
    refused = list(log.facts())[3:]
    assert [type(fact.command) for fact in refused] == [type(command) for command in commands]
    answers = [answer(client, each) for each in asked]
    assert [fact.event for fact in refused] == [
        CommandRefused(error=said["error"], message=said["message"]) for said in answers
    ]
    assert (scheduler.state.apps, scheduler.state.settings) == ({}, NEW_CLUSTER)


def test_who_asks_again_for_what_was_refused_gets_the_same_refusal(
    scheduler: Scheduler, client: CommandClient, log: EventLog
) -> None:
    for _ in range(2):
        client._put(("same", "command", write_command(submission("a")), "same"))
        scheduler.turn()
        client.notify(ACME)
        scheduler.turn()
    first, again = (answer(client, "same") for _ in range(2))
    assert first == again
    assert first["error"] == "UnknownCompany"
    assert types(log).count("CommandRefused") == 2, "the company that is registered a second time is the other one"


def test_more_than_sixty_refusals_a_minute_are_counted_and_not_logged(
    scheduler: Scheduler, client: CommandClient, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = [KillApp(app=f"a{number}") for number in range(70)]
    client.notify(*refused)
    scheduler.turn()
    logged = [fact for fact in log.facts() if fact.type == "CommandRefused"]
    assert len(logged) == 60
    later = logged[0].at + 60_000
    monkeypatch.setattr("scheduler.service.scheduler.clock_ms", lambda _: later)
    client.notify(ACME, KillApp(app="b"))
    while not scheduler.turn():
        pass
    *_, omitted, registered, one_more = log.facts()
    assert omitted.event == RefusalsOmitted(count=10, since=logged[0].at)
    assert (registered.type, one_more.type) == ("CompanyRegistered", "CommandRefused")


def test_a_batch_is_answered_at_once_and_a_refusal_is_that_of_its_own_command(
    scheduler: Scheduler, client: CommandClient, log: EventLog
) -> None:
    batch = f"[{write_command(ACME)},{write_command(KillApp(app='x'))},7,{write_command(WORKER)}]"
    for _ in range(2):
        client._put(("batch", "command", batch, "batch"))
        assert scheduler.turn() == 4
    first, again = (answer(client, "batch") for _ in range(2))
    assert first == again
    assert [each.get("seq", each.get("error")) for each in first["answers"]] == [4, "UnknownApp", "InvalidCommand", 6]
    assert [(fact.type, fact.cause) for fact in log.facts()][3:] == [
        ("CompanyRegistered", "batch.0"),
        ("CommandRefused", "batch.1"),
        ("WorkerRegistered", "batch.3"),
    ]


@pytest.mark.parametrize("body", ["[", "[}", '["\\ud800"', f"[{','.join(['1'] * 1001)}]"])
def test_a_batch_that_cannot_be_taken_is_refused_whole(scheduler: Scheduler, client: CommandClient, body: str) -> None:
    client._put(("bad", "command", body, "bad"))
    scheduler.turn()
    said = answer(client, "bad")
    assert said["error"] == "InvalidCommand"
    assert "the batch" in said["message"] or "a batch" in said["message"]


def test_a_turn_takes_a_thousand_commands_at_most_whatever_they_came_in(
    scheduler: Scheduler, client: CommandClient, log: EventLog
) -> None:
    ask(client, ACME)
    scheduler.turn()
    limits = [
        SetLimit(scope="user", company="acme", user=f"u{number}", name="max_running_apps", value=1)
        for number in range(1_500)
    ]
    for first in range(0, 1_500, 600):
        client.notify(*limits[first : first + 600])
    assert [scheduler.turn() for _ in range(3)] == [600, 900, 0]
    assert types(log).count("LimitSet") == 1_500


def test_a_command_of_a_batch_that_makes_a_turn_fail_is_put_aside_alone(
    scheduler: Scheduler, client: CommandClient, log: EventLog, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(state: ClusterState, command: Command, at: int, by: By) -> list[Event]:
        if command == KillApp(app="x"):
            raise ZeroDivisionError
        return sound(state, command, at, by)

    sound = decide_soundly
    monkeypatch.setattr(turn_module, "decide", decide)
    batch = f"[{write_command(ACME)},{write_command(KillApp(app='x'))},{write_command(WORKER)}]"
    client._put(("batch", "command", batch, "batch"))
    scheduler.turn()
    said = answer(client, "batch")["answers"]
    assert [each.get("seq", each.get("error")) for each in said] == [4, "InternalError", 5]
    assert types(log)[3:] == ["CompanyRegistered", "WorkerRegistered"]
    assert client.store.xlen(keys.dead) == 1
    assert client.store.xlen(keys.inbox) == 0


def test_a_command_that_comes_twice_is_carried_out_once_and_answered_twice(
    scheduler: Scheduler, client: CommandClient, log: EventLog
) -> None:
    client._put(("same", "command", write_command(ACME), "same"))
    scheduler.turn()
    client._put(("same", "command", write_command(ACME), "same"))
    scheduler.turn()
    assert types(log).count("CompanyRegistered") == 1
    assert answer(client, "same") == answer(client, "same") == {"id": "same", "seq": 4}


def test_a_client_that_waits_does_not_put_its_command_in_twice(
    scheduler: Scheduler, client: CommandClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that passes only while it waits."""
    waited_s: list[float] = [0]

    def wait_in_vain(_keys: object, timeout_s: float) -> None:
        waited_s.append(waited_s[-1] + timeout_s)

    monkeypatch.setattr("scheduler.service.client.time", SimpleNamespace(monotonic=lambda: waited_s[-1]))
    monkeypatch.setattr(client.store, "blpop", wait_in_vain)
    with pytest.raises(NoMaster):
        client.send(KillApp(app="a"), command_id="same")
    assert client.store.xlen(client.keys.inbox) == 1
    assert len(waited_s) > 10
    scheduler.turn()
    assert answer(client, reply_name("same", write_command(KillApp(app="a"))))["error"] == "UnknownApp"
    with pytest.raises(NoMaster):
        client.send(KillApp(app="a"), command_id="same")
    assert client.store.xlen(client.keys.inbox) == 1


def test_folding_again_completes_the_side_effects_of_a_lost_turn(
    scheduler: Scheduler, client: CommandClient, keys: Keys
) -> None:
    """A commit that landed after it was given up: the executor is gone, what it had begun is still begun."""
    client.notify(ACME, WORKER, submission("a"), submission("b", hold=True, env=("TOKEN",)))
    client.store.hset(keys.secrets("b"), "TOKEN", "hidden")
    scheduler.turn()
    assert scheduler.worklist.fill("a", 1, worker="w1", executor="a.0")
    assert scheduler.worklist.step("a", worker="w1", executor="a.0", want=1).taken == [(0, 1)]
    log = EventLog(scheduler.store, keys)
    state, position = rebuild(log)
    late = turn_module.Turn(state, state.at)
    late.take(EndedExecutor(executor="a.0", reason="failed", exit_code=1))
    late.take(KillApp(app="b"))
    log.begin_commit(
        position, encode_turn(late.entries, first=late.first, at=late.at, previous=position.digest)
    ).finish()
    client.notify(RegisterCompany(company="other"))
    scheduler.turn()
    assert scheduler.worklist.progress("a").running == 0
    assert not client.store.exists(keys.secrets("b"))


def test_command_ids_are_known_to_the_next_master(scheduler: Scheduler, client: CommandClient, keys: Keys) -> None:
    client._put(("same", "command", write_command(ACME), "same"))
    scheduler.turn()
    second = master(scheduler.store, keys, "second")
    client._put(("same", "command", write_command(ACME), "same"))
    second.turn()
    assert types(second.log).count("CompanyRegistered") == 1


def say(scheduler: Scheduler, client: CommandClient, *commands: Command, identity: str = "same") -> dict[str, Any]:
    """Send under the id, as a batch if there are many, take a turn, and return the answer."""
    texts = [write_command(command) for command in commands]
    client._put((identity, "command", texts[0] if len(texts) == 1 else f"[{','.join(texts)}]", identity))
    scheduler.turn()
    return answer(client, identity)


PINNED = ConfigureCluster(settings={"min_executor_cores": 8})
AT_GPU = submission("a", tasks=1, cores=2, task_resources={"gpu": "1"}, command=("true",), name="n", env=("TOKEN",))


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (RegisterCompany(company="acme", cores=8), RegisterCompany(company="acme", cores=9)),
        (RegisterCompany(company="acme"), KillApp(app="nobody")),
        (KillApp(app="nobody"), KillApp(app="nobody-else")),  # refused, and logged
        (KillApp(app="nobody", reason="old"), KillApp(app="nobody", reason="new")),
        (KillApp(app="nobody"), KillApp(app="nobody", reason="new")),
        (DrainWorker(worker="nobody"), DrainWorker(worker="nobody", reason="new")),
        (submission("a", command=("true",)), submission("a", command=("false",))),
        (submission("a", env=("ONE",)), submission("a", env=("TWO",))),
        (AT_GPU, replace(AT_GPU, cores=5)),
        (AT_GPU, replace(AT_GPU, name="m")),
    ],
)
def test_another_command_under_a_known_id_is_refused_even_by_the_next_master(
    scheduler: Scheduler, client: CommandClient, keys: Keys, first: Command, other: Command
) -> None:
    if isinstance(first, SubmitApp):
        client.notify(ACME, RegisterKind(kind="gpu"))
    scheduler.turn()
    said = say(scheduler, client, first)
    head = scheduler.state.head
    client.notify(PINNED)  # the cores of each task would be others now
    assert say(scheduler, client, first) == said
    assert head < scheduler.state.head
    for taken_over in (False, True):
        serving = master(scheduler.store, keys, "second") if taken_over else scheduler
        before = serving.state.head
        refused = say(serving, client, other)
        assert refused["error"] == "IdReused", (said, refused)
        assert "another command was sent under the id 'same', see position" in refused["message"]
        assert say(serving, client, first) == said
        assert serving.state.head == before


def test_another_command_under_the_id_is_refused_in_the_same_turn(scheduler: Scheduler, client: CommandClient) -> None:
    for company in ("acme", "acme", "globex"):
        client._put(("same", "command", write_command(RegisterCompany(company=company)), "same"))
    scheduler.turn()
    said = [answer(client, "same") for _ in range(3)]
    assert said[0] == said[1] == {"id": "same", "seq": scheduler.state.commands["same"]}
    assert said[2]["error"] == "IdReused"
    assert list(scheduler.state.companies) == ["acme"]


def test_another_command_under_the_id_is_refused_while_the_first_is_committed(
    scheduler: Scheduler, client: CommandClient
) -> None:
    for company in ("acme", "acme", "globex"):
        client._put(("same", "command", write_command(RegisterCompany(company=company)), "same"))
        scheduler._step()
        assert scheduler.commits.in_flight
    scheduler._settle_up()
    said = [answer(client, "same") for _ in range(3)]
    assert said[0] == said[1]
    assert said[2]["error"] == "IdReused"
    assert list(scheduler.state.companies) == ["acme"]


def test_of_a_batch_with_another_body_nothing_is_carried_out(scheduler: Scheduler, client: CommandClient) -> None:
    one, two, three = (RegisterCompany(company=name) for name in ("acme", "globex", "initech"))
    said = say(scheduler, client, one, two)
    assert say(scheduler, client, one, two) == said
    assert say(scheduler, client, one, three)["error"] == "IdReused"
    assert say(scheduler, client, two, one, three)["error"] == "IdReused"
    for other in ([one, two, three], [one], [two]):
        assert say(scheduler, client, *other)["error"] == "IdReused"
    assert list(scheduler.state.companies) == ["acme", "globex"]


def test_the_id_of_a_command_is_none_of_a_batch_even_for_the_next_master(
    scheduler: Scheduler, client: CommandClient, keys: Keys
) -> None:
    one, two, three = (RegisterCompany(company=name) for name in ("acme", "globex", "initech"))
    said = say(scheduler, client, one)
    for taken_over in (False, True):
        serving = master(scheduler.store, keys, "second") if taken_over else scheduler
        assert say(serving, client, two, three)["error"] == "IdReused"
        assert say(serving, client, one) == said
        assert list(serving.state.companies) == ["acme"]


def test_two_bodies_under_an_id_at_the_same_moment_have_answers_of_their_own(
    scheduler: Scheduler, client: CommandClient
) -> None:
    with ThreadPoolExecutor() as pool:
        asked = {
            name: pool.submit(client.send_batch, [RegisterCompany(company=name)], command_id="same")
            for name in ("acme", "globex")
        }
        wait_until(lambda: client.store.xlen(client.keys.inbox) == len(asked), "both are in the inbox")
        scheduler.turn()
        (first,) = scheduler.state.companies
        for name, answered in asked.items():
            (outcome,) = answered.result(timeout=HOPELESS_S)
            assert isinstance(outcome, Receipt if name == first else IdReused)


def test_what_is_in_the_archive_only_is_answered_as_before(
    scheduler: Scheduler, client: CommandClient, keys: Keys
) -> None:
    said = say(scheduler, client, RegisterCompany(company="acme"))
    client.notify(RegisterCompany(company="globex"))
    scheduler.turn()
    second = master(scheduler.store, keys, "second")
    scheduler.store.xtrim(keys.log, minid=f"{scheduler.state.head}-0", approximate=False)
    assert say(second, client, RegisterCompany(company="acme")) == said


def test_a_report_that_comes_again_is_the_same_although_a_part_was_left_out(
    scheduler: Scheduler, client: CommandClient, keys: Keys
) -> None:
    client.notify(ACME, WORKER, submission("a", command=("/opt/secret",)))
    scheduler.turn()
    ended = EndedExecutor(executor="a.0", reason="failed", exit_code=1, detail="'/opt/secret' is missing")
    said = say(scheduler, client, ended)
    assert "secret" not in "".join(str(fact) for fact in scheduler.log.facts() if fact.cause == "same")
    for taken_over in (False, True):
        serving = master(scheduler.store, keys, "second") if taken_over else scheduler
        assert say(serving, client, ended) == said
        assert say(serving, client, replace(ended, detail="another reason"))["error"] == "IdReused"


def test_unreadable_inbox_entries_are_refused_and_block_nothing(scheduler: Scheduler, client: CommandClient) -> None:
    for body in ("{", '{"type":"Format"}', '{"type":"KillApp"}', '{"type":"KillApp","app":7}', ""):
        client._put((body or "empty", "command", body, body or "empty"))
    client.store.xadd(client.keys.inbox, {b"\xff": b"\xfe"})
    (good,) = ask(client, ACME)
    scheduler.turn()
    assert answer(client, "{")["error"] == "InvalidCommand"
    assert answer(client, '{"type":"KillApp"}')["error"] == "InvalidCommand"
    assert answer(client, good)["seq"] == 4


def test_a_deposed_master_cannot_append_and_finds_out_at_its_next_commit(
    scheduler: Scheduler, client: CommandClient, keys: Keys
) -> None:
    master(scheduler.store, keys, "second")
    ask(client, ACME)
    with pytest.raises(Deposed, match="second"):
        scheduler.turn()
    assert types(scheduler.log) == ["MasterElected", "EditionChanged", "ClusterConfigured", "MasterElected"]
    assert client.store.xlen(client.keys.inbox) == 1


def test_a_master_that_folded_a_tail_that_is_gone_folds_again(
    scheduler: Scheduler, client: CommandClient, keys: Keys
) -> None:
    """A store that lost its tail with its last-generated id (a failed-over replica): the digest tells."""
    ask(client, ACME)
    scheduler.turn()
    dumped: Any = scheduler.store.xrange(keys.log)
    scheduler.store.delete(keys.log)
    for entry, fields in dumped[:-1]:
        scheduler.store.xadd(keys.log, fields, id=entry)
    (good,) = ask(client, RegisterCompany(company="other"))
    scheduler.turn()
    assert answer(client, good)["seq"] == 4
    assert list(scheduler.state.companies) == ["other"]


def test_a_command_that_breaks_a_turn_is_put_aside_and_the_others_are_executed(
    scheduler: Scheduler, client: CommandClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide_or_break(state: Any, command: Command, at: int, by: By) -> list[Event]:
        if isinstance(command, RegisterCompany) and command.company == "poison":
            state.companies.clear()
            raise ZeroDivisionError("planted")
        return decide(state, command, at, by)

    monkeypatch.setattr(turn_module, "decide", decide_or_break)
    first, poison, last = ask(client, ACME, RegisterCompany(company="poison"), RegisterCompany(company="other"))
    scheduler.turn()
    assert answer(client, poison)["error"] == InternalError.__name__
    assert answer(client, first)["seq"] == 4
    assert answer(client, last)["seq"] == 5
    letters: Any = client.store.xrange(client.keys.dead)
    ((_, letter),) = letters
    assert letter[b"id"].decode() == poison
    assert b"ZeroDivisionError: planted" in letter[b"traceback"]
    assert client.store.xlen(client.keys.inbox) == 0


def test_a_deposed_master_that_meets_a_poisoned_command_appends_nothing(
    scheduler: Scheduler, client: CommandClient, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide_or_break(state: Any, command: Command, at: int, by: By) -> list[Event]:
        if isinstance(command, RegisterCompany) and command.company == "poison":
            raise ZeroDivisionError("planted")
        return decide(state, command, at, by)

    master(scheduler.store, keys, "second")
    monkeypatch.setattr(turn_module, "decide", decide_or_break)
    ask(client, ACME, RegisterCompany(company="poison"))
    before = scheduler.log.head()
    with pytest.raises(Deposed, match="second"):
        scheduler.turn()
    assert scheduler.log.head() == before


def test_grants_are_written_with_the_commit_and_taken_back_with_it(scheduler: Scheduler, client: CommandClient) -> None:
    client.notify(ACME, WORKER, submission("a", env=("TOKEN",), tasks=3))
    scheduler.turn()
    granted: Any = client.store.hgetall(client.keys.grants("w1"))
    (grant,) = [json.loads(text) for text in granted.values()]
    assert (grant["executor"], grant["cores"], grant["tasks"], grant["env"]) == ("a.0", 4, 3, ["TOKEN"])
    scheduler._run([], [LoseWorker(worker="w1")], scheduler._store_time_ms())
    scheduler.turn()
    assert not client.store.exists(client.keys.grants("w1"))
    assert client.store.zscore(client.keys.heartbeats, "w1") is None


def test_a_new_master_brings_grants_in_line_with_the_log(
    scheduler: Scheduler, client: CommandClient, keys: Keys
) -> None:
    client.notify(ACME, WORKER, submission("a"))
    scheduler.turn()
    due = client.store.hgetall(keys.grants("w1"))
    client.store.hset(keys.grants("w1"), "stray.0", "{}")
    client.store.hdel(keys.grants("w1"), "a.0")
    client.store.hset(keys.grants("gone"), "stray.1", "{}")
    client.store.zadd(keys.heartbeats, {"gone": 1})
    master(client.store, keys, "second")
    assert client.store.hgetall(keys.grants("w1")) == due
    assert not client.store.exists(keys.grants("gone"))


def lost(scheduler: Scheduler, now: int, silent: int) -> list[LoseWorker]:
    return scheduler.heartbeats.lost(now, silent, scheduler.state.settings.worker_timeout_s * 1000)


def test_no_worker_is_lost_within_a_full_timeout_after_a_takeover(scheduler: Scheduler, client: CommandClient) -> None:
    client.notify(WORKER, ConfigureCluster(settings={"worker_timeout_s": 1}))
    scheduler.turn()
    now = scheduler._store_time_ms()
    client.store.zadd(client.keys.heartbeats, {"w1": now - 60_000})
    scheduler.heartbeats.watching_since_ms = now
    for later in range(now, now + 1_000, 250):
        scheduler.heartbeats.looked_at_ms = later - 250
        assert lost(scheduler, later, 1) == []
    assert [each.worker for each in lost(scheduler, now + 1_000, 1)] == ["w1"]


def test_a_master_that_was_paused_gives_every_worker_a_full_timeout(
    scheduler: Scheduler, client: CommandClient, log: EventLog
) -> None:
    client.notify(WORKER, ConfigureCluster(settings={"worker_timeout_s": 1}))
    scheduler.turn()
    now = scheduler._store_time_ms()
    client.store.zadd(client.keys.heartbeats, {"w1": now - 60_000})
    scheduler.heartbeats.watching_since_ms = now - 60_000
    scheduler.heartbeats.looked_at_ms = now - 50_000
    scheduler.turn()
    assert "WorkerRemoved" not in types(log)


def test_a_short_pause_restarts_a_short_worker_timeout(scheduler: Scheduler, client: CommandClient) -> None:
    """Semantics W2: the store hung for less than three seconds, and nobody could beat meanwhile."""
    client.notify(WORKER, ConfigureCluster(settings={"worker_timeout_s": 3}))
    scheduler.turn()
    now = scheduler._store_time_ms()
    client.store.zadd(client.keys.heartbeats, {"w1": now - 3_100})
    scheduler.heartbeats.watching_since_ms = now - 60_000
    scheduler.heartbeats.looked_at_ms = now - 2_500
    assert lost(scheduler, now, 1) == []
    client.store.zadd(client.keys.heartbeats, {"w1": now - 3_100})
    assert [each.worker for each in lost(scheduler, now + 1_000, 1)] == []
    scheduler.heartbeats.watching_since_ms = now - 60_000
    assert [each.worker for each in lost(scheduler, now + 2_000, 1)] == ["w1"]


def test_heartbeats_are_not_written_to_disk(scheduler: Scheduler, client: CommandClient) -> None:
    client.notify(WORKER)
    scheduler.turn()
    written = client.store.info("persistence")["aof_current_size"]
    for _ in range(3):
        assert client.store.eval(BEAT_LUA, 2, client.keys.heartbeats, client.keys.grants("w1"), "w1") == [[1, []]]
        scheduler.heartbeats.watch_anew(scheduler._store_time_ms())
    assert client.store.info("persistence")["aof_current_size"] == written
    grants = client.keys.grants("unknown")
    assert client.store.eval(BEAT_LUA, 2, client.keys.heartbeats, grants, "unknown") == [[0, []]]


def test_nobody_is_lost_for_heartbeats_that_a_restarted_store_has_forgotten(
    scheduler: Scheduler, client: CommandClient
) -> None:
    """Such a store has the time when the worker was registered (semantics W2)."""
    client.notify(WORKER)
    scheduler.turn()
    now, timeout_ms = scheduler._store_time_ms(), 15_000
    left: Any = client.store.get(client.keys.watched)
    heartbeats = scheduler.heartbeats
    client.store.zadd(client.keys.heartbeats, {"w1": now - 60_000})
    for later in range(now, now + timeout_ms, 1_000):
        assert lost(scheduler, later, 1) == []
    client.store.set(client.keys.watched, left)
    assert lost(scheduler, now + timeout_ms, 1) == []
    assert heartbeats.watching_since_ms == now + timeout_ms
    for later in range(now + timeout_ms, now + 2 * timeout_ms, 1_000):
        assert lost(scheduler, later, 1) == []
    assert [each.worker for each in lost(scheduler, now + 2 * timeout_ms, 1)] == ["w1"]


def test_a_heartbeat_ahead_of_the_clock_still_expires_after_one_timeout(
    scheduler: Scheduler, client: CommandClient
) -> None:
    """The store failed over to one whose clock is an hour behind; both ends of the age are its raw time (W2)."""
    client.notify(WORKER)
    scheduler.turn()
    now = scheduler._store_time_ms()
    client.store.zadd(client.keys.heartbeats, {"w1": now + 3_600_000})
    scheduler.heartbeats.looked_at_ms = now + 3_600_000
    assert lost(scheduler, now, 0) == []
    beaten: Any = client.store.zscore(client.keys.heartbeats, "w1")
    assert beaten == now
    for later in range(now, now + 16_000, 1_000):
        assert lost(scheduler, later, 0) == []
    assert [each.worker for each in lost(scheduler, now + 16_000, 1)] == ["w1"]


def test_a_master_deposed_after_its_commit_answers_nobody(
    scheduler: Scheduler, client: CommandClient, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was committed, but by the time that this one hears of it another master serves."""
    monkeypatch.setattr("scheduler.service.commit.ASLEEP_S", 0)
    client.notify(ACME, WORKER)
    scheduler.turn()
    bell = queue_key(keys.worker_queue("w1"))
    client._put(("one", "command", write_command(submission("a")), "one"))
    assert scheduler._step() == 1
    master(client.store, keys, "second")
    client.store.delete(bell)
    with pytest.raises(Deposed):
        scheduler.turn()
    assert not client.store.exists(keys.reply("one"), bell)
    assert "a" in scheduler.state.apps


@pytest.mark.usefixtures("serving")
def test_a_client_gets_its_receipt_and_its_refusal(client: CommandClient) -> None:
    assert client.send(ACME).seq == 4
    with pytest.raises(UnknownCompany, match="'nobody'"):
        client.send(submission("a", company="nobody"))
    accepted, refused = client.send_many([submission("a"), submission("a")])
    assert not isinstance(accepted, Exception)
    assert isinstance(refused, DuplicateApp)
    client.hear()


@pytest.mark.usefixtures("serving")
def test_the_values_of_variables_stay_out_of_the_log_and_go_with_a_refusal(client: CommandClient) -> None:
    client.send(ACME)
    client.submit(submission("a", env=("TOKEN",)), {"TOKEN": "hush-hush"})
    assert client.store.ttl(client.keys.secrets("a")) == -1
    log: Any = client.store.xrange(client.keys.log)
    assert b"hush-hush" not in repr(log).encode()
    with pytest.raises(UnknownCompany):
        client.submit(submission("b", company="nobody", env=("TOKEN",)), {"TOKEN": "hush-hush"})
    assert not client.store.keys(f"{client.keys.prefix}unclaimed:*")
    client.send(KillApp(app="a"))
    assert client.send(RegisterCompany(company="next")).seq
    assert not client.store.exists(client.keys.secrets("a"))


def test_without_a_master_a_client_says_so(client: CommandClient) -> None:
    client.timeout_s = 0.2
    with pytest.raises(NoMaster, match=r"no master answered within 0.2 s"):
        client.send(ACME)


def test_a_second_master_waits_and_takes_over_when_the_first_one_leaves(
    store: EmbeddedStore, keys: Keys, serving: Master, client: CommandClient
) -> None:
    client.send(ACME)
    standby = Master(EventLog(Redis.from_url(store.url), keys), Member("standby", 2, "there"), lease_s=60)
    thread = threading.Thread(target=standby.run)
    thread.start()
    try:
        client.send(RegisterCompany(company="while-one-serves"))
        assert types(serving.log).count("MasterElected") == 1
        tell_to_stop(serving)
        wait_until(lambda: types(serving.log).count("MasterElected") == 2, "the second master takes over")
        client.send(RegisterCompany(company="after-the-hand-over"))
        serving_now, _ = members(client.store, keys)
        assert serving_now is not None
        assert serving_now.id == "standby"
    finally:
        tell_to_stop(standby)
        thread.join(timeout=HOPELESS_S)


def rewrite(log: EventLog, seq: int, **changes: str) -> None:
    """Change fields of one entry behind everybody's back."""
    entries: Any = log.store.xrange(log.keys.log)
    log.store.delete(log.keys.log)
    for entry, fields in entries:
        if entry == f"{seq}-0".encode():
            fields |= {name.encode(): value.encode() for name, value in changes.items()}
        log.store.xadd(log.keys.log, fields, id=entry)


@pytest.fixture
def written(scheduler: Scheduler, client: CommandClient) -> EventLog:
    """A log of six positions, the first two of one turn."""
    for command in (ACME, RegisterCompany(company="b"), RegisterCompany(company="c"), WORKER):
        client.notify(command)
        scheduler.turn()
    return scheduler.log


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("events", '[["CompanyRegistered","bcme",null,null,null,false]]'),
        ("at", "7"),
        ("first", "4"),
        ("digest", "0" * 64),
    ],
)
def test_an_altered_entry_stops_the_master_at_its_position(
    written: EventLog, store: EmbeddedStore, keys: Keys, field: str, value: str
) -> None:
    rewrite(written, 5, **{field: value})
    with pytest.raises(UnreadableRecord, match=r"^log position 5: "):
        run_master(store.url, keys.cluster)


def test_a_removed_entry_stops_the_master_at_its_position(written: EventLog, store: EmbeddedStore, keys: Keys) -> None:
    written.store.xdel(keys.log, "4-0")
    with pytest.raises(UnreadableRecord, match=r"^log position 4: the entry is missing"):
        run_master(store.url, keys.cluster)


def test_a_tail_that_was_cut_off_stops_the_master_at_its_position(
    written: EventLog, store: EmbeddedStore, keys: Keys
) -> None:
    written.store.xdel(keys.log, "6-0", "7-0")
    with pytest.raises(UnreadableRecord, match=r"^log position 6: the tail was cut off"):
        run_master(store.url, keys.cluster)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ('[["CompanyPainted","c"]]', "the event type 'CompanyPainted' is unknown"),
        ('[["CompanyRemoved","c",1]]', "CompanyRemoved holds data that cannot be read"),
        ('[["CompanyRemoved",7]]', "CompanyRemoved holds data that cannot be read"),
    ],
)
def test_a_chained_but_unreadable_entry_stops_the_master_at_its_position(
    written: EventLog, store: EmbeddedStore, keys: Keys, events: str, why: str
) -> None:
    *_, before, last = written.read()
    digest = chained(before.digest, 7, 7, last.at, events.encode(), last.commands)
    rewrite(written, 7, events=events, digest=digest)
    with pytest.raises(UnreadableRecord, match=f"^log position 7: .*{why}"):
        run_master(store.url, keys.cluster)


def test_a_commit_survives_a_store_that_forgot_its_scripts(scheduler: Scheduler, client: CommandClient) -> None:
    (first,) = ask(client, ACME)
    client.store.script_flush()
    scheduler.turn()
    assert answer(client, first)["seq"] == 4


@pytest.mark.parametrize(("setting", "value"), [("appendfsync", "everysec"), ("maxmemory-policy", "allkeys-lru")])
def test_a_store_that_would_break_the_promises_is_refused_with_the_reason(
    connection: Redis, setting: str, value: str
) -> None:
    due = str(connection.config_get(setting)[setting])
    connection.config_set(setting, value)
    try:
        with pytest.raises(
            UnsuitableStore, match=f"the store is configured with {setting} {value}, .*`CONFIG SET {setting} {due}`"
        ):
            check_store(connection)
        check_store(connection, unsafe=True)
    finally:
        connection.config_set(setting, due)
    check_store(connection)


def test_the_master_sleeps_at_most_until_the_next_timer(scheduler: Scheduler, client: CommandClient) -> None:
    """Semantics T1."""
    assert scheduler.quiet_s() == float("inf")
    elastic = submission("e", elastic=(1, 4), tasks=100)
    ask(client, ConfigureCluster(settings={"elastic_step_ms": 400}), ACME, WORKER, elastic)
    scheduler.turn()
    assert 0 < scheduler.quiet_s() <= 0.4
