"""Where rules meet their bounds: cases whose answers are worked out from the text."""

from __future__ import annotations

from typing import Any

from scheduler.rules.simulate import run_scenario


def company(name: str, **about: Any) -> dict[str, Any]:
    return {"op": "company", "company": name, **about}


def worker(name: str, cores: int, **about: Any) -> dict[str, Any]:
    return {"op": "worker", "worker": name, "cores": cores, "memory_mb": 65536, **about}


def submit(app: str, of: str = "a", **about: Any) -> dict[str, Any]:
    return {"op": "submit", "app": app, "company": of, "user": "ann", **about}


def fixed(cores: int, memory_mb: int = 1024) -> dict[str, Any]:
    return {"executor_cores": cores, "executor_memory_mb": memory_mb}


def run(*commands: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    """The decisions."""
    decisions: list[dict[str, Any]] = run_scenario({"edition": 2, "settings": settings, "commands": list(commands)})[
        "decisions"
    ]
    return decisions


def said(decisions: list[dict[str, Any]], what: str) -> list[Any]:
    return [one[what] for one in decisions if what in one]


def test_room_is_held_on_the_smallest_id_of_equally_free_workers_of_any_kinds() -> None:
    """Semantics P8."""
    decisions = run(
        company("a"),
        company("b"),
        worker("w1", 8),
        worker("w2", 8, resources={"gpu": ["0"]}),
        submit("x", cores=16, **fixed(4)),
        submit("y", of="b", cores=8, **fixed(8)),
        {"op": "executor_running", "executor": "x.0", "at": 20_000},
        reclaim="none",
        hold_patience_s=5,
    )
    assert said(decisions, "held") == ["w1"]


def test_the_bounds_of_own_sizes_concern_no_elastic_app_that_states_no_size() -> None:
    """Semantics S5, L6."""
    elastic: dict[str, Any] = {"elastic": [1, 2], "tasks": 8, "memory_per_task_mb": 8192}
    decisions = run(
        company("a"),
        worker("w1", 16),
        submit("x", **elastic),
        submit("y", **elastic, **fixed(4, 32_768)),
        own_sizes="within-bounds",
    )
    assert (said(decisions, "admitted"), said(decisions, "refused")) == (["x"], [3])


def test_an_elastic_apps_smallest_executor_is_one_that_the_scheduler_sized() -> None:
    """Semantics E3: of 24 cores, 12 a part; company a holds 8 and 6, and 2 beyond its part suffice."""
    decisions = run(
        company("a"),
        company("b"),
        worker("w1", 24),
        submit("e", elastic=[2, 2], tasks=8),
        submit("x", cores=6, **fixed(6)),
        submit("y", of="b", cores=12, **fixed(2)),
    )
    assert [one for one in decisions if "revoked" in one] == [{"revoked": "e.1", "claimant": "y", "rule": "E3"}]


def full_of_a() -> list[dict[str, Any]]:
    """Company a has all 16 cores of two workers, in executors of 4, and b has nothing."""
    workers = worker("w1", 8), worker("w2", 8)
    return [company("a"), company("b"), *workers, submit("x", cores=16, tasks=16, **fixed(4))]


def test_an_app_of_one_executor_a_worker_claims_as_many_as_its_cores_are_for() -> None:
    """Semantics E1, A7: three cores of one task are one claim, not one a core."""
    decisions = run(
        *full_of_a(),
        submit("y", of="b", cores=3, tasks=1, executor_memory_mb=1024),
    )
    assert (said(decisions, "held"), said(decisions, "revoked")) == (["w1"], ["x.3"])


def test_executors_go_on_in_the_order_of_their_names() -> None:
    """Semantics E5: an order that a snapshot keeps; they were told to leave in the opposite one."""
    decisions = run(
        *full_of_a(),
        submit("y", of="b", cores=8, **fixed(8)),
        {"op": "kill", "app": "y"},
    )
    assert (said(decisions, "revoked"), said(decisions, "withdrawn")) == (["x.3", "x.2"], ["x.2", "x.3"])


def test_tasks_that_return_in_the_turn_of_the_last_report_get_an_executor_again() -> None:
    """Semantics S6: the executor that reports found no task before those of the other one returned."""
    decisions = run(
        company("a"),
        worker("w1", 4),
        worker("w2", 4),
        submit("x", cores=8, tasks=8, **fixed(4)),
        {
            "op": "turn",
            "commands": [
                {"op": "decommission", "worker": "w2"},
                {"op": "executor_ended", "executor": "x.1", "done": True, "reason": "exited"},
            ],
        },
    )
    assert said(decisions, "executor") == ["x.0", "x.1", "x.2"]


def test_an_app_claims_what_was_lent_although_one_alike_waits_that_may_not() -> None:
    """Semantics E7: x was admitted on room that there was, and then lost its worker; y on what e has beyond MIN."""
    decisions = run(
        company("a"),
        worker("w1", 11),
        worker("w2", 12),
        submit("e", elastic=[1, 4], tasks=100, at=1000),
        submit("x", cores=4),
        {"op": "worker_lost", "worker": "w1", "at": 30_000},
        submit("y", cores=4),
    )
    assert decisions[-3:-1] == [
        {"held": "w2", "app": "y", "cores": 4, "memory_mb": 2048, "reason": "reclaim"},
        {"revoked": "e.3", "claimant": "y", "rule": "E7"},
    ]


def test_with_no_worker_registered_an_app_is_accepted_whatever_is_remembered() -> None:
    """Semantics N3: the offer of a lost worker refuses only while another worker is registered."""
    lost = [company("a"), worker("w1", 8), {"op": "worker_lost", "worker": "w1"}]
    assert said(run(*lost, submit("x", cores=16, **fixed(16))), "refused") == []
    assert said(run(*lost, worker("w2", 4), submit("x", cores=16, **fixed(16))), "refused") == [4]
    assert said(run(*lost, worker("w2", 4), submit("x", cores=8, **fixed(8))), "refused") == []


def test_an_app_that_asks_for_executors_later_is_refused_where_these_fit_nowhere() -> None:
    """Semantics N3."""
    begin = [company("a"), worker("w1", 4)]
    never = [
        submit("x", cores=16, executor_limit=0, **fixed(16)),
        submit("x", cores=16, executor_limit=0, cores_per_task=16),
        submit("x", driver=True, elastic=[0, 4], tasks=0, **fixed(16)),
    ]
    assert [said(run(*begin, app), "refused") for app in never] == [[2], [2], [2]]
    assert said(run(*begin, submit("x", driver=True, elastic=[0, 4], tasks=0, **fixed(2))), "refused") == []
    assert said(run(*begin, submit("x", driver=True, cores=0)), "refused") == []


def test_nobody_borrows_by_filling_while_a_reservation_counts() -> None:
    """Semantics A9, C7: z waits for room under its company's quota; with reclaiming, borrowed room comes back to it."""
    commands = [
        company("a", cores=12, memory_mb=65536),
        company("b", cores=4, memory_mb=65536, borrow=True),
        worker("w1", 32),
        submit("x", cores=8, **fixed(4)),
        submit("z", cores=8, **fixed(4)),
        submit("y", of="b", cores=8, at=5000, **fixed(4)),
    ]
    assert said(run(*commands, reclaim="none", quota_patience_s=2), "admitted") == ["x"]
    assert said(run(*commands, reclaim="gentle", quota_patience_s=2), "admitted") == ["x", "y"]


def test_what_is_lent_is_judged_worker_by_worker() -> None:
    """Semantics E7, E4: e.3 of w1 and e.2 of w2 are looked at first; e.1 may leave with e.3, for e.0 and e.2 remain."""
    decisions = run(
        company("a"),
        worker("w1", 8),
        worker("w2", 8),
        submit("e", elastic=[2, 4], tasks=100, at=1000),
        submit("x", cores=8, at=10_000, **fixed(8)),
    )
    assert said(decisions, "held") == ["w1"]
    assert said(decisions, "revoked") == ["e.3", "e.1"]


def test_a_loss_that_is_withdrawn_raises_the_request_by_what_it_had_lowered_it() -> None:
    """Semantics E7: what was lost with w2 is still requested when e.3 may stay."""
    decisions = run(
        company("a"),
        worker("w1", 8),
        worker("w2", 8),
        submit("e", elastic=[1, 4], tasks=100, at=1000),
        submit("x", cores=4, at=10_000, **fixed(4)),
        {"op": "worker_lost", "worker": "w2"},
        {"op": "finish", "app": "x"},
    )
    assert said(decisions, "withdrawn") == ["e.3"]
    assert [one["cores"] for one in decisions if "requested" in one] == [8, 16, 12, 16]


def test_the_time_of_an_executor_counts_that_starts_after_it_was_told_to_leave() -> None:
    """Semantics X1, E5: its worker reports it running when the claim is made already; what it runs ends in peace."""
    decisions = run(
        company("a"),
        company("b"),
        worker("w1", 8),
        submit("x", cores=8, max_runtime_s=10, **fixed(4)),
        submit("y", of="b", cores=4, at=1000, **fixed(4)),
        {"op": "executor_running", "executor": "x.1", "at": 2000},
        {"op": "executor_running", "executor": "y.0", "at": 20_000},
    )
    assert said(decisions, "revoked") == ["x.1"]
    assert said(decisions, "expired") == ["x"]


def test_who_has_a_hold_claims_there_however_many_executors_are_elsewhere() -> None:
    """Semantics E1, E4: those are not looked at. 288 executors of a core fill all workers; b1 needs one whole."""
    fill, names = range(288), [f"w{number:02}" for number in range(18)]
    decisions = run(
        company("a"),
        company("b"),
        *(worker(name, 16) for name in names),
        *(submit(f"x{number}", cores=1, **fixed(1)) for number in fill),
        submit("b1", of="b", cores=16, **fixed(16)),
        {"op": "executor_running", "executor": "x0.0", "at": 400_000},
        hold_patience_s=5,
    )
    held = [(one["held"], one["reason"]) for one in decisions if "held" in one]
    assert held[:2] == [("w00", "hold"), ("w00", "reclaim")]
    assert len(said(decisions, "revoked")) == 16


def ledgers(*commands: dict[str, Any]) -> dict[str, Any]:
    """What company a claims and is granted in the end."""
    found: dict[str, Any] = run_scenario({"edition": 2, "commands": list(commands)})["final"]["companies"]["a"]
    return found


def ended(executor: str, *, done: bool) -> dict[str, Any]:
    return {"op": "executor_ended", "executor": executor, "done": done, "reason": "exited" if done else "killed"}


def test_what_is_done_comes_back_only_within_a_hard_quota_and_limits() -> None:
    """Semantics S6, C4, N2, L1: of 16 cores x holds 4 and 12 are done; y entered with these 12 meanwhile."""
    most = {"op": "limit", "scope": "user", "company": "a", "user": "*", "name": "max_cores", "value": 16}
    for bought, limit in (({"cores": 16, "memory_mb": 65536}, ()), ({}, (most,))):
        begin = (
            company("a", **bought),
            *(worker(name, 16) for name in ("w1", "w2")),
            *limit,
            submit("x", cores=16, tasks=16, **fixed(4)),
            *(ended(f"x.{number}", done=True) for number in range(3)),
            submit("y", cores=12, **fixed(4)),
        )
        for back in (ended("x.3", done=False), {"op": "scale", "app": "x", "executors": 4}):
            final = ledgers(*begin, back)
            assert final["claim"] == final["granted"] == [16, 4096]
        later = run(*begin, {"op": "scale", "app": "x", "executors": 4}, {"op": "finish", "app": "y"})
        assert said(later, "granted")[-3:] == ["x", "x", "x"]
        assert said(run(*begin, {"op": "finish", "app": "y"}, ended("x.3", done=False)), "granted")[-4:] == ["x"] * 4


def test_what_is_done_comes_back_to_each_user_within_its_own_limit() -> None:
    """Semantics S6, N2: a worker is lost on which apps of two users have executors."""
    most = {"op": "limit", "scope": "user", "company": "a", "user": "*", "name": "max_cores", "value": 16}
    final = ledgers(
        company("a"),
        worker("w1", 16),
        worker("w2", 16),
        most,
        submit("p", cores=16, **fixed(4)),
        {**submit("q", cores=16, **fixed(4)), "user": "bob"},
        ended("p.0", done=True),
        ended("q.0", done=True),
        worker("w3", 32),
        {"op": "worker_lost", "worker": "w1"},
    )
    assert final["claim"] == final["granted"] == [32, 8192]


def test_apps_that_lose_a_worker_regard_what_the_others_are_owed_again() -> None:
    """Semantics S6, C4: eight cores are free of the quota, and twelve are done in each of two apps."""
    final = ledgers(
        company("a", cores=32, memory_mb=65536),
        worker("w1", 32),
        *(submit(name, cores=16, **fixed(4)) for name in ("p", "q")),
        *(ended(f"{name}.{number}", done=True) for name in ("p", "q") for number in range(3)),
        worker("w2", 48),
        submit("r", cores=16, **fixed(4)),
        {"op": "worker_lost", "worker": "w1"},
    )
    assert final["claim"] == final["granted"] == [32, 8192]


def test_a_backlog_brings_back_only_what_a_hard_quota_lets_the_company_claim() -> None:
    """Semantics S6, L6, C4: e holds 4 cores of 16 and 12 are done, with which y entered; its tasks call for 8."""
    final = ledgers(
        company("a", cores=16, memory_mb=65536),
        *(worker(name, 16) for name in ("w1", "w2")),
        submit("e", elastic=[1, 4], tasks=100),
        {"op": "executor_running", "executor": "e.0", "at": 60_000},
        *(ended(f"e.{number}", done=True) for number in range(3)),
        submit("y", cores=12, **fixed(4)),
        {"op": "backlog", "executor": "e.3", "waiting": 0, "running": 8, "idle": False},
    )
    assert final["claim"][0] == final["granted"][0] == 16


def test_an_elastic_app_grows_back_to_its_backlog_once_its_hard_quota_has_room() -> None:
    """Semantics S6, L6, C4: its tasks called for four executors all the time."""
    begin = (
        company("a", cores=16, memory_mb=65536),
        *(worker(name, 16) for name in ("w1", "w2")),
        submit("e", elastic=[1, 4], tasks=40, **fixed(4)),
        {"op": "backlog", "executor": "e.0", "waiting": 30, "running": 4, "idle": False},
        {"op": "settings", "at": 10_000},
        *(ended(f"e.{number}", done=True) for number in (2, 3)),
        submit("q", cores=8, **fixed(4)),
        ended("e.1", done=False),
    )
    while_full = ledgers(*begin, {"op": "settings", "at": 20_000})
    assert while_full["claim"] == while_full["granted"] == [16, 4096]
    room = ({"op": "finish", "app": "q", "at": 30_000}, {"op": "settings", "at": 40_000})
    decisions = run(*begin, *room)
    assert said(decisions, "admitted") == ["e", "q"]
    assert said(decisions, "granted")[-2:] == ["e", "e"]
    assert ledgers(*begin, *room)["granted"] == [16, 4096]


def test_an_end_on_a_draining_worker_counts_before_what_is_done_comes_back() -> None:
    """Semantics S6, A8, N2: it was no claim there, and is owed on other workers."""
    most = {"op": "limit", "scope": "user", "company": "a", "user": "*", "name": "max_cores", "value": 12}
    final = ledgers(
        company("a"),
        worker("w1", 4),
        worker("w2", 32),
        submit("p", cores=16, **fixed(4)),
        ended("p.0", done=True),
        most,
        {"op": "drain", "worker": "w1"},
        ended("p.3", done=False),
    )
    assert final["claim"] == final["granted"] == [12, 3072]


def test_who_enters_on_what_was_lent_brings_nothing_back_that_is_done() -> None:
    """Semantics S6, E7: no task returned, and no demand was stated."""
    decisions = run(
        company("a", cores=32, memory_mb=262_144),
        *(worker(name, 32) for name in ("w1", "w2")),
        submit("e1", elastic=[1, 4], tasks=1000),
        submit("e2", elastic=[2, 4], tasks=1000),
        {"op": "executor_running", "executor": "e2.0", "at": 60_000},
        *(ended(f"e2.{number}", done=True) for number in range(3)),
        {**submit("p", cores=16, **fixed(4)), "user": "bob"},
    )
    assert said(decisions, "admitted") == ["e1", "e2", "p"]
    assert said(decisions, "granted")[-4:] == ["p"] * 4


def test_a_demand_is_nothing_at_first_where_all_is_done_and_nothing_may_be_claimed() -> None:
    """Semantics S6, L1: the request is larger than one executor, which was the limit."""
    decisions = run(
        company("a", cores=16, memory_mb=65536),
        worker("w1", 32),
        submit("x", cores=16, executor_limit=1),
        ended("x.0", done=True),
        submit("y", cores=16, **fixed(4)),
        {"op": "scale", "app": "x", "executors": 8},
        ended("y.0", done=True),
    )
    assert [one["cores"] for one in decisions if "requested" in one] == [0, 4]
    assert said(decisions, "granted")[-1] == "x"


def test_no_room_is_held_where_drivers_leave_too_little() -> None:
    """Semantics P8, E2: drivers stay, so nothing that ends there would make the room."""
    driven: dict[str, Any] = {"driver": True, "cores": 0, "tasks": 0}
    decisions = run(
        company("a"),
        company("b"),
        *(worker(name, 8) for name in ("w1", "w2")),
        submit("d1", **driven),
        submit("x", cores=14, **fixed(1)),
        submit("y", of="b", cores=8, **fixed(8)),
        {"op": "executor_running", "executor": "x.0", "at": 20_000},
        {"op": "executor_ended", "executor": "x.13", "done": True},
        hold_patience_s=5,
        placement="pack",
        reclaim="none",
        max_driver_share="1/1",
    )
    (driver,) = [one["worker"] for one in decisions if "driver" in one]
    assert said(decisions, "held") == [{"w1": "w2", "w2": "w1"}[driver]]


def test_an_app_that_cannot_enter_stops_no_elastic_app_of_its_company() -> None:
    """Semantics L6: neither one beyond its company's part alone, nor one that no worker hosts, nor one at a limit."""
    limit = {"op": "limit", "scope": "user", "company": "a", "user": "bob", "name": "max_running_apps", "value": 0}
    for before, about in (
        ([], {"cores": 32}),
        ([{"op": "settings", "never_fits": "wait"}], {"cores": 64, **fixed(64)}),
        ([limit], {"cores": 4}),
    ):
        decisions = run(
            company("a", part="1/2"),
            company("b"),
            worker("w1", 32),
            *before,
            submit("e", elastic=[1, 4], tasks=100),
            {**submit("x", **about), "user": "bob"},
            {"op": "executor_running", "executor": "e.0", "at": 10_000},
        )
        assert said(decisions, "admitted") == ["e"]
        assert said(decisions, "granted") == ["e"] * 4


def test_a_company_within_its_part_may_lose_what_a_further_kind_makes_up_for() -> None:
    """Semantics E2, C8, R4: a holds the GPU that it is assured, and no more than its part of anything."""
    decisions = run(
        company("a"),
        company("b"),
        worker("w1", 16, resources={"gpu": ["0", "1"]}),
        submit("g", cores=1, executor_resources={"gpu": 1}, **fixed(1)),
        submit("x", cores=4, **fixed(4, 31_744)),
        submit("b1", of="b", cores=4, **fixed(4, 40_000)),
    )
    assert [(one["revoked"], one["rule"]) for one in decisions if "revoked" in one] == [("x.0", "E2")]


def test_a_loss_that_is_withdrawn_raises_no_request_beyond_a_hard_quota() -> None:
    """Semantics E7, C4: e holds 3 executors of 4 cores when p has got its own elsewhere, and its tasks need more."""
    scenario = [
        *(worker(name, 8) for name in ("w1", "w2")),
        company("a", cores=16, memory_mb=32_768),
        submit("e", elastic=[1, 6], tasks=40, **fixed(4)),
        {"op": "backlog", "executor": "e.0", "waiting": 30, "running": 4, "idle": False},
        {"op": "settings", "at": 10_000},
        {**submit("p", cores=4, **fixed(4)), "user": "bob"},
        {"op": "executor_ended", "executor": "e.0", "reason": "failed", "exit_code": 1},
        worker("w3", 4, at=20_000),
    ]
    outcome = run_scenario({"edition": 2, "commands": scenario})
    assert said(outcome["decisions"], "withdrawn") == ["e.3"]
    assert outcome["final"]["companies"]["a"]["claim"] == outcome["final"]["companies"]["a"]["granted"] == [16, 4096]


def test_a_loss_that_is_withdrawn_raises_no_request_beyond_what_tasks_need() -> None:
    """Semantics E7, L6: e needs one executor by now, and y gets room for which e's second was to leave."""
    decisions = run(
        company("a"),
        worker("w1", 12),
        submit("e", elastic=[1, 2], tasks=8),
        {**submit("x", cores=4, **fixed(4)), "at": 5000},
        {"op": "backlog", "executor": "e.1", "waiting": 1, "running": 0, "idle": False, "at": 6000},
        {**submit("y", cores=4, **fixed(4)), "user": "bob", "at": 7000},
        {"op": "finish", "app": "x", "at": 8000},
        {"op": "settings", "at": 20_000},
    )
    assert said(decisions, "withdrawn") == ["e.1"]
    assert [one["cores"] for one in decisions if one.get("requested") == "e"] == [8, 4]


def test_an_app_is_held_back_for_as_long_beside_one_whose_reservation_lapsed() -> None:
    """Semantics C7, Z4: what was asked meanwhile, and changes nothing, decides nothing either."""
    begin = (
        company("a", cores=4, memory_mb=262_144, borrow=True),
        worker("w1", 8),
        submit("a4", cores=12),
        {**submit("a6", cores=4), "user": "bob"},
        {"op": "kill", "app": "a4"},
        submit("a10", tasks=10, cores=8, cores_per_task=2),
        {**submit("a12", cores=4), "at": 1_203_363},
    )
    room = {**worker("w3", 3), "at": 1_551_880}
    for between in ((), ({"op": "settings", "at": 1_300_000},)):
        assert said(run(*begin, *between, room, quota_patience_s=5), "admitted") == ["a4", "a6"]


def test_of_what_apps_of_a_company_are_lent_an_idle_executor_leaves_first() -> None:
    """Semantics E7, E4: e and f are both one beyond their least, and f was admitted last."""
    decisions = run(
        company("a"),
        worker("w1", 8),
        submit("e", elastic=[0, 1], tasks=8),
        {"op": "backlog", "executor": "e.0", "waiting": 0, "running": 0, "idle": True},
        submit("f", elastic=[0, 1], tasks=8),
        {**submit("x", cores=4, **fixed(4)), "user": "bob"},
    )
    assert [(one["revoked"], one["rule"]) for one in decisions if "revoked" in one] == [("e.0", "E7")]


def test_an_elastic_app_takes_what_another_one_alike_could_not() -> None:
    """Semantics E7: both entered on what l was lent; x alone has more than its least, which y may have."""
    decisions = run(
        company("a"),
        worker("w0", 16),
        submit("l", elastic=[1, 4], tasks=100),
        {"op": "settings", "at": 10_000},
        submit("x", elastic=[1, 3], tasks=100),
        submit("y", elastic=[2, 3], tasks=100),
        *({"op": "executor_ended", "executor": f"l.{number}", "reason": "killed"} for number in (3, 2, 1)),
        {"op": "kill", "app": "l"},
        {"op": "executor_ended", "executor": "l.0", "reason": "killed"},
        worker("w1", 8, at=20_000),
        {"op": "settings", "at": 40_000},
        {"op": "worker_lost", "worker": "w1"},
    )
    lost = [(one["revoked"], one["claimant"]) for one in decisions if "revoked" in one]
    assert lost == [("l.3", "x"), ("l.2", "y"), ("l.1", "y"), ("x.1", "y")]
