"""What executors and drivers used, as their workers say: kept beside the log and summed by app."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from recovery.replay.bounds import OPEN
from recovery.replay.rebuild import fold
from scheduler.model.commands import (
    EndApp,
    EndedDriver,
    EndedExecutor,
    KillApp,
    LoseWorker,
    Measured,
    Private,
    SubmitApp,
)
from scheduler.model.errors import InvalidCommand
from scheduler.model.resources import Resources
from scheduler.rules.checks.validate import check_private
from scheduler.rules.entities.apps import NO_SPENT, Spent, spent_by
from scheduler.rules.state import records as snapshot_records
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import app as shown
from scheduler.rules.view.views import past_runs
from scheduler.store.codec import facts, lines_of
from tests.property.given import Cluster, shared, submission
from witness.audit.audit import audit
from witness.ended import ended
from witness.explain import explain
from witness.statement import of_month

HOUR_MS = 3_600_000


def end(executor: str, cpu_ms: int | None = None, peak_mb: int = 0, **more: Any) -> EndedExecutor:
    """The report that the executor has ended and used that; nothing is said of it without `cpu_ms`."""
    used = None if cpu_ms is None else Measured(cpu_ms, peak_mb)
    return EndedExecutor(executor=executor, reason="exited", exit_code=0, used=used, **more)


def three_ends(settings: dict[str, object] | None = None) -> Cluster:
    """An app of three executors of 4 cores and 2 GiB; they end 10, 20 and 30 s later, and nothing is said of one."""
    cluster = shared(settings, w1=4, w2=4, w3=4)
    cluster.turn(submission("a", 12))
    assert [each.resources for each in cluster.state.apps["a"].allocations()] == [Resources(4, 2048)] * 3
    cluster.turn(end("a.0", 20_000, 310, done=True), after_s=10)
    cluster.turn(end("a.1", done=True), after_s=10)
    cluster.turn(EndApp(app="a", reason="finished"), end("a.2", 30_000, 100, done=True), after_s=10)
    return cluster


SUMS = Spent(
    core_ms=4 * 60_000,
    told_core_ms=4 * 40_000,
    cpu_ms=50_000,
    told_memory_ms=2048 * 40_000,
    used_memory_ms=310 * 10_000 + 100 * 30_000,
    peak_mb=310,
    peak_of_mb=2048,
)


def test_what_executors_used_is_summed_by_their_app() -> None:
    cluster = three_ends()
    assert cluster.state.apps["a"].spent == SUMS
    cluster.check_replay()
    view = shown(cluster.state, app="a").spent
    assert view is not None
    assert (view.cpu_ms, view.peak_memory, view.peak_of_memory) == (50_000, 310, 2048)


def test_what_a_driver_used_counts_and_an_app_of_which_nothing_ended_has_nothing() -> None:
    cluster = shared(w1=12)
    cluster.turn(SubmitApp(app="d", company="acme", user="ann", driver=True, tasks=0, cores=0, command=("true",)))
    assert shown(cluster.state, app="d").spent is None
    (driver,) = cluster.state.drivers
    cluster.turn(EndedDriver(driver=driver, reason="exited", exit_code=0, used=Measured(500, 64)), after_s=10)
    assert cluster.state.apps["d"].spent == Spent(10_000, 10_000, 500, 1024 * 10_000, 64 * 10_000, 64, 1024)


def test_what_was_lost_is_granted_and_unknown() -> None:
    cluster = shared(w1=12)
    cluster.turn(submission("a", 12))
    cluster.turn(LoseWorker(worker="w1"), after_s=10)
    assert cluster.state.apps["a"].spent == Spent(core_ms=12 * 10_000)


def test_a_public_log_says_nothing_of_it_and_leads_to_the_same_state() -> None:
    cluster = three_ends()
    public = [record._replace(private=b"") for record in cluster.records]
    told = "".join(str(line.as_json()) for record in public for line in lines_of(record, public=True))
    assert "310" not in told
    assert "20000" not in told
    assert [audit(facts(records)) for records in (cluster.records, public)] == [[], []]
    withheld = ClusterState()
    for fact in facts(public):
        fold(withheld, fact)
    assert withheld.digest() == cluster.state.digest()
    assert withheld.apps["a"].spent == Spent(core_ms=SUMS.core_ms)


def test_a_log_of_before_is_replayed_and_says_that_nothing_is_known() -> None:
    cluster = shared(w1=12)
    cluster.turn(submission("a", 12))
    cluster.ended("a.0", done=True)
    assert cluster.state.apps["a"].spent == Spent(core_ms=8 * 1000)
    assert not cluster.records[-1].private


def test_a_snapshot_keeps_it() -> None:
    state = three_ends().state
    again = snapshot_records.restored(snapshot_records.lines(state))
    assert again.apps["a"].spent == SUMS
    assert again.digest() == state.digest()


def test_the_largest_peak_is_shown_beside_what_its_executor_was_granted() -> None:
    small = spent_by(Resources(1, 512), 1000, Measured(0, 300))
    large = spent_by(Resources(1, 4096), 1000, Measured(0, 200))
    assert [(each.peak_mb, each.peak_of_mb) for each in (small.plus(large), large.plus(small))] == [(300, 512)] * 2
    assert NO_SPENT.plus(small) == small


@pytest.mark.parametrize("used", [Measured(-1, 0), Measured(0, -1), Measured(1 << 60, 0), Measured(0, 1 << 60)])
def test_a_report_beyond_what_can_be_is_refused(used: Measured) -> None:
    with pytest.raises(InvalidCommand, match="of what ended, in"):
        check_private(Private(used=used))


def test_the_statement_of_a_month_counts_what_ended_in_it() -> None:
    cluster = three_ends()
    said = of_month(facts(cluster.records), "acme", "1970-01", (OPEN, OPEN))
    assert said["total"]["spent"]["cpuMs"] == 50_000
    assert said["users"][0]["apps"][0]["spent"] == said["total"]["spent"]
    assert said["total"]["spent"]["coreMs"] == said["total"]["grantedCoreMs"]


def test_the_statement_counts_it_of_apps_that_were_forgotten_at_once() -> None:
    cluster = three_ends({"retained_apps": 0})
    assert "a" not in cluster.state.apps
    said = of_month(facts(cluster.records), "acme", "1970-01", (OPEN, OPEN))
    assert said["total"]["spent"]["cpuMs"] == 50_000


def test_a_statement_of_a_log_that_says_nothing_has_no_such_figures() -> None:
    public = [record._replace(private=b"") for record in three_ends().records]
    assert "spent" not in of_month(facts(public), "acme", "1970-01", (OPEN, OPEN))["total"]


def test_explanations_and_lists_of_ended_apps_tell_it_whole() -> None:
    """Also of an executor whose end came after that of its app."""
    cluster = three_ends()
    assert explain(facts(cluster.records), "a")["spent"]["cpuMs"] == 50_000
    (row,) = ended(facts(cluster.records))
    assert row["spent"]["cpuMs"] == 50_000


def test_the_last_runs_of_a_name_are_those_of_its_user_that_have_ended() -> None:
    cluster = shared(w1=12)
    runs = [(user, name) for user in ("ann", "bob") for name in ("train", "test") for _ in range(7)]
    for number, (user, name) in enumerate(runs):
        app = f"a{number}"
        cluster.turn(replace(submission(app, 4, user=user), name=name))
        cluster.turn(EndApp(app=app, reason="finished"), end(f"{app}.0", 100, number + 1, done=True))
    found = past_runs(cluster.state, company="acme", user="ann", name="train")
    assert found.runs == 5
    assert found.spent is not None
    assert (found.spent.cpu_ms, found.spent.peak_memory) == (500, 7)
    assert past_runs(cluster.state, company="acme", user="ann", name="other").spent is None


def test_a_run_of_which_nothing_is_known_is_no_run() -> None:
    cluster = shared(w1=12)
    cluster.turn(replace(submission("a", 4), name="train"))
    cluster.turn(KillApp(app="a", reason="why"), end("a.0"))
    assert past_runs(cluster.state, company="acme", user="ann", name="train").runs == 0
