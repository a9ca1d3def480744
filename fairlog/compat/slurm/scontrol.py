"""`scontrol`: shows jobs, nodes and settings, and changes jobs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection
from typing import Any

from fairlog.compat.slurm import jobs, times
from fairlog.compat.slurm.jobs import SlurmJob
from fairlog.compat.slurm.nodes import SlurmNode, features, gres, hosts_of, list_of, nodes
from fairlog.compat.slurm.road import ApiRoad, Problem
from fairlog.compat.slurm.sbatch import members
from fairlog.compat.slurm.tables import CLUSTER, PARTITION, SCONTROL
from fairlog.compat.slurm.words import SlurmError, name_idle, read, whole

_UNKNOWN = "Invalid job id specified"
_LEFT = ("suspend", "resume", "top", "notify", "reboot", "create", "delete", "reconfigure", "shutdown", "takeover")


_FEWEST = 3
"""How many letters of a command are needed."""
_INSTEAD = {
    "nodename": "nodes are not updated here; `fairlog drain {0}` lets no more run on it, `fairlog undrain {0}` again",
    "partitionname": "there is one partition, main, which cannot be updated; `fairlog settings` changes the cluster",
    "reservationname": "reservations are not updated here; `fairlog window` sets windows",
}
"""What scontrol updates with Slurm and not here -> who does."""


def run(words: list[str]) -> int:
    """Carry out the command of the words."""
    given, rest = read(SCONTROL, words)
    name_idle("scontrol", given)
    asked = {option.name: value for option, value in given}
    line = "oneliner" in asked
    if not rest:
        raise SlurmError("too few arguments: name a command, such as `scontrol show job 17`")
    verb, arguments = rest[0].lower(), rest[1:]
    verbs: dict[str, Callable[[], int]] = {
        "show": lambda: show(arguments, one_line=line),
        "hold": lambda: change(arguments, "HoldApp"),
        "uhold": lambda: change(arguments, "HoldApp"),
        "release": lambda: change(arguments, "ReleaseApp"),
        "requeue": lambda: change(arguments, "RequeueApp"),
        "requeuehold": lambda: change(arguments, "RequeueApp", "HoldApp"),
        "update": lambda: update(arguments),
        "ping": ping,
        "version": version,
    }
    if verb in _LEFT:
        raise SlurmError(f"{verb} is refused: there is no such thing here")
    if len(verb) < _FEWEST or (full := spelled_out(verb, verbs)) is None:
        raise SlurmError(f"invalid keyword: {verb[:40]}")
    verb = full
    if verb in ("ping", "version") and arguments:
        raise SlurmError(f"too many arguments: {verb} takes none")
    return verbs[verb]()


def version() -> int:
    """Print the version."""
    from fairlog.compat.slurm.start import VERSION  # noqa: PLC0415 (it imports this module)

    sys.stdout.write(f"{VERSION}\n")
    return 0


def ping() -> int:
    """Say whether a master answers. Raises: Refused if no API server does."""
    up = ApiRoad().get("/v1/status")["master"] is not None
    sys.stdout.write(f"Slurmctld(primary) at fairlog is {'UP' if up else 'DOWN'}\n")
    return 0 if up else 1


def show(words: list[str], *, one_line: bool) -> int:
    """Print what is asked for."""
    what, _, after = (words[0] if words else "").lower().partition("=")
    named = [after, *words[1:]] if after else words[1:]
    shown: dict[str, Callable[[], int]] = {
        "jobs": lambda: _show_jobs(named, one_line=one_line),
        "jobid": lambda: _show_jobs(named, one_line=one_line),
        "nodes": lambda: _show_nodes(named, one_line=one_line),
        "partitions": lambda: _show_partition(named, one_line=one_line),
        "partitionname": lambda: _show_partition(named, one_line=one_line),
        "reservations": lambda: _show_reservations(named, one_line=one_line),
        "reservationname": lambda: _show_reservations(named, one_line=one_line),
        "config": lambda: _show_config(named),
        "licenses": lambda: _print(["No licenses configured in Slurm."]),
        "hostnames": lambda: _print(hosts_of(",".join(named) or os.environ.get("SLURM_JOB_NODELIST", ""))),
        "hostlist": lambda: _print([list_of(",".join(named).split(","))]),
        "hostlistsorted": lambda: _print([list_of(sorted(",".join(named).split(",")))]),
    }
    if (full := spelled_out(what, shown)) is None:
        raise SlurmError(f"invalid entity:{what[:40]} for keyword:show")
    return shown[full]()


def spelled_out(word: str, names: Collection[str]) -> str | None:
    """The first of the names that begins so, unless it is one of them; None if there is none, as of no word."""
    return word if word in names else next((name for name in names if word and name.startswith(word)), None)


def _print(lines: list[str]) -> int:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _block(lines: list[str], *, one_line: bool) -> str:
    return " ".join(lines) + "\n" if one_line else "\n   ".join(lines) + "\n\n"


def _show_jobs(named: list[str], *, one_line: bool) -> int:
    road = ApiRoad()
    wanted = jobs.Named([part for each in named for part in jobs.split(each)], "Invalid job id specified: ")
    ids = {"ids": ",".join(wanted.indexes)} if wanted.indexes else {}
    apps = jobs.ask(road, **ids, endedAfter=jobs.ended_since(jobs.MIN_JOB_AGE_S), tasks="true")
    apps = jobs.with_nodes(road, jobs.with_numbers(road, apps))
    found = [job for app in apps for job in jobs.jobs_of(app, apart=False) if not wanted.indexes or wanted.takes(job)]
    if wanted.indexes and not found:
        sys.stderr.write(f"slurm_load_jobs error: {_UNKNOWN}\n")
        return 1
    if not found:
        return _print(["No jobs in the system"])
    jobs.with_details(road, found)
    for job in found:
        sys.stdout.write(_block(_job_lines(job), one_line=one_line))
    return 0


def _job_lines(job: SlurmJob) -> list[str]:
    app, code, detail = job.app, job.code, job.detail
    at = times.moment
    submitted = at(app["submittedAt"])
    limit = app.get("executors") or detail["executorLimit"]
    programs = max(1, limit or 0) if detail.get("executorProgram") else 1
    each, of_each = max(1, job.cores // programs), job.node_count
    folder = app["cwd"] or "/"
    index = (
        ""
        if job.index is None and job.indexes is None
        else f" ArrayJobId={job.number} ArrayTaskId={job.id.partition('_')[2].strip('[]')}"
    )
    end = job.end or (None if job.start is None or job.limit_s is None else job.start + 1000 * job.limit_s)
    requeue, exits = int(not detail["noRequeue"]), f"{code[0]}:{code[1]}"
    return [
        f"JobId={job.own_number}{index} JobName={app['name']}",
        f"UserId={app['user']}({os.getuid()}) GroupId={app['company']}({os.getgid()}) MCS_label=N/A",
        f"Priority={app['priority'] + 1000} Nice={-app['priority']} Account={app['company']} QOS=normal",
        f"JobState={job.state} Reason={job.reason} Dependency={jobs.after_of(app) or '(null)'}",
        f"Requeue={requeue} Restarts={job.restarts} BatchFlag=1 Reboot=0 ExitCode={exits}",
        f"RunTime={times.elapsed(job.ran_s)} TimeLimit={times.elapsed(job.limit_s)} TimeMin=N/A",
        f"SubmitTime={submitted} EligibleTime={at(job.eligible, 'Unknown')}",
        f"StartTime={at(job.start or app['beginAt'], 'Unknown')} EndTime={at(end, 'Unknown')} Deadline=N/A",
        f"Partition={PARTITION} AllocNode:Sid=fairlog:0",
        "ReqNodeList=(null) ExcNodeList=(null)",
        f"NodeList={list_of(job.nodes) or '(null)'}",
        f"BatchHost={job.nodes[0] if job.nodes else '(null)'}",
        f"NumNodes={job.node_count} NumCPUs={job.cores} NumTasks={programs} CPUs/Task={each} ReqB:S:C:T=0:0:*:*",
        f"TRES={job.tres}",
        *([f"JOB_GRES={gres(job.kinds)}"] if job.kinds and job.start is not None else []),
        f"MinCPUsNode={job.cores // of_each} MinMemoryNode={job.memory // of_each}M MinTmpDiskNode=0",
        f"Command={job.command}",
        f"WorkDir={folder}",
        *([f"Comment={app['comment']}"] if app.get("comment") else []),
        f"StdErr={job.file('error')}",
        f"StdIn={job.stdin}",
        f"StdOut={job.file('output')}",
        *([f"TresPerNode={job.gres_per_node}"] if job.kinds else []),
    ]


def _show_nodes(named: list[str], *, one_line: bool) -> int:
    wanted = set(hosts_of(",".join(named)))
    found = [node for node in nodes(ApiRoad()) if not wanted or node.is_among(wanted)]
    for missing in sorted(each for each in wanted if not any(node.is_among({each}) for node in found)):
        raise SlurmError(f"Node {missing[:80]} not found")
    sys.stdout.write("".join(_block(_node_lines(node), one_line=one_line) for node in found))
    return 0


def _node_lines(node: SlurmNode) -> list[str]:
    state = {"drng": "MIXED+DRAIN", "drain": "IDLE+DRAIN", "mix": "MIXED", "alloc": "ALLOCATED"}
    said, free = state.get(node.state, node.state.upper()), node.memory - node.used_memory
    lines = [
        f"NodeName={node.name} Arch={os.uname().machine} CoresPerSocket=1",
        f"CPUAlloc={node.used} CPUEfctv={node.cores} CPUTot={node.cores} CPULoad={node.load}",
        f"AvailableFeatures={features([node])}",
        f"ActiveFeatures={features([node])}",
        f"Gres={node.gres}",
        *([f"GresUsed={node.gres_used}"] if node.offered else []),
        f"NodeAddr={node.worker['host']} NodeHostName={node.worker['host']} Version=22.05.8",
        f"RealMemory={node.memory} AllocMem={node.used_memory} FreeMem={free} Sockets={node.cores} Boards=1",
        f"State={said} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
        f"Partitions={PARTITION}",
        f"CfgTRES={node.tres}",
        f"AllocTRES={node.tres_used}",
    ]
    return [*lines, f"Reason={node.reason}"] if node.reason else lines


def _show_partition(named: list[str], *, one_line: bool) -> int:
    for missing in (each for text in named for each in text.split(",") if each not in ("", PARTITION)):
        raise SlurmError(f"Partition {missing[:80]} not found; there is {PARTITION}")
    found = nodes(ApiRoad())
    cores, memory = sum(node.cores for node in found), sum(node.memory for node in found)
    lines = [
        f"PartitionName={PARTITION}",
        "AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
        "AllocNodes=ALL Default=YES QoS=N/A",
        "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO",
        "MaxNodes=1 MaxTime=UNLIMITED MinNodes=1 LLN=NO MaxCPUsPerNode=UNLIMITED",
        f"Nodes={list_of([node.name for node in found])}",
        "PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO",
        "OverTimeLimit=NONE PreemptMode=OFF",
        f"State=UP TotalCPUs={cores} TotalNodes={len(found)} SelectTypeParameters=NONE",
        "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED",
        f"TRES=cpu={cores},mem={memory}M,node={len(found)},billing={cores}",
    ]
    sys.stdout.write(_block(lines, one_line=one_line))
    return 0


def _show_reservations(named: list[str], *, one_line: bool) -> int:
    """Windows, as Slurm's reservations (semantics W14)."""
    found = [each for each in ApiRoad().get("/v1/windows", fresh="true") if not named or each["window"] in named]
    if not found:
        if named:
            raise SlurmError(f"Reservation {named[0][:80]} not found")
        return _print(["No reservations in the system"])
    sys.stdout.write("".join(_block(reservation_lines(each, times.now()), one_line=one_line) for each in found))
    return 0


def reservation_lines(window: dict[str, Any], now: int) -> list[str]:
    """A window at the time `now` (ms) as Slurm tells of a reservation."""
    flags = "SPEC_NODES" if window["company"] else "MAINT,SPEC_NODES"
    span = times.elapsed((window["end"] - window["begin"]) // 1000)
    begin, end = times.moment(window["begin"]), times.moment(window["end"])
    return [
        f"ReservationName={window['window']} StartTime={begin} EndTime={end} Duration={span}",
        f"Nodes={list_of(window['workers'])} NodeCnt={len(window['workers'])} PartitionName=(null) Flags={flags}",
        f"Users=(null) Groups=(null) Accounts={window['company'] or '(null)'} Licenses=(null)",
        f"State={'ACTIVE' if window['begin'] <= now else 'INACTIVE'} BurstBuffer=(null) MaxStartDelay=(null)",
    ]


def _show_config(named: list[str]) -> int:
    if named:
        raise SlurmError("too many arguments: show config takes none")
    settings = ApiRoad().get("/v1/settings")
    known = {
        "AccountingStorageType": "accounting_storage/fairlog",
        "ClusterName": CLUSTER,
        "DefMemPerCPU": "512",
        "JobRequeue": "1",
        "KillWait": f"{settings['kill_grace_s']} sec",
        "MaxArraySize": "1000001",
        "MaxJobCount": "10000",
        "MinJobAge": f"{jobs.MIN_JOB_AGE_S} sec",
        "SLURM_VERSION": "22.05.8",
        "SchedulerType": "sched/fairlog",
        "SelectType": "select/fairlog",
        "SlurmctldHost[0]": "fairlog",
    }
    head = f"Configuration data as of {times.moment(times.now())}"
    return _print([head, *(f"{name:<23} = {value}" for name, value in known.items())])


def change(words: list[str], *commands: str) -> int:
    """Hold, release or requeue jobs, which are named by ids or `name=NAME`. Raises: Refused if there is none."""
    road = ApiRoad()
    code = 0
    again = commands[0] == "RequeueApp"
    if again and words and words[0].lower().startswith("state="):
        sys.stderr.write(f"scontrol: note: without effect here: {words[0][:40]}\n")
    if again and words and words[0].lower().startswith(("incomplete", "state=")):
        words = words[1:]  # what has ended is not put back in any case
    named = [part.removeprefix("JobId=").removeprefix("jobid=") for each in words for part in jobs.split(each)]
    if not named:
        raise SlurmError("too few arguments: name jobs by their ids")
    for each in named:
        name = each.lower().startswith("name=") and each[5:]
        tasks = [] if name else _tasks_of(each, commands)
        code = max([_requeue_task(road, task) for task in tasks], default=0) or code
        if tasks:
            continue
        found = [app["app"] for app in jobs.ask(road) if app["name"] == name] if name else [each]
        if again and os.environ.get("SLURM_JOB_ID") in found:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which the job gets before this process has its answer
        for app in found:
            code = next((1 for command in commands if _send(road, {"type": command, "app": app}, each)), code)
    return code


def _tasks_of(job: str, commands: tuple[str, ...]) -> list[str]:
    """The tasks of an array that are named, ID_INDEX each; none where a whole job is. Raises: SlurmError."""
    job = jobs.of_this_task(job) if commands[0] == "RequeueApp" else job
    if "_" not in job:
        return []
    if commands != ("RequeueApp",):
        raise SlurmError(f"a task of an array cannot be held or released alone: {job[:40]}; the whole array can")
    ((number, indexes),) = jobs.Named([job], f"{_UNKNOWN}: ").indexes.items()
    return [f"{number}_{index}" for index in sorted(indexes or ())]


def _requeue_task(road: ApiRoad, job: str) -> int:
    """Put a task of an array back, ID_INDEX; the exit code."""
    app, _, index = job.partition("_")
    here = os.environ
    if (app, index) == (here.get("SLURM_ARRAY_JOB_ID"), here.get("SLURM_ARRAY_TASK_ID")):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as for a whole job
        position, executor = members(here["FAIRLOG_ARRAY"]).index(int(index)), here["FAIRLOG_EXECUTOR_ID"]
        return _send(road, {"type": "RequeueApp", "app": app, "task": position, "executor": executor}, job)
    found = [each for each in jobs.ask(road, ids=app, tasks="true") if each["array"]]
    indexes = members(found[0]["array"]) if found else []
    if int(index) not in indexes:
        sys.stderr.write(f"scontrol: error: {_UNKNOWN} for job {job[:40]}\n")
        return 1
    position = indexes.index(int(index))
    states = (found[0]["taskStates"] or [])[position : position + 1]
    if not states or states[0]["state"] != "running":
        why = "Job is pending execution" if not states or states[0]["state"] == "queued" else "Job is over"
        sys.stderr.write(f"scontrol: error: {why} for job {job}\n")
        return 1
    return _send(road, {"type": "RequeueApp", "app": app, "task": position, "executor": states[0]["executor"]}, job)


def _send(road: ApiRoad, command: dict[str, Any], job: str) -> int:
    try:
        if command["type"] == "RequeueApp":  # by the way of what runs in a job as well
            about: dict[str, Any] = {name: command[name] for name in ("task", "executor") if name in command}
            road.post(f"/v1/apps/{command['app']}/requeue", {"reason": "scontrol"} | about)
        else:
            road.send(command)
    except Problem as problem:
        why = _UNKNOWN if problem.title == "UnknownApp" else str(problem)
        sys.stderr.write(f"scontrol: error: {why} for job {job}\n")
        return 1
    return 0


def update(words: list[str]) -> int:
    """Change a job: its time limit to a longer one, its nice value. Raises: Refused for what cannot change."""
    asked = {name.lower(): value for name, _, value in (word.partition("=") for word in words)}
    if others := [name for name in asked if name in ("nodename", "partitionname", "reservationname")]:
        raise SlurmError(_INSTEAD[others[0]].format(asked[others[0]][:80] or "HOST"))
    job = asked.pop("jobid", asked.pop("job", ""))
    if not job.isdecimal():
        raise SlurmError("name the job to update, as JobId=17" if not job else f"Invalid job id specified: {job[:40]}")
    others = [name for name in asked if name not in ("timelimit", "nice", "priority")]
    if not asked:
        raise SlurmError("name what is to be updated, as TimeLimit=1:00:00 or Nice=100")
    if others:
        raise SlurmError(f"{others[0][:40]} of a job cannot be updated; TimeLimit and Nice can")
    priority = _priority(asked)
    road = ApiRoad()
    code = 0
    if (limit := asked.get("timelimit")) is not None:
        code = _extend(road, job, limit)
    if priority is not None:
        code = _send(road, {"type": "ReprioritizeApp", "app": job, "priority": priority}, job) or code
    return code


def _priority(asked: dict[str, str]) -> int | None:
    """The priority that Nice or Priority asks for, None if neither is given. Raises: Refused."""
    if not {"nice", "priority"} & set(asked):
        return None
    text = asked.get("nice") or asked.get("priority") or ""
    if whole(text.removeprefix("-")) is None:
        raise SlurmError(f"Invalid Nice value: {text[:40]}")
    return max(-1000, min(1000, -int(text) if "nice" in asked else int(text) - 1000))


def _extend(road: ApiRoad, job: str, text: str) -> int:
    try:
        known = road.get(f"/v1/apps/{job}")["maxRuntime"]
    except Problem:
        sys.stderr.write(f"scontrol: error: {_UNKNOWN} for job {job}\n")
        return 1
    more = text.startswith("+")
    seconds = times.read_limit(text.removeprefix("+"))
    if seconds is None or known is None:
        raise SlurmError("a time limit can only be made longer, of a job that has one")
    by = seconds if more else seconds - known
    if by <= 0:
        raise SlurmError(f"a time limit can only be made longer than {times.elapsed(known)}")
    return _send(road, {"type": "ExtendApp", "app": job, "by_s": by}, job)
