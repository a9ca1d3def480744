"""Two companies, their people and an operator on one cluster, each with a home and a login of their own."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from fairlog.local.running import RECORD
from tests.integration.cli_rig import Shell
from tests.waiting import HOPELESS_S, wait_until

FILE = Path(".config/fairlog/credentials.json")


class Organisation:
    """The owner of an `up`, and people who know only the URL of its API."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.owner = Shell(folder / "owner")
        self.owner.ok("up", "--detach", "--workers", "1", "--cores", "8", "--memory", "8G", "--masters", "1")
        self.url: str = json.loads(next(self.owner.home.rglob(RECORD)).read_text())["api"]
        self.owner.ok("account", "add", "op/olga")
        self.olga = self.invited(self.owner, "op/olga")

    def invited(self, by: Shell, account: str) -> Shell:
        """Somebody whom `by` invites, and who logs in with the invitation; it is good for nobody else."""
        invitation = by.ok("token", "new", account, "--invitation")
        shell = self.elsewhere(account.replace("/", "-"))
        assert shell.ok("login", "--api", self.url, text=invitation).startswith(f"logged in as {account}, ")
        again = self.elsewhere("thief").run("login", "--api", self.url, text=invitation)
        assert again.err.startswith("Error: the token is unknown or was revoked")
        assert invitation.strip() not in (shell.home / FILE).read_text()
        return shell

    def company(self, name: str) -> tuple[Shell, Shell]:
        """An admin and a user of a new company."""
        self.olga.ok("company", "add", name)
        self.olga.ok("account", "add", f"{name}/boss", "--role", "admin")
        boss = self.invited(self.olga, f"{name}/boss")
        boss.ok("account", "add", f"{name}/ann")
        return boss, self.invited(boss, f"{name}/ann")

    def elsewhere(self, name: str) -> Shell:
        """A home without a cluster."""
        return Shell(self._folder / name)


@pytest.fixture
def organisation(tmp_path: Path) -> Iterator[Organisation]:
    found = Organisation(tmp_path)
    yield found
    found.owner.ok("down")


def test_of_a_user_who_is_removed_it_is_said_what_apps_stay(organisation: Organisation) -> None:
    boss, ann = organisation.company("acme")
    assert boss.ok("account", "revoke", "acme/ann", "admin") == "acme/ann was not admin\n"
    for _ in range(2):
        ann.ok("submit", "--hold", "--", "true")
    ends = "`fairlog kill --company acme --user ann` ends"
    assert boss.ok("account", "remove", "acme/ann") == f"acme/ann removed; 2 apps stay, {ends} them\n"
    boss.ok("kill", "--company", "acme", "--user", "ann", "--yes")
    boss.ok("account", "add", "acme/ann")
    assert boss.ok("account", "revoke", "acme/ann", "user") == "acme/ann is no longer user\n"
    assert boss.ok("account", "remove", "acme/ann") == "acme/ann removed\n"


def refusal(shell: Shell, *arguments: str) -> str:
    """Why a command is refused."""
    answer = shell.run(*arguments)
    assert (answer.code, answer.out) == (1, "")
    return answer.err


def test_who_has_another_home_logs_in_by_the_data_folder_and_opens_the_page(organisation: Organisation) -> None:
    owner, tom = organisation.owner, Shell(organisation.owner.home.parent / "tom")
    data = json.loads(next(owner.home.rglob("up.json")).read_text())["data"]
    owner.ok("company", "add", "initech")
    owner.ok("account", "add", "initech/tom")
    invitation = owner.ok("token", "new", "initech/tom", "--invitation")
    assert "no `fairlog up` runs here" in tom.run("login", text=invitation).err
    elsewhere = tom.run("--data", str(tom.home), "login", text=invitation)
    assert (elsewhere.code, f"no `fairlog up` runs on the data in {tom.home}" in elsewhere.err) == (2, True)
    assert "logged in as initech/tom" in tom.ok("--data", data, "login", text=invitation)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#key=\S+\n", tom.ok("page"))
    tom.env["FAIRLOG_DATA"] = data
    again = owner.ok("token", "new", "initech/tom", "--invitation")
    assert "logged in as initech/tom" in tom.ok("login", text=again)


def test_companies_share_a_cluster_and_reach_only_what_is_theirs(organisation: Organisation) -> None:
    owner, olga = organisation.owner, organisation.olga
    boss, ann = organisation.company("acme")
    _, stranger = organisation.company("globex")
    receipts = ann.home / "receipts.jsonl"

    app = ann.ok("submit", "--receipt", str(receipts), "--wait", "--", "echo", "from acme").splitlines()[0]
    assert ann.ok("logs", app) == boss.ok("logs", app) == "from acme\n"
    held = ann.ok("submit", "--receipt", str(receipts), "--hold", "--", "sleep", "600").strip()

    # Another company sees neither the app nor its output, and cannot act on it or in its name.
    for verb in ("app", "explain", "logs", "kill"):
        assert re.search("acts as user and may not .+ of acme/ann$", refusal(stranger, verb, held).strip()), verb
    head = stranger.ok("checkpoint").partition(":")[0]
    for verb in ("app", "explain"):
        assert "may not see apps of acme/ann" in refusal(stranger, verb, held, "--at", head), verb
    assert f"app       {held} of ann" in ann.ok("explain", held, "--at", head)

    # A statement follows from the public log, so that it is refused by nobody; a server says so.
    month = f"{datetime.now(UTC):%Y-%m}"
    assert f"ann   {app}" in stranger.ok("statement", "--company", "acme", "--month", month)
    token = json.loads((stranger.home / FILE).read_text())["token"]
    url, headers = f"{organisation.url}/v1/companies/acme/statement", {"authorization": f"Bearer {token}"}
    said = httpx.get(url, params={"month": month}, headers=headers, timeout=HOPELESS_S)
    assert said.status_code == 403
    assert "`fairlog statement` works out of the public log all of it but what was used" in said.json()["detail"]
    assert held not in stranger.ok("apps", "--all")
    assert "No such file" in refusal(ann, "submit", "--receipt", "nowhere/receipts", "--", "true")
    assert "may not submit" in refusal(stranger, "submit", "--company", "acme", "--user", "ann", "--", "true")
    assert "acts as user and may not manage users" in refusal(stranger, "account", "add", "globex/eve")
    assert "may not manage users, their tokens and limits of acme/eve" in refusal(
        organisation.invited(olga, "globex/boss"), "account", "add", "acme/eve"
    )
    assert "may not manage companies" in refusal(boss, "company", "add", "evil")

    # An operator reaches everything, and states why where it is private.
    assert "gives a reason" in refusal(olga, "logs", app)
    assert olga.ok("logs", app, "--reason", "ticket 7") == "from acme\n"
    assert "gives a reason" in refusal(olga, "kill", held)
    olga.ok("kill", held, "--reason", "ticket 8")
    assert "gives a reason" in refusal(owner, "logs", app)
    assert owner.ok("logs", app, "--reason", "ticket 9") == "from acme\n"
    who = [(read["by"]["account"], read["subject"], read["reason"]) for read in json.loads(owner.ok("reads", "--json"))]
    assert ("op/olga", app, "ticket 7") in who
    assert who[-1] == (f"local/{os.getuid()}", app, "ticket 9")

    # A log that anybody may read shows who did what, and the receipts prove that it is the log of that time.
    audited = stranger.ok("audit", "--receipts", str(receipts))
    assert audited.startswith("This log follows its rules: ")
    assert "KillApp" in (told := ann.ok("explain", held))
    assert "by op/olga, operator of the cluster" in told
    assert "from acme" in ann.ok("log", "--json")
    assert "from acme" not in stranger.ok("log", "--json")
    assert len(receipts.read_text().splitlines()) == 2

    # A logout ends the token, also for whoever has copied it.
    copied = (ann.home / FILE).read_text()
    assert ann.ok("logout") == "logged out; the token is revoked\n"
    (ann.home / FILE).write_text(copied)
    assert "has mode 0644; run `chmod 600 " in refusal(ann, "apps")
    (ann.home / FILE).chmod(0o600)
    assert "revoked" in refusal(ann, "apps")
    assert owner.ok("whoami").startswith("account   local/")


def test_each_role_gets_every_answer_that_is_worked_out_from_the_log(organisation: Organisation) -> None:
    """Other rules are tried out by the verb, and by the API, as the page does."""
    boss, ann = organisation.company("acme")
    organisation.olga.ok("account", "add", "auditor/ada")
    ada = organisation.invited(organisation.olga, "auditor/ada")
    app = [ann.ok("submit", "--wait", "--tasks", "4", "--", "true").splitlines()[0] for _ in range(2)][-1]
    month = ("--company", "acme", "--month", f"{datetime.now(UTC):%Y-%m}")
    narrower = ("--set", "min_executor_cores=2", "--set", "max_executor_cores=2")
    for shell in (organisation.owner, organisation.olga, boss, ann, ada):
        for other in (
            narrower,
            ("--quota", "acme=8,8G"),
            ("--placement", "pack", *narrower),
            ("--add-workers", "1x16x8G", *narrower),
        ):
            found = shell.run("whatif", "--json", *other).json()
            assert found["other"]["cluster"]["ended"] == 2
        assert found["firstDifference"] is not None
        for verb in (("audit",), ("fairness",), ("checkpoint",), ("explain", app), ("replay",), ("statement", *month)):
            shell.ok(*verb)
        if shell in (boss, ann):
            assert shell.ok("statement", *month[2:]).startswith("company   acme, ")
        else:
            assert "name the company with --company" in shell.run("statement", *month[2:]).err
        if (shell.home / FILE).exists():
            token = json.loads((shell.home / FILE).read_text())["token"]
            asked = {"settings": {"min_executor_cores": 2, "max_executor_cores": 2}}
            url, headers = f"{organisation.url}/v1/whatif", {"Authorization": f"Bearer {token}"}
            while (answer := httpx.post(url, json=asked, headers=headers, timeout=HOPELESS_S)).status_code == 429:
                time.sleep(float(answer.headers["Retry-After"]))
            assert answer.json()["value"]["other"]["cluster"]["ended"] == 2


def test_of_a_statement_of_others_only_what_was_used_is_not_public(organisation: Organisation) -> None:
    """What is granted follows from the public log, whatever a server answers (semantics I3)."""
    boss, ann = organisation.company("acme")
    _, bob = organisation.company("globex")
    app = ann.ok("submit", "--wait", "--tasks", "4", "--", "true").splitlines()[0]
    typed = ("statement", "--company", "acme", "--month", datetime.now(UTC).strftime("%Y-%m"), "--json")
    wait_until(lambda: not ann.app(app)["executors"], "the end of its last executor, which is paid until then")
    own, others = (shell.run(*typed).json()["total"] for shell in (boss, bob))
    assert own.pop("spent")["toldCoreMs"] > 0
    assert others == own
    assert others["grantedCoreMs"] > 0


def test_each_role_sees_no_more_of_others_apps_in_the_past_or_once_they_are_gone(
    organisation: Organisation,
) -> None:
    """Every verb that tells of single apps or lists them, asked by each role (semantics I3)."""
    boss, ann = organisation.company("acme")
    chief, bob = organisation.company("globex")
    organisation.olga.ok("account", "add", "auditor/ada")
    ada = organisation.invited(organisation.olga, "auditor/ada")
    acmes, globexs = (each.ok("submit", "--wait", "--", "true").splitlines()[0] for each in (ann, bob))
    time.sleep(1.1)
    then = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    organisation.olga.ok("settings", "set", "retained_apps=0")
    wait_until(lambda: not {acmes, globexs} & {*organisation.olga.ok("apps", "--all", "-o", "app").split()}, "no app")
    roles = {
        organisation.owner: {acmes, globexs},
        organisation.olga: {acmes, globexs},
        ada: {acmes, globexs},
        **{shell: {acmes} for shell in (boss, ann)},
        **{shell: {globexs} for shell in (chief, bob)},
    }
    for shell, seen in roles.items():
        for listed in (("apps", "--ended"), ("apps", "--all", "--at", then), ("efficiency", "--by", "app")):
            told = shell.ok(*listed)
            due = set() if listed[0] == "efficiency" else seen
            assert {app for app in (acmes, globexs) if app in told} == due, (shell.home, listed)
        for app, whose in ((acmes, "acme/ann"), (globexs, "globex/ann")):
            for asked in (("explain", app), ("explain", app, "--at", then), ("app", app, "--at", then)):
                answer = shell.run(*asked)
                if app in seen:
                    assert answer.code == 0, (shell.home, asked, answer.err)
                    assert app in answer.out
                else:
                    assert (answer.code, answer.out) == (1, ""), (shell.home, asked)
                    assert f"may not see apps of {whose}" in answer.err, (shell.home, asked)


def test_an_admin_of_a_department_manages_its_companies_and_no_others(organisation: Organisation) -> None:
    """Every kind of verb, on what is in the department and on what is elsewhere (semantics I3)."""
    olga, month = organisation.olga, datetime.now(UTC).strftime("%Y-%m")
    for department in (["research"], ["physics", "--in", "research"], ["sales"]):
        olga.ok("department", "add", *department)
    _, ann = organisation.company("acme")
    _, bob = organisation.company("globex")
    olga.ok("company", "move", "acme", "physics")
    olga.ok("company", "add", "lab")
    olga.ok("account", "add", "lab/dora", "--role", "admin")
    refused = olga.run("account", "grant", "lab/dora", "admin", "--department", "nowhere")
    assert "there is no department 'nowhere'" in refused.err
    granted = olga.ok("account", "grant", "lab/dora", "admin", "--department", "research")
    assert granted.startswith("lab/dora is now admin of department research; its tokens as an admin have ended")
    dora = organisation.invited(olga, "lab/dora")
    wait = ("submit", "--cores", "1", "--max-runtime", "1h", "--", "sh", "-c", "echo said; sleep 600")
    theirs, others = (each.ok(*wait).splitlines()[0] for each in (ann, bob))
    assert theirs in dora.ok("apps")
    assert others not in dora.ok("apps", "--all")
    verbs = {
        "apps of users": ["kill {app}", "extend {app} --by 1m", "logs {app}", "explain {app}", "app {app}"],
        "accounts": ["account add {company}/new", "token new {company}/ann", "account share {company}"],
        "limits": ["limit set --company {company} --user ann max_pending_apps=3"],
    }
    for typed in [each for kind in verbs.values() for each in kind][::-1]:
        refused = dora.run(*typed.format(app=others, company="globex").split())
        assert refused.code == 1, typed
        assert "lab/dora acts as admin and may not" in refused.err, typed
        dora.ok(*typed.format(app=theirs, company="acme").split())
    for refused in (
        dora.run("department", "set", "physics", "--in", "none"),
        dora.run("company", "move", "globex", "physics"),
        dora.run("limit", "set", "--company", "acme", "max_pending_apps=3"),
        dora.run("account", "grant", "lab/dora", "admin", "--department", "sales"),
    ):
        assert "lab/dora acts as admin and may not" in refused.err
    assert dora.ok("statement", "--department", "research", "--month", month).startswith("department research, ")
    assert dora.ok("statement", "--company", "acme", "--month", month).startswith("company   acme, ")
    assert "acme/ann" in dora.ok("account", "list")
    assert "globex/ann" not in dora.ok("account", "list")
    olga.ok("company", "move", "acme", "none")
    assert "may not" in dora.run("account", "add", "acme/late").err
    assert "admin of research" in olga.ok("account", "list", "--company", "lab")
    olga.ok("account", "revoke", "lab/dora", "admin", "--department", "research")
    dora.ok("account", "add", "lab/new")
    assert olga.ok("audit").startswith("This log follows its rules")
