"""`scancel`: ends jobs, or sends them signals."""

from __future__ import annotations

import sys
from signal import SIG_IGN, SIGTERM
from signal import signal as on_signal
from typing import Any

from fairlog.compat.slurm import jobs
from fairlog.compat.slurm.nodes import workers_named
from fairlog.compat.slurm.road import ApiRoad, Me, Problem
from fairlog.compat.slurm.sbatch import members
from fairlog.compat.slurm.tables import PARTITION, QOS, SCANCEL, VARIABLES
from fairlog.compat.slurm.words import SlurmError, name_idle, read, read_variables

_FILTERS = ("account", "name", "jobname", "user", "me", "state", "nodelist")
_KILL = "KILL"
_NAMES = {"1": "HUP", "2": "INT", "3": "QUIT", "9": _KILL, "10": "USR1", "12": "USR2", "14": "ALRM", "15": "TERM"}
_NAMES |= {"18": "CONT", "19": "STOP"}


def run(words: list[str]) -> int:
    """End the jobs that are named or chosen; says nothing if all goes well."""
    given, rest = read(SCANCEL, words)
    given = [*read_variables(SCANCEL, VARIABLES["scancel"]), *given]
    name_idle("scancel", given)
    asked = {option.name: value for option, value in given}
    for name, one in (("partition", PARTITION), ("qos", QOS)):
        if one not in asked.get(name, one).split(","):
            raise SlurmError(f"no job is known by the {name} {asked[name][:40]}: there is one, {one}; leave it out")
    if not rest and not any(name in asked for name in _FILTERS):
        raise SlurmError("No job identification provided")
    signal = signal_of(asked.get("signal", _KILL))
    ids = [jobs.of_this_task(part) for each in rest for part in jobs.split(each)]
    named = jobs.Named(ids, "Invalid job id ")
    states = state_of(asked.get("state"))
    road = ApiRoad()
    users = asked | ({"user": Me(road).user} if "me" in asked else {})
    query = jobs.chosen(road, None, users)
    if named.indexes:
        query |= {"ids": ",".join(named.indexes), "everything": "true"}
    nodes = workers_named(road, asked.get("nodelist", ""))
    known = jobs.ask(road, **query)
    jobs.check_users(road, asked.get("user", ""), known, "Invalid user name: ")
    apps = [app for app in known if _fits(app, asked, nodes, states)]
    unknown = _unknown_jobs(named, apps, filtered=bool(states))
    for app in apps:
        unknown += _unknown_tasks(app, named)
    code = 0
    for job in unknown:
        code = _say(asked, f"Kill job error on job id {job}: Invalid job id specified", 1)
    living = [app for app in apps if app["endedAt"] is None]
    whole: list[dict[str, Any]] = []
    parts: list[tuple[dict[str, Any], int]] = []
    fitting = _fitting_tasks(road, [app for app in living if app["array"] and app["admittedAt"]], nodes, states)
    for app in living:
        fit = _both(named.indexes.get(str(app["submittedSeq"])), fitting.get(app["app"]), app["array"])
        if (fit is not None and not fit) or ("interactive" in asked and not _is_wanted(app)):
            continue
        if fit is None:
            whole.append(app)
        else:
            parts += [(app, index) for index in sorted(fit)]
    code = _to_whole(road, asked, whole, signal, code)
    return _to_tasks(road, asked, parts, signal, code)


def _unknown_jobs(named: jobs.Named, apps: list[dict[str, Any]], *, filtered: bool) -> list[str]:
    """The numbers that name no job; of jobs in a state, those of others are passed over."""
    found = {str(app["submittedSeq"]) for app in apps}
    return [] if filtered else [number for number in named.indexes if number not in found]


def _unknown_tasks(app: dict[str, Any], named: jobs.Named) -> list[str]:
    """The ids that name a task which the job, which has ended, has never had."""
    if app["endedAt"] is None:
        return []  # `_to_tasks` says so
    number = str(app["submittedSeq"])
    unknown = (named.indexes.get(number) or set()) - set(members(app["array"] or "0"))
    return [f"{number}_{index}" for index in sorted(unknown)]


def _fitting_tasks(
    road: ApiRoad, arrays: list[dict[str, Any]], nodes: set[str], state: str
) -> dict[str, set[int] | None]:
    """App of an array -> the tasks that are in the state and on one of the nodes, None for all that go on."""
    if not arrays or not (nodes or state):
        return {}
    found: dict[str, set[int] | None] = {}
    for app in jobs.ask(road, ids=",".join(str(app["submittedSeq"]) for app in arrays), tasks="true"):
        tasks = [job for job in jobs.jobs_of(app, apart=True) if not job.ended]
        fit = [job for job in tasks if (not state or job.state == state) and (not nodes or nodes & set(job.nodes))]
        found[app["app"]] = None if len(fit) == len(tasks) else {job.index for job in fit if job.index is not None}
    return found


def _both(named: set[int] | None, fit: set[int] | None, array: str | None) -> set[int] | None:
    """The tasks that are named and fit, and those named that there are not; None for all of the job."""
    if named is None or fit is None:
        return fit if named is None else named
    return named & fit | named - set(members(array or "0"))


def _to_whole(road: ApiRoad, asked: dict[str, str], apps: list[dict[str, Any]], signal: str, code: int) -> int:
    """Send a signal to jobs, many in one request; the exit code, `code` unless one is refused."""
    for start in range(0, len(apps), 500):
        some = apps[start : start + 500]
        _tell(asked, [str(app["submittedSeq"]) for app in some], signal)
        try:
            _send(road, [_command(app, signal, whole="full" in asked) for app in some])
        except Problem as problem:
            if problem.title != "AppEnded":
                code = _say(asked, f"Kill job error: {problem}", code) or 1
    return code


def _to_tasks(
    road: ApiRoad, asked: dict[str, str], parts: list[tuple[dict[str, Any], int]], signal: str, code: int
) -> int:
    """Send a signal to tasks of arrays, many in one request; the exit code, `code` unless one is refused."""
    commands: list[dict[str, Any]] = []
    for app, index in parts:
        job, indexes = f"{app['submittedSeq']}_{index}", members(app["array"] or "0")
        if index not in indexes:
            code = _say(asked, f"Kill job error on job id {job}: Invalid job id specified", code) or 1
            continue
        _tell(asked, [job], signal)
        command = _command(app, signal, whole="full" in asked)
        if signal == _KILL:
            command["type"] = "CancelTask"
        commands.append({**command, "task": indexes.index(index)})
    for start in range(0, len(commands), 500):
        some = commands[start : start + 500]
        try:
            _send(road, some)
        except Problem as problem:
            code = _say(asked, f"Kill job error: {problem}", code) or 1
    return code


def _send(road: ApiRoad, commands: list[dict[str, Any]]) -> None:
    """Have the commands carried out, in a job by the ways that its pass has. Raises: Refused."""
    if not road.is_inside:
        road.send_many(commands)
        return
    ways = {"KillApp": "kill", "CancelTask": "cancel", "SignalApp": "signal"}
    on_signal(SIGTERM, SIG_IGN)  # which the job gets before this process has its answer
    for command in commands:
        about = {name: value for name, value in command.items() if name not in ("type", "app")}
        road.post(f"/v1/apps/{command['app']}/{ways[command['type']]}", about)


def _command(app: dict[str, Any], signal: str, *, whole: bool) -> dict[str, Any]:
    about = {"app": app["app"], "reason": "scancel"}
    if signal == _KILL:
        return {"type": "KillApp", **about}
    return {"type": "SignalApp", "signal": signal, "whole": whole, **about}


def signal_of(text: str) -> str:
    """The name of a signal. Raises: Refused."""
    name = _NAMES.get(text, text.upper().removeprefix("SIG"))
    if name not in (*_NAMES.values(), "TSTP", "TTIN", "TTOU", "URG", "WINCH", "XCPU"):
        raise SlurmError(f"Unknown job signal: {text[:40]}")
    return name


def state_of(text: str | None) -> str:
    """The state that jobs must be in, "" for any. Raises: Refused."""
    if text is None:
        return ""
    found = jobs.states_named(text)
    if len(found) != 1 or not found <= {"PENDING", "RUNNING", "SUSPENDED"}:
        raise SlurmError(f"Invalid job state specified: {text[:40]}; PENDING, RUNNING or SUSPENDED can be cancelled")
    return found.pop()


def _fits(app: dict[str, Any], asked: dict[str, str], nodes: set[str], state: str) -> bool:
    """Whether the job is wanted, or of an array some of its tasks may be."""
    job = jobs.SlurmJob(app, [])
    names = [asked[each] for each in ("name", "jobname") if each in asked]
    if names and app["name"] not in names:
        return False
    if app["array"] and job.state == "RUNNING":
        return True
    return (not state or job.state == state) and (not nodes or bool(nodes & set(job.nodes)))


def _is_wanted(app: dict[str, Any]) -> bool:
    sys.stderr.write(f"Cancel job_id={app['submittedSeq']} name={app['name']} [y/n]? ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower().startswith("y")


def _tell(asked: dict[str, str], ids: list[str], signal: str) -> None:
    """With --verbose, name the jobs as Slurm does."""
    if "verbose" not in asked:
        return
    said = "Terminating" if signal == _KILL else f"Signal {signal} to"
    sys.stderr.write("".join(f"scancel: {said} job {each}\n" for each in ids))


def _say(asked: dict[str, str], sentence: str, code: int) -> int:
    if "quiet" in asked:
        return 0
    sys.stderr.write(f"scancel: error: {sentence}\n")
    return code
