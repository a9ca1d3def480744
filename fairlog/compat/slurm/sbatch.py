"""`sbatch`: submits a script as an app of one task, or of one for each index of an array."""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from fairlog.compat.slurm import batch, times
from fairlog.compat.slurm.road import ApiRoad, Me, Problem
from fairlog.compat.slurm.tables import CLUSTER, PARTITION, SBATCH, VARIABLES
from fairlog.compat.slurm.words import (
    ACTS,
    Given,
    SlurmError,
    counted,
    listed_in_quotes,
    read,
    read_variables,
    task_of,
    whole,
    without_effect,
)

CODE = 255
"""The exit code of a wrong option."""
SCRIPT = "FAIRLOG_SCRIPT"
"""The variable with the copy of the script (`scheduler.model.staged`)."""
_DEPENDENCIES = {"afterok": "ok", "afterany": "any", "afternotok": "not-ok", "after": "began"}
SINGLETON = "singleton"
_OF_SIGNALS = 128
"""The exit code of a task that a signal has ended is more than this by the number of the signal."""
_MOST_NICE = 1000
"""The largest value of --nice, either way."""
CORE_MB = 512
"""The memory for each core of a task that names none."""
_LEAST_MB = 32
"""Memory of less is what nobody means: Slurm itself bounds no job to less than 30 MiB (MinRAMSpace)."""
_MEMORY = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}
_SIGNALS = (
    "HUP",
    "INT",
    "QUIT",
    "KILL",
    "USR1",
    "USR2",
    "ALRM",
    "TERM",
    "CONT",
    "STOP",
    "TSTP",
    "TTIN",
    "TTOU",
    "URG",
    "WINCH",
)
_OF_THE_JOB = (
    "SLURM_JOB",
    "SLURM_ARRAY",
    "SLURM_STEP",
    "SLURM_TASK",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_CPUS",
    "SLURM_MEM",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODE",
    "SLURM_NNODES",
    "SLURM_SUBMIT",
    "SLURM_GTIDS",
    "SLURMD_NODENAME",
)
"""How variables of a job begin, which another job that it submits must not find."""


class SbatchOptions:
    """The options of a submission by their names, the last one of each; and in the order in which they count."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self._values = {option.name: value for option, value in given}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> str | None:
        """The value of the option, None if it is not given."""
        return self._values.get(name)

    def number(self, name: str, default: int) -> int:
        """The value, a whole number from 1 on. Raises: Refused."""
        text = self._values.get(name)
        if text is None:
            return default
        return counted(text, name)


def run(words: list[str]) -> int:
    """Submit, and print the id."""
    given, rest = read(SBATCH, words, mixed=False, code=CODE)
    line = SbatchOptions(given)
    wrap = line.get("wrap")
    if wrap is not None and rest:
        raise SlurmError("Script arguments not permitted with --wrap option")
    name = rest[0] if rest else "-"
    script = batch.wrapped(wrap) if wrap is not None else batch.read_script(found(name))
    of_script, others = read(SBATCH, batch.directives(script), code=CODE)
    if others:
        several = "; a job has one part: submit each with an sbatch of its own" * (
            others[0] in ("hetjob", "packjob", ":")
        )
        raise SlurmError(
            f"the script has {others[0][:40]!r} in a line #SBATCH, which belongs to no option{several}", CODE
        )
    check_memory([*of_script, *given])
    of_variables = read_variables(SBATCH, VARIABLES["sbatch"])
    asked = SbatchOptions([*of_script, *of_variables, *given])
    note = without_effect("sbatch", asked.given, parts_without_effect(asked))
    road = ApiRoad()
    me = Me(road)
    default = "wrap" if wrap is not None else "sbatch" if name in ("-", "/dev/stdin") else os.path.basename(name)  # noqa: PTH119 (as above)
    file = "" if wrap is not None or name in ("-", "/dev/stdin") else os.path.abspath(found(name))  # noqa: PTH100 (as above)
    fields, secrets = submission(asked, (script, rest[1:], default, file), road, me)
    if note and "quiet" not in asked:
        say(note)
    if "test-only" in asked:
        return tell_plan(road, fields)
    return submit(road, asked, fields, secrets)


def say(sentence: str) -> None:
    """Say it on stderr."""
    sys.stderr.write(sentence.encode("utf-8", "replace").decode() + "\n")


def found(name: str) -> str:
    """The script's file: as it is named, else on PATH as sbatch looks for it."""
    if name == "-" or "/" in name or os.path.exists(name):  # noqa: PTH110 (as above)
        return name
    folders = os.environ.get("PATH", "").split(":")
    return next((f"{each}/{name}" for each in folders if each and os.access(f"{each}/{name}", os.R_OK)), name)


def submission(
    asked: SbatchOptions, batch_of: tuple[bytes, list[str], str, str], road: ApiRoad, me: Me
) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields of the app, and its variables; the batch is a script, its arguments, its usual name and its file.

    Raises: Refused.
    """
    script, arguments, default, file = batch_of
    check_nodes(asked)
    tasks, per_task = processes_of(asked)
    nodes = nodes_of(asked)
    of_node = shares(tasks, nodes)[0]
    cores = of_node * per_task
    indexes, at_once = read_array(asked.get("array"))
    cwd = os.path.normpath(os.path.join(os.getcwd(), asked.get("chdir") or "."))  # noqa: PTH109, PTH118 (as above)
    name = asked.get("job-name") or default
    seconds = times.read_limit(asked.get("time") or "infinite")
    fields: dict[str, Any] = {
        "type": "SubmitApp",
        "app": f"app-{os.urandom(6).hex()}",
        "company": company(asked, road, me),
        "user": me.user,
        "name": name,
        "tasks": count_of(indexes) if indexes else 1,
        "cores_per_task": cores,
        "cwd": cwd,
        "hold": "hold" in asked,
        "no_requeue": not may_requeue(asked),
        "priority": -read_nice(asked.get("nice")),
        **read_dependencies(asked.get("dependency")),
        **({"require": read_constraint(asked.get("constraint") or "")} if "constraint" in asked else {}),
    }
    if (begin := asked.get("begin")) is not None:
        fields["begin"] = max(0, times.read_moment(begin, "begin", ahead=True))
    told_too = {"comment": asked.get("comment"), "notify": told_by_mail(asked, road)}
    fields |= {field: value for field, value in told_too.items() if value}
    fields |= {"array": indexes, "keep_going": True} if indexes else {"small": True}
    if memory := memory_of(asked, of_node, per_task):
        fields["memory_per_task_mb"] = memory
    if gpus := gpus_of(asked, of_node):
        fields["task_resources"] = {kind: str(number) for kind, number in gpus.items()}
    if at_once or (indexes and gpus and road.get("/v1/settings")["own_sizes"] == "any"):
        fields |= one_by_one(cores, fields.get("memory_per_task_mb"), at_once, fields.pop("task_resources", {}))
    if seconds is not None:
        fields["time_limit_s" if indexes else "max_runtime_s"] = seconds
    how, warn = "either", None
    if (said := asked.get("signal")) is not None:
        how, signal, before = read_signal(said)
        if seconds is None:
            say("sbatch: note: without effect here: --signal, which comes before a time limit; the job has no --time")
        elif indexes:
            warn = signal, max(1, seconds - before)
        else:
            fields["warn"] = [signal, min(before, max(1, seconds - 1))]
    fields |= outputs(asked, indexes, cwd)
    fields["command"] = batch.command_of(arguments, how=how, stdin=stdin_of(asked), warn=warn, file=file)
    secrets = exported(asked.get("export"))
    secrets |= told(asked, fields, tasks, per_task)
    secrets[SCRIPT] = b64encode(script).decode()
    fields |= {"script": blake2b(script, digest_size=32).hexdigest(), "script_at": batch.PLACE}
    if nodes > 1:
        fields, keys = on_nodes(fields, nodes)
        secrets |= keys
    fields["env"] = sorted(secrets)
    return fields, secrets


def read_constraint(text: str) -> list[str]:
    """The labels that `--constraint` names: features of a worker are its labels. Raises: Refused."""
    terms = [term.strip() for term in text.split("&")]
    if any(sign in text for sign in "|!*[](),") or not all(terms):
        raise SlurmError(
            f"Invalid feature specification: --constraint {text[:60]!r} is not labels of workers joined by &, such as "
            "zone=north&gpu"
        )
    return terms


_ENDS = {"END", "FAIL", "ALL", "TIME_LIMIT", "ARRAY_TASKS"}
_MAILS = _ENDS | {
    *("NONE", "BEGIN", "REQUEUE", "INVALID_DEPEND", "STAGE_OUT"),
    *("TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50"),
}


def told_by_mail(asked: SbatchOptions, road: ApiRoad) -> str | None:
    """Who is told by mail how the job ended; stderr says why nobody is, where somebody was named. Raises: Refused."""
    address, types = (
        asked.get("mail-user"),
        [part.strip().upper() for part in (asked.get("mail-type") or "").split(",")],
    )
    for name in types:
        if name and name not in _MAILS:
            raise SlurmError(f"Invalid --mail-type specification: {name[:40]}", CODE)
    if address is None or not _ENDS & set(types):
        if address is not None or _ENDS & set(types):
            missing = "--mail-user" if address is None else "--mail-type END"
            say(f"sbatch: note: nobody is told by mail, which takes {missing} besides")
        return None
    from scheduler.model.errors import CommandRejected  # noqa: PLC0415 (few ask for it)
    from scheduler.model.targets import is_mail, place_of, places_of  # noqa: PLC0415 (likewise)

    try:
        place = place_of(address)
    except CommandRejected:
        place = ""
    if not place or not is_mail(address):
        say(f"sbatch: note: nobody is told by mail: {address[:60]} is no address like ann@example.org")
        return None
    if place not in places_of(road.get("/v1/settings")["notify_targets"]):
        say(f"sbatch: note: nobody is told by mail: the operator allows none to {place} (the setting notify_targets)")
        return None
    return address


def may_requeue(asked: SbatchOptions) -> bool:
    """Whether the job may be put back into its queue; of several options the last one says so."""
    return [option.name for option, _ in asked.given if option.name in ("requeue", "no-requeue")][-1:] != ["no-requeue"]


def one_by_one(cores: int, memory_mb: int | None, at_once: int, kinds: dict[str, str]) -> dict[str, Any]:
    """The fields by which each executor has room for one task of an array; there are at most `at_once` if not 0.

    A task that needs a kind finds all of it: cores that are beside it are no tasks that would need as much again.
    """
    return {
        **({"cores": at_once * cores, "executor_limit": at_once} if at_once else {}),
        "sizing": "fixed",
        "executor_cores": cores,
        "executor_memory_mb": memory_mb or CORE_MB * cores,
        **({"executor_resources": {kind: int(number) for kind, number in kinds.items()}} if kinds else {}),
    }


_OF_TASKS = ("tasks", "cores_per_task", "memory_per_task_mb", "task_resources", "small")
"""The fields of a job on one node that say how large its task is."""


def on_nodes(fields: dict[str, Any], nodes: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The job as a gang whose first program runs the script: its fields, and the keys by which its nodes meet.

    All nodes append to the files of its output, of which only the first one has any: so that empties them, if they are
    to be. The script's failure is the gang's, and not tried again.
    """
    from fairlog.engines.keys import draw_keys  # noqa: PLC0415 (slow to load, and few jobs are on several nodes)
    from fairlog.engines.mpi_node import AUTHORITY, KEY  # noqa: PLC0415 (likewise)

    cores: int = fields["cores_per_task"]
    kinds: dict[str, str] = fields.get("task_resources", {})
    patterns: dict[str, str] = {name: of_job(fields[name]) for name in ("output", "error") if name in fields}
    files = () if fields["open_mode"] == "append" else dict.fromkeys(patterns.values())
    command = batch.on_nodes(fields["command"], [each for each in files if each != os.devnull])
    size = one_by_one(cores, fields.get("memory_per_task_mb"), 0, kinds)
    gang: dict[str, Any] = {"executor_program": True, "gang": True, "executor_limit": nodes, "max_failures": 1}
    what: dict[str, Any] = {**patterns, "open_mode": "append", "command": command}
    place = fields["script_at"] + len(command) - len(fields["command"])
    rest = {name: value for name, value in fields.items() if name not in _OF_TASKS}
    keys = draw_keys("slurm")
    own = {AUTHORITY: keys.authority, KEY: keys.certificate + keys.key}
    return {**rest, **size, **gang, **what, "script_at": place}, own


def of_job(pattern: str) -> str:
    """The pattern with the job's number and index 0 in the place of a node's own, which is a task to the scheduler."""
    import re  # noqa: PLC0415 (few jobs are on several nodes)

    def of_all(found: re.Match[str]) -> str:
        return {"j": "%A", "a": "0".zfill(int(found[1] or 0))}.get(found[2], found[0])

    return re.sub(r"%(\d*)(.)", of_all, pattern)


def submit(road: ApiRoad, asked: SbatchOptions, fields: dict[str, Any], secrets: dict[str, str]) -> int:
    """Submit the app and print its number; wait for its end if that is asked for."""
    try:
        seq = road.send({**fields, "secrets": secrets})
    except Problem as problem:
        raise SlurmError(f"Batch job submission failed: {problem}") from None
    path = f"/v1/apps/{fields['app']}"
    number = road.get(path, after=seq)["submittedSeq"]
    if "parsable" in asked:
        sys.stdout.write(f"{number}\n")
    elif "quiet" not in asked:
        sys.stdout.write(f"Submitted batch job {number}\n")
    sys.stdout.flush()
    return wait(road, path) if "wait" in asked else 0


def wait(road: ApiRoad, path: str) -> int:
    """Wait for the end of the app; the largest exit code of its tasks."""
    import time  # noqa: PLC0415 (few wait)

    pause_s = 0.1
    while (app := road.get(path, fresh="true"))["endedAt"] is None:
        time.sleep(pause_s)
        pause_s = min(2.0, pause_s * 1.3)
    tasks = road.get(f"{path}/tasks", fresh="true")
    codes = [1 if signal_that_ended(task) else task["exit_code"] or 0 for task in tasks]
    return 0 if app["state"] == "finished" else max(codes, default=code_told(app.get("detail"))) or 1


def code_told(why: str | None) -> int:
    """The exit code with which the program ended that was the end of an app, 0 if it does not say so."""
    code = str(why).partition(" ended with exit code ")[2].partition(" ")[0]
    return int(code) if code.isdecimal() else 0


def signal_that_ended(task: dict[str, Any]) -> int:
    """The number of the signal that ended a task; 0 if none did."""
    code, said = task["exit_code"] or 0, str(task["message"] or "")
    return code - _OF_SIGNALS if code > _OF_SIGNALS and " was ended by SIG" in said else 0


def signal_told(why: str | None) -> int:
    """The number of the signal by which the program was ended that was the end of an app, 0 if it does not say so."""
    import signal  # noqa: PLC0415 (few ask)

    name = str(why).partition(" was ended by ")[2].partition(" ")[0]
    return int(signal.Signals[name]) if name in signal.Signals.__members__ else 0


def tell_plan(road: ApiRoad, fields: dict[str, Any]) -> int:
    """Say when and where the job would start, or why it would wait."""
    said = road.post("/v1/plan", {name: value for name, value in fields.items() if name != "type"})["value"]
    cores = said["requestedCores"]
    if said["starts"]:
        nodes = ",".join(dict.fromkeys(each["worker"] for each in said["executors"]))
        now = times.moment(times.now())
        text = f"Job 0 to start at {now} using {cores} processors on nodes {nodes} in partition {PARTITION}"
    else:
        text = f"Job would wait using {cores} processors in partition {PARTITION}: {said['waitsFor']['text']}"
        if said["estimate"] and said["estimate"]["likely"] is not None:
            text += f"; it probably starts at {times.moment(said['estimate']['likely'])}"
    say(f"sbatch: {text}")
    return 0


def company(asked: SbatchOptions, road: ApiRoad, me: Me) -> str:
    """The company of the job: --account, that of the caller, or the only one. Raises: Refused."""
    named = asked.get("account") or me.company
    if named:
        return named
    known = [each["company"] for each in road.get("/v1/companies")]
    if len(known) == 1:
        return str(known[0])
    raise SlurmError("name the company of the job with --account, or set FAIRLOG_COMPANY")


def nodes_of(asked: SbatchOptions) -> int:
    """On how many nodes a job is to run: on the fewest that --nodes allows, else on as many as its processes need.

    Raises: Refused.
    """
    if (said := asked.get("nodes")) is None:
        tasks = asked.number("ntasks", 1)
        return -(-tasks // asked.number("ntasks-per-node", tasks))
    try:
        least, *most = (counted(text, "nodes") for text in said.split("-", 1))
    except SlurmError:
        raise SlurmError(f'"{said[:40]}" is not a valid node count', CODE) from None
    if most and most[0] < least:
        raise SlurmError(f"--nodes={said} has its larger number first; give --nodes={most[0]}-{least}")
    return least


def check_nodes(asked: SbatchOptions) -> None:
    """Raises: Refused for what a job on several nodes cannot do."""
    if (nodes := nodes_of(asked)) == 1:
        return
    if (tasks := asked.number("ntasks", nodes)) < nodes:
        raise SlurmError(f"there are fewer processes than nodes, which are {nodes}; give --nodes={tasks}")
    for name in ("gpus", "cpus-per-gpu", "mem-per-gpu"):
        if name in asked:
            raise SlurmError(
                f"--{name} is refused with several nodes; say what each has with --gpus-per-node, --cpus-per-task and "
                "--mem, or give --nodes=1"
            )
    if "array" in asked:
        raise SlurmError(
            "each task of an array runs on one node here; give --nodes=1, or submit a job on several nodes for each"
        )


def read_array(text: str | None) -> tuple[str, int]:
    """The indexes of an array, "" for none, and how many run at once, 0 = any number. Raises: Refused."""
    if text is None:
        return "", 0
    listed, percent, most = text.partition("%")
    wrong = SlurmError(f"Batch job submission failed: Invalid job array specification: {text[:40]!r}")
    if percent and not whole(most):
        raise wrong
    if listed[:1] + listed[-1:] == "[]":
        listed = listed[1:-1]
    for part in listed.split(","):
        span, colon, step = part.partition(":")
        first, dash, last = span.partition("-")
        numbers = [first, *([last] if dash else []), *([step] if colon else [])]
        if not all(each.isascii() and each.isdecimal() and len(each) < 9 for each in numbers) or (colon and not dash):
            raise wrong
        if (dash and int(last) < int(first)) or (colon and not int(step)):
            raise wrong
    return listed, int(most or 0)


def members(indexes: str) -> list[int]:
    """The indexes of a list, in order."""
    found: set[int] = set()
    for part in indexes.split(","):
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        found.update(range(int(first), int(last if dash else first) + 1, int(step or 1)))
    return sorted(found)


def count_of(indexes: str) -> int:
    """How many indexes the list has."""
    return len(members(indexes))


def processes_of(asked: SbatchOptions) -> tuple[int, int]:
    """The processes of a job, and the cores of each. Raises: Refused."""
    tasks = asked.number("ntasks", asked.number("ntasks-per-node", 1) * nodes_of(asked))
    if "cpus-per-gpu" not in asked:
        return tasks, asked.number("cpus-per-task", 1)
    if "cpus-per-task" in asked:
        raise SlurmError("--cpus-per-gpu and --cpus-per-task exclude each other; give one of them", CODE)
    cores = asked.number("cpus-per-gpu", 1) * _gpus(asked, tasks, "cpus-per-gpu")
    return tasks, -(-cores // tasks)


def _gpus(asked: SbatchOptions, tasks: int, name: str) -> int:
    """The gpu resources of a job that says how much of something there is for each. Raises: Refused without any."""
    found = gpus_of(asked, tasks).get("gpu", 0)
    if not found:
        raise SlurmError(f"--{name} needs a number of them, as by --gpus", CODE)
    return found


_MEMORIES = ("mem", "mem-per-cpu", "mem-per-gpu")


def check_memory(given: Given) -> None:
    """Raises: Refused for options of which each says how much memory a job has."""
    if len({option.name for option, _ in given} & set(_MEMORIES)) > 1:
        raise SlurmError("--mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.")


def memory_of(asked: SbatchOptions, tasks: int, per_task: int) -> int | None:
    """The MiB of a job of so many processes with so many cores each, None if none are asked for. Raises: Refused."""
    name = next((option.name for option, _ in reversed(asked.given) if option.name in _MEMORIES), None)
    if name is None:
        return None
    times_ = {"mem": 1, "mem-per-cpu": tasks * per_task}.get(name) or _gpus(asked, tasks, name)
    mb = read_memory(asked.get(name) or "", name) * times_
    return mb if mb >= _LEAST_MB else None


def read_memory(text: str, name: str) -> int:
    """MiB of `500`, `500M`, `2G`. Raises: Refused."""
    upper = text.upper().removesuffix("B")
    unit = upper[-1:] if upper[-1:] in _MEMORY else ""
    number = upper.removesuffix(unit) if unit else upper
    if whole(number.replace(".", "", 1)) is None:
        raise SlurmError(f"Invalid --{name} specification", CODE)
    mb = -int(-float(number) * _MEMORY[unit or "M"] // 1)
    if mb < 1:
        raise SlurmError(
            f"Invalid --{name} specification: a job needs some memory here; give its size, such as 2G", CODE
        )
    return mb


def gpus_of(asked: SbatchOptions, tasks: int) -> dict[str, int]:
    """The further kinds that a job asks for, and how many of each. Raises: Refused."""
    found: dict[str, int] = {}
    for part in (asked.get("gres") or "").split(","):
        if part and part.lower() != "none":
            kind, _, rest = part.removeprefix("gres/").removeprefix("gres:").partition(":")
            number = rest.rpartition(":")[2] if rest else "1"
            found[kind] = found.get(kind, 0) + _whole(number if number.isdecimal() else "1" if rest else number, "gres")
    for name, times_ in _GPUS.items():
        if (text := asked.get(name)) is not None:
            found["gpu"] = max(found.get("gpu", 0), _whole(text.rpartition(":")[2], name) * times_(tasks))
    return {kind: number for kind, number in found.items() if number}


_GPUS: dict[str, Callable[[int], int]] = {
    "gpus": lambda _: 1,
    "gpus-per-node": lambda _: 1,
    "gpus-per-task": lambda tasks: tasks,
}
"""Options that ask for gpu resources -> how often, of so many tasks."""


def types_of(asked: SbatchOptions) -> list[str]:
    """What is said of the types of resources, such as the a100 of gpu:a100:2, which are not told apart here."""
    parts = [part.removeprefix("gres/").removeprefix("gres:") for part in (asked.get("gres") or "").split(",")]
    texts = [part.partition(":")[2] for part in parts] + [asked.get(name) or "" for name in _GPUS]
    types = [text.rpartition(":")[0] or ("" if text.isdecimal() else text) for text in texts]
    return [each for each in dict.fromkeys(types) if each]


def _whole(text: str, name: str) -> int:
    if (found := whole(text)) is None:
        raise SlurmError(f"Invalid --{name} specification", CODE)
    return found


def read_nice(text: str | None) -> int:
    """The value of --nice, at most 1000 either way. Raises: Refused."""
    if text is None:
        return 0
    number = text or "100"
    if whole(number.removeprefix("-")) is None:
        raise SlurmError(f"Invalid --nice value: {text[:40]}", CODE)
    return max(-_MOST_NICE, min(_MOST_NICE, int(number)))


def parts_without_effect(asked: SbatchOptions) -> list[str]:
    """Parts of the values of options that act which have no effect themselves. Raises: Refused."""
    asked = SbatchOptions([(option, value) for option, value in asked.given if option.effect == ACTS])
    types, nice = types_of(asked), asked.get("nice") or "0"
    mails = {part.strip().upper() for part in (asked.get("mail-type") or "").split(",")} - {"NONE", ""}
    unsent = mails - _ENDS if mails & _ENDS or "mail-user" not in asked else set()  # else nobody is told, as is said
    asks = any(name in asked for name in _MEMORIES)
    tasks, per_task = processes_of(asked)
    small = asks and memory_of(asked, shares(tasks, nodes_of(asked))[0], per_task) is None
    found = [f"less memory than {_LEAST_MB} MiB, in which no program starts"] if small else []
    found += [f"the type {each[:40]} of resources (--constraint chooses workers by their labels)" for each in types]
    found += [f"{','.join(sorted(unsent))[:80]} of --mail-type (the end is told)"] if unsent else []
    if abs(read_nice(nice)) < abs(int(nice)):
        found.append(f"what of --nice={nice[:40]} is beyond {_MOST_NICE}")
    if asked.number("ntasks", 1) > asked.number("ntasks-per-node", asked.number("ntasks", 1)) * nodes_of(asked):
        found.append("--ntasks-per-node, of which --nodes has fewer than --ntasks")
    reserved = "R" in (asked.get("signal") or "").upper().rpartition(":")[0]
    return [*found, *(["the R of --signal (nothing is reserved by name)"] if reserved else [])]


def read_dependencies(text: str | None) -> dict[str, Any]:
    """The fields of a submission that say what it waits for: jobs by condition, or all of its name. Raises: Refused."""
    found: dict[str, list[str]] = {}
    alone = False
    wrong = "Batch job submission failed: Job dependency problem"
    text = text or None
    if text is not None and "?" in text:
        raise SlurmError(f"{wrong}: all of them must be met here; separate them by commas")
    for part in [] if text is None else text.split(","):
        kind, colon, jobs = (f"afterany:{part}" if whole(part) else part).partition(":")
        if kind == SINGLETON and not colon:
            alone = True
            continue
        if kind not in _DEPENDENCIES:
            raise SlurmError(f"{wrong}: {kind[:40]!r} is not one of {', '.join((*_DEPENDENCIES, SINGLETON))}")
        for job in jobs.split(":"):
            if "+" in job:
                raise SlurmError(
                    f"{wrong}: a job starts when another one has begun, and no minutes later; leave out +N"
                )
            if "_" in job:
                raise SlurmError(f"{wrong}: no job waits for a task of an array; name the whole, as {kind}:17")
            if not (job.isascii() and job.isdecimal()):
                raise SlurmError(f"{wrong}: {kind} needs the ids of jobs, as {kind}:17")
            task = task_of(job)  # by which all of its array are meant
            found.setdefault(_DEPENDENCIES[kind], []).append(job if task is None else task[0])
    found = {how: list(dict.fromkeys(names)) for how, names in found.items()}
    return {"after": found, SINGLETON: alone}


def read_signal(text: str) -> tuple[str, str, int]:
    """Whom a signal is for, its name, and how many seconds before the end it comes. Raises: Refused."""
    options, colon, rest = text.rpartition(":")
    name, _, before = rest.partition("@")
    number = {
        "1": "HUP",
        "2": "INT",
        "3": "QUIT",
        "9": "KILL",
        "10": "USR1",
        "12": "USR2",
        "14": "ALRM",
        "15": "TERM",
        "18": "CONT",
    }
    signal = number.get(name, name.upper().removeprefix("SIG"))
    if signal not in _SIGNALS or (before and whole(before) is None) or (colon and set(options.upper()) - {"B", "R"}):
        raise SlurmError("Invalid --signal specification", CODE)
    return ("script" if "B" in options.upper() else "steps"), signal, int(before or 60)


def outputs(asked: SbatchOptions, indexes: str, cwd: str) -> dict[str, Any]:
    """The files of the job's output, from its folder."""
    start = cwd.replace("%", "%%")

    def file(name: str, text: str) -> str:
        return os.devnull if text.lower() == "none" else os.path.join(start, pattern(text, name))  # noqa: PTH118 (as above)

    output = asked.get("output") or ("slurm-%A_%a.out" if indexes else "slurm-%j.out")
    found: dict[str, Any] = {"output": file("output", output), "numbered": True}
    if (error := asked.get("error")) is not None:
        found["error"] = file("error", error)
    found["open_mode"] = open_mode(asked)
    return found


def stdin_of(asked: SbatchOptions) -> str:
    """The file that the job reads as its stdin, "" for an empty one."""
    named = asked.get("input") or ""
    return "" if named.lower() == "none" else named


def open_mode(asked: SbatchOptions) -> str:
    """Whether files of output are emptied before they are written to. Raises: Refused."""
    mode = (asked.get("open-mode") or "truncate").lower()
    if mode not in ("append", "a", "truncate", "t"):
        raise SlurmError("Invalid --open-mode specification", CODE)
    return "append" if mode.startswith("a") else "truncate"


def pattern(text: str, name: str) -> str:
    """The pattern of a file as fairlog writes it. Raises: Refused."""
    plain = {"J": "%j", "s": "batch", "t": "0", "n": "0"}
    if "\\" in text:
        return text.replace("\\", "").replace("%", "%%")
    done, rest = "", text
    while rest:
        before, percent, rest = rest.partition("%")
        done += before
        if not percent:
            break
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        letter, rest = rest[len(digits) : len(digits) + 1], rest[len(digits) + 1 :]
        if letter in plain:
            done += plain[letter]
        elif letter in ("%", "j", "A", "a", "x", "u", "N"):
            done += f"%{digits if letter == 'a' else ''}{letter}"
        else:
            raise SlurmError(
                f"--{name} has %{letter}, which stands for nothing here; there are %j %A %a %x %u %N", CODE
            )
    return done


def exported(text: str | None) -> dict[str, str]:
    """The variables of this environment that the job gets. Raises: Refused."""
    names = [] if text is None else [each for each in listed_in_quotes(text) if each]
    here = {name: value for name, value in os.environ.items() if not name.startswith(_OF_THE_JOB)}
    own = ("FAIRLOG_", "_FAIRLOG_")
    found: dict[str, str] = {}
    if text is None or "ALL" in (name.upper() for name in names):
        found = {name: value for name, value in here.items() if not name.startswith(own) and name != "_"}
    for name in names:
        variable, equals, value = name.partition("=")
        if equals:
            found[variable] = value
        elif name.upper() not in ("ALL", "NONE", "NIL") and name in here:
            found[name] = here[name]
    foreign = [name for name, value in found.items() if any("\udc80" <= each <= "\udcff" for each in name + value)]
    if foreign:
        say(f"sbatch: note: left out, because they are not in UTF-8: {', '.join(foreign)}")
    return {name: value for name, value in found.items() if name not in foreign}


def shares(tasks: int, nodes: int) -> list[int]:
    """How many of the processes each node has: those of one node follow each other."""
    return [tasks // nodes + (node < tasks % nodes) for node in range(nodes)]


def times_each(numbers: list[int]) -> str:
    """The numbers as Slurm writes those of nodes, such as 3(x2),1."""
    found: list[str] = []
    while numbers:
        same = next((at for at, each in enumerate(numbers) if each != numbers[0]), len(numbers))
        found.append(f"{numbers[0]}(x{same})" if same > 1 else str(numbers[0]))
        numbers = numbers[same:]
    return ",".join(found)


def told(asked: SbatchOptions, fields: dict[str, Any], tasks: int, per_task: int) -> dict[str, str]:
    """The variables of the job that are known now; its script's prelude adds the others."""
    nodes = nodes_of(asked)
    of_node = shares(tasks, nodes)[0]
    said = {
        "SLURM_JOB_NAME": fields["name"],
        "SLURM_JOB_ACCOUNT": fields["company"],
        "SLURM_JOB_PARTITION": PARTITION,
        "SLURM_JOB_USER": fields["user"],
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_GID": str(os.getgid()),
        "SLURM_CLUSTER_NAME": CLUSTER,
        "SLURM_SUBMIT_DIR": os.getcwd(),  # noqa: PTH109 (as above)
        "SLURM_SUBMIT_HOST": os.uname().nodename,
        "SLURM_SUBMIT_CHDIR": fields["cwd"],
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_TASKS_PER_NODE": times_each(shares(tasks, nodes)),
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_GTIDS": "0",
    }
    if (names := asked.get("export")) is not None:
        said["SLURM_EXPORT_ENV"] = names
    if "cpus-per-task" in asked or "cpus-per-gpu" in asked:
        said["SLURM_CPUS_PER_TASK"] = str(per_task)
    if nodes > 1 or "ntasks" in asked or "ntasks-per-node" in asked:
        said |= {"SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
    if "ntasks-per-node" in asked:
        said["SLURM_NTASKS_PER_NODE"] = str(asked.get("ntasks-per-node"))
    if memory := fields.get("memory_per_task_mb"):
        each = "mem-per-cpu" in asked
        said["SLURM_MEM_PER_CPU" if each else "SLURM_MEM_PER_NODE"] = str(
            memory // (of_node * per_task) if each else memory
        )
    if indexes := fields.get("array"):
        numbers = members(indexes)
        step = indexes.partition(":")[2].partition(",")[0] or "1"
        about = {"COUNT": len(numbers), "MIN": numbers[0], "MAX": numbers[-1], "STEP": step}
        said |= {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in about.items()} | {"FAIRLOG_ARRAY": indexes}
    kinds = fields.get("task_resources") or fields.get("executor_resources") or {}
    if gpus := str(kinds.get("gpu", "")):
        said |= {"SLURM_GPUS": str(int(gpus) * nodes), "SLURM_GPUS_ON_NODE": gpus}
    return said
