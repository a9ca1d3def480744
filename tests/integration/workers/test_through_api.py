"""Workers that hold no store: agents, executors and drivers through API servers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import pytest

from fairlog.api.serve import Where, run_api
from fairlog.local.store import EmbeddedStore
from fairlog.watch.surroundings import look_around
from scheduler.model.commands import AddAccount, ConfigureCluster, IssueToken, RevokeToken, SubmitApp
from scheduler.model.events import WorkerRemoved
from scheduler.model.sender import By
from scheduler.service.keyring import Keyring
from scheduler.service.tokens import new_token
from scheduler.store.connection import clock_ms
from scheduler.store.eventlog import EventLog
from tests.integration.forked import Forked
from tests.integration.workers import test_agent
from tests.integration.workers.test_agent import (  # noqa: F401 - these hold this way as well
    Cluster,
    test_a_killed_executor_is_replaced_and_costs_its_tasks_no_retry,
    test_a_lost_worker_stops_what_it_runs_before_it_registers_again,
    test_an_app_killed_before_its_worker_sees_the_grant_holds_no_core,
    test_the_next_agent_reports_the_end_of_executors_that_outlived_theirs,
)
from tests.integration.workers.worker_rig import tasks_of
from tests.waiting import HOPELESS_S, wait_until
from workers.agent import run_agent
from workers.offer import Offer
from workers.rundir import RunDir

pytestmark = pytest.mark.parametrize("store", ["embedded"], indirect=True)
RING = Keyring.new()


class Served(Cluster):
    """A cluster with two API servers; its workers know nothing else."""

    def __init__(self, store: EmbeddedStore, folder: Path, sockets: Path) -> None:
        super().__init__(store, folder, RING)
        self.sockets = [sockets / "a", sockets / "b"]
        self.apis = [self.api(path) for path in self.sockets]

    def api(self, path: Path) -> Forked:
        return self.fork(partial(run_api, self.store.url, self.name, Where(path=path), keyring=RING))

    def agent(self, offer: Offer | None = None, *, token: str = "") -> Forked:
        offer = offer or self.offer()
        address = ",".join(f"http+unix:{path}" for path in self.sockets)
        process = self.fork(partial(run_agent, address, "", [offer], token=token))
        wait_until(lambda: self.pid_of(offer.worker) == process.pid, f"the agent of {offer.worker}")
        return process


@pytest.fixture
def cluster(store: EmbeddedStore, tmp_path: Path) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="fl-") as sockets, Served(store, tmp_path, Path(sockets)) as running:
        yield running


def test_an_app_goes_from_submit_to_finished(cluster: Served) -> None:
    cluster.agent()
    app = cluster.submit(("/bin/sh", "-c", "echo $FAIRLOG_TASK_INDEX"), tasks=20)
    assert cluster.end_of(app)["state"] == "finished"
    assert [cluster.work.output(app, task) for task in range(20)] == [b"%d\n" % task for task in range(20)]


def test_a_worker_has_the_labels_with_which_its_agent_registered_last(cluster: Served) -> None:
    def is_labelled(labels: dict[str, str]) -> bool:
        return [worker["labels"] for worker in cluster.client.view("workers")] == [labels]

    for given in ({"zone": "north", "disk": "ssd"}, {"zone": "south"}):
        agent = cluster.agent(cluster.offer().model_copy(update={"labels": given}))
        wait_until(partial(is_labelled, given), "its labels")
        agent.terminate()
        agent.wait(HOPELESS_S)


def test_an_unwell_worker_takes_no_work_through_an_api_server(cluster: Served) -> None:
    test_agent.test_an_unwell_worker_takes_no_work_until_its_check_succeeds(cluster)


def test_the_death_of_api_servers_costs_no_task(cluster: Served, tmp_path: Path) -> None:
    """One of two dies, then the other, so that completions wait until one comes back."""
    cluster.agent()
    script = f"until [ -e {tmp_path}/go$((FAIRLOG_TASK_INDEX / 4)) ]; do sleep 0.02; done"
    app = cluster.submit(("/bin/sh", "-c", script), tasks=12)

    def end_four(number: int) -> None:
        (tmp_path / f"go{number}").touch()
        wait_until(lambda: not tasks_of(app) & set(range(4 * number, 4 * number + 4)), "the end of four tasks")

    wait_until(lambda: len(tasks_of(app)) == 4, "four tasks")
    kill(cluster.apis[0])
    end_four(0)
    wait_until(lambda: tasks_of(app) == {4, 5, 6, 7}, "four more, from the other server")
    kill(cluster.apis[1])
    end_four(1)
    cluster.api(cluster.sockets[0])
    wait_until(lambda: tasks_of(app) == {8, 9, 10, 11}, "the last four, from the server that came back")
    end_four(2)
    assert cluster.end_of(app)["state"] == "finished"
    assert [state.attempts for state in cluster.work.states(app)] == [1] * 12
    assert {state.executor for state in cluster.work.states(app)} == {f"{app}.0"}


def test_no_worker_is_lost_while_no_api_server_answers_and_status_says_so(cluster: Served, tmp_path: Path) -> None:
    """Both servers are away for longer than the workers' timeout."""
    timeout_s = 4
    cluster.client.send(ConfigureCluster(settings={"worker_timeout_s": timeout_s}))
    cluster.agent()
    app = cluster.submit(("/bin/sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.02; done"), tasks=1)
    wait_until(lambda: tasks_of(app) == {0}, "the task")
    for server in cluster.apis:
        kill(server)
    gone_ms = clock_ms(cluster.connection.time())
    wait_until(lambda: clock_ms(cluster.connection.time()) > gone_ms + 1000 * (timeout_s + 8), "a long silence")
    around = look_around(cluster.connection, cluster.keys)
    assert around.unserved is not None
    assert around.unserved.workers == 1
    assert [each["status"] for each in cluster.client.view("workers")] == ["alive"]
    cluster.api(cluster.sockets[0])
    wait_until(lambda: look_around(cluster.connection, cluster.keys).unserved is None, "an API server")
    (tmp_path / "go").touch()
    assert cluster.end_of(app)["state"] == "finished"
    assert [state.attempts for state in cluster.work.states(app)] == [1]
    facts = EventLog(cluster.connection, cluster.keys).facts()
    assert not any(isinstance(fact.event, WorkerRemoved) for fact in facts)


def kill(process: Forked) -> None:
    process.kill()
    process.wait(HOPELESS_S)


def test_a_driver_finds_its_secrets_which_no_file_of_the_store_ever_has(cluster: Served, store: EmbeddedStore) -> None:
    """Neither its append-only file nor a snapshot, such as a backup is."""
    cluster.agent()
    app, value = f"app-{uuid4().hex[:8]}", uuid4().hex
    command = ("/bin/sh", "-c", "printf %s $PASSWORD | sha256sum")

    def files_with(text: str) -> list[str]:
        files = [path for path in store.data_dir.rglob("*") if path.is_file()]
        return [path.name for path in files if text.encode() in path.read_bytes()]

    about = {"company": "acme", "user": "ann", "tasks": 0, "cores": 0, "driver": True, "env": ("PASSWORD",)}
    cluster.client.submit(SubmitApp(app=app, command=command, **about), {"PASSWORD": value})  # type: ignore[arg-type]
    assert cluster.end_of(app)["state"] == "finished"
    assert cluster.work.output(app, None).split()[0].decode() == sha256(value.encode()).hexdigest()
    cluster.connection.config_set("rdbcompression", "no")
    cluster.connection.save()
    assert len(files_with(app)) > 1, "the append-only file and the snapshot have what is not secret"
    assert files_with(value) == []


def test_a_worker_lives_by_its_token_until_that_is_revoked(cluster: Served, tmp_path: Path) -> None:
    """It exchanges an invitation, renews what expires, and says why it ends."""
    invitation, anns = new_token(), new_token()
    for command in (
        AddAccount(account="op/root"),
        AddAccount(account="acme/ann"),
        AddAccount(account="worker/w1", host="here", cores=8, memory_mb=8192),
        IssueToken(token=invitation.id, account="worker/w1", hash=invitation.hash, once=True),
        IssueToken(token=anns.id, account="acme/ann", hash=anns.hash),
    ):
        cluster.client.send(command)
    agent = cluster.agent(token=invitation.text)
    kept = tmp_path / "run" / "w1" / "token.json"
    assert kept.stat().st_mode & 0o077 == 0
    first = json.loads(kept.read_text())["token"]
    assert first != invitation.text
    app = SubmitApp(app="mine", company="acme", user="ann", cores=4, tasks=1, command=("env",))
    cluster.client.send(app, by=By("acme/ann", anns.id, "user"))
    assert cluster.end_of("mine")["state"] == "finished"
    assert b"fl_" not in cluster.work.output("mine", 0)
    [mine] = [each["token"] for each in cluster.client.view("tokens", account="worker/w1")]
    cluster.client.send(RevokeToken(token=mine))
    assert agent.wait(HOPELESS_S) == 1
    assert (
        "worker 'w1' may not act: the token is unknown or was revoked; an operator invites it with"
        in (cluster.folder / "log").read_text()
    )


def test_a_token_is_renewed_when_half_of_its_time_is_over(cluster: Served, tmp_path: Path) -> None:
    given = new_token()
    for command in (
        AddAccount(account="op/root"),
        AddAccount(account="worker/w1"),
        IssueToken(token=given.id, account="worker/w1", hash=given.hash, lifetime_s=30),
    ):
        cluster.client.send(command)
    cluster.agent(token=given.text)
    app = a_task_that_waits(cluster, tmp_path)
    kept = tmp_path / "run" / "w1" / "token.json"
    wait_until(lambda: len(cluster.client.view("tokens", account="worker/w1")) == 2, "the new token, beside the old")
    [old, new] = sorted(cluster.client.view("tokens", account="worker/w1"), key=lambda each: int(each["expires"]))
    assert (old["token"], json.loads(kept.read_text())["token"].split("_")[1]) == (given.id, new["token"])

    def beaten() -> float:
        return float(cluster.connection.zscore(cluster.keys.heartbeats, "w1") or 0)

    wait_until(lambda: beaten() > old["expires"] + 500, "a heartbeat after the end of the old token")
    (tmp_path / "go").touch()
    has_lost_nothing(cluster, app)


def a_task_that_waits(cluster: Served, folder: Path) -> str:
    """An app whose running task ends when there is a file `go`; nobody else submits any."""
    anns = new_token()
    cluster.client.send(AddAccount(account="acme/ann"))
    cluster.client.send(IssueToken(token=anns.id, account="acme/ann", hash=anns.hash))
    wait = ("/bin/sh", "-c", f"until [ -e {folder}/go ]; do sleep 0.02; done")
    app = SubmitApp(app="waits", company="acme", user="ann", cores=4, tasks=1, command=wait)
    cluster.client.send(app, by=By("acme/ann", anns.id, "user"))
    wait_until(lambda: tasks_of("waits") == {0}, "the task")
    return "waits"


def has_lost_nothing(cluster: Served, app: str) -> None:
    assert cluster.end_of(app)["state"] == "finished"
    [state] = cluster.work.states(app)
    assert (state.attempts, state.executor) == (1, f"{app}.0")


def test_executors_outlive_the_token_of_their_worker_if_it_has_another(cluster: Served, tmp_path: Path) -> None:
    """The worker is started again with the new one, which the executors that run are handed."""
    first, second = new_token(), new_token()
    for command in (
        AddAccount(account="op/root"),
        AddAccount(account="worker/w1"),
        IssueToken(token=first.id, account="worker/w1", hash=first.hash),
        IssueToken(token=second.id, account="worker/w1", hash=second.hash),
    ):
        cluster.client.send(command)
    offer = cluster.offer(outlive_agent=True)
    agent = cluster.agent(offer, token=first.text)
    app = a_task_that_waits(cluster, tmp_path)
    agent.terminate()
    agent.wait(HOPELESS_S)
    files = RunDir(offer.run_dir, "w1")
    cluster.agent(offer, token=second.text)
    wait_until(lambda: files.handed_token(f"{app}.0"), "a new token for the executor")
    cluster.client.send(RevokeToken(token=first.id))
    (tmp_path / "go").touch()
    has_lost_nothing(cluster, app)
