"""Verbs that take several names change what all of them name or, where one is wrong, nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest

from fairlog.cli.main import cli
from tests.integration.cli_rig import Shell

SAID = {
    "app": "no app 'nosuch' is known; `fairlog apps --all` lists the apps",
    "worker": "no worker 'nosuch' is registered; `fairlog workers` lists the workers",
    **{
        what: f"{what} 'nosuch' is none of those that `fairlog {what} list` lists, so nothing was changed"
        for what in ("account", "company", "department", "token", "window")
    },
    "kind": "a kind of resources must be 1 to 63 lower-case letters",
    "limit": "no limit is named 'nosuch'",
    "setting": "no setting is named 'nosuch'",
}
"""What is said of a name that names nothing, by what it should name."""
TYPED = {
    "kill": ("app", "kill {app} nosuch {other} --reason x"),
    "kill --executor": ("app", "kill --executor {app}.0 nosuch.0"),
    "requeue": ("app", "requeue {app} nosuch --reason x"),
    "hold": ("app", "hold {app} nosuch"),
    "release": ("app", "release {app} nosuch"),
    "scale": ("app", "scale --executors 1 {app} nosuch"),
    "finish": ("app", "finish {app} nosuch"),
    "extend": ("app", "extend --by 1h {app} nosuch"),
    "drain": ("worker", "drain {worker} nosuch"),
    "decommission": ("worker", "decommission {worker} nosuch"),
    "undrain": ("worker", "undrain {worker} nosuch"),
    "remove": ("worker", "remove {worker} nosuch"),
    "account remove": ("account", "account remove acme/ann nosuch"),
    "token revoke": ("token", "token revoke {token} nosuch"),
    "company remove": ("company", "company remove globex nosuch"),
    "department remove": ("department", "department remove sales nosuch"),
    "window remove": ("window", "window remove night nosuch"),
    "resource add": ("kind", "resource add disk NOSUCH!"),
    "limit set": ("limit", "limit set max_tasks=7 nosuch=1"),
    "settings set": ("setting", "settings set retained_apps=7 nosuch=1"),
}
"""Verb -> what it names, and what is typed."""
NO_NAMES = {"exec", "help", "logs", "mpirun", "rq", "run", "spark-submit", "submit", "torchrun"}
"""Verbs whose words are a command, or that change nothing."""


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, dict[str, str]]]:
    """A cluster with one of each, and their names."""
    shell = Shell(tmp_path_factory.mktemp("several"))
    shell.ok("up", "--detach", "--workers", "1", "--cores", "4", "--memory", "4G", "--masters", "1")
    try:
        for company in ("acme", "globex"):
            shell.ok("company", "add", company)
        shell.ok("department", "add", "sales")
        submit = ("submit", "--company", "acme", "--user", "ann", "--hold", "--", "sleep", "600")
        app, other = (shell.ok(*submit).split()[0] for _ in range(2))
        worker = shell.run("workers", "--json").json()[0]["worker"]
        shell.ok("window", "add", "night", "--workers", worker, "--from", "+10h", "--to", "+11h")
        shell.ok("account", "add", "acme/ann")
        shell.ok("token", "new", "acme/ann")
        token = shell.run("token", "list", "--json").json()[0]["token"]
        yield shell, {"app": app, "other": other, "worker": worker, "token": token}
    finally:
        shell.ok("down")


def _verbs(group: click.Group, before: str = "") -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _verbs(command, f"{before}{name} ")
        if any(isinstance(each, click.Argument) and each.nargs == -1 for each in command.params):
            yield f"{before}{name}"


def test_every_verb_that_takes_several_names_is_tried() -> None:
    assert set(_verbs(cli)) - NO_NAMES == {verb for verb in TYPED if "--" not in verb}


def _changes(shell: Shell) -> list[str]:
    """The events of the log by which the state has changed."""
    events = [json.loads(line)["type"] for line in shell.ok("log", "--json").splitlines()]
    return [event for event in events if event not in {"CommandRefused", "LogSealed"}]


@pytest.mark.parametrize("verb", TYPED)
def test_of_several_names_one_that_is_wrong_changes_nothing(named: tuple[Shell, dict[str, str]], verb: str) -> None:
    shell, names = named
    what, typed = TYPED[verb]
    before = _changes(shell)
    answer = shell.run(*typed.format(**names).split())
    assert (answer.code != 0, answer.out) == (True, ""), answer
    assert SAID[what] in answer.err
    assert _changes(shell) == before


def test_a_name_that_stands_twice_counts_once(named: tuple[Shell, dict[str, str]]) -> None:
    shell, names = named
    answer = shell.run("release", names["app"], names["app"])
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.count("Error") == 1
    assert shell.ok("undrain", names["worker"], names["worker"]).count("back in service") == 1
