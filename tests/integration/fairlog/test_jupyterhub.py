"""A real JupyterHub whose servers fairlog runs, in cells where they work. `make test-clients` installs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.docs.pages import ROOT
from tests.integration.engines_rig import Site, site
from tests.waiting import HOPELESS_S, wait_until
from workers.sandbox import why_no_cell

CLIENTS = os.environ.get("CLIENTS_PYTHON", "")
PROXY = shutil.which("configurable-http-proxy", path=os.pathsep.join([str(Path(CLIENTS).parent), os.environ["PATH"]]))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CLIENTS, reason="JupyterHub is not installed; `make test-clients` runs this"),
    pytest.mark.skipif(PROXY is None, reason="JupyterHub's configurable-http-proxy is not installed"),
]
PAGE = (ROOT / "docs" / "jupyterhub.md").read_text()
USERS = [f"user{number}" for number in range(20)]
TOKEN = "t" * 32
HEADERS = {"Authorization": f"token {TOKEN}"}
MORE = """
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.allow_all = True
c.JupyterHub.services = [{{"name": "test", "api_token": "{token}"}}]
scopes = ["admin:users", "admin:servers", "access:servers", "read:hub"]
c.JupyterHub.load_roles = [{{"name": "test", "services": ["test"], "scopes": scopes}}]
c.JupyterHub.bind_url = "http://127.0.0.1:{ports[0]}"
c.JupyterHub.hub_port = {ports[1]}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{ports[2]}"
c.ConfigurableHTTPProxy.command = ["{proxy}"]
c.JupyterHub.concurrent_spawn_limit = 0
c.FairlogSpawner.poll_interval = 1
"""
AS_ROOT = 'c.FairlogSpawner.args = ["--allow-root"]\n' if os.geteuid() == 0 else ""


class Hub:
    """A hub of the page's configuration, which can be killed and started again."""

    def __init__(self, cluster: Site, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        ports = [each.getsockname()[1] for each in taken]
        for each in taken:
            each.close()
        self.url = f"http://127.0.0.1:{ports[0]}"
        (written,) = re.findall(r"^```python not run\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        more = MORE.format(token=TOKEN, ports=ports, proxy=PROXY)
        (folder / "jupyterhub_config.py").write_text(written + more + AS_ROOT)
        self.start()

    def start(self) -> None:
        """Start the hub by the page's command; returns once it answers."""
        (command,) = re.findall(r"^\$ (jupyterhub .*)$", PAGE, re.MULTILINE)
        with (self._folder / "hub.log").open("ab") as log:
            self._process = subprocess.Popen(
                [CLIENTS, "-m", *command.split()], cwd=self._folder, env=self._cluster.shell.env, stdout=log, stderr=log
            )
        wait_until(lambda: self.ask("GET", "/hub/api/info")[0] == 200, "the hub")

    def kill(self) -> None:
        """Kill the hub, not its proxy."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Have nothing of the hub and its proxy left."""
        left = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()

    def log(self) -> str:
        """What it has logged."""
        return (self._folder / "hub.log").read_text()

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """The status and the JSON of an answer; 0 if nobody answers."""
        try:
            answer = httpx.request(method, self.url + path, json=body, headers=HEADERS, timeout=HOPELESS_S)
        except httpx.TransportError:
            return 0, None
        return answer.status_code, json.loads(answer.content or b"null") if answer.is_success else None

    def spawn(self, user: str) -> None:
        """Have the user's server start."""
        self.ask("POST", f"/hub/api/users/{user}")
        status, _ = self.ask("POST", f"/hub/api/users/{user}/server")
        assert status in {201, 202}, self.log()

    def server(self, user: str) -> dict[str, Any] | None:
        """What the hub says of the user's server; None without one."""
        found: dict[str, Any] | None = self.ask("GET", f"/hub/api/users/{user}")[1]["servers"].get("")
        return found

    def ready(self) -> set[str]:
        """The users whose servers answer."""
        users = self.ask("GET", "/hub/api/users")[1]
        return {user["name"] for user in users if user["servers"].get("", {}).get("ready")}

    def progress(self, user: str) -> Iterator[dict[str, Any]]:
        """What the spawn page is told."""
        path = f"{self.url}/hub/api/users/{user}/server/progress"
        with httpx.stream("GET", path, headers=HEADERS, timeout=HOPELESS_S) as answer:
            yield from (
                json.loads(line.removeprefix("data:")) for line in answer.iter_lines() if line.startswith("data:")
            )

    def compute(self, user: str) -> str:
        """What a kernel of the user's server computes."""
        script = Path(__file__).with_name("jupyter_kernel.py")
        words = [CLIENTS, str(script), f"{self.url}/user/{user}/", TOKEN, "print(6 * 7)"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=HOPELESS_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    share = [str(Path(CLIENTS).parents[1]), str(Path(CLIENTS).resolve().parents[1]), str(ROOT)]
    room = ("--cores", "12", "--memory", "6G")
    with site(tmp_path_factory.mktemp("jupyter"), *room, cells=not why_no_cell(), share=share) as found:
        yield found
        found.audit()


@pytest.fixture(scope="module")
def hub(cluster: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    made = Hub(cluster, tmp_path_factory.mktemp("hub"))
    yield made
    made.end()


def running(cluster: Site) -> list[dict[str, Any]]:
    return [app for app in cluster.apps() if app["name"] == "jupyter" and app["endedAt"] is None]


def fill(cluster: Site) -> str:
    """An app of acme's other user that takes the whole cluster."""
    found = cluster.shell.ok(
        "submit",
        "--company",
        "acme",
        "--user",
        "bob",
        "--tasks",
        "24",
        "--cores",
        "24",
        "--memory-per-task",
        "256M",
        "sleep",
        "600",
    ).split()[0]
    wait_until(lambda: cluster.app(found)["grantedCores"] == 24, "a full cluster")
    return found


def test_twenty_users_compute_and_outlive_the_hub(cluster: Site, hub: Hub) -> None:
    for user in USERS:
        hub.spawn(user)
    wait_until(lambda: hub.ready() == set(USERS), "twenty servers")
    assert {app["user"] for app in running(cluster)} == set(USERS)
    assert [hub.compute(user) for user in USERS[:2]] == ["42", "42"]
    hub.kill()
    hub.start()
    wait_until(lambda: hub.ready() == set(USERS), "the servers of before")
    assert hub.compute(USERS[-1]) == "42"
    assert len(running(cluster)) == len(USERS)
    for user in USERS:
        assert hub.ask("DELETE", f"/hub/api/users/{user}/server")[0] in {202, 204}
    wait_until(lambda: not hub.ready(), "the end of the servers")
    assert running(cluster) == []
    wait_until(
        lambda: not [pid for app in cluster.apps() for pid in cluster.processes_of(app["app"])], "their processes"
    )


def test_a_full_company_shows_the_reason_on_the_spawn_page(cluster: Site, hub: Hub) -> None:
    filling = fill(cluster)
    hub.spawn("ann")
    told = hub.progress("ann")
    said = next(each["message"] for each in told if "waits" in each["message"])
    assert re.fullmatch(r"App jupyter-\w+ waits: .+ \(rule [A-Z]\d+\)", said)
    cluster.shell.ok("kill", filling)
    assert any(each.get("ready") for each in told)
    assert hub.ask("DELETE", "/hub/api/users/ann/server")[0] in {202, 204}
    wait_until(lambda: not running(cluster), "its end")


def test_a_server_that_is_lost_is_over_and_not_started_elsewhere(cluster: Site, hub: Hub) -> None:
    hub.spawn("sue")
    wait_until(lambda: hub.ready() == {"sue"}, "a server")
    app = running(cluster)[0]["app"]
    for process in cluster.processes_of(app):
        os.kill(process, signal.SIGKILL)
    wait_until(lambda: hub.server("sue") is None, "that the hub notices")
    assert cluster.wait_for_end(app)["state"] == "finished"


def test_an_app_killed_before_its_server_started_leaves_no_stuck_spawn(cluster: Site, hub: Hub) -> None:
    filling = fill(cluster)
    hub.spawn("eve")
    app = wait_until(lambda: running(cluster), "the app")[0]["app"]
    cluster.shell.ok("kill", app)
    assert any(each.get("failed") and f"app {app} killed" in each["message"] for each in hub.progress("eve"))
    wait_until(lambda: hub.server("eve") is None, "no pending spawn")
    cluster.shell.ok("kill", filling)
    hub.spawn("eve")
    wait_until(lambda: hub.ready() == {"eve"}, "another server")
    assert hub.ask("DELETE", "/hub/api/users/eve/server")[0] in {202, 204}
    wait_until(lambda: not running(cluster), "its end")


def test_a_hub_killed_during_a_spawn_leaves_no_app_that_nobody_knows(cluster: Site, hub: Hub) -> None:
    filling = fill(cluster)
    hub.spawn("max")
    wait_until(lambda: running(cluster), "the app")
    hub.kill()
    hub.start()
    wait_until(lambda: not running(cluster), "the end of the app")
    wait_until(lambda: hub.server("max") is None, "no pending spawn")
    cluster.shell.ok("kill", filling)
