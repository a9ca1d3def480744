"""What folding the log gives: one place where anything changes, and a digest of all of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from scheduler.model.commands import LoseWorker
from scheduler.model.errors import InvariantViolated
from scheduler.model.events import (
    AppChanged,
    AppRemoved,
    ClusterConfigured,
    CompanyChanged,
    CompanyRegistered,
    CompanyRemoved,
    Computed,
    Event,
    ExecutorChanged,
    ExecutorRemoved,
    MasterElected,
    RoomHeld,
    WorkerChanged,
    WorkerRemoved,
    WorkerStatus,
)
from scheduler.model.quota import Quota
from scheduler.model.resources import Resources
from scheduler.rules.command.decide import decide
from scheduler.rules.entities.ledger import Balance
from scheduler.rules.index.timers import OF_A_WORKER
from scheduler.rules.invariants import check
from scheduler.rules.stage.open import serve
from scheduler.rules.state.cluster import KNOWN_COMMANDS, ClusterState
from tests.property.given import ACME, entered, fold, granted, joined, queued

RUNNING: list[Event] = [ACME, joined(), queued(), entered(), granted("a1.0"), granted("a1.1")]


def removed(executor: str, *, done: bool = False) -> ExecutorRemoved:
    app = executor.rpartition(".")[0]
    return ExecutorRemoved(app=app, executor=executor, worker="w1", reason="exited", done=done)


def balances(state: ClusterState) -> list[Balance]:
    company = state.companies["acme"]
    return [state.balance, company.balance, company.users["ann"].balance]


def test_an_empty_log_is_an_empty_cluster() -> None:
    state = ClusterState()
    check(state)
    assert (state.head, state.at, state.master) == (0, 0, None)
    assert state.settings == ClusterConfigured()
    assert not state.configured


def test_a_pending_app_is_in_no_ledger() -> None:
    """Semantics O1: requested runs from admission."""
    state = fold([ACME, joined(), queued()])
    assert balances(state) == [Balance()] * 3
    assert state.apps["a1"].state == "pending"
    assert not state.waiting


def test_an_admitted_app_counts_as_requested_at_all_three_levels() -> None:
    """Semantics A3, O1."""
    state = fold([ACME, joined(), queued(), entered()])
    assert balances(state) == [Balance(Resources(8, 4096), Resources(0, 0))] * 3
    assert state.apps["a1"].state == "waiting"
    assert list(state.waiting) == ["a1"]


def test_an_executor_counts_as_granted_at_all_three_levels_and_on_its_worker() -> None:
    """Semantics O1, O2."""
    state = fold(RUNNING[:-1])
    assert balances(state) == [Balance(Resources(8, 4096), Resources(4, 2048))] * 3
    assert state.workers["w1"].free == Resources(12, 65536 - 2048)
    assert state.apps["a1"].left_cores == 4


def test_an_app_runs_while_one_of_its_executors_does() -> None:
    starts, ends = ExecutorChanged(executor="a1.0"), removed("a1.0")
    histories: list[list[Event]] = [RUNNING, [*RUNNING, starts], [*RUNNING, starts, ends]]
    states = [fold(events).apps["a1"].state for events in histories]
    assert states == ["waiting", "running", "waiting"]


def test_a_done_executor_returns_its_grant_but_its_cores_are_not_owed_again() -> None:
    """Semantics S6: the request stays in the ledgers until removal."""
    state = fold([*RUNNING, removed("a1.0", done=True)])
    assert balances(state) == [Balance(Resources(8, 4096), Resources(4, 2048))] * 3
    assert state.apps["a1"].left_cores == 0
    assert not state.indexes.owed
    fold([AppChanged(app="a1", requested=Resources(8, 4096), sizing=Computed(512))], state)
    assert state.apps["a1"].left_cores == 4
    assert [app.admitted for app in state.indexes.owed] == [state.apps["a1"].admitted]


def test_a_changed_demand_moves_all_three_ledgers() -> None:
    """Semantics O1."""
    state = fold([*RUNNING, AppChanged(app="a1", requested=Resources(16, 8192), sizing=Computed(512))])
    assert balances(state) == [Balance(Resources(16, 8192), Resources(8, 4096))] * 3
    assert state.apps["a1"].left_cores == 8


def test_a_changed_demand_moves_its_company_in_the_order() -> None:
    """Semantics O1, C3."""
    companies = [CompanyRegistered(company=name, amounts=Resources(64, 32768)) for name in ("a", "b")]
    state = fold([*companies, joined("w1", 64), queued("a1", company="a"), queued("b1", 16, company="b")])
    fold([entered("a1", company="a"), entered("b1", company="b"), queued("a2", company="a")], state)
    fold([queued("b2", company="b")], state)
    due = [state.apps["a2"], state.apps["b2"]]
    assert [app.id for app in state.queue.entering(due)] == ["a2", "b2"]
    fold([AppChanged(app="a1", requested=Resources(32, 16384), sizing=Computed(512))], state)
    assert [app.id for app in state.queue.entering(due)] == ["b2", "a2"]


def test_a_killed_apps_executors_hold_their_grants_until_they_are_gone() -> None:
    """Semantics A5: no core is ever promised twice."""
    state = fold([*RUNNING, AppRemoved(app="a1", reason="killed")])
    assert balances(state) == [Balance(Resources(0, 0), Resources(8, 4096))] * 3
    assert not state.waiting
    assert not state.indexes.owed
    assert {executor.status for executor in state.executors.values()} == {"stopping"}
    fold([removed("a1.0")], state)
    assert balances(state) == [Balance(Resources(0, 0), Resources(4, 2048))] * 3
    fold([removed("a1.1")], state)
    assert balances(state) == [Balance()] * 3
    assert state.workers["w1"].free == Resources(16, 65536)
    assert state.companies["acme"].apps == 0


def test_a_pending_app_that_is_killed_leaves_its_users_queue() -> None:
    """Semantics A5."""
    state = fold([ACME, joined(), queued(), AppRemoved(app="a1", reason="killed")])
    assert state.queue.oldest() is None
    assert balances(state) == [Balance()] * 3
    assert state.apps["a1"].state == "killed"


def test_an_ended_app_keeps_how_and_when_it_ended() -> None:
    state = fold([*RUNNING, AppRemoved(app="a1", reason="failed", detail="task 3")])
    app = state.apps["a1"]
    assert (app.state, app.detail, app.ended_at, app.submitted_at, app.admitted_at) == ("failed", "task 3", 7, 3, 4)
    assert (app.submitted, app.admitted) == (3, 4)


def test_only_the_last_ended_apps_are_remembered() -> None:
    retained = ClusterConfigured(retained_apps=2)
    events: list[Event] = [retained, ACME]
    for number in range(4):
        events += [queued(f"a{number}"), AppRemoved(app=f"a{number}", reason="killed")]
    state = fold(events)
    assert list(state.apps) == ["a2", "a3"]
    fold([ClusterConfigured(retained_apps=0)], state)
    assert not state.apps


def test_a_fold_that_asks_for_no_timers_lets_go_of_forgotten_apps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.rules.state.cluster.CHANGED_APPS", 2)
    state = fold([ACME, joined(), ClusterConfigured(retained_apps=1)])
    for number, app in enumerate(("a1", "a2", "a3", "a4", "a5"), start=1):
        for event in (queued(app), entered(app), AppRemoved(app=app, reason="killed")):
            state.apply(event, at=state.at + number)
        if app == "a1":
            first = state.apps[app]
    assert list(state.apps) == ["a5"]
    assert sys.getrefcount(first) == 2  # the test's, and that of this question
    check(state)


def test_a_forgotten_app_waits_for_nothing_although_its_times_were_asked_for() -> None:
    """Semantics T1: a worker of the same name keeps what it waits for."""
    exclude = ClusterConfigured(retained_apps=0, exclude_after=1)
    state = fold([exclude, *RUNNING, replace(removed("a1.0"), reason="failed"), removed("a1.1")])
    assert [timer.whom for timer in state.timers.table] == ["a1"]
    state.timers.set("a1", OF_A_WORKER, [(1, "suspect")])
    fold([AppRemoved(app="a1", reason="failed")], state)
    assert not state.apps
    assert [timer.what for timer in state.timers.table] == ["suspect"]


def test_an_ended_app_is_not_forgotten_while_an_executor_of_it_is_left() -> None:
    """Semantics A5."""
    state = fold([ClusterConfigured(retained_apps=0), *RUNNING, AppRemoved(app="a1", reason="killed")])
    assert list(state.apps) == ["a1"]
    fold([removed("a1.0")], state)
    assert list(state.apps) == ["a1"]
    fold([removed("a1.1")], state)
    assert not state.apps


@pytest.mark.parametrize("status", ["draining", "leaving", "decommissioned"])
def test_a_worker_that_is_not_alive_offers_nothing_and_what_runs_there_goes_on(status: WorkerStatus) -> None:
    """Semantics W1, W3."""
    changed = WorkerChanged(worker="w1", status=status, offer=Resources(16, 65536))
    state = fold([*RUNNING, joined("w2", 8, 8192), changed])
    assert (state.fleet.total.cores, state.fleet.total.memory_mb) == (8, 8192)
    assert state.fleet.live_workers() == {"w2": Resources(8, 8192)}
    fold([removed("a1.0")], state)
    assert state.fleet.live_workers() == {"w2": Resources(8, 8192)}
    if status == "decommissioned":
        return
    fold([replace(changed, status="alive")], state)
    assert state.fleet.live_workers() == {"w1": Resources(12, 65536 - 2048), "w2": Resources(8, 8192)}
    assert state.fleet.total.cores == 24


def test_a_larger_offer_is_free_at_once() -> None:
    """Semantics W1."""
    state = fold([*RUNNING, WorkerChanged(worker="w1", status="alive", offer=Resources(32, 4096))])
    assert state.workers["w1"].free == Resources(24, 0)
    assert (state.fleet.total.cores, state.fleet.total.memory_mb) == (32, 4096)


def test_a_default_quota_is_an_equal_part_of_the_live_cluster_and_moves_with_it() -> None:
    """Semantics C2: exact, never rounded."""
    state = fold([ACME, joined("w1", 10, 10_000)])
    assert state.quota("acme") == Quota(Resources(10, 10_000), 1)
    fold([CompanyRegistered(company="b"), CompanyRegistered(company="c")], state)
    assert state.quota("acme") == Quota(Resources(10, 10_000), 3)
    fold([joined("w2", 5, 2_000), CompanyRemoved(company="c")], state)
    assert state.quota("acme") == Quota(Resources(15, 12_000), 2)
    fold([WorkerChanged(worker="w2", status="draining", offer=Resources(5, 2_000))], state)
    assert state.quota("acme") == Quota(Resources(10, 10_000), 2)


def test_a_part_moves_with_the_live_cluster_and_amounts_do_not() -> None:
    """Semantics C2: 25%."""
    state = fold([CompanyRegistered(company="acme", part="1/4"), joined("w1", 10, 10_000)])
    fold([CompanyRegistered(company="b", amounts=Resources(64, 32768))], state)
    assert state.quota("acme") == Quota(Resources(10, 10_000), 4)
    fold([WorkerRemoved(worker="w1", reason="removed")], state)
    assert state.quota("acme") == Quota(Resources(0, 0), 4)
    assert state.quota("b") == Quota(Resources(64, 32768), named=())
    fold([CompanyChanged(company="b")], state)
    assert state.quota("b") == Quota(Resources(0, 0), 2)


def test_the_log_says_who_writes_it_and_under_which_settings() -> None:
    state = fold([MasterElected(master="m1"), ClusterConfigured(placement="pack"), MasterElected(master="m2")])
    assert state.master == "m2"
    assert state.settings.placement == "pack"
    assert state.configured


def test_a_command_is_remembered_with_the_position_of_its_last_event() -> None:
    state = ClusterState()
    for event in (ACME, joined()):
        state.apply(event, at=1, cause="c-1")
    state.apply(queued(), at=1)
    assert state.commands == {"c-1": 2}


def test_the_last_ten_thousand_commands_that_changed_something_are_remembered() -> None:
    state = ClusterState()
    for number in range(KNOWN_COMMANDS + 1):
        state.apply(MasterElected(master="m"), at=1, cause=f"c-{number}")
        if number == 5:
            state.apply(MasterElected(master="m"), at=1, cause="c-0")
    assert len(state.commands) == KNOWN_COMMANDS == 10_000
    assert "c-0" in state.commands, "it changed something later than c-1"
    assert "c-1" not in state.commands


def test_apps_that_are_owed_cores_come_in_the_order_of_admission() -> None:
    """Semantics P6."""
    state = fold([ACME, joined(), queued("a1"), queued("a2"), queued("a3"), entered("a3"), entered("a1")])
    assert [app.id for app in serve(state, lambda *_: True)] == ["a3", "a1"]


def test_equal_logs_give_equal_digests_and_any_fact_changes_it() -> None:
    seen = {fold(RUNNING).digest(), fold(list(RUNNING)).digest()}
    assert len(seen) == 1
    others: list[list[Event]] = [
        RUNNING[:-1],
        [*RUNNING[:-1], granted("a1.1", cores=2)],
        [*RUNNING[:-1], granted("a1.1", memory_mb=1024)],
        [ACME, joined(), queued(user="bob"), entered(user="bob"), granted("a1.0"), granted("a1.1")],
        [ACME, joined(), joined("w2"), queued(), entered(), granted("a1.0"), granted("a1.1")],
        [*RUNNING, ExecutorChanged(executor="a1.0")],
        [*RUNNING, ExecutorChanged(executor="a1.1")],
        [*RUNNING, MasterElected(master="m1")],
        [*RUNNING, ClusterConfigured()],
    ]
    assert len(seen | {fold(events).digest() for events in others}) == len(others) + 1


def test_states_that_would_lose_executors_in_another_order_have_other_digests() -> None:
    """Semantics T2: what is decided depends on nothing but the state, so the digest covers every order that counts."""
    admitted: list[Event] = [ACME, joined(), queued("a1"), queued("a2"), entered("a1"), entered("a2")]
    one = fold([*admitted, granted("a1.0"), granted("a2.0")])
    other = fold([*admitted, granted("a2.0"), granted("a1.0")])
    assert decide(one, LoseWorker(worker="w1")) != decide(other, LoseWorker(worker="w1"))
    assert one.digest() != other.digest()


def test_states_are_equal_where_the_order_of_events_does_not_count() -> None:
    initech = CompanyRegistered(company="initech")
    one, other = fold([ACME, initech, joined("w1")]), fold([initech, ACME, joined("w1")])
    assert one.digest() == other.digest()


def test_the_time_and_the_causes_are_part_of_the_digest() -> None:
    digests = set()
    for at, cause in ((1, ""), (2, ""), (1, "c-1"), (1, "c-2")):
        state = ClusterState()
        state.apply(ACME, at=at, cause=cause)
        digests.add(state.digest())
    assert len(digests) == 4


def test_the_facts_of_a_state_are_json() -> None:
    facts = fold(RUNNING).dump()
    assert json.loads(json.dumps(facts)).keys() == facts.keys()


def unbalance(state: ClusterState) -> None:
    state.balance.requested += Resources(1)


def unbalance_company(state: ClusterState) -> None:
    state.companies["acme"].balance.granted -= Resources(0, 1)


def unbalance_user(state: ClusterState) -> None:
    state.companies["acme"].users["ann"].balance.granted += Resources(1)


def miscount_worker(state: ClusterState) -> None:
    state.workers["w1"].free += Resources(1)


def promise_twice(state: ClusterState) -> None:
    worker = state.workers["w1"]
    worker.offer, worker.free = Resources(7, 65536), Resources(-1, 65536 - 4096)


def miscount_app(state: ClusterState) -> None:
    state.apps["a1"].granted -= Resources(1)


def grant_too_much(state: ClusterState) -> None:
    state.apps["a1"].done_cores = 4


def miscount_running(state: ClusterState) -> None:
    state.apps["a1"].running += 1


def drop_from_waiting(state: ClusterState) -> None:
    del state.waiting["a1"]


def owe_nothing(state: ClusterState) -> None:
    state.apps["a2"].owed = False


def forget_owed(state: ClusterState) -> None:
    state.indexes.owed.move("a2", None, None)


def drop_from_fleet(state: ClusterState) -> None:
    worker = state.workers["w1"]
    state.fleet.leave("w1", worker.offer, worker.free)


def miscount_fleet(state: ClusterState) -> None:
    state.fleet.total += Resources(1)


def drop_from_queue(state: ClusterState) -> None:
    state.queue.remove(state.apps["a3"])


def disorder_waiting(state: ClusterState) -> None:
    state.waiting["a1"] = state.waiting.pop("a1")


def give_away_waiting(state: ClusterState) -> None:
    del state.companies["acme"].waiting["a1"]


def drop_executor(state: ClusterState) -> None:
    del state.executors["a1.0"]


def change_quota(state: ClusterState) -> None:
    state.queue.companies["acme"].tenant.quota = Quota(Resources(8, 4096))


def change_turn(state: ClusterState) -> None:
    state.queue.companies["acme"].users["ann"].contender.last_selected = 1


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (unbalance, "waitingApps counts"),
        (unbalance_company, "company 'acme' counts"),
        (unbalance_user, "user 'ann' of 'acme' counts"),
        (miscount_worker, "worker 'w1' has"),
        (promise_twice, "worker 'w1' is granted beyond its offer"),
        (miscount_app, "app 'a1' counts"),
        (grant_too_much, "app 'a1' is granted"),
        (miscount_running, "app 'a1' counts 1 running"),
        (drop_from_waiting, "waitingApps counts|app 'a1' in state .* missing from waitingApps"),
        (owe_nothing, "app 'a2' is owed 8 cores, but its flag `owed` is False"),
        (forget_owed, "the indexes did not follow the facts of \\['a2'\\]"),
        (drop_from_fleet, "the fleet index differs"),
        (miscount_fleet, "the fleet counts 17 cores and 65536 MiB, but the live workers offer 16 cores"),
        (drop_from_queue, "the queue differs"),
        (disorder_waiting, "waitingApps is not in the order of admission"),
        (give_away_waiting, "the apps of company 'acme' in waitingApps are others than"),
        (drop_executor, "the executors differ"),
        (change_quota, "the queue has another quota or turn of company 'acme'"),
        (change_turn, "the queue has another turn of user 'ann'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_state_that_contradicts_itself_is_named_with_its_position(
    break_it: Callable[[ClusterState], None], sentence: str
) -> None:
    """Semantics O2."""
    state = fold([*RUNNING, queued("a2"), entered("a2"), queued("a3")])
    break_it(state)
    with pytest.raises(InvariantViolated, match=rf"^log position 9: ({sentence})") as raised:
        check(state)
    assert raised.value.seq == 9


def test_a_worker_that_registers_again_in_one_turn_keeps_what_is_held_on_it() -> None:
    """Semantics P8: the hold ends by its rule, in the stage of moments."""
    state = fold([ACME, joined("w1"), queued("a1", 8), entered("a1")])
    held = RoomHeld(worker="w1", app="a1", amounts=Resources(4, 2048), reason="hold")
    fold([held, WorkerRemoved(worker="w1", reason="lost"), joined("w1")], state)
    assert [*state.workers["w1"].holds] == [*state.holds] == [5]
