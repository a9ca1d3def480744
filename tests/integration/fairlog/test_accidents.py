"""Accidents of daily work: folders that are gone, locales that lack letters, large outputs and environments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.integration.cli_rig import Answer, Shell
from tests.waiting import wait_until

WHO = "--company acme --user ann"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A cluster of one worker, and the company acme."""
    shell = Shell(tmp_path_factory.mktemp("accidents") / "home")
    shell.ok("up", "--detach", "--workers", "1", "--cores", "8", "--memory", "8G")
    shell.ok("company", "add", "acme")
    yield shell
    shell.ok("down")


def narrow(shell: Shell, *arguments: str) -> Answer:
    """A command in a locale that has no letters but those of ASCII."""
    other = Shell(shell.home)
    other.env |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    return other.installed(*arguments)


def test_names_that_the_locale_cannot_show_are_replaced(shell: Shell) -> None:
    (shell.home / "variables").write_text("A=Ω\n")
    told = narrow(
        shell, "run", *WHO.split(), "-J", "Ωmega", "--env-file", "variables", "--", "sh", "-c", "echo $A $LANG"
    )
    assert (told.code, told.out) == (0, "Ω C.UTF-8\n")
    app = told.err.split()[0]
    assert shell.app(app)["name"] == "Ωmega"
    for verb in (("apps", "--all"), ("log",), ("shares",), ("app", app), ("explain", app), ("status",)):
        found = narrow(shell, *verb)
        assert found.code == 0, found
        assert verb[0] != "apps" or "?mega" in found.out


@pytest.mark.parametrize(
    "typed",
    [
        f"run {WHO} -- job.sh",
        f"submit {WHO} -- true",
        f"submit {WHO} --stage x -- true",
        "rq --company a --user b --url redis://127.0.0.1:1 q",
    ],
)
def test_a_current_folder_that_is_gone_is_named(shell: Shell, typed: str) -> None:
    answer = shell.sh(f"mkdir gone && cd gone && rmdir ../gone && fairlog {typed}")
    assert answer.code != 0
    assert answer.err.splitlines()[-1].startswith("Error: ")
    assert f"{shell.home}/gone" in answer.err or "--stage" in typed


def test_large_environments_functions_and_line_ends_arrive_as_they_are(shell: Shell) -> None:
    made = "; ".join(f'export "MODULE_{number}=value {number}"' for number in range(150))
    script = 'module; printf "%s\\n" "$LINES_OF" "$BYTES" | od -An -c; env | grep -c ^MODULE_'
    given = "module() { echo 'a module'; }; export -f module; export LINES_OF=$'a\\nb' BYTES=$'\\377x'"
    answer = shell.sh(f"{given}; {made}; fairlog run {WHO} --export ALL -- bash -c '{script}'")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines() == ["a module", "   a  \\n   b  \\n 377   x  \\n", "150"]


SIZES = {"LARGE": 110_000, "OTHER": 90_000, "THIRD": 70_000}


def test_an_environment_that_is_too_large_names_what_to_leave_out(shell: Shell) -> None:
    filled = " ".join(f"{name}=$(head -c {size} /dev/zero | tr '\\0' x)" for name, size in SIZES.items())
    given = f"export {filled}; {{}}"
    refused = shell.sh(given.format(f"fairlog run {WHO} --export ALL -- true"))
    assert refused.code == 2
    assert "leave out some, as by --export ALL,-LARGE; the largest are LARGE (110007 bytes), OTHER" in refused.err
    answer = shell.sh(
        given.format(f"fairlog run {WHO} --export ALL,-LARGE -- sh -c 'echo ${{#OTHER}} ${{LARGE-none}}'")
    )
    assert answer.out == "90000 none\n", answer.err


@pytest.mark.parametrize("stdout", [">/dev/full", ">&-"])
def test_a_stdout_that_fails_loses_neither_the_id_nor_the_exit_code(shell: Shell, stdout: str) -> None:
    def of(verb: str, *command: str) -> tuple[Answer, str]:
        answer = shell.sh(f"fairlog {verb} {WHO} -- {' '.join(command)} {stdout}")
        last = shell.ok("apps", "--all", "-o", "app", "--sort", "-submitted", "--limit", "1").strip()
        return answer, last

    for verb, command, code in (
        ("submit", ("true",), 1),
        ("submit --wait", ("sh", "-c", "'echo a; exit 7'"), 7),
        ("run", ("sh", "-c", "'echo a; exit 7'"), 7),
    ):
        answer, app = of(verb, *command)
        assert answer.code == code, answer
        assert app in answer.err
        assert "stdout fails: " in answer.err
    for verb in ("apps --all", "status", "log --json", "explain --help"):
        listed = shell.sh(f"fairlog {verb} {stdout}")
        assert (listed.code, listed.err.startswith("Error: stdout fails: ")) == (1, True), listed


@pytest.mark.parametrize("stdout", [">/dev/full", ">&-"])
def test_a_command_beside_the_tasks_keeps_its_exit_code_where_stdout_fails(shell: Shell, stdout: str) -> None:
    app = shell.ok("submit", *WHO.split(), "--", "sleep", "600").split()[0]
    wait_until(lambda: json.loads(shell.ok("app", app, "--json"))["state"] == "running", "the app")
    for verb in (f"exec {app}", f"run {WHO} --stdin"):
        answer = shell.sh(f"fairlog {verb} -- sh -c 'echo a; exit 9' {stdout} </dev/null")
        assert (answer.code, "stdout fails: " in answer.err) == (9, True), answer
    shell.ok("kill", "--yes", app)


def test_run_goes_on_when_nobody_reads_what_it_prints(shell: Shell) -> None:
    script = "echo 1; until test -e unread; do sleep 0.05; done; echo 2; exit 7"
    read = "{ head -1; exec <&-; touch unread; }"
    answer = shell.sh(f"fairlog run {WHO} -- sh -c '{script}' | {read}; exit ${{PIPESTATUS[0]}}")
    assert (answer.code, answer.out) == (7, "1\n"), answer.err
    assert "nobody reads stdout any more" in answer.err


def test_run_says_how_much_of_an_output_it_does_not_show(shell: Shell) -> None:
    answer = shell.run("run", *WHO.split(), "--", "seq", "300000")
    assert answer.code == 0
    missing = re.compile(r"^note: (\d+) bytes of task 0 are not shown here; ", re.MULTILINE)
    told = sum(map(int, missing.findall(answer.err)))
    assert len(answer.out) + told == sum(len(f"{number}\n") for number in range(1, 300001))
    app = answer.err.split()[0]
    kept = shell.run("logs", app)
    assert f"note: {len(answer.out) + told - len(kept.out)} bytes of task 0 are not shown here" in kept.err


def test_a_progress_bar_leaves_what_was_printed_before_it(shell: Shell) -> None:
    bar = r"echo 'sample 7 was left out'; for i in $(seq 10000); do printf '\r%s of 10000 ########' $i; done; echo"
    answer = shell.run("run", *WHO.split(), "--", "sh", "-c", bar)
    kept = shell.run("logs", answer.err.split()[0])
    assert kept.out.startswith("sample 7 was left out\n")
    assert kept.out.endswith("\n10000 of 10000 ########\n")
    assert kept.err == ""


def test_a_command_that_is_not_there_exits_as_in_a_shell_on_a_single_worker(shell: Shell) -> None:
    """The cluster has one worker; tests/integration/fairlog/test_cli.py has two."""
    for how in ("--tasks 1", "--tasks 3", "--driver", "--executor-program", "--executor-program --executors 2"):
        answer = shell.run("run", *WHO.split(), *how.split(), "--", "no-such-program")
        assert answer.code == 127, (how, answer)


def test_a_program_that_fails_for_good_gives_its_own_exit_code(shell: Shell) -> None:
    shell.ok("settings", "set", "max_executor_failures=1")
    typed = *WHO.split(), "--executor-program", "--executors", "1", "--", "sh", "-c", "exit 7"
    try:
        ran = shell.run("run", *typed)
        assert (ran.code, f"`fairlog logs {ran.err.split()[0]} --executor N`" in ran.err) == (7, True)
        assert shell.run("submit", "--wait", *typed).code == 7
    finally:
        shell.ok("settings", "set", "max_executor_failures=10")


def test_a_company_of_which_apps_are_known_is_removed_after_a_yes_only(shell: Shell) -> None:
    shell.ok("company", "add", "gone")
    shell.ok("submit", "--company", "gone", "--user", "ann", "--wait", "--", "true")
    unasked = shell.run("company", "remove", "gone")
    assert (unasked.code, unasked.out) == (2, "")
    assert "nothing was changed; add --yes" in unasked.err
    assert "gone" in shell.ok("company", "list")
    wait_until(lambda: shell.run("company", "remove", "--yes", "gone").code == 0, "its executors to be gone")
    assert "gone" not in shell.ok("company", "list")
