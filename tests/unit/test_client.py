"""What a command is on its way from a client to the master."""

from __future__ import annotations

import pytest

from scheduler.client import body_of
from scheduler.commands import COMMAND, ChangeCompany, Command, ConfigureCluster, ScaleApp, SubmitApp

PLAIN = SubmitApp(app="a1", company="acme", user="ann", cores=8, command=("true",), executor_cores=None, driver=False)


@pytest.mark.parametrize(
    "command",
    [
        ScaleApp(app="a1", executors=None),
        ScaleApp(app="a1", executors=3, prefer={"h1": 2}),
        ConfigureCluster(settings={"max_drivers": None}),
        ChangeCompany(company="acme", borrow=False),
        PLAIN,
    ],
    ids=lambda command: command.type,
)
def test_the_master_reads_the_command_that_was_sent(command: Command) -> None:
    assert COMMAND.validate_json(body_of(command)) == command


def test_a_submission_says_nothing_of_what_it_leaves_as_it_is() -> None:
    assert "driver" not in COMMAND.validate_json(body_of(PLAIN)).model_fields_set
    assert "executor_cores" not in body_of(PLAIN)
