"""Limits of the cluster, of companies and of their users (semantics N1, N2)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scheduler.model.commands import (
    HoldApp,
    KillApp,
    RegisterCompany,
    RegisterKind,
    ReleaseApp,
    RemoveCompany,
    ScaleApp,
    SetLimit,
    SubmitApp,
)
from scheduler.model.errors import InvalidCommand, InvariantViolated, LimitExceeded, UnknownCompany
from scheduler.model.events import LimitSet
from scheduler.model.resources import Resources
from scheduler.rules.admission.limits import Limits
from scheduler.rules.state.records import lines, restored
from scheduler.rules.view.views import look
from tests.property import given
from tests.property.given import Cluster, admitted, shared, submission
from witness.pending_reasons import waits_for


def limited(name: str, value: int | None, company: str | None = None, user: str | None = None) -> SetLimit:
    """The command that sets a limit."""
    scope = "cluster" if company is None else "company" if user is None else "user"
    return SetLimit(scope=scope, name=name, value=value, company=company, user=user)  # type: ignore[arg-type]


def fixed(app: str, cores: int = 4, *, user: str = "ann", company: str = "acme", **about: Any) -> SubmitApp:
    """An app of executors of 4 cores and 1 GiB."""
    size = {"executor_cores": 4, "executor_memory_mb": 1024, "memory_per_task_mb": None}
    return replace(submission(app, cores, company=company, user=user), **size, **about)


def limits(*values: tuple[str, str, str, int]) -> Limits:
    """Limits of (company, user, name, value)."""
    made = Limits()
    for company, user, name, value in values:
        made.set(LimitSet(company=company, user=user, name=name, value=value))
    return made


def test_a_companys_own_limit_takes_the_place_of_the_clusters() -> None:
    """Semantics N1."""
    made = limits(("", "", "max_cores", 64), ("acme", "", "max_cores", 100))
    assert [made.of((name, ""), "max_cores") for name in ("acme", "globex")] == [100, 64]
    assert made.of(("globex", ""), "max_tasks") is None
    made.set(LimitSet(company="acme", name="max_cores", value=None))
    assert made.of(("acme", ""), "max_cores") == 64


def test_a_named_users_limit_takes_the_place_of_that_of_every_user() -> None:
    """Semantics N1: the cluster's is no user's."""
    made = limits(("", "", "max_cores", 64), ("acme", "*", "max_cores", 8), ("acme", "ann", "max_cores", 16))
    assert [made.of(user, "max_cores") for user in (("acme", "ann"), ("acme", "bob"), ("globex", "ann"))] == [
        16,
        8,
        None,
    ]


def test_a_limit_is_an_event_unless_it_is_so_already() -> None:
    cluster = shared(w1=16)
    assert cluster.turn(limited("max_cores", 8, "acme")) == [LimitSet(name="max_cores", value=8, company="acme")]
    assert cluster.turn(limited("max_cores", 8, "acme")) == []
    assert cluster.turn(limited("max_tasks", None)) == []
    cluster.turn(limited("max_cores", None, "acme"))
    assert cluster.state.limits.values == {}


@pytest.mark.parametrize(
    ("command", "error", "why"),
    [
        (limited("max_core", 1), InvalidCommand, "no limit is named 'max_core'; the limits are max_pending_apps, "),
        (limited("max_cores", -1), InvalidCommand, "limit max_cores must be between 0 and "),
        (limited("submit_per_minute", 0), InvalidCommand, "limit submit_per_minute must be between 1 and "),
        (limited("max_cores", 1, "hooli"), UnknownCompany, "no company 'hooli' is registered"),
        (limited("max_cores", 1, "acme", " ann"), InvalidCommand, "the user must not start or end with a space"),
        (SetLimit(scope="user", name="max_cores", company="acme"), InvalidCommand, "one of a user the company and "),
        (
            SetLimit(scope="cluster", name="max_cores", user="ann"),
            InvalidCommand,
            "a limit of the cluster names ",
        ),
    ],
)
def test_a_limit_that_cannot_be_is_refused(command: SetLimit, error: type[Exception], why: str) -> None:
    cluster = shared(w1=16)
    with pytest.raises(error, match=why):
        cluster.turn(command)
    assert cluster.state.limits.values == {}


@pytest.mark.parametrize(
    "exceeded",
    [
        ("max_tasks", 5, fixed("a1", tasks=6), "is 5, and the app has 6 tasks; split it"),
        ("max_app_cores", 8, fixed("a1", 12), "is 8, and the app requests 12 cores; request less"),
        ("max_cores", 8, fixed("a1", 12), "is 8, and the app alone requests 12 cores; request less"),
        ("max_memory_mb", 2047, fixed("a1", 8), "is 2047, and the app alone requests 2048 MiB; request less"),
        ("max_pending_apps", 0, fixed("a1"), "is 0, and 0 apps are pending"),
    ],
)
@pytest.mark.parametrize(
    ("user", "holder"), [("ann", "user ann in acme"), ("*", "user ann in acme"), (None, "company acme")]
)
def test_what_a_submission_exceeds_is_refused_with_both_numbers(
    exceeded: tuple[str, int, SubmitApp, str], user: str | None, holder: str
) -> None:
    """Semantics N2."""
    limit, value, app, why = exceeded
    cluster = shared(w1=16)
    cluster.turn(limited(limit, value, "acme", user))
    with pytest.raises(LimitExceeded, match=f"limit {limit} of {holder} {why}"):
        cluster.turn(app)
    cluster.turn(limited(limit, None, "acme", user))
    assert admitted(cluster.turn(app)) == ["a1"]


def test_the_limit_of_the_cluster_is_each_companys_own() -> None:
    """Semantics N1: it is no limit of all companies together."""
    cluster = shared(w1=16)
    cluster.company("globex")
    cluster.turn(limited("max_cores", 8))
    assert admitted(cluster.turn(fixed("a1", 8), fixed("g1", 8, company="globex"))) == ["a1", "g1"]
    with pytest.raises(LimitExceeded, match="limit max_cores of company globex is 8"):
        cluster.turn(fixed("g2", 12, company="globex"))


def test_pending_apps_are_counted_in_their_turn_and_until_they_leave() -> None:
    """Semantics N2."""
    cluster = shared()
    cluster.turn(limited("max_pending_apps", 2, "acme"))
    with pytest.raises(LimitExceeded, match="limit max_pending_apps of company acme is 2, and 2 apps are pending"):
        cluster.turn(fixed("a1"), fixed("a2", user="bob"), fixed("a3"))
    cluster.turn(KillApp(app="a1"))
    cluster.turn(fixed("a4"))
    cluster.worker("w1", 16)
    cluster.turn(fixed("a5"))


def test_submissions_take_tokens_that_come_at_whole_seconds() -> None:
    """Semantics N2: 90 a minute are one a second and another each even one; a full bucket holds 90."""
    made = limits(("acme", "", "submit_per_minute", 90))
    assert made.tokens(("acme", ""), 90, 5_000) == 90
    for _ in range(90):
        made.take("acme", "ann", (), 5_999)
    assert [made.tokens(("acme", ""), 90, at) for at in (5_999, 6_000, 6_999, 7_000, 8_000)] == [0, 2, 2, 3, 5]
    assert made.tokens(("acme", ""), 90, 500_000) == 90


def test_a_submission_without_a_token_is_refused_and_takes_none() -> None:
    """Semantics N2: neither does one that is refused for another reason."""
    cluster = shared(w1=16)
    cluster.turn(limited("submit_per_minute", 2, "acme", "*"))
    with pytest.raises(InvalidCommand):
        cluster.turn(replace(fixed("a0"), tasks=0))
    cluster.turn(fixed("a1"), fixed("a2"))
    why = r"submit_per_minute of user ann in acme is 2, and no submission is left .* the next is possible in 2[0-9] s"
    with pytest.raises(LimitExceeded, match=why):
        cluster.turn(fixed("a3"))
    cluster.turn(fixed("b1", user="bob"))
    again = restored(lines(cluster.state))
    assert again.digest() == cluster.state.digest()
    cluster.turn(fixed("a4"), after_s=30)
    cluster.turn(limited("submit_per_minute", 1, "acme", "*"))
    cluster.turn(fixed("a5"))


def test_a_user_is_passed_over_while_a_limit_is_used_up_and_others_are_not() -> None:
    """Semantics N2."""
    cluster = shared(w1=16)
    cluster.turn(limited("max_cores", 8, "acme", "*"))
    assert admitted(cluster.turn(fixed("a1", 8), fixed("a2"), fixed("b1", user="bob"))) == ["a1", "b1"]
    wait = waits_for(cluster.state, cluster.state.apps["a2"])
    assert wait is not None
    told = wait.told()
    assert (told.cause, told.rule) == ("beyond-limit", "N2")
    assert told.text == "limit max_cores of user ann in acme: claims 8 of 8, 4 asked"
    assert told.facts["present"] == 8
    assert admitted(cluster.ended("a1.0", done=True)) == ["a2"]


def test_a_user_enters_again_once_the_limit_is_not_used_up_any_more() -> None:
    """Semantics N2: the order of users was settled without her meanwhile, and she is not the only one who waits."""
    cluster = shared(w1=16)
    cluster.turn(limited("max_running_apps", 1, "acme", "*"))
    assert admitted(cluster.turn(fixed("a1"), fixed("a2"))) == ["a1"]
    assert admitted(cluster.turn(fixed("b1", user="bob"), fixed("b2", user="bob"))) == ["b1"]
    assert admitted(cluster.turn(KillApp(app="a1"))) == ["a2"]


def test_a_raised_limit_lets_apps_in_and_a_lowered_one_stops_nothing() -> None:
    """Semantics N2, Z3."""
    cluster = shared(w1=16)
    cluster.turn(limited("max_cores", 4, "acme"))
    assert admitted(cluster.turn(fixed("a1"), fixed("a2"))) == ["a1"]
    assert admitted(cluster.turn(limited("max_cores", 8, "acme"))) == ["a2"]
    cluster.turn(limited("max_cores", 0))
    assert cluster.turn(limited("max_cores", 1, "acme")) == [LimitSet(name="max_cores", value=1, company="acme")]
    assert cluster.state.balance.granted == Resources(8, 2048)


def test_an_app_that_exceeds_a_lowered_limit_alone_is_no_head() -> None:
    """Semantics N2: others of its user enter."""
    cluster = shared()
    cluster.turn(fixed("a1", 12), fixed("a2"))
    cluster.turn(limited("max_cores", 8, "acme", "ann"))
    assert admitted(cluster.worker("w1", 16)) == ["a2"]
    wait = waits_for(cluster.state, cluster.state.apps["a1"])
    assert wait is not None
    assert wait.cause == "beyond-limit"


def test_a_limit_stops_a_demand_from_growing() -> None:
    """Semantics N2, L1: it goes on when there is room within the limit."""
    cluster = shared(w1=32)
    cluster.turn(limited("max_cores", 12, "acme", "ann"))
    cluster.turn(fixed("a1", 4), fixed("a2", 4))
    cluster.turn(ScaleApp(app="a1", executors=3))
    cluster.turn(replace(submission("e1", None), elastic=(1, 8), executor_cores=4, memory_per_task_mb=None, tasks=64))
    assert cluster.state.claims.standing("acme", "ann").claimed.cores <= 12


def test_an_elastic_app_grows_up_to_the_limits_only() -> None:
    """Semantics N2, L6."""
    cluster = shared(w1=32)
    cluster.turn(limited("max_app_cores", 8), limited("max_cores", 12, "acme"))
    elastic = {"elastic": (1, 8), "executor_cores": 4, "executor_memory_mb": 1024, "memory_per_task_mb": None}
    cluster.turn(replace(submission("e1", None), **elastic, tasks=64))
    for _ in range(6):
        cluster.turn(after_s=2)
    assert cluster.state.apps["e1"].requested.cores == 8
    cluster.turn(limited("max_app_cores", None))
    for _ in range(6):
        cluster.turn(after_s=2)
    assert cluster.state.apps["e1"].requested.cores == 12


def test_a_pending_app_asks_for_no_more_than_the_limit_of_one_app() -> None:
    """Semantics N2, L1: neither by more executors nor by larger ones; the rest is a wish."""
    cluster = shared(w1=16, w2=16)
    cluster.turn(limited("max_app_cores", 16))
    program: dict[str, Any] = {
        "executor_program": True,
        "executor_cores": 2,
        "executor_memory_mb": 1024,
        "executor_limit": 3,
    }
    cluster.turn(fixed("a1", hold=True))
    cluster.turn(SubmitApp(app="p1", company="acme", user="ann", command=("true",), hold=True, **program))
    cluster.turn(ScaleApp(app="a1", executors=8))
    cluster.turn(ScaleApp(app="p1", executors=4, executor_cores=8))
    apps = cluster.state.apps
    assert [(apps[name].requested.cores, apps[name].demand.target) for name in ("a1", "p1")] == [(4, None), (16, 4)]
    cluster.turn(submission("c1", 4), HoldApp(app="c1"))
    cluster.turn(ScaleApp(app="c1", executors=8))
    assert (apps["c1"].requested.cores, apps["c1"].demand.target) == (16, 8)
    cluster.state = restored(lines(cluster.state))
    cluster.turn(KillApp(app="a1"), KillApp(app="p1"), ReleaseApp(app="c1"))
    assert cluster.state.apps["c1"].granted.cores == 16
    cluster.turn(limited("max_app_cores", 24))
    assert cluster.state.apps["c1"].granted.cores == 24


def test_an_app_whose_first_executor_is_beyond_the_limit_of_one_app_is_told_so() -> None:
    """Semantics N2, Z2."""
    cluster = shared(w1=16)
    cluster.turn(limited("max_app_cores", 2, "acme"))
    cluster.turn(fixed("a1", 4, executor_limit=0))
    cluster.turn(ScaleApp(app="a1", executors=1))
    wait = waits_for(cluster.state, cluster.state.apps["a1"])
    assert wait is not None
    text, facts = wait.tell()
    assert (wait.cause, wait.rule) == ("beyond-limit", "N2")
    assert text == (
        "limit max_app_cores of company acme: the app requests 0 of 2, 4 asked; that alone is more, so it starts once "
        "`fairlog limit set max_app_cores=4 --company acme` raises it"
    )
    assert (facts["present"], facts["most"], facts["asked"]) == (0, 2, 4)


def test_limits_do_not_apply_with_open_admission() -> None:
    """Semantics N1."""
    cluster = shared({"admission": "open"}, w1=16)
    cluster.turn(limited("max_cores", 4), limited("max_running_apps", 1), limited("submit_per_minute", 1))
    assert admitted(cluster.turn(fixed("a1", 8), fixed("a2"))) == ["a1", "a2"]


def test_the_limits_of_a_company_go_with_it() -> None:
    """Semantics N1."""
    cluster = shared(w1=16)
    cluster.company("globex")
    cluster.turn(limited("submit_per_minute", 1, "globex"), limited("max_cores", 4, "globex", "*"))
    cluster.turn(fixed("g1", company="globex"))
    cluster.turn(KillApp(app="g1"))
    cluster.ended("g1.0")
    cluster.turn(RemoveCompany(company="globex"))
    assert (cluster.state.limits.values, cluster.state.limits.buckets, cluster.state.limits.rated) == ({}, {}, False)
    cluster.turn(RegisterCompany(company="globex"))
    assert admitted(cluster.turn(fixed("g2", 8, company="globex"))) == ["g2"]


def test_a_state_read_back_passes_over_the_same_users() -> None:
    cluster = shared(w1=16)
    cluster.turn(limited("max_cores", 8, "acme", "*"), limited("max_running_apps", 3))
    cluster.turn(fixed("a1", 8), fixed("a2"), fixed("b1", user="bob"))
    again = restored(lines(cluster.state))
    assert again.digest() == cluster.state.digest()
    assert list(again.queue.foremost()) == list(cluster.state.queue.foremost()) == []
    assert look(again, "limits", {}) == look(cluster.state, "limits", {})


def test_the_view_tells_what_counts_against_each_limit() -> None:
    cluster = shared(w1=16)
    cluster.turn(
        limited("max_cores", 64), limited("max_pending_apps", 9, "acme"), limited("max_cores", 8, "acme", "ann")
    )
    cluster.turn(fixed("a1", 8), fixed("a2"))
    told = [(one["scope"], one["limit"], one["value"], one["present"]) for one in look(cluster.state, "limits", {})]
    assert told == [
        ("cluster", "max_cores", 64, None),
        ("company", "max_pending_apps", 9, 1),
        ("user", "max_cores", 8, 8),
    ]


def test_nobody_looks_at_limits_while_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Semantics Z6: an admission costs nothing more."""

    def looked(*_: object) -> None:
        raise AssertionError("a limit was looked at")

    cluster = shared(w1=16)
    monkeypatch.setattr(given, "check", lambda _: None)
    for name in ("of", "ceiling", "take", "tokens"):
        monkeypatch.setattr(Limits, name, looked)
    assert admitted(cluster.turn(fixed("a1", 8), fixed("a2"), fixed("b1", user="bob"))) == ["a1", "b1", "a2"]
    cluster.ended("a1.0", done=True)


def with_gpus(*limit: SetLimit) -> Cluster:
    """A cluster with four GPUs and these limits."""
    cluster = shared()
    cluster.turn(RegisterKind(kind="gpu"))
    gpus = ("0", "1", "2", "3")
    cluster.turn(replace(given.worker("w1", 16), resources={"gpu": gpus}), *limit)
    return cluster


def gpu_app(app: str, number: int, user: str = "ann") -> SubmitApp:
    """An app of one executor with so many GPUs."""
    return fixed(app, user=user, executor_resources={"gpu": number})


def test_a_limit_of_a_kind_that_is_not_registered_is_refused() -> None:
    """Semantics R1."""
    with pytest.raises(InvalidCommand, match=r"no limit is named 'max_gpus'; the limits are .*, max_gpu$"):
        with_gpus(limited("max_gpus", 1))
    with pytest.raises(InvariantViolated, match="limit 'max_fpga' cannot be 1"):
        given.fold([LimitSet(name="max_fpga", value=1)])
