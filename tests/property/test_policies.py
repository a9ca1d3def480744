"""What every policy promises, whoever submits what: nobody waits for ever, and names and scales decide nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from scheduler.model.commands import Command, ConfigureCluster, EndApp, EndedExecutor, RegisterCompany
from scheduler.model.events import AppAdmitted, ExecutorAllocated
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.admission.company import COMPANY_POLICIES
from scheduler.rules.admission.user import USER_POLICIES
from scheduler.rules.invariants import check
from scheduler.rules.share.entitlement import filling
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from tests.property.given import examples, submission, worker

EVERY_POLICY = pytest.mark.parametrize(
    "policies",
    [{"company_policy": one, "user_policy": other} for one in COMPANY_POLICIES for other in USER_POLICIES],
    ids=lambda policies: " ".join(policies.values()),
)
WORKERS, WORKER_CORES = 4, 16
ROOM = 100_000
"""A quota of so many cores, and 4 GiB for each, never binds."""


class Work(NamedTuple):
    """An app: when it comes, by whom, how many cores it wants, how long it runs (both in turns, a second each)."""

    turn: int
    company: int
    user: int
    cores: int
    lasts: int


class Run:
    """A cluster of 64 cores whose apps run their time and end; what is decided, turn by turn."""

    def __init__(self, companies: Sequence[RegisterCompany], **chosen: object) -> None:
        self.state = ClusterState()
        self.ends: dict[str, int] = {}
        self.decisions: list[list[str]] = []
        self.now = 0
        workers = [worker(f"w{number}", WORKER_CORES) for number in range(WORKERS)]
        self.turn(ConfigureCluster(settings=chosen), *companies, *workers)

    def turn(self, *commands: Command, lasts: Callable[[str], int] = lambda _: 1) -> list[str]:
        """The apps admitted in the next turn, in which those end whose time has come."""
        self.now += 1
        turn = Turn(self.state, self.now * 1000)
        for app in [name for name, end in self.ends.items() if end <= self.now]:
            del self.ends[app]
            for executor in list(self.state.apps[app].executors):
                turn.take(EndedExecutor(executor=executor, reason="exited", done=True))
            turn.take(EndApp(app=app, reason="finished"))
        for command in commands:
            turn.take(command)
        turn.settle()
        events = [entry.event for entry in turn.entries]
        admitted = [event.app for event in events if isinstance(event, AppAdmitted)]
        self.ends.update((app, self.now + lasts(app)) for app in admitted)
        placed = [
            f"{one.executor} {one.worker} {one.resources.cores}" for one in events if isinstance(one, ExecutorAllocated)
        ]
        self.decisions.append([*admitted, *placed])
        return admitted

    def work_off(
        self, works: Sequence[Work], company: Callable[[int], str], user: Callable[[int, Work], str], until: int = 300
    ) -> None:
        """Submit each work in its turn, as `w0`, `w1` …, and go on until all have ended, or `until` that time."""
        check(self.state)
        while self.now < until and (self.now < 20 or self.ends or self.state.queue.arrivals):
            due = [(number, work) for number, work in enumerate(works) if work.turn == self.now]
            self.turn(
                *(
                    submission(f"w{number}", work.cores, company=company(work.company), user=user(number, work))
                    for number, work in due
                ),
                lasts=lambda app: works[int(app[1:])].lasts,
            )
        check(self.state)


def _named(company: int) -> str:
    return f"c{company}"


def _by(_: int, work: Work) -> str:
    return f"u{work.user}"


WORKS = st.lists(
    st.builds(
        Work,
        st.integers(1, 15),
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from([4, 8, 12, 24]),
        st.integers(1, 5),
    ),
    min_size=5,
    max_size=40,
)
TIMES: st.SearchStrategy[dict[str, object]] = st.fixed_dictionaries({"half_life_s": st.sampled_from([3, 20, 3600])})


@EVERY_POLICY
@given(works=WORKS, times=TIMES, quotas=st.tuples(*[st.integers(1, 20)] * 3), factor=st.sampled_from([2, 3, 7]))
@examples(15)
def test_scaling_all_quotas_that_do_not_bind_changes_nothing(
    *,
    policies: dict[str, object],
    works: list[Work],
    times: dict[str, object],
    quotas: tuple[int, ...],
    factor: int,
) -> None:
    runs = []
    for times_larger in (1, factor):
        amounts = [quota * ROOM * times_larger for quota in quotas]
        companies = [
            RegisterCompany(company=_named(number), cores=cores, memory_mb=cores * 16)
            for number, cores in enumerate(amounts)
        ]
        runs.append(Run(companies, **policies, **times))
        runs[-1].work_off(works, _named, _by)
    assert runs[0].decisions == runs[1].decisions


QUOTAS = st.sampled_from(
    [{}, {"part": "1/2"}, {"cores": 32, "memory_mb": 65536}, {"cores": 24, "memory_mb": 65536, "borrow": True}]
)


@EVERY_POLICY
@given(works=WORKS, times=TIMES, quotas=st.tuples(*[QUOTAS] * 3), names=st.permutations(["zeta", "alpha", "mu"]))
@examples(15)
def test_other_names_for_the_companies_change_nothing_but_the_names(
    *,
    policies: dict[str, object],
    works: list[Work],
    times: dict[str, object],
    quotas: tuple[dict[str, object], ...],
    names: list[str],
) -> None:
    """Names decide only between companies never selected, so each is selected once before, and whom E4 takes from."""
    runs = []
    for called in ([_named(number) for number in range(3)], names):
        companies = [
            convert({"company": name, **quota}, RegisterCompany) for name, quota in zip(called, quotas, strict=True)
        ]
        run = Run(companies, **policies, **times)
        for name in called:
            run.turn(submission(f"first-{called.index(name)}", 4, company=name, user="first"))
        run.work_off(works, called.__getitem__, _by)
        runs.append(run)
    assert runs[0].decisions == runs[1].decisions


@EVERY_POLICY
@given(works=WORKS, times=TIMES, quotas=st.tuples(*[QUOTAS] * 3), sizes=st.tuples(*[st.sampled_from([4, 8, 24])] * 3))
@examples(15)
def test_a_user_who_goes_by_two_names_takes_nothing_from_the_other_companies(
    *,
    policies: dict[str, object],
    works: list[Work],
    times: dict[str, object],
    quotas: tuple[dict[str, object], ...],
    sizes: tuple[int, ...],
) -> None:
    """Where a company's apps are alike, its users decide only among themselves, but for ties (semantics H3)."""
    works = [work._replace(cores=sizes[work.company], lasts=FOR_EVER) for work in works]
    due = []
    for split in (False, True):
        companies = [
            convert({"company": _named(number), **quota}, RegisterCompany) for number, quota in enumerate(quotas)
        ]
        run = Run(companies, **policies, **times)

        def user(number: int, work: Work, *, split: bool = split) -> str:
            return f"u{work.user}{'-too' if split and work[1:3] == (0, 0) and number % 2 else ''}"

        run.work_off(works, _named, user, until=20)
        filled = filling(run.state)[0].companies
        due.append({name: node.used.cores for name, node in filled.items() if name != _named(0)})
    assert all(abs(due[0][name] - due[1][name]) <= SMALLEST for name in due[0])


FOR_EVER = 10_000
SMALLEST = 4
"""The cores of an executor."""


RIVALS = st.lists(st.tuples(st.sampled_from([4, 8, 12, 20]), st.integers(1, 4)), min_size=9, max_size=9)


@EVERY_POLICY
@given(
    rivals=RIVALS,
    own=st.sampled_from([{}, {"part": "1/2"}, {"part": "1/4"}, {"cores": 32, "memory_mb": 32 * 512}]),
    others=QUOTAS | st.sampled_from([{}, {"part": "1/4"}, {"cores": 20, "memory_mb": 16384}]),
    wanted=st.sampled_from([8, 20, 32]),
    times=TIMES.map(lambda times: {**times, "half_life_s": 20}),
)
@examples(3)
def test_nobody_waits_for_ever_nor_does_an_app_that_fits_its_quota_alone(
    *,
    policies: dict[str, object],
    rivals: list[tuple[int, int]],
    own: dict[str, object],
    others: dict[str, object],
    wanted: int,
    times: dict[str, object],
) -> None:
    """Semantics C7: nine users of three companies always have more to submit, and one app would fill its quota.

    Where quotas are oversubscribed, parts are less than quotas, and only companies are served in any case (A3).
    """
    companies = [
        convert({"company": _named(number), **(others if number else own)}, RegisterCompany) for number in range(3)
    ]
    run = Run(companies, **policies, **times)
    quotas = [run.state.quota(_named(number)) for number in range(3)]
    bought = [Fraction(quota.amount.cores, quota.denominator) for quota in quotas]
    wanted = min(wanted, int(bought[0]) // 4 * 4)
    lasts = {"large": 1}
    waiting_since = dict.fromkeys(range(9), 0)

    def submit(rival: int) -> Command:
        name = f"r{rival}-{run.now}"
        cores, lasts[name] = rivals[rival]
        return submission(name, cores, company=_named(rival % 3), user=f"u{rival}")

    due: list[Command] = [submit(rival) for rival in range(9)]
    longest, large_since, large_waited = 0, 20, -1
    while run.now < 260:
        if run.now == large_since:
            due.append(submission("large", wanted, company="c0", user="late"))
        admitted = run.turn(*due, lasts=lasts.__getitem__)
        due = []
        for name in admitted:
            if name == "large":
                large_waited = run.now - large_since
            else:
                rival = int(name[1])
                longest = max(longest, run.now - waiting_since[rival])
                waiting_since[rival] = run.now
                due.append(submit(rival))
    able = [rival for rival in range(9) if _may_ever(run.state, rival, rivals[rival][0])]
    if sum(bought) <= WORKERS * WORKER_CORES:
        assert 0 <= large_waited <= 100
        assert max([longest, *(run.now - waiting_since[rival] for rival in able)]) <= 100
    else:
        assert all(run.now - max(waiting_since[rival] for rival in able if rival % 3 == one % 3) <= 100 for one in able)


def _may_ever(state: ClusterState, rival: int, cores: int) -> bool:
    """Whether the rival's apps fit the quota of the company alone."""
    company = state.companies[_named(rival % 3)].spec
    bought = company.amounts is not None or company.part is not None
    return not bought or state.quota(_named(rival % 3)).covers(NOTHING, Resources(cores, cores * 512))
