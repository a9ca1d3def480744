"""What the API tells of apps, tasks and the log, as typed results: the structs of `scheduler.model.answers`.

Times are in ms since the epoch, memory in MiB. A server of a later version may tell more, which is left out.
"""

from __future__ import annotations

from msgspec import Struct

from scheduler.model.answers import AppDetails, Efficiency, Explanation, Waited
from scheduler.model.answers import AppListed as App
from scheduler.model.answers import DriverHeld as Driver
from scheduler.model.answers import ExecutorHeld as Executor
from scheduler.model.answers import LogEvent as Event
from scheduler.model.answers import QueuePlace as Place
from scheduler.model.answers import StartEstimate as Estimate
from scheduler.model.answers import TaskShown as Task
from scheduler.model.answers import WaitReason as Wait

__all__ = [
    "App",
    "AppDetails",
    "Driver",
    "Efficiency",
    "Estimate",
    "Event",
    "Executor",
    "Explanation",
    "Place",
    "Submitted",
    "Task",
    "Wait",
    "Waited",
]


class Submitted(Struct, frozen=True, kw_only=True):
    """An app that was submitted: its id, the position of its last event, the id of the command."""

    app: str
    seq: int
    command_id: str
