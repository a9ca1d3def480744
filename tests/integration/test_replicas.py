"""A store with replicas and sentinels: nobody is told of a commit before enough replicas have it."""

from __future__ import annotations

import pytest
from redis import Redis

from recovery.rebuild import rebuild
from scheduler.client import Client
from scheduler.commands import RegisterCompany
from scheduler.errors import NotReplicated, UnsuitableStore
from scheduler.eventlog import EventLog, connect
from scheduler.keys import Keys
from scheduler.service import Scheduler
from tests.integration.servers import Servers, replication, until

ACME = RegisterCompany(company="acme")


@pytest.fixture
def primary(servers: Servers) -> int:
    """The port of a store that one replica follows."""
    port = servers.start()
    servers.replica_of(port)
    return port


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
        offset = replication(connection)["slave0"]["offset"]
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


def test_the_sentinels_say_which_server_is_the_store_also_after_it_has_failed_over(
    servers: Servers, primary: int
) -> None:
    sentinel = servers.watch(primary)
    with Redis(port=sentinel) as asked:
        store = connect(f"redis+sentinel://127.0.0.1:{sentinel}/fairlog")
        first = replication(store)["master_replid"]
        store.set("before", 1)
        until(lambda: int(store.wait(1, 100)) == 1)
        until(lambda: bool(asked.execute_command("SENTINEL", "FAILOVER", "fairlog")))
    until(lambda: bool(store.set("after", 1)) and replication(store)["master_replid"] != first)
    assert store.get("before") == b"1"


@pytest.mark.parametrize("url", ["redis+sentinel://", "redis+sentinel://h:1", "redis+sentinel://h/s", "mysql://h/s"])
def test_a_url_that_names_no_store_is_refused_saying_what_would(url: str) -> None:
    with pytest.raises(UnsuitableStore, match=r"redis\+sentinel://"):
        connect(url)
