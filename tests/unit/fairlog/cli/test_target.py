"""What is typed says where the cluster is, whatever the environment says."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from fairlog.cli.main import VERBS, cli
from fairlog.cli.target import Target, target_options
from fairlog.client import Client
from fairlog.compat.slurm.road import ApiRoad
from fairlog.compat.slurm.words import SlurmError
from fairlog.errors import NoCluster
from fairlog.local.running import check_own_keys

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


@pytest.mark.parametrize("left_out", ["FAIRLOG_STORE", "FAIRLOG_DATA"])
def test_without_anything_typed_the_environment_counts(left_out: str) -> None:
    said = {"FAIRLOG_STORE": "redis://127.0.0.1:1/0", "FAIRLOG_DATA": "/srv/production", left_out: "None"}
    env = {name: value for name, value in ELSEWHERE.items() if name != left_out}
    due = f"{said['FAIRLOG_STORE']}|production|{said['FAIRLOG_DATA']}|s3://production\n"
    assert told("verb", env=env).output == due


@pytest.mark.parametrize("other", ["FAIRLOG_STORE", "FAIRLOG_API"])
def test_two_places_in_the_environment_are_refused(other: str) -> None:
    env = {other: "redis://127.0.0.1:1/0", "FAIRLOG_DATA": "/d"}
    answer = told("verb", env=env)
    assert answer.exit_code == 2
    assert f"{other} and FAIRLOG_DATA name two places; unset one of them, or type --store or --data" in answer.output
    assert told("verb", "--data", "/e", env=env).output == "None|None|/e|\n"


def test_a_client_in_an_environment_of_two_places_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ELSEWHERE.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NoCluster, match="FAIRLOG_STORE and FAIRLOG_DATA name two places; unset one of them, or give"):
        Client()


def test_slurms_commands_go_to_no_other_cluster_than_the_store_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLOG_STORE", "redis://127.0.0.1:1/0")
    monkeypatch.delenv("FAIRLOG_API", raising=False)
    with pytest.raises(SlurmError, match="set FAIRLOG_API and unset FAIRLOG_STORE"):
        ApiRoad()


@pytest.mark.parametrize("asked", [("restore", "backup.gz"), ("import", "log.jsonl"), ("up", "--detach")], ids=" ".join)
def test_keys_that_an_up_would_not_use_are_refused(asked: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("backup.gz", "log.jsonl"):
        (tmp_path / name).write_bytes(b"")
    others = tmp_path / "others.json"
    others.write_text("{}")
    verb, file = asked
    given = file if verb == "up" else str(tmp_path / file)
    env = {"FAIRLOG_KEYS": str(others), "HOME": str(tmp_path)}
    answer = CliRunner(env=env).invoke(cli, ["--data", str(tmp_path / "new"), verb, given])
    assert answer.exit_code == 1
    own = tmp_path / "new/keys.json"
    assert f"FAIRLOG_KEYS names {others}, and an `up` uses the keys in its data folder" in answer.output
    assert f"copy that file to {own}, or unset FAIRLOG_KEYS" in answer.output
    assert not own.parent.exists()
    own.parent.mkdir()
    own.write_text("{}")
    for path in (str(others), str(own)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FAIRLOG_KEYS", path)
            check_own_keys(own.parent)


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


def test_what_is_typed_is_told_to_another_command_and_nothing_else() -> None:
    target = Target()
    for name, value, typed in (
        ("store", "redis://h:1/0", True),
        ("cluster", "c", True),
        ("archive", "/a", False),
        ("unsafe_store", True, True),
    ):
        target.take(name, value, typed=typed)
    assert target.words == ["--cluster", "c", "--store", "redis://h:1/0", "--unsafe-store"]
    target = Target()
    target.take("data", Path("/d"), typed=True)
    target.take("unsafe_store", True, typed=False)  # noqa: FBT003 (the value of a flag)
    assert target.words == ["--data", "/d"]
