"""Gangs: submission, placement, targets, losses and ends, as a whole (semantics G8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from scheduler.model.commands import (
    AddDepartment,
    AddWindow,
    ChangeDepartment,
    Command,
    ConfigureCluster,
    DecommissionWorker,
    EndedExecutor,
    KillApp,
    KillExecutors,
    LoseWorker,
    MoveCompany,
    RegisterCompany,
    RemoveWindow,
    RequeueApp,
    ScaleApp,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.errors import InvalidCommand, InvariantViolated, NeverTogether, QuotaExceeded
from scheduler.model.events import (
    AppChanged,
    AppRemoved,
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
    ExecutorRevoked,
    RevocationWithdrawn,
    SlotBegan,
    TargetEnded,
    TargetSet,
)
from scheduler.model.grants import STOP, Grant
from scheduler.rules.command.programs import check_programs
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.assignments import FIRST_PORT, PORTS, all_grants, changed_grants
from scheduler.rules.view.views import app as view_of
from tests.property.given import Cluster, Logged, decides_nothing_more, submission, worker
from tests.property.test_gangs import gang
from tests.unit.recorded import facts
from witness.audit.audit import audit
from witness.pending_reasons import waits_for


def cluster(*workers: int, **settings: Any) -> Cluster:
    """One of companies a and b and of workers w0, w1 … of so many cores, whose executors leave at once."""
    made = Cluster({"reclaim_patience_s": 0, "min_runtime_s": 0, "kill_grace_s": 5, **settings})
    made.turn(RegisterCompany(company="a"), RegisterCompany(company="b"))
    for number, cores in enumerate(workers):
        made.turn(worker(f"w{number}", cores))
    return made


def of(events: Sequence[Event], kind: type[Event]) -> list[Any]:
    return [each for each in events if isinstance(each, kind)]


def granted(events: Sequence[Event]) -> list[str]:
    return [event.executor for event in of(events, ExecutorAllocated)]


def told(events: Sequence[Event], *, for_gang: bool = False) -> set[str]:
    """The executors that are told to leave, or to stop with their gang."""
    return {event.executor for event in of(events, ExecutorRevoked) if event.gang == for_gang}


def gone(made: Cluster, app: str) -> list[Event]:
    """What the ends of all executors of an app that were told to stop cause."""
    leaving = [one.id for one in made.state.apps[app].executors.values() if one.status == "stopping"]
    return [event for name in leaving for event in made.turn(EndedExecutor(executor=name, reason="killed"))]


def lent(made: Cluster, cores: int = 16, company: str = "a") -> list[Event]:
    """An app of executors of 4 cores."""
    asked = submission("loan", cores, company=company, user="u")
    return made.turn(replace(asked, executor_cores=4, executor_memory_mb=1024, memory_per_task_mb=None, tasks=1000))


def test_all_executors_start_in_one_turn_or_none() -> None:
    made = cluster(8, 4, never_fits="wait")
    made.turn(gang("x", 1, company="a", cores=2))
    assert granted(made.turn(gang("g1", 2, company="a", cores=6))) == []
    made.worker("w2", 4)
    assert not made.state.apps["g1"].executors
    assert granted(made.turn(worker("w3", 8))) == ["g1.0", "g1.1"]
    assert audit(facts(made)) == []


def test_what_stands_behind_a_gang_without_room_is_not_held_up() -> None:
    made = cluster(8)
    assert granted(lent(made, 4)) == ["loan.0"]
    made.turn(gang("g1", 2, company="b", cores=4))
    assert granted(made.turn(gang("g2", 1, company="b", user="v", cores=4))) == ["g2.0"]
    assert made.state.apps["g1"].executors == {}


def test_room_is_made_for_all_of_a_gang_and_kept_until_all_of_it_is_there() -> None:
    made = cluster(8, 8, reclaim_patience_s=300)
    lent(made)
    events = made.turn(gang("g1", 2, company="b", cores=4))
    assert len(of(events, TargetSet)) == 2
    one, other = sorted(told(events))
    assert granted(made.turn(EndedExecutor(executor=one, reason="killed"))) == []
    assert not made.state.apps["g1"].executors
    events = made.turn(EndedExecutor(executor=other, reason="killed"))
    assert granted(events) == ["g1.0", "g1.1"]
    kinds = [type(event) for event in events]
    assert kinds.index(TargetEnded) > kinds.index(ExecutorAllocated) + 1, "something stands between its grants"
    assert audit(facts(made)) == []


def test_of_a_company_one_gang_has_targets_at_a_time() -> None:
    made = cluster(*[8] * 8, reclaim_patience_s=300)
    lent(made, 64)
    made.turn(gang("g1", 2, company="b", cores=4), gang("g2", 2, company="b", user="v", cores=4))
    assert {hold.app for hold in made.state.holds.values()} == {"g1"}
    gone(made, "loan")
    gone(made, "loan")
    assert {name: len(made.state.apps[name].executors) for name in ("g1", "g2")} == {"g1": 2, "g2": 2}


def test_a_gang_is_surplus_as_a_whole() -> None:
    made = cluster(8, 8)
    made.turn(gang("g1", 4, company="a", cores=4))
    events = made.turn(gang("g2", 2, company="b", cores=4))
    assert told(events) == {"g1.0", "g1.1", "g1.2", "g1.3"}
    assert {event.shares.loser_after for event in of(events, ExecutorRevoked)} == {"0/0"}
    events = gone(made, "g1")
    assert granted(events) == ["g2.0", "g2.1"]
    assert audit(facts(made)) == []


def test_who_is_told_stays_as_a_whole_once_nobody_needs_it() -> None:
    made = cluster(8, 8, reclaim_patience_s=300)
    made.turn(gang("g1", 4, company="a", cores=4))
    made.turn(gang("g2", 2, company="b", cores=4))
    events = made.turn(KillApp(app="g2"))
    assert len(of(events, RevocationWithdrawn)) == 4
    assert made.state.apps["g1"].is_whole


def test_a_window_in_the_way_of_one_tells_all_the_same_date() -> None:
    made = cluster(8, 8, 8)
    made.turn(replace(gang("g", 2, company="b", cores=8), grace_s=20))
    begin = made.state.at + 600_000
    made.turn(AddWindow(window="x", workers=("w1",), begin=begin, end=begin + 60_000, notice_s=60))
    leave = of(made.turn(after_s=545), ExecutorRevoked)
    assert {(each.executor, each.worker, each.window) for each in leave} == {("g.0", "w2", "x"), ("g.1", "w1", "x")}
    assert {each.deadline for each in leave} == {begin - 25_000}  # each has the grace of its app, and 5 s
    decides_nothing_more(made.state)
    assert of(made.turn(after_s=1), ExecutorRevoked) == []
    stay = of(made.turn(RemoveWindow(window="x")), RevocationWithdrawn)
    assert {each.executor for each in stay} == {"g.0", "g.1"}
    made.check_replay()
    assert audit(facts(made)) == []


def test_a_gang_that_a_window_told_does_not_stay_without_one_of_it() -> None:
    made = cluster(8, 8, 8)
    made.turn(gang("g", 2, company="b", cores=8))
    begin = made.state.at + 600_000
    made.turn(AddWindow(window="x", workers=("w1",), begin=begin, end=begin + 60_000, notice_s=60))
    assert told(made.turn(after_s=545)) == {"g.0", "g.1"}
    made.turn(EndedExecutor(executor="g.1", reason="killed"))
    assert of(made.turn(RemoveWindow(window="x")), RevocationWithdrawn) == []
    made.turn(EndedExecutor(executor="g.0", reason="killed"))
    assert made.state.apps["g"].is_whole


def test_who_has_lost_one_already_does_not_stay() -> None:
    made = cluster(8, 8, reclaim_patience_s=300)
    made.turn(gang("g1", 4, company="a", cores=4))
    made.turn(gang("g2", 2, company="b", cores=4))
    made.turn(EndedExecutor(executor="g1.2", reason="killed"))
    events = made.turn(KillApp(app="g2"))
    assert of(events, RevocationWithdrawn) == []
    assert granted(gone(made, "g1")) == ["g1.4", "g1.5", "g1.6", "g1.7"]


@pytest.mark.parametrize(
    "end",
    [
        EndedExecutor(executor="g1.1", reason="failed", exit_code=1),
        LoseWorker(worker="w1", last_seen=0),
        DecommissionWorker(worker="w1"),
    ],
    ids=["failed", "lost", "decommissioned"],
)
def test_the_others_stop_with_one_that_is_gone_and_all_begin_anew(end: Command) -> None:
    made = cluster(4, 4, 4, 4)
    made.turn(gang("g1", 3, company="a", cores=4))
    made.turn(*[StartedExecutor(executor=f"g1.{number}") for number in range(3)])
    events = made.turn(end)
    (ended,) = of(events, ExecutorRemoved)
    assert told(events, for_gang=True) == {"g1.0", "g1.1", "g1.2"} - {ended.executor}
    assert {text for grants in all_grants(made.state).values() for text in grants.values()} == {STOP}
    events = gone(made, "g1")
    assert {event.reason for event in of(events, ExecutorRemoved)} == {"gang"}
    assert granted(events) == ["g1.3", "g1.4", "g1.5"]
    assert audit(facts(made)) == []


def test_programs_that_ended_well_begin_anew_too() -> None:
    made = cluster(16)
    made.turn(gang("g1", 3, company="a", cores=4))
    made.turn(EndedExecutor(executor="g1.0", reason="exited", exit_code=0))
    assert made.state.apps["g1"].executor_limit == 2
    events = made.turn(EndedExecutor(executor="g1.1", reason="failed", exit_code=1))
    assert [event.executor_limit for event in of(events, AppChanged)] == [3]
    assert granted(gone(made, "g1")) == ["g1.3", "g1.4", "g1.5"]
    assert sorted((grant.rank, grant.ranks) for grant in grants_of(made)) == [(0, 3), (1, 3), (2, 3)]


def grants_of(made: Cluster) -> list[Grant]:
    """The grants of the executors, in their order."""
    texts = {name: text for grants in all_grants(made.state).values() for name, text in grants.items()}
    return [Grant.model_validate_json(texts[name]) for name in sorted(texts)]


def test_executors_of_a_gang_are_told_where_the_others_are() -> None:
    made = cluster(4, 8)
    made.turn(gang("g1", 3, company="a", cores=4))
    first = grants_of(made)
    assert [grant.rank for grant in first] == [0, 1, 2]
    assert {grant.hosts for grant in first} == {("w1.example", "w1.example", "w0.example")}
    (port,) = {grant.port for grant in first}
    assert FIRST_PORT <= port < FIRST_PORT + PORTS
    made.turn(EndedExecutor(executor="g1.0", reason="exited", exit_code=0))
    assert {(grant.hosts, grant.port) for grant in grants_of(made)} == {(("", "w1.example", "w0.example"), port)}
    made.turn(EndedExecutor(executor="g1.1", reason="failed", exit_code=1))
    gone(made, "g1")
    assert {grant.port for grant in grants_of(made)} != {port}
    made.turn(KillApp(app="g1"))
    gone(made, "g1")
    made.turn(gang("g2", 2, company="a", gang=False))
    assert {(grant.hosts, grant.port) for grant in grants_of(made)} == {((), 0)}


def test_a_gang_ends_with_its_last_program_that_ends_well() -> None:
    made = cluster(16)
    made.turn(gang("g1", 2, company="a", cores=4))
    made.turn(EndedExecutor(executor="g1.1", reason="exited", exit_code=0))
    assert len(made.state.apps["g1"].executors) == 1
    events = made.turn(EndedExecutor(executor="g1.0", reason="exited", exit_code=0))
    assert [event.reason for event in of(events, AppRemoved)] == ["finished"]


def test_each_failure_of_a_gang_counts_however_long_it_ran() -> None:
    made = cluster(16, max_executor_failures=3)
    made.turn(gang("g1", 2, company="a", cores=4))
    ends: list[AppRemoved] = []
    for _ in range(3):
        there = [one.id for one in made.state.apps["g1"].members]
        made.turn(*[StartedExecutor(executor=name) for name in there])
        ends += of(made.turn(EndedExecutor(executor=there[0], reason="failed"), after_s=60), AppRemoved)
        gone(made, "g1")
    assert [event.reason for event in ends] == ["failed"]
    assert "3 executors ended abnormally" in ends[0].detail


@pytest.mark.parametrize(("number", "said"), [(1, "its program ended with exit code 7"), (2, "2 executors ended")])
def test_a_gang_fails_with_as_many_failures_as_it_states(number: int, said: str) -> None:
    """Semantics W5: with one, the app says how that program ended, and nothing of it begins anew."""
    made = cluster(16, exclude_after=0)
    made.turn(replace(gang("g1", 2, company="a", cores=4), max_failures=number))
    ends: list[AppRemoved] = []
    for _ in range(number):
        first = made.state.apps["g1"].members[0].id
        why = "its program ended with exit code 7"
        assert not ends
        ends += of(made.turn(EndedExecutor(executor=first, reason="failed", exit_code=7, detail=why)), AppRemoved)
        gone(made, "g1")
    assert [event.reason for event in ends] == ["failed"]
    assert ends[0].detail.startswith(said)
    assert not granted(made.turn())
    assert audit(facts(made)) == []


def test_a_command_that_shells_cannot_start_ends_a_gang_that_states_one_failure() -> None:
    made = cluster(16, 16)
    made.turn(replace(gang("g1", 2, company="a", cores=4), max_failures=1))
    first, why = made.state.apps["g1"].members[0].id, "its program ended with exit code 127 on worker w1"
    events = made.turn(EndedExecutor(executor=first, reason="failed", exit_code=127, unstartable=why))
    assert [(event.reason, event.detail) for event in of(events, AppRemoved)] == [("failed", why)]


@pytest.mark.parametrize("stays", [True, False])
def test_a_gang_whose_worker_is_lost_fails_where_it_states_so(*, stays: bool) -> None:
    """Semantics G8: it begins anew unless it states its failures and may not be put back."""
    made = cluster(8, 8, 8)
    made.turn(replace(gang("g1", 2, company="a", cores=8), max_failures=1, no_requeue=not stays))
    worker = made.state.apps["g1"].members[1].worker
    events = made.turn(LoseWorker(worker=worker, last_seen=1))
    why = [] if stays else [f"its executor was lost with worker {worker}"]
    assert [event.detail for event in of(events, AppRemoved)] == why
    assert (granted(gone(made, "g1")) == ["g1.2", "g1.3"]) == stays
    assert audit(facts(made)) == []


@pytest.mark.parametrize(
    ("about", "sentence"),
    [
        ({"max_failures": 0}, "the failures that end an app must be between 1 and 1000, not 0"),
        ({"max_failures": 1001}, "the failures that end an app must be between 1 and 1000, not 1001"),
    ],
)
def test_failures_that_end_an_app_are_a_number(about: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidCommand, match=sentence):
        cluster(16).turn(replace(gang("g1", 2, company="a", cores=4), **about))
    with pytest.raises(InvalidCommand, match="failures are counted of executors that run a program; tasks have"):
        cluster(16).turn(SubmitApp(app="x", company="a", user="u", tasks=1, command=("x",), max_failures=1))


def test_a_gang_that_is_put_back_begins_anew() -> None:
    made = cluster(16)
    made.turn(gang("g1", 2, company="a", cores=4))
    made.turn(EndedExecutor(executor="g1.1", reason="exited", exit_code=0))
    made.turn(RequeueApp(app="g1"))
    assert granted(gone(made, "g1")) == ["g1.2", "g1.3"]


def test_a_gang_larger_than_its_share_has_a_slot_as_a_whole() -> None:
    made = cluster(8, 8, slot_s=60)
    lent(made)
    made.turn(gang("g1", 4, company="b", cores=4))
    assert [(event.app, event.units) for event in of(made.turn(after_s=300), SlotBegan)] == [("g1", 4)]
    assert granted(gone(made, "loan")) == ["g1.0", "g1.1", "g1.2", "g1.3"]
    assert {one.until for one in made.state.apps["g1"].executors.values()} != {0}


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ({"executor_program": False}, "a gang is executors that run a program; add --executor-program"),
        ({"executor_limit": None}, "a gang has a number of executors from the start; give --executors N"),
        ({"executor_limit": 0}, "a gang has a number of executors from the start; give --executors N"),
        ({"driver": True, "executor_command": ("x",)}, "an app with a driver is no gang"),
        ({"owner_timeout_s": 30}, "an app with an owner gets executors as that asks for them"),
        ({"elastic": (1, 2)}, "executors that run a program take no tasks; leave out --elastic"),
    ],
)
def test_what_makes_no_gang_is_refused(stated: dict[str, Any], sentence: str) -> None:
    made = cluster(16)
    with pytest.raises(InvalidCommand, match=sentence):
        made.turn(replace(gang("g1", 2, company="a"), **stated))


def test_a_gang_with_a_driver_is_told_so_before_what_else_its_driver_lacks() -> None:
    stated = SubmitApp(app="g", company="a", user="u", command=("x",), driver=True, executor_program=True)
    with pytest.raises(InvalidCommand, match="add --executor-command CMD"):
        check_programs(stated)
    check_programs(replace(stated, gang=True))  # refused by the rules, as above


def test_a_gang_that_never_fits_is_refused_with_both_numbers() -> None:
    made = cluster(8, 8)
    why = "needs 5 executors of 4 cores and 1024 MiB at once, and the cluster, were it empty, can hold 4 at most"
    with pytest.raises(NeverTogether, match=f"{why}; ask for at most 4$"):
        made.turn(gang("g1", 5, company="a", cores=4))
    made.company("c", 8, 65536)
    with pytest.raises(QuotaExceeded, match="12 cores"):
        made.turn(gang("g1", 3, company="c", cores=4))


def test_a_gang_that_never_fits_into_a_department_is_refused_with_both_numbers() -> None:
    made = cluster(16, 16)
    made.company("d")
    made.turn(AddDepartment(department="r", cores=8, memory_mb=65536), AddDepartment(department="p", parent="r"))
    made.turn(MoveCompany(company="d", department="p"))
    with pytest.raises(QuotaExceeded, match="requests 12 cores, but the cap of department 'r' is 8 cores"):
        made.turn(gang("g1", 3, company="d", cores=4))
    made.turn(ChangeDepartment(department="r", borrow_limit="50%"))
    made.turn(gang("g1", 3, company="d", cores=4), KillApp(app="g1"))
    made.turn(ChangeDepartment(department="r", part="1/4"))
    why = "needs 4 executors of 4 cores and 1024 MiB at once, and the cap of department 'r' can hold 3 at most; ask for"
    with pytest.raises(NeverTogether, match=why):
        made.turn(gang("g2", 4, company="d", cores=4))
    made.turn(ChangeDepartment(department="r", borrow_limit="none"))
    made.turn(gang("g2", 4, company="d", cores=4))


def test_there_are_no_gangs_where_executors_come_one_by_one() -> None:
    made = cluster(8, admission="open")
    with pytest.raises(
        InvalidCommand, match="there are no gangs here, since executors come one by one with the setting"
    ):
        made.turn(gang("g1", 2, company="a"))
    made = cluster(8, placement="classic-pack")
    with pytest.raises(
        InvalidCommand, match="an app has one executor a worker with the setting placement=classic-pack"
    ):
        made.turn(gang("g1", 2, company="a"))
    made = cluster(8)
    made.turn(gang("g1", 2, company="a"))
    for settings in ({"admission": "open"}, {"placement": "classic-spread"}):
        with pytest.raises(InvalidCommand, match=r"app 'g1' is a gang, and .*; change it once that has ended"):
            made.turn(ConfigureCluster(settings=settings))
    made.turn(KillApp(app="g1"))
    made.turn(ConfigureCluster(settings={"admission": "open"}))


@pytest.mark.parametrize("command", [ScaleApp(app="g1", executors=3), KillExecutors(app="g1", executors=("g1.0",))])
def test_executors_of_a_gang_come_and_go_together_alone(command: Command) -> None:
    made = cluster(16)
    made.turn(gang("g1", 2, company="a"))
    with pytest.raises(
        InvalidCommand, match="app 'g1' is a gang, whose executors start and stop together; `fairlog req"
    ):
        made.turn(command)


def test_a_log_in_which_a_gang_is_granted_in_part_is_not_replayed() -> None:
    made = cluster(16)
    made.turn(gang("g1", 3, company="a", cores=4))
    made.submit("x", 4, company="b")
    left = [each for each in made.log if getattr(each.event, "executor", "") != "g1.2"]
    with pytest.raises(InvariantViolated, match="app 'g1' is a gang, and is granted a part of its executors") as found:
        replayed(left)
    assert found.value.rule == "G8"


def replayed(log: Sequence[Logged]) -> ClusterState:
    state = ClusterState()
    for event, at, cause, private, by in log:
        state.apply(event, at=at, cause=cause, private=private, by=by)
    return state


def test_why_a_gang_waits_says_how_many_of_it_have_room() -> None:
    made = cluster(8, 8)
    lent(made, 4)
    made.turn(gang("g1", 2, company="b", cores=7))
    wait = waits_for(made.state, made.state.apps["g1"])
    assert wait is not None
    text, told_facts = wait.tell()
    assert "it is a gang that needs 2 executors of 7 cores and 1024 MiB at once, of which 1 has room now" in text
    assert told_facts["gang"] == {"executors": 2, "room": 1}
    made.turn(LoseWorker(worker="w1", last_seen=0))
    made.turn(gang("g2", 1, company="b", cores=7))
    wait = waits_for(made.state, made.state.apps["g1"])
    assert wait is not None
    assert wait.cause == "no-worker-large-enough"
    assert "the live workers can hold 1 executor of 7 cores and 1024 MiB at most, were they empty" in wait.tell()[0]


def test_a_gang_is_shown_as_one() -> None:
    made = cluster(16)
    made.turn(gang("g1", 2, company="a"), SubmitApp(app="x", company="a", user="u", command=("true",)))
    shown, alone = view_of(made.state, app="g1"), view_of(made.state, app="x")
    assert (shown.gang, alone.gang) == (True, None)
    host = made.state.workers["w0"].host
    assert [(each.rank, each.host) for each in shown.executors] == [(0, host), (1, host)]
    assert [(each.rank, each.host) for each in alone.executors] == [(None, None)]


def test_the_others_are_told_where_a_program_has_ended() -> None:
    made = cluster(8)
    made.turn(gang("g1", 2, company="a", cores=4))
    before = all_grants(made.state)
    events = made.turn(EndedExecutor(executor="g1.0", reason="exited", exit_code=0))
    changes = changed_grants(events, made.state).by_worker["w0"]
    assert changes == {"g1.0": None, "g1.1": all_grants(made.state)["w0"]["g1.1"]}
    assert changes["g1.1"] != before["w0"]["g1.1"]


def test_workers_where_a_gang_failed_are_no_bar_if_it_has_no_room_without_them() -> None:
    """Semantics W7: counted are all executors that it needs at once."""
    made = cluster(4, 4, 4, exclude_after=1)
    made.turn(gang("g1", 3, company="a", cores=4))
    made.turn(*[StartedExecutor(executor=f"g1.{number}") for number in range(3)])
    made.turn(EndedExecutor(executor="g1.1", reason="failed", exit_code=1))
    assert granted(gone(made, "g1")) == ["g1.3", "g1.4", "g1.5"]
    made.worker("w3", 4)
    made.turn(EndedExecutor(executor="g1.4", reason="failed", exit_code=1))
    failed = {*made.state.apps["g1"].troubles}
    events = gone(made, "g1")
    places = {event.worker for event in of(events, ExecutorAllocated)}
    assert len(places) == 3
    assert len(failed - places) == 1
