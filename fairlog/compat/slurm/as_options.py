"""Lines `#SBATCH` of a script as options of `fairlog submit` and `fairlog run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import NamedTuple

from fairlog.compat.slurm import batch, sbatch, times
from fairlog.compat.slurm.tables import SBATCH
from fairlog.compat.slurm.words import LEFT, Given, Option, SlurmError, listed_in_quotes, read

_OF_SBATCH = {
    "get-user-env": "variables are passed on by --export",
    "help": "give --help on the command line",
    "mail-type": "--notify tells how an app ended, however that was",
    "mail-user": "give --notify ADDRESS on the command line",
    "quiet": "the id alone is printed",
    "usage": "give --help on the command line",
    "version": "give --version on the command line",
}
"""Options that act for sbatch and have no like here, and why."""
_REFUSED = {
    "input": "a job has no stdin here; let the script read the file, as by `exec < FILE`",
    "wrap": "a script has its own commands; leave it out",
}


class Translated(NamedTuple):
    """What became of the lines: options with their values, and a sentence for each option without effect."""

    words: list[str]
    idle: list[str]


def translated(script: str, known: AbstractSet[str], given: AbstractSet[str]) -> Translated:
    """What the lines of a script's text mean, for a verb that knows options and was `given` some of them.

    Cores that the lines ask for give way to those that are given. Raises: Refused naming the line and the option.
    """
    said, idle = _said(script)
    asked = sbatch.SbatchOptions([(option, value) for option, value, _ in said])
    lines = {option.name: number for option, _, number in said}
    made: list[str] = []
    for names, translate in _TRANSLATED.items():
        here = [name for name in names if name in asked]
        try:
            words = translate(asked) if here else []
        except SlurmError as refusal:
            why = str(refusal).removeprefix("Batch job submission failed: ")
            raise SlurmError(f"line {max(lines[name] for name in here)}: {why}") from None
        if words == ["--plan"] and words[0] not in known:
            raise SlurmError(f"line {lines[here[0]]}: --test-only is refused: give the script to `fairlog submit`")
        if words and words[0] not in known:
            idle[here[0]] = "the output is printed, and the end is waited for, in any case"
        elif names != _CORES or not given & {"--cores", "--cores-per-task"}:
            made += words
    if "--cores-per-task" not in given:
        made += _one_by_one(asked, with_cores="--cores" not in given)
    named = [f"--{name} ({why})" for name, why in idle.items()]
    return Translated(made, [*named, *sbatch.parts_without_effect(asked)])


def _said(script: str) -> tuple[list[tuple[Option, str, int]], dict[str, str]]:
    """The options that act, each with its value and its line, and why others have no effect.

    Raises: Refused for those that are refused.
    """
    acting: list[tuple[Option, str, int]] = []
    idle: dict[str, str] = {}
    for number, words in batch.lines(script):
        for option, value in _of_line(number, words):
            if why := _REFUSED.get(option.name) or (option.note if option.effect == LEFT else ""):
                raise SlurmError(f"line {number}: --{option.name} is refused: {why}")
            if why := _OF_SBATCH.get(option.name) or (option.note if option.is_idle(value) else ""):
                idle[option.name] = why
            else:
                acting.append((option, value, number))
    return acting, idle


def _of_line(number: int, words: list[str]) -> Given:
    """The options of a line. Raises: Refused naming the line."""
    try:
        given, rest = read(SBATCH, words)
    except SlurmError as refusal:
        raise SlurmError(f"line {number}: {refusal}") from None
    if rest:
        raise SlurmError(f"line {number}: {rest[0][:40]!r} belongs to no option")
    return given


def _cores(asked: sbatch.SbatchOptions) -> int:
    """The cores of a run of the script: of all its processes. Raises: Refused."""
    processes, each = sbatch.processes_of(asked)
    return processes * each


def _memory_mb(asked: sbatch.SbatchOptions) -> int | None:
    """The memory of a run of the script. Raises: Refused."""
    sbatch.check_memory(asked.given)
    return sbatch.memory_of(asked, *sbatch.processes_of(asked))


def _at_once(asked: sbatch.SbatchOptions) -> int:
    """How many tasks of the array may run at once, 0 = any number."""
    return sbatch.read_array(asked.get("array"))[1]


def _is_one_by_one(asked: sbatch.SbatchOptions) -> bool:
    """Whether each executor has room for one task of an array, as `sbatch.one_by_one` has it."""
    return "array" in asked and bool(_at_once(asked) or sbatch.gpus_of(asked, asked.number("ntasks", 1)))


def _one_by_one(asked: sbatch.SbatchOptions, *, with_cores: bool) -> list[str]:
    """The options by which no more tasks of an array run at once than its %N says, and each has its own resources."""
    if not _is_one_by_one(asked):
        return []
    most = _at_once(asked)
    fields = sbatch.one_by_one(_cores(asked), _memory_mb(asked), most, {})
    words = ["--executor-cores", str(fields["executor_cores"]), *(["--max-executors", str(most)] if most else [])]
    words += ["--executor-memory", f"{fields['executor_memory_mb']}M"]
    return [*words, *(["--cores", str(fields["cores"])] if most and with_cores else [])]


def _text(name: str, option: str) -> Callable[[sbatch.SbatchOptions], list[str]]:
    return lambda asked: [option, asked.get(name) or ""]


def _file(name: str) -> Callable[[sbatch.SbatchOptions], list[str]]:
    return lambda asked: [f"--{name}", sbatch.pattern(asked.get(name) or "", name)]


def _nodes(asked: sbatch.SbatchOptions) -> list[str]:
    if (nodes := sbatch.nodes_of(asked)) > 1:
        raise SlurmError(
            f"a script of `fairlog submit` runs on one node, not on {nodes}; give --nodes=1, or submit it by `sbatch`"
        )
    return []


def _memory(asked: sbatch.SbatchOptions) -> list[str]:
    memory = _memory_mb(asked)
    return ["--memory-per-task", f"{memory}M"] if memory else []


def _resources(asked: sbatch.SbatchOptions) -> list[str]:
    found = sbatch.gpus_of(asked, asked.number("ntasks", 1))
    option = "--executor-resource" if _is_one_by_one(asked) else "--task-resource"
    return [word for kind, number in found.items() for word in (option, f"{kind}={number}")]


def _time(asked: sbatch.SbatchOptions) -> list[str]:
    seconds = times.read_limit(asked.get("time") or "")
    return [] if seconds is None else ["--time-limit" if "array" in asked else "--max-runtime", f"{seconds}s"]


def _array(asked: sbatch.SbatchOptions) -> list[str]:
    return ["--array", sbatch.read_array(asked.get("array"))[0], "--keep-going"]


def dependencies(asked: sbatch.SbatchOptions) -> list[str]:
    """The options that say for which jobs it waits, none without --dependency. Raises: Refused."""
    said = sbatch.read_dependencies(asked.get("dependency"))
    earlier: Mapping[str, Iterable[str]] = said["after"]
    after = [word for condition, jobs in earlier.items() for job in jobs for word in ("--after", f"{job}:{condition}")]
    return [*after, *(["--singleton"] if said[sbatch.SINGLETON] else [])]


def _begin(asked: sbatch.SbatchOptions) -> list[str]:
    at_ms = times.read_moment(asked.get("begin") or "", "begin", ahead=True)
    return ["--begin", datetime.fromtimestamp(max(0, at_ms) // 1000, UTC).isoformat()]


def _signal(asked: sbatch.SbatchOptions) -> list[str]:
    _, signal, before = sbatch.read_signal(asked.get("signal") or "")
    seconds = times.read_limit(asked.get("time") or "infinite")
    if seconds is None or "array" in asked:
        raise SlurmError("--signal needs a --time before whose end it comes, and no --array")
    return ["--warn", f"{signal}@{min(before, max(1, seconds - 1))}s"]


def _export(asked: sbatch.SbatchOptions) -> list[str]:
    import os  # noqa: PLC0415 (only here)

    words: list[str] = []
    for name in listed_in_quotes(asked.get("export") or ""):
        if "=" in name:
            words += ["--env", name]
        elif name.upper() == "ALL" or name in os.environ:
            words += ["--export", name]
    return words


def _mode(asked: sbatch.SbatchOptions) -> list[str]:
    return ["--open-mode", sbatch.open_mode(asked)]


def _priority(asked: sbatch.SbatchOptions) -> list[str]:
    return ["--priority", str(-sbatch.read_nice(asked.get("nice")))]


_CORES = ("cpus-per-task", "cpus-per-gpu", "ntasks", "ntasks-per-node")
_TRANSLATED: dict[tuple[str, ...], Callable[[sbatch.SbatchOptions], list[str]]] = {
    ("account",): _text("account", "--company"),
    ("job-name",): _text("job-name", "--name"),
    ("comment",): _text("comment", "--comment"),
    ("constraint",): lambda asked: ["--require", ",".join(sbatch.read_constraint(asked.get("constraint") or ""))],
    ("chdir",): _text("chdir", "--chdir"),
    ("output",): _file("output"),
    ("error",): _file("error"),
    ("open-mode",): _mode,
    ("nodes", "ntasks-per-node"): _nodes,
    _CORES: lambda asked: ["--cores-per-task", str(_cores(asked))],
    ("mem", "mem-per-cpu", "mem-per-gpu"): _memory,
    ("gres", "gpus", "gpus-per-node", "gpus-per-task"): _resources,
    ("time",): _time,
    ("signal",): _signal,
    ("array",): _array,
    ("dependency",): dependencies,
    ("begin",): _begin,
    ("export",): _export,
    ("hold",): lambda _: ["--hold"],
    ("requeue", "no-requeue"): lambda asked: [] if sbatch.may_requeue(asked) else ["--no-requeue"],
    ("nice",): _priority,
    ("wait",): lambda _: ["--wait"],
    ("parsable",): lambda _: ["--parsable"],
    ("test-only",): lambda _: ["--plan"],
}
"""Options of sbatch that belong together, and what makes options of ours of them."""
