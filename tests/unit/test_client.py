"""How commands travel to the inbox."""

from __future__ import annotations

import pytest

from scheduler.client import _body
from scheduler.commands import COMMAND, Command, ConfigureCluster, EndedExecutor, KillApp, ScaleApp
from tests.property.given import submission


@pytest.mark.parametrize(
    "command",
    [
        ConfigureCluster(settings={"max_drivers": None, "placement": "pack"}),
        ScaleApp(app="a1", executors=None),
        ScaleApp(app="a1", executors=3, prefer={"h1": 30, "h2": 20}),
        EndedExecutor(executor="a1.0", reason="failed"),
        KillApp(app="a1"),
        submission("a1", None, per_task_mb=None),
    ],
    ids=lambda command: command.type,
)
def test_a_command_arrives_as_it_was_sent_what_is_none_on_purpose_included(command: Command) -> None:
    assert COMMAND.validate_json(_body(command)) == command
