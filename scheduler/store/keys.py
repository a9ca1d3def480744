"""Where one cluster's data lies in the store: every key and every RQ queue name, spelled once."""

from __future__ import annotations

import re

from scheduler.model.errors import InvalidCommand

_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


class Keys:
    """The keys of the cluster `cluster`.

    Raises: InvalidCommand if the name holds anything but letters, digits, `_`, `.` and `-`.
    """

    def __init__(self, cluster: str = "default") -> None:
        if not _CLUSTER.fullmatch(cluster):
            raise InvalidCommand(
                f"the cluster's name must be 1 to 63 letters, digits, '_', '.' or '-', not {cluster[:80]!r}"
            )
        self.cluster = cluster
        self.prefix = f"fairlog:{{{cluster}}}:"
        self.log = f"{self.prefix}log"
        self.inbox = f"{self.prefix}inbox"
        self.dead = f"{self.prefix}dead"
        self.lease = f"{self.prefix}lease"
        self.lease_term = f"{self.prefix}lease-term"
        self.handover = f"{self.prefix}handover"
        self.masters = f"{self.prefix}masters"
        self.heartbeats = f"{self.prefix}heartbeats"
        self.agents = f"{self.prefix}agents"
        self.snapshots = f"{self.prefix}snapshots"
        self.snapshotting = f"{self.prefix}snapshotting"
        self.archive = f"{self.prefix}archive"
        self.archiving = f"{self.prefix}archiving"
        self.draft = f"{self.prefix}draft"
        self.settled = f"{self.prefix}settled"
        self.probe = f"{self.prefix}probe"
        self.master_queue = f"fairlog.{cluster}.master"

    def grants(self, worker: str) -> str:
        """Hash, executor id -> what to run: changed only by commits."""
        return f"{self.prefix}grants:{worker}"

    def snapshot(self, seq: int) -> str:
        """List: what the snapshot of the state at log position `seq` is, then its parts."""
        return f"{self.prefix}snapshot:{seq}"

    def reply(self, command_id: str) -> str:
        """List that the answer to a command is pushed on; it expires."""
        return f"{self.prefix}reply:{command_id}"

    def sent(self, command_id: str) -> str:
        """The inbox entry that holds a command, so that asking again does not put it there twice; it expires."""
        return f"{self.prefix}sent:{command_id}"

    def secrets(self, app: str) -> str:
        """Hash, environment variable -> value; deleted with the app."""
        return f"{self.prefix}secrets:{app}"

    def tasks(self, app: str) -> str:
        """Hash, task index -> how the task stands, plus the counters of the app; expires after the app."""
        return f"{self.prefix}tasks:{app}"

    def begun(self, app: str) -> str:
        """Hash, task index -> the executor that has begun it and not ended it."""
        return f"{self.prefix}begun:{app}"

    def output(self, app: str) -> str:
        """Hash, task index -> the last 64 KiB of the task's output; expires after the app."""
        return f"{self.prefix}output:{app}"

    def driver_output(self, app: str) -> str:
        """The last 64 KiB of the output of the app's driver; expires."""
        return f"{self.prefix}driver-output:{app}"

    def worker_queue(self, worker: str) -> str:
        """The RQ queue whose jobs ring for a worker's agent."""
        return f"fairlog.{self.cluster}.worker.{worker}"

    def app_queue(self, app: str) -> str:
        """The RQ queue that holds an app's tasks."""
        return f"fairlog.{self.cluster}.app.{app}"


def bell_id(queue: str) -> str:
    """The id of the one job that rings on the RQ queue `queue`; RQ takes letters, digits, `_` and `-` only."""
    return re.sub(r"[^A-Za-z0-9-]", lambda found: f"_{ord(found[0]):02x}", queue) + "_bell"


def queue_key(queue: str) -> str:
    """The Redis list behind the RQ queue `queue`, where rings are pushed. Spelled here, so that clients need no RQ."""
    return f"rq:queue:{queue}"
