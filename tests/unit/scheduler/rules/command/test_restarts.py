"""How soon a supervised driver that keeps failing starts again."""

from __future__ import annotations

import pytest

from scheduler.model.commands import EndedDriver, SubmitApp
from scheduler.model.events import DriverAllocated
from scheduler.rules.state.records import lines, restored
from tests.property.given import Cluster
from tests.unit.recorded import facts
from witness.audit.audit import audit
from witness.pending_reasons import waits_for


def supervised(settings: dict[str, object] | None = None) -> Cluster:
    cluster = Cluster(settings)
    cluster.company("acme")
    cluster.worker("w", 16)
    cluster.turn(
        SubmitApp(app="a", company="acme", user="ann", driver=True, supervise=True, cores=0, command=("true",))
    )
    return cluster


def fail(cluster: Cluster, after_s: int = 1) -> bool:
    """Let the driver fail so many seconds after the turn before; whether it starts again at once."""
    (driver,) = cluster.state.drivers
    events = cluster.turn(EndedDriver(driver=driver, reason="exited", exit_code=1), after_s=after_s)
    return any(isinstance(event, DriverAllocated) for event in events)


def wait_ms(cluster: Cluster) -> int:
    """How long the state waits until something is due; then the driver starts, and not a turn before."""
    before = cluster.state.at
    due = cluster.state.timers.next(before)
    assert due is not None
    said = waits_for(cluster.state, cluster.state.apps["a"])
    assert said is not None
    assert said.rule == "D3"
    assert said.tell()[1]["startsAt"] == due
    if due > before + 1000:
        assert not cluster.turn(after_s=(due - before) // 1000 - 1)
    events = cluster.turn(after_s=(due - cluster.state.at) // 1000)
    assert [type(event) for event in events] == [DriverAllocated]
    return due - before


def test_a_driver_that_keeps_failing_starts_later_and_later() -> None:
    """Semantics D3."""
    cluster = supervised()
    assert [fail(cluster), fail(cluster)] == [True, True]
    waits = []
    for _ in range(11):
        assert not fail(cluster)
        waits.append(wait_ms(cluster))
    assert waits == [1000 * seconds for seconds in (1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300)]
    cluster.check_replay()
    assert audit(facts(cluster)) == []


def test_a_driver_that_ran_for_a_while_starts_again_at_once() -> None:
    """Semantics D3."""
    cluster = supervised()
    assert [fail(cluster), fail(cluster), fail(cluster)] == [True, True, False]
    wait_ms(cluster)
    assert [fail(cluster, 10), fail(cluster), fail(cluster)] == [True, True, True]
    assert not fail(cluster)


def test_a_driver_that_waits_is_the_same_after_a_snapshot() -> None:
    """Semantics D3, T2."""
    cluster = supervised()
    assert [fail(cluster), fail(cluster), fail(cluster)] == [True, True, False]
    again = restored(lines(cluster.state))
    assert again.digest() == cluster.state.digest()
    assert again.timers.next(again.at) == cluster.state.timers.next(cluster.state.at) == cluster.state.at + 1000


@pytest.mark.parametrize("settings", [{"admission": "open"}, {"admission": "open", "placement": "classic-spread"}])
def test_with_open_admission_a_driver_starts_again_at_once(settings: dict[str, object]) -> None:
    """Semantics D3."""
    cluster = supervised(settings)
    assert all(fail(cluster) for _ in range(5))
