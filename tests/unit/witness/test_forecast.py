"""When apps that wait may start, on clusters where that is known (docs/estimates.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from scheduler.model.commands import (
    AddDepartment,
    AddWindow,
    ChangeCompany,
    ChangeDepartment,
    Command,
    DrainWorker,
    EndApp,
    EndedExecutor,
    HoldApp,
    MoveCompany,
    RegisterCompany,
    RegisterWorker,
    RequeueApp,
    SetLimit,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.sender import NOBODY
from scheduler.rules.state.records import lines, restored
from tests.property.given import Cluster
from tests.unit.recorded import facts
from witness import forecast as forecasts
from witness.explain import explain
from witness.forecast import Estimate, forecast
from witness.plan import plan

if TYPE_CHECKING:
    import pytest

GRACE_MS = 30_000


def submit(app: str, company: str = "a", cores: int = 16, user: str = "u", limit_s: int | None = None) -> SubmitApp:
    """An app in one executor."""
    submitted = SubmitApp(app=app, company=company, user=user, tasks=1, command=("true",), cores=cores)
    return replace(submitted, executor_cores=cores, executor_memory_mb=1024, max_runtime_s=limit_s)


def played(*commands: Command, workers: int = 1) -> Cluster:
    """Two companies on workers of 16 cores; a turn a second."""
    settings: dict[str, object] = {"reclaim_patience_s": 60, "min_runtime_s": 0, "kill_grace_s": GRACE_MS // 1000}
    cluster = Cluster(settings)
    begin: list[Command] = [
        RegisterCompany(company="a", borrow=True),
        RegisterCompany(company="b", borrow=True),
        *[RegisterWorker(worker=f"w{n}", node="n", host=f"h{n}", cores=16, memory_mb=65536) for n in range(workers)],
    ]
    for command in (*begin, *commands):
        cluster.turn(command)
    return cluster


def of(cluster: Cluster, app: str) -> Estimate:
    """The estimate of the app now."""
    before = cluster.state.digest()
    found = forecast(cluster.state, cluster.state.at)[app]
    assert cluster.state.digest() == before, "a forecast changed the state"
    return found


def ran(app: str, seconds: int, *more: Command) -> Cluster:
    """An app has run for so long, then more came, a turn a second."""
    cluster = played(submit(app))
    cluster.turn(*over(app), after_s=seconds)
    for command in more:
        cluster.turn(command)
    return cluster


def over(app: str) -> list[Command]:
    """The end of an app."""
    return [EndedExecutor(executor=f"{app}.0", reason="exited", exit_code=0, done=True), EndApp(app, "finished")]


def test_an_app_behind_one_with_a_limit_starts_when_that_is_over_at_the_latest() -> None:
    cluster = played(submit("x", limit_s=600), StartedExecutor(executor="x.0"), submit("y"))
    began, now = cluster.state.at - 1000, cluster.state.at
    latest = began + 600_000 + GRACE_MS
    assert of(cluster, "y") == Estimate(now, began + 600_001, latest)


def test_limits_of_those_that_go_first_are_added_up() -> None:
    cluster = played(submit("x", limit_s=600), submit("y", limit_s=100), submit("z"))
    now = cluster.state.at  # neither has reported that it runs, so both may have all of their time left
    assert of(cluster, "z").latest == now + 700_000 + 2 * GRACE_MS


def test_without_any_limit_an_entitled_app_starts_by_its_date() -> None:
    cluster = played(submit("x", "a"), submit("y", "b", 8))
    began = cluster.state.at
    found = of(cluster, "y")
    assert found.latest == began + 60_000 + GRACE_MS
    assert found.likely == began + 60_000


def test_where_nothing_ends_it_there_is_no_latest_start_and_it_is_said_why() -> None:
    cluster = played(submit("x"), submit("y"))
    why = "1 app that runs has no maximum runtime, and no rule takes from others what it waits for"
    assert of(cluster, "y") == Estimate(cluster.state.at, None, None, why)


def test_apps_that_have_ended_tell_when_the_next_one_probably_does() -> None:
    cluster = ran("x", 100, submit("y"), submit("z"))
    began = cluster.state.at - 1000
    found = of(cluster, "z")
    assert found.latest is None
    assert found.likely == began + 100_000


def test_an_app_that_has_run_longer_than_usual_lasts_as_long_again() -> None:
    cluster = ran("x", 10, submit("y"))
    began = cluster.state.at
    cluster.turn(submit("z"), after_s=50)
    assert of(cluster, "z").likely == began + 100_000


def test_what_is_usual_ends_no_later_than_the_limit() -> None:
    cluster = ran("x", 100, submit("y", limit_s=50), StartedExecutor(executor="y.0"), submit("z"))
    found = of(cluster, "z")
    assert found.latest == cluster.state.at - 1000 + 50_000 + GRACE_MS
    assert found.likely == cluster.state.at - 1000 + 50_000 + 1


def test_an_app_on_hold_has_no_start_and_neither_has_one_that_waits_for_it() -> None:
    waits = replace(submit("y"), after={"ok": ("x",)})
    cluster = played(submit("z"), submit("x"), HoldApp(app="x"), waits)
    said = "it is on hold; `fairlog release x` ends that"
    assert of(cluster, "x") == of(cluster, "y") == Estimate(None, None, None, said)


def test_an_app_starts_not_before_its_begin_nor_that_of_one_that_it_waits_for() -> None:
    begin = 7_200_000
    cluster = played(replace(submit("x", limit_s=60), begin=begin), replace(submit("y"), after={"any": ("x",)}))
    assert of(cluster, "x") == Estimate(begin, begin, begin)
    assert of(cluster, "y") == Estimate(begin, begin + 60_001, begin + 60_000 + GRACE_MS)


def test_an_app_without_a_worker_has_no_start() -> None:
    cluster = played(submit("x"), workers=0)
    assert of(cluster, "x") == Estimate(None, None, None, "no worker is live")


def test_who_waits_for_another_app_is_told_besides_that_labels_leave_it_no_worker() -> None:
    only = replace(submit("x1"), require=("zone=a",), after={"any": ("x0",)})
    zone = RegisterWorker(worker="a0", node="n", host="ha", cores=16, memory_mb=65536, labels={"zone": "a"})
    cluster = played(zone, submit("x0", limit_s=60), only, DrainWorker(worker="a0"))
    estimate = forecast(cluster.state, cluster.state.at)["x1"]
    assert estimate.earliest is None
    assert estimate.why == "its labels let it use none of 1 live worker: --require zone=a excludes 1"


def test_an_app_that_alone_exceeds_a_lowered_limit_has_no_start() -> None:
    """Semantics N2: also beside apps that run without a maximum runtime, whose ends would not let it in."""
    limit = SetLimit(scope="company", name="max_cores", value=4, company="a")
    cluster = played(submit("x"), submit("y", cores=8), limit)
    said = (
        "limit max_cores of company a: claims 16 of 4, 8 asked; that alone is more, so it starts once "
        "`fairlog limit set max_cores=8 --company a` raises it"
    )
    assert of(cluster, "y") == Estimate(None, None, None, said)
    cluster.turn(SetLimit(scope="company", name="max_cores", value=8, company="a"))
    assert of(cluster, "y").earliest == cluster.state.at


def test_what_no_end_lifts_is_told_though_something_else_is_reached_first() -> None:
    """Semantics N2, J4: a limit that is reached now, or a date, hides no other one that the app alone exceeds."""
    one = SetLimit(scope="user", name="max_running_apps", value=1, company="a", user="*")
    late = replace(submit("late", cores=8), begin=900_000)
    cluster = played(one, submit("x", cores=4), submit("y", cores=8), submit("z", cores=4), late)
    assert of(cluster, "y").earliest == of(cluster, "z").earliest == cluster.state.at
    cluster.turn(SetLimit(scope="company", name="max_cores", value=6, company="a"))
    assert (of(cluster, "y").earliest, of(cluster, "z").earliest) == (None, cluster.state.at)
    said = "`fairlog limit set max_cores=8 --company a` raises it"
    assert of(cluster, "y").why.endswith(said)
    assert explain(facts(cluster), "y")["waitsFor"]["text"].endswith(said)
    assert of(cluster, "late").why.endswith(said)


def test_who_is_left_nothing_by_what_others_lend_to_nobody_has_no_start() -> None:
    """Semantics H12: the department lends nothing, and keeps the whole cluster though it is idle."""
    cluster = played()
    cluster.turn(AddDepartment(department="r", cores=16, memory_mb=65536), MoveCompany(company="b", department="r"))
    cluster.turn(ChangeDepartment(department="r", lend_limit="0%"))
    cluster.turn(submit("y", cores=4))
    found = of(cluster, "y")
    assert (found.earliest, found.latest) == (None, None)
    assert found.why.endswith("`fairlog department set r --lend-limit PART` lends more")
    cluster.turn(ChangeDepartment(department="r", lend_limit="50%"))
    assert "y.0" in cluster.state.executors


def test_the_limit_to_raise_is_named_by_its_holder() -> None:
    cluster = played(submit("x"), submit("y", cores=8))
    cluster.turn(SetLimit(scope="user", name="max_cores", value=4, company="a", user="*"))
    assert of(cluster, "y").why.endswith("`fairlog limit set max_cores=8 --company a --user u` raises it")
    cluster.turn(SetLimit(scope="user", name="max_cores", company="a", user="*"))
    cluster.turn(AddDepartment(department="r"), MoveCompany(company="a", department="r"))
    cluster.turn(SetLimit(scope="department", name="max_cores", value=4, department="r"))
    assert of(cluster, "y").why.endswith("`fairlog limit set max_cores=8 --department r` raises it")


def test_an_app_that_alone_passes_a_lowered_cap_has_no_start() -> None:
    """Semantics H1, H12."""
    cluster = played(submit("x", "b"), submit("y", cores=8), submit("z", cores=4))
    cluster.turn(AddDepartment(department="r", cores=4, memory_mb=65536), MoveCompany(company="a", department="r"))
    said = "that alone does, so it starts once `fairlog department set r` has raised the cap"
    assert (of(cluster, "y").earliest, of(cluster, "y").why.split("; ")[-1]) == (None, said)
    assert of(cluster, "z").earliest == cluster.state.at
    cluster.turn(MoveCompany(company="a", department=""))
    cluster.turn(ChangeCompany(company="a", cores=4, memory_mb=65536, borrow=False))
    said = "that alone does, so it starts once `fairlog company set a` has raised the quota"
    assert (of(cluster, "y").earliest, of(cluster, "y").why.split("; ")[-1]) == (None, said)
    assert of(cluster, "z").earliest == cluster.state.at


def test_an_app_that_would_run_into_a_window_starts_after_it() -> None:
    cluster = played(AddWindow(window="m", workers=("w0",), begin=600_000, end=1_200_000, notice_s=300))
    cluster.turn(submit("y", limit_s=3600))
    assert of(cluster, "y") == Estimate(cluster.state.at, 1_200_000, 1_200_000)


def test_who_leaves_for_a_window_is_gone_before_it_and_comes_back_after_it() -> None:
    window = AddWindow(window="m", workers=("w0",), begin=600_000, end=1_200_000, notice_s=300)
    cluster = played(submit("x"), window, submit("y", limit_s=60))
    cluster.turn(after_s=296)
    assert cluster.state.executors["x.0"].status == "stopping"
    found = of(cluster, "y")
    assert found.latest is None
    assert found.why.startswith("1 app that runs has no maximum runtime")


def test_what_runs_or_has_ended_has_no_estimate() -> None:
    cluster = ran("x", 1, submit("y"))
    assert forecast(cluster.state, cluster.state.at) == {}


def test_what_is_told_to_leave_runs_still_and_what_was_put_back_waits() -> None:
    cluster = played(submit("w"), submit("x"), submit("y", "b"), workers=2)
    assert [one.status for one in cluster.state.apps["x"].allocations()] == ["stopping"]
    assert list(forecast(cluster.state, cluster.state.at)) == ["y"]
    cluster = played(submit("x"))
    cluster.turn(RequeueApp(app="x"))
    assert list(forecast(cluster.state, cluster.state.at)) == ["x"]


def test_what_probably_waits_in_vain_has_no_probable_start() -> None:
    """Its like ended well before, and by its limit this one would not."""
    cluster = ran("z", 20, submit("x", limit_s=300), replace(submit("y"), after={"not-ok": ("x",)}))
    found = of(cluster, "y")
    assert (found.likely, found.latest is not None) == (None, True)
    assert found.why == "if all lasts as long as it usually does, it is removed before it starts"
    cluster = ran("z", 20, submit("x", limit_s=300), replace(submit("y"), after={"ok": ("x",)}))
    found = of(cluster, "y")
    assert (found.likely is not None, found.latest) == (True, None)
    assert found.why == "if all lasts as long as it may, it is removed before it starts"


def test_a_course_that_is_cut_off_says_up_to_when_it_went(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "MOST_TURNS", 2)
    cluster = played(*[submit(f"x{n}", limit_s=600) for n in range(5)])
    found = of(cluster, "x4")
    assert found.latest is None
    assert found.why.startswith("not before 1970-01-01")


def test_after_many_turns_a_course_takes_larger_steps_and_tells_times_that_are_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = played(*[submit(f"x{n}", cores=8, limit_s=100 + 7 * n) for n in range(20)])
    exact = forecast(cluster.state, cluster.state.at)
    monkeypatch.setattr(forecasts, "EXACT_TURNS", 3)
    course = forecasts.VirtualCourse(restored(lines(cluster.state)), cluster.state.at, list(exact))
    course.run()
    turns, stepped = course._turns, forecast(cluster.state, cluster.state.at)
    monkeypatch.setattr(forecasts, "STEP", 1)
    course = forecasts.VirtualCourse(restored(lines(cluster.state)), cluster.state.at, list(exact))
    course.run()
    assert course._turns < turns
    for app, each in exact.items():
        assert each.latest is not None
        late = (stepped[app].latest or 0) - each.latest
        assert 0 <= late <= (each.latest - cluster.state.at) * 0.06, f"{app}: {each} and {stepped[app]}"


def test_of_a_state_with_many_apps_only_dates_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = played(submit("x", "a"), submit("y", "b", 8), submit("z", "a"))
    exact = forecast(cluster.state, cluster.state.at)
    monkeypatch.setattr(forecasts, "MOST_APPS", 2)
    found = forecast(cluster.state, cluster.state.at)
    assert found["y"].latest == found["y"].likely == exact["y"].latest
    assert found["z"][1:] == (None, None, "with 3 apps, more than 2, it is not worked out when others end")


def test_a_date_is_told_also_where_the_courses_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "MOST_TURNS", 1)
    cluster = played(submit("x", "a"), submit("y", "b", 8))
    date = cluster.state.at + 60_000 + GRACE_MS
    assert of(cluster, "y") == Estimate(cluster.state.at, date, date)


def test_a_state_that_may_be_spoiled_leads_to_the_same() -> None:
    cluster = played(submit("x", limit_s=600), submit("y", limit_s=100), submit("z"))
    exact = forecast(cluster.state, cluster.state.at)
    assert forecast(cluster.state, cluster.state.at, spoil=True) == exact


def test_explain_and_plan_tell_the_estimate() -> None:
    cluster = played(submit("x", limit_s=600), submit("y"))
    told = explain(facts(cluster), "y")["estimate"]
    assert told == of(cluster, "y")._asdict()
    assert explain(facts(cluster), "x")["estimate"] is None
    planned = plan(cluster.state, submit("z"), NOBODY, cluster.state.at)["estimate"]
    assert planned["latest"] is None
    assert planned["why"]


def test_a_plan_that_starts_starts_now() -> None:
    cluster = played()
    now = cluster.state.at + 5
    assert plan(cluster.state, submit("x"), NOBODY, now)["estimate"] == Estimate(now, now, now)._asdict()
