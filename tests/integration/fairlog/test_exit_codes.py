"""The same kind of mistake exits with the same code, whatever the verb; docs/cli.md has the table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlog.cli.main import main
from fairlog.cli.session import opened
from tests.integration.cli_rig import ROOT, Answer, Shell
from tests.integration.fairlog.test_organisation import Organisation

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
            *("submit --company nobody --user ann --plan -- true", "limit set --company nobody max_pending_apps=3"),
            *("statement --company nobody --month 2026-03", "whatif --quota nobody=1,1G", "account share nobody"),
        ],
    ),
    "a worker, account, token, kind, setting or limit that is not known": (
        REFUSED,
        [
            *("window remove nothing", "window add --workers no-worker --from +1h --to +2h"),
            *("drain no-worker", "undrain no-worker", "decommission no-worker", "remove no-worker"),
            *("account remove acme/nobody", "account rename acme/nobody Nobody", "account grant acme/nobody admin"),
            *(
                "account grant acme/ann admin --department nowhere",
                "limit set --department nowhere max_cores=3",
                "statement --department nowhere --month 2026-03",
            ),
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
            *(f"window add --workers worker-1 {span}" for span in ("--from +2h --to +1h", "--from +1s --to +2h")),
            "window add --workers worker-1 --from +1h --to +2h --for nobody",
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
            *("company add b --part x", "department add d --borrow-limit x", "department add d --lend-limit 2"),
            *("settings set min_runtime_s=x", "whatif --set min_runtime_s=x", f"submit {WHO} --image= -- true"),
            *("apps --store=", "apps --cluster="),
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
    "a folder in the place of a program": (
        USAGE,
        [f"{verb} {WHO} -- /tmp" for verb in ("run", "submit --wait", "run --driver", "run --tasks 2")],
    ),
    "a program that is not there": (
        SHELL,
        [f"{verb} {WHO} -- no-such-program" for verb in ("run", "submit --wait", "run --driver", "run --tasks 2")],
    ),
}


NOT_PERMITTED = [
    *("company add b", "company set acme --cores 3 --memory 1G", "company remove acme --yes", "resource add gpu"),
    *("settings set default_cores=2", "limit set --company acme max_pending_apps=3", "worker invite w7 --host h"),
    *("drain worker-1", "undrain worker-1", "decommission worker-1", "remove worker-1"),
    *("window add --workers worker-1 --from +1h --to +2h", "window remove disks"),
    *("account add acme/eve", "account remove acme/boss", "account grant acme/ann admin", "token new acme/boss"),
    "account grant acme/boss admin --department research",
    *(f"{verb} --company acme --user boss -- true" for verb in ("submit", "submit --plan", "run")),
    *(f"{verb} --company other --user ann -- true" for verb in ("submit", "submit --plan", "run")),
]
"""What the account of a user may not do."""

ASKED = [
    *("apps", "app a", "kill a", "drain w", "status", "shares", "log", "audit", "checkpoint", "logs a", "whoami"),
    *(
        "company list",
        "company add b",
        "settings show",
        "settings set default_cores=2",
        "explain a",
        "workers",
        "hold a",
    ),
    *("fairness", "account list", "token list", f"submit {WHO} -- true", f"run {WHO} -- true"),
]
"""What a cluster behind the API is asked for."""


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


def wrong(shell: Shell, typed: list[str], words: str) -> dict[str, Answer]:
    """What was not refused in one sentence that has one of these words."""
    answers = {each: shell.run(*each.split()) for each in typed}
    return {
        each: answer
        for each, answer in answers.items()
        if answer.code != REFUSED or len(answer.err.splitlines()) != 1 or not re.search(words, answer.err)
    }


@pytest.fixture(scope="module")
def organisation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Organisation]:
    found = Organisation(tmp_path_factory.mktemp("permits"))
    yield found
    found.owner.ok("down")


def test_what_one_may_not_do_has_the_code_of_what_is_refused(organisation: Organisation) -> None:
    """By name where the account is known, and for want of one otherwise."""
    _, ann = organisation.company("acme")
    assert not wrong(ann, NOT_PERMITTED, "may not|acts for")
    stranger = organisation.elsewhere("stranger")
    for token in ("", "fl_junk"):
        stranger.env |= {"FAIRLOG_API": organisation.url, "FAIRLOG_TOKEN": token}
        assert not wrong(stranger, ASKED, "token")


def impatient() -> None:
    """The command line, which does not wait for an API."""
    defaults: dict[str, object] = opened.__kwdefaults__  # type: ignore[assignment]
    defaults["timeout_s"] = 0.1
    main()


@pytest.mark.parametrize("where", ["http://127.0.0.1:1", "http+unix:/nowhere/api.sock"])
def test_an_api_that_is_away_has_the_code_of_what_is_refused(tmp_path: Path, where: str) -> None:
    shell = Shell(tmp_path / "home")
    shell.program = impatient
    shell.env["FAIRLOG_API"] = where
    assert not wrong(shell, ASKED, "no API server answers|needs the store itself")
