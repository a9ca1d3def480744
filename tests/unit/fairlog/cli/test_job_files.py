"""Jobs in files: directives of a script, TOML, variables; read by the options of submit themselves."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from fairlog.cli.job_files import JobCommand
from fairlog.cli.params import flag
from fairlog.cli.verbs.submit import AppOptions, job_options, submit
from scheduler.model.staged import digest_of, script_of_value


@click.command(cls=JobCommand, context_settings={"allow_interspersed_args": False})
@job_options
@flag("--wait")
def take(*, job: AppOptions, wait: bool) -> None:
    taken.append((job, wait))


taken: list[tuple[AppOptions, bool]] = []


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
    assert (found["command"], found["secrets"]["A"]) == (("./job.sh", "x"), "1")


def test_what_a_script_takes_along_of_the_one_who_submits_it_is_said() -> None:
    Path("key").write_text("k")
    Path("env").write_text("A=1\n")
    script("#!/bin/sh\n#FAIRLOG --export HOME --stage key\n#FAIRLOG --env-file env --cores 2\n")
    answer = CliRunner(env={"HOME": "/h"}).invoke(take, ["--company", "c", "job.sh"])
    assert answer.exit_code == 0
    assert answer.stderr.splitlines() == [
        "note: line 2 of job.sh takes variables of your environment (--export HOME) along for the tasks",
        "note: line 2 of job.sh takes your file key (--stage) along for the tasks",
        "note: line 3 of job.sh takes the variables in your file env (--env-file) along for the tasks",
    ]
    assert CliRunner().invoke(take, ["--company", "c", "--stage", "key", "true"]).stderr == ""


@pytest.mark.parametrize(
    "option",
    ["--receipt kept", "--store redis://s", "--cluster c", "--archive file:///a", "--data d", "--unsafe-store"],
)
def test_a_script_says_neither_where_it_goes_nor_what_is_written_for_it_here(option: str) -> None:
    """It may be somebody else's: a submission to a store of theirs takes variables and files there."""
    script(f"#!/bin/sh\n#FAIRLOG {option}\n")
    answer = CliRunner().invoke(submit, ["--company", "c", "job.sh"])
    assert answer.exit_code == 2
    assert f"line 2 of job.sh names a {option.split(maxsplit=1)[0]}; name it on the command line" in answer.stderr
    assert not Path("kept").exists()


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
    some = job("--export", "ALL,-KEPT", "true", env={"KEPT": "1", "ALSO": "2"})["secrets"]
    assert (some.get("KEPT"), some["ALSO"]) == (None, "2")
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
        ({"j.sh": "#FAIRLOG --cpus 4\n"}, ["j.sh"], "No such option '--cpus'. Did you mean --cores?"),
        ({"j": "cpus = 4"}, ["--file", "j", "true"], "j: there is no 'cpus'; did you mean cores?"),
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


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xef\xbb\xbf#!/bin/bash\n#FAIRLOG -J SEEN\n", "byte-order mark"),
        (b"\xef\xbb\xbf#FAIRLOG -J SEEN\ntrue\n", "byte-order mark"),
        ("\ufeff#!/bin/sh\ntrue\n".encode("utf-16-le"), "byte-order mark"),
        (b"#!/bin/bash\r\n#FAIRLOG -c 1\r\ntrue\r\n", "the line ends of DOS"),
        (b"#!/bin/bash\r\ntrue\n", "the line ends of DOS"),
        (b"true\r\ntrue\r\n", "the line ends of DOS"),
    ],
)
@pytest.mark.parametrize("mode", [0o644, 0o755])
@pytest.mark.parametrize("words", [("b.sh",), ("./b.sh", "x"), ("bash", "-e", "b.sh")])
def test_a_script_that_an_editor_has_spoilt_is_refused_by_name(
    content: bytes, why: str, mode: int, words: tuple[str, ...]
) -> None:
    Path("b.sh").write_bytes(content)
    Path("b.sh").chmod(mode)
    said = refusal("--", *words)
    assert "b.sh" in said
    assert why in said


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_a_program_without_content_is_refused_by_name(mode: int) -> None:
    for name in ("e", "e.sh", "e.py"):
        Path(name).touch(mode)
        assert f"./{name} is empty" in refusal("--", f"./{name}")
        assert f"{name} is empty" in refusal(name)
    Path("d.sh").mkdir()
    assert "./d.sh is a folder" in refusal("./d.sh")
    assert "type `take --script -`" in refusal("-")


def test_an_interpreter_that_reads_other_line_ends_is_given_them() -> None:
    Path("b.py").write_bytes(b"\xef\xbb\xbf#!/usr/bin/python3\r\nprint()\r\n")
    assert job("--", "python3", "b.py")["command"] == ("python3", "b.py")


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_a_shell_script_without_an_interpreters_name_is_run_by_sh(mode: int) -> None:
    script("echo ran\n", mode=mode)
    assert job("job.sh")["command"] == ("sh", "./job.sh")


def test_a_script_on_path_without_an_interpreters_name_is_run_by_sh(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("bin").mkdir()
    script("#FAIRLOG -J SEEN\ntrue\n", "bin/tool")
    monkeypatch.setenv("PATH", f"{Path.cwd()}/bin:{os.environ['PATH']}")
    found = job("tool", "x")
    assert found["command"] == ("sh", f"{Path.cwd()}/bin/tool", "x")
    assert found["name"] == "SEEN"


@pytest.mark.parametrize("words", [("job.sh",), ("./job.sh",), ("bash", "job.sh"), ("sh", "-e", "./job.sh", "x")])
def test_the_options_of_a_script_count_however_it_is_named(words: tuple[str, ...]) -> None:
    script("#!/bin/bash\n#FAIRLOG -J SEEN\ntrue\n")
    assert job("--", *words)["name"] == "SEEN"


@pytest.mark.parametrize(
    ("text", "words", "why"),
    [
        ("#!/bin/sh\n#FAIRLOG -J SEEN\n", ("env", "A=1", "./job.sh"), "line 2 of ./job.sh does not count: the command"),
        ("#!/bin/sh\n# FAIRLOG -J SEEN\n", ("job.sh",), "line 2 of job.sh does not count: write #FAIRLOG, in capitals"),
        ("#!/bin/sh\n#fairlog -J SEEN\n", ("job.sh",), "line 2 of job.sh does not count: write #FAIRLOG, in capitals"),
        ("#!/bin/sh\n# SBATCH -J SEEN\n", ("job.sh",), "line 2 of job.sh does not count: write #SBATCH, in capitals"),
        ("#!/bin/sh\n#SBATCH -J SEEN\n", ("env", "./job.sh"), "line 2 of ./job.sh does not count: the command"),
        ("#!/bin/sh\n#PBS -J A\n#PBS -n 2\n", ("job.sh",), "lines 2, 3 of job.sh do not count: #PBS is of"),
        ("#!/bin/sh\n#PBS -N A\n", ("sh", "job.sh"), "line 2 of job.sh does not count: #PBS is of another scheduler"),
        ("set -e\n#FAIRLOG -J SEEN\n", ("./job.sh",), "line 2 of ./job.sh does not count: options stand before"),
    ],
)
def test_lines_that_look_like_options_and_do_not_count_are_named(text: str, words: tuple[str, ...], why: str) -> None:
    script(text)
    answer = CliRunner().invoke(take, ["--", *words])
    assert answer.exit_code == 0, answer.output
    assert taken[-1][0].fields["name"] != "SEEN"
    assert f"note: {why}" in answer.stderr


def test_a_script_whose_options_count_is_not_spoken_of() -> None:
    script("#!/bin/sh\n##FAIRLOG -J OUT\n#FAIRLOG -J SEEN\n# about FAIRLOG - and others\n#SBATCHES -x\n")
    answer = CliRunner().invoke(take, ["job.sh"])
    assert (answer.exit_code, answer.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "mode", "typed"),
    [
        ("hello.py", 0o644, "`take -- python3 ./hello.py"),
        ("hello.py", 0o755, "`take -- python3 ./hello.py"),
        ("model.R", 0o644, "`take -- Rscript ./model.R"),
        ("notes", 0o644, "`take -- sh ./notes"),
    ],
)
def test_a_text_that_nothing_says_how_to_run_is_refused_with_what_to_type(name: str, mode: int, typed: str) -> None:
    script("print()\n", name, mode)
    assert typed in refusal(name)


def test_a_script_of_any_language_that_is_not_here_is_missed() -> None:
    assert "there is no script 'train.py' in " in refusal("train.py")


def copied(*arguments: str, text: bytes = b"") -> tuple[tuple[str, ...], int, bytes]:
    """The command of a submission, which word of it is the script, and the copy of that."""
    answer = CliRunner().invoke(take, arguments, input=text)
    assert answer.exit_code == 0, answer.output
    found = taken[-1][0]
    content = script_of_value(found.secrets["FAIRLOG_SCRIPT"])
    assert found.fields["script"] == digest_of(content)
    assert "FAIRLOG_SCRIPT" in found.fields["env"]
    return found.fields["command"], found.fields["script_at"], content


def test_a_shell_script_that_is_the_first_word_is_copied() -> None:
    script("#!/bin/bash\ntrue\n")
    script("true\n", "plain.sh", 0o644)
    assert copied("job.sh", "a") == (("./job.sh", "a"), 0, b"#!/bin/bash\ntrue\n")
    assert copied("plain.sh") == (("sh", "./plain.sh"), 1, b"true\n")
    Path("job.sh").chmod(0o644)
    assert copied("./job.sh")[:2] == (("/bin/bash", "./job.sh"), 1)


def test_what_may_need_its_folder_is_copied_only_if_that_is_asked_for() -> None:
    script("#!/usr/bin/python3\n", "train.py")
    script("#!/bin/sh\n")
    for words in (("./train.py",), ("bash", "job.sh"), ("true",)):
        assert "FAIRLOG_SCRIPT" not in job(*words)["secrets"]
    assert copied("--script", "train.py", "a", "--b") == (("./train.py", "a", "--b"), 0, b"#!/usr/bin/python3\n")
    Path("program").write_bytes(b"\x7fELF\0")
    assert copied("--script", "program", "--", "-x") == (("program", "-x"), 0, b"\x7fELF\0")


def test_a_script_comes_by_standard_input_with_its_options() -> None:
    text = b"#!/bin/sh\n#FAIRLOG --cores 3\ntrue\n"
    for named in ("-", "/dev/stdin"):
        assert copied("-J", "x", "--script", named, "--", "a", text=text) == (("/bin/sh", "script", "a"), 1, text)
        assert (taken[-1][0].fields["cores"], taken[-1][0].fields["name"]) == (3, "x")
    copied("--script", "-", text=text)
    assert taken[-1][0].fields["name"] == "script"


def test_a_script_that_cannot_be_copied_is_refused() -> None:
    Path("large").write_bytes(b"#!/bin/sh\n" + b"#" * (4 << 20))
    assert "has 4194314 bytes, and one of at most 4194304 is copied" in refusal("large")
    assert "none cannot be read: No such file or directory" in refusal("--script", "none")
    assert "the script is empty" in refusal("--script", "-")
    script("#!/bin/sh\n#FAIRLOG --script other\n")
    assert "line 2 of job.sh names a --script; name it on the command line" in refusal("job.sh")


def test_variables_have_newlines_and_functions() -> None:
    env = {"BASH_FUNC_f%%": "() {  echo a\n}", "LINES_": "a\nb\n"}
    assert job("--export", "ALL", "true", env=env)["secrets"].items() >= env.items()
