"""Names of all Redis keys and RQ queues of a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable

from scheduler.model.errors import InvalidCommand

OPERATORS, WORKERS = "operators", "workers"
"""Lanes of the inbox."""
QUEUES = "rq:queues"
"""Set: the keys of RQ's queues; named here so that clients need not import RQ."""
_MASTERS = re.compile(rb"rq:queue:fairlog\.([^:]+)\.master")
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


class Keys:
    """The keys of the cluster `cluster`. Raises: InvalidCommand if that is not a valid name."""

    def __init__(self, cluster: str = "default") -> None:
        if not _CLUSTER.fullmatch(cluster):
            raise InvalidCommand(
                "a cluster's name has 1 to 63 letters, digits, '_', '.' or '-' "
                f"and begins with a letter or digit, not {cluster[:80]!r}"
            )
        self.cluster = cluster
        self.prefix = f"fairlog:{{{cluster}}}:"
        self.log = f"{self.prefix}log"
        self.inbox = f"{self.prefix}inbox"
        """The operators' lane of the inbox."""
        self.dead = f"{self.prefix}dead"
        self.reads = f"{self.prefix}reads"
        self.reads_archive = f"{self.prefix}reads-archive"
        self.lease = f"{self.prefix}lease"
        self.lease_term = f"{self.prefix}lease-term"
        self.office = f"{self.prefix}office"
        """String: who holds the lease, since when it is renewed, and the last sign of the holder before."""
        self.handover = f"{self.prefix}handover"
        self.masters = f"{self.prefix}masters"
        self.heartbeats = f"{self.prefix}heartbeats"
        self.watched = f"{self.prefix}watched"
        self.agents = f"{self.prefix}agents"
        self.served = f"{self.prefix}served"
        """String: when API servers were heard (`scheduler.service.served`)."""
        self.owners = f"{self.prefix}owners"
        self.ended_sessions = f"{self.prefix}ended-sessions"
        """Stream: the sessions of the page that were ended (`scheduler.store.ended_sessions`)."""
        self.full_disks = f"{self.prefix}full-disks"
        self.unused = f"{self.prefix}unused"
        self.estimates = f"{self.prefix}estimates"
        """Hash, app -> the estimates of its start that were told (`scheduler.store.estimates`)."""
        self.estimated = f"{self.prefix}estimated"
        """List: the last estimates of apps that have started, and when they did."""
        self.noticed = f"{self.prefix}noticed"
        """Hash, condition that needs attention -> when it was first seen (ms)."""
        self.snapshots = f"{self.prefix}snapshots"
        self.snapshotting = f"{self.prefix}snapshotting"
        self.archive = f"{self.prefix}archive"
        self.archiving = f"{self.prefix}archiving"
        self.audited = f"{self.prefix}audited"
        self.backed_up = f"{self.prefix}backed-up"
        self.draft = f"{self.prefix}draft"
        self.damaged = f"{self.prefix}damaged"
        """String: the position of an entry that a master found altered or missing."""
        self.schema = f"{self.prefix}schema"
        """String: the schema of the log (`scheduler.model.versions`); without it, the first with versions, 2."""
        self.shorter = f"{self.prefix}shorter"
        """String: an end of the log that the log does not hold, as JSON (`scheduler.service.known`)."""
        self.settled = f"{self.prefix}settled"
        self.unreplicated = f"{self.prefix}unreplicated"
        self.probe = f"{self.prefix}probe"
        self.master_queue = f"fairlog.{cluster}.master"

    def lane(self, lane: str) -> str:
        """Stream: a lane of the inbox: `operators`, `workers` or `company/NAME`."""
        return self.inbox if lane == OPERATORS else f"{self.inbox}:{lane}"

    def grants(self, worker: str) -> str:
        """Hash, executor or driver id -> its grant (JSON). Only commits write it."""
        return f"{self.prefix}grants:{worker}"

    def snapshot(self, seq: int) -> str:
        """List: header, then parts of the snapshot at log position `seq`."""
        return f"{self.prefix}snapshot:{seq}"

    def reply(self, name: str) -> str:
        """List that receives the answer to a message; expires."""
        return f"{self.prefix}reply:{name}"

    def sent(self, name: str) -> str:
        """String: inbox entry id of the message that is answered at this list; makes resending idempotent; expires."""
        return f"{self.prefix}sent:{name}"

    def secrets(self, app: str) -> str:
        """Hash, environment variable -> secret value; deleted when the app ends."""
        return f"{self.prefix}secrets:{app}"

    def unclaimed(self, app: str, company: str, user: str) -> str:
        """Hash, as `secrets`: those of an app that this user may submit; expires unless the app is registered."""
        return f"{self.prefix}unclaimed:{escaped(company)}/{escaped(user)}/{app}"

    def tasks(self, app: str) -> str:
        """Hash, task index -> task state (JSON), plus the app's counters; expires after the app ends."""
        return f"{self.prefix}tasks:{app}"

    def begun(self, app: str) -> str:
        """Hash, index of a running task -> its executor."""
        return f"{self.prefix}begun:{app}"

    def later(self, app: str) -> str:
        """Sorted set, index of a task that waits for its next attempt -> when that is due (ms)."""
        return f"{self.prefix}later:{app}"

    def near(self, app: str) -> str:
        """Sorted set, all scores 0: HOST, a line feed and CNNNNNN for each queued task and live host that it prefers.

        NNNNNN is the task, C its class: 0 was returned, 1 is new, 2 failed. HOST "" stands for all.
        """
        return f"{self.prefix}near:{app}"

    def output(self, app: str) -> str:
        """Hash, task index -> last 64 KiB of its output; expires after the app ends."""
        return f"{self.prefix}output:{app}"

    def driver_output(self, app: str) -> str:
        """String: last 64 KiB of the driver's output; expires."""
        return f"{self.prefix}driver-output:{app}"

    def kept(self, company: str) -> str:
        """List: `SIZE APP` of the company's apps that are over, in the order of their ends."""
        return f"{self.prefix}kept:{company}"

    @property
    def kept_bytes(self) -> str:
        """Hash, company -> the sum of the sizes in `kept`."""
        return f"{self.prefix}kept"

    @property
    def live(self) -> str:
        """Hash, app that is not over -> `SIZE COMPANY` of its output, `/COMPANY` -> the sum of the company's."""
        return f"{self.prefix}live"

    def mail(self, app: str) -> str:
        """Hash, name -> message: the app's mailbox (`scheduler.store.mailbox`); deleted when the app ends."""
        return f"{self.prefix}mail:{app}"

    def visit(self, visit: str) -> str:
        """Hash: a command that somebody runs in an executor's cell (`scheduler.store.visits`); expires."""
        return f"{self.prefix}visit:{visit}"

    def visitors(self, owner: str) -> str:
        """Set: the visits of a company's accounts, some of them over; expires."""
        return f"{self.prefix}visit:of:{owner}"

    @property
    def visited(self) -> str:
        """Sorted set, by time (s): the visits that executors are to begin, as JSON `[visit, worker, executor]`."""
        return f"{self.prefix}visited"

    def worker_queue(self, worker: str) -> str:
        """RQ queue whose jobs wake the worker's agent."""
        return f"fairlog.{self.cluster}.worker.{worker}"

    def app_queue(self, app: str) -> str:
        """RQ queue of an app's tasks."""
        return f"fairlog.{self.cluster}.app.{app}"


def as_text(name: bytes) -> str:
    """A name from the store; bytes that are no text become a name that nothing has."""
    return name.decode(errors="replace")


def escaped(name: str) -> str:
    """The name, injectively, in the characters that RQ allows in ids: letters, digits, `_` and `-`."""
    return re.sub(r"[^A-Za-z0-9-]", lambda found: f"_{ord(found[0]):02x}", name)


def bell_id(queue: str) -> str:
    """The id of the wake-up job on the RQ queue `queue`."""
    return f"{escaped(queue)}_bell"


def clusters(queues: Iterable[bytes]) -> list[str]:
    """The clusters whose masters have listened in the store, by the names of its RQ queues."""
    return sorted(found[1].decode() for name in queues if (found := _MASTERS.fullmatch(name)))


def queue_key(queue: str) -> str:
    """The Redis list behind the RQ queue `queue`; named here so that clients need not import RQ."""
    return f"rq:queue:{queue}"
