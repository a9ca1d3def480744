"""Short runs of `make chaos`: real processes under load are killed, paused and restarted; every promise holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SEED = 1
KILLS_A_PRIMARY_FIRST = 4
"""A seed whose first fault of a server kills the primary; later faults of servers wait until all are in sync."""
AT_MOST_S = 1800
"""A run that has not ended by then hangs. A run takes some ten seconds longer than its faults."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="its tasks read /proc"),
]


def chaos(folder: Path, *options: str) -> dict[str, Any]:
    """The report of a run that broke no promise."""
    command = [sys.executable, "-m", "tests.chaos", "--seed", str(SEED), "--json", "--keep", str(folder / "kept")]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=AT_MOST_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["violations"] == []
    return report


def test_every_process_may_be_killed_at_every_moment(tmp_path: Path) -> None:
    report = chaos(tmp_path, "--seconds", "50")
    hit = {fault.partition(" ")[2] for fault in report["faults"]}
    assert hit >= {"serving master", "standby", "agent", "executor", "api", "client", "store"}
    assert report["commands"]["acknowledged"] > 0
    assert report["apps"]["finished"] > 0
    assert report["log"]["elections"] > 1


def test_the_primary_store_may_be_killed_under_two_replicas(tmp_path: Path) -> None:
    report = chaos(tmp_path, "--seconds", "25", "--replicated", "--seed", str(KILLS_A_PRIMARY_FIRST))
    assert "kill store" in report["faults"]
    assert report["apps"]["finished"] > 0
