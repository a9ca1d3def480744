"""What a client puts into the inbox."""

from __future__ import annotations

import pytest

from scheduler.model.commands import (
    Command,
    ConfigureCluster,
    EndedExecutor,
    KillApp,
    ScaleApp,
    SubmitApp,
    read_command,
    write_command,
)
from scheduler.model.errors import InvalidCommand


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
    assert read_command(write_command(command)) == command


def test_only_what_is_not_the_default_is_written() -> None:
    assert write_command(KillApp(app="a")) == '{"type":"KillApp","app":"a"}'
    assert write_command(ConfigureCluster(settings={})) == '{"type":"ConfigureCluster","settings":{}}'


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the command: it cannot be read: input data was truncated"),
        (b"[]", "the command: it cannot be read: expected object, got array"),
        (b"{}", "the command: type cannot be read: it is missing"),
        (b'{"type":"Fly"}', "the command: type cannot be read: invalid value 'Fly'"),
        (b'{"type":"KillApp","app":7}', "the command: app cannot be read: expected str, got int"),
        (b'{"type":"KillApp","app":true}', "the command: app cannot be read: expected str, got bool"),
        (b'{"type":"KillApp","app":"a","colour":1}', "the command: colour cannot be read: there is no such field"),
        (b'{"type":"KillApp","app":"\xff"}', "the command: it cannot be read: 'utf-8' codec can't decode byte 0xff"),
        (b'{"a":' * 100_000, "the command: it cannot be read: maximum"),
        (
            b'{"type":"ConfigureCluster","settings":' + b'{"a":' * 100_000,
            "the command: settings[...] cannot be read: expected bool | int | float | str | null, got object",
        ),
    ],
)
def test_what_is_no_command_is_refused_with_a_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(InvalidCommand) as raised:
        read_command(body)
    assert str(raised.value).startswith(sentence)


def test_a_complaint_repeats_only_so_much_of_what_came() -> None:
    with pytest.raises(InvalidCommand) as raised:
        read_command(b'{"type":"KillApp","app":"a","' + b"x" * 100_000 + b'":1}')
    assert len(str(raised.value)) < 500
