"""What a pool does next."""

from __future__ import annotations

from typing import Any

import pytest

from fairlog.pools.look import LETS_GO, Memory, PoolPlan, PoolSeen, plan
from fairlog.pools.pool import hours
from fairlog.pools.providers import Instance
from fairlog.pools.spec import Pool

PROVIDER = {"kind": "command", "start": ["start"], "stop": ["stop"], "list": ["list"]}


def pool(**changes: object) -> Pool:
    """Up to four workers of 4 cores that are let go after 60 s."""
    said = {"name": "p", "most": 4, "cores": 4, "memory": "4G", "cool_down": "1m", "provider": PROVIDER}
    return Pool.model_validate({**said, **changes})


def worker(status: str = "alive", executors: int = 0, reason: str = "") -> dict[str, Any]:
    return {"status": status, "executors": executors, "drivers": 0, "reason": reason}


def lacking(cores: int, missing: int, memory: int = 1024, **resources: int) -> dict[str, Any]:
    return {"cores": cores, "memory": memory, "resources": resources, "missing": missing}


def decided(
    listed: str = "",
    wants: list[dict[str, Any]] | None = None,
    memory: Memory | None = None,
    now_s: float = 0,
    *,
    of: Pool | None = None,
    accounts: tuple[str, ...] = (),
    **workers: dict[str, Any],
) -> PoolPlan:
    """The plan where the provider has these instances, and the log these workers, `p_1` for p-1."""
    instances = {name.rstrip("!?"): Instance(name.endswith("!"), name.endswith("?")) for name in listed.split()}
    known = {name.replace("_", "-"): each for name, each in workers.items()}
    seen, memory, of = PoolSeen(instances, known, wants or [], accounts), memory or Memory(), of or pool()
    memory.note(of, seen, now_s)
    return plan(of, seen, memory, now_s)


@pytest.mark.parametrize(
    ("wants", "start"),
    [
        ([], 0),
        ([lacking(1, 1)], 1),
        ([lacking(1, 4)], 1),
        ([lacking(1, 5)], 2),
        ([lacking(3, 2), lacking(1, 2)], 2),
        ([lacking(1, 100)], 4),
        ([lacking(5, 1)], 0),
        ([lacking(1, 4, memory=2048)], 2),
        ([lacking(1, 1, gpu=1)], 0),
        ([{**lacking(1, 1), "require": ["zone=north"]}, {**lacking(1, 1), "avoid": ["pool=p"]}], 0),
        ([{**lacking(1, 1), "require": ["pool=p"], "avoid": ["zone"]}], 1),
    ],
)
def test_as_many_workers_start_as_hold_what_is_lacking(wants: list[dict[str, Any]], start: int) -> None:
    found = decided(wants=wants)
    assert found.start == [f"p-{number}" for number in range(1, start + 1)]


def test_what_no_worker_of_the_pool_holds_is_told() -> None:
    assert decided(wants=[lacking(5, 1), lacking(9, 1)]).unfit.cores == 9
    gpus = pool(resources={"gpu": 2})
    assert decided(wants=[lacking(1, 3, gpu=1)], of=gpus).start == ["p-1", "p-2"]


def test_workers_that_come_or_have_nothing_to_do_count() -> None:
    assert decided("p-1", [lacking(4, 2)]).start == ["p-2"]
    assert decided("p-1", [lacking(4, 2)], p_1=worker()).start == ["p-2"]
    assert decided("p-1", [lacking(4, 2)], p_1=worker(executors=1)).start == ["p-2", "p-3"]


def test_names_in_use_at_the_provider_or_in_the_log_are_not_started_again() -> None:
    found = decided("p-2", [lacking(4, 9)], p_1=worker(executors=1), p_3=worker("draining", executors=1))
    assert found.start == ["p-4"]
    assert decided("other-1 p-0 p-x p-1x", [lacking(4, 9)]).start == ["p-1", "p-2", "p-3", "p-4"]


def test_the_least_number_is_there_without_demand_and_stays() -> None:
    of = pool(least=2)
    assert decided(of=of).start == ["p-1", "p-2"]
    memory = Memory()
    for now_s in (0, 100):
        found = decided("p-1 p-2 p-3", [], memory, now_s, of=of, p_1=worker(), p_2=worker(), p_3=worker())
    assert (found.drain, found.start) == ({"p-3": LETS_GO.format("p")}, [])


def test_a_worker_is_let_go_once_it_has_had_nothing_to_do_for_the_cool_down() -> None:
    memory = Memory()
    assert decided("p-1", [], memory, 0, p_1=worker()).drain == {}
    assert decided("p-1", [], memory, 59, p_1=worker()).drain == {}
    assert decided("p-1", [], memory, 60, p_1=worker()).drain == {"p-1": LETS_GO.format("p")}
    assert decided("p-1", [], memory, 61, p_1=worker(executors=1)).drain == {}
    assert decided("p-1", [], memory, 62, p_1=worker()).drain == {}
    assert decided("p-1", [lacking(4, 1)], memory, 200, p_1=worker()).drain == {}


def test_a_worker_that_drains_stops_when_it_is_empty_or_returns_to_demand() -> None:
    ours = LETS_GO.format("p")
    assert decided("p-1", p_1=worker("draining", 1, ours)).stop == []
    assert decided("p-1", p_1=worker("draining", 0, ours)).stop == ["p-1"]
    back = decided("p-1", [lacking(4, 1)], p_1=worker("draining", 1, ours))
    assert (back.undrain, back.start) == (["p-1"], [])
    theirs = decided("p-1", [lacking(4, 1)], p_1=worker("draining", 1, "a new disk"))
    assert (theirs.undrain, theirs.start) == ([], ["p-2"])


def test_what_does_not_join_in_time_is_given_up() -> None:
    memory = Memory()
    assert decided("p-1", [], memory, 0).coming == 1
    assert decided("p-1", [], memory, 599).stop == []
    late = decided("p-1", [], memory, 600)
    assert (late.stop, late.given_up) == (["p-1"], ["p-1"])
    lost = Memory()
    assert decided("p-1", [], lost, 0, p_1=worker("lost")).stop == []
    assert decided("p-1", [], lost, 600, p_1=worker("lost")).stop == ["p-1"]


def test_nothing_is_started_while_a_start_has_failed_just_now() -> None:
    memory = Memory()
    memory.not_before = 30
    assert decided("", [lacking(4, 1)], memory, 29).start == []
    assert decided("", [lacking(4, 1)], memory, 30).start == ["p-1"]


def test_a_notice_drains_the_worker_and_makes_room_for_another_one() -> None:
    found = decided("p-1!", [lacking(4, 1)], p_1=worker(executors=1))
    assert list(found.drain) == ["p-1"]
    assert found.start == ["p-2"]


def test_what_is_gone_at_the_provider_is_forgotten_once_the_log_knows() -> None:
    assert decided(p_1=worker()).forget == []
    assert decided(p_1=worker("lost")).forget == ["p-1"]
    assert decided(p_1=worker("draining")).forget == ["p-1"]
    assert decided(p_1=worker("draining", 1)).forget == []
    assert decided("p-1?").stop == ["p-1"]
    assert decided("p-2", accounts=("p-1", "p-2")).forget == ["p-1"]
    assert decided("", [lacking(4, 1)], accounts=("p-1",)).forget == []


def test_a_lower_most_drains_the_last_workers_although_they_run_something() -> None:
    found = decided("p-1 p-2", of=pool(most=1), p_1=worker(executors=1), p_2=worker(executors=1))
    assert list(found.drain) == ["p-2"]
    assert not found.start


def event(at: int, name: str, *, came: bool) -> dict[str, Any]:
    return {"at": at, "type": "WorkerRegistered" if came else "WorkerRemoved", "data": {"worker": name}}


def test_hours_are_those_between_the_registrations_and_the_ends() -> None:
    hour = 3_600_000
    events = [
        event(2 * hour, "p-1", came=False),
        event(3 * hour, "p-1", came=True),
        event(4 * hour, "p-2", came=True),
        event(4 * hour, "other-1", came=True),
        event(5 * hour, "p-1", came=False),
    ]
    found = hours(pool(), events, ["p-2", "p-3", "other-1"], hour, 6 * hour)
    assert found == {"p-1": 3, "p-2": 2, "p-3": 5}
