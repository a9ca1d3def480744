"""Priorities, dependencies and holds, from the command line to the order in which apps run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.cli_rig import Shell
from tests.waiting import wait_until

ONE = ("--cores", "4", "--tasks", "1")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A cluster of one worker with 4 cores, and the company acme."""
    shell = Shell(tmp_path_factory.mktemp("order") / "home")
    shell.ok("up", "--detach", "--workers", "1", "--cores", "4", "--memory", "8G")
    shell.ok("company", "add", "acme")
    yield shell
    shell.ok("down")


def ends(shell: Shell, name: str, state: str) -> None:
    wait_until(lambda: shell.app(name)["state"] == state, f"{name} to be {state}")


def test_an_app_starts_after_those_that_it_names_and_ends_if_they_fail(shell: Shell) -> None:
    gate = shell.home / "gate"
    first = shell.submit(*ONE, "--", "sh", "-c", f"until test -e {gate}; do sleep 0.05; done; exit 1")
    never = shell.submit(*ONE, "--after", first, "--", "true")
    chained = shell.submit(*ONE, "--after", f"{never}:ok", "--", "true")
    rescue = shell.submit(
        *ONE, "--after", f"{first}:not-ok", "--after", f"{never}:any", "--priority", "3", "--", "true"
    )
    shown = shell.app(rescue)
    assert (shown["ready"], shown["after"], shown["priority"]) == (False, {first: "not-ok", never: "any"}, 3)
    assert f"{rescue}  acme     ann   true  not ready" in shell.ok("apps")
    assert f"waits     dependency (J1): it starts after {never}:ok" in shell.ok("explain", chained)
    gate.touch()
    ends(shell, rescue, "finished")
    assert [shell.app(name)["state"] for name in (first, never, chained)] == ["failed", "unmet", "unmet"]
    assert shell.app(chained)["detail"] == f"it waited for {never}:ok, which can no longer come"


def test_an_app_on_hold_starts_once_it_is_released(shell: Shell) -> None:
    name = shell.submit(*ONE, "--hold", "--", "true")
    assert shell.app(name)["onHold"] is True
    assert "waits     hold (J3): it is on hold" in shell.ok("explain", name)
    assert shell.ok("hold", name) == f"{name} is on hold\n"
    assert shell.ok("release", name) == f"{name} released\n"
    ends(shell, name, "finished")
    refused = shell.run("hold", name)
    assert (refused.code, refused.err) == (1, f"Error: app '{name}' has already ended: finished\n")


def test_a_priority_is_changed_and_a_negative_one_is_no_option(shell: Shell) -> None:
    name = shell.submit(*ONE, "--hold", "--priority", "-7", "--", "true")
    assert shell.app(name)["priority"] == -7
    assert shell.ok("reprioritize", name, "-12") == f"{name} has priority -12\n"
    assert shell.app(name)["priority"] == -12
    assert shell.run("reprioritize", name, "1001").err == (
        "Error: the priority must be between -1000 and 1000, not 1001\n"
    )
    assert shell.run("reprioritize", name, "--none").code == 2
    shell.ok("kill", name)


def test_what_cannot_be_waited_for_is_refused_by_its_name(shell: Shell) -> None:
    submit = ("submit", "--company", "acme", "--user", "ann")
    unknown = shell.run(*submit, "--after", "app-0:ok", "--", "true")
    assert unknown.err.startswith("Error: no app 'app-0' of company 'acme' is known, so none can start after it")
    assert shell.run(*submit, "--after", "app-0:soon", "--", "true").code == 2
