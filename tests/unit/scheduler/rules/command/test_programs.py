"""Apps whose executors run a program: submission, ends, size, stops, owners and grace (semantics G)."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.model.commands import (
    AddDepartment,
    EndApp,
    EndedExecutor,
    FinishApp,
    KillExecutors,
    LoseOwner,
    MoveCompany,
    RegisterKind,
    ScaleApp,
    StartedExecutor,
    SubmitApp,
    command_of,
    private_of,
)
from scheduler.model.errors import AppEnded, InvalidCommand, NeverFits, NeverTogether
from scheduler.model.events import (
    AppChanged,
    AppRemoved,
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
    ExecutorRevoked,
    Fixed,
)
from scheduler.model.grants import Grant
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.command.programs import check_programs
from scheduler.rules.state.records import lines, restored
from scheduler.rules.view.assignments import all_grants
from scheduler.rules.view.views import app as view_of
from scheduler.rules.view.views import summary
from scheduler.service.inbox import received
from tests.property.given import Cluster, shared
from witness.audit.audit import Audit

EACH: dict[str, Any] = {"executor_cores": 2, "executor_memory_mb": 1024}


def programs(app: str = "a1", executors: int | None = 3, **about: Any) -> SubmitApp:
    """An app of executors of 2 cores and 1 GiB that each run a program."""
    said: dict[str, Any] = {"executor_program": True, "executor_limit": executors, **EACH, **about}
    return SubmitApp(app=app, company="acme", user="ann", command=("true",), **said)


def driven(app: str = "a1", executors: int | None = None, **about: Any) -> SubmitApp:
    """The same beside a driver."""
    return programs(app, executors, driver=True, executor_command=("work", "hard"), **about)


def running(number: int = 3, **about: Any) -> Cluster:
    """So many executors run their programs on a worker of 16 cores."""
    cluster = shared(w1=16)
    cluster.turn(programs(executors=number, **about))
    cluster.turn(*(StartedExecutor(executor=f"a1.{each}") for each in range(number)))
    return cluster


def kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def audited(cluster: Cluster) -> list[str]:
    """What an audit of the log finds."""
    from scheduler.store.codec import facts

    return [str(each) for each in Audit().deviations(facts(cluster.records))]


def test_an_app_of_programs_has_no_tasks_and_asks_for_its_number_of_executors() -> None:
    cluster = running()
    app = cluster.state.apps["a1"]
    assert (app.spec.tasks, app.spec.cores, app.requested) == (0, 6, Resources(6, 3072))
    assert app.spec.sizing == Fixed(Resources(2, 1024), counted=True)
    assert (len(app.executors), app.executor_limit) == (3, 3)


@pytest.mark.parametrize(
    ("about", "requested", "limit"),
    [
        ({"executors": None, "cores": 5}, Resources(4, 2048), 2),
        ({"executors": None}, Resources(2, 1024), 1),
        ({"executors": 0}, NOTHING, 0),
        ({"executors": 1, "executor_cores": None, "executor_memory_mb": None}, Resources(4, 2048), 1),
        ({"executors": 2, "executor_memory_mb": None}, Resources(4, 2048), 2),
    ],
)
def test_the_number_and_the_size_have_defaults(about: dict[str, Any], requested: Resources, limit: int) -> None:
    """Semantics G1: the number as stated, else as the cores make, else one; the minimum executor."""
    cluster = shared(w1=16)
    cluster.turn(programs(**about))
    app = cluster.state.apps["a1"]
    assert (app.requested, app.executor_limit, len(app.executors)) == (requested, limit, limit)


def test_beside_a_driver_there_is_no_executor_until_it_asks_for_one() -> None:
    cluster = shared(w1=16)
    assert kinds(cluster.turn(driven())) == ["AppRegistered", "AppAdmitted", "DriverAllocated"]
    assert (
        kinds(cluster.turn(ScaleApp(app="a1", executors=2))) == ["AppChanged", "AppChanged"] + ["ExecutorAllocated"] * 2
    )


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"tasks": 3}, "take no tasks; leave out --tasks"),
        ({"retries": 1}, "take no tasks; leave out --retries"),
        ({"elastic": (0, 4)}, "take no tasks; leave out --elastic"),
        ({"time_limit_s": 9}, "take no tasks; leave out --time-limit"),
        ({"sizing": "one-per-worker"}, "their sizing must be fixed, not 'one-per-worker'"),
        ({"executors": None, "cores": 1}, "an executor of 2 cores is larger than the app, which asks for 1 in all"),
        ({"executors": None, "cores": "unlimited"}, "a stated number; give --executors instead of --cores"),
        ({"executors": -1}, "the number of executors must be between 0 and"),
        ({"grace_s": 3601}, "the grace, in seconds, must be between 0 and 3600, not 3601"),
        ({"owner_timeout_s": 0}, "the lease of the owner, in seconds, must be between 1 and"),
        ({"owner_timeout_s": 9, "driver": True}, "an app with a driver ends with its driver; leave out"),
    ],
)
def test_what_an_app_of_programs_cannot_ask_for(about: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidCommand, match=why):
        shared(w1=16).turn(programs(**about))


def test_a_size_that_fits_nowhere_is_refused_although_no_executor_is_asked_for_yet() -> None:
    with pytest.raises(NeverFits):
        shared(w1=16).turn(driven(executor_cores=32))


def test_what_executors_run_is_stated_once_and_is_private() -> None:
    with pytest.raises(InvalidCommand, match="add --executor-command"):
        check_programs(programs(driver=True))
    with pytest.raises(InvalidCommand, match="needs --executor-program and --driver"):
        check_programs(programs(executor_command=("x",)))
    with pytest.raises(InvalidCommand, match="add --executor-command"):
        received(
            b'{"type":"SubmitApp","app":"a","company":"c","user":"u","command":["x"],"driver":true,'
            b'"executor_program":true}'
        )
    part = private_of(driven())
    assert part is not None
    assert (part.command, part.executor_command) == (("true",), ("work", "hard"))


def test_a_program_that_ends_well_is_given_back_and_lowers_the_demand() -> None:
    """Semantics G2: nothing replaces it, and the app is finished with the last one."""
    cluster = running()
    ended = cluster.turn(EndedExecutor(executor="a1.1", reason="exited", exit_code=0))
    assert kinds(ended) == ["ExecutorRemoved", "AppChanged"]
    app = cluster.state.apps["a1"]
    assert (app.executor_limit, app.requested, app.granted) == (2, Resources(4, 2048), Resources(4, 2048))
    assert kinds(cluster.ended("a1.0")) == ["ExecutorRemoved", "AppChanged"]
    assert kinds(cluster.ended("a1.2")) == ["ExecutorRemoved", "AppChanged", "AppRemoved"]
    assert (app.state, app.detail) == ("finished", "")
    assert audited(cluster) == []


@pytest.mark.parametrize("gang", [False, True])
def test_ended_programs_are_shown_with_what_they_asked_for(*, gang: bool) -> None:
    cluster = running(gang=gang)
    cluster.turn(EndedExecutor(executor="a1.1", reason="exited", exit_code=0))
    app = cluster.state.apps["a1"]
    assert summary(app).requested_cores == 4, "what it still asks for"
    cluster.ended("a1.0")
    cluster.ended("a1.2")
    assert app.requested == NOTHING
    assert (summary(app).state, summary(app).requested_cores, summary(app).requested_memory) == ("finished", 6, 3072)


def test_a_program_that_fails_is_replaced_and_the_log_says_why() -> None:
    cluster = running(1)
    why = "used 1202 MiB, above the 896 MiB granted"
    ended = cluster.turn(EndedExecutor(executor="a1.0", reason="failed", exit_code=137, detail=why))
    assert kinds(ended) == ["ExecutorRemoved", "ExecutorAllocated"]
    assert isinstance(ended[0], ExecutorRemoved)
    assert (ended[0].reason, ended[0].exit_code, ended[0].detail) == ("failed", 137, why)
    assert cluster.state.apps["a1"].executor_limit == 1
    assert audited(cluster) == []


def test_programs_that_keep_failing_fail_the_app_with_the_last_reason() -> None:
    """Semantics W5."""
    cluster = shared({"max_executor_failures": 2}, w1=16, w2=16)
    cluster.turn(programs(executors=1))
    cluster.turn(EndedExecutor(executor="a1.0", reason="failed", exit_code=3))
    last = cluster.turn(EndedExecutor(executor="a1.1", reason="failed", exit_code=3, detail="it has no licence"))[-1]
    why = "2 executors ended abnormally with none running for 10 s; the last one: it has no licence"
    assert last == AppRemoved(app="a1", reason="failed", detail=why)


def started(cluster: Cluster, number: int) -> None:
    cluster.turn(StartedExecutor(executor=f"a1.{number}"))


def failed(cluster: Cluster, number: int) -> Event:
    """The last event of the turn in which the executor fails."""
    return cluster.turn(EndedExecutor(executor=f"a1.{number}", reason="failed", exit_code=2, detail="no such file"))[-1]


def test_programs_that_fail_within_seconds_fail_the_app_although_each_was_running() -> None:
    """Semantics G2: a program that cannot work is not started for ever."""
    cluster = shared({"max_executor_failures": 3, "exclude_after": 0, "suspect_failures": 0}, w1=16)
    cluster.turn(programs(executors=2))
    for number in range(4):
        assert number < 2 or isinstance(failed(cluster, number - 2), ExecutorAllocated)
        started(cluster, number)
    why = "3 executors ended abnormally with none running for 10 s; the last one: no such file"
    assert failed(cluster, 2) == AppRemoved(app="a1", reason="failed", detail=why)


@pytest.mark.parametrize("end", ["works", "ran"])
def test_a_program_that_worked_ends_the_row_of_failures(end: str) -> None:
    """Semantics G2: one that ended well, or ran for 10 s."""
    cluster = shared({"max_executor_failures": 2, "exclude_after": 0, "suspect_failures": 0}, w1=16)
    cluster.turn(programs(executors=2))
    for number in range(2):
        started(cluster, number)
    assert isinstance(failed(cluster, 0), ExecutorAllocated)
    if end == "works":
        cluster.turn(EndedExecutor(executor="a1.1", reason="exited", exit_code=0))
    cluster.turn(StartedExecutor(executor="a1.2"), after_s=1 if end == "works" else 10)
    assert isinstance(failed(cluster, 2), ExecutorAllocated)


def test_an_executor_that_was_told_to_stop_lowers_nothing_however_it_ends() -> None:
    cluster = running()
    cluster.turn(KillExecutors(app="a1", executors=("a1.0",)))
    assert kinds(cluster.ended("a1.0")) == ["ExecutorRemoved", "ExecutorAllocated"]
    assert cluster.state.apps["a1"].executor_limit == 3


def test_of_more_executors_than_are_demanded_one_that_ends_well_lowers_nothing() -> None:
    cluster = running()
    cluster.turn(ScaleApp(app="a1", executors=2))
    assert kinds(cluster.ended("a1.0")) == ["ExecutorRemoved"]
    assert cluster.state.apps["a1"].executor_limit == 2
    assert kinds(cluster.ended("a1.1")) == ["ExecutorRemoved", "AppChanged"]
    assert cluster.state.apps["a1"].executor_limit == 1


def test_one_command_lowers_the_demand_and_stops_executors() -> None:
    """Semantics G1: nothing is placed in between, and ids of other executors are ignored."""
    cluster = running()
    events = cluster.turn(ScaleApp(app="a1", executors=1, stop=("a1.2", "a1.0", "a1.9", "a1.2")))
    assert kinds(events) == ["AppChanged", "ExecutorRevoked", "ExecutorRevoked"]
    assert [event.executor for event in events if isinstance(event, ExecutorRevoked)] == ["a1.2", "a1.0"]
    assert kinds(cluster.turn(ScaleApp(app="a1", executors=1, stop=("a1.2",)))) == []
    assert kinds(cluster.ended("a1.0")) == ["ExecutorRemoved"]
    assert kinds(cluster.ended("a1.2")) == ["ExecutorRemoved"]
    assert [*cluster.state.apps["a1"].executors] == ["a1.1"]
    assert audited(cluster) == []


def test_nothing_is_claimed_at_zero() -> None:
    """Semantics G1, A8: others get the room, and the app grows again later."""
    cluster = running()
    cluster.turn(ScaleApp(app="a1", executors=0, stop=("a1.0", "a1.1", "a1.2")))
    for number in range(3):
        cluster.ended(f"a1.{number}")
    app = cluster.state.apps["a1"]
    assert (app.requested, app.more, app.granted, app.ended) == (NOTHING, NOTHING, NOTHING, None)
    assert cluster.state.claims.of("acme").claimed == NOTHING
    assert kinds(cluster.turn(ScaleApp(app="a1", executors=4)))[-4:] == ["ExecutorAllocated"] * 4


def test_the_size_can_be_stated_until_the_first_executor_is_granted() -> None:
    cluster = shared(w1=16)
    cluster.turn(driven())
    events = cluster.turn(ScaleApp(app="a1", executors=2, executor_cores=4, executor_memory_mb=3000))
    granted = [event.resources for event in events if isinstance(event, ExecutorAllocated)]
    assert granted == [Resources(4, 3000)] * 2
    with pytest.raises(InvalidCommand, match=r"have 4 cores and 3000 MiB; their size can be stated until the first"):
        cluster.turn(ScaleApp(app="a1", executors=3, executor_cores=2))
    again = cluster.turn(ScaleApp(app="a1", executors=3, executor_cores=4, executor_memory_mb=3000))
    assert kinds(again)[-1] == "ExecutorAllocated"
    assert audited(cluster) == []


def test_a_size_stated_later_is_checked_as_one_at_submission() -> None:
    cluster = shared(w1=16)
    cluster.turn(driven())
    with pytest.raises(NeverFits):
        cluster.turn(ScaleApp(app="a1", executors=1, executor_cores=17))
    with pytest.raises(InvalidCommand, match="an executor's cores must be between 1 and"):
        cluster.turn(ScaleApp(app="a1", executors=1, executor_cores=0))
    cluster.turn(RegisterKind(kind="gpu"))
    with pytest.raises(NeverFits):
        cluster.turn(ScaleApp(app="a1", executors=1, executor_resources={"gpu": 1}))
    cluster.turn(SubmitApp(app="b1", company="acme", user="ann", command=("true",), cores=4, tasks=1))
    with pytest.raises(InvalidCommand, match="only executors that run a program can get another size"):
        cluster.turn(ScaleApp(app="b1", executors=1, executor_cores=2))


def test_a_grant_says_what_the_executor_runs_and_its_grace() -> None:
    cluster = shared(w1=16)
    cluster.turn(driven(executors=1, grace_s=90, cwd="/home/ann"))
    grants = {name: Grant.model_validate_json(text) for name, text in all_grants(cluster.state)["w1"].items()}
    driver, executor = grants["a1.driver-0"], grants["a1.0"]
    assert (driver.command, driver.program, driver.grace_s, driver.cwd) == (("true",), False, 90, "/home/ann")
    assert (executor.command, executor.program, executor.grace_s) == (("work", "hard"), True, 90)
    assert (executor.cwd, executor.tasks) == ("/home/ann", 0)


def test_an_owner_ends_its_app() -> None:
    cluster = running(owner_timeout_s=30)
    for number in range(3):
        cluster.ended(f"a1.{number}")
    assert cluster.state.apps["a1"].ended is None  # its owner may ask for more
    assert cluster.turn(FinishApp(app="a1", outcome="failed", detail="no more data")) == [
        AppRemoved(app="a1", reason="failed")
    ]
    assert cluster.state.apps["a1"].why == "no more data"  # which is private
    with pytest.raises(AppEnded):
        cluster.turn(FinishApp(app="a1"))
    assert audited(cluster) == []


def test_only_the_owner_of_programs_ends_its_app() -> None:
    cluster = shared(w1=16)
    cluster.turn(driven(), SubmitApp(app="b1", company="acme", user="ann", command=("true",), cores=4))
    with pytest.raises(InvalidCommand, match="app 'a1' ends with its driver"):
        cluster.turn(FinishApp(app="a1"))
    with pytest.raises(InvalidCommand, match="app 'b1' ends with its tasks"):
        cluster.turn(FinishApp(app="b1"))


def test_an_owner_that_is_lost_fails_its_app() -> None:
    cluster = running(owner_timeout_s=30)
    assert [*cluster.state.indexes.owned.members] == ["a1"]
    assert [*restored(lines(cluster.state)).indexes.owned.members] == ["a1"]
    why = "its owner gave no sign of life for 30 s"
    assert cluster.turn(LoseOwner(app="a1")) == [AppRemoved(app="a1", reason="failed", detail=why)]
    assert cluster.turn(LoseOwner(app="a1")) == []
    assert not cluster.state.indexes.owned
    cluster.turn(programs("b1"))
    with pytest.raises(InvalidCommand, match="has no owner outside the cluster"):
        cluster.turn(LoseOwner(app="b1"))
    assert audited(cluster) == []


def test_the_view_of_an_app_shows_its_terms() -> None:
    cluster = running(owner_timeout_s=30, grace_s=60)
    shown = view_of(cluster.state, app="a1")
    assert (shown.executor_program, shown.grace, shown.owner_timeout) == (True, 60, 30)


def test_an_app_of_programs_ends_neither_by_its_workers_word_nor_before_its_time() -> None:
    """A worker of another version that reports the end of its tasks is believed, as before."""
    cluster = running(1)
    assert kinds(cluster.turn(EndApp(app="a1", reason="finished"))) == ["AppRemoved"]


def test_an_end_without_a_task_left_counts_as_the_end_of_a_program() -> None:
    cluster = running(2)
    events = cluster.turn(EndedExecutor(executor="a1.0", reason="exited", done=True))
    assert kinds(events) == ["ExecutorRemoved", "AppChanged"]
    assert isinstance(events[1], AppChanged)
    assert (events[1].executor_limit, events[1].done_cores) == (1, 0)


def test_commands_are_read_as_they_are_written() -> None:
    assert command_of({"type": "FinishApp", "app": "a"}) == FinishApp(app="a")
    assert command_of({"type": "ScaleApp", "app": "a", "executors": 1, "stop": ["a.1"]}) == ScaleApp(
        app="a", executors=1, stop=("a.1",)
    )


def places(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """Executor -> the index that its program finds, and the number of programs."""
    found = {}
    for worker in all_grants(cluster.state).values():
        for name, text in worker.items():
            if text:
                grant = Grant.model_validate_json(text)
                found[name] = grant.rank, grant.ranks
    return found


def test_a_program_that_failed_returns_under_its_index_and_knows_how_many_there_are() -> None:
    """Semantics G1: whatever ended well in between."""
    cluster = running()
    assert places(cluster) == {"a1.0": (0, 3), "a1.1": (1, 3), "a1.2": (2, 3)}
    cluster.turn(EndedExecutor(executor="a1.0", reason="exited", exit_code=0))
    cluster.turn(EndedExecutor(executor="a1.2", reason="failed", exit_code=3))
    assert places(cluster) == {"a1.1": (1, 3), "a1.3": (2, 3)}
    cluster.turn(EndedExecutor(executor="a1.1", reason="failed", exit_code=3))
    assert places(cluster) == {"a1.3": (2, 3), "a1.4": (1, 3)}
    again = restored(lines(cluster.state))
    assert again.digest() == cluster.state.digest()
    assert again.ranks["a1"].done == 1
    assert audited(cluster) == []


def test_indexes_of_stopped_programs_are_given_out_again() -> None:
    cluster = running()
    cluster.turn(ScaleApp(app="a1", executors=2, stop=("a1.0",)))
    cluster.ended("a1.0")
    cluster.turn(ScaleApp(app="a1", executors=4))
    assert places(cluster) == {"a1.1": (1, 3), "a1.2": (2, 3), "a1.3": (0, 4), "a1.4": (3, 4)}, "what runs was told 3"
    for number in range(1, 5):
        cluster.ended(f"a1.{number}")
    assert cluster.state.apps["a1"].ended == "finished"
    assert cluster.state.ranks == {}


@pytest.mark.parametrize(
    ("about", "scratch"),
    [({}, False), ({"owner_timeout_s": 30}, True), ({"env": ("FAIRLOG_FILES",)}, True)],
    ids=["alone", "owned", "staged"],
)
def test_a_program_begins_in_its_apps_folder_unless_that_may_be_elsewhere(about: dict[str, Any], scratch: bool) -> None:  # noqa: FBT001
    cluster = running(1, cwd="/work", **about)
    grant = Grant.model_validate_json(all_grants(cluster.state)["w1"]["a1.0"])
    assert (grant.cwd, grant.begins_in_scratch) == ("/work", scratch)


def test_programs_that_can_never_run_at_once_are_refused_with_both_numbers() -> None:
    """Semantics N3: counted per worker, for two workers of 5 cores hold four executors of 2 cores and not five."""
    cluster = shared(w1=5, w2=5)
    why = r"needs 5 executors of 2 cores and 1024 MiB at once, and the cluster, were it empty, can hold 4 at most"
    with pytest.raises(NeverTogether, match=why):
        cluster.turn(programs(executors=5, all_at_once=True))
    cluster.turn(AddDepartment(department="r", cores=4, memory_mb=65536), MoveCompany(company="acme", department="r"))
    with pytest.raises(NeverTogether, match="and the cap of department 'r' can hold 2 at most; ask for at most 2"):
        cluster.turn(programs(executors=3, all_at_once=True))
    cluster.turn(MoveCompany(company="acme", department=""))
    cluster.turn(programs("wish", executors=5))
    assert kinds(cluster.turn(programs(executors=4, all_at_once=True)))[0] == "AppRegistered"  # although it is full
    with pytest.raises(InvalidCommand, match="add --executor-program"):
        cluster.turn(SubmitApp(app="b1", company="acme", user="ann", command=("true",), tasks=1, all_at_once=True))


def test_nothing_is_known_to_run_never_without_workers_or_where_they_are_waited_for() -> None:
    cluster = shared()
    assert kinds(cluster.turn(programs(executors=99, all_at_once=True)))[0] == "AppRegistered"
    cluster = shared({"never_fits": "wait"}, w1=4)
    assert kinds(cluster.turn(programs(executors=99, all_at_once=True)))[0] == "AppRegistered"
