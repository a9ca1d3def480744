"""Every cause for which an app waits, as people read it: what it is called, what would help, and Slurm's word for it.

`witness.pending_reasons` finds which one holds, by which rule, and tells it with its facts.
"""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """A cause of waiting: a few words after the app's name, what would help, and the reason that Slurm would give."""

    short: str
    help: str
    slurm: str = "Resources"


CAUSES = {
    "dependency": Cause(
        "waits for other apps",
        "It starts when the apps that it names have ended as it asks; kill it if they never will.",
        "Dependency",
    ),
    "hold": Cause(
        "is on hold",
        "Release it.",
        "JobHeldUser",
    ),
    "begin": Cause(
        "is not to begin yet",
        "It starts after the time that it names.",
        "BeginTime",
    ),
    "ending": Cause(
        "ends before it runs again",
        "Nothing: it is ready once what ran of it is gone.",
        "Cleaning",
    ),
    "no-live-worker": Cause(
        "no worker is live",
        "Start a worker, or return a draining one to service.",
    ),
    "beyond-limit": Cause(
        "a limit is reached",
        "Wait until apps under the same limit end, or have the limit raised.",
        "QOSMaxJobsPerUserLimit",
    ),
    "queue": Cause(
        "an earlier app of the user",
        "An earlier app of the same user goes first; a higher priority changes their order.",
        "Priority",
    ),
    "next-turn": Cause(
        "due in the next turn",
        "Nothing: it is due in the next turn.",
        "Priority",
    ),
    "not-entitled": Cause(
        "is not entitled to more",
        "Wait until others want less, or add workers; what is left over is lent to it at once.",
        "AssocGrpCpuLimit",
    ),
    "larger-than-share": Cause(
        "is larger than its share",
        "Submit smaller executors, add workers, have the quota raised, or have `slot_s` set.",
        "AssocGrpCpuLimit",
    ),
    "cap": Cause(
        "its company's quota is used up",
        "Wait until apps of its company end, have the quota raised, or let the company borrow.",
        "AssocGrpCpuLimit",
    ),
    "drivers": Cause(
        "drivers hold half of the quota",
        "Wait until a driver of its company ends, or have the company's quota raised.",
        "QOSMaxJobsPerUserLimit",
    ),
    "driver": Cause(
        "its driver waits",
        "Its driver waits for a worker with room; a smaller driver or a further worker helps.",
    ),
    "limit": Cause(
        "has all its executors",
        "It has all the executors that it may have at once.",
        "QOSMaxJobsPerUserLimit",
    ),
    "no-worker-large-enough": Cause(
        "no worker is large enough",
        "No live worker is large enough: ask for smaller executors, or add a larger worker.",
    ),
    "excluded": Cause(
        "failed on the workers with room",
        "Its executors failed on the workers that have room; find out why, in its output.",
    ),
    "suspect-worker": Cause(
        "workers are suspected",
        "The workers with room are suspected; they are tried again by themselves.",
    ),
    "window": Cause(
        "a window is in the way",
        "It starts once the window is over; a maximum runtime that ends before it lets it start sooner.",
        "ReqNodeNotAvail",
    ),
    "need": Cause(
        "room is being made for it",
        "Nothing: room is made for it by the date that it is told.",
    ),
    "locality": Cause(
        "waits for its hosts",
        "It insists on preferred hosts for a moment, then takes others.",
    ),
    "workers-full": Cause(
        "workers are full",
        "Wait until executors end, or add workers.",
    ),
}
"""By name, in the order of reports."""
