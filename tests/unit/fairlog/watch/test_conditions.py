"""Each condition: found where it holds, and not before; one sentence, and what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from fairlog.cli.main import VERBS
from fairlog.watch.conditions import (
    AUDITOR_SILENT_MS,
    CONDITIONS,
    WELL,
    Around,
    AuditedTo,
    Condition,
    Failover,
    Found,
    StoreFacts,
    Unserved,
    as_json,
    duration,
    elected,
    found,
    health,
    worst,
)
from fairlog.watch.elections import Elected
from fairlog.watch.surroundings import RepeatedLooks, look_around, short_of, since_when
from recovery.failover.lease import Member
from recovery.replay.bounds import moment
from scheduler.model.commands import (
    AddDepartment,
    ChangeDepartment,
    ChangeEdition,
    ConfigureCluster,
    DrainWorker,
    LoseWorker,
    MoveCompany,
    Private,
    RegisterCompany,
    RegisterWorker,
    SubmitApp,
)
from scheduler.model.events import (
    ClusterConfigured,
    EditionChanged,
    Event,
    ExecutorRevoked,
    LogAccepted,
    LogRestored,
    MasterElected,
    WindowAdded,
    WorkerChanged,
    WorkerRemoved,
    WorkerSuspected,
)
from scheduler.model.resources import Resources
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from scheduler.service.known import End
from scheduler.store.codec import encode_turn, stored
from scheduler.store.connection import NO_MAJORITY, clock_ms
from scheduler.store.eventlog import GENESIS, Position
from scheduler.store.full_disks import KEPT_MS, Cut
from scheduler.store.keys import Keys
from scheduler.store.unused import Idle
from witness.fairness import Fairness, shortfall

if TYPE_CHECKING:
    import fakeredis

NOW = 1_000_000
KEYS = Keys("prod")
ONE, TWO = Member("one", 1, "h"), Member("two", 2, "h")
GOOD = Around(now=NOW, serving=ONE, standing_by=(TWO,), store=StoreFacts(memory_used=1, memory_limit=10))
MIN_MS = 60_000
ROOT = Path(__file__).parents[4]


def a_state(*, workers: int = 1, apps: int = 0, cores: int = 8, at: int = NOW) -> ClusterState:
    """A cluster of workers of 8 cores with apps of acme, after one turn."""
    state = ClusterState()
    turn = Turn(state, at)
    turn.take(ChangeEdition(edition=3))
    turn.take(ConfigureCluster(settings={"never_fits": "wait"}))
    turn.take(RegisterCompany(company="acme", cores=64, memory_mb=1 << 20))
    for number in range(workers):
        turn.take(RegisterWorker(worker=f"w{number}", node="n", host="h", cores=8, memory_mb=1 << 14))
    for number in range(apps):
        turn.take(
            SubmitApp(
                app=f"a{number}",
                company="acme",
                user="ann",
                cores=cores,
                tasks=1,
                executor_cores=cores,
                command=("true",),
            )
        )
    turn.settle()
    return state


def names(state: ClusterState, around: Around) -> list[str]:
    return [each.condition for each in found(state, around)]


def test_nothing_is_found_where_all_is_well() -> None:
    assert found(a_state(apps=1), GOOD) == []
    assert as_json([]) == {"severity": "ok", "sentence": WELL, "conditions": []}


@pytest.mark.parametrize(
    ("changed", "condition", "sentence"),
    [
        ({"error": "the store is out of memory"}, "store", "the store is out of memory"),
        ({"unreadable": "log position 7: altered"}, "log", "the log cannot be read: log position 7: altered"),
        ({"serving": None}, "no_master", "no master is active, though 1 stands by"),
        ({"serving": None, "standing_by": ()}, "no_master", "no master is active"),
        (
            {"serving": None, "shorter": (2, End(5, "d", "master one"))},
            "shorter",
            "the log ends at position 2, and master one has known it up to 5: masters and API servers refuse to serve",
        ),
        (
            {"serving": None, "standing_by": (ONE, TWO), "unreplicated": (0, 1)},
            "replicas",
            "the last entries of the log are on 0 of the 1 replica that masters wait for",
        ),
        (
            {"unreplicated": (1, 1)},
            "replicas",
            "a replica of the store that could become primary is behind it",
        ),
        ({"now": NOW - 7_200_000, "log_at": NOW}, "clock", "the store's clock is 2 h behind the log"),
        ({"now": NOW - 7_200_000}, "clock", "the store's clock is 2 h behind the log"),
        (
            {"store": StoreFacts(write_error="it reports x:err")},
            "disk",
            "the store cannot write to its disk: it reports x:err",
        ),
        (
            {"store": StoreFacts(disk_used=95 << 30, disk_size=100 << 30)},
            "disk",
            "the store's disk is 95 % full, 5G left",
        ),
        (
            {"store": StoreFacts(memory_used=9 << 30, memory_limit=10 << 30)},
            "memory",
            "the store uses 90 % of its 10G of memory",
        ),
        (
            {"store": StoreFacts(memory_used=11 << 30, memory_limit=10 << 30)},
            "memory",
            "the store uses 110 % of its 10G of memory and refuses writes",
        ),
        (
            {"store": StoreFacts(weakness="the store forgets; run `CONFIG SET appendonly yes` on it")},
            "durability",
            "the store forgets",
        ),
        ({"standing_by": ()}, "no_standby", "no standby"),
        ({"standbys": 2}, "no_standby", "only 1 of 2 standbys"),
        (
            {"failover": Failover("two", "one", NOW - 5 * MIN_MS)},
            "failover",
            "master two took over from one 5 min ago",
        ),
        (
            {"short_since": {"acme": NOW - 15 * MIN_MS}},
            "short",
            "company acme has been short of its entitlement for 15 min",
        ),
        (
            {"audited": AuditedTo(2, "d", NOW, deviations=3, first=2, verdict="From 2 on …")},
            "deviation",
            "the audit has found that the log breaks its rules: From 2 on …",
        ),
        (
            {"audited": AuditedTo(2, "d", NOW - AUDITOR_SILENT_MS - 1)},
            "audit_stopped",
            "the audit has stood at position 2 since 1970-01-01 00:15:39.999Z; the log is at 4",
        ),
        (
            {"audited": AuditedTo(2, "d", NOW, trouble="the archive is away")},
            "audit_stopped",
            "the audit stands at position 2: the archive is away",
        ),
        (
            {"audited": AuditedTo(5, "d", NOW, rewound_from=9, rewound_at=NOW - MIN_MS)},
            "rewound",
            "position 9, which had been audited, is not in the log any more: it was seen 1 min ago",
        ),
        (
            {"cuts": {"w1": Cut(NOW, NOW, 700, "full"), "w2": Cut(0, NOW - KEPT_MS, 1, "old")}},
            "worker_disk",
            f"the disk of worker w1 has not taken 700 bytes of the output of tasks, since {moment(NOW)}: full",
        ),
        (
            {"unserved": Unserved(NOW - 4 * MIN_MS, 3)},
            "no_api",
            (
                f"no API server answers since {moment(NOW - 4 * MIN_MS)}, 4 min ago: 3 workers reach nobody, "
                "so tasks that run go on there, and nothing new begins"
            ),
        ),
        (
            {"unserved": Unserved(NOW - 4 * MIN_MS, 0)},
            "no_api",
            (
                f"no API server answers since {moment(NOW - 4 * MIN_MS)}, 4 min ago: who has an account "
                "cannot reach the cluster"
            ),
        ),
        ({"others": {"/data": NOW}}, "other_up", "another `fairlog up` runs on this machine, on the data in /data"),
    ],
)
def test_each_is_found_in_the_surroundings_and_says_so(changed: dict[str, Any], condition: str, sentence: str) -> None:
    state = a_state()
    holding = found(state, GOOD._replace(**changed))
    assert [(each.condition, each.sentence) for each in holding] == [(condition, sentence)]
    assert "{}" not in holding[0].do
    assert holding[0].cost
    assert health(holding) == sentence


def test_a_master_is_to_be_started_only_where_none_stands_by() -> None:
    [one] = found(a_state(), GOOD._replace(serving=None))
    log = "`journalctl -u fairlog-master` on its host, the files in logs/ of the data folder of an up, or what "
    assert f"see why one that stands by does not, by {log}" in one.do
    [none] = found(a_state(), GOOD._replace(serving=None, standing_by=(), standbys=0))
    assert none.do == "start one with `fairlog master`"


@pytest.mark.parametrize(
    ("changed", "condition"),
    [
        ({"error": "the store is away", "store": None}, "store"),
        ({"unreadable": "log position 7: altered"}, "log"),
        ({"damaged": 7}, "log"),
        ({"unreplicated": (0, 1)}, "replicas"),
        ({"shorter": (2, End(5, "d", "master one"))}, "shorter"),
        ({"store": StoreFacts(weakness="the store forgets; run `CONFIG SET appendonly yes` on it")}, "durability"),
        ({"store": StoreFacts(write_error="it reports x:err")}, "disk"),
        ({"store": StoreFacts(memory_used=11 << 30, memory_limit=10 << 30)}, "memory"),
    ],
)
def test_no_master_is_to_be_started_where_another_one_could_not_serve_either(
    changed: dict[str, Any], condition: str
) -> None:
    assert names(a_state(), GOOD._replace(serving=None, **changed)) == [condition]


@pytest.mark.parametrize(
    "changed",
    [
        {"now": NOW - 900},
        {"store": StoreFacts(disk_used=89, disk_size=100, memory_used=79, memory_limit=100)},
        {"standbys": 0, "standing_by": ()},
        {"failover": Failover("two", "one", NOW - 11 * MIN_MS)},
        {"short_since": {"acme": NOW - 14 * MIN_MS}},
        {"audited": AuditedTo(5, "d", NOW - 10 * AUDITOR_SILENT_MS)},
        {"store": None},
    ],
)
def test_what_is_within_its_bounds_is_no_condition(changed: dict[str, Any]) -> None:
    assert found(a_state(), GOOD._replace(**changed)) == []


@pytest.mark.parametrize(
    ("left", "changed", "full"),
    [
        (1 << 30, {}, False),
        (4096, {}, True),
        (1 << 30, {"error": "the store does not answer"}, True),
    ],
)
def test_a_full_disk_costs_what_it_costs_and_nothing_is_advised_that_needs_the_store(
    left: int, changed: dict[str, Any], *, full: bool
) -> None:
    store = StoreFacts(disk_used=(100 << 30) - left, disk_size=100 << 30)
    holding = found(a_state(), GOOD._replace(store=store, **changed))
    [disk] = [each for each in holding if each.condition == "disk"]
    assert ("nothing is acknowledged meanwhile" in disk.cost, "`fairlog archive`" not in disk.do) == (full, full)
    assert ("nothing so far" in disk.cost) is not full


def test_no_condition_holds_because_the_log_grew_while_the_surroundings_were_read(fake: fakeredis.FakeRedis) -> None:
    """The log's last time is read before the clock, and the state may be of a later moment than both."""
    state = a_state(apps=1, at=0)
    end, later = GENESIS, 60 * MIN_MS
    for number in range(5):
        now = clock_ms(cast("Any", fake.time()))
        turn = Turn(state, now if number < 3 else now + later)
        turn.take(RegisterCompany(company=f"c{number}"))
        turn.settle()
        record = encode_turn(turn.entries, turn.commands, first=end.seq + 1, at=turn.at, previous=end.digest)
        if number == 3:
            around = look_around(fake, KEYS, known=(ONE, (TWO,)))
        fake.xadd(KEYS.log, cast("Any", stored(record)), id=f"{record.last}-0")
        end = Position(record.last, record.digest)
    assert state.at > around.now + MIN_MS
    assert names(state, around) == []
    behind = look_around(fake, KEYS, known=(ONE, (TWO,)))
    assert names(state, behind) == ["clock"], "a clock that is behind what was logged before it was read"


def test_lost_and_suspect_workers_are_named_and_counted() -> None:
    state = a_state(workers=3)
    for worker in ("w0", "w1"):
        state.apply(WorkerRemoved(worker=worker, reason="lost"), NOW)
    holding = found(state, GOOD._replace(now=NOW + 4 * MIN_MS, standing_by=()))
    assert [each.key for each in holding] == ["worker_lost/w0", "worker_lost/w1", "no_standby"]
    assert holding[0].sentence == "worker w0 was lost 4 min ago"
    assert "`fairlog worker --id w0`" in holding[0].do
    assert health(holding) == "2 workers are lost · no standby"
    assert worst(holding) == "warning"


def test_what_was_interrupted_is_told_with_the_worker_that_was_lost() -> None:
    state = a_state(workers=2, apps=1)
    [executor] = state.executors.values()
    idle = next(name for name in state.workers if name != executor.worker)
    turn = Turn(state, NOW)
    for worker in (executor.worker, idle):
        turn.take(LoseWorker(worker=worker, last_seen=NOW))
    turn.settle()
    told = {each.about: each.sentence for each in found(state, GOOD) if each.condition == "worker_lost"}
    assert told == {
        executor.worker: f"worker {executor.worker} was lost 0 s ago, and 1 executor of 1 app was interrupted; their "
        "tasks run again elsewhere",
        idle: f"worker {idle} was lost 0 s ago",
    }
    again = restored(lines(state))
    assert [found(each, GOOD) for each in (again, state)] == [found(state, GOOD)] * 2


def elections(*masters: str) -> ClusterState:
    """A log of that many elections, an hour from each to the next."""
    state = ClusterState()
    for number, master in enumerate(masters):
        state.apply(MasterElected(master=master), NOW + number * 60 * MIN_MS)
    return state


def test_the_last_election_says_after_whom_and_for_how_long_nobody_can_have_served() -> None:
    assert elected(ClusterState()) is None
    first = elected(elections("m1"))
    assert first == Elected("m1", "", NOW, 0)
    assert str(first) == "the first one"
    state = elections("m1", "m2")
    at = NOW + 60 * MIN_MS
    assert elected(state) == elected(restored(lines(state))) == Elected("m2", "m1", at, 60 * MIN_MS)
    known = elected(state, GOOD._replace(last_sign=at - 3_100))
    assert known is not None
    assert str(known) == "after m1; nobody served for at most 3.1 s"
    assert Elected.of_json(known.as_json()) == known


def test_where_sentinels_are_missing_the_advice_is_about_them() -> None:
    for error, about in (("2 sentinels of fairlog have to name the primary: none", "start sentinels"), ("full", "see")):
        [store] = found(ClusterState(), GOOD._replace(serving=None, error=f"the store does not answer ({error})"))
        assert (store.condition, store.do.partition(" until")[0].partition(" the")[0]) == ("store", about)


def test_an_operators_decision_about_the_log_is_no_sign_of_a_master() -> None:
    """From the last turn of a master on nobody served, also if a log was accepted, or restored, just before another."""
    accepted = LogAccepted(seq=1, digest="00" * 32, known=9, known_digest="11" * 32, by="master m1")
    each: tuple[tuple[Event, ...], ...] = ((accepted,), (LogRestored(),), (accepted, LogRestored()))
    for decisions in each:
        state = elections("m1")
        for number, event in enumerate(decisions):
            state.apply(event, NOW + (8 + number) * MIN_MS)
        state.apply(MasterElected(master="m2"), NOW + 10 * MIN_MS)
        assert elected(state) == Elected("m2", "m1", NOW + 10 * MIN_MS, 10 * MIN_MS)
        state.apply(EditionChanged(edition=3), NOW + 11 * MIN_MS)
        state.apply(MasterElected(master="m3"), NOW + 12 * MIN_MS)
        assert elected(state) == Elected("m3", "m2", NOW + 12 * MIN_MS, MIN_MS)


def test_a_failover_is_told_with_its_cost_and_a_missing_master_with_since_when() -> None:
    state = elections("one", "two")
    at = NOW + 60 * MIN_MS
    state.apply(EditionChanged(edition=3), at)
    around = GOOD._replace(now=at + 5 * MIN_MS, failover=Failover("two", "one", at), last_sign=at - 2_000)
    [failover] = [each for each in found(state, around) if each.condition == "failover"]
    assert failover.sentence == (
        "master two took over from one 5 min ago; nobody served for at most 2.0 s, and what ran went on"
    )
    state.apply(MasterElected(master="two"), at + MIN_MS)
    [later] = [each for each in found(state, around) if each.condition == "failover"]
    assert (later.sentence, later.cost) == (
        "master two took over from one 5 min ago",
        "nothing was decided, and what ran went on",
    )
    again = elected(state, around)
    assert again is not None
    assert str(again).startswith("again, since it was cut from the store or that was gone; nobody served for at most ")
    [missing] = found(state, GOOD._replace(now=at, serving=None, log_at=at))
    assert missing.sentence == (
        f"no master is active, though 1 stands by; nothing is decided since {moment(at)}, and what runs goes on"
    )


def test_no_agent_is_to_be_started_again_before_an_api_server_answers() -> None:
    lost, alone = a_state(), a_state(workers=0, apps=1)
    lost.apply(WorkerRemoved(worker="w0", reason="lost"), NOW)

    def advice(state: ClusterState, unserved: Unserved | None) -> str:
        return found(state, GOOD._replace(unserved=unserved))[-1].do

    assert advice(lost, None).startswith("start its agent again, `fairlog worker --id w0`")
    assert advice(alone, None).startswith("start one with `fairlog worker`; one that was removed comes back once ")
    for state in (lost, alone):
        assert advice(state, Unserved(NOW, 0)).startswith("start an API server first")
    assert "`fairlog worker --id w0`" in advice(lost, Unserved(NOW, 0))


def test_apps_that_can_never_start_are_told_from_those_that_lack_any_worker() -> None:
    assert [each.sentence for each in found(a_state(apps=2, cores=16), GOOD)] == ["2 apps can never start"]
    without = found(a_state(workers=0, apps=1), GOOD)
    assert [each.sentence for each in without] == ["no worker is live, and 1 app needs one"]
    lost = a_state(apps=1, cores=16)
    lost.apply(WorkerRemoved(worker="w0", reason="lost"), NOW)
    since = [each.sentence for each in found(lost, GOOD) if each.condition == "no_worker"]
    assert since == [f"no worker is live, and 1 app needs one; the last one was lost at {moment(NOW)}"]


def test_what_runs_on_workers_that_drain_lacks_none() -> None:
    state = a_state(apps=2)
    turn = Turn(state, NOW + 5)
    turn.take(DrainWorker(worker="w0"))
    turn.settle()
    [one] = found(state, GOOD)
    assert one.sentence == "no worker is live (1 drains), and 1 app needs one"
    assert one.cost == "1 app cannot run meanwhile"
    idle = a_state(apps=1)
    turn = Turn(idle, NOW + 5)
    turn.take(DrainWorker(worker="w0"))
    turn.settle()
    assert found(idle, GOOD) == []


def an_unwell_worker(said: str = "") -> ClusterState:
    state = a_state()
    unwell = WorkerChanged(worker="w0", status="draining", offer=Resources(8, 1 << 14), reason="…", unwell=True)
    state.apply(unwell, NOW, private=Private(said=said) if said else None)
    return state


def test_an_unwell_worker_is_named_with_what_its_check_says() -> None:
    for said, why in (("", ""), ("no disk left", ": no disk left")):
        [one] = found(an_unwell_worker(said), GOOD._replace(now=NOW + 4 * MIN_MS))
        assert (one.key, one.since) == ("worker_unwell/w0", NOW)
        assert one.sentence == f"worker w0 has been unwell since {moment(NOW)}, 4 min ago{why}"
        assert one.cost == "8 cores get no new work; what runs there continues"


def test_an_app_that_uses_nothing_is_named_with_what_it_holds() -> None:
    state = a_state(workers=2, apps=2)
    idle = {each: Idle(NOW, NOW, "GPUs") for each in ("a0.0", "gone.0")}
    [one] = found(state, GOOD._replace(unused=idle))
    said = "app a0 of ann at acme holds 8 cores in 1 executor and has used nothing of its GPUs since"
    assert one.sentence == f"{said} {moment(NOW)}"
    worker = state.executors["a0.0"].worker
    state.apply(ExecutorRevoked(app="a0", executor="a0.0", worker=worker, reason="killed"), NOW)
    assert found(state, GOOD._replace(unused=idle)) == [], "it is told to go already"
    assert (one.key, one.since) == ("unused/a0", NOW)
    assert "`fairlog kill a0`" in one.do


def with_window(begin: int, *apps: int | None) -> ClusterState:
    """A cluster of one worker with a window, and an app of each maximum runtime (s) there."""
    state = a_state(apps=len(apps), cores=4)
    for number, runtime_s in enumerate(apps):
        state.apps[f"a{number}"].max_runtime_s = runtime_s
    window = WindowAdded(window="disks", workers=("w0",), begin=begin, end=begin + MIN_MS, notice_s=60)
    state.apply(window, NOW)
    return state


def test_a_window_that_begins_soon_names_what_is_in_its_way_and_has_no_end() -> None:
    begin = NOW + 90 * MIN_MS
    state = with_window(begin, None, 60)
    assert found(state, GOOD) == []
    [one] = found(state, GOOD._replace(now=NOW + 60 * MIN_MS))
    assert (one.key, one.since) == ("window/disks", begin - 60 * MIN_MS)
    said = "window disks begins in 30 min, and 1 executor of a0, which has no end before it, still runs there"
    assert one.sentence == said
    assert "`fairlog window remove disks`" in one.do
    [late] = found(state, GOOD._replace(now=begin + MIN_MS))
    assert late.sentence == "window disks has begun, and 2 executors of a0, a1 still run there"
    assert late.since == one.since, "it has been in the way since before"


def test_a_window_is_in_the_way_since_it_was_added_and_what_runs_was_granted() -> None:
    state = with_window(NOW + 20 * MIN_MS, None)
    [one] = found(state, GOOD._replace(now=NOW + 10 * MIN_MS))
    assert one.since == NOW
    state.executors["a0.0"].granted_at = NOW + 5 * MIN_MS
    [one] = found(state, GOOD._replace(now=NOW + 10 * MIN_MS))
    assert one.since == NOW + 5 * MIN_MS


def keeping(lend_limit: str, *, cores: int = 8) -> ClusterState:
    """A cluster of 8 cores, of which an idle department lends so much, and an app of another company."""
    state = ClusterState()
    turn = Turn(state, NOW)
    for command in (
        ChangeEdition(edition=3),
        RegisterCompany(company="acme", borrow=True),
        RegisterCompany(company="lab", cores=8, memory_mb=1 << 14),
        AddDepartment(department="r", cores=8, memory_mb=1 << 14, lend_limit=lend_limit),
        MoveCompany(company="lab", department="r"),
        RegisterWorker(worker="w0", node="n", host="h", cores=8, memory_mb=1 << 14),
        SubmitApp(app="a0", company="acme", user="ann", cores=cores, tasks=1, command=("true",)),
    ):
        turn.take(command)
    turn.settle()
    return state


def test_a_department_that_keeps_its_share_idle_is_named_while_others_wait_for_it() -> None:
    [one] = found(keeping("0%"), GOOD)
    assert (one.condition, one.about, one.cost) == ("unlent", "r", "8 cores that others could use")
    assert one.sentence == (
        "department r keeps 8 cores and 16384 MiB idle by its lend limit; 1 app of others waits that would fit there"
    )
    assert one.do == "`fairlog department set r --lend-limit none` lends all that it does not use"
    lent = keeping("0%")
    turn = Turn(lent, NOW + 1)
    turn.take(ChangeDepartment(department="r", lend_limit="none"))
    turn.settle()
    assert "a0.0" in lent.executors
    assert found(lent, GOOD) == []
    used = keeping("0%")
    turn = Turn(used, NOW + 1)
    turn.take(SubmitApp(app="own", company="lab", user="zoe", cores=1, tasks=1, command=("true",)))
    turn.settle()
    assert found(used, GOOD) == []


def every_condition() -> list[Found]:
    """All conditions, each as it is found in a state and in surroundings where nothing is well."""
    state = a_state(workers=2, apps=1, cores=8)
    [suspect] = {each.worker for each in state.executors.values()}
    [lost] = state.workers.keys() - {suspect}
    state.apply(WorkerSuspected(worker=suspect, executors=("a0.0",), until=NOW + MIN_MS), NOW)
    state.apply(WorkerRemoved(worker=lost, reason="lost"), NOW)
    large, alone = a_state(apps=1, cores=16), a_state(workers=0, apps=1)
    full = StoreFacts(9, 10, 1, 1, 95, 100, "it reports x:err", "the store forgets; do that")
    audited = AuditedTo(2, "d", NOW - AUDITOR_SILENT_MS - 1, deviations=1, rewound_from=9, rewound_at=NOW)
    bad = GOOD._replace(
        error="away",
        unreadable="altered",
        unserved=Unserved(NOW - MIN_MS, 1),
        store=full,
        audited=audited,
        standing_by=(),
        failover=Failover("two", "one", NOW),
        short_since={"acme": NOW - 16 * MIN_MS},
        cuts={"w1": Cut(NOW, NOW, 700, "full")},
        unused={"a0.0": Idle(NOW, NOW, "cores")},
        others={"/data": NOW},
        known_at=NOW,
    )
    odd = GOOD._replace(now=NOW - MIN_MS, serving=None, log_at=NOW)
    behind = GOOD._replace(unreplicated=(0, 1))
    lending = a_state()
    lending.apply(ClusterConfigured(reclaim_patience_s=None), NOW)
    each = [
        *found(lending, GOOD),
        *found(keeping("0%"), GOOD),
        *found(an_unwell_worker(), GOOD),
        *found(with_window(NOW, None), GOOD),
        *found(state, bad),
        *found(large, GOOD),
        *found(alone, GOOD),
        *found(a_state(), odd),
    ]
    shorter = GOOD._replace(shorter=(2, End(5, "d", "m")), log_at=NOW)
    earlier = ClusterState()
    earlier.apply(ClusterConfigured(), NOW)
    unserved = GOOD._replace(serving=None, log_at=NOW)
    return [*each, *found(a_state(), behind), *found(a_state(), shorter), *found(earlier, unserved)]


def test_each_says_what_it_is_since_when_what_to_do_and_what_it_costs(fake: fakeredis.FakeRedis) -> None:
    holding = every_condition()
    assert {each.condition for each in holding} == {condition.name for condition in CONDITIONS}
    for each in since_when(fake, KEYS, holding, Around(now=NOW, serving=None)):
        assert all((each.sentence, each.do, each.cost)), each
        assert 0 < each.since <= NOW, each
        assert "{}" not in each.cost + each.do


def test_since_when_is_told_by_whoever_saw_it_first_until_it_has_ended(fake: fakeredis.FakeRedis) -> None:
    alone = found(a_state(), GOOD._replace(standing_by=()))
    assert [each.since for each in alone] == [0]

    def seen(holding: list[Found], now: int) -> list[int]:
        return [each.since for each in since_when(fake, KEYS, holding, Around(now=now, serving=None))]

    assert [seen(alone, now) for now in (5, 7)] == [[5], [5]]
    since_when(fake, KEYS, [], Around(now=8, serving=None, standbys=0))
    assert seen(alone, 9) == [5], "who expects no standby says nothing of them"
    assert seen([], 10) == []
    assert seen(alone, 11) == [11]
    lost = a_state()
    lost.apply(WorkerRemoved(worker="w0", reason="lost"), NOW)
    assert seen(found(lost, GOOD), 12) == [NOW], "the log tells it"
    assert fake.hgetall(KEYS.noticed) == {}


def test_critical_conditions_come_first() -> None:
    holding = found(a_state(), GOOD._replace(standing_by=(), store=StoreFacts(write_error="x")))
    assert [each.condition for each in holding] == ["disk", "no_standby"]
    assert worst(holding) == "critical"


def test_names_of_conditions_are_distinct_and_fit_into_labels() -> None:
    known = [condition.name for condition in CONDITIONS]
    assert len(set(known)) == len(known)
    assert all(name.replace("_", "").isalpha() and name.islower() for name in known)


@pytest.mark.parametrize(("ms", "text"), [(0, "0 s"), (59_999, "59 s"), (MIN_MS, "1 min"), (90 * MIN_MS, "1 h")])
def test_time_spans_are_told_in_their_largest_unit(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_a_company_is_short_where_another_holds_what_is_due_to_it() -> None:
    """Whether its app waits for admission or for executors; apps that can never start demand nothing."""
    state = a_state(workers=2, apps=2)  # acme holds both workers
    turn = Turn(state, NOW)
    turn.take(RegisterCompany(company="globex", cores=64, memory_mb=1 << 20))
    turn.take(SubmitApp(app="g", company="globex", user="bob", cores=8, tasks=1, command=("true",)))
    turn.settle()
    assert shortfall(Fairness().of_now(state)) == {"acme": 0.0, "globex": 8.0}
    assert short_of(state) == {"globex": 8.0}
    turn = Turn(state, NOW)
    turn.take(SubmitApp(app="b", company="acme", user="ann", cores=32, tasks=1, executor_cores=32, command=("x",)))
    turn.settle()
    assert short_of(state) == {"globex": 8.0}


def test_repeated_looks_tell_since_when_a_company_is_short_and_who_took_over() -> None:
    watched = RepeatedLooks()
    watched.look("one", {"acme": 4.0}, 10)
    watched.look("one", {"acme": 8.0, "globex": 4.0}, 20)
    assert (watched.since, watched.failover) == ({"acme": 10, "globex": 20}, None)
    watched.look("one", {"globex": 4.0}, 30)
    watched.look("two", {"acme": 4.0, "globex": 4.0}, 40)
    assert watched.since == {"acme": 40, "globex": 20}
    assert watched.failover == Failover("two", "one", 40)
    assert RepeatedLooks(watched.since, watched.master).master == "two"


SITUATIONS = (
    Around(now=NOW, serving=None),
    Around(now=NOW, serving=None, error=NO_MAJORITY),
    Around(now=NOW, serving=None, error="the store does not answer"),
    Around(now=NOW, serving=None, standing_by=[TWO]),
    Around(now=NOW, serving=None, unserved=Unserved(NOW, 1)),
    Around(now=NOW, serving=None, shorter=(7, End(9, "", "master m1"))),
    Around(now=NOW, serving=None, store=StoreFacts(write_error="it reports rdb:err")),
    Around(now=NOW, serving=None, store=StoreFacts(weakness="appendonly is off; type `CONFIG SET appendonly yes`")),
)
"""Surroundings in which advice differs."""
LOOK = re.compile(r"\b(?:see|look|own log|told by|says?)\b")
TYPED = re.compile(r"`([^`]+)`")
PAGE = re.compile(r"(docs/\w+\.md)(?:#([\w-]+))?")


def headings(page: str) -> set[str]:
    """The anchors of a page."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return {line.lstrip("# ").lower().replace(" ", "-") for line in lines if line.startswith("#")}


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda each: each.name)
def test_advice_names_commands_and_pages_that_there_are(condition: Condition) -> None:
    for advice in {condition.advice(around) for around in SITUATIONS}:
        typed = TYPED.findall(advice)
        for command in typed:
            program, *words = command.split()
            if program == "fairlog":
                assert words[0] in VERBS, command
            elif program in {"journalctl", "systemctl"}:
                assert (ROOT / "deploy/systemd" / f"{words[-1]}.service").is_file(), command
            else:
                assert program in {"INFO", "CONFIG", "ACL"}, command
        pages = PAGE.findall(advice)
        for page, anchor in pages:
            assert not anchor or anchor in headings(page), advice
        assert typed or pages or not LOOK.search(advice), advice
