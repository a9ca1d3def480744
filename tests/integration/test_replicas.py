"""A store with replicas and sentinels: nobody is told of a commit before enough replicas have it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import RedisError

from fairlog.store import bundled_server
from recovery.rebuild import rebuild
from scheduler.client import Client
from scheduler.commands import RegisterCompany
from scheduler.errors import NotReplicated, UnsuitableStore
from scheduler.eventlog import EventLog, connect
from scheduler.keys import Keys
from scheduler.primacy import Primacy, _Server
from scheduler.service import Scheduler
from tests.conftest import REDIS_SERVER

ACME = RegisterCompany(company="acme")


class Servers:
    """Store servers on ports of this machine, until the test is over."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.stack = ExitStack()

    def start(self, *settings: str) -> int:
        """Start a durable server with these settings; its port, once it answers."""
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        return self._run(*durable, "--repl-diskless-sync-delay", "0", *settings)

    def watch(self, primary: int) -> int:
        """Start a sentinel of the service `fairlog` at the port `primary`; its port."""
        file = self.folder / f"sentinel-{uuid4().hex}.conf"
        file.write_text(
            f"sentinel monitor fairlog 127.0.0.1 {primary} 1\nsentinel down-after-milliseconds fairlog 1000\n"
        )
        return self._run(str(file), "--sentinel")

    def _run(self, *arguments: str) -> int:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        folder = self.folder / str(port)
        folder.mkdir()
        first = [arguments[0]] if arguments[0].endswith(".conf") else []
        process = subprocess.Popen(
            [self.program, *first, "--port", str(port), "--dir", str(folder), *arguments[len(first) :]],
            stdout=subprocess.DEVNULL,
        )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        with Redis(port=port) as connection:
            until(lambda: bool(connection.ping()))
        return port


def until(holds: Callable[[], bool]) -> None:
    """Return once it holds; a store that does not answer yet does not."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with suppress(RedisError):
            if holds():
                return
        time.sleep(0.02)
    raise AssertionError("it never held")


@pytest.fixture(params=["embedded", "redis-server"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    if request.param == "redis-server" and REDIS_SERVER is None:
        pytest.skip("no redis-server on the PATH")
    made = Servers(bundled_server() if request.param == "embedded" else Path(str(REDIS_SERVER)), tmp_path)
    with made.stack:
        yield made


@pytest.fixture
def primary(servers: Servers) -> int:
    """The port of a store that one replica follows."""
    port = servers.start()
    replica = servers.start("--replicaof", "127.0.0.1", str(port))
    with Redis(port=replica) as connection:
        until(lambda: _info(connection)["master_link_status"] == "up")
    return port


def _info(connection: Redis) -> Any:
    return connection.info("replication")


def _master(url: str, *, replicas: int) -> Scheduler:
    log = EventLog(connect(url), Keys("replicated"), replicas=replicas)
    return Scheduler(log, "first", lambda: rebuild(log))


def test_a_command_is_acknowledged_once_the_replica_has_it(primary: int) -> None:
    url = f"redis://127.0.0.1:{primary}"
    master = _master(url, replicas=1)
    master.take_over()
    client = Client(url, "replicated")
    client.notify(ACME)
    assert master.turn() == 1
    with Redis(port=primary) as connection:
        offset = _info(connection)["slave0"]["offset"]
        assert offset > 0
    assert "acme" in master.state.companies


def test_nothing_is_acknowledged_while_replicas_are_missing(primary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.eventlog.REPLICATED_WITHIN_S", 1)
    url = f"redis://127.0.0.1:{primary}"
    master = _master(url, replicas=1)
    master.take_over()
    master.log.replicas = 2
    client = Client(url, "replicated")
    for _ in range(2):
        client._put(("one", "command", ACME.model_dump_json(), "one"))
        master.turn()
        assert not client.store.exists(client.keys.reply("one"))
    master.log.replicas = 1
    client._put(("one", "command", ACME.model_dump_json(), "one"))
    master.turn()
    assert client.store.llen(client.keys.reply("one")) == 1
    assert [record.type for record in master.log.read()].count("CompanyRegistered") == 1


def test_a_commit_without_an_answer_counts_once_the_replicas_have_it(
    primary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.eventlog.REPLICATED_WITHIN_S", 1)
    master = _master(f"redis://127.0.0.1:{primary}", replicas=1)
    master.take_over()
    assert master.log.ends_with(master.position)
    master.log.replicas = 2
    with pytest.raises(NotReplicated, match="on 1 replicas of the store instead of 2"):
        master.log.ends_with(master.position)


def test_a_primary_that_was_replaced_without_knowing_is_not_believed_though_a_replica_still_follows_it(
    servers: Servers, primary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.service.BACK_OFF_S", (0.01,))
    follow = ("--replicaof", "127.0.0.1", str(primary))
    with Redis(port=servers.start(*follow)) as successor:
        until(lambda: _info(successor)["master_link_status"] == "up")
        master = _master(f"redis://127.0.0.1:{primary}", replicas=1)
        master.take_over()
        client = Client(f"redis://127.0.0.1:{primary}", "replicated")
        successor.replicaof("NO", "ONE")
        client._put(("one", "command", ACME.model_dump_json(), "one"))
        with pytest.raises(StoreConnectionError, match=r"not the store's primary any more: 127\.0\.0\.1:"):
            master.turn()
        client._put(("one", "command", ACME.model_dump_json(), "one"))
        master.turn()
        assert not client.store.exists(client.keys.reply("one"))
        successor.replicaof("127.0.0.1", str(primary))
        until(lambda: _info(successor)["master_link_status"] == "up")
        client._put(("one", "command", ACME.model_dump_json(), "one"))
        assert master.turn() == 1
        assert client.store.llen(client.keys.reply("one")) == 1


def test_the_one_that_replaced_a_primary_is_believed_though_that_one_does_not_know(
    servers: Servers, primary: int
) -> None:
    follow = ("--replicaof", "127.0.0.1", str(primary))
    ports = [servers.start(*follow), servers.start(*follow)]
    with Redis(port=ports[0]) as successor, Redis(port=ports[1]) as other:
        until(lambda: _info(successor)["master_link_status"] == _info(other)["master_link_status"] == "up")
        successor.replicaof("NO", "ONE")
        other.replicaof("127.0.0.1", str(ports[0]))
        until(lambda: _info(other)["master_link_status"] == "up")
        master = _master(f"redis://127.0.0.1:{ports[0]}", replicas=1)
        monitored = Primacy(master.log.store)
        monitored._followers = {_Server("127.0.0.1", primary): None}
        master.log._primacy = monitored
        master.take_over()
    assert master.state.master == "first"


def test_a_replica_that_is_gone_holds_up_nobody_while_enough_others_are_there(servers: Servers, primary: int) -> None:
    gone = servers.start("--replicaof", "127.0.0.1", str(primary))
    with Redis(port=primary) as connection, Redis(port=gone) as replica:
        until(lambda: _info(replica)["master_link_status"] == "up")
        master = _master(f"redis://127.0.0.1:{primary}", replicas=1)
        master.take_over()
        with suppress(RedisError):
            replica.shutdown(nosave=True)
        until(lambda: _info(connection)["connected_slaves"] == 1)
    Client(f"redis://127.0.0.1:{primary}", "replicated").notify(ACME)
    assert master.turn() == 1


def test_the_sentinels_say_which_server_is_the_store_also_after_it_has_failed_over(
    servers: Servers, primary: int
) -> None:
    sentinel = servers.watch(primary)
    with Redis(port=sentinel) as asked:
        until(lambda: int(asked.sentinel_master("fairlog")["num-slaves"]) == 1)
        store = connect(f"redis+sentinel://127.0.0.1:{sentinel}/fairlog")
        first = _info(store)["master_replid"]
        store.set("before", 1)
        until(lambda: int(store.wait(1, 100)) == 1)
        until(lambda: bool(asked.execute_command("SENTINEL", "FAILOVER", "fairlog")))
    until(lambda: bool(store.set("after", 1)) and _info(store)["master_replid"] != first)
    assert store.get("before") == b"1"


@pytest.mark.parametrize("url", ["redis+sentinel://", "redis+sentinel://h:1", "redis+sentinel://h/s", "mysql://h/s"])
def test_a_url_that_names_no_store_is_refused_saying_what_would(url: str) -> None:
    with pytest.raises(UnsuitableStore, match=r"redis\+sentinel://"):
        connect(url)
