"""The same kind of mistake exits with the same code, whatever the verb; docs/cli.md has the table."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.integration.cli_rig import ROOT, Shell

WHO = "--company acme --user ann"
REFUSED, USAGE, SHELL = 1, 2, 127
MISTAKES: dict[str, tuple[int, list[str]]] = {
    "an app that is not known": (
        REFUSED,
        [
            *("app no-app", "logs no-app", "logs no-app --follow", "kill no-app", "hold no-app", "release no-app"),
            *("extend no-app --by 5m", "reprioritize no-app 3", "scale no-app --executors 3", "finish no-app"),
            *("explain no-app", "resubmit no-app", "exec no-app -- true", "kill no-app --executor no-app.0"),
            f"submit {WHO} --after no-app -- true",
        ],
    ),
    "a company that is not known": (
        REFUSED,
        [
            *("company remove nobody --yes", "company set nobody --cores 3 --memory 1G", "account add nobody/ann"),
            *("submit --company nobody --user ann -- true", "run --company nobody --user ann -- true"),
            *("submit --company nobody --user ann --plan -- true", "limit set --company nobody max_apps=3"),
            *("statement --company nobody --month 2026-03", "whatif --quota nobody=1,1G", "account share nobody"),
        ],
    ),
    "a worker, account, token, kind, setting or limit that is not known": (
        REFUSED,
        [
            *("drain no-worker", "undrain no-worker", "decommission no-worker", "remove no-worker"),
            *("account remove acme/nobody", "account rename acme/nobody Nobody", "account grant acme/nobody admin"),
            *("token new acme/nobody", "token list acme/nobody", "token revoke 00000000", "settings set nothing=1"),
            *(
                "company set acme --resource nothing=1",
                "limit set nothing=1",
                f"submit {WHO} --task-resource x=1 -- true",
            ),
            "whatif --set nothing=3",
        ],
    ),
    "a value that the rules refuse": (
        REFUSED,
        [
            *("settings set default_cores=0", "settings set placement=nowhere", "company add acme"),
            *(
                "company set acme --cores 3",
                f"submit {WHO} --cores 999 -- true",
                f"run {WHO} --executor-memory 999G -- true",
            ),
            *(f"submit {WHO} --tasks 3 --cores-per-task 99 -- true", f"submit {WHO} --retries 1000000 -- true"),
        ],
    ),
    "an option or a verb that does not exist": (
        USAGE,
        [
            *(f"{verb} --no-such-option" for verb in ("apps", "app", "submit", "run", "kill", "log", "status", "up")),
            *("no-such-verb", "company no-such-verb", "spark no-such-verb", "account no-such-verb"),
        ],
    ),
    "an option's value that cannot be read": (
        USAGE,
        [
            *(f"submit {WHO} --cores x -- true", f"run {WHO} --memory x -- true", "extend no-app --by x"),
            *("log --from x", "apps --since x", "top --at x", "scale no-app --executors x", "kill --state x"),
            *("company add b --memory x", "worker --cores x", "up --workers x", "statement --company acme --month x"),
        ],
    ),
    "something that is left out": (
        USAGE,
        [
            *("app", "kill", "hold", "explain", "drain", "company add", "settings set", "exec no-app", "scale no-app"),
            *(f"submit {WHO}", f"run {WHO}", "extend no-app", "limit set", "account add", "statement"),
        ],
    ),
    "a file that is not there": (
        USAGE,
        [
            *("audit no-file", "log no-file", "explain x no-file", "fairness no-file", "replay no-file"),
            *("simulate no-file", "import no-file", "restore no-file", f"submit {WHO} --file no-file"),
            *(f"submit {WHO} --stage no-file -- true", f"submit {WHO} --env-file no-file -- true"),
        ],
    ),
    "a file that holds something else": (
        REFUSED,
        [*("audit junk", "log junk", "fairness junk", "replay junk", "simulate junk", "import junk", "restore junk")],
    ),
    "a store, an API or a cluster that does not answer": (
        REFUSED,
        [
            f"{verb} {where}"
            for verb in (
                "apps",
                "app a",
                "kill a",
                "drain w",
                "status",
                "shares",
                "log",
                "audit",
                "checkpoint",
                "logs a",
            )
            for where in ("--store redis://127.0.0.1:1/0", "--cluster nothing", "--data nothing")
        ],
    ),
    "a program that is not there": (
        SHELL,
        [f"{verb} {WHO} -- no-such-program" for verb in ("run", "submit --wait", "run --driver", "run --tasks 2")],
    ),
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A cluster of one worker, and the company acme."""
    shell = Shell(tmp_path_factory.mktemp("codes") / "home")
    shell.ok("up", "--detach", "--workers", "1", "--cores", "8", "--memory", "8G")
    try:
        shell.ok("company", "add", "acme")
        (shell.home / "junk").write_text("neither a log nor a scenario\n")
        yield shell
    finally:
        shell.ok("down")


def test_the_page_has_the_codes_of_all_kinds_of_mistakes() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    codes = re.findall(r"^\| (\d+) \| ", page.split("## Cluster options")[0], re.MULTILINE)
    assert codes == ["0", "1", "2", "3", "126", "127", "130"]
    assert {str(code) for code, _ in MISTAKES.values()} <= set(codes)


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_kind_of_mistake_has_one_code(shell: Shell, kind: str) -> None:
    code, typed = MISTAKES[kind]
    answers = {each: shell.run(*each.split()) for each in typed}
    assert not {each: answer for each, answer in answers.items() if answer.code != code}
    assert not {each: answer for each, answer in answers.items() if not answer.out and not answer.err}
