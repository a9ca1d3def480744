"""What `up` plans and says."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fairlog.local.up import Tree, UpPlan, describe
from recovery.failover.exporter import CannotExport


def test_each_master_of_up_serves_its_metrics_at_a_port_of_its_own(tmp_path: Path) -> None:
    plan = UpPlan(tmp_path, masters=3, metrics=("::1", 9464))
    assert [plan.metrics_of(number) for number in (1, 2, 3)] == ["[::1]:9464", "[::1]:9465", "[::1]:9466"]
    assert "metrics of its masters: http://[::1]:9464/metrics http://[::1]:9465/metrics http://[::1]:9466/metrics" in (
        describe(plan)
    )
    assert "metrics" not in describe(plan._replace(metrics=None))


def test_a_port_of_metrics_that_is_taken_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        plan = UpPlan(tmp_path, workers=0, masters=2, metrics=("127.0.0.1", port - 1))
        said = r"cannot serve metrics at 127\.0\.0\.1:\d+: Address already in use; give --metrics another port"
        with pytest.raises(CannotExport, match=said), Tree(plan, say=print, findable=False):
            pass
