"""What a client puts into the inbox."""

from __future__ import annotations

import pytest

from scheduler.client import _body
from scheduler.commands import COMMAND, Command, ConfigureCluster, EndedExecutor, KillApp, ScaleApp, SubmitApp


@pytest.mark.parametrize(
    "command",
    [
        SubmitApp(app="a", company="acme", user="ann", command=("true",)),
        SubmitApp(app="a", company="acme", user="ann", cores="unlimited", env=("TOKEN",), elastic=(0, 3), retries=2),
        ScaleApp(app="a", executors=None),
        EndedExecutor(executor="a.0", reason="exited", exit_code=0, done=True),
        ConfigureCluster(settings={"max_drivers": None}),
        KillApp(app="a"),
    ],
)
def test_a_command_is_read_as_it_was_written(command: Command) -> None:
    assert COMMAND.validate_json(_body(command)) == command


def test_only_what_is_not_the_default_is_written() -> None:
    assert _body(KillApp(app="a")) == '{"type":"KillApp","app":"a"}'
    assert _body(ConfigureCluster(settings={})) == '{"type":"ConfigureCluster","settings":{}}'
