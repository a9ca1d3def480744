"""Workers that join by an invitation: the documents' own lines, on a machine that is larger than it allows."""

from __future__ import annotations

import json
import re
import shlex
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.cli_rig import ROOT, Answer, Service, Shell
from tests.integration.scheduler.test_tls import authority
from tests.integration.servers import Servers
from tests.waiting import wait_until

SECTION = "## Several machines"
SMALLER = {"--cores 16 --memory 64G": "--cores 1 --memory 1G"}
"""So that the machine of the tests is larger than the invitation allows, as the page's is not always."""


def lines() -> list[str]:
    """What the section has its reader type first."""
    page = (ROOT / "docs/operations.md").read_text().partition(SECTION)[2]
    block = re.search(r"```console[^\n]*\n(.*?)```", page, re.DOTALL)
    assert block is not None
    return [line.removeprefix("$ ") for line in block[1].splitlines()]


class Site(NamedTuple):
    """The machine of the operator, with master and API server, and the lines of the page with this machine's places."""

    operator: Shell
    typed: list[str]
    url: str

    def machine(self, name: str) -> Shell:
        """Another machine, which knows the invitations that the operator has handed out."""
        shell = Shell(self.operator.home.parent / name)
        shell.env["SSL_CERT_FILE"] = self.operator.env["SSL_CERT_FILE"]
        for invitation in self.operator.home.glob("*.invitation"):
            (shell.home / invitation.name).write_bytes(invitation.read_bytes())
        return shell

    def refused(self, shell: Shell, invitation: str, *options: str) -> Answer:
        """Why the worker may not join."""
        shell.env["FAIRLOG_TOKEN_FILE"] = str(shell.home / invitation)
        answer = shell.run("worker", "--api", self.url, *options)
        assert answer.code != 0
        return answer

    def offers(self) -> dict[str, tuple[int, str]]:
        """The cores of each worker, and whether it is alive."""
        found = json.loads(self.operator.ok("workers", "--json"))
        return {each["worker"]: (each["cores"], each["status"]) for each in found}


def command(shell: Shell, line: str, name: str) -> Service:
    """The service that a line starts; variables before it are those of its environment."""
    words = shlex.split(line)
    while "=" in words[0]:
        variable, _, value = words.pop(0).partition("=")
        shell.env[variable] = str(shell.home / value)
    assert words.pop(0) == "fairlog"
    return Service(shell, *words, name=name)


def is_told(worker: Service, what: str) -> bool:
    """Whether its log says so."""
    return what in worker.log.read_text()


@pytest.fixture
def site(servers: Servers, tmp_path: Path) -> Iterator[Site]:
    operator = Shell(tmp_path / "operator")
    store = f"redis://127.0.0.1:{servers.start()}/0"
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    ours = authority(tmp_path / "tls")
    certificate, key = ours.issue("127.0.0.1")
    places = {
        "redis://store:6379/0": store,
        "0.0.0.0:8443": address,
        "https://api:8443": f"https://{address}",
        "api.pem": str(certificate),
        "api.key": str(key),
        **SMALLER,
    }
    typed = lines()
    for text, here in places.items():
        assert any(text in line for line in typed), text
        typed = [line.replace(text, here) for line in typed]
    operator.ok("keys", "new", "keys.json")
    operator.env |= {"FAIRLOG_KEYS": str(operator.home / "keys.json"), "SSL_CERT_FILE": str(ours.file)}
    with command(operator, typed[0], "master") as master, command(operator, typed[1], "api") as api:
        master.hear("READY=1")
        operator.env["FAIRLOG_STORE"] = store
        api.hear("READY=1")
        yield Site(operator, typed, f"https://{address}")


@pytest.mark.slow
def test_a_worker_joins_as_the_page_says_and_again_when_it_is_restarted(site: Site) -> None:
    invite, join = site.typed[2:]
    first = site.operator.sh(invite)
    assert (first.code, first.out) == (0, "")
    assert "worker/w7 is the first account: to submit, you too now need an account, COMPANY/NAME" in first.err
    w7 = site.machine("w7")
    for start in range(2):
        with command(w7, join, f"worker-{start}") as worker:
            worker.hear("READY=1")
            assert site.offers() == {"w7": (1, "alive")}
            wait_until(partial(is_told, worker, "its invitation allows no more"), "what it says of its offer")
            assert not is_told(worker, "offer more with")
    spent = site.refused(site.machine("elsewhere"), "w7.invitation")
    assert "an operator invites it with `fairlog worker invite ID`" in spent.err
    named = site.refused(site.machine("elsewhere"), "w7.invitation", "--id", "w7")
    assert "an operator invites it with `fairlog worker invite w7`" in named.err
    assert "fairlog login" not in spent.err + named.err
    again = site.operator.sh(f"fairlog worker invite w7 > {site.operator.home}/again.invitation")
    assert (again.code, again.err) == (0, "")
    replacement = site.machine("replacement")
    with command(replacement, join.replace("w7.", "again."), "worker") as worker:
        worker.hear("READY=1")
    changed = site.operator.run("worker", "invite", "w7", "--cores", "4", "--memory", "4G")
    assert changed.code != 0
    assert "`fairlog account remove worker/w7`" in changed.err


@pytest.mark.slow
def test_an_invitation_that_was_refused_is_good_for_another_attempt(site: Site) -> None:
    """Whatever was refused: the offer, the host, a kind of resource that nobody has registered."""
    invite, join = (line.replace("w7", "w8") for line in site.typed[2:])
    assert site.operator.sh(invite).code == 0
    w8 = site.machine("w8")
    for options, why in (
        (("--cores", "64", "--memory", "1G"), "was invited to offer at most 1 core"),
        (("--resource", "gpu=0"), "gpu"),
        (("--id", "w9"), "is that of worker/w8"),
    ):
        assert why in site.refused(w8, "w8.invitation", *options).err
    taken = site.machine("person").sh(f"fairlog login --api {site.url} < w8.invitation")
    assert "this token is for worker w8, not for people" in taken.err
    with command(site.machine("another"), join, "worker") as worker:
        worker.hear("READY=1")
        wait_until(lambda: site.offers() == {"w8": (1, "alive")}, "the worker")
