"""A submission that comes again says the same, whatever the settings added to the one that was logged."""

from __future__ import annotations

from scheduler.model.commands import SubmitApp, private_of, without_private, write_command
from scheduler.model.events import ClusterConfigured
from scheduler.rules.request import as_asked
from scheduler.service.inbox import received
from scheduler.service.sameness import _says


def small(user: str, cores: int) -> bytes:
    command = SubmitApp(
        app="a", company="acme", user=user, command=("true",), tasks=1, cores=cores, memory_per_task_mb=300, small=True
    )
    return write_command(command).encode()


def test_a_small_job_that_comes_again_is_the_same_under_any_settings() -> None:
    for settings in (ClusterConfigured(), ClusterConfigured(own_sizes="within-bounds")):
        logged = as_asked(settings, received(small("ann", 1)))  # type: ignore[arg-type]  # a submission
        found = without_private(logged), private_of(logged)
        assert _says(small("ann", 1), *found)
        assert not _says(small("ann", 2), *found)
        assert not _says(small("bob", 1), *found)
