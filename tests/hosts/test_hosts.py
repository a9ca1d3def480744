"""A short run of `make hosts`: a cluster of several hosts loses its master, is cut in two, and keeps its promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.bed import LEASE_S
from tests.hosts.faults import FAULTS
from tests.hosts.network import missing
from tests.hosts.upgrade import ORDER

ROOT = Path(__file__).parents[2]
AT_MOST_S = 1800
"""A run that has not ended by then hangs."""
CHOSEN = ("active master killed", "primary and active master cut off")
HOLD_S = 6.0
PAGE = ROOT / "docs" / "operations.md"


def report_of(folder: Path, *options: str) -> dict[str, float]:
    """The pauses that a run printed, by its faults; no promise was broken."""
    fixed = ["--seed", "1", "--json", "--keep", str(folder / "kept")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.hosts", *fixed, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=AT_MOST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["violations"] == []
    assert report["commands"]["acknowledged"] > 0
    assert report["commands"]["unknown"] == 0
    return {each["fault"]: each["nobody_s"] for each in report["pauses"]}


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing() or "this machine can have several hosts")
def test_nothing_acknowledged_is_lost_when_hosts_are_cut_off(tmp_path: Path) -> None:
    chosen = [word for name in CHOSEN for word in ("--fault", name)]
    nobody_s = report_of(tmp_path, "--hold", str(HOLD_S), *chosen)
    assert nobody_s.keys() == set(CHOSEN)
    assert nobody_s["active master killed"] > LEASE_S / 2, "its lease has to run out first"


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing() or "this machine can have several hosts")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="without a repository there is no revision to begin with")
def test_programs_are_upgraded_one_after_the_other_under_load(tmp_path: Path) -> None:
    """From this revision, so that none of both versions knows what the other one does not."""
    assert report_of(tmp_path, "--from", "HEAD").keys() == {step for step, _ in ORDER}


def test_the_page_says_of_each_fault_for_how_long_nobody_could_submit() -> None:
    section = PAGE.read_text().partition("## What a fault costs")[2].partition("\n## ")[0]
    rows = [row.split("|") for row in section.splitlines() if row.startswith("| ")]
    assert {row[1].strip() for row in rows[1:]} == {fault.name for fault in FAULTS}
