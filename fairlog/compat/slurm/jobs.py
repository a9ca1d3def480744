"""Apps as Slurm's jobs: their states, reasons and times, a job for each app and for each task of an array."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fairlog.compat.slurm import batch, times
from fairlog.compat.slurm.nodes import tres_of
from fairlog.compat.slurm.road import ApiRoad, Me, Problem
from fairlog.compat.slurm.sbatch import code_told, members, signal_that_ended, signal_told
from fairlog.compat.slurm.tables import PARTITION
from fairlog.compat.slurm.words import OF_TASK, SlurmError, listed, runs, task_of
from scheduler.model.causes import CAUSES

MIN_JOB_AGE_S = 300
"""How long squeue shows jobs that have ended."""
STATES = {
    "PENDING": "PD",
    "RUNNING": "R",
    "SUSPENDED": "S",
    "COMPLETED": "CD",
    "CANCELLED": "CA",
    "FAILED": "F",
    "TIMEOUT": "TO",
    "NODE_FAIL": "NF",
    "PREEMPTED": "PR",
    "BOOT_FAIL": "BF",
    "DEADLINE": "DL",
    "OUT_OF_MEMORY": "OOM",
    "COMPLETING": "CG",
    "CONFIGURING": "CF",
    "RESIZING": "RS",
    "RESV_DEL_HOLD": "RD",
    "REQUEUED": "RQ",
    "REQUEUE_FED": "RF",
    "REQUEUE_HOLD": "RH",
    "REVOKED": "RV",
    "SIGNALING": "SI",
    "SPECIAL_EXIT": "SE",
    "STAGE_OUT": "SO",
    "STOPPED": "ST",
}
"""Slurm's states and their short names."""
_ENDS = {"finished": "COMPLETED", "killed": "CANCELLED", "expired": "TIMEOUT", "unmet": "CANCELLED"}
_TASKS = {
    "queued": "PENDING",
    "running": "RUNNING",
    "succeeded": "COMPLETED",
    "failed": "FAILED",
    "stopped": "CANCELLED",
    "cancelled": "CANCELLED",
    "leaving": "COMPLETING",
}
_UNBEGUN = {
    **dict.fromkeys(("exit_code", "executor", "started_at", "ended_at")),
    "attempts": 0,
    "cpu_ms": 0,
    "peak_mb": 0,
    "message": "",
}
"""What is known of a task that has not begun."""
MOST_LOOKED_UP = 20
"""Of how many jobs on several nodes that have ended one call finds out where they ran."""
ENTRIES_READ = 20_000
"""How many events behind its admission are looked through for the executors of such a job; the API reads no more."""
_ENDED = frozenset(STATES) - {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"}


class SlurmJob:
    """A job, or a task of an array, in Slurm's words. Times are in ms, None = not yet; memory is in MiB.

    `index` is that of a task, `indexes` the list of the pending tasks of an array that are one line; else both are
    None.
    """

    def __init__(
        self,
        app: dict[str, Any],
        tasks: list[dict[str, Any]],
        index: int | None = None,
        indexes: list[int] | None = None,
    ) -> None:
        self.app, self.tasks, self.index, self.indexes = app, tasks, index, indexes
        self.detail: dict[str, Any] = {}
        """What the API tells of this app alone, where that has been asked for (`with_details`)."""
        self.number = app["submittedSeq"]
        self.state = self._state()
        self.ended = self.state in _ENDED
        self.start = self._start()
        self.end = self._end() if self.ended else None

    def _state(self) -> str:
        app, ended = self.app, self.app["endedAt"] is not None
        of_task = self.index is not None and self.tasks and app["array"]
        if of_task:
            task = self.tasks[0]
            if task["state"] == "failed":
                return failed_as(task["message"])
            if not (ended and task["state"] in ("queued", "running", "leaving")) and task["state"] != "stopped":
                return _TASKS[task["state"]]
        if ended:
            return _ENDS.get(app["state"]) or failed_as(app["detail"])
        if self.indexes is not None or app["state"] in ("pending", "waiting"):
            return "PENDING"
        return "RUNNING"

    def _start(self) -> int | None:
        began = [task["started_at"] for task in self.tasks if task["started_at"]]
        if began:
            return int(min(began))
        if self.state == "PENDING" or (self.app["array"] and self.tasks):
            return None
        found = self.app.get("startedAt") or self.app["admittedAt"]
        return None if found is None else int(found)

    def _end(self) -> int | None:
        ended = [task["ended_at"] for task in self.tasks if task["ended_at"]] if self.index is not None else []
        found = max(ended, default=0) or self.app["endedAt"]
        return None if found is None else int(found)

    @property
    def id(self) -> str:
        """The id, with the index of its task, or the indexes of those that are pending."""
        if self.indexes is not None:
            return f"{self.number}_[{spans(self.indexes)}{self._at_once()}]"
        return f"{self.number}" if self.index is None else f"{self.number}_{self.index}"

    def _at_once(self) -> str:
        app = self.app
        most = app["requestedCores"] // max(1, self.cores)
        return f"%{most}" if 0 < most < app["tasks"] else ""

    @property
    def own_number(self) -> int:
        """Its number, which is another one for each task of an array; every command takes it for the task's id.

        In the task itself it is that of its array, which its SLURM_JOB_ID is.
        """
        alone = self.index is None or of_this_task(f"{self.number}") == self.id
        return int(self.number) + (0 if self.index is None or alone else (self.index + 1) * OF_TASK)

    @property
    def short(self) -> str:
        """The short name of the state."""
        return STATES[self.state]

    @property
    def cause(self) -> str:
        """Why it waits, or how it ended, in fairlog's words; "" if there is nothing to say."""
        if self.state == "PENDING":
            return str(self.app.get("reason") or "")
        return ""

    @property
    def reason(self) -> str:
        """Why it waits, or how it ended, in Slurm's words."""
        if self.state == "PENDING":
            found = reason_of(self.app)
            in_turn = found == "None" and self.app["array"] and self.app["admittedAt"] and self._at_once()
            return "JobArrayTaskLimit" if in_turn else found
        if self.app["state"] == "unmet":
            return "DependencyNeverSatisfied"
        return {
            "FAILED": "JobLaunchFailure" if self.code[1] else "NonZeroExitCode",
            "TIMEOUT": "TimeLimit",
            "NODE_FAIL": "NodeDown",
            "OUT_OF_MEMORY": "OutOfMemory",
        }.get(self.state, "None")

    @property
    def eligible(self) -> int | None:
        """From when on it may start, None while that is not known."""
        found = self.app["beginAt"] or self.app["readyAt"]
        return None if found is None else int(found)

    @property
    def nodes(self) -> list[str]:
        """The nodes on which it runs or has run, as far as they are known."""
        if self.state == "PENDING":
            return []
        ran = [task["worker"] for task in self.tasks if task.get("worker")]
        return list(dict.fromkeys(ran or self.app.get("workers") or ()))

    @property
    def node_count(self) -> int:
        """On how many nodes it runs or has run: a task on one, the executors of an app maybe on several."""
        if self.index is not None:
            return 1
        return int(self.app.get("executors") or 0) or max(1, len(self.nodes))

    @property
    def ran_s(self) -> int:
        """For how many seconds it has run."""
        if self.start is None:
            return 0
        return max(0, ((self.end or times.now()) - self.start) // 1000)

    @property
    def waited_s(self) -> int:
        """For how many seconds it has waited, or did."""
        return max(0, ((self.start or self.end or times.now()) - int(self.app["submittedAt"])) // 1000)

    @property
    def limit_s(self) -> int | None:
        """Its time limit in seconds, None for none."""
        found = self.app["timeLimit"] if self.app["array"] else self.app["maxRuntime"]
        return None if found is None else int(found)

    @property
    def cores(self) -> int:
        """The cores of the job, or of each task of an array."""
        if nodes := self.app.get("executors"):
            return int(nodes * self.app["executorCores"])
        return int(self.app["coresPerTask"] if self.app["tasks"] else self.app["requestedCores"])

    @property
    def memory(self) -> int:
        """The memory of the job, or of each task of an array."""
        if nodes := self.app.get("executors"):
            return int(nodes * self.app["executorMemory"])
        if self.app["memoryPerTask"]:
            return int(self.app["memoryPerTask"])
        return int(self.app["requestedMemory"] * self.cores / max(1, self.app["requestedCores"]))

    @property
    def kinds(self) -> dict[str, int]:
        """What the job, or each task of an array, asks for of further kinds, such as gpu; parts are rounded up."""
        every: dict[str, int] = self.app.get("requestedResources") or {}
        own, whole = (1, 1) if self.app.get("executors") else (self.cores, max(1, self.app["requestedCores"]))
        return {kind: -(-number * own // whole) for kind, number in every.items()}

    @property
    def code(self) -> tuple[int, int]:
        """The exit code and the signal that ended it."""
        if self.state in ("CANCELLED", "TIMEOUT"):
            return 0, 15 if self.start is not None else 0
        if self.state == "OUT_OF_MEMORY":
            return 0, 125
        failed = [task for task in self.tasks if task["exit_code"]]
        if signals := [number for number in map(signal_that_ended, failed) if number]:
            return 0, max(signals)
        if self.state == "FAILED" and (number := signal_told(self.app["detail"])):
            return 0, number
        usual = code_told(self.app["detail"]) or 1  # of programs, which are no tasks
        return max((task["exit_code"] for task in failed), default=usual if self.state == "FAILED" else 0), 0

    @property
    def restarts(self) -> int:
        """How often it was put back, as far as that is known."""
        again = [int(task["attempts"]) - 1 for task in self.tasks if task["attempts"]]
        return max([int(self.detail.get("restarts") or 0), *again])

    @property
    def command(self) -> str:
        """The script's file and its arguments; "(null)" of what has none, or is hidden from the caller."""
        return batch.typed(self.detail.get("command") or []) or "(null)"

    def file(self, name: str) -> str:
        """The file of its `output` or `error`: the pattern with what stands for each of its parts."""
        from scheduler.model.outputs import filled  # noqa: PLC0415 (few ask for it)

        pattern = self.detail.get(name) or self.detail.get("output")
        if not pattern:
            return "(null)"
        index = "" if self.index is None else str(self.index)
        known = {
            "j": f"{self.number}_{index}" if index else f"{self.number}",
            "A": f"{self.number}",
            "a": index or "0",
            "x": str(self.app["name"]),
            "u": str(self.app["user"]),
            "N": self.nodes[0] if self.nodes else "",
        }
        return filled(pattern, known)

    @property
    def stdin(self) -> str:
        """The file that it reads as its stdin."""
        command = batch.of_first_node(self.detail.get("command") or [])
        return str(command[5]) if batch.is_of_batch(command) else "/dev/null"

    @property
    def tres(self) -> str:
        """What it asks for or is granted, as Slurm lists it."""
        plain = f"cpu={self.cores},mem={self.memory}M,node={self.node_count},billing={self.cores}"
        return plain + tres_of(self.kinds)

    @property
    def gres_per_node(self) -> str:
        """What it asks for of further kinds on each node: `gres:gpu:2`; "N/A" for nothing."""
        each = {kind: -(-number // self.node_count) for kind, number in self.kinds.items()}
        return ",".join(f"gres:{kind}:{number}" for kind, number in each.items()) or "N/A"

    @property
    def partition(self) -> str:
        """The one that there is."""
        return PARTITION


def reason_of(app: dict[str, Any]) -> str:
    """Why an app waits, as Slurm calls it."""
    cause = app.get("reason")
    if app["onHold"]:
        return "JobHeldUser"
    if cause is None:
        return "None"
    return CAUSES[cause].slurm if cause in CAUSES else "Resources"  # a newer server may know further ones


def after_of(app: dict[str, Any]) -> str:
    """What the app waits for, as Slurm writes it; "" for nothing."""
    kinds = {"began": "after", "not-ok": "afternotok"}
    return ",".join(
        f"{kinds.get(why, f'after{why}')}:{name}(unfulfilled)" for name, why in (app["after"] or {}).items()
    )


def failed_as(why: str) -> str:
    """The state of a job or task that failed for that reason."""
    if "time limit" in why:
        return "TIMEOUT"
    if "memory" in why or why.endswith("MiB are granted"):
        return "OUT_OF_MEMORY"
    if "was lost" in why or "lost with worker" in why:
        return "NODE_FAIL"
    return "FAILED"


def jobs_of(app: dict[str, Any], *, apart: bool) -> list[SlurmJob]:
    """The jobs that an app is: one; of an array each task, the pending ones together unless they are to be `apart`."""
    tasks = app.get("taskStates") or []
    if not app["array"]:
        return [SlurmJob(app, tasks)]
    indexes = members(app["array"])
    states: list[dict[str, Any] | None] = [*tasks, *[None] * (len(indexes) - len(tasks))]
    for place in app.get("cancelled") or ():
        task = states[place]
        if task is None or task["state"] in ("queued", "running"):
            leaves = task is not None and task["state"] == "running"
            states[place] = {**_UNBEGUN, **(task or {}), "state": "leaving" if leaves else "cancelled"}
    found: list[SlurmJob] = []
    waiting: list[int] = []
    for index, task in zip(indexes, states, strict=False):
        job = SlurmJob(app, [] if task is None else [task], index)
        if job.state == "PENDING" and not apart:
            waiting.append(index)
        else:
            found.append(job)
    return [*([SlurmJob(app, [], None, waiting)] if waiting else []), *found]


def spans(indexes: list[int]) -> str:
    """The indexes as a list such as `1-3,7`."""
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs(indexes))


class Named:
    """Jobs that are named by their ids: `17`, `17_3`, `17_[1-5]`, `17.batch`."""

    def __init__(self, texts: list[str], wrong: str) -> None:
        self.indexes: dict[str, set[int] | None] = {}
        for text in texts:
            whole = text.partition(".")[0]
            number, underscore, rest = whole.partition("_")
            index = rest.strip("[]").partition("%")[0]
            if not (number.isascii() and number.isdecimal()) or (underscore and not is_list(index)):
                raise SlurmError(f"{wrong}{text[:40]}")
            if not underscore:
                self.indexes[number] = None
            elif (known := self.indexes.setdefault(number, set())) is not None:
                known.update(members(index))

    def takes(self, job: SlurmJob) -> bool:
        """Whether the job is one of them."""
        indexes = self.indexes.get(str(job.number), set())
        return indexes is None or job.index in indexes or bool(job.indexes and indexes & set(job.indexes))


def of_this_task(job: str) -> str:
    """The job that is meant: in a task of an array its id is that task's, as with Slurm, where each has its own."""
    here = os.environ
    if job == here.get("SLURM_ARRAY_JOB_ID") == here.get("SLURM_JOB_ID"):
        return f"{job}_{here['SLURM_ARRAY_TASK_ID']}"
    return job


def is_list(text: str) -> bool:
    """Whether the text is a list of indexes."""
    return bool(text) and all(
        bool(each) and each.isdecimal() for part in text.split(",") for each in part.replace(":", "-").split("-")
    )


def split(text: str) -> list[str]:
    """The parts of a list of jobs, without the blanks around them; the numbers of tasks are written as their ids."""
    return [_id_of(each.strip()) for each in listed(text) if each.strip()]


def _id_of(text: str) -> str:
    number, dot, step = text.partition(".")
    task = task_of(number)
    return text if task is None else f"{task[0]}_{task[1]}{dot}{step}"


def states_named(text: str) -> set[str]:
    """The states of a list of names, long or short. Raises: Refused."""
    found: set[str] = set()
    for each in text.split(","):
        name = each.strip().upper()
        if name == "ALL":
            found |= set(STATES)
        elif name in STATES:
            found.add(name)
        elif name in STATES.values():
            found.add(next(state for state, short in STATES.items() if short == name))
        elif name:
            raise SlurmError(f"Invalid job state specified: {each[:40]}; valid job states include: {','.join(STATES)}")
    return found


def ended_since(seconds: int) -> int:
    """The time (ms) so many seconds ago."""
    return round((time.time() - seconds) * 1000)


def ask(road: ApiRoad, **query: str | int) -> list[dict[str, Any]]:
    """The apps, with what their jobs are made of."""
    try:
        found: list[dict[str, Any]] = road.get("/v1/apps", fresh="true", details="true", limit=10_000, **query)
    except Problem as problem:
        if problem.title not in {"UnknownCompany", "UnknownUser"}:  # Slurm compares the names with those of jobs
            raise
        return []
    return found


def likely_starts(road: ApiRoad) -> dict[str, int | None]:
    """App that waits -> when (ms) it probably starts, None where nobody can tell."""
    told = road.get("/v1/estimates", fresh="true")["estimates"]
    return {each["app"]: each["likely"] for each in told}


def start_of(job: SlurmJob) -> int | None:
    """When (ms) the job started, or is expected to: at its likely start if that was asked for, else at its begin."""
    found = job.start or job.app.get("likelyStart") or job.app["beginAt"]
    return None if found is None else int(found)


def chosen(road: ApiRoad, me: Me | None, wanted: dict[str, str]) -> dict[str, str | int]:
    """The query for jobs of companies and users that options name."""
    query: dict[str, str | int] = {}
    if text := wanted.get("account"):
        query["companies"] = text
    if text := wanted.get("user"):
        query["users"] = ",".join((me or Me(road)).names(text)) or "-"
    return query


def unknown_users(road: ApiRoad, names: str, apps: list[dict[str, Any]]) -> list[str]:
    """The names of a list that are no user's, neither on this machine nor in the cluster; `apps` are those found.

    Of accounts that there are not, Slurm says nothing.
    """
    wanted = dict.fromkeys(each for each in names.split(",") if each and not each.isdecimal())
    seen = {app["user"] for app in apps}
    left = [name for name in wanted if name not in seen and not _is_of_machine(name)]
    if not left or road.is_inside:
        return []
    known = {Me(road).user, *(each["user"] for each in road.get("/v1/shares")["users"])}
    with suppress(Problem):  # not everybody may list the accounts
        known |= {each["account"].partition("/")[2] for each in road.get("/v1/accounts")}
    return [name for name in left if name not in known]


def check_users(road: ApiRoad, names: str, apps: list[dict[str, Any]], wrong: str) -> None:
    """Raises: SlurmError, with the words `wrong`, for the first that `unknown_users` names."""
    for name in unknown_users(road, names, apps):
        raise SlurmError(f"{wrong}{name[:40]}")


def _is_of_machine(user: str) -> bool:
    """Whether this machine knows a user of that name."""
    import pwd  # noqa: PLC0415 (not on every system)

    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def with_details(road: ApiRoad, found: list[SlurmJob]) -> None:
    """Ask for what the API tells of the app of each job alone."""
    known: dict[str, dict[str, Any]] = {}
    for job in found:
        name = job.app["app"]
        if name not in known:
            known[name] = road.get(f"/v1/apps/{name}")
        job.detail = known[name]


def with_nodes(road: ApiRoad, apps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The apps, of which the last gangs that have ended know where they ran, as the log tells it."""
    ended = [app for app in apps if app.get("executors") and app["endedAt"]]
    for app in ended[-MOST_LOOKED_UP:]:
        admitted = road.get(f"/v1/apps/{app['app']}")["admittedSeq"]
        if admitted is not None:
            query = {"before": admitted + ENTRIES_READ, "kind": "ExecutorAllocated", "limit": 100}
            entries = road.get("/v1/entries", app=app["app"], **query)["entries"]
            app["workers"] = list(dict.fromkeys(each["data"]["worker"] for each in reversed(entries))) or app["workers"]
    return apps


def with_numbers(road: ApiRoad, apps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The apps, of which those that they wait for are named as Slurm names jobs: an array is all of its tasks."""
    earlier = {name for app in apps for name in app["after"] or ()}
    if not earlier or road.is_inside:
        return apps
    known: dict[str, str] = {}
    names = sorted(earlier)
    for start in range(0, len(names), 500):
        for one in ask(road, ids=",".join(names[start : start + 500]), everything="true"):
            known[one["app"]] = f"{one['submittedSeq']}{'_*' if one['array'] else ''}"
    return [
        {**app, "after": {known.get(name, name): why for name, why in (app["after"] or {}).items()}} for app in apps
    ]


def always(value: object) -> Callable[[object], object]:
    """What tells the same of every job."""
    return lambda _: value
