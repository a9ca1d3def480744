"""Figures over a span of the log, each worked out by hand, and what must hold of them in any history."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from recovery.replay.bounds import OPEN, Bound
from recovery.replay.window import measure
from scheduler.model.commands import EndApp, RegisterKind, SubmitApp
from scheduler.model.errors import InvalidCommand
from scheduler.rules.state.cluster import ClusterState
from tests.property.given import Cluster, submission, worker
from tests.property.histories import DENSE, History, played
from tests.unit.recorded import facts
from witness.fairness import By, Fairness
from witness.hours import kind_hours, kinds_of
from witness.statement import statement
from witness.usage import UsageMeter


def two_companies(*, borrowing: bool = True) -> Cluster:
    """16 cores; `big` takes them all at 4 s, `small` wants 8 from 5 s on and gets them at 16 s, when `big` is gone.

    If they are `borrowing`, their companies bought 4 cores each and lend; otherwise they bought nothing in particular.
    """
    cluster = Cluster()
    bought = (4, 16384) if borrowing else (None, None)
    for company in ("acme", "tiny"):
        cluster.company(company, *bought, borrow=borrowing or None)
    cluster.worker("w1", 16)
    cluster.submit("big", 16, company="acme", user="ann")
    cluster.submit("small", 8, company="tiny", user="tim")
    cluster.turn(EndApp(app="big", reason="finished"), after_s=10)
    cluster.ended("big.0", done=True)
    cluster.turn(EndApp(app="small", reason="finished"), after_s=20)
    cluster.ended("small.0")
    return cluster


def report(cluster: Cluster, by: By = "company", first: Bound = OPEN, last: Bound = OPEN) -> dict[str, Any]:
    meter = Fairness(by=by)
    state, span = measure(facts(cluster), meter, first=first, last=last)
    return {"log": span.as_json(), **meter.report(state)}


def row(found: dict[str, Any], **who: str) -> dict[str, Any]:
    (one,) = [row for row in found["rows"] if all(row[name] == value for name, value in who.items())]
    return dict(one)


def test_what_an_admitted_app_lacks_counts_until_it_is_granted() -> None:
    """A company's first app is admitted at once; its room comes 11 s later, until when it waits."""
    tiny = row(report(two_companies(borrowing=False)), company="tiny")
    assert (tiny["waitLongestMs"], tiny["shortfallCoreS"], tiny["grantShortfallCoreS"]) == (11_000, 88.0, 88.0)
    before = row(report(two_companies(borrowing=False), last=Bound(at=15_000)), company="tiny")
    assert (before["admitted"], before["stillWaiting"], before["waitLongestMs"]) == (1, 1, 10_000)


def test_who_asks_for_no_executor_does_not_wait_for_one() -> None:
    cluster = Cluster()
    cluster.company("acme")
    cluster.worker("w1", 16)
    cluster.turn(SubmitApp(app="idle", company="acme", user="ann", elastic=(0, 2), command=("true",)))
    cluster.turn(after_s=60)
    acme = row(report(cluster), company="acme")
    assert (acme["admitted"], acme["stillWaiting"], acme["waitLongestMs"]) == (1, 0, 0)


def asking(**asked: Any) -> Cluster:
    """Two workers of 8 cores, of which an app that asks for 16 cores, and for what is `asked`, has what it gets."""
    cluster = Cluster()
    cluster.company("acme")
    for name in ("w1", "w2"):
        cluster.worker(name, 8)
    cluster.turn(SubmitApp(app="a", company="acme", user="ann", cores=16, tasks=16, command=("true",), **asked))
    return cluster


@pytest.mark.parametrize(
    ("asked", "demand"),
    [
        ({"executor_limit": 0}, 0),
        ({"executor_memory_mb": 1024, "executor_limit": 0}, 0),
        ({"executor_memory_mb": 1024, "executor_limit": 1}, 8),
        ({"executor_memory_mb": 1024}, 16),
    ],
)
def test_what_an_app_may_not_have_is_owed_to_nobody(asked: dict[str, Any], demand: int) -> None:
    cluster = asking(**asked)
    begun_at = cluster.state.at
    cluster.turn(after_s=60)
    cluster.company("later")
    acme = row(report(cluster, first=Bound(at=begun_at)), company="acme")
    assert (acme["demandCores"], acme["shortfallCoreS"]) == (demand, 0)


def test_what_an_executor_left_for_want_of_tasks_is_owed_to_nobody() -> None:
    cluster = asking(executor_cores=8, executor_memory_mb=1024)
    cluster.ended("a.1", done=True)
    begun_at = cluster.state.at
    cluster.turn(after_s=60)
    cluster.company("later")
    acme = row(report(cluster, first=Bound(at=begun_at)), company="acme")
    assert (acme["demandCores"], acme["grantedCores"], acme["shortfallCoreS"]) == (8, 8, 0)


def test_a_slowdown_is_time_here_by_run_time_and_short_runs_count_as_ten_seconds() -> None:
    found = report(two_companies())
    assert row(found, company="tiny")["boundedSlowdown"]["mean"] == pytest.approx(31 / 20, abs=1e-3)
    assert row(found, company="acme")["boundedSlowdown"]["mean"] == 1.0


def test_means_are_over_the_span_and_a_span_can_begin_at_a_time_or_a_position() -> None:
    found = report(two_companies(), first=Bound(at=5_000), last=Bound(at=15_000))
    acme = row(found, company="acme")
    assert (acme["occupiedCores"], acme["entitledCores"], acme["demandCores"]) == (16.0, 8.0, 16.0)
    assert (found["fromAt"], found["toAt"], found["cluster"]["utilisation"]) == (5_000, 15_000, 1.0)
    seq = next(record.seq for record in facts(two_companies()) if record.at == 5_000)
    assert report(two_companies(), first=Bound(seq=seq), last=Bound(at=15_000)) == found


@pytest.mark.parametrize(
    ("first", "last"), [(Bound(seq=1_000), OPEN), (Bound(at=1 << 50), OPEN), (Bound(seq=8), Bound(seq=3))]
)
def test_a_span_that_holds_nothing_is_refused(first: Bound, last: Bound) -> None:
    with pytest.raises(InvalidCommand, match="span"):
        report(two_companies(), first=first, last=last)


def with_gpus() -> Cluster:
    """Four GPUs: acme holds two for 11 s; tiny, beyond whose quota one is, waits; neither's cores are short."""
    cluster = Cluster()
    cluster.turn(RegisterKind(kind="gpu"))
    cluster.company("acme")
    cluster.company("tiny")
    cluster.turn(replace(worker("w1", 16), resources={"gpu": ("0", "1", "2", "3")}))
    asked = submission("a1", 4, company="acme", per_task_mb=None)
    size = {"executor_cores": 4, "executor_memory_mb": 1024}
    cluster.turn(replace(asked, **size, executor_resources={"gpu": 2}))
    cluster.turn(replace(asked, app="t1", company="tiny", **size))
    cluster.turn(EndApp(app="a1", reason="finished"), after_s=10)
    cluster.ended("a1.0", done=True)
    return cluster


def test_shares_and_figures_are_over_all_kinds() -> None:
    """Semantics R4: acme's dominant share is that of its GPUs, two of the two that are a half of the cluster's."""
    found = report(with_gpus(), first=Bound(at=6_000), last=Bound(at=15_000))
    acme = row(found, company="acme")
    assert acme["share"] == 1.0
    gpus = acme["resources"]["gpu"]
    assert gpus == {"demand": 2.0, "entitled": 2.0, "occupied": 2.0, "granted": 2.0, "shortfallS": 0.0}
    assert row(found, company="tiny")["resources"]["gpu"]["demand"] == 0.0
    assert found["cluster"]["resources"] == {"gpu": {"offered": 4.0, "utilisation": 0.5}}


def test_a_statement_counts_each_kind() -> None:
    usages = UsageMeter()
    _, span = measure(facts(with_gpus()), usages)
    said = statement(usages, span, company="acme", month="1970-01")
    total = said["total"]
    assert total["requestedResourceMs"] == {"gpu": 2 * total["requestedCoreMs"] // 4}
    assert total["grantedResourceMs"] == {"gpu": 2 * total["grantedCoreMs"] // 4}
    assert kinds_of(said) == ["gpu"]
    assert kind_hours(total, "gpu") == (round(2 * 11 / 3600, 6), round(2 * 12 / 3600, 6))
    assert "grantedResourceMs" not in statement(usages, span, company="tiny", month="1970-01")["total"]


def test_two_statements_of_adjoining_spans_add_up_to_one_of_both() -> None:
    whole, early, late = UsageMeter(), UsageMeter(), UsageMeter()
    entries = facts(two_companies())
    total = statement(whole, measure(entries, whole)[1], company="acme", month="")["total"]
    first = measure(entries, early, last=Bound(at=9_500))[1]
    second = measure(entries, late, first=Bound(at=9_500))[1]
    parts = [statement(usages, span, company="acme", month="") for usages, span in ((early, first), (late, second))]
    for name in ("requestedCoreMs", "grantedCoreMs", "requestedMemoryMs", "grantedMemoryMs"):
        assert total[name] == sum(part["total"][name] for part in parts)
        assert parts[0]["total"][name] > 0


@settings(max_examples=30)
@given(DENSE)
def test_in_any_history_figures_agree_with_the_ledgers(history: History) -> None:
    """What is granted never exceeds the cluster, the entitlements neither; a statement's grants are the figures'."""
    entries = facts(played(history))
    meter, usages = Fairness(), UsageMeter()
    state, span = measure(entries, meter)
    measure(entries, usages)
    found = meter.report(state)
    for _, standings in meter.course:
        entitled, demanded = (
            sum(getattr(now, name)[0] for now in standings.values()) for name in ("entitled", "demand")
        )
        assert entitled <= 1e-6 + demanded
    length = span.last_at - span.first_at
    for name in dict.fromkeys(account.company for account in usages.all):
        total = statement(usages, span, company=name, month="")["total"]
        mean = row(found, company=name)
        assert (mean["grantedCores"] or 0) * length == pytest.approx(total["grantedCoreMs"], abs=0.001 * length + 1)
    held = {account.app: account for account in usages.all}
    for name, app in state.apps.items():
        assert held[name].granted.cores == app.granted.cores
        assert held[name].admitted_at == (app.admitted_at or None)


@settings(max_examples=15)
@given(DENSE, st.integers(1_000, 60_000), st.integers(1, 60_000))
def test_a_statement_of_any_span_is_what_every_app_held_at_every_instant_of_it(
    history: History, begins: int, lasts: int
) -> None:
    """Split at the span's ends to the millisecond, and the sums are those of the apps."""
    log = facts(played(history, {"retained_apps": 1000}))
    begins, ends = min(begins, log[-1].at), min(begins + lasts, log[-1].at)
    state, held = ClusterState(), dict[tuple[str, str], list[int]]()
    for record in log:
        passed = min(record.at, ends) - max(state.at, begins)
        for app in state.apps.values() if passed > 0 else ():
            asked = app.admitted and app.ended is None
            sums = held.setdefault((app.spec.company, app.id), [0, 0])
            sums[0] += (app.requested.cores if asked else 0) * passed
            sums[1] += sum(each.resources.memory_mb for each in app.allocations()) * passed
        state.apply(record.event, at=record.at, cause=record.cause)
    usages = UsageMeter()
    _, span = measure(log, usages, first=Bound(at=begins), last=Bound(at=ends))
    for company in usages.companies:
        said = statement(usages, span, company=company, month="1970-01")
        found = {
            (company, app["app"]): [app["requestedCoreMs"], app["grantedMemoryMs"]]
            for user in said["users"]
            for app in user["apps"]
        }
        assert found == {key: sums for key, sums in held.items() if key[0] == company and any(sums)}
        assert said["total"]["requestedCoreMs"] == sum(sums[0] for sums in found.values())


@settings(max_examples=10)
@given(DENSE)
def test_what_users_lack_beside_their_companies_is_what_they_lack_by_themselves(history: History) -> None:
    log = facts(played(history))
    beside, alone = Fairness(users=True), Fairness(by="user")
    state, _ = measure(log, beside)
    rows = {(row["company"], row["user"]): row for row in alone.report(measure(log, alone)[0])["rows"]}
    for user in beside.of_users(state):
        row = rows[user["company"], user["user"]]
        assert user["shortfallCoreS"] == pytest.approx(row["shortfallCoreS"], abs=0.002)
        assert user["share"] == pytest.approx(row["share"], abs=1e-5)


def test_time_counts_once_though_turns_without_events_leave_the_state_where_it_is() -> None:
    meter, state = Fairness(), two_companies().state
    meter.first_at = state.at
    for passed in (1_000, 3_000, 3_000):
        meter.advance(state, state.at + passed)
    assert meter._cluster.live == 16 * 3_000
