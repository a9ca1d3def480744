"""The same inputs in another world: under the same rules it is the log's own, under others it holds together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlog.cli.exports import facts_of
from scheduler.model.commands import AddAccount, EndApp, EndedExecutor, RegisterWorker, SubmitApp
from scheduler.model.errors import InvalidCommand, InvalidSetting, UnknownCompany
from scheduler.model.events import ExecutorAllocated, RefusalsOmitted
from scheduler.model.sender import By, local
from scheduler.rules import invariants
from tests.property.given import Cluster, shared
from tests.property.histories import DENSE, RULES, History, played, seeded
from tests.unit.recorded import facts
from tests.unit.witness.test_fairness import two_companies
from witness.swf import read_trace
from witness.whatif import (
    LoggedTurn,
    OtherWorld,
    Rules,
    World,
    as_logged,
    check_rules,
    compared,
    first_difference,
    run,
    turns,
    work_of,
)

TRACES = Path(__file__).parents[4] / "shared" / "traces"
GOLDEN = Path(__file__).parents[2] / "golden"
HEADER = "; Nodes: 2 x 4 processors, 4 GiB each\n"


def logged(cluster: Cluster) -> list[LoggedTurn]:
    return list(turns(facts(cluster)))


def other(taken: list[LoggedTurn], rules: Rules, *, check: bool = False) -> OtherWorld:
    world = OtherWorld(rules, work_of(as_logged(taken)))
    for turn in taken:
        world.take(turn)
        if check:
            invariants.check(world.state)
    world.run_until()
    invariants.check(world.state)
    return world


def ended_at(world: World) -> dict[str, int | None]:
    return {account.app: account.ended_at for account in world.meter.all}


@settings(max_examples=25)
@given(DENSE)
@example(seeded(1332, 17))
def test_under_the_same_rules_any_log_comes_out_as_it_is(history: History) -> None:
    cluster = played(history)
    taken = logged(cluster)
    again = other(taken, Rules())
    assert again.state.digest() == cluster.state.digest()
    assert first_difference(as_logged(taken), again) is None


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.jsonl")), ids=lambda file: file.stem)
def test_under_the_same_rules_a_recorded_log_comes_out_turn_by_turn_as_it_is(file: Path) -> None:
    """Whatever its policies and placement are, and with masters that took over."""
    with file.open("rb") as lines:
        taken = list(turns(facts_of(lines)))
    again = other(taken, Rules())
    assert again.in_step
    assert again.state.digest() == as_logged(taken).state.digest()


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.jsonl")), ids=lambda file: file.stem)
def test_a_setting_that_concerns_nothing_changes_no_decision(file: Path) -> None:
    with file.open("rb") as lines:
        taken = list(turns(facts_of(lines)))
    again = other(taken, Rules({"worker_timeout_s": 77}))
    assert again.state.settings.worker_timeout_s == 77
    assert first_difference(as_logged(taken), again) is None


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.jsonl")), ids=lambda file: file.stem)
def test_under_the_same_rules_the_figures_are_the_logs(file: Path) -> None:
    """Also where the log ends with something that no other world has, and where commands were refused."""
    with file.open("rb") as lines:
        taken = list(turns(facts_of(lines)))
    taken.append(LoggedTurn(taken[-1].at + 1, [], [RefusalsOmitted(count=1, since=taken[-1].at)], [""]))
    log = as_logged(taken)
    assert log.report() == run(Rules(), taken, work_of(log)).report()


@settings(max_examples=10)
@given(st.integers(0, 1 << 32), RULES)
@example(1352565, {"user_policy": "balanced", "placement": "classic-pack"})
@example(420, {"user_policy": "balanced", "placement": "classic-pack"})
def test_under_the_same_rules_any_policy_decides_as_it_did(seed: int, rules: dict[str, object]) -> None:
    taken = logged(played(seeded(seed, 40), rules))
    again = other(taken, Rules())
    assert again.in_step
    assert first_difference(as_logged(taken), again) is None


@settings(max_examples=25)
@given(DENSE)
def test_under_other_rules_every_ledger_holds_at_every_turn(history: History) -> None:
    rules = Rules(
        {"company_policy": "pay-as-you-go", "placement": "pack", "max_executor_cores": 8},
        {"c1": (64, 1 << 17)},
        [RegisterWorker(worker="more", node="n", host="n", cores=16, memory_mb=1 << 16)],
    )
    world = other(logged(played(history)), rules, check=True)
    compared(as_logged(logged(played(history))), world)


def test_more_workers_end_a_wait_and_the_app_works_as_long_as_in_the_log() -> None:
    """`small` waited 11 s and held 8 cores for 21 s; with a second worker it starts at once."""
    worker = RegisterWorker(worker="w2", node="n2", host="n2", cores=16, memory_mb=65536)
    world = other(logged(two_companies()), Rules(workers=[worker]))
    assert ended_at(world) == {"big": 16_000, "small": 26_000}
    found = compared(as_logged(logged(two_companies())), world)
    rows = {row["company"]: row for row in found["other"]["rows"]}
    assert rows["tiny"]["waitLongestMs"] == 0
    assert found["log"]["makespanMs"] == 32_000
    assert found["other"]["makespanMs"] == 22_000
    whole, users = found["other"]["cluster"], found["other"]["users"]
    used_core_ms = whole["utilisation"] * whole["cores"] * (found["other"]["toAt"] - found["other"]["fromAt"])
    assert used_core_ms / 3_600_000 == pytest.approx(sum(user["grantedCoreH"] for user in users), rel=0.01)


def test_the_first_decision_that_came_out_differently_is_named() -> None:
    worker = RegisterWorker(worker="w2", node="n2", host="n2", cores=16, memory_mb=65536)
    world = other(logged(two_companies()), Rules(workers=[worker]))
    found = first_difference(as_logged(logged(two_companies())), world)
    assert found is not None
    assert (found["number"], found["log"]["worker"], found["other"]["worker"]) == (2, "w1", "w2")


@pytest.mark.parametrize(
    "rules",
    [
        Rules({"min_executor_cores": 2, "max_executor_cores": 4}),
        Rules({"placement": "pack"}),
        Rules(quotas={"acme": (8, 65536)}),
        Rules(workers=[RegisterWorker(worker="w2", node="n2", host="n2", cores=16, memory_mb=65536)]),
    ],
)
def test_in_a_cluster_with_accounts_apps_of_another_world_end_as_well(rules: Rules) -> None:
    """Nobody sends what ends them: no account is asked for it."""
    cluster = shared(w1=8)
    for app in ("one", "two", "three"):
        cluster.submit(app, 8)
    cluster.turn(AddAccount(account="op/olga"), by=local(1000))
    agent = By("worker/w1", role="worker", door="door")
    for app in ("one", "two", "three"):
        ended = EndedExecutor(executor=f"{app}.0", worker="w1", reason="exited", exit_code=0, done=True)
        cluster.turn(EndApp(app=app, reason="finished"), after_s=10, by=agent)
        cluster.turn(ended, by=agent)
    assert cluster.state.closed
    world = other(logged(cluster), rules, check=True)
    assert all(ended_at(world).values())


@pytest.mark.parametrize(
    ("rules", "refusal"),
    [
        (Rules({"placement": "sideways"}), InvalidSetting),
        (Rules({"nope": 1}), InvalidSetting),
        (Rules(quotas={"nobody": (8, 8192)}), UnknownCompany),
    ],
)
def test_rules_that_make_no_sense_are_refused(rules: Rules, refusal: type[Exception]) -> None:
    with pytest.raises(refusal):
        check_rules(rules, logged(two_companies()))


def job(number: int, submitted: int, run: int, processors: int, user: int, *, memory: int = -1) -> str:
    return f"{number} {submitted} 0 {run} {processors} -1 -1 {processors} -1 {memory} 1 {user} 1 1 -1 -1 -1 -1\n"


def run_trace(text: str, rules: Rules, companies: int = 2) -> OtherWorld:
    trace = read_trace(text.splitlines(), companies)
    world = OtherWorld(rules, trace.work, follows=False)
    for turn in trace.turns:
        world.take(turn)
    world.run_until()
    return world


def test_jobs_of_a_trace_run_as_long_as_they_did_on_what_they_asked_for() -> None:
    world = run_trace(HEADER + job(1, 0, 100, 4, 7) + job(2, 50, 10, 3, 8), Rules())
    assert ended_at(world) == {"j1": 100_001, "j2": 60_001}


def test_an_executor_leaves_at_its_date_and_what_its_task_had_done_is_done_again() -> None:
    """Semantics H7: j2 is entitled to half of the cluster, all of which j1 holds."""
    world = run_trace(HEADER + job(1, 0, 10_000, 8, 7) + job(2, 50, 10, 4, 8), Rules())
    assert (world.killed, world.lost_core_ms) == (1, 4 * 3_650_000)
    assert ended_at(world) == {"j1": 11_830_001, "j2": 3_660_001}
    used = {account.app: account.granted_ms.cores for account in world.meter.accrued(world.now)}
    assert used == {"j1": 8 * 10_000_000 + 4 * 3_650_000, "j2": 4 * 10_000}


def test_without_a_date_an_executor_leaves_with_its_task() -> None:
    """Semantics H7."""
    rules = Rules(settings={"reclaim_patience_s": None})
    world = run_trace(HEADER + job(1, 0, 10_000, 8, 7) + job(2, 50, 10, 4, 8), rules)
    assert world.killed == 0
    assert ended_at(world) == {"j1": 10_000_001, "j2": 10_010_001}


def test_users_of_a_trace_are_dealt_by_processor_seconds_in_a_snake() -> None:
    """User 1 has most, then 2 … 6; two companies: 1 and 4 and 5 to c1, 2 and 3 and 6 to c2."""
    world = run_trace(HEADER + "".join(job(user, 0, 100 - user, 2, user) for user in range(1, 7)), Rules())
    dealt = {account.user: account.company for account in world.meter.all}
    assert dealt == {"u1": "c1", "u2": "c2", "u3": "c2", "u4": "c1", "u5": "c1", "u6": "c2"}


def test_memory_is_kib_a_processor_unless_the_header_says_bytes() -> None:
    by_standard = run_trace(HEADER + job(1, 0, 10, 2, 1, memory=1 << 20), Rules())
    in_bytes = run_trace("; Note: bytes in field 10\n" + HEADER + job(1, 0, 10, 2, 1, memory=1 << 31), Rules())
    assert [world.state.apps["j1"].requested.memory_mb for world in (by_standard, in_bytes)] == [2048, 2048]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (job(1, 0, 10, 2, 1), "names no nodes"),
        (HEADER, "no job"),
        (f"{HEADER}1 2 3\n", "line 2 of the trace must have 18 numbers"),
        (f"{HEADER}{job(1, 0, 10, 2, 1).replace('10', 'ten')}", "line 2 of the trace must have 18 numbers"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused_naming_the_line(text: str, why: str) -> None:
    with pytest.raises(InvalidCommand, match=why):
        read_trace(text.splitlines(), 2)


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"there are no traces in {TRACES}")
def test_every_job_of_a_real_trace_ends() -> None:
    with (TRACES / "hpc2n.swf").open() as file:
        found: dict[str, Any] = run_trace(file.read(), Rules(), 3).report()
    assert (found["cluster"]["apps"], found["cluster"]["ended"]) == (3145, 3145)
    assert found["refused"] == 0


def test_gangs_are_decided_again_as_a_whole() -> None:
    made = with_gangs()
    taken = logged(made)
    same = other(taken, Rules(), check=True)
    assert first_difference(as_logged(taken), same) is None
    more = RegisterWorker(worker="more", node="n", host="n", cores=8, memory_mb=65536)
    allocated = [event for _, event in other(taken, Rules(workers=[more]), check=True).decisions]
    granted = [event.executor for event in allocated if isinstance(event, ExecutorAllocated)]
    assert granted[:4] == ["g1.0", "g1.1", "g2.0", "g2.1"], "the second one needs not wait"


@pytest.mark.parametrize("changes", [{"admission": "open"}, {"placement": "classic-spread"}])
def test_settings_that_allow_no_gang_are_refused_for_a_log_that_has_one(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidCommand, match=r"app 'g1' of the log is a gang, and .*; leave that setting out"):
        check_rules(Rules(settings=changes), logged(with_gangs()))
    check_rules(Rules(settings=changes), logged(shared(w0=8)))


def with_gangs() -> Cluster:
    """A gang that runs on both workers and ends, and one that waits for it and comes then."""
    made = shared(w0=4, w1=4)
    for name in ("g1", "g2"):
        about: dict[str, Any] = {"executor_program": True, "gang": True, "executor_cores": 4, "executor_limit": 2}
        made.turn(SubmitApp(app=name, company="acme", user="u", command=("x",), all_at_once=True, **about))
    for name in ("g1.0", "g1.1"):
        made.turn(EndedExecutor(executor=name, reason="exited", exit_code=0))
    return made
