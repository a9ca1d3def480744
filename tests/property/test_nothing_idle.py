"""No core is idle at the end of a turn that an eligible app could use (semantics Z1, H4, H5)."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.commands import Command, ConfigureCluster, EndedExecutor, RegisterCompany
from scheduler.model.errors import CommandRejected
from scheduler.rules.admission.company import COMPANY_POLICIES
from scheduler.rules.admission.user import USER_POLICIES
from scheduler.rules.entities.apps import App
from scheduler.rules.state.cluster import ClusterState
from tests.property import reference
from tests.property.given import Cluster, decides_nothing_more, examples, rests, submission, worker
from tests.property.histories import BUILD_UP, HISTORIES, History, command_for
from tests.property.lawful import departments_above, kept_of
from witness.pending_reasons import waits_for

CHOICES = st.fixed_dictionaries(
    {
        "company_policy": st.sampled_from(sorted(COMPANY_POLICIES)),
        "user_policy": st.sampled_from(sorted(USER_POLICIES)),
        "placement": st.sampled_from(["spread", "pack"]),
        "reclaim_patience_s": st.sampled_from([None, 0, 5]),
    }
)


@given(history=HISTORIES, chosen=CHOICES)
@examples(120)
def test_no_core_is_idle_that_an_eligible_app_could_use(history: History, chosen: dict[str, object]) -> None:
    watched = Watched(chosen)
    for turn in (*BUILD_UP, *history):
        watched.turn(*(command_for(watched.cluster.state, step) for step in turn))


APPS = st.tuples(st.integers(1, 40), st.sampled_from([None, 256, 512, 1500, 4096]))
OFFERS = st.tuples(st.sampled_from([1, 4, 7, 8, 16, 32]), st.sampled_from([2048, 4096, 8192, 65536]))


@given(st.lists(OFFERS, max_size=5), st.lists(APPS, max_size=10), st.lists(st.integers(0, 99), max_size=12))
@examples(100)
def test_with_one_user_no_core_is_idle_that_an_admissible_app_could_use(
    offers: list[tuple[int, int]], apps: list[tuple[int, int | None]], ends: list[int]
) -> None:
    watched = Watched({"never_fits": "wait"})
    watched.turn(RegisterCompany(company="acme"))
    for number, (cores, memory_mb) in enumerate(offers):
        watched.turn(worker(f"w{number}", cores, memory_mb))
    for number, (cores, per_task_mb) in enumerate(apps):
        watched.turn(submission(f"a{number}", cores, per_task_mb=per_task_mb))
    for end in ends:
        if executors := list(watched.cluster.state.executors):
            done = end % 2 == 0
            watched.turn(EndedExecutor(executor=executors[end % len(executors)], reason="exited", done=done))


def test_an_app_whose_request_is_less_than_the_smallest_executor_by_now_is_told_so() -> None:
    watched = Watched({})
    watched.turn(RegisterCompany(company="acme"), worker("w1", 16))
    less = submission("a0", 4, per_task_mb=512)
    watched.turn(less, ConfigureCluster(settings={"min_executor_memory_mb": 4096}))
    wait = waits_for(watched.cluster.state, watched.cluster.state.apps["a0"])
    assert wait is not None
    text = "its request leaves 4 cores and 2048 MiB, and an executor takes 4 and 4096"
    assert (wait.cause, wait.rule, wait.told().text) == ("limit", "A2", text)


class Watched:
    """A cluster that is looked at at the end of every turn."""

    def __init__(self, chosen: dict[str, object]) -> None:
        self.cluster = Cluster(chosen, each_refusal=False)

    def turn(self, *commands: Command) -> None:
        """Take the commands that are not refused; nothing is left to decide then (semantics H9)."""
        with suppress(CommandRejected):
            self.cluster.turn(*commands)
        if rests(commands):
            return
        state = self.cluster.state
        nothing_is_idle(state)
        decides_nothing_more(state)


def nothing_is_idle(state: ClusterState) -> None:
    """Nobody admitted is owed what fits, and no app that waits and may enter could get an executor (semantics H4, H5).

    Of companies that may hold more than they bought: a cap counts what others of the company are below, too (H1, H12).
    """
    if state.settings.admission == "open" or any(kept_of(state, name) for name in state.departments):
        return
    lenders = {
        name for name, company in state.companies.items() if company.spec.may_borrow and not _capped(state, name)
    }
    for app in state.waiting.values():
        if app.spec.company in lenders and app.owed and not app.demand.wanted and reference.still(state, app)[0]:
            assert not has_room(state, reference.smallest(state, app), app), f"{app.id} is owed an executor"
    for app in state.queue.arrivals.values():
        if app.spec.company in lenders and app.spec.driver is None and reference.asks_executors(state, app):
            size = smallest_now(state, app)
            enters = reference.within(state, app) and size[1] <= app.requested.memory_mb and has_room(state, size)
            assert not enters, f"{app.id} could use what nobody else can"


def _capped(state: ClusterState, company: str) -> bool:
    """Whether a department above the company has a cap."""
    above = [state.departments[name].spec for name in departments_above(state, company)]
    return any(spec.borrow_limit is not None for spec in above)


def smallest_now(state: ClusterState, app: App) -> tuple[int, int]:
    """The smallest executor that placement tries now: the least free memory sizes one that states none (S2, S3)."""
    least, cores = reference.smallest(state, app, 256), state.settings.min_executor_cores
    rooms = [worker.open_to(None) for worker in reference.live(state)]
    usable = [one for one in rooms if one.cores >= cores and one.memory_mb >= state.settings.min_executor_memory_mb]
    free_mb = min((room.memory_mb for room in usable if room.cores >= least[0]), default=None)
    return reference.smallest(state, app, 256 if free_mb is not None and free_mb <= 256 * least[0] else 512)


def has_room(state: ClusterState, size: tuple[int, int], app: App | None = None) -> bool:
    """Whether a live worker has that much free that is not held for another app, one without its own by P7."""
    one_each = app is not None and state.settings.placement.startswith("classic")
    own = {executor.worker for executor in app.executors.values()} if app is not None and one_each else set()
    own |= reference.tries(state, app)[-1] if app is not None else set()
    workers = (worker for worker in reference.live(state) if worker.id not in own)
    rooms = (worker.open_to(None if app is None else app.id) for worker in workers)
    return any(room.cores >= size[0] and room.memory_mb >= size[1] for room in rooms)
