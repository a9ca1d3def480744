"""The worked examples of the policies, as scenarios and as the docstrings have them."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.model.quota import Quota
from scheduler.model.resources import Resources
from scheduler.rules.admission.company import COMPANY_POLICIES, Tenant
from scheduler.rules.admission.policy import Basis
from scheduler.rules.admission.user import USER_POLICIES, Contender
from scheduler.rules.entities.ledger import Balance, Usage
from scheduler.rules.simulate import run_scenario

MINUTE = 60_000
HOUR = 60 * MINUTE
QUOTA = Quota(Resources(64, 64 * 2048))
dominant_share, pay_as_you_go = (COMPANY_POLICIES[name].rank for name in ("dominant-share", "pay-as-you-go"))
longest_wait, least_occupied, balanced = (
    USER_POLICIES[name].rank for name in ("longest-wait", "least-occupied", "balanced")
)


def cores(number: int) -> Balance:
    """What is held or asked for, with 512 MiB a core."""
    return Balance(Resources(number, number * 512), Resources(number, number * 512))


def test_the_company_with_the_lowest_share_goes_first() -> None:
    """Semantics C3."""
    tenants = [
        Tenant(name, cores(held), Usage(), Quota(Resources(bought, bought * 2048)))
        for name, held, bought in (("one", 128, 512), ("two", 64, 128), ("three", 128, 1024))
    ]
    keys = [dominant_share(tenant, Basis()) for tenant in tenants]
    assert [str(key[1]) for key in keys] == ["1/4", "1/2", "1/8"]
    assert [key[-1] for key in sorted(keys)] == ["three", "one", "two"]


def test_the_company_that_used_least_of_what_it_bought_goes_first() -> None:
    """Semantics C5: the example of `pay_as_you_go`, midnight being the epoch."""
    a, b = Tenant("A", cores(32), Usage(), QUOTA), Tenant("B", cores(0), Usage(), QUOTA)

    def first(at: int) -> str:
        basis = Basis(half_life_ms=HOUR, at=at)
        return str(min(pay_as_you_go(a, basis), pay_as_you_go(b, basis))[-1])

    for tenant, held in ((a, cores(0)), (b, cores(16))):
        tenant.usage.update(30 * MINUTE, tenant.balance, HOUR)
        tenant.balance = held

    def used(at: int) -> list[int]:
        return [tenant.usage.until(at, tenant.balance, HOUR).cores for tenant in (a, b)]

    assert used(45 * MINUTE) == [57_600_000, 14_400_000]
    assert first(45 * MINUTE) == "B"
    assert used(HOUR - 1) == [57_600_000, 28_800_000 - 16]
    assert used(HOUR) == [28_800_000, 14_400_000]
    assert used(75 * MINUTE) == [28_800_000, 28_800_000]
    assert first(75 * MINUTE - 1) == "B"
    assert first(75 * MINUTE + 1) == "A"


def test_users_take_turns_by_how_long_ago_they_were_selected() -> None:
    """Semantics U1: the example of `longest_wait`."""
    ann, bob = Contender("ann", cores(0), 12, oldest=19), Contender("bob", cores(0), 9, oldest=18)
    cid, dan = Contender("cid", cores(0), oldest=21), Contender("dan", cores(0), oldest=20)
    keys = [longest_wait(contender, QUOTA, Basis()) for contender in (ann, bob, cid, dan)]
    assert [key[-1] for key in sorted(keys)] == ["dan", "cid", "bob", "ann"]


def test_the_user_who_occupies_least_goes_first() -> None:
    """Semantics U3: the example of `least_occupied`."""
    gib = 1024
    ann, bob = Contender("ann", Balance(Resources(16, 16 * gib))), Contender("bob", Balance(Resources(8, 48 * gib)))
    quota = Quota(Resources(64, 128 * gib))
    keys = [least_occupied(contender, quota, Basis()) for contender in (ann, bob)]
    assert [str(key[1]) for key in keys] == ["1/4", "3/8"]
    ann.balance = Balance(Resources(32, 32 * gib))
    after = least_occupied(ann, quota, Basis())
    assert str(after[1]) == "1/2"
    assert keys[0] < keys[1] < after


def test_of_users_who_occupy_alike_the_one_selected_longest_ago_goes_first() -> None:
    """Semantics U3, U1."""
    ann, bob = Contender("ann", cores(8), 12), Contender("bob", cores(8), 9)
    assert least_occupied(bob, QUOTA, Basis()) < least_occupied(ann, QUOTA, Basis())


def test_the_user_who_would_occupy_least_for_the_time_waited_goes_first() -> None:
    """Semantics U4: the example of `balanced`."""
    basis = Basis(at=HOUR)
    ann = Contender("ann", cores(16), 12, HOUR - 299_999, request=Resources(16, 16 * 512))
    bob = Contender("bob", cores(0), 14, HOUR - 59_999, request=Resources(8, 8 * 512))
    keys = [balanced(contender, QUOTA, basis) for contender in (ann, bob)]
    assert [str(key[1]) for key in keys] == ["1/600000", "1/480000"]
    assert keys[0] < keys[1]
    ann.request = Resources(32, 32 * 512)
    more = balanced(ann, QUOTA, basis)
    assert str(more[1]) == "1/400000"
    assert keys[1] < more


def test_a_user_never_selected_has_waited_since_the_oldest_app_was_submitted() -> None:
    """Semantics U4."""
    new = Contender("new", cores(0), oldest=7, oldest_at=HOUR - 99, request=Resources(64, 64 * 512))
    assert str(balanced(new, QUOTA, Basis(at=HOUR))[1]) == "1/100"


@pytest.mark.parametrize("steps", [[], [1], [999, 1000, 1001], [2500], [1, 2, 3, 4000, 4500]])
def test_usage_is_the_same_in_however_many_steps_it_is_brought_up_to_date(steps: list[int]) -> None:
    """Semantics C5: half-life 1 s, 3 cores and 7 MiB from 0.5 s on; worked out by hand for 5.25 s."""
    held = Balance(granted=Resources(3, 7))
    usage = Usage(at=500)
    for at in steps:
        if at > 500:
            usage.update(at, held, 1000)
    expected_cores, expected_mb = 1500 // 2, 3500 // 2
    for _ in range(4):
        expected_cores, expected_mb = (expected_cores + 3000) // 2, (expected_mb + 7000) // 2
    assert usage.until(5250, held, 1000) == Resources(expected_cores + 750, expected_mb + 1750)


def test_usage_of_an_age_at_the_shortest_half_life_is_worked_out_at_once() -> None:
    """What is held for ever settles at one half-life's worth, what is held no more at nothing."""
    usage, held = Usage(Resources(10**15), at=0), Balance(granted=Resources(4))
    assert usage.until(2 * 10**12, held, 1000) == Resources(4000, 0)
    assert usage.until(2 * 10**12, Balance(), 1000) == Resources(0, 0)


def company(name: str, quota: int | None = None, **more: object) -> dict[str, Any]:
    amounts = {} if quota is None else {"cores": quota, "memory_mb": quota * 512}
    return {"op": "company", "company": name, **amounts, **more}


def submit(app: str, wanted: int, *, company: str = "a", user: str = "ann", **more: object) -> dict[str, Any]:
    return {
        "op": "submit", "app": app, "company": company, "user": user, "cores": wanted, "memory_per_task_mb": 512, **more
    }  # fmt: skip


def finish(app: str, **more: object) -> dict[str, Any]:
    return {"op": "finish", "app": app, **more}


def offer(name: str, cores: int) -> dict[str, Any]:
    return {"op": "worker", "worker": name, "cores": cores, "memory_mb": 65536}


def admitted(*commands: dict[str, Any], **settings: object) -> list[str]:
    decisions = run_scenario({"settings": settings, "commands": list(commands)})["decisions"]
    return [decision["admitted"] for decision in decisions if "admitted" in decision]


def placed(*commands: dict[str, Any], **settings: object) -> list[tuple[str, int]]:
    decisions = run_scenario({"settings": settings, "commands": list(commands)})["decisions"]
    return [(decision["granted"], decision["cores"]) for decision in decisions if "granted" in decision]


def test_past_usage_counts_against_a_company_that_holds_nothing_now() -> None:
    """Semantics C5: by dominant share a, which occupies nothing, goes before b."""
    history = [
        company("a", 16),
        company("b", 16),
        offer("w1", 16),
        submit("a1", 12, at=1000),
        finish("a1", at=61_000),
        submit("b1", 4, company="b", user="bob", at=61_000),
        submit("c0", 12, company="b", user="bob", at=61_000),
        {
            "op": "turn",
            "at": 62_000,
            "commands": [finish("c0"), submit("a2", 4), submit("b2", 4, company="b", user="bob")],
        },
    ]
    assert admitted(*history, company_policy="pay-as-you-go")[-2:] == ["b2", "a2"]
    assert admitted(*history)[-2:] == ["a2", "b2"]


def test_what_was_used_fades_with_every_half_life() -> None:
    """Semantics C5: a used 12 cores for a minute long ago, b 4 cores for half a minute just now."""
    history = [
        company("a", 16),
        company("b", 16),
        offer("w1", 16),
        submit("a1", 12, at=0),
        finish("a1", at=60_000),
        submit("b1", 16, company="b", user="bob", at=600_000),
        {
            "op": "turn",
            "at": 630_000,
            "commands": [finish("b1"), submit("b2", 8, company="b", user="bob"), submit("a2", 8)],
        },
    ]
    assert admitted(*history, company_policy="pay-as-you-go", half_life_s=60)[-2:] == ["a2", "b2"]
    assert admitted(*history, company_policy="pay-as-you-go", half_life_s=6000)[-2:] == ["b2", "a2"]


SMALL_AND_LARGE = [
    company("a", 16),
    company("b", 16),
    offer("w1", 64),
    submit("s1", 8, at=0),
    submit("s2", 8, at=1_000),
    submit("large", 16, user="lea", at=2_000),
]
"""The large app would fill its company's quota, and small ones never leave it empty."""


def test_a_company_that_borrows_uses_the_whole_cluster_while_it_is_alone() -> None:
    """Semantics C6."""
    work = [company("a", borrow=True), company("b"), offer("w1", 64), *(submit(f"a{n}", 16) for n in range(4))]
    assert admitted(*work) == ["a0", "a1", "a2", "a3"]
    assert sum(cores for _, cores in placed(*work)) == 64
    assert admitted({**work[0], "borrow": False}, *work[1:]) == ["a0", "a1"]


def test_nobody_borrows_while_another_company_takes_part() -> None:
    """Semantics C6, C1: together they arrive, and each gets its half."""
    together = [submit(f"{name}{n}", 16, company=name, user=name) for n in range(4) for name in ("a", "b")]
    assert sorted(
        admitted(
            company("a", borrow=True), company("b", borrow=True), offer("w1", 64), {"op": "turn", "commands": together}
        )
    ) == ["a0", "a1", "b0", "b1"]


def test_of_two_that_borrow_the_one_with_the_lower_share_goes_first() -> None:
    """Semantics C6, C3: both are at their quota, and a third company leaves room."""
    companies = [company(name, quota, borrow=True) for name, quota in (("a", 8), ("b", 16))]
    apps = [submit("a1", 8), submit("b1", 16, company="b", user="bob"), submit("c1", 8, company="c", user="cid")]
    more = [submit("a2", 8), submit("b2", 8, company="b", user="bob")]
    assert admitted(*companies, company("c", 64), offer("w1", 64), *apps, {"op": "turn", "commands": more})[3:] == [
        "a2",
        "b2",
    ]


def test_a_quota_in_parts_of_the_cluster_moves_with_it() -> None:
    """Semantics C2."""
    history = [company("a", part="25%"), offer("w1", 32), submit("a1", 8), submit("a2", 8)]
    assert admitted(*history) == ["a1"]
    assert admitted(*history, offer("w2", 32)) == ["a1", "a2"]
