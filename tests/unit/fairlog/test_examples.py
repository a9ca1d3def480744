"""The examples: how they are used, and the logs of the README, from a clone and from an installed package."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlog.cli.main import cli
from fairlog.demo.examples import FOLDER, LOGS, write_examples

ROOT = Path(__file__).parents[3]


def test_a_wheel_has_each_log_beside_the_module() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    logs = {source: place for source, place in built["force-include"].items() if source.startswith("examples/")}
    assert logs == {f"examples/{name}": f"fairlog/demo/{FOLDER}/{name}" for name in LOGS}


@pytest.mark.parametrize(
    ("name", "takes"), [("functions", "COMPANY USER"), ("dask_cluster", "COMPANY USER"), ("rq_jobs", "URL")]
)
def test_an_example_without_arguments_says_how_it_is_used(name: str, takes: str) -> None:
    program = [sys.executable, str(ROOT / f"examples/{name}.py")]
    tried = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (tried.returncode, tried.stderr) == (1, f"usage: python examples/{name}.py {takes}\n")


def test_they_are_written_where_they_are_not_and_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "log.jsonl").write_text("mine")
    assert write_examples(tmp_path) == [tmp_path / FOLDER / "forged.jsonl"]
    assert (tmp_path / FOLDER / "log.jsonl").read_text() == "mine"
    assert (tmp_path / FOLDER / "forged.jsonl").read_bytes() == (ROOT / FOLDER / "forged.jsonl").read_bytes()


def test_the_verb_runs_nothing_and_says_what_it_has_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = [CliRunner().invoke(cli, ["demo", "--examples"]).output for _ in range(2)]
    assert told == ["".join(f"examples/{name} {done}\n" for name in LOGS) for done in ("written", "is there already")]
    assert CliRunner().invoke(cli, ["demo", "--examples", "--keep"]).exit_code == 2


def test_the_readme_is_short_and_shows_the_page_at_a_past_position() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    pictures = [line.partition("](")[2].removesuffix(")") for line in lines if line.startswith("![")]
    assert len(pictures) == 1
    assert (ROOT / pictures[0]).is_file()
