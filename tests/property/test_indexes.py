"""The structures kept up to date per event give what a scan over everything gives."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.model.events import AppAdmitted, CompanyRemoved, Event, ExecutorAllocated, ExecutorsRequested
from scheduler.model.resources import Resources
from scheduler.rules.admission.app import APP_POLICIES
from scheduler.rules.admission.company import COMPANY_POLICIES
from scheduler.rules.admission.user import USER_POLICIES
from scheduler.rules.entities.fleet import WORKER_SELECTIONS, Fleet
from scheduler.rules.placement.executors import PLACEMENTS
from scheduler.rules.stage.granting import admit, place
from scheduler.rules.stage.open import serve
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from tests.property import reference
from tests.property.given import Cluster, allocated, examples, submission
from tests.property.histories import HISTORIES, History, played, seeded

CHOICES: dict[str, st.SearchStrategy[object]] = {
    "worker_selection": st.sampled_from(sorted(WORKER_SELECTIONS)),
    "placement": st.sampled_from(sorted(PLACEMENTS)),
    "company_policy": st.sampled_from(sorted(COMPANY_POLICIES)),
    "user_policy": st.sampled_from(sorted(USER_POLICIES)),
    "app_policy": st.sampled_from(sorted(APP_POLICIES)),
    "half_life_s": st.sampled_from([3600, 9]),
    "backfill": st.booleans(),
    "default_max_runtime_s": st.sampled_from([None, 60]),
    "reclaim_patience_s": st.sampled_from([5, 300]),
}


@example(
    # a scaled app that fits where no minimum executor does
    history=seeded(781, 37),
    chosen={"worker_selection": "cores-free-asc", "placement": "classic-pack", "user_policy": "balanced"},
)
@example(history=seeded(2208337, 33, later=False), chosen={"user_policy": "balanced"})  # with open admission
@example(  # an executor of an app with a limit changes its place
    history=seeded(1900, 19, later=True),
    chosen={"worker_selection": "cores-free-asc", "placement": "pack", "user_policy": "balanced"},
)
@example(history=seeded(59, 46), chosen={"app_policy": "sql-first"})
@example(  # executors are spread over the fullest workers first
    history=seeded(514960, 15),
    chosen={"worker_selection": "cores-free-asc", "placement": "spread", "user_policy": "balanced"},
)
@given(history=HISTORIES, chosen=st.fixed_dictionaries(CHOICES))
@examples(80)
def test_placement_and_usage_are_what_a_scan_over_everything_gives(history: History, chosen: dict[str, object]) -> None:
    selected: dict[tuple[str, ...], int] = {}
    past = reference.Past()

    def before(state: ClusterState, event: Event) -> None:
        past.note(state)
        if not isinstance(event, ExecutorsRequested):  # what was folded just now is not yet answered
            _agrees_with_the_reference(state, past)
        match event:
            case AppAdmitted():
                selected[event.company,] = selected[event.company, event.user] = state.head + 1
            case CompanyRemoved():
                for key in [key for key in selected if key[0] == event.company]:
                    del selected[key]
            case _:
                pass

    state = played(history, chosen, before=before).state
    past.note(state)
    _agrees_with_the_reference(state, past)
    for name, company in state.companies.items():
        assert company.last_selected == selected.get((name,), 0)
        for user_name, user in company.users.items():
            assert user.last_selected == selected.get((name, user_name), 0)


def _agrees_with_the_reference(state: ClusterState, past: reference.Past) -> None:
    assert {name: tuple(state.usage(company)) for name, company in state.companies.items()} == past.used
    for app in state.waiting.values():
        assert allocated(place(state, app, state.at)) == reference.next_placement(state, app)
    owed = [app.admitted for app in state.waiting.values() if app.owed]
    assert [app.admitted for app in state.indexes.owed] == owed
    assert [app.admitted for app in serve(state, lambda *_: True)] == owed


GROWING = st.tuples(st.integers(1, 30), st.sampled_from([512, 3000, 9000]), st.sampled_from([None, None, 1, 2]))


@given(
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from([2048, 4096, 16384])), max_size=6),
    st.lists(GROWING, min_size=1, max_size=6),
    st.sampled_from(sorted(WORKER_SELECTIONS)),
)
@examples(80)
def test_classic_packing_decides_what_a_walk_over_all_workers_and_apps_decides(
    offers: list[tuple[int, int]], apps: list[tuple[int, int, int | None]], selection: str
) -> None:
    """Semantics P7."""
    cluster = Cluster({"placement": "classic-pack", "admission": "open", "worker_selection": selection})
    cluster.company("acme")
    for number, (cores, memory_mb) in enumerate(offers):
        cluster.worker(f"w{number}", cores, memory_mb)
    turn = Turn(cluster.state, cluster.state.at)
    for number, (cores, memory_mb, limit) in enumerate(apps):
        plain = submission(f"a{number}", cores)
        turn.take(replace(plain, executor_memory_mb=memory_mb, executor_limit=limit))
    while (entered := admit(cluster.state)) is not None:
        turn.record(entered)
    due = reference.packed_worker_by_worker(cluster.state, list(cluster.state.waiting.values()))
    before = len(turn.entries)
    turn.settle()
    granted = [event for event, _ in turn.entries[before:] if isinstance(event, ExecutorAllocated)]
    assert [(event.app, event.worker, event.resources.cores) for event in granted] == due


SHAPES = st.tuples(st.integers(0, 20), st.integers(0, 8).map(lambda step: step * 1024))


@given(st.dictionaries(st.integers(0, 30).map("w{}".format), SHAPES), st.data())
@examples(80)
def test_the_fleet_counts_sorts_and_forgets_like_a_plain_list(
    workers: dict[str, tuple[int, int]], data: st.DataObject
) -> None:
    minimum = Resources(2, 2048)
    fleet = Fleet([8, 4, 2], minimum)
    for name, free in workers.items():
        fleet.join(name, Resources(32, 32768), Resources(*free))
    for name in data.draw(st.lists(st.sampled_from(sorted(workers)), unique=True) if workers else st.just([])):
        if data.draw(st.booleans()):
            free = data.draw(SHAPES)
            fleet.move(name, Resources(*workers[name]), Resources(*free))
            workers[name] = free
        else:
            fleet.leave(name, Resources(32, 32768), Resources(*workers.pop(name)))
    usable = [free for free in workers.values() if free[0] >= 2 and free[1] >= 2048]
    assert {worker: tuple(free) for worker, free in fleet.live_workers().items()} == workers
    assert (fleet.total.cores, fleet.total.memory_mb) == (32 * len(workers), 32768 * len(workers))
    assert [fleet.usable_with(index) for index in range(3)] == [
        sum(free[0] >= size for free in usable) for size in (8, 4, 2)
    ]
    assert fleet.usable == len(usable)
    for cores in (2, 4, 8):
        assert fleet.least_memory_mb(cores) == min((free[1] for free in usable if free[0] >= cores), default=None)
    cores, memory_mb = data.draw(SHAPES)
    fitting = [(name, free) for name, free in workers.items() if free[0] >= cores and free[1] >= memory_mb]
    orders = {
        "cores-free-desc": sorted(fitting, key=lambda one: (one[1][0], one[0]), reverse=True),
        "cores-free-asc": sorted(fitting, key=lambda one: (one[1][0], one[0])),
        "memory-free-desc": sorted(fitting, key=lambda one: (one[1][1], one[0]), reverse=True),
        "memory-free-asc": sorted(fitting, key=lambda one: (one[1][1], one[0])),
        "worker-id": sorted(fitting),
    }
    assert orders.keys() == WORKER_SELECTIONS.keys()
    for selection, due in orders.items():
        candidates = fleet.candidates(Resources(cores, memory_mb), selection)
        assert [(worker, tuple(free)) for worker, free in candidates] == due
