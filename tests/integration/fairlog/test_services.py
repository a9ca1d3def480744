"""The services of a machine: the lines of operations.md as they stand there, and the units as systemd runs them."""

from __future__ import annotations

import json
import re
import shlex
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from fairlog.local.store import bundled_server
from tests.integration.cli_rig import ROOT, Service, Shell

TYPED = "```console not run: tests/integration/fairlog/test_services.py types it"
ALONE = (
    "python3 -m venv ",
    "FAIRLOG_COMPILED=1 /opt/fairlog/bin/pip ",
    "export PATH=",
    "useradd ",
    "cp deploy/systemd/",
)
"""How the lines begin that act on the whole machine, and come before what the test types."""
STARTED = "systemctl enable --now "


def lines() -> list[str]:
    """What the page has its reader type."""
    block = (ROOT / "docs/operations.md").read_text().partition(TYPED)[2].partition("\n")[2].partition("```")[0]
    return re.findall(r"^\$ (.+)$", block, re.MULTILINE)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Machine(NamedTuple):
    """A machine whose folders are below one of the test's."""

    root: Path
    shell: Shell

    def here(self, text: str) -> str:
        """The text with the folders of this machine."""
        for folder in ("/etc/fairlog", "/run/fairlog-api"):
            text = text.replace(folder, f"{self.root}{folder}")
        return text

    def type(self, typed: list[str]) -> None:
        """Type these lines in one shell, of which none may fail."""
        answer = self.shell.sh("\n".join(["set -e", *map(self.here, typed)]))
        assert answer.code == 0, answer.err

    def unit(self, name: str) -> tuple[dict[str, str], list[str]]:
        """The variables of a unit's service, in the order in which systemd reads them, and its command."""
        credentials = self.root / "credentials" / name
        text = self.here((ROOT / f"deploy/systemd/{name}.service").read_text().replace("\\\n", ""))
        for letter, place in (("d", credentials), ("S", self.root / "state"), ("t", self.root / "run")):
            text = text.replace(f"%{letter}", str(place))
        said = [line.partition("=")[::2] for line in text.splitlines() if not line.startswith("#")]
        credentials.mkdir(parents=True)
        variables: dict[str, str] = {}
        words: list[str] = []
        for key, value in said:
            if key == "LoadCredential":
                copied, _, source = value.partition(":")
                (credentials / copied).write_bytes(Path(source).read_bytes())
                (credentials / copied).chmod(0o400)
            elif key in ("RuntimeDirectory", "StateDirectory"):
                kind = "run" if key == "RuntimeDirectory" else "state"
                (self.root / kind / value).mkdir(mode=0o700, parents=True, exist_ok=True)
            elif key == "Environment":
                variables |= dict(each.split("=", 1) for each in shlex.split(value) if not each.startswith("PATH="))
            elif key == "EnvironmentFile" and (file := Path(value.removeprefix("-"))).exists():
                variables |= dict(line.split("=", 1) for line in file.read_text().splitlines())
            elif key == "ExecStart":
                words = shlex.split(value)
        return variables, [part for word in words for part in _expanded(word, variables)]

    @contextmanager
    def service(self, name: str) -> Iterator[Service]:
        """The unit of that name, which runs a verb of fairlog, once it is ready."""
        variables, words = self.unit(name)
        assert words[:2] == ["/usr/bin/env", "fairlog"]
        shell = Shell(self.root / "homes" / name)
        shell.env |= variables
        with Service(shell, *words[2:], name=name) as started:
            started.hear("READY=1")
            yield started


def _expanded(word: str, variables: dict[str, str]) -> list[str]:
    return shlex.split(variables.get(word[1:], "")) if word.startswith("$") else [word]


@contextmanager
def store(machine: Machine, port: int) -> Iterator[None]:
    """The store's unit, at another port."""
    _, words = machine.unit("fairlog-store")
    assert words[:2] == ["/usr/bin/env", "valkey-server"]
    words = [str(port) if word == "6379" else word for word in words[2:]]
    with subprocess.Popen([str(bundled_server()), *words], stdout=subprocess.DEVNULL) as server:
        try:
            yield
        finally:
            server.kill()


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder with so short a path that sockets can be in it."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.slow
def test_the_lines_of_the_page_and_the_units_make_a_cluster_on_one_machine(root: Path) -> None:
    machine, port, api = Machine(root, Shell(root / "home")), free_port(), free_port()
    typed = lines()
    whole = [next((line for line in typed if line.startswith(each)), "") for each in ALONE]
    assert typed[: len(ALONE)] == whole
    first, second = (place for place, line in enumerate(typed) if line.startswith(STARTED))
    assert "umask 077" in typed[:first]
    machine.type(typed[len(ALONE) : first])
    own = {
        "master": {"FAIRLOG_STORE": f"redis://fairlog-master@127.0.0.1:{port}/0"},
        "api": {
            "FAIRLOG_STORE": f"redis://fairlog-api@127.0.0.1:{port}/0",
            "FAIRLOG_API_OPTIONS": f"--listen 127.0.0.1:{api}",
        },
        "worker": {"FAIRLOG_API": f"http://127.0.0.1:{api}"},
    }
    for name, variables in own.items():
        text = "".join(f"{key}={value}\n" for key, value in variables.items())
        (root / f"etc/fairlog/{name}.env").write_text(text)
    assert typed[first] == f"{STARTED}fairlog-store fairlog-master fairlog-api"
    with ExitStack() as running:
        running.enter_context(store(machine, port))
        for name in ("fairlog-master", "fairlog-api"):
            running.enter_context(machine.service(name))
        machine.type(["umask 077", *typed[first + 1 : second]])  # of the same shell
        invitation = root / "etc/fairlog/worker.invitation"
        assert stat.S_IMODE(invitation.stat().st_mode) == 0o600
        assert (typed[second], invitation.read_text()[:3]) == (f"{STARTED}fairlog-worker", "fl_")
        running.enter_context(machine.service("fairlog-worker"))
        machine.shell.env["FAIRLOG_API"] = machine.here("http+unix:/run/fairlog-api/api.sock")
        workers = json.loads(machine.shell.ok("workers", "--json"))
        assert [(each["worker"], each["status"]) for each in workers] == [("node-1", "alive")]
        unseen = machine.shell.run("status", "--live")
        assert (unseen.code, "no cluster found" in unseen.err) == (1, False)
        assert "no worker of the cluster behind http+unix:" in unseen.out + unseen.err
