"""`squeue`: lists jobs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from fairlog.compat.slurm import jobs, times
from fairlog.compat.slurm.jobs import SlurmJob, always
from fairlog.compat.slurm.nodes import workers_named
from fairlog.compat.slurm.road import ApiRoad, Me
from fairlog.compat.slurm.tables import CLUSTER, QOS, SQUEUE, VARIABLES
from fairlog.compat.slurm.words import SlurmError, name_idle, read, whole, width_of, with_variables

USUAL = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
NO = "(null)"
_LIVING = frozenset({"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"})
"""The states in which jobs are that squeue shows unless others are named."""


def _where(job: SlurmJob) -> str:
    """The nodes, or in brackets why it waits or has failed."""
    waits = job.state in ("PENDING", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE")
    return f"({job.reason})" if waits else ",".join(job.nodes)


def _left(job: SlurmJob) -> str:
    return "UNLIMITED" if job.limit_s is None else times.clock(max(0, job.limit_s - job.ran_s))


def _size(mb: int) -> str:
    return f"{mb // 1024}G" if mb >= 1024 and mb % 1024 == 0 else f"{mb}M"


def _after(job: SlurmJob) -> str:
    return jobs.after_of(job.app) or NO


def _host(job: SlurmJob) -> str:
    return job.nodes[0] if job.nodes else "n/a"


FIELDS: dict[str, tuple[str, str, Callable[[SlurmJob], object]]] = {
    "i": ("JOBID", "JobID", lambda job: job.id),
    "A": ("JOBID", "JobArrayID", lambda job: job.own_number),
    "F": ("ARRAY_JOB_ID", "ArrayJobID", lambda job: job.number),
    "K": (
        "ARRAY_TASK_ID",
        "ArrayTaskID",
        lambda job: job.id.partition("_")[2].strip("[]") if "_" in job.id else "N/A",
    ),
    "a": ("ACCOUNT", "Account", lambda job: job.app["company"]),
    "j": ("NAME", "Name", lambda job: job.app["name"]),
    "k": ("COMMENT", "Comment", lambda job: job.app.get("comment") or NO),
    "t": ("ST", "StateCompact", lambda job: job.short),
    "T": ("STATE", "State", lambda job: job.state),
    "r": ("REASON", "Reason", lambda job: job.reason),
    "R": ("NODELIST(REASON)", "ReasonList", _where),
    "u": ("USER", "UserName", lambda job: job.app["user"]),
    "U": ("UID", "UserID", always(os.getuid())),
    "P": ("PARTITION", "Partition", lambda job: job.partition),
    "M": ("TIME", "TimeUsed", lambda job: times.clock(job.ran_s)),
    "l": ("TIME_LIMIT", "TimeLimit", lambda job: times.clock(job.limit_s)),
    "L": ("TIME_LEFT", "TimeLeft", _left),
    "S": ("START_TIME", "StartTime", lambda job: times.moment(jobs.start_of(job))),
    "V": ("SUBMIT_TIME", "SubmitTime", lambda job: times.moment(job.app["submittedAt"])),
    "e": (
        "END_TIME",
        "EndTime",
        lambda job: times.moment(
            job.end or (None if job.start is None or job.limit_s is None else job.start + 1000 * job.limit_s)
        ),
    ),
    "D": ("NODES", "NumNodes", lambda job: job.node_count),
    "C": ("CPUS", "NumCPUs", lambda job: job.cores),
    "m": ("MIN_MEMORY", "MinMemory", lambda job: _size(job.memory)),
    "N": ("NODELIST", "NodeList", lambda job: ",".join(job.nodes)),
    "B": ("EXEC_HOST", "BatchHost", _host),
    "Z": ("WORK_DIR", "WorkDir", lambda job: job.app["cwd"] or "/"),
    "q": ("QOS", "QOS", always(QOS)),
    "p": ("PRIORITY", "Priority", lambda job: f"{(job.app['priority'] + 1000) / 2000:.14f}"),
    "Q": ("PRIORITY", "PriorityLong", lambda job: job.app["priority"] + 1000),
    "E": ("DEPENDENCY", "Dependency", _after),
    "c": ("MIN_CPUS", "MinCpus", lambda job: job.cores),
    "b": ("TRES_PER_NODE", "tres-per-node", lambda job: job.gres_per_node),
    "d": ("MIN_TMP_DISK", "MinTmpDisk", always(0)),
    "f": ("FEATURES", "Feature", always(NO)),
    "g": ("GROUP", "GroupName", lambda job: job.app["company"]),
    "G": ("GROUP", "GroupID", always(0)),
    "h": ("OVER_SUBSCRIBE", "OverSubscribe", always("OK")),
    "o": ("COMMAND", "Command", lambda job: job.command),
    "O": ("CONTIGUOUS", "Contiguous", always(0)),
    "s": ("SELECT_JOBINFO", "SelectJobInfo", always("")),
    "v": ("RESERVATION", "Reservation", always(NO)),
    "w": ("WCKEY", "WCKey", always(NO)),
    "n": ("REQ_NODES", "ReqNodes", always("")),
    "W": ("LICENSES", "Licenses", always(NO)),
    "x": ("EXC_NODES", "ExcNodes", always("")),
    "Y": ("SCHEDNODES", "SchedNodes", always(NO)),
    "y": ("NICE", "Nice", lambda job: -job.app["priority"]),
    "z": ("S:C:T", "SCT", always("*:*:*")),
    "X": ("CORE_SPEC", "CoreSpec", always("N/A")),
    "H": ("SOCKETS_PER_NODE", "SocketsPerNode", always("*")),
    "I": ("CORES_PER_SOCKET", "CoresPerSocket", always("*")),
    "J": ("THREADS_PER_CORE", "ThreadsPerCore", always("*")),
}
"""Letter -> heading, long name, and what a job has there."""
_WITHOUT_LETTERS: dict[str, tuple[str, Callable[[SlurmJob], object]]] = {
    "BatchFlag": ("BATCH_FLAG", always(1)),
    "Cluster": ("CLUSTER", always(CLUSTER)),
    "cpus-per-task": ("CPUS_PER_TASK", lambda job: job.cores),
    "DerivedEC": ("DERIVED_EXIT_CODE", lambda job: job.code[0]),
    "EligibleTime": ("ELIGIBLE_TIME", lambda job: times.moment(job.eligible)),
    "exit_code": ("EXIT_CODE", lambda job: job.code[0]),
    "PendingTime": ("PENDING_TIME", lambda job: job.waited_s),
    "Requeue": ("REQUEUE", lambda job: int(not job.detail.get("noRequeue"))),
    "RestartCnt": ("RESTART_COUNT", lambda job: job.restarts),
    "STDERR": ("STDERR", lambda job: job.file("error")),
    "STDIN": ("STDIN", lambda job: job.stdin),
    "STDOUT": ("STDOUT", lambda job: job.file("output")),
    "tres-alloc": ("TRES_ALLOC", lambda job: job.tres),
}
_UNKNOWN = (
    *("AccrueTime", "admin_comment", "AllocNodes", "AllocSID", "AssocID", "BoardsPerNode", "BurstBuffer"),
    *("BurstBufferState", "ClusterFeature", "Container", "Cores", "cpus-per-tres", "CPUFreq", "Deadline", "DelayBoot"),
    *("HetJobID", "HetJobIDSet", "HetJobOffset", "LastSchedEval", "MaxCPUs", "MaxNodes", "MCSLabel", "mem-per-tres"),
    *("MinTime", "Network", "NTPerBoard", "NTPerCore", "NTPerNode", "NTPerSocket", "Origin", "OriginRaw"),
    *("PreemptTime", "Prefer", "Profile", "Reboot", "ReqSwitch", "ResizeTime", "ResvPort", "SiblingsActive"),
    *("SiblingsActiveRaw", "SiblingsViable", "SiblingsViableRaw", "Sockets", "SPerBoard", "system_comment", "Threads"),
    *("tres-bind", "tres-freq", "tres-per-job", "tres-per-socket", "tres-per-step", "tres-per-task", "Wait4Switch"),
)
"""Fields of Slurm of which no job here has anything."""
COLUMNS = (
    FIELDS
    | {name: (heading, name, tell) for name, (heading, tell) in _WITHOUT_LETTERS.items()}
    | {name: (name.upper().replace("-", "_"), name, always("N/A")) for name in _UNKNOWN}
)
_OF_DETAIL = frozenset({"o", "Requeue", "RestartCnt", "STDERR", "STDIN", "STDOUT"})
"""Fields for which each app is asked for by itself."""
_ALIASES = {
    "cpuspertask": "cpus-per-task",
    "gres": "b",
    "packjobid": "HetJobID",
    "packjobidset": "HetJobIDSet",
    "packjoboffset": "HetJobOffset",
    "shared": "h",
    "tasks": "C",
    "numtasks": "C",
    "jobarrayid": "i",
    "jobid": "A",
    "user": "u",
}


class FormatField:
    """A field of the output: the text before it and after it, its letter, its width, and on which side it is filled."""

    def __init__(self, before: str, letter: str, width: int, *, right: bool = False, after: str = "") -> None:
        self.before, self.letter, self.width, self.right, self.after = before, letter, width, right, after

    def shown(self, value: object) -> str:
        """The value in its field, cut to its width."""
        text = " ".join(str(value).split())
        if not self.width:
            return self.before + text + self.after
        text = text[: self.width]
        return self.before + (text.rjust(self.width) if self.right else text.ljust(self.width)) + self.after


def read_format(text: str) -> tuple[list[FormatField], str]:
    """The fields of a format such as `%.18i %j`, and what follows the last. Raises: Refused for an unknown letter."""
    return read_columns(text, FIELDS, "job")


def read_columns(text: str, known: Collection[str], what: str) -> tuple[list[FormatField], str]:
    """As `read_format`, of the letters that are known."""
    found: list[FormatField] = []
    before, rest = "", text
    while rest:
        plain, percent, rest = rest.partition("%")
        before += plain
        if not percent:
            break
        right = rest.startswith(".")
        rest = rest.removeprefix(".")
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        if not right and not digits and rest[:3].lower() == "all":
            found += [FormatField("|" if place else before, each, 0) for place, each in enumerate(known)]
            before, rest = "", rest[3:]
            continue
        letter, rest = rest[len(digits) : len(digits) + 1], rest[len(digits) + 1 :]
        if letter == "%":
            before += "%"
            continue
        if not letter or letter not in known:
            raise SlurmError(f"Invalid {what} format specification: %{letter}")
        found.append(FormatField(before, letter, width_of(digits), right=right))
        before = ""
    return found, before


def read_names(text: str) -> tuple[list[FormatField], str]:
    """The fields of a list of names such as `JobID:20,State`. Raises: Refused for an unknown name."""
    known = {name.lower(): letter for letter, (_, name, _) in COLUMNS.items()} | _ALIASES
    return read_fields(text, known, "job"), ""


def read_fields(text: str, known: Mapping[str, str], what: str) -> list[FormatField]:
    """The fields of a list of names, each maybe with `:[.][WIDTH][WHAT FOLLOWS IT]`; `known` tells their letters.

    Raises: Refused for an unknown name.
    """
    found: list[FormatField] = []
    for each in text.split(","):
        name, colon, size = each.lstrip().partition(":")
        if (letter := known.get(name.strip().lower())) is None:
            raise SlurmError(f"Invalid {what} format specification: {name[:40]}")
        right = size.startswith(".")
        size = size.removeprefix(".")
        after = size.lstrip("0123456789")
        width = width_of(size[: len(size) - len(after)]) if colon else 20
        found.append(FormatField("", letter, width, right=right, after=after))
    return found


_SHAPES = ("format", "Format", "long", "start", "json")


def run(words: list[str]) -> int:
    """List the jobs that are wanted."""
    given, rest = read(SQUEUE, words)
    if rest:
        raise SlurmError(f"Unrecognized option: {rest[0][:40]}; name jobs with --jobs")
    given = with_variables(SQUEUE, VARIABLES["squeue"], given, _SHAPES)
    name_idle("squeue", given)
    asked = {option.name: value for option, value in given}
    names = asked.get("Format") if "format" not in asked else None
    columns, end = read_format(_format(asked)) if names is None else read_names(names)
    named = jobs.Named(jobs.split(asked.get("jobs", "")), "Invalid job id: ")
    every = asked.get("iterate")
    if every is not None and not (len(every) < 10 and whole(every)):
        raise SlurmError("--iterate needs a number of seconds")
    road = ApiRoad()
    while True:
        found = wanted(road, asked, named, _states(asked))
        if "json" in asked or any(each.letter == "E" for each in columns):
            numbered = jobs.with_numbers(road, [job.app for job in found])
            for job, app in zip(found, numbered, strict=True):
                job.app = app
        if len(named.indexes) == 1 and not found and not _is_known(road, next(iter(named.indexes))):
            sys.stderr.write("slurm_load_jobs error: Invalid job id specified\n")
            return 1
        if "json" in asked:
            from fairlog.compat.slurm.as_json import of_queue, print_document  # noqa: PLC0415 (few ask for it)

            return print_document("jobs", [of_queue(job) for job in sorted_by(found, asked.get("sort"))])
        heads = [time.strftime("%a %b %d %H:%M:%S %Y")] if "long" in asked and "format" not in asked else []
        lines = (
            []
            if "noheader" in asked
            else [*heads, "".join(each.shown(COLUMNS[each.letter][0]) for each in columns) + end]
        )
        shown = sorted_by(found, asked.get("sort"))
        if any(each.letter in _OF_DETAIL for each in columns):
            jobs.with_details(road, shown)
        tells = {each.letter: COLUMNS[each.letter][2] for each in columns}
        tells |= {"m": lambda job: f"{job.memory}M"} if "noconvert" in asked else {}
        lines += ["".join(each.shown(tells[each.letter](job)) for each in columns) + end for job in shown]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        if every is None:
            return 0
        time.sleep(int(every))


def _format(asked: dict[str, str]) -> str:
    if "format" in asked:
        return asked["format"]
    if "start" in asked:
        return START
    return LONG if "long" in asked else USUAL


def _states(asked: dict[str, str]) -> set[str]:
    if "start" in asked:
        return {"PENDING"}
    if "states" in asked:
        return jobs.states_named(asked["states"])
    return set(_LIVING)


def wanted(road: ApiRoad, asked: dict[str, str], named: jobs.Named, states: set[str]) -> list[SlurmJob]:
    """The jobs that the options mean, in the order of their submission."""
    users = asked | ({"user": Me(road).user} if "me" in asked else {})
    query = jobs.chosen(road, None, users)
    if named.indexes:
        query["ids"] = ",".join(named.indexes)
    if states - _LIVING:
        query["endedAfter"] = jobs.ended_since(jobs.MIN_JOB_AGE_S)
    names = set(asked.get("name", "").split(",")) - {""}
    nodes = workers_named(road, asked.get("nodelist", ""), known=True)
    found: list[SlurmJob] = []
    apps = jobs.ask(road, **query)
    for name in jobs.unknown_users(road, asked.get("user", ""), apps):  # as Slurm's goes on
        sys.stderr.write(f"squeue: error: Invalid user: {name[:40]}\n")
    if "start" in asked and apps:
        starts = jobs.likely_starts(road)
        apps = [{**app, "likelyStart": starts.get(app["app"])} for app in apps]
    begun = [str(app["submittedSeq"]) for app in apps if app["admittedAt"] and (app["array"] or app["endedAt"])]
    if begun:  # tasks of arrays have states of their own, and those of jobs that have ended know where they ran
        again = jobs.ask(road, **{**query, "ids": ",".join(begun), "tasks": "true"})
        states_of = {app["app"]: app["taskStates"] for app in again}
        apps = [{**app, "taskStates": states_of.get(app["app"], [])} for app in apps]
    for app in apps:
        if names and app["name"] not in names:
            continue
        for job in jobs.jobs_of(app, apart="array" in asked or "array-unique" in asked):
            fits = job.state in states and (not named.indexes or named.takes(job))
            if fits and (not nodes or nodes & set(job.nodes)):
                found.append(job)
    return found


def _is_known(road: ApiRoad, number: str) -> bool:
    """Whether there is a job of that number that squeue may show."""
    return bool(jobs.ask(road, ids=number, endedAfter=jobs.ended_since(jobs.MIN_JOB_AGE_S)))


T = TypeVar("T")


def sorted_by(found: list[SlurmJob], order: str | None) -> list[SlurmJob]:
    """The jobs in the order of these letters. Raises: Refused for an unknown one."""
    return in_order(found, order, {letter: tell for letter, (_, _, tell) in FIELDS.items()})


def in_order(found: list[T], order: str | None, known: Mapping[str, Callable[[T], object]]) -> list[T]:
    """What there is in the order of these letters, which tell of it. Raises: Refused for an unknown one."""
    for each in reversed([] if order is None else order.split(",")):
        letter = each.lstrip("+-")
        if letter not in known:
            raise SlurmError(f"Invalid sort specification: {each[:40]}")
        tell = known[letter]
        found = sorted(found, key=lambda one: _key(tell(one)), reverse=each.startswith("-"))
    return found


def _key(value: object) -> tuple[int, object]:
    text = str(value)
    return (0, int(text)) if text.isdecimal() else (1, text)
