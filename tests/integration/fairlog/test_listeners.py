"""Every socket at which an engine listens, in its owner's process and on its executors, asked without the app's key."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from redis import Redis
from rq import Queue

from fairlog.local.store import bundled_server
from tests.integration import engines_rig as calls
from tests.integration.cli_rig import ROOT
from tests.integration.engines_rig import Site, site
from tests.integration.listeners import answers, listening
from tests.integration.servers import Servers
from tests.waiting import wait_until
from workers.sandbox import why_no_cell

DASK = """
import os, sys
from distributed import Client
from fairlog.dask import FairlogCluster

if __name__ == "__main__":
    with FairlogCluster(company="acme", user="ann", n_workers=2, memory_mb=512) as cluster, Client(cluster) as client:
        client.wait_for_workers(2)
        print(client.submit(pow, 2, 10).result(), cluster.app, flush=True)
        sys.stdin.read()
"""
FUNCTIONS = """
import sys
from fairlog import Executor

if __name__ == "__main__":
    with Executor(company="acme", user="ann", cores=2) as pool:
        print(pool.submit(pow, 2, 10).result(), pool.app, flush=True)
        sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("listeners"), cells=not why_no_cell(), share=[str(ROOT)]) as found:
        yield found


@contextmanager
def owner(cluster: Site, program: str) -> Iterator[tuple[int, str]]:
    """A process that owns an app which works: its id and the app."""
    environment = {**cluster.shell.env, "FAIRLOG_API": cluster.api}
    command = [sys.executable, "-c", program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=ROOT, **pipes) as process:  # type: ignore[call-overload]
        try:
            result, app = process.stdout.readline().split()
            assert result == "1024"
            yield process.pid, app
        finally:
            process.stdin.close()


@pytest.mark.parametrize(("program", "listeners"), [(DASK, 3), (FUNCTIONS, 1)], ids=["dask", "functions"])
def test_nobody_without_the_key_of_the_app_gets_an_answer(cluster: Site, program: str, listeners: int) -> None:
    if program == DASK:
        pytest.importorskip("distributed", reason="Dask is not installed")
    with owner(cluster, program) as (pid, app):
        found = listening([pid, *cluster.processes_of(app)])
        assert len(found) == listeners, found  # a further one needs a key as well, and a line here
        said = {address: answers(address) for address in found if not isinstance(address, str)}
        assert said == {address: {} for address in found}
    assert cluster.wait_for_end(app)["state"] == "finished"


def test_rq_listens_nowhere(cluster: Site, tmp_path: Path) -> None:
    """Its owner and its workers only connect, to the RQ user's own server."""
    servers = Servers(bundled_server(), tmp_path)
    with servers.stack:
        url = f"redis://127.0.0.1:{servers.start()}/0"
        with Redis.from_url(url) as connection:
            Queue("work", connection=connection).enqueue(calls.nap, 1, 3600)
        what = ("--company", "acme", "--user", "ann", "--url", url, "--memory", "256M", "--grace", "1s")
        command = [sys.executable, "-m", "fairlog", "rq", *what, "work"]
        with subprocess.Popen(command, env=cluster.shell.env, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
            try:
                app = wait_until(lambda: running(cluster, "rq work"), "a worker of RQ")
                assert listening([process.pid, *cluster.processes_of(app)]) == set()
            finally:
                process.terminate()
        cluster.wait_for_end(app)


def running(cluster: Site, name: str) -> str:
    """The app of that name once a program of it runs, "" before."""
    apps = [app["app"] for app in cluster.apps() if app["name"] == name]
    return next((app for app in apps if cluster.processes_of(app)), "")


def test_a_listener_that_answers_without_a_key_is_found() -> None:
    class Open(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Open) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert "http" in answers(("127.0.0.1", server.server_port))
        finally:
            server.shutdown()
            thread.join()
