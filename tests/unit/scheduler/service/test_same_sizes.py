"""A submission that comes again says the same, whatever was added to the one that was logged when it arrived."""

from __future__ import annotations

from msgspec.structs import replace

from scheduler.model.commands import SubmitApp, private_of, without_private, write_command
from scheduler.model.events import ClusterConfigured
from scheduler.rules.command.request import as_asked
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


def singleton(**after: tuple[str, ...]) -> bytes:
    command = SubmitApp(app="a", company="acme", user="ann", name="x", command=("true",), singleton=True)
    return write_command(replace(command, after=after)).encode()


def test_a_singleton_that_comes_again_is_the_same_whatever_waited_then() -> None:
    said = received(singleton(ok=("b",)))
    assert isinstance(said, SubmitApp)
    for after in ({"ok": ("b",)}, {"ok": ("b",), "any": ("c", "d")}):
        logged = replace(said, singleton=False, after=after)
        found = without_private(logged), private_of(logged)
        assert _says(singleton(ok=("b",)), *found)
        assert not _says(singleton(ok=("e",)), *found)
