"""Workers with a real master: they converge on what the log grants, whatever dies meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Self, cast
from uuid import uuid4

import psutil
import pytest
from redis import Redis

from fairlog.client import StoreClient
from fairlog.local.store import EmbeddedStore
from recovery.failover.master import run_master
from scheduler.model.commands import (
    ConfigureCluster,
    DrainWorker,
    KillApp,
    LoseWorker,
    RegisterCompany,
    RegisterKind,
    RemoveWorker,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.events import (
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
    WorkerCleared,
    WorkerProbed,
    WorkerRemoved,
    WorkerSuspected,
)
from scheduler.model.grants import Grant, Leaving
from scheduler.service.heartbeats import Heartbeats
from scheduler.service.keyring import Keyring
from scheduler.store.doorbell import RING_LUA
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys, bell_id, queue_key
from scheduler.store.task_queue import Worklist
from tests.integration.cli_rig import is_gone
from tests.integration.forked import Forked
from tests.integration.workers.worker_rig import ONE_STORE, processes_of, tasks_of
from tests.waiting import HOPELESS_S, wait_until
from workers.agent import Agent, run_agent
from workers.door import Held
from workers.health import Check
from workers.offer import Offer, WorkerBusy, make_offers
from workers.private_files import PrivateFiles
from workers.rundir import ExitNote, RunDir
from workers.sandbox import CellSettings, why_no_cell
from workers.store_door import StoreAgentDoor

SLEEP = ("sleep", "600")
STUBBORN = ("/bin/sh", "-c", "trap '' TERM; exec sleep 600")
ROOT = Path(__file__).parents[3]


def run_master_and_lose(url: str, cluster: str, ring: Keyring | None = None) -> None:
    """A master that also loses the workers that `lose` names."""
    soundly = Heartbeats.lost

    def lost(heartbeats: Heartbeats, now: int, silent: int, timeout_ms: int) -> list[LoseWorker]:
        named: Any = heartbeats._store.spop(f"{cluster}:to-lose", 10)
        return [*soundly(heartbeats, now, silent, timeout_ms), *(LoseWorker(worker=name.decode()) for name in named)]

    pytest.MonkeyPatch().setattr(Heartbeats, "lost", lost)
    run_master(url, cluster, keyring=ring)


def lose(connection: Redis, keys: Keys, worker: str) -> None:
    """Have the master lose the worker."""
    log = EventLog(connection, keys)
    head = log.head()
    connection.sadd(f"{keys.cluster}:to-lose", worker)
    connection.eval(RING_LUA, 1, queue_key(keys.master_queue), bell_id(keys.master_queue))
    wait_until(lambda: any(isinstance(fact.event, WorkerRemoved) for fact in log.facts(head)), "the loss")


class Cluster:
    """A real master and agents as processes on one store."""

    def __init__(self, store: EmbeddedStore, folder: Path, ring: Keyring | None = None) -> None:
        self.store = store
        self.ring = ring
        self.folder = folder
        self.name = f"agents-{uuid4().hex[:8]}"
        self.keys = Keys(self.name)
        self.connection = Redis.from_url(store.url)
        self.client = StoreClient(self.connection, self.name, keyring=ring, timeout_s=HOPELESS_S)
        self.work = Worklist(self.connection, self.name)
        self.processes: list[subprocess.Popen[bytes] | Forked] = []

    def __enter__(self) -> Self:
        self.fork(partial(run_master_and_lose, self.store.url, self.name, self.ring))
        try:
            self.client.send(RegisterCompany(company="acme"))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def fork(self, program: Callable[[], None]) -> Forked:
        forked = Forked(program, log=self.folder / "log", environment=os.environ)
        self.processes.append(forked)
        return forked

    def offer(self, worker: str = "w1", *, cores: int = 8, outlive_agent: bool = False) -> Offer:
        return Offer(
            worker=worker,
            node="here",
            host="here",
            cores=cores,
            memory_mb=cores * 1024,
            run_dir=self.folder / "run",
            outlive_agent=outlive_agent,
            unsafe_plain=True,
            grace_s=0.5,
        )

    def agent(self, offer: Offer | None = None) -> Forked:
        offer = offer or self.offer()
        process = self.fork(partial(run_agent, self.store.url, self.name, [offer]))
        wait_until(lambda: self.pid_of(offer.worker) == process.pid, f"the agent of {offer.worker}")
        return process

    def pid_of(self, worker: str) -> int | None:
        about: Any = self.connection.hget(self.keys.agents, worker)
        return int(json.loads(about)["pid"]) if about else None

    def submit(self, command: Sequence[str], *, tasks: int = 4, cores: int = 4, **about: Any) -> str:
        app = f"app-{uuid4().hex[:8]}"
        who: dict[str, Any] = {"company": "acme", "user": "ann"} | about
        self.client.send(SubmitApp(app=app, cores=cores, tasks=tasks, command=tuple(command), **who))
        return app

    def app(self, app: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.view("app", app=app)
        return found

    def events(self) -> list[Event]:
        return [fact.event for fact in EventLog(self.connection, self.keys).facts()]

    def end_of(self, app: str) -> dict[str, Any]:
        ends = {"finished", "failed", "killed", "expired"}
        wait_until(lambda: self.app(app)["state"] in ends, f"the end of {app}")
        return self.app(app)

    def granted_cores(self) -> int:
        return sum(worker["grantedCores"] for worker in self.client.view("workers"))

    def close(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            process.wait(HOPELESS_S)
        self.client.store.close()


def ring(cluster: Cluster) -> None:
    """Ring for the agent of w1 and wait until it has taken the ring."""
    queue = cluster.keys.worker_queue("w1")
    cluster.connection.eval(RING_LUA, 1, queue_key(queue), bell_id(queue))
    wait_until(lambda: not cluster.connection.exists(queue_key(queue)), "the agent to take the ring")


@pytest.fixture
def cluster(store: EmbeddedStore, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(store, tmp_path) as running:
        yield running


def test_an_app_goes_from_submit_to_finished(cluster: Cluster) -> None:
    cluster.agent()
    app = cluster.submit(("/bin/sh", "-c", "echo $FAIRLOG_TASK_INDEX"), tasks=20)
    assert cluster.end_of(app)["state"] == "finished"
    assert [cluster.work.output(app, task) for task in range(20)] == [b"%d\n" % task for task in range(20)]


@ONE_STORE
def test_a_planted_lock_and_exit_note_end_no_app(cluster: Cluster) -> None:
    """They name an executor of another worker."""
    agent = cluster.agent(cluster.offer("w2"))
    app = cluster.submit(("sleep", "600"), tasks=1)
    wait_until(lambda: cluster.app(app)["executors"], "the executor")
    files = RunDir(cluster.folder / "run", "w1")
    files.make()
    files.lock_file(f"{app}.0").touch()
    files.write_exit(f"{app}.0", ExitNote(app=app, reason="exited", verdict="failed", detail="planted"))
    cluster.agent()
    wait_until(lambda: not files.known(), "what was planted to be forgotten")
    later = cluster.submit(("true",), tasks=1)
    assert cluster.end_of(later)["state"] == "finished"
    assert cluster.app(app)["state"] == "running"
    assert agent.poll() is None


@ONE_STORE
def test_a_worker_without_cells_runs_tasks_of_one_company(cluster: Cluster) -> None:
    cluster.client.send(RegisterCompany(company="beta"))
    cluster.agent(cluster.offer().model_copy(update={"unsafe_plain": False}))
    assert cluster.end_of(cluster.submit(("true",), tasks=1))["state"] == "finished"
    found = cluster.submit(("true",), tasks=1, company="beta")
    said = "runs tasks without cells, and those of company acme only; start it with --launcher cell"
    wait_until(lambda: any(said in str(event) for event in cluster.events()), "the refusal")
    assert cluster.work.progress(found).running == 0


@ONE_STORE
@pytest.mark.skipif(bool(why_no_cell()), reason="cells do not work here")
def test_without_folders_the_first_company_of_a_worker_has_those_of_its_user(cluster: Cluster) -> None:
    cluster.client.send(RegisterCompany(company="beta"))
    cluster.agent(cluster.offer().model_copy(update={"launcher": "cell"}))
    private = cluster.folder / "private"
    private.mkdir(mode=0o700)
    for company, folder, state in (
        ("acme", private, "finished"),
        ("beta", private, "failed"),
        ("beta", None, "finished"),
    ):
        cwd = None if folder is None else str(folder)
        app = cluster.submit(("true",), tasks=1, company=company, cwd=cwd)
        assert (company, cluster.end_of(app)["state"]) == (company, state)
    [refused] = [event for event in cluster.events() if "ran on this worker first" in str(event)]
    assert str(private) not in str(refused)


@ONE_STORE
@pytest.mark.skipif(bool(why_no_cell()), reason="cells do not work here")
def test_cells_hide_what_the_agents_user_has_for_itself_among_the_systems_folders(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cells show stands for /opt here. A file that comes later is hidden in later cells."""
    shown = cluster.folder / "shown"
    monkeypatch.setattr("workers.agent.private_files", lambda _: PrivateFiles((), searched=[shown]))
    monkeypatch.setattr("workers.private_files.SELDOM", 0)  # a busy machine would not look again so soon
    for name in ("public", "private"):
        (shown / name).mkdir(parents=True)
        (shown / name / "file").write_text(f"{name}\n")
    (shown / "private").chmod(0o700)
    offer = cluster.offer().model_copy(
        update={"launcher": "cell", "cells": CellSettings(share=(f"{cluster.folder}:rw",))}
    )

    def ended(agent: Agent, app: str) -> bool:
        agent.tick()
        return bool(cluster.app(app)["endedAt"])

    with closing(Agent(cluster.store.url, cluster.name, offer)) as agent:
        for secret in ("one", "two"):
            (shown / secret).write_text("secret\n")
            (shown / secret).chmod(0o600)
            files = (shown / "public/file", shown / "private/file", shown / secret)
            app = cluster.submit(("sh", "-c", f"cat {' '.join(map(str, files))}; true"), tasks=1)
            wait_until(partial(ended, agent, app), "the app's end")
            printed = cluster.work.output(app, 0).splitlines()
            assert [line for line in printed if line in {b"public", b"private", b"secret"}] == [b"public"]


def test_an_ended_app_leaves_no_rq_keys_and_holds_no_core(cluster: Cluster) -> None:
    cluster.agent()
    app = cluster.submit(("true",), tasks=30)
    cluster.end_of(app)
    wait_until(lambda: not cluster.granted_cores(), "the return of the grants")
    wait_until(lambda: app not in cluster.work.open_apps(), "the app to be forgotten")
    assert not [key for key in cluster.connection.keys("rq:*") if app.encode() in key]
    files = cluster.folder / "run" / "w1" / "executors"
    wait_until(lambda: not list(files.iterdir()), "the executor to be forgotten")


@ONE_STORE
def test_an_app_whose_command_does_not_exist_fails_with_that_reason(cluster: Cluster) -> None:
    cluster.agent()
    ended = cluster.end_of(cluster.submit(("no-such-program",), retries=3))
    assert (ended["state"], ended["detail"]) == ("failed", "command 'no-such-program' does not exist on worker w1")


@ONE_STORE
def test_an_app_whose_command_only_one_worker_can_start_finishes_there(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Semantics W9: the larger worker, which is tried first, has another PATH. Its agent's log says what it lacks."""
    program = tmp_path / "bin" / "only-here"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho here\n")
    program.chmod(0o700)
    cluster.agent(cluster.offer("w1", cores=8))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    cluster.agent(cluster.offer("w2", cores=4))
    app = cluster.submit(("only-here",), tasks=3)
    assert cluster.end_of(app)["state"] == "finished"
    assert [cluster.work.output(app, task) for task in range(3)] == [b"here\n"] * 3
    [failed] = [event for event in cluster.events() if isinstance(event, ExecutorRemoved) and event.unstartable]
    assert (failed.worker, failed.reason, failed.finished) == ("w1", "failed", False)
    excluded = cluster.app(app)["excludedWorkers"]
    assert [(one["worker"], one["ends"], one["unstartable"]) for one in excluded] == [("w1", 1, True)]
    said = [line for line in (cluster.folder / "log").read_text().splitlines() if "an executor failed" in line]
    assert ["command 'only-here' does not exist on worker w1" in line for line in said] == [True]


@ONE_STORE
def test_killing_an_app_stops_its_processes_before_it_returns_its_cores(cluster: Cluster) -> None:
    cluster.agent()
    app = cluster.submit(("/bin/sh", "-c", "setsid sleep 600 & sleep 600"))
    wait_until(lambda: len(processes_of(app)) >= 8, "four tasks and what they start")
    cluster.client.send(KillApp(app=app))
    wait_until(lambda: not cluster.granted_cores(), "the return of the grants")
    assert not processes_of(app)


def test_an_app_killed_before_its_worker_sees_the_grant_holds_no_core(cluster: Cluster) -> None:
    agent = cluster.agent()
    os.kill(agent.pid, signal.SIGSTOP)
    app = cluster.submit(SLEEP)
    wait_until(cluster.granted_cores, "the grant")
    cluster.client.send(KillApp(app=app))
    os.kill(agent.pid, signal.SIGCONT)
    wait_until(lambda: not cluster.granted_cores(), "the return of the grant")


@ONE_STORE
@pytest.mark.parametrize("driver", [False, True])
def test_an_app_whose_time_is_over_is_stopped_with_the_grace(cluster: Cluster, tmp_path: Path, driver: bool) -> None:  # noqa: FBT001 - pytest's
    """Semantics X2: SIGTERM, and SIGKILL for what ignores it; then its cores are free."""
    cluster.client.send(ConfigureCluster(settings={"kill_grace_s": 1}))
    cluster.agent()
    told = tmp_path / "told"
    command = ("/bin/sh", "-c", f"trap 'echo term >> {told}' TERM; while :; do sleep 0.05; done")
    amounts = {"tasks": 0, "cores": 0, "driver": True} if driver else {"tasks": 2, "cores": 4}
    app = cluster.submit(command, max_runtime_s=10, **amounts)
    end = cluster.end_of(app)
    assert (end["state"], end["detail"]) == ("expired", "its maximum runtime of 10 s is over")
    assert not processes_of(app)
    assert told.read_text().split() == ["term"] * (1 if driver else 2)
    assert cluster.granted_cores() == 0


@ONE_STORE
@pytest.mark.parametrize("driver", [False, True])
def test_tasks_are_warned_once_before_the_time_of_their_app_is_over(
    cluster: Cluster,
    tmp_path: Path,
    driver: bool,  # noqa: FBT001 - pytest's
) -> None:
    """Semantics X2: an agent that is restarted does not repeat the warning."""
    offer = cluster.offer(outlive_agent=True)
    agent = cluster.agent(offer)
    warned, go = tmp_path / "warned", tmp_path / "go"
    command = ("/bin/sh", "-c", f"trap 'echo usr1 >> {warned}' USR1; until [ -e {go} ]; do sleep 0.05; done")
    amounts = {"tasks": 0, "cores": 0, "driver": True} if driver else {"tasks": 2, "cores": 4}
    app = cluster.submit(command, max_runtime_s=600, warn=("USR1", 598), **amounts)
    number = 1 if driver else 2
    wait_until(lambda: warned.exists() and len(warned.read_text().split()) == number, "the warnings")
    agent.terminate()
    agent.wait(HOPELESS_S)
    cluster.agent(offer)
    ring(cluster)
    go.touch()
    assert cluster.end_of(app)["state"] == "finished"
    assert warned.read_text().split() == ["usr1"] * number


def claimed_from(cluster: Cluster, script: str, **settings: Any) -> tuple[str, str, int]:
    """An app of acme with six tasks that fills w1, one of beta that claims half of it, and the deadline (ms)."""
    sizes = {"min_executor_cores": 2, "max_executor_cores": 2}
    cluster.client.send(ConfigureCluster(settings={**sizes, **settings}))
    cluster.client.send(RegisterCompany(company="beta"))
    cluster.agent(cluster.offer(cores=4))
    loser = cluster.submit(("/bin/sh", "-c", script), tasks=6)
    wait_until(lambda: len(tasks_of(loser)) == 4, "four tasks")
    claimant = cluster.submit(("true",), tasks=1, cores=2, company="beta", user="bea")
    files = RunDir(cluster.folder / "run", "w1")
    wait_until(lambda: any(files.leaving(holder.executor) for holder in files.known()), "an executor to be told")
    [told] = [leaving for holder in files.known() if (leaving := files.leaving(holder.executor))]
    return loser, claimant, told.deadline


@ONE_STORE
def test_a_running_task_is_never_cut_short_where_nobody_leaves_by_a_date(cluster: Cluster, tmp_path: Path) -> None:
    """Semantics H7: not at the deadline, nor by a later change of the setting and another master."""
    go = tmp_path / "go"
    script = f"until [ -e {go} ]; do sleep 0.05; done"
    loser, claimant, deadline = claimed_from(cluster, script, min_runtime_s=0, reclaim_patience_s=None)
    cluster.client.send(ConfigureCluster(settings={"reclaim_patience_s": 0, "kill_grace_s": 0}))
    master = cluster.processes[0]
    master.terminate()
    master.wait(HOPELESS_S)
    cluster.fork(partial(run_master, cluster.store.url, cluster.name))
    wait_until(lambda: cluster.connection.time()[0] * 1000 > deadline, "the time after the deadline")
    for _ in range(2):
        cluster.client.send(ConfigureCluster(settings={"kill_grace_s": 0}))
        ring(cluster)
    assert len(tasks_of(loser)) == 4
    assert cluster.app(claimant)["executors"] == []
    go.touch()
    assert [cluster.end_of(app)["state"] for app in (claimant, loser)] == ["finished", "finished"]
    assert [state.attempts for state in cluster.work.states(loser)] == [1] * 6


@ONE_STORE
def test_tasks_are_ended_at_the_deadline_which_run_again_later(cluster: Cluster) -> None:
    """Semantics H7: it counts neither as a retry nor as a failure; what ignores SIGTERM is killed."""
    patience = {"min_runtime_s": 0, "reclaim_patience_s": 1, "kill_grace_s": 1}
    go = cluster.folder / "go"
    script = f"trap '' TERM; until [ -e {go} ]; do sleep 0.05; done"
    loser, claimant, _ = claimed_from(cluster, script, **patience)
    assert cluster.end_of(claimant)["state"] == "finished"
    go.touch()
    assert cluster.end_of(loser)["state"] == "finished"
    assert sorted(state.attempts for state in cluster.work.states(loser)) == [1, 1, 1, 1, 2, 2]
    assert removals(cluster, loser)[0].reason == "reclaimed"
    assert cluster.app(loser)["excludedWorkers"] == []


def removals(cluster: Cluster, app: str) -> list[ExecutorRemoved]:
    """How the executors of the app ended, in order."""
    return [event for event in cluster.events() if isinstance(event, ExecutorRemoved) and event.app == app]


@ONE_STORE
def test_an_executor_goes_on_if_its_claim_became_void_while_no_agent_ran(cluster: Cluster, tmp_path: Path) -> None:
    """Semantics H7: the next agent takes back what the one before has told."""
    offer = cluster.offer(outlive_agent=True)
    agent = cluster.agent(offer)
    go = tmp_path / "go"
    app = cluster.submit(("/bin/sh", "-c", f"until [ -e {go} ]; do sleep 0.05; done"), tasks=6)
    wait_until(lambda: len(tasks_of(app)) == 4, "four tasks")
    agent.kill()
    agent.wait()
    files = RunDir(tmp_path / "run", "w1")
    files.tell_to_leave(f"{app}.0", Leaving(deadline=1))
    cluster.agent(offer)
    wait_until(lambda: files.leaving(f"{app}.0") is None, "the agent to take it back")
    go.touch()
    assert cluster.end_of(app)["state"] == "finished"
    assert {state.executor for state in cluster.work.states(app)} == {f"{app}.0"}


@ONE_STORE
def test_a_suspect_worker_gets_one_executor_as_a_probe(cluster: Cluster, tmp_path: Path) -> None:
    """Semantics W8: executors of 4 cores fit w1 only; its four live workers may have one suspect."""
    cluster.client.send(ConfigureCluster(settings={"suspect_failures": 2, "suspect_s": 1}))
    cluster.agent(cluster.offer("w1", cores=8))
    for worker in ("w2", "w3", "w4"):
        cluster.agent(cluster.offer(worker, cores=2))
    go = tmp_path / "go"
    command = ("/bin/sh", "-c", f"until [ -e {go} ]; do sleep 0.05; done")
    size = {"cores": 4, "executor_cores": 4, "executor_memory_mb": 1024}
    apps = [cluster.submit(command, tasks=1, **size) for _ in range(2)]
    wait_until(lambda: all(tasks_of(app) for app in apps), "a task of each app")
    master = cluster.processes[0]
    os.kill(master.pid, signal.SIGSTOP)
    for holder in RunDir(tmp_path / "run", "w1").known():
        os.kill(holder.pid, signal.SIGKILL)
    wait_until(lambda: str(cluster.connection.xrange(cluster.keys.inbox)).count('"EndedExecutor"') == 2, "both reports")
    os.kill(master.pid, signal.SIGCONT)
    wait_until(lambda: any(isinstance(event, WorkerProbed) for event in cluster.events()), "the probe")
    wait_until(lambda: any(tasks_of(app) for app in apps), "the task of the probe")
    assert sorted(len(cluster.app(app)["executors"]) for app in apps) == [0, 1]
    go.touch()
    assert [cluster.end_of(app)["state"] for app in apps] == ["finished", "finished"]
    told = [event for event in cluster.events() if getattr(event, "worker", "") == "w1"]
    [suspected] = [event for event in told if isinstance(event, WorkerSuspected)]
    [cleared] = [event for event in told if isinstance(event, WorkerCleared)]
    assert (sorted(suspected.executors), cleared.reason) == (sorted(f"{app}.0" for app in apps), "ended-well")
    meanwhile = told[told.index(suspected) : told.index(cleared)]
    assert sum(isinstance(event, ExecutorAllocated) for event in meanwhile) == 1


def test_a_killed_executor_is_replaced_and_costs_its_tasks_no_retry(cluster: Cluster, tmp_path: Path) -> None:
    cluster.agent()
    go = tmp_path / "go"
    app = cluster.submit(("/bin/sh", "-c", f"while ! test -e {go}; do sleep 0.05; done"))
    wait_until(lambda: len(tasks_of(app)) == 4, "four tasks")
    [holder] = RunDir(tmp_path / "run", "w1").known()
    os.kill(holder.pid, signal.SIGKILL)
    wait_until(lambda: len(cluster.app(app)["executors"]) == 1 and f"{app}.1" in str(cluster.app(app)), "another one")
    go.touch()
    assert cluster.end_of(app)["state"] == "finished"
    assert {state.executor for state in cluster.work.states(app)} == {f"{app}.1"}
    assert {state.attempts for state in cluster.work.states(app)} == {2}


def test_the_next_agent_reports_the_end_of_executors_that_outlived_theirs(cluster: Cluster, tmp_path: Path) -> None:
    offer = cluster.offer(outlive_agent=True)
    agent = cluster.agent(offer)
    go = tmp_path / "go"
    app = cluster.submit(("/bin/sh", "-c", f"while ! test -e {go}; do sleep 0.05; done"))
    wait_until(lambda: len(tasks_of(app)) == 4, "four tasks")
    agent.kill()
    agent.wait()
    cluster.agent(offer)
    go.touch()
    assert cluster.end_of(app)["state"] == "finished"
    assert {state.attempts for state in cluster.work.states(app)} == {1}
    wait_until(lambda: not cluster.granted_cores(), "the report of the end")


@ONE_STORE
def test_the_next_agent_reports_executors_that_ended_without_one(cluster: Cluster, tmp_path: Path) -> None:
    offer = cluster.offer(outlive_agent=True)
    agent = cluster.agent(offer)
    app = cluster.submit(("/bin/sh", "-c", f"while ! test -e {tmp_path}/go; do sleep 0.05; done"))
    wait_until(lambda: len(tasks_of(app)) == 4, "four tasks")
    agent.kill()
    agent.wait()
    (tmp_path / "go").touch()
    cluster.end_of(app)
    wait_until(lambda: list((tmp_path / "run" / "w1" / "executors").glob("*.exit")), "the note of the end")
    assert cluster.granted_cores() == 4
    cluster.agent(offer)
    wait_until(lambda: not cluster.granted_cores(), "the report of the end")


@ONE_STORE
def test_executors_that_end_with_their_agent_are_started_again_by_the_next(cluster: Cluster, tmp_path: Path) -> None:
    agent = cluster.agent()
    go = tmp_path / "go"
    app = cluster.submit(("/bin/sh", "-c", f"while ! test -e {go}; do sleep 0.05; done"))
    wait_until(lambda: len(tasks_of(app)) == 4, "four tasks")
    agent.kill()
    agent.wait()
    wait_until(lambda: not processes_of(app), "the end of the tasks")
    cluster.agent()
    go.touch()
    assert cluster.end_of(app)["state"] == "finished"


def test_a_lost_worker_stops_what_it_runs_before_it_registers_again(cluster: Cluster) -> None:
    cluster.agent()
    app = cluster.submit(STUBBORN, tasks=1)
    wait_until(lambda: len(processes_of(app)) == 1, "the task")
    [before] = processes_of(app)
    seen = {before}
    lose(cluster.connection, cluster.keys, "w1")

    def runs_again() -> bool:
        now = processes_of(app)
        seen.update(now)
        assert len(now) < 2
        return bool(set(now) - {before})

    wait_until(runs_again, "the task to run again")
    assert len(seen) == 2
    wait_until(lambda: cluster.app(app)["executors"], "the executor")
    assert cluster.app(app)["executors"][0]["executor"] == f"{app}.1"
    assert (cluster.folder / "log").read_text().count("the worker was removed from the cluster") == 1


class LateAgent(Agent):
    """Registers its worker just after the log has removed it."""

    connection: Redis
    keys: Keys

    def _register(self, held: Held) -> bool:
        lose(LateAgent.connection, LateAgent.keys, self.offer.worker)
        return super()._register(held)


@ONE_STORE
def test_a_worker_lost_while_registering_starts_nothing_beside_old_executors(cluster: Cluster) -> None:
    first = cluster.agent(cluster.offer(outlive_agent=True))
    app = cluster.submit(STUBBORN, tasks=1)
    wait_until(lambda: len(processes_of(app)) == 1, "the task")
    first.kill()
    first.wait()
    LateAgent.connection, LateAgent.keys = cluster.connection, cluster.keys
    with closing(LateAgent(cluster.store.url, cluster.name, cluster.offer())) as agent:
        agent.tick()
        assert [executor["executor"] for executor in cluster.app(app)["executors"]] == [f"{app}.1"]
        files = RunDir(agent.offer.run_dir, agent.offer.worker)
        assert [holder.executor for holder in files.known()] == [f"{app}.0"]
    wait_until(lambda: not processes_of(app), "the end of the task")


@ONE_STORE
def test_a_silent_workers_task_moves_and_is_stopped_before_the_worker_returns(cluster: Cluster, tmp_path: Path) -> None:
    """Semantics W2, with an agent that is stopped."""
    cluster.client.send(ConfigureCluster(settings={"worker_timeout_s": 4}))
    agents = {name: cluster.agent(cluster.offer(name, cores=4)) for name in ("w1", "w2")}
    folder = tmp_path / "said"
    folder.mkdir()
    says = "while :; do date +%s%3N >> $FAIRLOG_EXECUTOR_ID; sleep 0.05; done"
    app = cluster.submit(("/bin/sh", "-c", f"cd {folder}; {says}"), tasks=1)
    wait_until(lambda: list(folder.iterdir()), "the task")
    [first] = cluster.app(app)["executors"]
    log = EventLog(cluster.connection, cluster.keys)
    head = log.head()
    os.kill(agents[first["worker"]].pid, signal.SIGSTOP)
    wait_until(lambda: len(list(folder.iterdir())) > 1, "the task elsewhere")
    os.kill(agents[first["worker"]].pid, signal.SIGCONT)
    wait_until(lambda: len(cluster.client.view("workers")) == 2, "the worker to come back")
    since = [(fact.type, fact.at) for fact in log.facts(head)]
    offered_again = dict(since)["WorkerRegistered"]
    assert int((folder / first["executor"]).read_text().splitlines()[-1]) <= offered_again
    assert [name for name, _ in since].index("ExecutorAllocated") > [name for name, _ in since].index("WorkerRemoved")
    assert first["executor"] not in {executor["executor"] for executor in cluster.app(app)["executors"]}


def test_a_grant_whose_ring_was_lost_is_started(cluster: Cluster) -> None:
    with closing(Agent(cluster.store.url, cluster.name, cluster.offer())) as agent:
        agent.tick()
        app = cluster.submit(("true",))
        wait_until(lambda: cluster.connection.delete(queue_key(cluster.keys.worker_queue("w1"))), "the ring")
        agent.tick()
        assert cluster.end_of(app)["state"] == "finished"


@ONE_STORE
def test_a_grant_revoked_before_its_agent_looks_is_not_started(cluster: Cluster, tmp_path: Path) -> None:
    agent = cluster.agent()
    os.kill(agent.pid, signal.SIGSTOP)
    app = cluster.submit(("touch", str(tmp_path / "begun")))
    wait_until(lambda: cluster.connection.hlen(cluster.keys.grants("w1")), "the grant")
    cluster.client.send(KillApp(app=app))
    os.kill(agent.pid, signal.SIGCONT)
    wait_until(lambda: not cluster.granted_cores(), "the return of the grant")
    assert not (tmp_path / "begun").exists()
    assert cluster.work.states(app) == []


@ONE_STORE
def test_an_ended_executor_is_not_started_again_before_the_log_has_its_end(cluster: Cluster, tmp_path: Path) -> None:
    cluster.agent()
    app = cluster.submit(("/bin/sh", "-c", f"while ! test -e {tmp_path}/go; do sleep 0.05; done"))
    wait_until(lambda: len(tasks_of(app)) == 4, "four tasks")
    master = cluster.processes[0]
    os.kill(master.pid, signal.SIGSTOP)
    (tmp_path / "go").touch()
    wait_until(lambda: list((tmp_path / "run" / "w1" / "executors").glob("*.exit")), "the end of the executor")
    for _ in range(3):
        ring(cluster)
    inbox: Any = cluster.connection.xrange(cluster.keys.inbox)
    os.kill(master.pid, signal.SIGCONT)
    assert not any(b'"StartedExecutor"' in fields[b"command"] for _, fields in inbox)
    assert cluster.end_of(app)["state"] == "finished"


def test_the_end_of_an_app_is_reported_again_if_the_store_lost_it(cluster: Cluster, tmp_path: Path) -> None:
    offer = cluster.offer(outlive_agent=True)
    agent = cluster.agent(offer)
    app = cluster.submit(("/bin/sh", "-c", f"while ! test -e {tmp_path}/go; do sleep 0.05; done"))
    wait_until(lambda: len(tasks_of(app)) == 4, "four tasks")
    agent.kill()
    agent.wait()
    master = cluster.processes[0]
    os.kill(master.pid, signal.SIGSTOP)
    (tmp_path / "go").touch()
    wait_until(lambda: list((tmp_path / "run" / "w1" / "executors").glob("*.exit")), "the note of the end")
    assert cluster.connection.xtrim(cluster.keys.inbox, maxlen=0) >= 1
    cluster.connection.delete(cluster.keys.tasks(app), cluster.keys.begun(app))
    os.kill(master.pid, signal.SIGCONT)
    cluster.agent(offer)
    assert cluster.end_of(app)["state"] == "finished"


def test_an_executor_that_found_no_task_is_replaced_if_the_store_lost_its_work(
    cluster: Cluster, tmp_path: Path
) -> None:
    with closing(Agent(cluster.store.url, cluster.name, cluster.offer())) as before:
        before.tick()
    app = cluster.submit(("true",))
    wait_until(cluster.granted_cores, "the grant")
    files = RunDir(tmp_path / "run", "w1")
    os.close(files.claim_executor(f"{app}.0") or -1)
    files.write_exit(f"{app}.0", ExitNote(app=app, reason="exited", exit_code=0, done=True))
    with closing(Agent(cluster.store.url, cluster.name, cluster.offer())) as agent:

        def ends() -> bool:
            agent.tick()
            return bool(cluster.app(app)["state"] == "finished")

        wait_until(ends, f"the end of {app}")
    assert {state.executor for state in cluster.work.states(app)} == {f"{app}.1"}


@ONE_STORE
def test_an_executor_whose_grant_comes_back_is_told_to_leave_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover of the store, which lost the end of the executor; without a task it may leave at once."""
    told: list[Leaving | None] = []
    tell = RunDir.tell_to_leave

    def heard(files: RunDir, executor: str, leaving: Leaving | None) -> None:
        told.append(leaving)
        tell(files, executor, leaving)

    monkeypatch.setattr(RunDir, "tell_to_leave", heard)
    grants, files = cluster.keys.grants("w1"), RunDir(tmp_path / "run", "w1")
    with closing(Agent(cluster.store.url, cluster.name, cluster.offer())) as agent:
        agent.tick()
        app = cluster.submit(("sleep", "600"), tasks=1)

        def ticked(condition: Callable[[], object]) -> bool:
            agent.tick()
            return bool(condition())

        wait_until(lambda: ticked(lambda: files.is_running(f"{app}.0")), "the executor")
        os.kill(cluster.processes[0].pid, signal.SIGSTOP)
        grant = Grant.model_validate_json(cast("bytes", cluster.connection.hget(grants, f"{app}.0")))
        leaving = grant.model_copy(update={"leaving": Leaving(deadline=0, firm=False, grace_s=1, signal="")})
        for number in (1, 2):
            cluster.connection.hset(grants, f"{app}.0", leaving.model_dump_json())
            wait_until(lambda times=number: ticked(lambda: told.count(leaving.leaving) == times), "the word")  # type: ignore[misc]
            cluster.connection.hdel(grants, f"{app}.0")
            wait_until(lambda: ticked(lambda: not files.known()), "the end of the executor")
        os.kill(cluster.processes[0].pid, signal.SIGCONT)


@ONE_STORE
def test_a_removed_worker_stops_its_tasks_and_stays_out_until_restarted(
    cluster: Cluster,
) -> None:
    agent = cluster.agent()
    app = cluster.submit(SLEEP)
    wait_until(lambda: len(tasks_of(app)) == 4, "four tasks")
    cluster.client.send(RemoveWorker(worker="w1", force=True))
    wait_until(lambda: not processes_of(app), "the end of the tasks")
    beats = cluster.connection.hlen(cluster.keys.agents)
    for _ in range(2):
        ring(cluster)
    assert beats == 0
    assert cluster.client.view("workers") == []
    agent.terminate()
    agent.wait()
    cluster.agent()
    wait_until(lambda: len(tasks_of(app)) == 4, "the tasks to run again")


@ONE_STORE
def test_an_executor_whose_size_differs_from_its_grant_is_replaced(cluster: Cluster) -> None:
    """A failover lost its grant, and the log has granted its id again since."""
    cluster.agent()
    app = cluster.submit(SLEEP)
    wait_until(lambda: len(tasks_of(app)) == 4, "four tasks")
    grants, executor = cluster.keys.grants("w1"), f"{app}.0"
    stored: Any = cluster.connection.hget(grants, executor)
    cluster.connection.hset(grants, executor, json.dumps({**json.loads(stored), "cores": 2}))
    wait_until(lambda: [each["executor"] for each in cluster.app(app)["executors"]] == [f"{app}.1"], "another executor")


def test_a_restart_of_the_store_loses_neither_tasks_nor_the_worker(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path / "data") as store, Cluster(store, tmp_path) as cluster:
        cluster.agent()
        script = f"while ! test -e {tmp_path}/go; do sleep 0.05; done; echo x >> {tmp_path}/runs"
        app = cluster.submit(("/bin/sh", "-c", script), tasks=6)
        wait_until(lambda: len(tasks_of(app)) == 4, "four tasks")
        store.stop()
        (tmp_path / "go").touch()
        wait_until((tmp_path / "runs").exists, "a task to end while the store is away")
        store.start()
        assert cluster.end_of(app)["state"] == "finished"
        assert (tmp_path / "runs").read_text() == "x\n" * 6
        wait_until(lambda: not cluster.granted_cores(), "the report of the end")


@ONE_STORE
def test_several_workers_on_one_node_share_an_apps_executors(cluster: Cluster) -> None:
    cluster.agent(cluster.offer("w1", cores=4))
    cluster.agent(cluster.offer("w2", cores=4))
    app = cluster.submit(SLEEP, cores=8, tasks=8)
    wait_until(lambda: len(tasks_of(app)) == 8, "eight tasks")
    assert {executor["worker"] for executor in cluster.app(app)["executors"]} == {"w1", "w2"}


@ONE_STORE
def test_one_command_runs_several_agents_which_end_with_it(cluster: Cluster) -> None:
    offers = [cluster.offer(f"many-{n}", cores=4) for n in (1, 2)]
    script = (
        "from workers.agent import run_agent; from workers.offer import Offer; "
        f"run_agent({cluster.store.url!r}, {cluster.name!r}, "
        f"[Offer.model_validate_json(text) for text in {[offer.model_dump_json() for offer in offers]!r}])"
    )
    several = cluster.start("-c", script)
    wait_until(lambda: all(cluster.pid_of(offer.worker) for offer in offers), "both agents")
    first = cluster.pid_of("many-1")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: cluster.pid_of("many-1") not in {first, None}, "the first agent's successor")
    agents = [psutil.Process(cluster.pid_of(offer.worker)) for offer in offers]
    several.kill()
    wait_until(lambda: all(map(is_gone, agents)), "the end of both agents")


@ONE_STORE
def test_a_second_agent_of_a_worker_on_this_machine_is_refused(store: EmbeddedStore, tmp_path: Path) -> None:
    offer = make_offers(worker="w1", cores=4, memory_mb=4096, run_dir=tmp_path)[0]
    with (
        closing(Agent(store.url, "twice", offer)),
        pytest.raises(WorkerBusy, match="worker 'w1' already has an agent on this host"),
    ):
        Agent(store.url, "twice", offer)
    Agent(store.url, "twice", offer).close()


@ONE_STORE
def test_a_second_live_agent_of_a_worker_is_refused_whatever_its_folder(cluster: Cluster) -> None:
    first = cluster.agent()
    elsewhere = cluster.offer().model_copy(update={"run_dir": cluster.folder / "elsewhere"})
    second = Agent(cluster.store.url, cluster.name, elsewhere)
    with pytest.raises(WorkerBusy, match=rf"worker 'w1' already has an agent on this host \(process {first.pid}\)"):
        second.serve()
    assert cluster.pid_of("w1") == first.pid
    first.kill()
    first.wait()
    cluster.agent(elsewhere)


@ONE_STORE
def test_a_draining_agent_lets_everything_end_and_removes_its_worker(cluster: Cluster) -> None:
    agent = cluster.agent(cluster.offer().model_copy(update={"drain": True, "outlive_agent": True}))
    hold = cluster.folder / "hold"
    hold.touch()
    app = cluster.submit(("/bin/sh", "-c", f"while [ -e {hold} ]; do sleep 0.05; done"))
    wait_until(lambda: len(tasks_of(app)) == 4, "four tasks")
    agent.terminate()
    wait_until(lambda: cluster.client.view("workers")[0]["status"] == "draining", "the drain")
    assert agent.poll() is None
    hold.unlink()
    assert cluster.end_of(app)["state"] == "finished"
    assert agent.wait(HOPELESS_S) == 0
    assert cluster.client.view("workers") == []


@ONE_STORE
def test_a_draining_agent_that_is_stopped_before_it_hears_of_its_registration_leaves(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = StoreAgentDoor.register
    offer = cluster.offer().model_copy(update={"drain": True})
    with closing(Agent(cluster.store.url, cluster.name, offer)) as agent:

        def slow(*asked: Any) -> None:
            register(*asked)
            agent.stop()

        monkeypatch.setattr(StoreAgentDoor, "register", slow)
        agent.serve()
    assert cluster.client.view("workers") == []


@ONE_STORE
def test_a_draining_agent_ends_at_once_on_a_second_sigterm(cluster: Cluster) -> None:
    agent = cluster.agent(cluster.offer().model_copy(update={"drain": True}))
    app = cluster.submit(SLEEP)
    wait_until(lambda: len(tasks_of(app)) == 4, "four tasks")
    agent.terminate()
    wait_until(lambda: cluster.client.view("workers")[0]["status"] == "draining", "the drain")
    agent.terminate()
    agent.wait(HOPELESS_S)
    wait_until(lambda: not processes_of(app), "the end of the tasks")


@ONE_STORE
def test_modules_in_the_current_folder_are_not_imported_instead_of_fairlogs(cluster: Cluster) -> None:
    trap = cluster.folder / "trap"
    for package in ("workers", "scheduler"):
        (trap / package).mkdir(parents=True)
        (trap / package / "__init__.py").write_text("raise SystemExit('wrong module')")
    offers = [cluster.offer(f"safe-{n}", cores=4) for n in (1, 2)]
    script = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); os.chdir({str(trap)!r}); "
        "from workers.agent import run_agent; from workers.offer import Offer; "
        f"run_agent({cluster.store.url!r}, {cluster.name!r}, "
        f"[Offer.model_validate_json(text) for text in {[offer.model_dump_json() for offer in offers]!r}])"
    )
    cluster.start("-P", "-c", script)
    wait_until(lambda: all(cluster.pid_of(offer.worker) for offer in offers), "both agents")
    assert cluster.end_of(cluster.submit(("/bin/true",)))["state"] == "finished"


@ONE_STORE
def test_tasks_find_the_addresses_that_their_executor_is_granted(cluster: Cluster, tmp_path: Path) -> None:
    """Semantics R1, R5. Neither task ends before the other has begun, so each is in an executor of its own."""
    cluster.client.send(RegisterKind(kind="gpu"))
    cluster.agent(cluster.offer().model_copy(update={"resources": {"gpu": ("3", "1", "2")}}))
    seen = tmp_path / "seen"
    seen.mkdir()
    script = (
        f'echo "$FAIRLOG_RESOURCES $CUDA_VISIBLE_DEVICES" > {seen}/$FAIRLOG_EXECUTOR_ID; '
        f"while test $(ls {seen} | wc -l) -lt 2; do sleep 0.02; done"
    )
    app = f"app-{uuid4().hex[:8]}"
    cluster.client.send(
        SubmitApp(
            app=app,
            company="acme",
            user="ann",
            cores=2,
            tasks=2,
            command=("/bin/sh", "-c", script),
            executor_cores=1,
            executor_memory_mb=512,
            executor_resources={"gpu": 1},
        )
    )
    assert cluster.end_of(app)["state"] == "finished"
    assert {path.name: path.read_text() for path in seen.iterdir()} == {
        f"{app}.0": '{"gpu": ["3"]} 3\n',
        f"{app}.1": '{"gpu": ["1"]} 1\n',
    }


@ONE_STORE
def test_a_task_that_needs_one_gpu_gets_it_and_others_find_none(cluster: Cluster, tmp_path: Path) -> None:
    """Semantics A1, R5. What the submitter says of them does not count."""
    cluster.client.send(RegisterKind(kind="gpu"))
    cluster.agent(cluster.offer().model_copy(update={"resources": {"gpu": ("3",)}}))
    found = {}
    for needs in ("", "1"):
        app = f"app-{uuid4().hex[:8]}"
        script = f'echo "[${{CUDA_VISIBLE_DEVICES-unset}}]" > {tmp_path}/seen{needs}'
        kinds: dict[str, Any] = {"task_resources": {"gpu": needs}} if needs else {}
        secrets = {"CUDA_VISIBLE_DEVICES": "3"}
        cluster.client.submit(
            SubmitApp(
                app=app,
                company="acme",
                user="ann",
                tasks=1,
                command=("/bin/sh", "-c", script),
                env=tuple(secrets),
                **kinds,
            ),
            secrets,
        )
        assert cluster.end_of(app)["state"] == "finished"
        found[needs] = (tmp_path / f"seen{needs}").read_text()
    assert found == {"": "[]\n", "1": "[3]\n"}


@ONE_STORE
def test_a_worker_that_offers_an_unknown_kind_is_refused(cluster: Cluster) -> None:
    """Semantics R1."""
    offer = cluster.offer().model_copy(update={"resources": {"gpuu": ("0",)}})
    process = cluster.fork(partial(run_agent, cluster.store.url, cluster.name, [offer]))
    assert process.wait(HOPELESS_S) != 0
    said = (cluster.folder / "log").read_text()
    assert "no kind of resources 'gpuu' is registered; register it with `fairlog resource add gpuu`" in said


@ONE_STORE
def test_an_unwell_worker_takes_no_work_until_its_check_succeeds(cluster: Cluster) -> None:
    """Semantics W11: what runs continues, the next agent knows of it, and an operator decides before the check does."""
    sick, ran = cluster.folder / "sick", cluster.folder / "ran"
    script = f"echo $FAIRLOG_WORKER >> {ran}; test ! -e {sick} || {{ echo looking; cat {sick}; exit 3; }}"
    check = Check(("/bin/sh", "-c", script), 0.2)
    offer = cluster.offer(outlive_agent=True).model_copy(update={"health": check})

    def status(expected: str, reason: str = "") -> None:
        def is_so() -> bool:
            [found] = cluster.client.view("workers")
            return (found["status"], found["reason"], found["unwell"]) == (expected, reason, bool(reason))

        wait_until(is_so, f"a worker that is {expected}")

    def fall_sick(why: str) -> None:
        """At once: a check that finds the file without its text would fail for another reason."""
        (cluster.folder / "soon").write_text(why)
        (cluster.folder / "soon").rename(sick)

    agent = cluster.agent(offer)
    hold = cluster.folder / "hold"
    hold.touch()
    app = cluster.submit(("/bin/sh", "-c", f"while [ -e {hold} ]; do sleep 0.05; done"))
    wait_until(lambda: len(tasks_of(app)) == 4, "four tasks")
    fall_sick("GPU 3 has\tfallen off the bus\n")
    status("draining", "GPU 3 has fallen off the bus")
    later = cluster.submit(("/bin/true",))
    agent.terminate()
    agent.wait(HOPELESS_S)
    assert len(tasks_of(app)) == 4
    agent = cluster.agent(offer)
    hold.unlink()
    assert cluster.end_of(app)["state"] == "finished"
    assert cluster.app(later)["state"] == "pending"
    sick.unlink()
    status("alive")
    assert cluster.end_of(later)["state"] == "finished"
    fall_sick("again")
    status("draining", "again")
    cluster.client.send(DrainWorker(worker="w1"))
    status("draining")
    sick.unlink()
    before = len(ran.read_text().split())
    wait_until(lambda: ran.read_text().split()[before:] == ["w1"] * 3, "three checks that succeed")
    status("draining")
    cluster.client.send(UndrainWorker(worker="w1"))
    status("alive")
