"""Every socket at which an engine listens, in its owner's process and on its executors, asked without the app's key."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest
from redis import Redis
from rq import Queue

from fairlog.local.store import bundled_server
from tests.integration import engines_rig as calls
from tests.integration.cli_rig import ROOT, Service, Shell
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


def test_only_the_executor_of_rank_0_of_a_gang_of_mpi_listens(cluster: Site) -> None:
    """With a stand-in for mpirun, which waits; what the processes of MPI listen to is MPI's own."""
    mpirun = cluster.shell.home / "mpi" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text('#!/bin/sh\ntest "$1" = --version && exec echo HYDRA\nexec sleep 3600\n')
    mpirun.chmod(0o755)
    what = ("--company", "acme", "--user", "ann", "--executors", "2", "--executor-cores", "1")
    path = f"PATH={mpirun.parent}:{os.environ['PATH']}"
    app = cluster.shell.ok("mpirun", *what, "--env", path, "--", "true").split()[0]
    try:
        wait_until(lambda: " sleep 3600 " in f" {words(cluster.processes_of(app))} ", "mpirun")
        found = listening(cluster.processes_of(app))
        assert len(found) == 1, found
        said = {address: answers(address) for address in found if not isinstance(address, str)}
        assert said == {address: {} for address in found}
    finally:
        cluster.shell.ok("kill", app)
    cluster.wait_for_end(app)


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


def test_sparks_clients_have_a_listener_where_it_is_asked_for(
    cluster: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server has one more address then, and what is no request of Spark's protocol is refused there."""
    for folder, file in (("bin", "spark-submit"), ("jars", "spark-core_2.13-4.3.0.jar")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).touch()
    monkeypatch.setitem(cluster.shell.env, "SPARK_HOME", str(tmp_path))
    at = ("--listen", "127.0.0.1:0")
    with Service(cluster.shell, "api", *at, name="without") as service:
        service.hear("READY=1")
        assert len(listening([service.process.pid])) == 1
    with Service(cluster.shell, "api", *at, "--spark-rest", "127.0.0.1:0", name="with") as service:
        service.hear("READY=1")
        urls = next(str(entry["at"]) for entry in service.entries() if "at" in entry).split(", ")
        address = ("127.0.0.1", int(urls[1].rpartition(":")[2]))
        found = listening([service.process.pid])
        assert (len(found), address in found) == (2, True)
        assert b"HTTP/1.1 468" in answers(address)["http"].replace(b"HTTP/1.0", b"HTTP/1.1")


@pytest.mark.parametrize("address", ["0.0.0.0:6066", "[::]:6066"])
def test_up_has_no_listener_for_other_machines(cluster: Site, tmp_path: Path, address: str) -> None:
    """And a server whose drivers could not reach it says what is missing."""
    for folder, file in (("bin", "spark-submit"), ("jars", "spark-core_2.13-4.3.0.jar")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).touch()
    shell = Shell(tmp_path / "home")
    answer = shell.run("up", "--spark-rest", address)
    assert (answer.code != 0, "there is no Spark" in answer.err) == (True, True), answer.err
    shell.env["SPARK_HOME"] = str(tmp_path)
    answer = shell.run("up", "--spark-rest", address)
    assert (answer.code != 0, "whose commands `up` would run as you" in answer.err) == (True, True), answer.err
    cluster.shell.env["SPARK_HOME"] = str(tmp_path)
    try:
        unreachable = cluster.shell.run("api", "--listen", "0.0.0.0:0", "--spark-rest", "127.0.0.1:0")
    finally:
        del cluster.shell.env["SPARK_HOME"]
    assert (unreachable.code, "or the URL in FAIRLOG_API" in unreachable.err) == (2, True), unreachable.err


def words(pids: list[int]) -> str:
    """The words of the commands of those processes that are still there."""
    found = []
    for pid in pids:
        with suppress(psutil.Error):
            found += psutil.Process(pid).cmdline()
    return " ".join(found)


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
