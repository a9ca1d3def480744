"""Snakemake runs workflows on fairlog by the plugin, in cells where they work. `make test-clients` installs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.integration.engines_rig import Site, site
from tests.waiting import HOPELESS_S, wait_until
from workers.sandbox import why_no_cell

CLIENTS = os.environ.get("CLIENTS_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CLIENTS, reason="Snakemake is not installed; `make test-clients` runs this"),
]
PAGE = (ROOT / "docs" / "snakemake.md").read_text()
FAILS = 'rule all:\n    output: "never"\n    shell: "echo it is broken; exit 3"\n'
GOES_ON = 'rule all:\n    output: "never"\n    shell: "sleep 600"\n'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    share = [str(Path(CLIENTS).parents[1]), str(Path(CLIENTS).resolve().parents[1]), str(ROOT)]
    with site(tmp_path_factory.mktemp("snakemake"), cells=not why_no_cell(), share=share) as found:
        found.shell.ok("company", "add", "globex")
        yield found
        found.audit()


def begun(cluster: Site, folder: Path, workflow: str) -> tuple[subprocess.Popen[bytes], Path]:
    """The command of the page on this workflow, and the file with what it prints."""
    (folder / "Snakefile").write_text(workflow)
    (command,) = re.findall(r"^\$ (snakemake .*)$", PAGE, re.MULTILINE)
    said = folder / "said"
    with said.open("wb") as out:
        words = [CLIENTS, "-m", *command.split(), "--seconds-between-status-checks", "1"]
        return subprocess.Popen(words, cwd=folder, env=cluster.shell.env, stdout=out, stderr=out), said


def test_the_pages_workflow_waits_with_the_reason_and_then_runs(cluster: Site, tmp_path: Path) -> None:
    filling = cluster.shell.ok(
        "submit", "--company", "globex", "--user", "carol", "--tasks", "8", "--cores", "8", "sleep", "600"
    ).split()[0]
    wait_until(lambda: cluster.app(filling)["grantedCores"] == 8, "a full cluster")
    (workflow,) = re.findall(r"^```snakemake\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    running, said = begun(cluster, tmp_path, workflow)
    wait_until(lambda: re.search(r"^Job \d.* waits: .+ \(rule [A-Z]\d+\)$", said.read_text(), re.MULTILINE), "a reason")
    cluster.shell.ok("kill", filling)
    assert running.wait(HOPELESS_S) == 0, said.read_text()
    assert (tmp_path / "total.txt").read_text().split() == ["4", "4", "4"]
    counted = [app for app in cluster.apps() if app["name"] == "count"]
    assert {(app["company"], app["user"], app["state"], app["requestedMemory"]) for app in counted} == {
        ("acme", "ann", "finished", 96 + 256)
    }


def test_a_job_that_fails_is_reported_with_the_reason_and_its_output(cluster: Site, tmp_path: Path) -> None:
    running, said = begun(cluster, tmp_path, FAILS)
    assert running.wait(HOPELESS_S) == 1
    assert "failed: task 0 ended with exit code 1" in said.read_text()
    assert "it is broken" in said.read_text()


def test_an_interrupted_workflow_leaves_nothing_that_runs(cluster: Site, tmp_path: Path) -> None:
    running, said = begun(cluster, tmp_path, GOES_ON)
    (app,) = wait_until(
        lambda: re.findall(r"^Job 0 is app (\S+) of fairlog$", said.read_text(), re.MULTILINE), "an app"
    )
    wait_until(lambda: cluster.app(app)["state"] == "running", "that it runs")
    running.send_signal(signal.SIGINT)
    assert running.wait(HOPELESS_S) != 0
    assert cluster.wait_for_end(app)["state"] == "killed"


def test_a_cluster_that_is_not_there_is_named_in_one_sentence(cluster: Site, tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(FAILS)
    words = [CLIENTS, "-m", "snakemake", "--executor", "fairlog", "--jobs", "1"]
    env = {**cluster.shell.env, "HOME": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no cluster found: give a URL, run `fairlog login`, or start one with `fairlog up`" in done.stderr
    assert "Traceback" not in done.stderr


def test_snakemakes_own_suite_for_executors_passes(cluster: Site, tmp_path: Path) -> None:
    suite = Path(__file__).with_name("snakemake_suite.py")
    words = [
        CLIENTS,
        "-m",
        "pytest",
        "-q",
        "-c",
        "/dev/null",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path / 'base'}",
    ]
    done = subprocess.run(
        [*words, str(suite)], cwd=tmp_path, env=cluster.shell.env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "2 passed" in done.stdout
