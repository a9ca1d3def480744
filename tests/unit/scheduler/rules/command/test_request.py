"""What an app asks for: its tasks, the cores of each and the cores held at once, seen in its registration."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert, structs

from scheduler.model.commands import ConfigureCluster, ScaleApp, SubmitApp
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import AppRegistered, ClusterConfigured, Fixed
from scheduler.model.resources import Resources
from scheduler.rules.command.decide import decide
from scheduler.rules.command.request import as_asked
from tests.property.given import ACME, allocated, fold, shared

OWN: dict[str, Any] = {"executor_cores": 8, "executor_memory_mb": 2048}
GROWING: dict[str, Any] = {"executor_memory_mb": 1024}


def submission(app: str = "a1", **asked: Any) -> SubmitApp:
    return convert({"app": app, "company": "acme", "user": "ann", "command": ("true",), **asked}, SubmitApp)


def registered(settings: ClusterConfigured | None = None, **asked: Any) -> AppRegistered:
    (event,) = decide(fold([settings or ClusterConfigured(), ACME]), submission(**asked))
    assert isinstance(event, AppRegistered)
    return event


def asks(settings: ClusterConfigured | None = None, **asked: Any) -> tuple[int | None, int, int, int]:
    """Cores, tasks, cores of each, requested cores."""
    event = registered(settings, **asked)
    return event.cores, event.tasks, event.cores_per_task, event.requested.cores


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"tasks": 1}, (4, 1, 1, 4)),
        ({"tasks": 2}, (4, 2, 1, 4)),
        ({"tasks": 100}, (8, 100, 1, 8)),
        ({"tasks": 1, "cores_per_task": 12}, (16, 1, 12, 16)),
        ({"tasks": 10, "cores_per_task": 16}, (16, 10, 16, 16)),
        ({"cores_per_task": 6}, (8, 1, 6, 8)),
        ({"tasks": 3, **OWN}, (8, 3, 1, 8)),
        ({"executor_cores": 16}, (16, 16, 1, 16)),
    ],
)
def test_cores_that_are_not_given_are_those_of_the_tasks(asked: dict[str, Any], found: tuple[int, ...]) -> None:
    """Semantics A1: at most the default, at least one task's and one fixed executor's."""
    assert asks(**asked) == found


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"tasks": 2, "cores": 32}, (4, 2, 1, 4)),
        ({"tasks": 3, "cores": 32, **OWN}, (8, 3, 1, 8)),
        ({"tasks": 9, "cores": 32, **OWN}, (16, 9, 1, 16)),
        ({"tasks": 2, "cores": 12, "cores_per_task": 6}, (16, 2, 6, 16)),
        ({"tasks": 2, "cores": 12, "cores_per_task": 6, **OWN}, (16, 2, 6, 16)),
        ({"tasks": 9, "cores": 12, "cores_per_task": 3}, (16, 9, 3, 16)),
        ({"tasks": 9, "cores": 3, "cores_per_task": 8}, (8, 9, 8, 8)),
        ({"cores": 12, "cores_per_task": 6}, (16, 2, 6, 16)),
        ({"tasks": 2, "cores": 7, "cores_per_task": 3, **GROWING}, (6, 2, 3, 6)),
    ],
)
def test_the_cores_held_are_whole_executors_for_the_tasks_at_once(
    asked: dict[str, Any], found: tuple[int, ...]
) -> None:
    """Semantics A1: no more than the tasks can use, and no less than the executors that they need."""
    assert asks(**asked) == found


@pytest.mark.parametrize("asked", [{}, OWN, GROWING])
def test_one_task_has_all_cores_that_the_app_asks_for(asked: dict[str, Any]) -> None:
    """Semantics A1: `fairlog submit --cores 8 -- python train.py`."""
    assert asks(tasks=1, cores=8, **asked) == (8, 1, 8, 8)


def small(settings: ClusterConfigured | None = None, **asked: Any) -> AppRegistered:
    """What is registered of a submission that has arrived and says that it is small."""
    found = as_asked(settings or ClusterConfigured(), submission(**asked, small=True))
    assert not found.small
    return registered(settings, **structs.asdict(found))


@pytest.mark.parametrize(
    ("asked", "requested"),
    [
        ({"tasks": 1, "cores": 1}, Resources(1, 512)),
        ({"tasks": 1, "cores": 3, "memory_per_task_mb": 700}, Resources(3, 700)),
        ({"tasks": 1, "cores": 6}, Resources(6, 3072)),
        ({"tasks": 1, "cores_per_task": 2}, Resources(2, 1024)),
        ({"tasks": 1, "cores": 8, "cores_per_task": 1}, Resources(1, 512)),
    ],
)
def test_a_small_job_costs_what_its_task_needs(asked: dict[str, Any], requested: Resources) -> None:
    event = small(**asked)
    assert (event.requested, event.sizing, event.tasks) == (requested, Fixed(each=requested), 1)


@pytest.mark.parametrize(("amount", "addresses"), [("1", 1), ("2", 2), ("1/4", 1), ("5/2", 3)])
def test_a_small_job_that_needs_a_kind_has_an_executor_of_its_own_size_as_well(amount: str, addresses: int) -> None:
    """Semantics A1, R3: its cores are no tasks that would each need as much again."""
    found = as_asked(
        ClusterConfigured(), submission(tasks=1, cores_per_task=1, task_resources={"gpu": amount}, small=True)
    )
    sized = (found.executor_cores, found.executor_memory_mb, found.executor_resources, found.task_resources)
    assert sized == (1, 512, {"gpu": addresses}, {})


@pytest.mark.parametrize("amount", ["0", "x", "1/0", "-1"])
def test_an_amount_of_a_kind_that_is_none_is_left_to_be_refused(amount: str) -> None:
    asked = submission(tasks=1, cores_per_task=1, task_resources={"gpu": amount}, small=True)
    assert as_asked(ClusterConfigured(), asked) == structs.replace(asked, small=False)


@pytest.mark.parametrize(
    "asked",
    [
        {"tasks": 1},
        {"tasks": 1, "cores": 8},
        {"tasks": 2, "cores": 1},
        {"tasks": 1, "cores_per_task": 1, "elastic": (1, 2)},
        {"tasks": 1, "cores": 2, "executor_memory_mb": 700},
        {"tasks": 1, "cores": 2, "driver": True},
        {"tasks": 1, "cores": 17, "executor_cores": 17},
    ],
)
def test_nothing_is_added_to_an_app_that_is_large_or_sized_otherwise(asked: dict[str, Any]) -> None:
    assert small(**asked) == registered(**asked)


def test_a_small_job_keeps_to_the_bounds_where_apps_must() -> None:
    within = ClusterConfigured(own_sizes="within-bounds")
    assert small(within, tasks=1, cores=1) == registered(within, tasks=1, cores=1)


def test_a_command_that_says_nothing_of_tasks_has_as_many_as_run_at_once() -> None:
    """Semantics A1: what it asks for is as given."""
    assert asks(cores=6) == (6, 6, 1, 8)
    assert asks(cores=7, executor_cores=2) == (7, 7, 1, 7)


def test_an_app_with_a_driver_says_whether_its_executors_run_tasks() -> None:
    """Semantics A1: without a word it has cores and no tasks; without tasks or cores it is its driver alone."""
    assert asks(driver=True) == (8, 0, 1, 9)
    assert asks(driver=True, cores=12) == (12, 0, 1, 13)
    assert asks(driver=True, tasks=2) == (4, 2, 1, 5)
    assert asks(driver=True, tasks=0) == asks(driver=True, cores=0) == (0, 0, 1, 1)


def test_with_open_admission_cores_are_as_given_where_the_app_sizes_its_executors() -> None:
    """Semantics A1: as in Spark, whose master knows no tasks."""
    settings = ClusterConfigured(admission="open")
    assert asks(settings, tasks=1, cores=20, executor_cores=8) == (20, 1, 1, 20)
    assert asks(settings, tasks=1, executor_cores=2) == (8, 1, 1, 8)
    assert asks(settings, tasks=1, cores=20, cores_per_task=4, executor_cores=8) == (20, 1, 4, 20)
    assert asks(settings, tasks=1) == (4, 1, 1, 4)
    assert asks(settings, driver=True) == (0, 0, 1, 1)
    with pytest.raises(InvalidCommand, match="no task of 2 fits into 1 core; ask for at least 2 cores"):
        registered(settings, tasks=6, cores=1, cores_per_task=2, executor_cores=2)
    assert registered(settings, tasks=3, cores="unlimited", cores_per_task=2, **OWN).cores_per_task == 2


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"cores_per_task": 0}, "cores per task must be between 1 and 1000000, not 0"),
        ({"cores": 0, "tasks": 1}, "cores must be between 1 and 1000000, not 0"),
        ({"tasks": 1, "cores": 32}, "a task of 32 cores does not fit into the largest executor, which has 16 cores; "),
        ({"cores_per_task": 17}, "a task of 17 cores does not fit into the largest executor, which has 16 cores; "),
        ({"cores_per_task": 9, **OWN}, "a task of 9 cores does not fit into the app's executors of 8 cores; "),
        (
            {"elastic": (1, 2), "cores_per_task": 5, "executor_cores": 4},
            "a task of 5 cores does not fit into the app's",
        ),
        ({"elastic": (1, 2), "cores_per_task": -5}, "cores per task must be between 1 and 1000000, not -5"),
    ],
)
def test_a_task_that_no_executor_can_run_is_refused(asked: dict[str, Any], sentence: str) -> None:
    """Semantics A7: with both numbers, and the option to give."""
    with pytest.raises(InvalidCommand) as raised:
        registered(**asked)
    assert str(raised.value).startswith(sentence)
    assert "executor" not in sentence or "--executor-cores" in str(raised.value)


def test_no_executor_is_too_small_for_a_task() -> None:
    """Semantics A7, S2: tasks of 6 cores run in executors of 8, though an executor of 4 would do by S2."""
    cluster = shared(w1=12, w2=8)
    grants = allocated(cluster.turn(submission(tasks=2, cores=12, cores_per_task=6)))
    assert grants == [("w1", 8, 4096), ("w2", 8, 4096)]


def test_memory_counts_for_the_tasks_that_run_at_once() -> None:
    """Semantics A7, S3: two tasks of 6 cores in 16; per core where none was given."""
    asked: dict[str, Any] = {"tasks": 3, "cores": 24, "cores_per_task": 6}
    assert allocated(shared(w1=32).turn(submission(**asked, memory_per_task_mb=3000)))[0] == ("w1", 16, 6144)
    assert allocated(shared(w1=32).turn(submission(**asked)))[0] == ("w1", 16, 8192)


def test_the_smallest_executor_of_a_large_task_may_have_more_memory_than_the_largest() -> None:
    """Semantics S4: it has no smaller one."""
    grants = allocated(shared(w1=16).turn(submission(tasks=1, cores_per_task=8, memory_per_task_mb=20_000)))
    assert grants == [("w1", 8, 20_224)]


def test_a_maximum_lowered_below_a_task_leaves_its_smallest_executor() -> None:
    """Semantics A7."""
    cluster = shared(w1=16)
    cluster.turn(submission("a0", tasks=1, cores=16))
    cluster.turn(submission("a1", tasks=1, cores=16))
    cluster.turn(ConfigureCluster(settings={"max_executor_cores": 8}))
    assert allocated(cluster.ended("a0.0", done=True)) == [("w1", 16, 8192)]


def test_growing_executors_have_the_cores_of_whole_tasks() -> None:
    """Semantics A7, P4: 7 free cores are two tasks of 3."""
    cluster = shared(w1=7, w2=4)
    assert allocated(cluster.turn(submission(tasks=9, cores=9, cores_per_task=3, **GROWING))) == [
        ("w1", 6, 1024),
        ("w2", 3, 1024),
    ]


@pytest.mark.parametrize("placement", ["classic-spread", "classic-pack"])
def test_classic_placements_give_whole_tasks(placement: str) -> None:
    """Semantics A7, P7."""
    cluster = shared({"placement": placement}, w1=7, w2=4)
    grants = allocated(cluster.turn(submission(tasks=9, cores=9, cores_per_task=3, **GROWING)))
    assert sorted(grants) == [("w1", 6, 1024), ("w2", 3, 1024)]


def test_an_elastic_app_counts_tasks_by_executor() -> None:
    """Semantics A7, L6: an executor of 8 runs two tasks of 4; five tasks need three."""
    event = registered(elastic=(1, 9), tasks=5, cores_per_task=4, executor_cores=8)
    assert (event.elastic and event.elastic.backlog, event.requested.cores) == (3, 8)
    computed = registered(elastic=(1, 9), tasks=5, cores_per_task=6)
    assert computed.sizing == Fixed(Resources(8, 4096), counted=True)
    assert computed.elastic is not None
    assert computed.elastic.backlog == 5


def test_a_stated_number_of_executors_is_of_the_smallest_that_can_run_a_task() -> None:
    """Semantics A7, L1."""
    cluster = shared(w1=16, w2=16)
    cluster.turn(submission(tasks=9, cores=8, cores_per_task=8, memory_per_task_mb=5000))
    cluster.turn(ScaleApp(app="a1", executors=3))
    assert cluster.state.apps["a1"].sizing == Fixed(Resources(8, 5120), counted=True)


def test_the_memory_of_an_app_with_one_executor_a_worker_follows_the_workers() -> None:
    """Semantics S5: as they join, and never down."""
    cluster = shared(w1=4)
    cluster.turn(submission(cores=12, **GROWING))
    assert cluster.state.apps["a1"].requested == Resources(12, 1024)
    assert allocated(cluster.worker("w2", 4)) == [("w2", 4, 1024)]
    assert allocated(cluster.worker("w3", 4)) == [("w3", 4, 1024)]
    assert cluster.state.apps["a1"].requested == Resources(12, 3072)
    cluster.check_replay()
