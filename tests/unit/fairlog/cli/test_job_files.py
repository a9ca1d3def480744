"""Jobs in files: directives of a script, TOML, variables; read by the options of submit themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from fairlog.cli.job_files import JobCommand
from fairlog.cli.params import flag
from fairlog.cli.verbs.submit import Job, job_options


@click.command(cls=JobCommand, context_settings={"allow_interspersed_args": False})
@job_options
@flag("--wait")
def take(*, job: Job, wait: bool) -> None:
    taken.append((job, wait))


taken: list[tuple[Job, bool]] = []


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    taken.clear()


def job(*arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """What the options make of a submission: its fields and its secrets."""
    answer = CliRunner(env=env).invoke(take, arguments)
    assert answer.exit_code == 0, answer.output
    return {**taken[-1][0].fields, "secrets": taken[-1][0].secrets, "wait": taken[-1][1]}


def refusal(*arguments: str) -> str:
    """Why wrong usage is refused."""
    answer = CliRunner().invoke(take, arguments)
    assert answer.exit_code == 2, answer.output
    return answer.output.splitlines()[-1]


def script(text: str, name: str = "job.sh", mode: int = 0o755) -> None:
    Path(name).write_text(text)
    Path(name).chmod(mode)


def test_directives_follow_tabs_and_stand_in_scripts_of_any_encoding() -> None:
    Path("job.sh").write_bytes(
        "#!/bin/sh\n#FAIRLOG\t--cores\t2\n#FAIRLOG\n#FAIRLOGS --cores 3\n# caf\xe9\n".encode("latin-1")
    )
    assert job("job.sh")["cores"] == 2


def test_the_directives_of_a_script_are_options_and_the_command_line_is_stronger() -> None:
    head = "#!/bin/sh\n# about\n#FAIRLOG --cores 4 --tasks 2\n\n#FAIRLOG -J nightly --env A=1 # why\n"
    script(f"{head}echo\n#FAIRLOG --hold\n")
    found = job("--company", "c", "--cores", "8", "job.sh", "x")
    assert (found["cores"], found["tasks"], found["name"], found["hold"]) == (8, 2, "nightly", False)
    assert (found["command"], found["secrets"]) == (("./job.sh", "x"), {"A": "1"})


def test_a_script_runs_by_its_path_or_by_its_interpreter() -> None:
    script("#!/usr/bin/env python3\n", mode=0o644)
    assert job("job.sh", "a")["command"] == ("/usr/bin/env", "python3", "./job.sh", "a")
    script("#FAIRLOG -n 3\necho\n", mode=0o644)
    assert job("./job.sh")["command"] == ("sh", "./job.sh")
    assert job("/only/on/workers.sh", "a")["command"] == ("/only/on/workers.sh", "a")
    script("#!/bin/sh\n", name="true")
    assert job("true")["command"] == ("true",)
    assert job("./true")["command"] == ("./true",)


def test_a_job_file_has_the_names_of_the_options() -> None:
    Path("job.toml").write_text(
        'command = ["echo", "a b"]\ncompany = "acme"\ncores = 4\nmemory-per-task = "1G"\nmax_runtime = "1h30m"\n'
        'hold = true\nsupervise = false\nafter = ["app-1:ok", "app-2:any"]\nenv = {A = "1", B = "x=y"}\nwait = true\n'
    )
    found = job("--file", "job.toml", "--cores", "2")
    wanted = {"company": "acme", "cores": 2, "memory_per_task_mb": 1024, "max_runtime_s": 5400, "hold": True}
    assert found.items() >= {**wanted, "command": ("echo", "a b"), "wait": True, "supervise": False}.items()
    assert found["secrets"] == {"A": "1", "B": "x=y"}
    assert found["after"] == {"ok": ("app-1",), "any": ("app-2",)}
    assert job("-f", "job.toml", "--", "other")["command"] == ("other",)


def test_variables_come_from_a_file_the_environment_and_the_options() -> None:
    Path("env").write_text("# why\n\nA=1\nexport B='two words'\nC=\"x#y\"\nD=a=b\n")
    found = job("--env-file", "env", "--export", "HOME,B", "-e", "A=9", "true", env={"HOME": "/h", "B": "0"})
    assert found["secrets"] == {"A": "9", "B": "two words", "C": "x#y", "D": "a=b", "HOME": "/h"}
    everything = job("--export", "ALL", "true", env={"FAIRLOG_TOKEN": "t", "KEPT": "1"})["secrets"]
    assert everything["KEPT"] == "1"
    assert not [name for name in everything if name.startswith("FAIRLOG")]


def test_company_and_user_come_from_the_environment_unless_given() -> None:
    env = {"FAIRLOG_COMPANY": "acme", "FAIRLOG_USER": "ann"}
    assert job("true", env=env).items() >= {"company": "acme", "user": "ann"}.items()
    assert job("--user", "bob", "true", env=env)["user"] == "bob"


def test_an_array_says_how_many_tasks_there_are() -> None:
    found = job("--array", "1-10,15,20-30:5", "true")
    assert (found["array"], found["tasks"]) == ("1-10,15,20-30:5", 14)
    assert job("true")["array"] == ""


@pytest.mark.parametrize(
    ("files", "arguments", "why"),
    [
        ({}, ["--file", "no.toml", "true"], "no.toml cannot be read: No such file"),
        ({"j": "cores ="}, ["--file", "j"], "j is not TOML"),
        ({"j": "croes = 4"}, ["--file", "j", "true"], "j: there is no 'croes'; did you mean cores?"),
        ({"j": "hold = 1"}, ["--file", "j", "true"], "j: hold is true or false, not '1'"),
        ({"j": "cores = [[1]]"}, ["--file", "j", "true"], "write it as the option --cores takes it"),
        (
            {"j": "cores = 'many'"},
            ["--file", "j", "true"],
            "j: Invalid value for '--cores' / '-c': 'many' is neither a whole number",
        ),
        ({"j": "env = ['A']"}, ["--file", "j", "true"], "j: Invalid value for '--env' / '-e'"),
        ({"j.sh": "\n#FAIRLOG --cores many\n"}, ["j.sh"], "line 2 of j.sh: Invalid value for '--cores'"),
        ({"j.sh": "#FAIRLOG --help\n"}, ["j.sh"], "line 1 of j.sh asks for help; give --help on the command line"),
        ({"j": "cores = 4"}, ["--file", "j"], "Missing argument"),
        ({"j": 'command = ""'}, ["--file", "j"], "j: the command is empty"),
        ({"j.sh": "#FAIRLOG --croes 4\n"}, ["j.sh"], "line 1 of j.sh: No such option '--croes'"),
        (
            {"j.sh": "#!/bin/sh\n#FAIRLOG cores 4\n"},
            ["./j.sh"],
            "line 2 of ./j.sh has 'cores', which belongs to no option",
        ),
        ({"j.sh": "#FAIRLOG --name 'x\n"}, ["./j.sh"], "line 1 of ./j.sh cannot be read: No closing quotation"),
        ({"j.sh": "#FAIRLOG --file j\n"}, ["./j.sh"], "names a --file"),
        ({}, ["nofile.sh"], "there is no script 'nofile.sh' in /"),
        ({}, ["--", "nofile.sh", "x"], "and none on PATH; check its name, or give the absolute path"),
        ({"job.sh": "echo"}, ["deep/job.sh"], "there is no script 'deep/job.sh' in /"),
        ({"j.toml": "file = 'x'\n"}, ["--file", "j.toml"], "there is no 'file'; did you mean env-file?"),
        ({"j.toml": "command = [1]\n"}, ["--file", "j.toml"], "j.toml: the command is text or a list of texts"),
        ({"j.toml": "command = true\n"}, ["--file", "j.toml"], "j.toml: the command is text or a list of texts"),
        ({"j.toml": 'command = "\'"\n'}, ["--file", "j.toml"], "j.toml: the command cannot be read: No closing"),
        ({}, ["--file", "/dev/zero", "true"], "/dev/zero cannot be read: it has more than 16 MiB"),
        ({}, ["--env-file", "/dev/zero", "true"], "/dev/zero cannot be read: it has more than 16 MiB"),
        ({}, ["--prefer", "/dev/zero", "true"], "nor a file that can be read: it has more than 16 MiB"),
        ({}, ["--env-file", "no", "true"], "no cannot be read"),
        ({"e": "A\n"}, ["--env-file", "e", "true"], "line 1 of e is not of the form NAME=VALUE: 'A'"),
        ({"e": "A='x\n"}, ["--env-file", "e", "true"], "line 1 of e cannot be read"),
        ({"e": "A='x' y\n"}, ["--env-file", "e", "true"], "nothing may follow the closing quote"),
        ({}, ["--export", "NOT_SET_HERE", "true"], "'NOT_SET_HERE' is not set; leave it out of --export"),
        ({}, ["--export", "A,,B", "true"], "has an empty name"),
        ({}, ["--array", "1-3", "--tasks", "3", "true"], "--array and --tasks cannot be combined"),
        *(
            ({}, ["--array", text, "true"], "write it like 1-10,15,20-30:5")
            for text in ("", "a", "3-1", "1-", "1-9:0", "-1", "1,,2", "99999999999")
        ),
        ({}, ["--array", "1-3,2", "true"], "the task index 2 is listed twice"),
        ({}, ["--array", "0-200000", "true"], "at most 100000"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(files: dict[str, str], arguments: list[str], why: str) -> None:
    for name, text in files.items():
        script(text, name)
    assert re.search(re.escape(why), refusal(*arguments))
