"""Accidents of daily work: folders that are gone, locales that lack letters, large environments."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.cli_rig import Answer, Shell

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


def test_an_environment_that_is_too_large_names_what_to_leave_out(shell: Shell) -> None:
    given = "export LARGE=$(head -c 60000 /dev/zero | tr '\\0' x) OTHER=$(head -c 9000 /dev/zero | tr '\\0' y); {}"
    refused = shell.sh(given.format(f"fairlog run {WHO} --export ALL -- true"))
    assert refused.code == 2
    assert "leave out some, as by --export ALL,-LARGE; the largest are LARGE (60007 bytes), OTHER" in refused.err
    answer = shell.sh(
        given.format(f"fairlog run {WHO} --export ALL,-LARGE -- sh -c 'echo ${{#OTHER}} ${{LARGE-none}}'")
    )
    assert answer.out == "9000 none\n", answer.err
