"""The verbs that submit: submit, run, resubmit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial, reduce, wraps
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, get_args
from uuid import uuid4

import click
from msgspec.structs import replace

from fairlog.cli import render
from fairlog.cli.choice import app_argument, full_id, full_ids
from fairlog.cli.decorators import on_cluster
from fairlog.cli.estimates import print_estimate
from fairlog.cli.groups import beside_slurm
from fairlog.cli.job_files import STDIN, Copy, JobCommand, exported, in_folder, read_variables, with_copy
from fairlog.cli.params import (
    FILE,
    P,
    R,
    as_json,
    file_option,
    flag,
    kinds_option,
    merge_near,
    number_option,
    read_ahead,
    read_array,
    read_bounds,
    read_cores,
    read_dependency,
    read_duration,
    read_folder,
    read_named,
    read_names,
    read_near,
    read_output,
    read_pair,
    read_share,
    read_signal,
    read_taint,
    read_terms,
    read_text,
    read_warning,
    read_words,
    size_option,
    text_option,
)
from fairlog.cli.printed import leave_stdout
from fairlog.cli.times import localized
from fairlog.cli.whose import company_option, user_option
from fairlog.efficiency import part, peak, percent
from fairlog.engines.mpi_node import KEY
from scheduler.model.arrays import index_of, indexes, preferences, written
from scheduler.model.commands import FinishApp, KillApp, SubmitApp, check_variables, needs_all
from scheduler.model.errors import CommandRejected, FairlogError, InvalidCommand
from scheduler.model.outputs import OpenMode
from scheduler.model.resources import size_text
from scheduler.model.staged import FILES, MOST_BYTES, SCRIPT, digest_of, packed, script_value
from scheduler.model.states import Condition
from scheduler.model.targets import place_of
from scheduler.model.text import MAX_NAME, counted
from scheduler.service.receipts import write_receipts

if TYPE_CHECKING:
    from fairlog.cli.session import Session
    from scheduler.service.receipts import Receipt


_STAGE = click.option(
    "--stage",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="Small file to put into the scratch folder of each executor and of the driver, $FAIRLOG_SCRATCH, in "
    "which --executor-program then begins; 40 KiB in all. Repeatable.",
)


def _read_target(text: str) -> str:
    """A URL or an address of mail. Raises: click.BadParameter."""
    try:
        place_of(text)
    except InvalidCommand as error:
        raise click.BadParameter(str(error)) from None
    return text


def _labels_option(option: str, field: str, text: str) -> Callable[[Any], Any]:
    """An option that names labels of workers, in several places or lists; the verb gets all of them (semantics P9)."""

    def together(_ctx: click.Context, _param: click.Parameter, lists: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys([term for terms in lists for term in terms]))

    return click.option(
        option,
        field,
        type=read_terms(option),
        multiple=True,
        callback=together,
        metavar="KEY[=VALUE],…",
        help=text,
    )


JOB_OPTIONS: Sequence[Callable[[Any], Any]] = (
    company_option("Company that the app belongs to.  [default: that of the account]"),
    user_option(
        "User who submits. Each user of a company has one queue.  [default: the account that is logged in]",
    ),
    number_option(
        "--cores",
        "-c",
        type=read_cores,
        help='Cores to hold at once, or "unlimited" if the setting admission is open.  [default: what the tasks need, '
        "at most the setting default_cores]",
    ),
    number_option(
        "--cores-per-task", help="Cores that each task needs.  [default: 1; with a single task, all that --cores gives]"
    ),
    size_option(
        "--memory-per-task",
        "-m",
        "memory_per_task_mb",
        help="Memory per task: 512M, 2G or plain MiB.  [default: the scheduler chooses]",
    ),
    number_option(
        "--tasks",
        "-n",
        help="How many times to run CMD, in parallel where possible.  [default: 1; none beside a driver]",
    ),
    click.option(
        "--array",
        "-a",
        type=beside_slurm("a", read_array),
        metavar="LIST",
        help="Run CMD once for each index of a list such as 1-10,15,20-30:5, which FAIRLOG_TASK_INDEX holds. Instead "
        "of --tasks.",
    ),
    click.option(
        "--output",
        "-o",
        type=read_output,
        metavar="PATTERN",
        help="File to which each task writes its output, and its errors unless --error names another: %j is the task, "
        "%A the app, %a the index, %x the name, %u the user, %N the host. `fairlog logs` prints it as well.",
    ),
    click.option("--error", type=read_output, metavar="PATTERN", help="File for the errors, likewise."),
    click.option(
        "--open-mode",
        type=click.Choice(get_args(OpenMode)),
        default="truncate",
        show_default=True,
        help="Whether such a file is emptied before a task writes to it.",
    ),
    text_option(
        "--script",
        metavar="FILE|-",
        help="Run a copy of this script, which is made now, with the words of CMD as its arguments; - is standard "
        "input; 4 MiB at most.",
    ),
    click.option(
        "--chdir", "-D", type=read_named, metavar="DIR", help="Folder in which CMD runs.  [default: the current one]"
    ),
    text_option("--name", "-J", metavar="S", help="Display name of the app.  [default: the command's name]"),
    click.option(
        "--kind",
        type=click.Choice(["batch", "sql"]),
        default="batch",
        show_default=True,
        help="Kind of app. With the setting app_policy=sql-first, sql apps go first.",
    ),
    flag("--keep-going", help="Let the other tasks run when one has failed for good; the app fails at their end."),
    flag("--no-requeue", help="Refuse `fairlog requeue`, which would stop the app and run it again."),
    text_option("--comment", default="", metavar="TEXT", help="Note about the app, for people."),
    click.option(
        "--notify",
        type=_read_target,
        metavar="URL|MAIL",
        help="Tell the app's end, with what it used, to this URL, by a POST of JSON, or to this address of mail. It "
        "must be at one of the places that the setting notify_targets allows.",
    ),
    number_option("--retries", default=0, show_default=True, help="Number of retries for a failed task."),
    click.option(
        "--time-limit",
        "time_limit_s",
        type=read_duration,
        metavar="TIME",
        help="Time limit for each task: 90s, 1h30m or 00:10:00.",
    ),
    click.option(
        "--max-runtime",
        "-t",
        "max_runtime_s",
        type=read_duration,
        metavar="TIME",
        help="How long the app may run in all. Then it is stopped.  [default: the company's, or the setting "
        "default_max_runtime_s]",
    ),
    click.option(
        "--warn",
        type=read_warning,
        metavar="SIGNAL@TIME",
        help="Send the tasks a signal so long before --max-runtime is reached: USR1@60s.",
    ),
    click.option(
        "--network",
        type=click.Choice(["none", "app", "host"]),
        default=None,
        help="Network that the tasks find: none, one that only the app's executors on the same worker have, or the "
        "machine's.  [default: host]",
    ),
    _labels_option(
        "--require",
        "require",
        "Only workers with these labels, such as zone=north,gpu; a key alone stands "
        "for any value, and \\, for a comma of a value. Repeatable.",
    ),
    _labels_option("--avoid", "avoid", "Only workers without any of these labels, likewise."),
    _labels_option("--prefer-label", "prefer_labels", "First of all workers that have all of these labels, likewise."),
    click.option(
        "--tolerate",
        type=read_taint,
        multiple=True,
        metavar="TAINT",
        help="Workers with this taint as well (`fairlog worker --taint`). Repeatable.",
    ),
    click.option(
        "--image",
        type=read_named,
        metavar="NAME",
        help="Image whose files the tasks find in the place of the machine's system; workers have it with "
        "`fairlog worker --image`.",
    ),
    click.option(
        "--reclaim-signal",
        type=read_signal,
        metavar="SIGNAL",
        help="Send the tasks a signal when their executor is told to leave for an app of another company: USR1. The "
        "file named by FAIRLOG_STOP_AT_FILE then holds the deadline.",
    ),
    click.option(
        "--min-runtime",
        "min_runtime_s",
        type=read_duration,
        metavar="TIME",
        help="How long each executor runs before it has to leave for another app, up to the setting "
        "max_min_runtime_s.  [default: the setting min_runtime_s]",
    ),
    click.option(
        "--sizing",
        type=click.Choice(["computed", "fixed", "one-per-worker"]),
        help="How executors are sized.  [default: fixed with --executor-cores, one-per-worker with --executor-memory "
        "alone, else computed]",
    ),
    number_option("--executor-cores", help="Cores of each executor, for executors of fixed size."),
    size_option(
        "--executor-memory",
        "executor_memory_mb",
        help="Memory of each executor, unless the scheduler sizes them.  [default: 1G]",
    ),
    number_option(
        "--max-executors",
        "--executors",
        "executor_limit",
        help="Maximum number of executors at once; with --executor-program, their number. `fairlog scale` changes it.",
    ),
    flag(
        "--executor-program",
        help="Run CMD once in each executor, with all its cores and memory.",
    ),
    flag(
        "--gang",
        help="Start the programs of --executor-program all at once or not at all. If one fails or is lost, all begin "
        "anew.",
    ),
    number_option(
        "--max-failures",
        help="How many failures of the programs of --executor-program end the app.  [default: the setting "
        "max_executor_failures]",
    ),
    flag(
        "--as-many-as-fit",
        help="The programs of --executor-program need not run at once: accept more than the cluster can ever hold.",
    ),
    click.option(
        "--executor-command",
        type=read_words,
        metavar="CMD",
        help="What executors run with --executor-program and --driver, where CMD is the driver; quoted as for a shell.",
    ),
    click.option(
        "--grace",
        "grace_s",
        type=read_duration,
        metavar="TIME",
        help="Time between SIGTERM and SIGKILL when the app's programs are told to stop: 90s.  [default: the worker's, "
        "5s]",
    ),
    click.option(
        "--owner-timeout",
        "owner_timeout_s",
        type=read_duration,
        metavar="TIME",
        help="Fail the app when its owner has given no sign of life for so long. For programs that own an app.",
    ),
    kinds_option(
        "--executor-resource",
        "executor_resources",
        metavar="KIND=N",
        help="Resources of a kind that each executor has, such as gpu=2, for executors that the app sizes. Repeatable.",
    ),
    kinds_option(
        "--task-resource",
        "task_resources",
        read_share,
        metavar="KIND=AMOUNT",
        help="Resources of a kind that each task needs, such as gpu=1 or gpu=1/4, unless the app sizes its executors. "
        "Repeatable.",
    ),
    flag("--driver", help="Run CMD once, on a worker, as the app's driver. The app ends with its driver."),
    number_option("--driver-cores", help="Cores of the driver.  [default: 1]"),
    size_option("--driver-memory", "driver_memory_mb", help="Memory of the driver.  [default: 1G]"),
    kinds_option(
        "--driver-resource",
        "driver_resources",
        metavar="KIND=N",
        help="Resources of a kind for the driver. Repeatable.",
    ),
    flag("--supervise", help="Restart the driver when it fails or is lost."),
    click.option(
        "--env",
        "-e",
        type=beside_slurm("e", read_pair),
        multiple=True,
        metavar="K=V",
        help="Environment variable for the tasks. Can be repeated.",
    ),
    click.option(
        "--env-file",
        type=FILE,
        multiple=True,
        metavar="FILE",
        help="File of such variables, a line NAME=VALUE each. --env is stronger. Repeatable.",
    ),
    _STAGE,
    click.option(
        "--export",
        type=read_names,
        multiple=True,
        metavar="NAME,...|ALL",
        help="Variables of the present environment for the tasks; ALL,-NAME leaves one out. --env-file is stronger. "
        "Repeatable.",
    ),
    click.option(
        "--elastic",
        type=read_bounds,
        metavar="MIN:MAX",
        help="Adjust the number of executors to the remaining tasks, within these bounds.",
    ),
    number_option(
        "--priority",
        "-p",
        type=beside_slurm("p", int),
        default=0,
        show_default=True,
        help="Place among the user's own apps, from -1000 to 1000; higher goes first. `fairlog reprioritize` changes "
        "it.",
    ),
    click.option(
        "--after",
        "-d",
        type=beside_slurm("d", read_dependency),
        multiple=True,
        metavar="APP[:ok|any|not-ok|began]",
        help="Start after that app of the company has finished (ok, the default), ended (any), ended otherwise than "
        "finished (not-ok), or begun (began). Can be repeated.",
    ),
    flag("--singleton", help="Start after the user's earlier apps of the same name have ended."),
    click.option(
        "--prefer",
        type=read_near,
        multiple=True,
        metavar="FILE|HOST=TASKS",
        help="Tasks that prefer a host, by their indexes: h1=0-9,15. They run there unless locality_wait_host_ms runs "
        "out. Repeatable; a FILE has a line for each host, or several for one.",
    ),
    flag("--hold", help="Do not start the app before `fairlog release`."),
    click.option(
        "--begin",
        type=read_ahead,
        metavar="TIME",
        help="Do not start the app before that time: 2026-03-01T12:00, 18:30 (the next one), tomorrow or +2h.",
    ),
    file_option("--file", "-f", help="TOML file with these options by their names, and the command as `command`."),
)
"""What describes an app, in the order of the help. A value that is not made into another one here is the field of
`SubmitApp` of the same name.
"""
_PARSABLE = flag("--parsable", help="Print the app's number instead of its id: a verb takes either.")
_CMD = click.argument("command", nargs=-1, required=True, type=read_text, metavar="[--] CMD [ARG]...")


def _contents(paths: Sequence[Path]) -> dict[str, bytes]:
    """The files by their names. Raises: click.BadParameter for one that cannot be read, or two of one name."""
    found: dict[str, bytes] = {}
    for path in paths:
        if path.name in found:
            raise click.BadParameter(f"two files are called {path.name}; rename one", param_hint="--stage")
        try:
            with path.open("rb") as file:
                found[path.name] = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise click.BadParameter(f"{path} cannot be read: {error.strerror}", param_hint="--stage") from None
    return found


class AppOptions(NamedTuple):
    """An app as the options describe it: the fields of `SubmitApp`, and the values of its variables."""

    fields: dict[str, Any]
    secrets: dict[str, str]

    def request(self, session: Session) -> SubmitApp:
        """The submission, under a new id. Raises: click.UsageError if company or user are missing."""
        who: dict[str, Any] = submitter(session, self.fields["company"], self.fields["user"])
        if FILES not in self.secrets:
            _check_path(self.fields)
        after = self.fields["after"]
        if any(name.isdecimal() for names in after.values() for name in names):
            who["after"] = {condition: tuple(full_ids(session, names)) for condition, names in after.items()}
        return SubmitApp(app=new_id(), **{**self.fields, **who})


def job_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add the options that describe an app to a verb, which gets them as `job`."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        described: dict[str, Any] = {name: kwargs.pop(name) for name in list(kwargs) if name in _DESCRIBING}
        kwargs["job"] = job_of(**described)
        return function(*args, **kwargs)

    made: Callable[P, R] = _described(run)
    return made


def _described(function: Any) -> Any:  # noqa: ANN401 (as a decorator's)
    return reduce(lambda done, add: add(done), reversed(JOB_OPTIONS), _CMD(function))


def job_of(  # noqa: PLR0913 (the options that describe an app)
    *,
    name: str | None,
    env: tuple[tuple[str, str], ...],
    env_file: tuple[Path, ...],
    stage: tuple[Path, ...],
    export: tuple[tuple[str, ...], ...],
    after: tuple[tuple[str, Condition], ...],
    array: str | None,
    prefer: tuple[list[tuple[str, str]], ...],
    command: tuple[str, ...],
    chdir: str | None,
    output: str | None,
    error: str | None,
    file: Path | None,
    script: str | None,
    **asked: Any,  # noqa: ANN401 (the other options are fields of `SubmitApp`)
) -> AppOptions:
    """The app that the options describe. Raises: click.UsageError."""
    del file  # its options are among the others
    if name == "":
        raise click.BadParameter("a name must not be empty", param_hint="--name")
    if array:
        if asked["tasks"] is not None:
            raise click.UsageError("--array and --tasks cannot be combined; the list says how many tasks there are")
        asked["tasks"] = len(indexes(array))
    if asked["tasks"] is None and not asked["driver"] and not asked["executor_program"]:
        asked["tasks"] = 1
    conditions: dict[Condition, tuple[str, ...]] = {}
    for earlier, condition in after:
        conditions[condition] = (*conditions.get(condition, ()), earlier)
    secrets = _variables(env, env_file, export, stage)
    command, places = _placed(command, chdir, output, error)
    found = with_copy(command, asked=script is not None)
    if isinstance(found, Copy):
        secrets[SCRIPT] = script_value(found.content, command[0])
        places |= {"script": digest_of(found.content), "script_at": found.at}
    _check_variables(secrets)
    asked["small"] = asked["tasks"] == 1
    fitting = asked.pop("as_many_as_fit")
    if fitting and not asked["executor_program"]:
        raise click.UsageError("--as-many-as-fit is for --executor-program; add it")
    if fitting and asked["gang"]:
        raise click.UsageError("a gang starts all at once; leave out --as-many-as-fit or --gang")
    asked["all_at_once"] = needs_all(asked) and not fitting
    near = merge_near(pair for pairs in prefer for pair in pairs)
    if near:
        asked |= _stated_preferences(near, array or "", asked["tasks"])
    about = {
        **places,
        "name": _name_of(command[0]) if name is None else name,
        "command": found.command if isinstance(found, Copy) else found,
        "array": array or "",
        "near": near,
        "executor_command": asked["executor_command"] or (),
        "network": asked["network"] or "",
        "image": asked["image"] or "",
        "notify": asked["notify"] or "",
        "notify_at": place_of(asked["notify"]) if asked["notify"] else "",
    }
    return AppOptions({**asked, **about, "env": tuple(sorted(secrets)), "after": conditions}, secrets)


def _variables(
    env: Sequence[tuple[str, str]], files: Sequence[Path], export: Sequence[tuple[str, ...]], stage: Sequence[Path]
) -> dict[str, str]:
    """The variables that the options give, the weakest first. Raises: click.UsageError."""
    secrets = exported([each for names in export for each in names])
    for variables in files:
        secrets |= read_variables(variables)
    secrets |= dict(env)
    if stage:
        secrets[FILES] = packed(_contents(stage))
    return secrets


def _check_variables(secrets: Mapping[str, str]) -> None:
    """Raises: click.UsageError if they are too many."""
    try:
        check_variables(secrets)
    except InvalidCommand as error:
        raise click.UsageError(str(error)) from None


def _placed(
    command: tuple[str, ...], chdir: str | None, output: str | None, error: str | None
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The command as it is found from the folder in which it runs, and the fields that name files and folders."""
    cwd = read_folder()
    if chdir is not None:
        command = in_folder(command, cwd)
        cwd = os.path.normpath(os.path.join(cwd, chdir))  # noqa: PTH118 (a name may be anything)
    files = {"output": output, "error": error}
    placed = {name: os.path.join(cwd, pattern) for name, pattern in files.items() if pattern}  # noqa: PTH118 (likewise)
    return command, {"cwd": cwd, **placed}


def _check_path(fields: Mapping[str, Any]) -> None:
    """Raises: click.UsageError for a program or script that is named from the present folder and begins in scratch."""
    if not (fields["executor_program"] and fields["owner_timeout_s"]):
        return
    folder = Path(read_folder())
    for word in fields["command"][:2]:
        if not word.startswith("/") and (folder / word).is_file():
            raise click.UsageError(
                f"with --owner-timeout, programs begin in $FAIRLOG_SCRATCH, where {word} is not; give {folder / word}"
            )


_MUCH_MB, _MUCH_CORE_MS = 1024, 3_600_000
"""What runs must have left of their memory, and of their cores' time, to be worth a hint."""
_DESCRIBING = {param.name for param in _described(lambda: None).__click_params__}
"""The names of the values that describe an app."""
_submits = partial(click.command, cls=JobCommand, context_settings={"allow_interspersed_args": False})


@_submits()
@job_options
@flag("--wait", "-w", help="Wait until the app ends, print the output of a single task, and exit with its code.")
@file_option("--receipt", help="Append the master's signed receipt to this file, for `fairlog audit --receipts`.")
@flag(
    "--plan", "planned", help="Submit nothing: tell whether and where the app would start now, else why it would wait."
)
@_PARSABLE
@as_json
@on_cluster
def submit(
    session: Session, *, job: AppOptions, wait: bool, receipt: Path | None, planned: bool, parsable: bool, as_json: bool
) -> int:
    """Submit an app, which runs CMD one or more times.

    CMD runs in a folder of the same path as the current one, on the worker it is assigned to. The app's id is printed
    once the app is in the log; from then on no crash loses it. With --parsable, its number is printed: the log position
    of its submission, which never repeats. The values of --env are not written to the log.

    --cores 8 runs CMD once with eight cores; --tasks 20 --cores 8 runs it 20 times, eight at once with a core each.
    --cores 1 costs one core, and the memory of one unless --memory-per-task says otherwise.

    A script can hold its own options, in lines `#FAIRLOG --cores 4` of its leading comments, and a TOML file all of
    them: `fairlog submit --file job.toml`. Options of the command line are stronger. A script is the first word of CMD,
    or the one after its interpreter, as in `bash job.sh`. Lines `#SBATCH` mean what they mean to Slurm, as far as there
    is the like here, and give way to lines `#FAIRLOG`. Of lines and options that do not count, stderr says so, and so
    it does of lines that take variables or files of yours along. Where it goes (`--store`, `--data`) and where its
    receipt is kept no line says.

    With --driver, CMD runs once as the driver, with FAIRLOG_DRIVER_ID set, and --tasks N adds N runs of CMD as tasks.

    With --executor-program, each of --executors N executors runs CMD once. One whose program exits with 0 is given back
    and not replaced; one that ends otherwise is. The app ends with the last one.

    With --after, the app stays pending until its conditions are met. If one cannot be met any more, the app ends as
    unmet, and so do the apps that wait for it to finish.

    With --wait, stderr says for what the app waits, and by which rule; the exit code is 0 if the app has finished, else
    that of its driver, the largest of its tasks, or that of the last program that failed, or 1.
    """
    request = job.request(session)
    if parsable:
        request = replace(request, numbered=True)
    if planned:
        said = json.loads(json.dumps(session.plan(request)).replace(request.app, "APP"))  # there is no such app
        return _show_plan(said, session.now_ms(), as_json=as_json)
    if as_json:
        raise click.UsageError("--json is for --plan; `fairlog app APP --json` shows an app")
    if receipt is not None:
        write_receipts(receipt, [])  # fails before anything is submitted
    answer = _send(session, request, job.secrets, receipt)
    _print_id(session, request.app, as_number=parsable, goes_on=wait)
    if not parsable:
        _hint(session, request)
    return _wait(session, request, answer.seq) if wait else 0


@_submits()
@job_options
@flag("--raw", help="Print the bytes as they are, escape sequences and control characters included.")
@click.option(
    "--prefix/--no-prefix",
    default=None,
    help="Print each line after the number of its task.  [default: on a terminal, if there are several tasks]",
)
@flag(
    "--stdin",
    "-i",
    help="Let CMD read this stdin. Its output is printed at once, and not kept. Without it, CMD has no input, and that "
    "of a loop is left to the loop.",
)
@flag("--tty", "--pty", help="Run CMD in a terminal, as --stdin does.")
@flag("--quiet", "-q", help="Say nothing of the app but for what it waits, and how it ended if it did not finish.")
@flag("--numbered", hidden=True)
@text_option("--ended-by", default="", hidden=True)
@on_cluster
def run(  # noqa: PLR0913 (its options)
    session: Session,
    *,
    job: AppOptions,
    raw: bool,
    prefix: bool | None,
    stdin: bool,
    tty: bool,
    quiet: bool,
    numbered: bool,
    ended_by: str,
) -> int:
    """Submit an app, print its output as it is written, and exit with its code.

    While the app waits, stderr says for what, and by which rule. Where a task writes faster than it can be shown,
    stderr says how much is missing; with --stdin nothing is. SIGINT, SIGTERM and SIGHUP kill the app; a second one ends
    the waiting for its end. Of several tasks, the exit code is the largest.
    """
    if raw and prefix:
        raise click.UsageError("--raw and --prefix cannot be combined; give one of them")
    request = replace(job.request(session), numbered=numbered)
    if request.gang and ended_by:
        return _run_beside_each(session, request, job.secrets, ended_by=ended_by)
    if stdin or tty:
        return _run_beside(session, request, job.secrets, tty=tty, quiet=quiet)
    with _signals() as stopped:
        answer = _send(session, request, job.secrets)
        from fairlog.cli.streams import Printer, follow_output  # noqa: PLC0415 (loaded while the app begins)
        from fairlog.cli.waiting import Reasons  # noqa: PLC0415 (likewise)

        chosen = [None] if request.driver else list(range(request.tasks or 0))
        printer = Printer.of(request.array, chosen, raw=raw, prefix=prefix, mixed=True, apart=True, lasting=True)
        follow = partial(follow_output, session, session.tasks(), request.app, chosen, printer, shown={})
        try:
            if not quiet:
                render.say(f"{request.app} submitted")
            if request.executor_program:
                render.say(
                    "note: what executors' programs print is not shown here; "
                    f"`fairlog logs {request.app} --executor N` prints what one of them has written, from 0 on"
                )
            stopped.due = True
            follow(silent=Reasons(session, request.app).look)
            return _wait(session, request, answer.seq, shown=True, quiet=quiet)
        except _Stopped as stop:
            _kill(session, request.app)
            follow()
            _wait(session, request, answer.seq, shown=True)
            return 128 + stop.number


def _run_beside(session: Session, request: SubmitApp, secrets: Mapping[str, str], *, tty: bool, quiet: bool) -> int:
    """Run the command of an app with a single task beside that task, so that it has this stdin, or a terminal."""
    from fairlog.cli import visited  # noqa: PLC0415 (few need it)

    option = "--tty" if tty else "--stdin"
    if request.tasks != 1 or request.driver or request.executor_program or request.array:
        raise click.UsageError(f"{option} is for a single task, because there is one stdin; leave out --tasks")
    if request.script or request.output or request.error:
        raise click.UsageError(
            f"{option} takes no copy of a script and no files of output; give a command, such as `sh SCRIPT`, and "
            "redirect its output here"
        )
    terminal = tty and visited.is_terminal(asked=True)
    visited.wanted(visited.beside(request.command), "", terminal=False)  # refused before anything is submitted
    held = replace(request, command=("sh", "-c", visited.HOLDER))
    with _ended_with_this(session, held.app), _signals() as stopped:
        answer = _send(session, held, secrets)
        try:
            if not quiet:
                render.say(f"{held.app} submitted")
            stopped.due = True
            with _held_back():
                from fairlog.cli.waiting import Reasons, wait_for  # noqa: PLC0415 (loads RQ, while the app begins)

            look = Reasons(session, held.app).look
            with _killed_if_refused(session, held.app):
                code = visited.visit_new(session, held.app, request.command, terminal=terminal, look=look)
            wait_for(session, held.app, answer.seq, quiet=quiet)
        except _Stopped as stop:
            return _ended_by(session, held, answer.seq, stop.number)
        else:
            return code


def _run_beside_each(session: Session, request: SubmitApp, secrets: Mapping[str, str], *, ended_by: str) -> int:
    """Run the command once beside each program of a gang, for srun; the app ends with them, and never begins anew."""
    from fairlog.cli import visited  # noqa: PLC0415 (few need it)
    from scheduler.store.visits import MOST_VISITS  # noqa: PLC0415 (likewise)

    visited.wanted(visited.beside(request.command), "", terminal=False)  # refused before anything is submitted
    if (nodes := request.executor_limit or 1) > MOST_VISITS:
        raise InvalidCommand(
            f"srun runs on at most {MOST_VISITS} nodes, not {nodes}; give fewer, or start what is to run on more with "
            f"`fairlog submit --gang --executor-program --executors {nodes} -- CMD`"
        )
    held = replace(request, command=("sh", "-c", visited.EACH_HOLDER, ended_by))
    with _ended_with_this(session, held.app), _signals() as stopped:
        answer = _send(session, held, secrets)
        try:
            stopped.due = True
            with _held_back():
                from fairlog.cli.waiting import Reasons, wait_for  # noqa: PLC0415 (loads RQ, while the app begins)

            look = Reasons(session, held.app).look
            with _killed_if_refused(session, held.app):
                codes = visited.visit_each(session, held.app, request.command, nodes, look=look)
            if failed := [f"rank {rank} ended with exit code {code}" for rank, code in enumerate(codes) if code]:
                with suppress(CommandRejected):  # it has ended meanwhile
                    session.send(FinishApp(app=held.app, outcome="failed", detail=failed[0]))
            wait_for(session, held.app, answer.seq, quiet=True)
        except _Stopped as stop:
            return _ended_by(session, held, answer.seq, stop.number)
        else:
            return max(codes)


@click.command()
@app_argument
@flag("--failed", help="Run only the tasks that have not succeeded again.")
@click.option(
    "--env", "-e", type=read_pair, multiple=True, metavar="K=V", help="Value of one of its variables. Repeatable."
)
@click.option(
    "--env-file",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="File of such values, a line NAME=VALUE each. Repeatable.",
)
@_STAGE
@file_option("--script", help="The script, if it has changed or gone from where it was.")
@flag("--wait", "-w", help="Wait until the app ends, print the output of a single task, and exit with its code.")
@text_option("--reason", default="", metavar="TEXT", help="Why; an operator states it where there are accounts.")
@_PARSABLE
@on_cluster
def resubmit(  # noqa: PLR0913 (its options)
    session: Session,
    *,
    app: str,
    failed: bool,
    env: tuple[tuple[str, str], ...],
    env_file: tuple[Path, ...],
    stage: tuple[Path, ...],
    script: Path | None,
    wait: bool,
    reason: str,
    parsable: bool,
) -> int:
    """Submit an app again as it was submitted, under a new id.

    With --failed, an app that has ended, and only those of its tasks that have not succeeded; each finds the index in
    its environment that it had. The values of its variables and its staged files are not in the log, so they must be
    given again. So must a script that was copied, unless it is where it was and has not changed.
    """
    app = full_id(session, app)
    request, number = _of_the_log(session, app, reason)
    if failed:
        request = _failed_of(session, request, number)
    secrets: dict[str, str] = {}
    for file in env_file:
        secrets |= read_variables(file)
    secrets |= dict(env)
    if stage:
        secrets[FILES] = packed(_contents(stage))
    if FILES in request.env and FILES not in secrets:
        raise click.UsageError("give the staged files again with --stage FILE")
    if KEY in request.env:
        from fairlog.engines.mpi import variables  # noqa: PLC0415 (few need it)

        own, digest = variables()
        secrets |= own
        request = replace(request, script=digest)
    elif SCRIPT in request.env:
        secrets[SCRIPT] = _script_again(request, script)
    if missing := [name for name in request.env if name not in secrets]:
        raise click.UsageError(f"give the values of {', '.join(missing)} again with --env NAME=VALUE or --env-file")
    request = replace(request, app=new_id(), after={}, begin=None, env=tuple(sorted(secrets)))
    answer = _send(session, request, secrets)
    _print_id(session, request.app, as_number=parsable, goes_on=wait)
    return _wait(session, request, answer.seq) if wait else 0


def _script_again(request: SubmitApp, named: Path | None) -> str:
    """The value of the variable with the script of the app. Raises: click.UsageError if it is not the same any more."""
    file = named or Path(request.cwd or "/", request.command[request.script_at])
    try:
        content = file.read_bytes()
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}; give the script with --script FILE") from None
    if digest_of(content) != request.script:
        raise click.UsageError(
            f"{file} is not the script that was submitted; give that with --script FILE, or submit this one anew"
        )
    return script_value(content, str(file))


def _hint(session: Session, request: SubmitApp) -> None:
    """Say on stderr what the last runs of this name used, if they left much of what is asked for again."""
    query = {"company": request.company, "user": request.user, "name": request.name}
    past = session.worked_out("/v1/runs", view="app", **query) if request.name else None
    if past is None or not past["runs"]:
        return
    spent, runs = past["spent"], past["runs"]
    left_mb = spent["peakOfMemory"] - spent["peakMemory"]
    left_core_ms = spent["toldCoreMs"] - spent["cpuMs"]
    said = []
    states_memory = request.memory_per_task_mb is not None or request.executor_memory_mb is not None
    if states_memory and 0 < spent["peakMemory"] <= left_mb and left_mb >= _MUCH_MB:
        said.append(f"at most {peak(spent)}")
    if left_core_ms >= max(_MUCH_CORE_MS, spent["cpuMs"]):
        said.append(f"{percent(part(spent['cpuMs'], spent['toldCoreMs']))} of their cores' time")
    if said:
        who = "the last run" if runs == 1 else f"the last {runs} runs"
        render.say(f"note: {who} of this name used {', and '.join(said)}; `fairlog efficiency` shows what is wasted")


def _show_plan(said: dict[str, Any], now: int, *, as_json: bool) -> int:
    """Print what would become of a submission."""
    if as_json:
        render.print_json(said)
        return 0
    size = f"{counted(said['requestedCores'], 'core')}, {size_text(said['requestedMemory'])}"
    if said["starts"]:
        click.echo(f"starts    now, with {size} requested")
        columns = "executor worker cores memory"
        render.print_records(said["executors"], columns, empty="", as_json=False)
    elif said["admitted"]:
        click.echo(f"admitted  now, with {size} requested, without an executor yet")
    wait = said["waitsFor"]
    if wait is not None:
        click.echo(f"waits     {wait['cause']} ({wait['rule']}): {localized(wait['text'])}")
    if said["queue"]:
        click.echo(f"queue     number {said['queue']['place']} of {said['queue']['of']} of its user")
    for each in said["ahead"]:
        click.echo(f"behind    {each['app']} of {each['user']} at {each['company']}")
    if not said["starts"]:
        print_estimate(said["estimate"], now)
    return 0


def _of_the_log(session: Session, app: str, reason: str) -> tuple[SubmitApp, int]:
    """The submission of the app, from the log, and the number of its tasks. Raises: UnknownApp; NotFound."""
    found = session.ask("app", app=app)
    said = session.submission(found["submittedSeq"], reason)
    if said is None or not said.command:
        raise click.ClickException(
            f"the command of app {app!r} is withheld from you; only its user can submit it again"
        )
    return said, found["tasks"]


def _failed_of(session: Session, request: SubmitApp, number: int) -> SubmitApp:
    """The submission of those tasks that have not succeeded. Raises: click.ClickException if there are none."""
    app = request.app
    if session.ask("app", app=app)["endedAt"] is None:
        raise click.ClickException(f"app {app!r} has not ended; `fairlog kill {app}` ends it")
    if request.driver:
        raise click.ClickException(f"app {app!r} has a driver, which judges its tasks; leave out --failed")
    done = {task.task for task in session.tasks().states(app) if task.state == "succeeded"}
    left = [index_of(request.array, task) for task in range(number) if task not in done]
    if not left:
        raise click.ClickException(f"every task of app {app!r} has succeeded; nothing is left to run again")
    kept = set(left)
    near = {host: [index for index in indexes(text) if index in kept] for host, text in request.near.items()}
    still = {host: written(listed) for host, listed in near.items() if listed}
    again = replace(request, array=written(left), tasks=len(left), near=still)
    return replace(again, **_stated_preferences(still, again.array, again.tasks)) if request.near else again


def _stated_preferences(near: Mapping[str, str], array: str, tasks: int | None) -> dict[str, Any]:
    """The fields of `SubmitApp` that follow from its field `near` (semantics L7). Raises: click.UsageError."""
    if tasks is None:
        raise click.UsageError("--prefer names tasks, and the app has none; add --tasks N")
    from scheduler.rules.checks.validate import check_near  # noqa: PLC0415 (few submissions need the rules)

    try:
        check_near(near)
        preferring, by_host = preferences(near, array, tasks)
    except InvalidCommand as error:
        raise click.UsageError(f"--prefer: {error}") from None
    return {"preferring_tasks": preferring, "prefer": by_host}


def new_id() -> str:
    """A new id of an app."""
    return f"app-{uuid4().hex[:12]}"


def send_app(session: Session, job: AppOptions, *, wait: bool) -> int:
    """Submit the app, print its id, and with `wait` wait for its end; the exit code."""
    request = job.request(session)
    answer = _send(session, request, job.secrets)
    _print_id(session, request.app, as_number=False, goes_on=wait)
    return _wait(session, request, answer.seq) if wait else 0


def _print_id(session: Session, app: str, *, as_number: bool, goes_on: bool) -> None:
    """Print the id, or the number, of an app that was submitted. Where stdout fails, stderr has it.

    Raises: click.ClickException then, unless the verb `goes_on`.
    """
    if as_number:
        app = str(session.ask("app", app=app)["submittedSeq"])
    try:
        click.echo(app)
        sys.stdout.flush()
    except OSError as error:
        sentence = f"{app} was submitted, but {leave_stdout(error)}"
        if not goes_on:
            raise click.ClickException(sentence) from None
        render.say(f"note: {sentence}")


def _send(session: Session, request: SubmitApp, secrets: Mapping[str, str], receipt: Path | None = None) -> Receipt:
    answer = session.submit(request, secrets)
    if receipt is not None and answer.signed is not None:
        write_receipts(receipt, [answer.signed])
    elif receipt is not None:
        render.say("note: there is no receipt, because the master has no key; see `fairlog keys --help`")
    return answer


def _wait(session: Session, request: SubmitApp, seq: int, *, shown: bool = False, quiet: bool = False) -> int:
    """Wait for the end; print the output of a single task unless it was `shown`. Returns the exit code."""
    from fairlog.cli.waiting import exit_code_of, wait_for  # noqa: PLC0415 (who does not wait need not load RQ)

    end = wait_for(session, request.app, seq, quiet=quiet)
    if not shown and (request.tasks == 1 or (request.driver and not request.tasks)):
        from fairlog.cli.streams import Printer  # noqa: PLC0415 (likewise)

        printer, task = Printer(apart=True, lasting=True), None if request.driver else 0
        output = session.tasks().tail(request.app, task)
        printer.tell_missing(task, output.missing())
        printer.write(task, output)
    return exit_code_of(session, request.app, end)


def submitter(session: Session, company: str | None, user: str | None) -> dict[str, str]:
    """The company and the user, those of the account unless they are given. Raises: click.UsageError."""
    if company is None or user is None:
        account = session.account()
        if account.role not in ("user", "admin"):
            raise click.UsageError(f"give --company and --user: {account.account} belongs to no company")
        of, _, name = account.account.partition("/")
        company, user = company or of, user or name
    return {"company": company, "user": user}


def _name_of(program: str) -> str:
    """The command's name without characters that the rules refuse in an app's name; may be empty."""
    program = "script" if program == STDIN else program
    name = "".join(character for character in PurePath(program).name if character.isprintable())
    return name[:MAX_NAME].strip()


class _Stopped(BaseException):
    """The process was sent the signal of that number."""

    def __init__(self, number: int) -> None:
        self.number = number


@dataclass
class _Signals:
    """What becomes of a signal: with `due`, the next one raises `_Stopped`, and those after it end the process."""

    due: bool = False
    kept: int = 0
    """A signal that came before that."""


@contextmanager
def _held_back() -> Iterator[None]:
    """Signals that end a process come after this: a module that one interrupts could not be used any more."""
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def _ended_by(session: Session, held: SubmitApp, seq: int, signal_number: int) -> int:
    """Kill the app for a signal that this process got, and wait until it has ended; the exit code."""
    _kill(session, held.app)
    _wait(session, held, seq, shown=True)
    return 128 + signal_number


@contextmanager
def _signals() -> Iterator[_Signals]:
    """While it lasts, signals that end a process raise `_Stopped` once that is due; then they end it."""
    state = _Signals()

    def heard(number: int, _frame: object) -> None:
        if state.due:
            state.due = False
            raise _Stopped(number)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield state
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_WATCH = 'read -r said && exit; exec "$@"'
"""A shell's script that runs its arguments, unless it is told a line before its stdin ends."""


@contextmanager
def _ended_with_this(session: Session, app: str) -> Iterator[None]:
    """While it lasts, a process beside this one kills the app should this one be gone, also if that was by SIGKILL.

    What runs in the app only notices that nobody has come, or comes any more, once it has started, and minutes later.
    """
    kill = [sys.executable, "-m", "fairlog", "kill", app, "--reason", "its command is gone", *session.target.words]
    watch = subprocess.Popen(  # noqa: S603 (a shell and this program)
        ["sh", "-c", _WATCH, "fairlog", *kill],  # noqa: S607 (as users have it)
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # signals to the group of this process are not for it
    )
    try:
        yield
    finally:
        watch.communicate(b"\n")


@contextmanager
def _killed_if_refused(session: Session, app: str) -> Iterator[None]:
    """Kill the app if the command beside it is refused: it would hold its place for that for minutes."""
    try:
        yield
    except FairlogError:
        with suppress(FairlogError):
            _kill(session, app, "its command was refused")
        raise


def _kill(session: Session, app: str, reason: str = "interrupted") -> None:
    """Kill the app over a connection of its own; the other one may be in the middle of an answer."""
    from fairlog.cli.session import opened  # noqa: PLC0415 (as the decorator does)

    other = opened(session.target)
    try:
        other.send(KillApp(app=app, reason=reason))
    except CommandRejected:
        return  # it has ended meanwhile
    finally:
        other.close()
