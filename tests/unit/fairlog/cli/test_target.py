"""What is typed says where the cluster is, whatever the environment says."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner, Result

from fairlog.cli.main import VERBS, cli
from fairlog.cli.target import Target, target_options

ELSEWHERE = {
    "FAIRLOG_STORE": "redis://127.0.0.1:1/0",
    "FAIRLOG_CLUSTER": "production",
    "FAIRLOG_ARCHIVE": "s3://production",
    "FAIRLOG_DATA": "/srv/production",
}


@click.group()
@target_options(from_environment=True)
@click.pass_context
def program(ctx: click.Context) -> None:
    ctx.ensure_object(Target)


@program.command()
@target_options()
@click.pass_obj
def verb(target: Target) -> None:
    click.echo("|".join(map(str, (target.store, target.cluster, target.data, target.archive))))


def told(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner(env=ELSEWHERE if env is None else env).invoke(program, arguments)


@pytest.mark.parametrize("arguments", [("--data", "/d", "verb"), ("verb", "--data", "/d")])
def test_a_typed_folder_counts_alone(arguments: tuple[str, ...]) -> None:
    assert told(*arguments).output == "None|None|/d|\n"


@pytest.mark.parametrize("arguments", [("--store", "unix:///s", "verb"), ("verb", "--store", "unix:///s")])
def test_a_typed_store_counts_instead_of_a_folder(arguments: tuple[str, ...]) -> None:
    assert told(*arguments).output == "unix:///s|production|None|s3://production\n"


def test_what_else_is_typed_counts_with_the_folder() -> None:
    asked = ("--cluster", "mine", "verb", "--data", "/d", "--archive", "file:///a")
    assert told(*asked).output == "None|mine|/d|file:///a\n"


def test_without_anything_typed_the_environment_counts() -> None:
    assert told("verb").output == "redis://127.0.0.1:1/0|production|/srv/production|s3://production\n"


@pytest.mark.parametrize(
    "arguments", [("--store", "unix:///s", "verb", "--data", "/d"), ("verb", "--data", "/d", "--store", "unix:///s")]
)
def test_two_typed_places_are_refused(arguments: tuple[str, ...]) -> None:
    answer = told(*arguments)
    assert answer.exit_code == 2
    assert "--store and --data name two places; give one of them" in answer.output


@pytest.mark.parametrize(
    "asked",
    [
        ("status",),
        ("audit",),
        ("log",),
        ("apps",),
        ("shares",),
        ("company", "add", "acme"),
        ("settings", "set", "placement=pack"),
        ("backup", "/nowhere/backup.gz"),
        ("archive",),
        ("worker", "--no-outlive"),
    ],
    ids=" ".join,
)
def test_no_verb_goes_to_the_store_of_the_environment_where_a_folder_is_typed(asked: tuple[str, ...]) -> None:
    assert asked[0] in VERBS
    env = ELSEWHERE | {"FAIRLOG_API": "http://127.0.0.1:1", "FAIRLOG_TOKEN": "", "HOME": "/nonexistent"}
    answer = CliRunner(env=env).invoke(cli, [*asked, "--data", "/nonexistent/up"])
    assert answer.exit_code == 1
    assert "no `fairlog up` runs on the data in /nonexistent/up" in answer.output
