"""The group of verbs: each has help, help needs no store, completion answers."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner, Result

from fairlog.cli.choice import Choice, chosen_apps
from fairlog.cli.groups import NOT_HERE, OPTIONS_ELSEWHERE, SAME_MEANING
from fairlog.cli.main import VERBS, cli
from scheduler.rules.simulate import run_scenario
from tests.docs.cli_page import verbs

ROOT = Path(__file__).parents[4]
VECTORS = json.loads((ROOT / "tests" / "vectors" / "rules2.json").read_text())
SCENARIO = {name: VECTORS["cases"][0][name] for name in ("settings", "commands")}


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner(env={"FAIRLOG_STORE": None, "HOME": "/nowhere"}).invoke(cli, arguments, input=text)


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    context = click.Context(group)
    found: list[tuple[str, ...]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += _commands(command, (*path, name))
    return found


@pytest.mark.parametrize("path", _commands(cli), ids=" ".join)
def test_every_verb_has_help(path: tuple[str, ...]) -> None:
    answer = run(*path, "--help")
    assert answer.exit_code == 0
    assert re.search(r"Usage: .*\n\n  [A-Z].*\.", answer.output)


@pytest.mark.parametrize("path", [(), ("log",), ("company",), ("company", "add")], ids=" ".join)
def test_the_verb_help_prints_what_the_option_does(path: tuple[str, ...]) -> None:
    asked, option = run("help", *path), run(*path, "--help")
    assert (asked.exit_code, asked.output) == (0, option.output)


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("help nonsense", "no verb is named 'nonsense'"),
        ("help company ad", "did you mean `fairlog company add`?"),
        ("help apps more", "`fairlog apps` has no verbs of its own; leave out 'more'"),
        ("output a", "`fairlog logs APP` prints the output of an app"),
        ("get apps", "`fairlog apps` lists apps"),
        ("settings get placement", "did you mean `fairlog settings show`?"),
        ("init", "`fairlog up` starts a cluster on this machine"),
        ("log app-1", "`fairlog log --app app-1` prints the events of an app, `fairlog logs app-1` its output"),
        ("statement --month 2026-03 -", "name the company with --company"),
    ],
)
def test_what_people_guess_is_answered_with_what_to_type(typed: str, why: str) -> None:
    answer = run(*typed.split())
    assert answer.exit_code == 2
    assert why in answer.output


@pytest.mark.parametrize(
    "typed",
    [
        "status --warn-at {}",
        "account grant acme/ann {}",
        "token new acme/ann --scope {}",
        "{}",
        "status --{}",
        "log {}",
    ],
)
def test_a_very_long_word_is_not_repeated_whole(typed: str) -> None:
    answer = run(*typed.format("x" * 5000).split())
    assert answer.exit_code == 2
    assert answer.output.startswith("Error: ")
    assert len(answer.output) < 650
    assert "--help" in answer.output[-100:]


@pytest.mark.parametrize("typed", ["log --app", "audit --seals", "pool"])
def test_an_empty_word_is_refused_and_not_passed_over(typed: str) -> None:
    answer = run(*typed.split(), "")
    assert answer.exit_code == 2
    assert re.search(r"it names nothing|must not be empty", answer.output)


@pytest.mark.parametrize("number", ["0", "-1"])
def test_a_number_of_rows_is_one_or_more(number: str) -> None:
    for verb in ("apps", "efficiency"):
        answer = run(verb, "--limit", number)
        assert (answer.exit_code, "1 or more" in answer.output or "x>=1" in answer.output) == (2, True)


def test_a_file_that_is_not_there_is_no_app() -> None:
    assert "--app" not in run("log", "gone.jsonl").output.partition("see")[0]


@pytest.mark.parametrize("verb", VERBS)
def test_the_list_of_verbs_says_what_the_verbs_own_help_says_first(verb: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    assert inspect.cleandoc(command.help or "").split("\n")[0] == VERBS[verb][1]


def test_the_page_of_verbs_says_how_completion_is_switched_on() -> None:
    assert 'eval "$(_FAIRLOG_COMPLETE=bash_source fairlog)"' in (ROOT / "docs" / "cli.md").read_text()


@pytest.mark.parametrize(("origin", "build"), [("state.py", ""), ("state.cpython-311.so", " (compiled)")])
def test_the_group_says_its_version_and_whether_the_rules_are_compiled(
    monkeypatch: pytest.MonkeyPatch, origin: str, build: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: SimpleNamespace(origin=origin))
    answer = run("--version")
    assert (answer.exit_code, answer.output) == (0, f"fairlog {version('fairlog')}{build}\n")


def test_help_lists_every_verb_in_order() -> None:
    listed = re.findall(r"^  ([\w-]+)  ", run("--help").output.partition("Verbs:")[2], re.MULTILINE)
    assert listed == list(VERBS)


@pytest.mark.parametrize("arguments", [["--help"], ["nonsense"]])
def test_help_and_wrong_usage_load_neither_the_stores_library_nor_pydantic(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom fairlog.cli.main import cli\n"
        f"try: cli.main({arguments!r})\nexcept SystemExit: pass\n"
        "print([name for name in ('redis', 'rq', 'pydantic', 'rich', 'structlog') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_asks_the_cluster_loads_neither_rq_nor_rich() -> None:
    program = (
        "import sys, fairlog.cli.verbs.cluster, fairlog.cli.session;"
        "print({'rq', 'rich', 'structlog'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("typed", "word", "offered"),
    [("fairlog su", "1", {"submit"}), ("fairlog company ", "2", {"add", "set", "move", "remove", "list"})],
)
def test_the_shell_completes_verbs(typed: str, word: str, offered: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fairlog"],
        cwd=ROOT,
        env={**os.environ, "_FAIRLOG_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": word},
        capture_output=True,
        text=True,
        check=False,
    )
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == offered


def test_without_any_cluster_a_verb_says_how_to_get_one() -> None:
    answer = run("apps")
    assert answer.exit_code == 1
    assert answer.output == (
        "Error: no cluster found: start one with `fairlog up`, log in with `fairlog login --api URL`, or name a store "
        "with --store or FAIRLOG_STORE\n"
    )


def test_a_data_folder_on_which_nothing_runs_is_named() -> None:
    answer = run("--data", "/nowhere/else", "apps")
    assert answer.exit_code == 1
    assert answer.output == (
        "Error: no `fairlog up` runs on the data in /nowhere/else: start it with `fairlog up --data /nowhere/else`\n"
    )


def test_down_without_a_running_up_fails() -> None:
    answer = run("down")
    assert (answer.exit_code, answer.output) == (1, "Error: no `fairlog up` is running\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["submit", "--company", "c", "--user", "u"],
        ["submit", "--company", "c", "--user", "u", "--memory-per-task", "12X", "--", "true"],
        ["submit", "--company", "c", "--user", "u", "--time-limit", "soon", "--", "true"],
        ["submit", "--company", "c", "--user", "u", "--kind", "stream", "--", "true"],
        ["submit", "--company", "c", "--user", "u", "--env", "A", "--", "true"],
        ["up", "--store", "redis://localhost"],
        ["up", "--masters", "0"],
        ["worker", "--cores", "0"],
        ["worker", "--memory", "0"],
        ["master", "--lease", "nan"],
        ["kill"],
        ["log", "--from", "0"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_sentence_and_exits_with_2(arguments: list[str]) -> None:
    answer = run(*arguments)
    assert answer.exit_code == 2
    assert re.fullmatch(
        r"Error: .+(; see `fairlog.* --help`|[?;] `fairlog.* --help` lists (all|the verbs))\n", answer.output
    )
    assert answer.output.count("--help") == 1


@pytest.mark.parametrize(
    "words", ["log {}", "audit {}", "audit - --receipts {}", "replay {}", "simulate {}", "whatif --trace {}"]
)
def test_a_device_which_may_have_no_end_is_not_read(words: str) -> None:
    answer = run(*words.format("/dev/zero").split())
    assert answer.exit_code == 2
    assert "'/dev/zero' is a device; name a file, or - for stdin; see `fairlog " in " ".join(answer.output.split())


@pytest.mark.parametrize("text", ["fl_1234\x07", "fl_12\nfl_34", "fl_é"])
def test_a_text_that_is_no_token_is_refused_before_it_is_sent_and_not_shown(text: str) -> None:
    answer = CliRunner().invoke(cli, ["login", "--api", "http://127.0.0.1:1"], input=text)
    assert answer.exit_code == 1
    assert answer.stderr.startswith("Error: this is not a token, or it was not copied in full; ")
    assert "fl_" not in answer.output


@pytest.mark.parametrize("path", [(), ("company",)], ids=" ".join)
def test_a_group_without_a_verb_shows_its_help_and_exits_with_2(path: tuple[str, ...]) -> None:
    answer = run(*path)
    assert (answer.exit_code, answer.output) == (2, run(*path, "--help").output)


@pytest.mark.parametrize(("name", "shown"), [("a\nb", r"'a\\nb'"), ("", "''")])
def test_a_worker_of_an_unfit_name_is_refused_before_it_connects(name: str, shown: str) -> None:
    answer = run("--store", "redis://127.0.0.1:1/0", "worker", "--id", name)
    assert answer.exit_code == 1
    assert re.fullmatch(rf"Error: the worker id must be .+, not {shown}\n", answer.output)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://localhost:1", "does not answer"),
        ("unix:///nowhere.sock", "does not answer"),
        ("http://localhost", "must begin with"),
        ("redis://localhost:99999", "Port out of range"),
    ],
)
@pytest.mark.parametrize("verb", [["shares"], ["apps"], ["submit", "--company", "c", "--user", "u", "--", "true"]])
def test_a_store_that_is_not_there_is_one_sentence(verb: list[str], url: str, why: str) -> None:
    answer = run("--store", url, *verb)
    assert answer.exit_code == 1
    assert re.fullmatch(r"Error: .+\n", answer.output)
    assert why in answer.output


def test_the_store_can_be_named_before_the_verb_and_behind_it() -> None:
    before, behind = run("--store", "unix:///a", "apps"), run("--store", "unix:///b", "apps", "--store", "unix:///a")
    assert before.output == behind.output
    assert "unix:///a" in before.output


def test_a_scenarios_answer_is_printed_as_json(tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(SCENARIO))
    answer = run("simulate", str(file), "--json")
    assert answer.exit_code == 0
    assert json.loads(answer.output) == run_scenario(SCENARIO, timed=True)
    assert run("simulate", "-", "--json", text=json.dumps(SCENARIO)).output == answer.output


def test_a_scenarios_table_has_a_line_for_each_decision() -> None:
    lines = run("simulate", "-", text=json.dumps(SCENARIO)).output.splitlines()
    decided = [line for line in lines if re.search(r"\d  (refused|admitted|granted) ", line)]
    assert len(decided) == len(run_scenario(SCENARIO)["decisions"])


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"commands": [1]}',
        '{"commands": [{"op": "fly"}]}',
        '{"commands": [{"op": "submit"}]}',
        '{"settings": {"nope": 1}, "commands": []}',
        '{"commands": [{"op": "kill", "app": 7}]}',
        "[" * 100_000,
    ],
)
def test_a_malformed_scenario_is_one_sentence(text: str) -> None:
    answer = run("simulate", "-", text=text)
    assert answer.exit_code == 1
    assert re.fullmatch(r"Error: .+\n", answer.output)


def test_every_option_that_names_a_company_or_a_user_reads_its_variable() -> None:
    found = {
        (" ".join(path), option.name): option.envvar
        for path, command in verbs()
        for option in command.params
        if isinstance(option, click.Option) and option.name in {"company", "user"}
    }
    assert {("submit", "user"), ("kill", "company"), ("apps", "user"), ("audit", "company")} <= found.keys()
    typed = {path for (path, name), variable in found.items() if variable != f"FAIRLOG_{name.upper()}"}
    assert typed == {"limit set", "drain", "window add"}  # whom a change of the cluster concerns


def test_a_variable_narrows_what_is_chosen_and_chooses_nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLOG_COMPANY", "acme")
    taken: list[Choice] = []

    @click.command()
    @chosen_apps()
    def verb(chosen: Choice) -> None:
        taken.append(chosen)

    shell = CliRunner()
    assert "name an APP, or choose apps with" in shell.invoke(verb, ["--yes"]).output
    for arguments in (["--state", "pending"], ["a1"], ["a1", "--company", "bolt"]):
        assert shell.invoke(verb, arguments).exit_code == 0
    state, named, both = taken
    assert (state.filter.company, named.filter.company, both.filter.company) == ("acme", None, "bolt")


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("submit --cpus 2 -- true", "'--cpus'. Did you mean --cores? `fairlog submit --help` lists all"),
        ("submit --ram 2G -- true", "'--ram'. Did you mean --memory-per-task? "),
        ("submit --tenant acme -- true", "'--tenant'. Did you mean --company? "),
        ("submit --comapny acme -- true", "'--comapny'. Did you mean --company or --comment? "),
        ("submit --nonsense-of-mine -- true", "'--nonsense-of-mine'; see `fairlog submit --help`"),
        ("worker --gpu 0", "'--gpu'. Did you mean --resource? "),
        ("worker --hostname w", "'--hostname'. Did you mean --host? "),
        ("up --mem 4G", "'--mem'. Did you mean --memory? "),
        ("token new a/b --ttl 3h", "'--ttl'. Did you mean --lifetime? "),
        ("api --port 80", "'--port'. Did you mean --listen? "),
        ("apps --filter x", "'--filter'. Did you mean --cluster? "),
    ],
)
def test_an_unknown_option_is_answered_by_the_one_of_its_meaning_then_by_the_nearest(typed: str, told: str) -> None:
    said = run(*typed.split()).stderr
    assert said.startswith(f"Error: No such option {told}"), said


def test_every_meaning_of_an_option_is_one_that_a_verb_has() -> None:
    every = {name for _, command in verbs() for param in command.params for name in param.opts}
    assert {each for meant in SAME_MEANING.values() for each in meant} <= every


def test_options_of_slurm_are_answered_by_naming_ours_or_why_there_is_none() -> None:
    every = [{name for param in command.params for name in param.opts} for _, command in verbs()]
    for ours in {each for named in OPTIONS_ELSEWHERE.values() for each in named}:
        assert any(ours in opts for opts in every), ours
    told = "No such option '--mem': what Slurm calls --mem is --memory-per-task here; see `fairlog submit --help`"
    assert run("submit", "--mem", "2G", "--", "true").stderr == f"Error: {told}\n"
    for name in ("exclude", "nodes", "partition", "wrap"):
        told = f"Error: No such option '--{name}': {NOT_HERE[name]}; see "
        assert run("submit", f"--{name}", "x", "--", "true").stderr.startswith(told)
    assert "Slurm" not in run("apps", "--mem", "2G").stderr  # which asks for no memory
