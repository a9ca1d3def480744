"""What workers report is the same in all versions of the messages that a master reads."""

from __future__ import annotations

import pytest

from scheduler.model import commands
from scheduler.model.versions import MESSAGES, OLDEST_MESSAGES

REPORTS: dict[type[commands.Command], str] = {
    commands.RegisterWorker: "worker node host rack cores memory_mb resources labels",
    commands.DrainWorker: "worker reason unwell",
    commands.UndrainWorker: "worker unwell",
    commands.RemoveWorker: "worker force",
    commands.StartedExecutor: "executor worker",
    commands.EndedExecutor: "executor worker reason exit_code done finished unstartable detail used",
    commands.EndedDriver: "driver worker reason exit_code detail used",
    commands.EndApp: "app reason detail executor",
    commands.ReportBacklog: "executor waiting running idle preferring_tasks prefer",
}
"""Report -> its fields, in version 1. A master refuses one that it does not know, and the worker's report is lost: an
app whose end was one never ends. So an upgrade would need masters before API servers, which read the log."""

SINCE: dict[type[commands.Command], tuple[str, ...]] = {commands.RegisterWorker: ("taints",)}
"""Report -> later fields, which are sent only for what an older master does not have: it says so."""


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: str(report.__name__))
def test_a_report_has_no_field_that_an_older_master_refuses(report: type[commands.Command]) -> None:
    """One more needs a version of its own, and the older form for masters that read the older one only."""
    assert (OLDEST_MESSAGES, MESSAGES) == (1, 1)
    later = SINCE.get(report, ())
    assert " ".join(name for name in report.__struct_fields__ if name not in later) == REPORTS[report]
    assert report.__struct_config__.omit_defaults or not later
