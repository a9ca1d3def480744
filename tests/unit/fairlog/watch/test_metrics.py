"""Metrics: what they say of a state, its surroundings and its turns; in Prometheus' format and by its conventions."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from fairlog.watch import metrics as measured
from fairlog.watch.conditions import Around, AuditedTo, StoreFacts
from fairlog.watch.metrics import Metrics, Tasks, standing_of
from fairlog.watch.tally import Tally
from recovery.failover.exporter import CannotExport, Collector, Exporter
from recovery.failover.lease import Member
from scheduler.model.commands import (
    AddDepartment,
    MoveCompany,
    RegisterCompany,
    RegisterKind,
    RegisterWorker,
    SubmitApp,
)
from scheduler.model.events import CompanyRegistered, DriverAllocated, ExecutorAllocated
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.standings import standings
from scheduler.service.measures import COMMIT_S, TURN_EVENTS, Measures
from scheduler.store.estimates import Given, compare, keep
from scheduler.store.keys import Keys
from tests.unit.fairlog.watch.test_conditions import NOW, a_state
from tests.unit.recorded import facts
from tests.unit.recovery.archive.archived import RECORDS

if TYPE_CHECKING:
    import fakeredis
    from prometheus_client.core import Metric

KEYS = Keys("prod")
AROUND = Around(
    now=NOW + 60_000,
    serving=Member("one", 1, "h1"),
    standing_by=(Member("two", 2, "h2"),),
    store=StoreFacts(1 << 20, 1 << 30, 1 << 10, 1 << 12, 50, 100),
    audited=AuditedTo(2, "d", NOW, deviations=1, first=2, verdict="v"),
)
PROMTOOL = shutil.which("promtool")
BASE_UNITS = re.compile(r"(seconds|bytes|cores|events)$")
NOT_UNITS = re.compile(r"_(ms|milliseconds|minutes|hours|mb|mib|gb|kb|percent)(_|$)")


def parsed(text: bytes) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    samples = [each for family in families.values() for each in family.samples if each.name == name]
    (found,) = [each.value for each in samples if each.labels == labels]
    return found


@pytest.fixture
def state() -> ClusterState:
    """A worker of 8 cores, which an app of acme holds; a second one waits for it, and one of globex never starts."""
    state = a_state(workers=1, apps=2)
    turn = Turn(state, NOW)
    turn.take(RegisterCompany(company="globex", cores=64, memory_mb=1 << 20))
    turn.take(SubmitApp(app="big", company="globex", user="bob", cores=64, tasks=1, executor_cores=64, command=("x",)))
    turn.settle()
    return state


@pytest.fixture
def metrics(fake: fakeredis.FakeRedis, state: ClusterState) -> Metrics:
    return Metrics(fake, KEYS, Tally(), read=lambda look: look(state), around=lambda: AROUND)


def test_departments_have_the_sums_of_their_companies(fake: fakeredis.FakeRedis, state: ClusterState) -> None:
    turn = Turn(state, NOW)
    turn.take(AddDepartment(department="physics"))
    turn.take(AddDepartment(department="empty", parent="physics"))
    turn.take(MoveCompany(company="acme", department="physics"))
    turn.settle()
    of_physics = standings(state)["", "physics"]
    found = parsed(Metrics(fake, KEYS, Tally(), read=lambda look: look(state), around=lambda: AROUND).text()[0])
    for name in ("held", "entitled", "below"):
        cores = value(found, f"fairlog_department_{name}", department="physics", kind="cores", unit="cores")
        assert cores == getattr(of_physics, name).cores
        assert value(found, f"fairlog_department_{name}", department="empty", kind="cores", unit="cores") == 0
    assert of_physics.held.cores == 8


def test_it_says_what_the_state_and_its_surroundings_are(metrics: Metrics, state: ClusterState) -> None:
    found = parsed(metrics.text()[0])
    assert value(found, "fairlog_log_position") == state.head
    assert value(found, "fairlog_log_last_commit_age_seconds") == 60
    assert value(found, "fairlog_apps", company="acme", state="waiting") == 1
    assert value(found, "fairlog_apps", company="acme", state="pending") == 1
    assert value(found, "fairlog_apps", company="globex", state="pending") == 1
    assert value(found, "fairlog_apps_waiting", company="globex", reason="no-worker-large-enough") == 1
    assert value(found, "fairlog_apps_waiting", company="acme", reason="not-entitled") == 1
    assert value(found, "fairlog_oldest_wait_seconds", company="acme") == 60
    assert value(found, "fairlog_company_granted", company="acme", kind="cores", unit="cores") == 8
    assert value(found, "fairlog_company_quota", company="globex", kind="memory", unit="bytes") == 1 << 40
    assert value(found, "fairlog_company_shortfall_cores", company="globex") == 0
    assert value(found, "fairlog_cluster_offered", kind="cores", unit="cores") == 8
    assert value(found, "fairlog_apps_never_starting") == 1
    assert value(found, "fairlog_workers", status="alive") == 1
    assert value(found, "fairlog_executors", status="starting") == 1
    assert value(found, "fairlog_masters", role="standby") == 1
    assert value(found, "fairlog_master_info", master="one", host="h1", role="active") == 1
    assert value(found, "fairlog_store_disk_size_bytes") == 100
    assert value(found, "fairlog_audit_position") == 2
    assert value(found, "fairlog_audit_behind_events") == state.head - 2
    assert value(found, "fairlog_audit_deviations") == 1
    assert value(found, "fairlog_condition", condition="deviation", severity="critical") == 1
    assert value(found, "fairlog_condition", condition="never_starts", severity="warning") == 1
    assert value(found, "fairlog_condition", condition="no_standby", severity="warning") == 0


def test_errors_of_estimates_are_told_once_there_are_any(fake: fakeredis.FakeRedis, metrics: Metrics) -> None:
    found = parsed(metrics.text()[0])
    assert value(found, "fairlog_estimates_compared") == 0
    assert found["fairlog_estimate_error_seconds"].samples == []
    keep(fake, KEYS, {"a": Given(0, 0, 100_000, 200_000)})
    compare(fake, KEYS, {"a": 130_000}, [])
    metrics._made_s = 0
    found = parsed(metrics.text()[0])
    assert value(found, "fairlog_estimates_compared") == value(found, "fairlog_estimates_within") == 1
    assert value(found, "fairlog_estimate_error_seconds", quantile="0.5") == 30
    assert value(found, "fairlog_estimate_error_seconds", quantile="0.9") == 30


def test_amounts_of_further_kinds_are_told_and_quotas_where_they_limit_them(fake: fakeredis.FakeRedis) -> None:
    state = a_state()
    turn = Turn(state, NOW)
    turn.take(RegisterKind(kind="gpu"))
    turn.take(RegisterWorker(worker="g", node="g", host="g", cores=8, memory_mb=1 << 14, resources={"gpu": ("0", "1")}))
    turn.take(RegisterCompany(company="globex", cores=8, memory_mb=1 << 14, resources={"gpu": 1}))
    turn.settle()
    found = parsed(Metrics(fake, KEYS, Tally(), read=lambda look: look(state), around=lambda: AROUND).text()[0])
    assert value(found, "fairlog_cluster_offered", kind="gpu", unit="number") == 2
    assert value(found, "fairlog_company_quota", company="globex", kind="gpu", unit="number") == 1


def test_a_store_that_says_little_has_fewer_metrics(fake: fakeredis.FakeRedis) -> None:
    around = Around(now=NOW, serving=None)
    found = parsed(
        Metrics(fake, KEYS, Tally(), read=lambda look: look(ClusterState()), around=lambda: around).text()[0]
    )
    assert "fairlog_store_memory_bytes" not in found
    assert "fairlog_audit_position" not in found
    assert value(found, "fairlog_masters", role="active") == 0
    assert value(found, "fairlog_condition", condition="no_master", severity="critical") == 1


def test_turns_are_counted_by_type_size_company_and_reason() -> None:
    state, tally = ClusterState(), Tally()
    log = facts(RECORDS)
    for record in RECORDS:
        turn = [fact for fact in log if record.first <= fact.seq <= record.last]
        for fact in turn:
            state.apply(fact.event, fact.at, fact.cause)
        tally.hear(state, turn)
    assert tally.events.total() == len(log)
    assert tally.events["ExecutorAllocated"] == tally.granted.total() > 10
    assert tally.events["ExecutorRemoved"] == tally.ended.total() > 5
    assert set(tally.granted) <= {fact.event.company for fact in log if isinstance(fact.event, CompanyRegistered)}
    turns = tally.turns()
    assert (sum(turns.counts), turns.total) == (len(RECORDS), len(log))
    assert len(tally.over) == tally.events["AppRemoved"]
    first: dict[str, int] = {}
    for fact in log:
        if isinstance(fact.event, ExecutorAllocated | DriverAllocated):
            first.setdefault(fact.event.app, fact.at)
    assert tally.taken_began() == first
    assert tally.taken_began() == {}


def test_tasks_are_counted_once_through_pauses_and_ends_of_apps(fake: fakeredis.FakeRedis) -> None:
    tasks = Tasks(fake, KEYS)

    def done(app: str, succeeded: int, failed: int = 0) -> None:
        fake.hset(KEYS.tasks(app), mapping={"succeeded": succeeded, "failed": failed})

    done("old", 100)
    tasks.look(["old"], [], [])
    assert tasks.done.total() == 0, "what was done before is not counted"
    done("old", 103)
    done("new", 2, 1)
    tasks.look(["old", "new"], [], [])
    assert (tasks.done["succeeded"], tasks.done["failed"]) == (5, 1)
    done("new", 4, 1)
    tasks.look(["old"], ["new"], [])
    tasks.look(["old", "new"], [], [])
    assert tasks.done["succeeded"] == 7
    done("short", 9)
    done("old", 110)
    tasks.look(["new"], [], ["short", "old"])
    assert tasks.done["succeeded"] == 7 + 9 + 7
    tasks.look(["new"], [], [])
    assert tasks.done["succeeded"] == 23


def test_scrapes_within_a_second_are_worked_out_once(fake: fakeredis.FakeRedis, state: ClusterState) -> None:
    looks: list[int] = []

    def around() -> Around:
        looks.append(1)
        return AROUND

    metrics = Metrics(fake, KEYS, Tally(), read=lambda look: look(state), around=around)
    assert metrics.text()[0] == metrics.text()[0]
    assert len(looks) == 1


def test_of_very_many_waiting_apps_only_some_are_asked_why(
    fake: fakeredis.FakeRedis, state: ClusterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "MOST_ASKED", 1)
    found = parsed(Metrics(fake, KEYS, Tally(), read=lambda look: look(state), around=lambda: AROUND).text()[0])
    waiting = found["fairlog_apps_waiting"].samples
    assert sum(each.value for each in waiting) == len(standing_of(state, AROUND).waiting) == 2
    assert "not-asked" in {each.labels["reason"] for each in waiting}


def of_a_master() -> bytes:
    from prometheus_client import CollectorRegistry, generate_latest

    measures = Measures()
    measures.committed(0.004, 3, 2, 10)
    measures.committed(0.9, 0, 1, 10)
    measures.committed(99.0, 90_000, 1, 90_010)
    measures.looked(0)
    measures.state(serving=True, seq=90_011, put_aside=4)
    registry = CollectorRegistry()
    registry.register(Collector(measures))
    return generate_latest(registry)


def test_a_master_says_how_long_commits_take_and_how_large_turns_are() -> None:
    found = parsed(of_a_master())
    assert value(found, "fairlog_master_serving") == 1
    assert value(found, "fairlog_master_log_position") == 90_011
    assert value(found, "fairlog_master_commands_total") == 4
    assert value(found, "fairlog_master_messages_put_aside_total") == 4
    assert value(found, "fairlog_master_clock_offset_seconds") < -1e9
    name = "fairlog_master_commit_duration_seconds"
    buckets = [value(found, f"{name}_bucket", le=str(float(bound))) for bound in COMMIT_S]
    assert buckets == [float(bound >= 0.004) + float(bound >= 0.9) for bound in COMMIT_S]
    assert value(found, f"{name}_bucket", le="+Inf") == value(found, f"{name}_count") == 3
    assert value(found, f"{name}_sum") == pytest.approx(99.904)
    assert value(found, "fairlog_master_turn_events_sum") == 90_003
    assert value(found, "fairlog_master_turn_events_count") == 2
    assert value(found, "fairlog_master_turn_events_bucket", le=str(float(TURN_EVENTS[-1]))) == 1


@pytest.fixture(params=["cluster", "master"])
def text(request: pytest.FixtureRequest, metrics: Metrics) -> bytes:
    return metrics.text()[0] if request.param == "cluster" else of_a_master()


def test_names_units_and_types_follow_the_conventions_of_prometheus(text: bytes) -> None:
    lines = text.decode().splitlines()
    families = list(text_string_to_metric_families(text.decode()))
    assert len(families) > 5
    for family in families:
        assert re.fullmatch(r"fairlog_[a-z]+(_[a-z]+)*", family.name)
        assert family.documentation.endswith("."), family.name
        assert not NOT_UNITS.search(family.name), family.name
        sampled = {sample.name for sample in family.samples}
        total = [name.endswith("_total") for name in sampled]
        assert all(total) if family.type == "counter" else not any(total), family.name
        assert all(re.fullmatch(r"[a-z_]+", label) for sample in family.samples for label in sample.labels)
        if re.search("_(duration|age|timestamp)_", family.name):
            assert BASE_UNITS.search(family.name), family.name
        keys = [(sample.name, *sorted(sample.labels.items())) for sample in family.samples]
        assert len(set(keys)) == len(keys), family.name
    helped = [line.split()[2] for line in lines if line.startswith("# HELP")]
    assert len(set(helped)) == len(helped)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_mend(text: bytes) -> None:
    checked = subprocess.run([str(PROMTOOL), "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_openmetrics_is_served_to_whom_it_is_asked_by(metrics: Metrics) -> None:
    text, media = metrics.text("application/openmetrics-text; version=1.0.0")
    assert media.startswith("application/openmetrics-text")
    parse: Any = openmetrics.text_string_to_metric_families
    names = {family.name for family in parse(text.decode())}
    assert "fairlog_elections" in names


@pytest.fixture
def taken() -> Iterator[tuple[str, int]]:
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()


def test_an_address_that_is_taken_is_named(taken: tuple[str, int]) -> None:
    with pytest.raises(CannotExport, match=rf"cannot serve metrics at 127.0.0.1:{taken[1]}: Address already in use; "):
        Exporter(Measures(), taken)
