"""`sacct`: what jobs have used, those that run and those that have ended as long as the state knows them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from fairlog.compat.slurm import jobs, times
from fairlog.compat.slurm.jobs import SlurmJob, always
from fairlog.compat.slurm.nodes import workers_named
from fairlog.compat.slurm.road import ApiRoad, Me, login
from fairlog.compat.slurm.tables import CLUSTER, QOS, SACCT, VARIABLES
from fairlog.compat.slurm.words import SlurmError, name_idle, read, width_of, with_variables

USUAL = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
BRIEF = "JobID,State,ExitCode"
_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


class Row(NamedTuple):
    """A line: a job, or its step `batch`, which has the measures. `units`: those of sizes, "" for the fitting one."""

    job: SlurmJob
    step: str
    units: str

    @property
    def name(self) -> str:
        """The id."""
        return f"{self.job.id}.{self.step}" if self.step else self.job.id


def _state(row: Row) -> str:
    job = row.job
    return f"CANCELLED by {os.getuid()}" if job.state == "CANCELLED" and not row.step else job.state


def _cpu_s(row: Row) -> float:
    return float(sum(task["cpu_ms"] for task in row.job.tasks)) / 1000


def _total(row: Row) -> str:
    seconds = _cpu_s(row)
    if seconds >= 3600:
        return times.elapsed(round(seconds))
    return f"{int(seconds // 60):02}:{seconds % 60:06.3f}"


def size(mb: float, units: str) -> str:
    """A size as sacct prints it."""
    unit = units or ("G" if mb >= 1024 and mb % 1024 == 0 else "M")
    number = mb / _UNITS[unit]
    return f"{number:.0f}{unit}" if number == int(number) else f"{number:.2f}{unit}"


def _tres(row: Row) -> str:
    job = row.job
    kinds = "".join(f"gres/{kind}={number}," for kind, number in sorted(job.kinds.items()))
    return f"billing={job.cores},cpu={job.cores},{kinds}mem={size(job.memory, row.units)},node={job.node_count}"


def _rss(row: Row) -> str:
    peak = max((task["peak_mb"] for task in row.job.tasks), default=0)
    return size(peak, row.units or "K") if peak else ""


def _of_job(tell: Callable[[Row], object]) -> Callable[[Row], object]:
    return lambda row: "" if row.step else tell(row)


def _of_step(tell: Callable[[Row], object]) -> Callable[[Row], object]:
    return lambda row: tell(row) if row.step and row.job.tasks else ""


def _nodes(row: Row) -> str:
    return ",".join(row.job.nodes) or ("None assigned" if row.job.start is None else "")


FIELDS: dict[str, tuple[int, Callable[[Row], object]]] = {
    "Account": (10, lambda row: row.job.app["company"]),
    "AllocCPUS": (10, lambda row: row.job.cores if row.job.start is not None else 0),
    "AllocNodes": (10, lambda row: row.job.node_count if row.job.start is not None else 0),
    "AllocTRES": (10, lambda row: _tres(row) if row.job.start is not None else ""),
    "AveCPU": (10, _of_step(lambda row: times.elapsed(round(_cpu_s(row))))),
    "AveRSS": (10, _of_step(_rss)),
    "AveVMSize": (10, _of_step(_rss)),
    "Cluster": (10, always(CLUSTER)),
    "Comment": (14, _of_job(lambda row: row.job.app.get("comment") or "")),
    "Constraints": (19, always("")),
    "CPUTime": (10, lambda row: times.elapsed(row.job.ran_s * row.job.cores)),
    "CPUTimeRAW": (10, lambda row: row.job.ran_s * row.job.cores),
    "DerivedExitCode": (15, _of_job(lambda row: f"{row.job.code[0]}:{0}")),
    "Elapsed": (10, lambda row: times.elapsed(row.job.ran_s)),
    "ElapsedRaw": (10, lambda row: row.job.ran_s),
    "Eligible": (19, _of_job(lambda row: times.moment(row.job.eligible, "Unknown"))),
    "End": (19, lambda row: times.moment(row.job.end, "Unknown")),
    "ExitCode": (8, lambda row: f"{row.job.code[0]}:{row.job.code[1]}"),
    "Flags": (20, always("")),
    "GID": (6, _of_job(always(0))),
    "Group": (9, _of_job(lambda row: row.job.app["company"])),
    "JobID": (12, lambda row: row.name),
    "JobIDRaw": (12, lambda row: row.name),
    "JobName": (10, lambda row: row.step or row.job.app["name"]),
    "MaxRSS": (10, _of_step(_rss)),
    "MaxRSSNode": (10, _of_step(_nodes)),
    "MaxRSSTask": (10, _of_step(always(0))),
    "MaxVMSize": (10, _of_step(_rss)),
    "MaxVMSizeNode": (14, _of_step(_nodes)),
    "MaxVMSizeTask": (14, _of_step(always(0))),
    "NCPUS": (10, lambda row: row.job.cores),
    "NNodes": (8, lambda row: row.job.node_count),
    "NodeList": (15, _nodes),
    "NTasks": (8, _of_step(always(1))),
    "Partition": (10, _of_job(lambda row: row.job.partition)),
    "Planned": (10, _of_job(lambda row: times.elapsed(row.job.waited_s))),
    "PlannedCPU": (10, _of_job(lambda row: times.elapsed(row.job.waited_s * row.job.cores))),
    "PlannedCPURAW": (13, _of_job(lambda row: row.job.waited_s * row.job.cores)),
    "Priority": (10, _of_job(lambda row: row.job.app["priority"] + 1000)),
    "QOS": (10, _of_job(always(QOS))),
    "QOSRAW": (10, _of_job(always(1))),
    "Reason": (22, _of_job(lambda row: row.job.reason)),
    "ReqCPUS": (8, lambda row: row.job.cores),
    "ReqMem": (10, _of_job(lambda row: size(row.job.memory, row.units))),
    "ReqNodes": (8, always(1)),
    "ReqTRES": (10, _of_job(_tres)),
    "Reserved": (10, _of_job(lambda row: times.elapsed(row.job.waited_s))),
    "Start": (19, lambda row: times.moment(row.job.start, "Unknown")),
    "State": (10, _state),
    "Submit": (19, lambda row: times.moment(row.job.app["submittedAt"], "Unknown")),
    "StdErr": (20, _of_job(lambda row: row.job.file("error"))),
    "StdIn": (20, _of_job(lambda row: row.job.stdin)),
    "StdOut": (20, _of_job(lambda row: row.job.file("output"))),
    "SubmitLine": (20, always("")),
    "Suspended": (10, always("00:00:00")),
    "SystemCPU": (10, always("00:00:00")),
    "Timelimit": (10, _of_job(lambda row: times.elapsed(row.job.limit_s))),
    "TimelimitRaw": (12, _of_job(lambda row: "" if row.job.limit_s is None else row.job.limit_s // 60)),
    "TotalCPU": (10, _total),
    "UID": (6, _of_job(always(os.getuid()))),
    "User": (9, _of_job(lambda row: row.job.app["user"])),
    "UserCPU": (10, _total),
    "WCKey": (10, always("")),
    "WorkDir": (20, _of_job(lambda row: row.job.app["cwd"] or "/")),
}
"""Name -> the usual width, and what a line has there."""
_OF_DETAIL = frozenset({"StdErr", "StdIn", "StdOut"})
"""Fields for which each app is asked for by itself, and which `all` leaves out; Slurm has them since 23.11."""
_UNMEASURED = (
    *("AdminComment", "AssocID", "AveCPUFreq", "AveDiskRead", "AveDiskWrite", "AvePages", "BlockID"),
    *("ConsumedEnergy", "ConsumedEnergyRaw", "Container", "DBIndex", "Layout", "McsLabel", "MinCPU", "MinCPUNode"),
    *("MinCPUTask", "ReqCPUFreq", "ReqCPUFreqGov", "ReqCPUFreqMax", "ReqCPUFreqMin", "Reservation", "ReservationId"),
    *("SystemComment", "WCKeyID"),
    *(f"Max{what}{of}" for what in ("DiskRead", "DiskWrite", "Pages") for of in ("", "Node", "Task")),
    *(f"TRESUsage{way}{of}" for way in ("In", "Out") for of in ("Ave", "Max", "MaxNode", "MaxTask", "Min", "MinNode")),
    *(f"TRESUsage{way}{of}" for way in ("In", "Out") for of in ("MinTask", "Tot")),
)
"""Fields of Slurm of which nothing is measured or kept here."""
FIELDS |= {name: (max(10, len(name)), always("")) for name in _UNMEASURED}


def read_fields(text: str) -> list[tuple[str, int]]:
    """The fields of a list such as `JobID%20,State`, and their widths, negative to fill them on the right.

    Raises: Refused for an unknown name.
    """
    known = {name.lower(): name for name in FIELDS}
    found: list[tuple[str, int]] = []
    for each in text.split(","):
        name, percent, size = each.strip().partition("%")
        if not name:
            continue
        if name.lower() == "all":
            found += [(one, FIELDS[one][0]) for one in FIELDS if one not in _OF_DETAIL]
            continue
        if name.lower() not in known:
            raise SlurmError(f'Invalid field requested: "{name[:40]}"; --helpformat lists the fields')
        digits = size.removeprefix("-")
        if percent and not digits.isdecimal():
            raise SlurmError(f"Invalid width of a field: {each[:40]}")
        field = known[name.lower()]
        found.append((field, width_of(digits) * (1 if size == digits else -1) if percent else FIELDS[field][0]))
    return found


_LISTS = ("accounts", "format", "jobs", "name", "nodelist", "state", "uid", "user")
"""Options that add up if they are given several times, as Slurm's sacct has it."""


def run(words: list[str]) -> int:
    """List the jobs that are wanted, each with its step."""
    given, rest = read(SACCT, words)
    if rest:
        raise SlurmError(f"unrecognized argument {rest[0][:40]!r}; name jobs with --jobs")
    given = with_variables(SACCT, VARIABLES["sacct"], given, ("format", "brief", "long"))
    name_idle("sacct", given)
    asked: dict[str, str] = {}
    for option, value in given:
        more = option.name in _LISTS and option.name in asked
        asked[option.name] = f"{asked[option.name]},{value}" if more else value
    if "helpformat" in asked:
        names = list(FIELDS)
        for start in range(0, len(names), 4):
            sys.stdout.write("".join(f"{each:<19} " for each in names[start : start + 4]).rstrip() + "\n")
        return 0
    columns = read_fields(_fields(asked))
    units = asked.get("units", "M" if "noconvert" in asked else "").upper()
    if units not in (*_UNITS, ""):
        raise SlurmError(f"Invalid --units: {units[:40]}; they are K, M, G or T")
    if "json" in asked:
        from fairlog.compat.slurm.as_json import of_account, print_document  # noqa: PLC0415 (few ask for it)

        steps_too = "allocations" not in asked
        return print_document("jobs", [of_account(job, steps=steps_too) for job in wanted(ApiRoad(), asked)])
    steps = steps_named(jobs.split(asked.get("jobs", "")))
    road = ApiRoad()
    listed = wanted(road, asked)
    if any(name in _OF_DETAIL for name, _ in columns):
        jobs.with_details(road, listed)
    rows = [
        Row(job, step, units)
        for job in listed
        for step in (("",) if "allocations" in asked or job.start is None else ("", "batch"))
        if (only := steps.get(str(job.number))) is None or step in only
    ]
    table = [[str(FIELDS[name][1](row)) for name, _ in columns] for row in rows]
    sys.stdout.write("".join(f"{line}\n" for line in lines(asked, columns, table)))
    return 0


def steps_named(texts: list[str]) -> dict[str, set[str] | None]:
    """Number of a job -> its steps that are named, as by `17.batch`; None = the job with all of them."""
    found: dict[str, set[str] | None] = {}
    for text in texts:
        job, dot, step = text.partition(".")
        number = job.partition("_")[0]
        if not dot:
            found[number] = None
        elif (known := found.setdefault(number, set())) is not None:
            known.add(step)
    return found


def _fields(asked: dict[str, str]) -> str:
    if "brief" in asked:
        return BRIEF
    return "all" if "long" in asked else asked.get("format", USUAL)


def lines(asked: dict[str, str], columns: list[tuple[str, int]], table: list[list[str]]) -> list[str]:
    """The lines as they are printed: for programs with a mark between fields, else in columns."""
    bare = "noheader" in asked
    if "parsable" in asked or "parsable2" in asked:
        mark = asked.get("delimiter", "|")
        end = mark if "parsable" in asked else ""
        return [mark.join(each) + end for each in ([] if bare else [[name for name, _ in columns]]) + table]

    def cell(text: str, name: str, width: int) -> str:
        most = abs(width)
        text = text if len(text) <= most else f"{text[: most - 1]}+"
        return text.ljust(most) if width < 0 or name == "JobID" else text.rjust(most)

    found = [" ".join(cell(text, *column) for text, column in zip(row, columns, strict=True)) + " " for row in table]
    if bare:
        return found
    heads = " ".join(cell(name, name, width) for name, width in columns) + " "
    return [heads, " ".join("-" * abs(width) for _, width in columns) + " ", *found]


def _asked_for(road: ApiRoad, asked: dict[str, str], query: dict[str, str | int]) -> list[dict[str, Any]]:
    """The apps that pass the query, and where they ran if something of that is asked for."""
    apps = jobs.ask(road, tasks="true", **query)
    places = [name for name, _ in read_fields(_fields(asked)) if name.endswith(("Node", "NodeList"))]
    return jobs.with_nodes(road, apps) if places or {"nodelist", "json"} & asked.keys() else apps


def wanted(road: ApiRoad, asked: dict[str, str]) -> list[SlurmJob]:
    """The jobs that the options mean, in the order of their submission."""
    named = jobs.Named(jobs.split(asked.get("jobs", "")), "Invalid job id specified: ")
    since = until = 0
    if "starttime" in asked:
        since = times.read_moment(asked["starttime"], "starttime")
    elif not named.indexes:
        since = times.read_moment("midnight", "starttime")
    if "endtime" in asked:
        until = times.read_moment(asked["endtime"], "endtime")
    users = asked.get("user") or asked.get("uid")
    if users is None and not named.indexes and "allusers" not in asked:
        users = login()
    me = None if users is None else Me(road)
    query = jobs.chosen(road, me, {"account": asked.get("accounts", ""), "user": users or ""})
    if named.indexes:
        query["ids"] = ",".join(named.indexes)
    query |= {"endedAfter": since} if since else {"everything": "true"}
    states = jobs.states_named(asked["state"]) if "state" in asked else set(jobs.STATES)
    names = set(asked.get("name", "").split(",")) - {""}
    nodes = workers_named(road, asked.get("nodelist", ""))
    found: list[SlurmJob] = []
    apps = _asked_for(road, asked, query)
    jobs.check_users(road, asked.get("user") or asked.get("uid") or "", apps, "Invalid user id: ")
    for app in apps:
        if (names and app["name"] not in names) or (until and app["submittedAt"] > until):
            continue
        for job in jobs.jobs_of(app, apart="array" in asked):
            fits = job.state in states and (not named.indexes or named.takes(job))
            if fits and (not nodes or nodes & set(job.nodes)):
                found.append(job)
    return found
