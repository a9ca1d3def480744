"""Real Spark jobs whose executors fairlog grants, in cells where they work. Need Java and Spark.

`make test-spark` runs all of them; elsewhere the short one runs if Spark and Java are there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from ast import literal_eval
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlog.engines.spark.demo import core_seconds
from fairlog.engines.spark.driver import home_of_spark
from tests.integration.cli_rig import ROOT, Answer, Service
from tests.integration.engines_rig import Site, site
from tests.integration.listeners import Address, answers, listening
from tests.waiting import wait_until
from workers.sandbox import why_no_cell

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed"),
    pytest.mark.skipif(
        not os.environ.get("SPARK_HOME") and find_spec("pyspark") is None, reason="Spark is not installed"
    ),
]
whole = pytest.mark.skipif(
    "FAIRLOG_TEST_SPARK" not in os.environ, reason="takes minutes of CPU time; `make test-spark` runs it"
)
STORY = Path(__file__).with_name("spark_story.py")
MARK = "zq7x"
"""A part of what the apps of a test are given; no id and no digest holds it."""
LEASE_S = 4
SMALL = ("--executor-cores", "1", "--executor-memory", "512m", "--driver-memory", "512m")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("spark")
    share = [home_of_spark()]
    if "PYSPARK_PYTHON" in os.environ:  # with its packages: Spark asks the driver's Python whether there is pyarrow
        share.append(str(Path(os.environ["PYSPARK_PYTHON"]).parents[1]))
    with site(folder, cells=not why_no_cell(), share=[*share, *map(str, {ROOT, Path(sys.prefix)})]) as found:
        found.shell.env |= {name: os.environ[name] for name in ("SPARK_HOME", "PYSPARK_PYTHON") if name in os.environ}
        yield found


def submission(cluster: Site, company: str = "acme") -> tuple[str, dict[str, str]]:
    """The path of spark-submit, and the variables with which it runs a driver here."""
    lines = cluster.shell.ok("spark", "env", "--company", company, "--user", "ann").splitlines()
    variables = dict(shlex.split(line.removeprefix("export "))[0].split("=", 1) for line in lines)
    return f"{variables['SPARK_HOME']}/bin/spark-submit", {**cluster.shell.env, **variables}


def app_of(cluster: Site, name: str) -> dict[str, Any]:
    """The youngest app of that name."""
    return [app for app in cluster.apps() if app["name"] == name][-1]


def test_pi_runs_with_driver_and_executors_on_workers(cluster: Site) -> None:
    """By `fairlog spark-submit`, to the end of both apps; a public export has no byte of what they were given.

    Nor of what those were given that raise, have no program or are killed: `test_public_export` of Spark's apps.
    """
    folder, shell = cluster.shell.home / f"jobs of {MARK}", cluster.shell
    folder.mkdir()
    pi = (ROOT / "examples" / "spark_pi.py").read_text()
    (folder / f"pi-{MARK}.py").write_text(pi.replace('"pi"', f'"pi {MARK}"'))
    (folder / f"raises-{MARK}.py").write_text(f"raise ValueError('{MARK} is missing')\n")
    (folder / f"waits-{MARK}.py").write_text("import time\ntime.sleep(3600)\n")
    conf = (f"spark.{MARK}.key=value-{MARK}", f"spark.executorEnv.{MARK.upper()}=1", f"spark.app.name=name {MARK}")
    given = ["--company", "acme", "--user", "ann", *SMALL, *(word for each in conf for word in ("--conf", each))]

    def submitted(program: str, *options: str) -> Answer:
        typed = (*options, *given, f"{folder}/{program}-{MARK}.py", MARK)
        return shell.run("spark-submit", *typed, folder=folder)

    raises, waits, gone = (submitted(program).out.strip() for program in ("raises", "waits", "gone"))
    wait_until(lambda: cluster.app(waits)["state"] == "running", "the driver that waits")
    shell.ok("kill", waits, "--reason", f"no {MARK} any more")
    assert [cluster.wait_for_end(app)["state"] for app in (raises, waits, gone)] == ["failed", "killed", "failed"]

    answer = submitted("pi", "--wait")
    driver = answer.out.splitlines()[0]
    said = shell.ok("logs", driver, "--driver")
    assert (answer.code, "Pi is roughly 3.1" in said) == (0, True), said[-3000:]
    ended = cluster.wait_for_end(app_of(cluster, f"pi {MARK}")["app"])
    assert (ended["state"], ended["executorsGranted"]) == ("finished", 2)
    whole, public = shell.ok("log", "--json"), shell.ok("log", "--json", "--public")
    assert (whole.lower().count(MARK) > 20, public.lower().count(MARK)) == (True, 0)
    assert "follows its rules" in cluster.audit()


def state_of(listening_at: str, driver: str) -> str:
    """As Airflow reads it; nothing when the server says that it was asked too often."""
    try:
        with urllib.request.urlopen(f"http://{listening_at}/v1/submissions/status/{driver}") as answer:
            lines: list[str] = answer.read().decode().splitlines()
    except urllib.error.HTTPError as refused:
        refused.close()
        if refused.code != HTTPStatus.TOO_MANY_REQUESTS:
            raise
        return ""
    states = [line.split(" : ")[1] for line in lines if "driverState" in line]
    return states[0].replace(",", "").replace('"', "").strip()


def test_spark_submit_of_spark_itself_reaches_the_listener(cluster: Site) -> None:
    """In cluster mode it submits, sees and kills a driver in Java, whichever API server it asks."""
    port, jobs = free_port(), cluster.shell.home / "jobs"
    jobs.mkdir()
    mllib = next(Path(home_of_spark(), "jars").glob("spark-mllib_*.jar"))
    jar = Path(shutil.copy(mllib, jobs / "jobs.jar"))
    log = "rootLogger.level = info\nrootLogger.appenderRef.x.ref = x\nappender.x.type = Console\nappender.x.name = x\n"
    log += "appender.x.target = SYSTEM_ERR\nappender.x.layout.type = PatternLayout\nappender.x.layout.pattern = %m%n\n"
    (jobs / "log4j2.properties").write_text(log)
    environment = {**cluster.shell.env, "SPARK_HOME": home_of_spark(), "SPARK_CONF_DIR": str(jobs)}
    listening_at = f"127.0.0.1:{port}"

    def typed(*arguments: str) -> str:
        asked = ("--master", f"spark://{listening_at}", "--conf", "spark.master.rest.enabled=true", *arguments)
        submit = [f"{home_of_spark()}/bin/spark-submit", *asked]
        done = subprocess.run(submit, env=environment, cwd=jobs, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def served(name: str) -> Service:
        return Service(cluster.shell, "api", "--listen", "127.0.0.1:0", "--spark-rest", listening_at, name=name)

    arguments = ("--driver-memory", "512m", "--executor-memory", "512m", "--total-executor-cores", "1", str(jar))
    main = ("--deploy-mode", "cluster", "--class", "org.apache.spark.mllib.util.LinearDataGenerator")
    endless = (*main, *arguments, "spark+fairlog://acme/ann", str(jobs / "out"), "5000000", "2", "50000")
    kept = dict(cluster.shell.env)
    try:
        cluster.shell.env["SPARK_HOME"] = home_of_spark()
        with served("first") as first:
            first.hear("READY=1")
            said = typed("--conf", "spark.fairlog.user=ann", *endless)
            name = next(word for word in said.split() if re.fullmatch(r"driver-[0-9-]+", word.strip('.",')))
            name = name.strip('.",')
            assert '"success" : true' in said
            wait_until(lambda: state_of(listening_at, name) == "RUNNING", "the driver")
            first.process.kill()
        with served("second") as second:
            second.hear("READY=1")
            typed("--status", name)
            assert "ErrorResponse" not in typed("--kill", name)
            wait_until(lambda: state_of(listening_at, name) not in {"SUBMITTED", "RUNNING"}, "its end")
            assert state_of(listening_at, name) == "KILLED"
    finally:
        cluster.shell.env.clear()
        cluster.shell.env.update(kept)
    assert cluster.wait_for_end(f"app-{name.removeprefix('driver-')}")["state"] == "killed"
    assert "follows its rules" in cluster.audit()


@pytest.mark.parametrize("ui", [False, True], ids=["as-it-is", "with-the-page-asked-for"])
def test_nobody_without_the_secret_gets_an_answer_of_a_driver_or_an_executor(cluster: Site, ui: bool) -> None:  # noqa: FBT001
    """What listens is found as `test_listeners` does of the other engines; a page that is asked for is found too."""
    driver = Driver(cluster, "spark.executor.instances=1", *(["spark.ui.enabled=true"] if ui else []))
    try:
        wait_until(lambda: java_of(cluster, driver.app), "an executor")
        wait_until(lambda: cluster.app(driver.app)["executors"][0]["status"] == "running", "its report")
        found = wait_until(lambda: ports_of(cluster, driver), "the ports of both")
        said = {address: answers(address) for address in found}
        assert len([address for address in said if "http" in said[address]]) == ui
        assert ui or {address: told for address, told in said.items() if told} == {}
        driver.end()
    finally:
        driver.kill()


class Driver:
    """A Spark driver in client mode that does what it is told."""

    def __init__(self, cluster: Site, *conf: str, company: str = "acme") -> None:
        submit, environment = submission(cluster, company)
        self.folder = Path(environment["SPARK_CONF_DIR"])
        options = [word for each in conf for word in ("--conf", each)]
        said = self.folder / "said"
        os.mkfifo(said)
        self.process = subprocess.Popen(
            [submit, *SMALL, *options, str(STORY), str(said)],
            env=environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.app = self._line("READY")
        self._said = said.open("w")

    def ask(self, what: str) -> None:
        self._said.write(f"{what}\n")
        self._said.flush()

    def answer(self) -> Any:
        return literal_eval(self._line("ANSWER"))

    def end(self) -> None:
        """Let it come to its end."""
        self._said.close()
        self.process.communicate()
        assert self.process.returncode == 0

    def _line(self, kind: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(kind):
                return line.removeprefix(kind).strip()
        raise AssertionError(f"the driver ended with {self.process.wait()}")

    def kill(self) -> None:
        """Kill it, with its helper."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.process.communicate()
        self._said.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def ports_of(cluster: Site, driver: Driver) -> list[Address]:
    """Where its driver and its executors listen: at three addresses at least, else none."""
    beneath = psutil.Process(driver.process.pid).children(recursive=True)
    found: set[Address | str] = set()
    for pid in (driver.process.pid, *(each.pid for each in beneath), *cluster.processes_of(driver.app)):
        with suppress(FileNotFoundError, psutil.NoSuchProcess):  # it has ended
            found |= listening([pid])
    ports = [address for address in found if not isinstance(address, str)]
    return ports if len(ports) >= 3 else []


NAPS = [(key, sum(range(key, 80, 4)), 0) for key in range(4)]
"""What the story's tasks of half a second make."""


def java_of(cluster: Site, app: str) -> list[psutil.Process]:
    """The JVMs of its executors."""
    found = []
    for process in cluster.processes_of(app):
        with suppress(psutil.NoSuchProcess):  # the shell of a Python worker may have ended
            found.append(psutil.Process(process))
    return [each for each in found if "java" in each.name()]


def refuses_without_the_secret(command: list[str]) -> str:
    """What an executor says that knows all but the secret, and ends."""
    secret = {"_SPARK_AUTH_SECRET": "0" * 64}
    given = [*command, "--executor-id", "77", "--hostname", "127.0.0.1", "--cores", "1"]
    done = subprocess.run(given, env={**os.environ, **secret}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stdout + done.stderr


@whole
def test_executors_come_go_are_killed_and_exceed_their_memory(cluster: Site) -> None:
    """A single failure that counts would end a job (`spark.task.maxFailures` is 1)."""
    local = Driver(cluster, "spark.master=local[2]")
    local.ask("results")
    expected = local.answer()
    local.end()
    driver = Driver(
        cluster,
        "spark.dynamicAllocation.enabled=true",
        "spark.dynamicAllocation.maxExecutors=4",
        "spark.dynamicAllocation.executorIdleTimeout=2s",
        "spark.dynamicAllocation.cachedExecutorIdleTimeout=2s",
        "spark.dynamicAllocation.shuffleTracking.enabled=true",
        "spark.dynamicAllocation.shuffleTracking.timeout=2s",
        "spark.task.maxFailures=1",
        f"spark.fairlog.ownerTimeout={LEASE_S}",
    )
    try:

        def claims_nothing() -> bool:
            found = cluster.app(driver.app)
            return not found["executors"] and found["requestedCores"] == 0

        assert claims_nothing()
        driver.ask("results")
        assert driver.answer() == expected
        wait_until(claims_nothing, "no executor without a task")

        driver.ask("naps")
        wait_until(lambda: len(cluster.app(driver.app)["executors"]) == 4, "four executors")
        assert driver.answer() == NAPS
        wait_until(claims_nothing, "no executor without a task")

        driver.ask("naps")
        wait_until(lambda: len(java_of(cluster, driver.app)) == 4, "four executors again")
        [command] = [each.cmdline() for each in java_of(cluster, driver.app)[:1]]
        java_of(cluster, driver.app)[0].kill()
        cluster.shell.ok("kill", "--executor", cluster.app(driver.app)["executors"][-1]["executor"])
        cluster.kill_api()
        cluster.kill_master()
        assert driver.answer() == NAPS
        wait_until(claims_nothing, "no executor without a task")

        driver.ask("meal")
        wait_until(lambda: len(java_of(cluster, driver.app)) > 0, "an executor")
        said = refuses_without_the_secret(command[: command.index("--executor-id")])
        assert "SaslException" in said or "uthentication" in said, said[-2000:]
        error = driver.answer()
        assert "used " in error
        assert " MiB, above the 896 MiB granted" in error, error
    finally:
        driver.kill()
    ended = cluster.wait_for_end(driver.app)
    assert (ended["state"], ended["detail"]) == ("failed", f"its owner gave no sign of life for {LEASE_S} s")
    wait_until(lambda: not cluster.processes_of(driver.app), "the end of its processes")
    assert "follows its rules" in cluster.audit()


@whole
def test_executors_come_to_the_hosts_that_sparks_tasks_prefer(cluster: Site) -> None:
    """On four hosts of this machine. The two workers of the cluster, on none of them, have room enough for all."""
    hosts = [f"127.0.0.{number}" for number in range(2, 6)]
    offered = ("--cores", "1", "--memory", "1G", "--folders", tempfile.gettempdir())
    agents = [cluster.shell.start("worker", "--id", host, "--host", host, *offered) for host in hosts]
    try:
        wait_until(lambda: all(host in cluster.shell.ok("workers") for host in hosts), "the workers")
        cluster.shell.ok("settings", "set", "locality_wait_host_ms=600000")
        driver = Driver(
            cluster,
            "spark.driver.host=127.0.0.9",  # not the loopback's own address, for which executors leave their names
            "spark.driver.bindAddress=127.0.0.9",
            "spark.dynamicAllocation.enabled=true",
            "spark.dynamicAllocation.maxExecutors=4",
            "spark.dynamicAllocation.shuffleTracking.enabled=true",
            "spark.locality.wait=600s",
        )
        try:
            driver.ask("near")
            assert driver.answer() == [(host, host) for host in hosts * 3]
            executors = cluster.app(driver.app)["executors"]
            assert {(each["worker"], each["locality"]) for each in executors} <= {(host, "host") for host in hosts}
            driver.end()
        finally:
            driver.kill()
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()

        def live() -> list[str]:
            known = json.loads(cluster.shell.ok("workers", "--json"))
            return [each["worker"] for each in known if each["worker"] in hosts and each["status"] != "lost"]

        wait_until(
            lambda: not live(), "the loss of these workers, on which the tests that follow would be granted cores"
        )
    assert "follows its rules" in cluster.audit()


@whole
def test_two_companies_on_a_full_cluster_hold_their_parts_and_compute_the_same(cluster: Site) -> None:
    """Executors leave for the company that comes later, and come back when it has gone."""
    cores, drivers = 8, list[Driver]()

    def hold(*numbers: int) -> bool:
        return [cluster.app(driver.app)["grantedCores"] for driver in drivers] == list(numbers)

    cluster.shell.ok("company", "add", "globex")
    try:
        for company in ("acme", "globex"):
            drivers.append(
                Driver(cluster, f"spark.executor.instances={cores}", "spark.task.maxFailures=1", company=company)
            )
            if company == "acme":
                wait_until(lambda: hold(cores), "a full cluster")
                drivers[0].ask("naps")
        wait_until(lambda: hold(cores // 2, cores // 2), "both companies' parts")
        began_s = time.time()
        for driver in drivers:
            driver.ask("naps")
        assert [drivers[place].answer() for place in (0, 0, 1)] == [NAPS] * 3
        ended_s = time.time()
        events = [json.loads(line) for line in cluster.shell.ok("log", "--json").splitlines()]
        held = core_seconds(events, round(began_s * 1000), round(ended_s * 1000))
        assert held["acme"] == held["globex"] == pytest.approx(cores / 2 * (ended_s - began_s), rel=0.01)
        revoked = [each["data"] for each in events if each["type"] == "ExecutorRevoked"]
        taken = [each for each in revoked if each["app"] == drivers[0].app]
        assert [(each["reason"], each["claimant_company"]) for each in taken] == [("reclaimed", "globex")] * 4
        drivers[1].end()
        wait_until(lambda: hold(cores, 0), "the executors that have come back")
        drivers[0].ask("naps")
        assert drivers[0].answer() == NAPS
        drivers[0].end()
        assert [cluster.wait_for_end(driver.app)["state"] for driver in drivers] == ["finished"] * 2
    finally:
        for driver in drivers:
            driver.kill()
    assert "follows its rules" in cluster.audit()


CONNECTED = """
import shutil, sys
from pyspark.sql import SparkSession, functions
assert shutil.which("java") is None, "the client has Java"
session = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
rows = session.range(100).groupBy((functions.col("id") % 5).alias("key")).count().orderBy("key").collect()
print([tuple(row) for row in rows])
"""


@whole
def test_a_client_without_java_uses_executors_of_a_spark_connect_server(cluster: Site) -> None:
    if not list(Path(home_of_spark(), "jars").glob("spark-connect_*.jar")):
        pytest.skip("this Spark has no Spark Connect server; that of PyPI has one since 4.0")
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import grpc, pandas, pyarrow"], check=False, capture_output=True).returncode:
        pytest.skip("Spark Connect's client is not installed")
    submit, environment = submission(cluster)
    port = free_port()
    conf = [f"spark.connect.grpc.binding.port={port}", "spark.executor.instances=1"]
    options = [word for each in conf for word in ("--conf", each)]
    service = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with subprocess.Popen(
        [submit, "--class", service, *SMALL, *options, "spark-internal"],
        env=environment,
        cwd=environment["SPARK_CONF_DIR"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as server:
        try:
            wait_until(lambda: is_listening(port) or server.poll() is not None, "the Spark Connect server")
            assert server.poll() is None
            without = {**{name: value for name, value in os.environ.items() if name != "JAVA_HOME"}, "PATH": "/nowhere"}
            command = [python, "-c", CONNECTED, f"sc://127.0.0.1:{port}"]
            done = subprocess.run(command, env=without, capture_output=True, text=True, check=False)
            assert done.stdout == f"{[(key, 20) for key in range(5)]}\n", done.stderr[-3000:]
            [app] = [each for each in cluster.apps() if not each["endedAt"]]
            assert cluster.app(app["app"])["executors"]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
    assert cluster.wait_for_end(app["app"])["state"] in {"finished", "failed"}


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
