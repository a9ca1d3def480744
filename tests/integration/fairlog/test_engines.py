"""Dask and RQ on executors of fairlog, and the examples of `examples/`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote_plus, unquote_plus

import pytest
from redis import Redis
from rq import Queue, Retry
from rq.job import JobStatus

from fairlog.api.client import ApiClient
from fairlog.engines import owner
from fairlog.local.store import bundled_server
from scheduler.model.commands import SubmitApp
from tests.integration import engines_rig as calls
from tests.integration.cli_rig import ROOT
from tests.integration.engines_rig import Site, site
from tests.integration.servers import Servers
from tests.waiting import HOPELESS_S, wait_until
from workers.sandbox import why_no_cell


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """In cells where they work: programs find their modules, their scratch folder and their owner's process there."""
    with site(tmp_path_factory.mktemp("engines"), cells=not why_no_cell(), share=[str(ROOT)]) as found:
        yield found


@pytest.fixture
def queue_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for RQ that cells reach: they show no socket."""
    servers = Servers(bundled_server(), tmp_path_factory.mktemp("queue"))
    with servers.stack:
        yield f"redis://127.0.0.1:{servers.start()}/0"


def example(cluster: Site, name: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """An example that ran well."""
    environment = {**os.environ, **cluster.shell.env, "FAIRLOG_API": cluster.api}
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_functions_started_at_home_count_right_and_say_what_their_workers_do_not_see(cluster: Site) -> None:
    done = example(cluster, "functions.py", "acme", "ann", cwd=cluster.shell.home)
    assert done.stdout == "2262 primes below 20000\n"
    assert f"executors in cells do not see {cluster.shell.home}, a home folder" in done.stderr


SPEAKS = """
import fairlog
with fairlog.Mailbox() as mail:
    mail.publish("link.ui", "http://127.0.0.1:4040")
    mail.publish("done", mail.wait("go", 300))
    mail.wait("end", 300)
"""


def test_a_program_and_its_owner_leave_messages_for_each_other(cluster: Site) -> None:
    """From a cell too, where the program has only what it was told."""
    who = ("--company", "acme", "--user", "ann", "--executor-program", "--executors", "1")
    app = cluster.shell.ok("submit", *who, "--", sys.executable, "-c", SPEAKS).split()[0]
    with ApiClient(cluster.api) as owner:
        owner.publish(app, "go", "go on")
        assert owner.message(app, "done", timeout_s=HOPELESS_S) == "go on", cluster.shell.ok("explain", app)
        shown = cluster.shell.ok("app", app)
        assert "link               ui: http://127.0.0.1:4040" in shown
        assert "of its tasks" not in shown  # it has none
        owner.publish(app, "end", "")
        assert cluster.wait_for_end(app)["state"] == "finished"
        assert owner.message(app, "done") is None


RANK = """
told=told/$FAIRLOG_TASK_INDEX.$FAIRLOG_TASK_COUNT
echo begun >>$told
test $FAIRLOG_TASK_INDEX = 0 || test $(wc -l <$told) = 2
"""


def test_programs_begin_in_their_folder_and_one_that_fails_keeps_its_index(cluster: Site) -> None:
    folder = cluster.shell.home / "ranks"
    (folder / "told").mkdir(parents=True)
    (folder / "rank.sh").write_text(RANK)
    asked = ["submit", "--company", "acme", "--user", "ann", "--executor-program", "--executors"]
    submitted = cluster.shell.run(*asked, "2", "--wait", "--", "sh", "rank.sh", folder=folder)
    assert submitted.code == 0, submitted
    assert {file.name: file.read_text().split() for file in (folder / "told").iterdir()} == {
        "0.2": ["begun"],
        "1.2": ["begun", "begun"],
    }
    refused = cluster.shell.run(*asked, "99", "--executor-cores", "4", "--", "sh", "rank.sh", folder=folder)
    assert "needs 99 executors of 4 cores" in refused.err
    assert "can hold 2 at most" in refused.err
    lost = cluster.shell.run(*asked, "1", "--owner-timeout", "9s", "--", "./rank.sh", folder=folder)
    assert f"is not; give {folder / 'rank.sh'}" in lost.err


def test_staged_files_lie_in_the_folder_of_each_executor_and_in_no_variable(cluster: Site, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("cat told.txt; echo ${FAIRLOG_FILES-none}; ls | wc -l\n")
    (tmp_path / "told.txt").write_bytes(b"said \xff\n")
    who = ("--company", "acme", "--user", "ann", "--executor-program", "--executors", "1", "--wait")
    stage = ("--stage", str(tmp_path / "run.sh"), "--stage", str(tmp_path / "told.txt"))
    app = cluster.shell.ok("submit", *who, *stage, "--", "sh", "./run.sh").split()[0]
    with ApiClient(cluster.api) as api:
        assert api.output(app, 0) == b"said \xff\nnone\n2\n"
    (tmp_path / "large").write_bytes(b"x" * 50_000)
    refused = cluster.shell.run("submit", *who, "--stage", str(tmp_path / "large"), "--", "true")
    assert (refused.code, "more than 40960 bytes together, which is the most; put larger ones" in refused.err) == (
        1,
        True,
    )


def test_a_dask_cluster_grows_from_nothing_and_ends_with_its_owner(cluster: Site) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed")
    assert example(cluster, "dask_cluster.py", "acme", "ann").stdout == "328350 is the sum of the squares\n"
    found = [app for app in cluster.apps() if app["name"] == "dask"]
    assert [app["state"] for app in found] == ["finished"]


JOBLIB = """
import joblib
from distributed import Client
from fairlog.dask import FairlogCluster

if __name__ == "__main__":
    with FairlogCluster(company="acme", user="ann", n_workers=1, memory_mb=512) as cluster, Client(cluster):
        with joblib.parallel_config(backend="dask"):
            print(sum(joblib.Parallel()(joblib.delayed(pow)(number, 2) for number in range(100))))
"""


def test_joblib_runs_on_a_dask_cluster(cluster: Site, tmp_path: Path) -> None:
    pytest.importorskip("joblib", reason="joblib is not installed")
    (tmp_path / "squares.py").write_text(JOBLIB)
    assert example(cluster, str(tmp_path / "squares.py"), cwd=tmp_path).stdout == "328350\n"


def test_rq_workers_come_with_the_jobs_and_go_with_them(cluster: Site, queue_url: str, tmp_path: Path) -> None:
    queue = Queue("work", connection=Redis.from_url(queue_url))
    jobs = [queue.enqueue(calls.note, str(tmp_path), number) for number in range(60)]
    what = ("--company", "acme", "--user", "ann", "--url", queue_url, "--max", "2", "--idle", "1s", "--memory", "256M")
    command = [sys.executable, "-m", "fairlog", "rq", *what, "work"]
    process = subprocess.Popen(command, env=cluster.shell.env, cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: all(job.is_finished for job in jobs), "all jobs")
        assert [job.return_value() for job in jobs] == list(range(60))
        assert len(list(tmp_path.iterdir())) == 60  # each once
        app = next(app for app in cluster.apps() if app["name"] == "rq work")["app"]
        wait_until(lambda: cluster.app(app)["requestedCores"] == 0, "no worker without a job")
        assert example(cluster, "rq_jobs.py", queue_url).stdout == "285 is the sum of the squares\n"
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode == 0
    assert cluster.wait_for_end(app)["state"] == "finished"


def test_an_idle_rq_says_so_once(cluster: Site, queue_url: str, tmp_path: Path) -> None:
    what = ("--company", "acme", "--user", "ann", "--url", queue_url, "idle")
    command = [sys.executable, "-m", "fairlog", "rq", *what]
    with subprocess.Popen(command, env=cluster.shell.env, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = [process.stderr.readline(), process.stderr.readline()]
        process.terminate()
        said += process.stderr.readlines()
    assert [line for line in said if "no job" in line] == ["fairlog: no job waits in idle; workers come as jobs do\n"]


MODULE = """
import os, time
from pathlib import Path

def here():
    return "here"

def once(folder):
    with open(Path(folder) / "made", "a") as file:
        file.write("x")
    while (Path(folder) / "made").read_text() == "x":
        time.sleep(0.05)
    return "again"
"""


def test_rq_workers_find_the_module_of_the_folder_and_jobs_that_are_due_or_lost_run(
    cluster: Site, queue_url: str, tmp_path: Path
) -> None:
    """As with `rq worker --with-scheduler`; the lost job does not wait until RQ misses its worker."""
    (tmp_path / "jobs_of_mine.py").write_text(MODULE)
    queue = Queue("mine", connection=Redis.from_url(queue_url))
    what = ("--company", "acme", "--user", "ann", "--url", queue_url, "--max", "2", "--idle", "1s", "--memory", "256M")
    command = [str(Path(sys.executable).parent / "fairlog"), "rq", *what, "mine"]
    process = subprocess.Popen(command, env=cluster.shell.env, cwd=tmp_path)
    try:
        later = queue.enqueue_in(timedelta(seconds=1), "jobs_of_mine.here")
        wait_until(lambda: later.get_status() in (JobStatus.FINISHED, JobStatus.FAILED), "the scheduled job")
        assert later.return_value() == "here", later.latest_result()
        again = queue.enqueue("jobs_of_mine.once", str(tmp_path), retry=Retry(max=1))
        wait_until((tmp_path / "made").exists, "the job's begin")
        app = next(app for app in cluster.apps() if app["name"] == "rq mine")["app"]
        for pid in cluster.processes_of(app):
            with suppress(ProcessLookupError):  # it has ended with another one of them
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: again.is_finished, "the job, made again")
        assert again.return_value() == "again"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize(
    ("cores", "answer"),
    [
        (
            1,
            "OVER\tapp {app} is failed: 10 executors ended before they reached the driver; ",
        ),
        (
            64,
            "REFUSED\tan executor of the app needs 64 cores and 1408 MiB, and no worker offers that much; ",
        ),
    ],
    ids=["no-java", "too-large"],
)
def test_a_spark_driver_whose_executors_cannot_start_is_told_why(cluster: Site, cores: int, answer: str) -> None:
    """Its helper speaks to the cluster; neither Spark nor Java is needed for that."""
    about = {"master": "spark+fairlog://acme/ann", "name": "n", "java": "/no", "home": "/no", "driver": "spark://d"}
    lines: list[tuple[str, ...]] = [("ABOUT", *each) for each in about.items()]
    lines += [("CONF", f"spark.{name}", str(cores)) for name in ("executor.cores", "cores.max")]
    lines.append(("START", "2"))  # Spark's own reading, which knows nothing of spark.cores.max
    environment = {**cluster.shell.env, "FAIRLOG_API": cluster.api}
    command = [sys.executable, "-m", "fairlog.engines.spark.helper"]
    app = ""
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.writelines("\t".join(map(quote_plus, line)) + "\n" for line in lines)
        process.stdin.flush()
        for told in map(unquote_plus, process.stdout):
            kind, _, said = told.strip().partition("\t")
            if kind == "READY":
                app, number = said.split("\t")
                assert number == "1"
            if kind in {"OVER", "REFUSED"}:
                assert told.startswith(answer.format(app=app))
                assert not app or "has no /no/bin/java, which the driver runs with" in told
                break
        else:
            raise AssertionError("it ended without an answer")
        process.stdin.write("STOP\n")
    assert process.returncode == 0
    if app:
        ended = cluster.wait_for_end(app)
        assert (ended["state"], ended["detail"].startswith("10 executors ended ")) == ("failed", True)


def test_an_owner_that_waits_prints_why(
    cluster: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(owner, "SENTENCE_S", 0.1)
    who = ("--company", "acme", "--user", "ann", "--executor-program")
    size = ("--executor-cores", "4", "--executor-memory", "512M")
    full = cluster.shell.ok("submit", *who, *size, "--executors", "2", "--", "sleep", "600").split()[0]
    wait_until(lambda: len(cluster.app(full)["executors"]) == 2, "a full cluster")
    submission = SubmitApp(
        app="app-waits",
        company="acme",
        user="ann",
        executor_program=True,
        executor_cores=4,
        executor_memory_mb=512,
        executor_limit=1,
        owner_timeout_s=60,
        command=("sleep", "600"),
    )
    owned = owner.OwnedApp(submission, {}, api=cluster.api)
    try:
        said = ""

        def told() -> bool:
            nonlocal said
            said += capsys.readouterr().err
            return (
                len(re.findall(r"^fairlog: app app-waits waits for executors since \d+ s: \S", said, re.MULTILINE)) >= 2
            )

        wait_until(told, "the sentence, and again")
    finally:
        owned.finish()
        cluster.shell.ok("kill", full)
    cluster.wait_for_end(full)
