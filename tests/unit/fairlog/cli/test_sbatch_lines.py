"""Lines `#SBATCH` of scripts that `fairlog submit` reads: each option acts, is named, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from fairlog.cli.groups import option_elsewhere
from fairlog.cli.job_files import JobCommand
from fairlog.cli.main import cli
from fairlog.cli.params import flag
from fairlog.cli.verbs.submit import AppOptions, job_options
from fairlog.compat.slurm.tables import SACCT, SBATCH, SCANCEL, SCONTROL, SINFO, SQUEUE, SRUN, SSHARE
from fairlog.compat.slurm.words import LEFT, Option, Table

VALUES = {
    "NAME": "n",
    "N": "2",
    "[N]": "2",
    "FOLDER": "sub",
    "PATTERN": "out-%j",
    "KIND:N": "2",
    "LIST": "gpu:2",
    "FILE": "f",
    "SIZE": "2G",
    "TIME": "10",
    "INDEXES": "1-3",
    "TEXT": "t",
    "NAMES": "A=b",
    "append|truncate": "append",
    "COMMAND": "true",
}
OF_OPTIONS = {
    "constraint": "zone=north&gpu",
    "dependency": "afterok:7",
    "nodes": "1",
    "signal": "USR1@60",
    "begin": "now+1hour",
}


NEEDED = {
    "signal": "#SBATCH -t 10\n",
    "cpus-per-gpu": "#SBATCH -G 2\n",
    "mem-per-gpu": "#SBATCH -G 2\n",
}
"""Lines without which an option means nothing."""


@click.command(cls=JobCommand, context_settings={"allow_interspersed_args": False})
@job_options
@flag("--wait")
@flag("--plan")
@flag("--parsable")
def take(*, job: AppOptions, **asked: bool) -> None:
    taken.append({**job.fields, "secrets": job.secrets, **asked})


taken: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    taken.clear()


def take_script(lines: str, *options: str) -> Result:
    Path("job.sh").write_text(f"#!/bin/sh\n{lines}true\n")
    return CliRunner().invoke(take, [*options, "job.sh"])


def job(lines: str, *options: str) -> dict[str, Any]:
    """What the script's lines make of its submission."""
    answer = take_script(lines, *options)
    assert answer.exit_code == 0, answer.output
    return taken[-1]


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        ("#SBATCH -J first --account=acme", {"name": "first", "company": "acme"}),
        (
            "#SBATCH -n 3\n#SBATCH --cpus-per-task=2 --mem-per-cpu 100M",
            {"cores_per_task": 6, "memory_per_task_mb": 600},
        ),
        ("#SBATCH --mem=2G -N 1-1", {"memory_per_task_mb": 2048}),
        ("#SBATCH -t 10", {"max_runtime_s": 600}),
        ("#SBATCH --time=1-2 -a 0-4%2 -c 3", {"time_limit_s": 93600, "array": "0-4", "cores": 6, "executor_limit": 2}),
        ("#SBATCH -a 7", {"array": "7", "keep_going": True}),
        ("#SBATCH -d afterok:7:9,afternotok:8,singleton", {"after": {"ok": ("7", "9"), "not-ok": ("8",)}}),
        ("#SBATCH --dependency=singleton", {"singleton": True}),
        ("#SBATCH --nice=7 --hold --comment='a b'", {"priority": -7, "hold": True, "comment": "a b"}),
        ("#SBATCH -t 1:00 --signal=B:USR1@90", {"warn": ("USR1", 59)}),
        ("#SBATCH --gres=gpu:tesla:2", {"task_resources": {"gpu": "2"}}),
        ("#SBATCH --gpus-per-task=2 --ntasks=2", {"task_resources": {"gpu": "4"}}),
        ("#SBATCH --export=NONE,A=b,MISSING", {"secrets_": {"A": "b"}}),
        ("#SBATCH --wait --parsable", {"wait": True, "parsable": True}),
        ("#SBATCH --test-only", {"plan": True}),
    ],
)
def test_what_sbatch_knows_by_other_names_is_read(lines: str, fields: dict[str, Any]) -> None:
    said = job(f"{lines}\n")
    said["secrets_"] = {name: value for name, value in said["secrets"].items() if not name.startswith("FAIRLOG")}
    assert {name: said[name] for name in fields} == fields


def test_files_of_output_are_those_of_slurm() -> None:
    said = job("#SBATCH -o out/%x-%J.txt -e '100%%' --open-mode=append -D sub\n")
    here = Path.cwd() / "sub"
    assert (said["output"], said["error"]) == (f"{here}/out/%x-%j.txt", f"{here}/100%%")
    assert (said["cwd"], said["open_mode"]) == (str(here), "append")


def test_tasks_that_need_a_gpu_have_executors_of_their_own() -> None:
    one = job("#SBATCH --gres=gpu:1 -c 2 --mem-per-gpu=3G\n")
    assert (one["task_resources"], one["cores_per_task"], one["memory_per_task_mb"]) == ({"gpu": "1"}, 2, 3072)
    many = job("#SBATCH --gres=gpu:1 -a 1-4 --cpus-per-gpu=2\n")
    assert (many["executor_resources"], many["executor_cores"], many["executor_limit"]) == ({"gpu": 1}, 2, None)
    assert (many["task_resources"], many["cores"], many["executor_memory_mb"]) == ({}, None, 1024)


def test_the_command_line_and_lines_of_fairlog_are_stronger() -> None:
    lines = "#SBATCH -c 8 -J weak -t 10 --comment=kept\n#FAIRLOG -J own\n"
    said = job(lines, "-c", "2", "--max-runtime", "30s")
    assert (said["name"], said["cores"], said["cores_per_task"]) == ("own", 2, None)
    assert (said["max_runtime_s"], said["comment"]) == (30, "kept")
    assert job(lines, "--tasks", "4")["cores_per_task"] == 8


def sample(option: Option) -> str:
    """A line with the option as Slurm takes it."""
    value = OF_OPTIONS.get(option.name) or VALUES.get(option.value, "x")
    return f"#SBATCH --{option.name}{f'={value}' if option.value else ''}\n"


@pytest.mark.parametrize("option", SBATCH, ids=lambda option: option.name)
def test_each_option_acts_or_is_named_or_refused(option: Option) -> None:
    besides = NEEDED.get(option.name, "")
    plain, line = dict(job(besides)), sample(option)
    answer = take_script(besides + line)
    if answer.exit_code:
        assert f"job.sh, line 2: --{option.name} is refused: " in answer.stderr
    elif taken[-1] == plain:
        assert f"--{option.name} (" in answer.stderr or (option.name, line) == ("nodes", "#SBATCH --nodes=1\n")
    assert (answer.exit_code != 0) == (option.effect == LEFT or option.name in ("input", "wrap"))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("#SBATCH --bogus", "unrecognized option '--bogus'"),
        ("#SBATCH -t 25:61", "Invalid --time specification"),
        ("#SBATCH --mem=1G --mem-per-cpu=1G", "--mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive"),
        ("#SBATCH --cpus-per-gpu=2", "--cpus-per-gpu needs a number of them, as by --gpus"),
        ("#SBATCH --mem-per-gpu=2G", "--mem-per-gpu needs a number of them, as by --gpus"),
        ("#SBATCH --mem=0", "Invalid --mem specification"),
        ("#SBATCH -a 5-1", "Invalid job array specification"),
        ("#SBATCH -d afterok:", "Job dependency problem: afterok needs the ids of jobs"),
        ("#SBATCH -N 2", "a script of `fairlog submit` runs on one node, not on 2; give --nodes=1, or submit it by"),
        ("#SBATCH -n none", 'Invalid numeric value "none" for --ntasks'),
        ("#SBATCH -J 'open", "a quotation mark is not closed"),
        ("#SBATCH -J a b", "'b' belongs to no option"),
        ("#SBATCH --signal=USR1@60", "--signal needs a --time"),
        ("#SBATCH --nodelist=h1", "--nodelist is refused: executors are placed"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(line: str, why: str) -> None:
    answer = take_script(f"#SBATCH -J x\n{line}\n")
    assert answer.exit_code == 2
    assert "job.sh, line 3" in answer.stderr
    assert f": {why}" in answer.stderr
    assert taken == []


def test_what_lines_take_along_and_variables_of_slurm_are_told() -> None:
    said = take_script("#SBATCH --export=ALL -p gpu\necho $SLURM_JOB_ID ${SLURM_ARRAY_TASK_ID}\n").stderr
    assert "note: the lines #SBATCH of job.sh take variables of your environment (--export ALL) along" in said
    assert "note: without effect in the lines #SBATCH of job.sh: --partition (there is one partition, main)" in said
    assert "note: job.sh names SLURM_ARRAY_TASK_ID, SLURM_JOB_ID; variables of Slurm are set for jobs of" in said


def test_lines_after_the_first_command_do_not_count_as_with_sbatch() -> None:
    answer = take_script("true\n#SBATCH -J late\n")
    assert "line 3 of job.sh does not count: options stand before the first command" in answer.stderr
    assert taken[-1]["name"] == "job.sh"


@pytest.mark.parametrize(
    ("verb", "tables"),
    [
        ("submit", (SBATCH, SRUN)),
        ("run", (SBATCH, SRUN)),
        ("exec", (SRUN,)),
        ("apps", (SQUEUE, SACCT)),
        ("top", (SQUEUE,)),
        ("app", (SCONTROL,)),
        ("kill", (SCANCEL,)),
        ("signal", (SCANCEL,)),
        ("workers", (SINFO,)),
        ("shares", (SSHARE,)),
    ],
)
def test_each_option_of_slurm_is_answered_by_the_verb_that_people_type_it_to(
    verb: str, tables: tuple[Table, ...]
) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    here = {each for param in command.params for each in (*param.opts, *param.secondary_opts)} | {"--help", "-h"}
    names = {f"--{option.name}" for table in tables for option in table}
    names |= {f"-{option.letter}" for table in tables for option in table if option.letter}
    for name in names - here:
        assert option_elsewhere(click.NoSuchOption(name, ctx=click.Context(command))), name


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("submit", "-A", "acme", "true"), "what Slurm calls -A is --company here"),
        (("submit", "--gpus-per-node=2", "true"), "what Slurm calls --gpus-per-node is --task-resource here"),
        (("submit", "-b", "now", "true"), "what Slurm calls -b is --begin here"),
        (("submit", "-p", "gpu", "true"), "-p is --priority here, and there are no partitions"),
        (("submit", "-e", "err.txt", "true"), "-e is --env here, and a file for errors is --error err.txt"),
        (("submit", "-d", "afterany:12", "true"), "what Slurm calls afterany:12 is 12:any here"),
        (("submit", "-a", "1-9%3", "true"), "how many run at once is --cores here"),
        (("apps", "-S", "now"), "what Slurm calls -S is --sort or --since here"),
        (("kill", "-t", "PD"), "what Slurm calls -t is --state here"),
        (("kill", "-s", "USR1"), "`fairlog signal APP SIGNAL` sends a signal"),
    ],
)
def test_what_slurm_means_is_called_by_our_name(words: tuple[str, ...], told: str) -> None:
    answer = CliRunner().invoke(cli, words)
    assert answer.exit_code == 2
    assert told in answer.stderr
