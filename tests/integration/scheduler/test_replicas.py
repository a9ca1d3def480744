"""A store with replicas and sentinels: nobody is told of a commit before enough replicas have it."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import TimeoutError as StoreTimeoutError

from fairlog.client import StoreClient
from fairlog.watch.conditions import found
from fairlog.watch.surroundings import look_around
from recovery.failover.lease import Member
from recovery.failover.master import Master
from recovery.replay.rebuild import rebuild
from scheduler.model.commands import RegisterCompany, RegisterWorker, SubmitApp, write_command
from scheduler.model.errors import NotReplicated, UnsuitableStore
from scheduler.model.events import MasterElected
from scheduler.service.scheduler import Scheduler
from scheduler.store import connection
from scheduler.store.connection import connect
from scheduler.store.doorbell import RING_LUA
from scheduler.store.eventlog import EventLog
from scheduler.store.inflight import InFlight
from scheduler.store.keys import Keys, bell_id, queue_key
from scheduler.store.replication import Replication, _StoreServer
from tests.integration.cli_rig import Service, Shell
from tests.integration.servers import Servers, a_standby_waits, replication, until
from tests.waiting import HOPELESS_S, wait_until
from workers.agent import Agent
from workers.offer import make_offers

pytestmark = pytest.mark.usefixtures("nothing_left_open")
ACME = RegisterCompany(company="acme")


@pytest.fixture
def primary(servers: Servers) -> int:
    """The port of a store that one replica follows."""
    port = servers.start()
    servers.replica_of(port)
    return port


PLAIN = ("--launcher", "plain", "--unsafe-plain")
"""Apps run in the folder that holds the home of the worker's user, which no cell shows."""


def _master(servers: Servers, port: int, *, replicas: int) -> Scheduler:
    log = EventLog(servers.connect(f"redis://127.0.0.1:{port}"), Keys("replicated"), replicas=replicas)
    return Scheduler(log, "first", lambda: rebuild(log))


@contextmanager
def _missing(log: EventLog) -> Iterator[None]:
    """A replica more is asked for than there is; one second tells that it does not come."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scheduler.store.eventlog.REPLICATED_WITHIN_S", 1)
        patch.setattr(log, "replicas", log.replicas + 1)
        yield


def _client(servers: Servers, port: int) -> StoreClient:
    return StoreClient(servers.connect(f"redis://127.0.0.1:{port}"), "replicated")


def test_a_command_is_acknowledged_once_the_replica_has_it(servers: Servers, primary: int) -> None:
    master = _master(servers, primary, replicas=1)
    master.take_over()
    client = _client(servers, primary)
    client.notify(ACME)
    assert master.turn() == 1
    with Redis(port=primary) as connection:
        offset = replication(connection)["slave0"]["offset"]
        assert offset > 0
    assert "acme" in master.state.companies


def test_nothing_is_acknowledged_while_replicas_are_missing(servers: Servers, primary: int) -> None:
    master = _master(servers, primary, replicas=1)
    master.take_over()
    client = _client(servers, primary)
    with _missing(master.log):
        for _ in range(2):
            client._put(("one", "command", write_command(ACME), "one"))
            with suppress(StoreConnectionError):
                master.turn()
            assert not client.store.exists(client.keys.reply("one"))
    client._put(("one", "command", write_command(ACME), "one"))
    master.turn()
    assert client.store.llen(client.keys.reply("one")) == 1
    assert [fact.type for fact in master.log.facts()].count("CompanyRegistered") == 1


def test_masters_do_not_depose_each_other_while_they_wait_for_a_replica(
    servers: Servers, primary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait lasts longer than a lease; it is over once the replica is back, and nobody was elected meanwhile."""
    monkeypatch.setattr("scheduler.store.eventlog.REPLICATED_WITHIN_S", int(HOPELESS_S))
    lease_s, waited = 3.0, threading.Event()
    with ExitStack() as stack:
        masters = [_in_a_thread(servers, primary, f"m{number}", lease_s, stack) for number in range(2)]
        client = _client(servers, primary)
        client.send(ACME)
        began: list[float] = []
        (serving,) = [each for each in masters if each.scheduler.position.seq]
        renew = serving.log.meanwhile

        def meanwhile() -> None:
            renew()
            began.append(time.monotonic())
            if began[-1] - began[0] > 2 * lease_s:
                waited.set()

        serving.log.meanwhile = meanwhile
        serving.log.replicas = 2
        client.notify(RegisterCompany(company="meanwhile"))
        wait_until(waited.is_set, "the master to wait longer than a lease")
        servers.replica_of(primary)
        until(lambda: "meanwhile" in rebuild(EventLog(client.store, client.keys))[0].companies)
        elected = [fact.event.master for fact in serving.log.facts() if isinstance(fact.event, MasterElected)]
        assert elected == [serving.member.id]


def _in_a_thread(servers: Servers, port: int, name: str, lease_s: float, stack: ExitStack) -> Master:
    store = servers.connect(f"redis://127.0.0.1:{port}")
    master = Master(EventLog(store, Keys("replicated"), replicas=1), Member(name, 1, "here"), lease_s=lease_s)
    thread = threading.Thread(target=master.run)
    thread.start()
    stack.callback(thread.join, HOPELESS_S)
    stack.callback(_stop, master, servers.connect(f"redis://127.0.0.1:{port}"))
    return master


def _stop(master: Master, store: Redis) -> None:
    master.worker.stop()
    queue = master.log.keys.master_queue
    store.eval(RING_LUA, 1, queue_key(queue), bell_id(queue))


def test_no_executor_starts_before_the_replicas_have_its_grant(servers: Servers, primary: int, tmp_path: Path) -> None:
    master = _master(servers, primary, replicas=1)
    master.take_over()
    client = _client(servers, primary)
    offer = make_offers(worker="w1", cores=4, memory_mb=4096, run_dir=tmp_path / "run", outlive_agent=False)[0]
    client.notify(RegisterWorker(worker="w1", node=offer.node, host=offer.host, cores=4, memory_mb=4096), ACME)
    master.turn()
    with closing(Agent(f"redis://127.0.0.1:{primary}", "replicated", offer)) as agent:
        agent._registered = True
        with _missing(master.log):
            client.notify(SubmitApp(app="a", company="acme", user="ann", cores=4, command=("sleep", "600")))
            master.turn()
            for _ in range(2):
                agent.tick()
            assert client.store.hlen(client.keys.grants("w1")) == 1
            assert not agent._running
        master.turn()
        agent.tick()
        assert list(agent._running) == ["a.0"]


def test_a_commit_without_an_answer_counts_once_the_replicas_have_it(servers: Servers, primary: int) -> None:
    master = _master(servers, primary, replicas=1)
    master.take_over()
    assert master.log.ends_with(master.position)

    def refusal() -> str:
        with pytest.raises(NotReplicated) as refused:
            master.log.ends_with(master.position)
        return str(refused.value)

    with _missing(master.log):
        wait_until(lambda: "on 1 replica of the store, but 2 are required" in refusal(), "the replica to have it")


def test_an_unaware_replaced_primary_is_refused_though_a_replica_follows_it(
    servers: Servers, primary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.service.commit.BACK_OFF_S", (0.01,))
    with Redis(port=servers.replica_of(primary)) as successor:
        master = _master(servers, primary, replicas=1)
        master.take_over()
        client = _client(servers, primary)
        successor.replicaof("NO", "ONE")
        client._put(("one", "command", write_command(ACME), "one"))
        with pytest.raises(StoreConnectionError, match=r"no longer the store's primary: 127\.0\.0\.1:"):
            master.turn()
        client._put(("one", "command", write_command(ACME), "one"))
        with suppress(StoreConnectionError):
            master.turn()
        assert not client.store.exists(client.keys.reply("one"))
        successor.replicaof("127.0.0.1", str(primary))
        until(lambda: replication(successor)["master_link_status"] == "up")
        client._put(("one", "command", write_command(ACME), "one"))
        assert master.turn() == 1
        assert client.store.llen(client.keys.reply("one")) == 1


def test_a_new_primary_is_trusted_though_the_old_one_is_unaware(servers: Servers, primary: int) -> None:
    ports = [servers.replica_of(primary), servers.replica_of(primary)]
    with Redis(port=ports[0]) as successor, Redis(port=ports[1]) as other:
        successor.replicaof("NO", "ONE")
        other.replicaof("127.0.0.1", str(ports[0]))
        until(lambda: replication(other)["master_link_status"] == "up")
        master = _master(servers, ports[0], replicas=1)
        monitored = Replication(master.log.store)
        others = (
            _StoreServer("127.0.0.1", primary),
            _StoreServer("127.0.0.1", ports[0]),
            _StoreServer("localhost", ports[1]),
        )
        monitored._followers, monitored._reign = dict.fromkeys(others, 0.0), "the one before"
        master.log._replication = monitored
        master.take_over()
        assert monitored._followers.keys() == {others[0], _StoreServer("127.0.0.1", ports[1])}
        assert not monitored._awaited


def test_a_former_standby_asks_a_server_that_became_primary_again(servers: Servers, primary: int) -> None:
    port = servers.replica_of(primary)
    with Redis(port=primary) as first, Redis(port=port) as second, Redis(port=servers.replica_of(primary)) as third:
        monitored = Replication(first)
        until(lambda: replication(first)["connected_slaves"] == 3)
        assert _confirmed(monitored, first)
        second.replicaof("NO", "ONE")
        for follower in (first, third):
            follower.replicaof("127.0.0.1", str(port))
        until(lambda: [replication(one).get("master_link_status") for one in (first, third)] == ["up"] * 2)
        first.replicaof("NO", "ONE")
        until(lambda: replication(second)["connected_slaves"] == 1)
        with pytest.raises(StoreConnectionError, match=f"{primary} is primary now"):
            _confirmed(monitored, second)


def test_a_restarted_former_primary_is_refused(servers: Servers, primary: int) -> None:
    with Redis(port=primary) as first, Redis(port=servers.replica_of(primary)) as second:
        monitored = Replication(first)
        until(lambda: replication(first)["connected_slaves"] == 2)
        assert _confirmed(monitored, first)
        second.replicaof("NO", "ONE")
        servers.kill(primary)
        servers.launch(primary)
        until(first.ping)
        assert _confirmed(monitored, second)
        with pytest.raises(StoreConnectionError, match="is primary now"):
            _confirmed(monitored, first)


def test_a_replica_that_hung_and_was_promoted_since_is_asked_again(servers: Servers, primary: int) -> None:
    port = servers.replica_of(primary)
    with Redis(port=primary) as first, Redis(port=port) as second:
        monitored = Replication(first)
        until(lambda: replication(first)["connected_slaves"] == 2)
        assert _confirmed(monitored, first)
        servers.signal(port, signal.SIGSTOP)
        first.client_kill_filter(_type="replica")
        assert _confirmed(monitored, first)
        servers.signal(port, signal.SIGCONT)
        second.replicaof("NO", "ONE")
        monitored._looked_s += HOPELESS_S
        assert _confirmed(monitored, first)
        monitored._looked_s -= HOPELESS_S + 1.1
        with pytest.raises(StoreConnectionError, match=f"{port} is primary now"):
            _confirmed(monitored, first)


def test_servers_that_do_not_answer_are_asked_at_once_and_a_lease_is_kept_meanwhile(
    primary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other would take longer than a lease, so that the next master would be elected meanwhile."""
    monkeypatch.setattr("scheduler.store.replication._ASK_S", HOPELESS_S)
    kept = threading.Event()
    with ExitStack() as stack, Redis(port=primary) as first, ThreadPoolExecutor() as pool:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        monitored = Replication(first)
        monitored._followers = {_StoreServer("127.0.0.1", each.getsockname()[1]): 0.0 for each in silent}
        monitored.meanwhile = kept.set
        asking = pool.submit(_confirmed, monitored, first)
        asked = []
        for each in silent:
            each.settimeout(HOPELESS_S)
            asked.append(stack.enter_context(each.accept()[0]))
        assert kept.wait(HOPELESS_S)
        assert not asking.done()
        for each in asked:
            each.close()
        assert asking.result(timeout=HOPELESS_S)


def _confirmed(monitored: Replication, server: Redis) -> bool:
    """What it says of `server`, asked over a connection on which something was answered."""
    sent = InFlight(server, [("PING",)])
    sent.read()
    try:
        return monitored.confirm(sent)
    finally:
        sent.abandon()


def test_a_restarted_primary_acknowledges_nothing_until_all_live_replicas_follow(
    servers: Servers, primary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentinels would take the one that is not for the one that is furthest."""
    late = servers.replica_of(primary)
    with Redis(port=primary) as connection, Redis(port=late) as replica:
        master = _master(servers, primary, replicas=1)
        master.take_over()
        until(lambda: [replication(connection).get(f"slave{n}", {}).get("state") for n in (0, 1)] == ["online"] * 2)
        assert master.log.ends_with(master.position)
        replica.config_set("masteruser", "nobody")
        replica.config_set("masterauth", "wrong")
        servers.kill(primary)
        servers.launch(primary)
        until(lambda: replication(connection)["connected_slaves"] == 1)
        with monkeypatch.context() as patch:
            patch.setattr("scheduler.store.eventlog.REPLICATED_WITHIN_S", 1)
            with pytest.raises(NotReplicated):
                master.log.ends_with(master.position)
        replica.config_set("masteruser", "")
        replica.config_set("masterauth", "")
        until(lambda: replication(connection)["connected_slaves"] == 2)
        until(lambda: master.log.ends_with(master.position))


def _ends(master: Scheduler) -> bool:
    """Whether the log's end is on enough replicas."""
    with suppress(NotReplicated):
        return master.log.ends_with(master.position)
    return False


def test_an_election_waits_for_a_missing_replica_and_is_made_once(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.store.eventlog.REPLICATED_WITHIN_S", 1)
    primary = servers.start()
    replica = servers.replica_of(primary)
    servers.kill(replica)
    master = _master(servers, primary, replicas=1)
    waited: list[None] = []

    def meanwhile() -> None:
        waited.append(None)
        if len(waited) == 3:
            servers.launch(replica)

    master.log.meanwhile = meanwhile
    master.take_over()
    assert len(waited) >= 3
    assert [fact.type for fact in master.log.facts()].count("MasterElected") == 1
    assert master.commits.confirmed == master.position


def test_a_master_that_waits_for_replicas_can_be_stopped(servers: Servers) -> None:
    primary = servers.start()
    replica = servers.replica_of(primary)
    servers.kill(replica)
    scheduler = _master(servers, primary, replicas=1)
    master = Master(scheduler.log, Member("m", 1, "here"))
    before = len(list(scheduler.log.facts()))

    def stopped() -> None:
        master.worker._stop_requested = True
        master._while_replicas_lag()

    master.log.meanwhile = stopped
    master.run()
    assert [fact.type for fact in scheduler.log.facts()][before:].count("MasterElected") == 1


def test_a_missing_replica_is_named_until_it_is_started_again(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that no master is active: nobody can start one that would do more."""
    monkeypatch.setattr("scheduler.store.eventlog.REPLICATED_WITHIN_S", 1)
    primary = servers.start()
    replica = servers.replica_of(primary)
    master = _master(servers, primary, replicas=1)
    master.take_over()

    def told() -> list[str]:
        around = look_around(master.store, master.keys, known=(None, ()), standbys=0)
        return [each.condition for each in found(master.state, around)]

    assert told() == ["no_master"]
    servers.kill(replica)
    with Redis(port=primary) as connection:
        until(lambda: replication(connection)["connected_slaves"] == 0)
        with pytest.raises(NotReplicated):
            master.log.ends_with(master.position)
        assert told() == ["replicas"]
        assert [int(part) for part in connection.get(master.keys.unreplicated).split()] == [0, 1]
        servers.launch(replica)
        until(lambda: replication(connection)["connected_slaves"] == 1)
        until(lambda: replication(connection)["slave0"]["state"] == "online")
    until(lambda: _ends(master))
    assert told() == ["no_master"]


def test_a_lost_replica_delays_nothing_while_enough_others_follow(servers: Servers, primary: int) -> None:
    gone = servers.replica_of(primary)
    master = _master(servers, primary, replicas=1)
    master.take_over()
    with Redis(port=primary) as connection:
        until(lambda: replication(connection)["slave1"]["state"] == "online")
        servers.kill(gone)
        until(lambda: replication(connection)["connected_slaves"] == 1)
    _client(servers, primary).notify(ACME)
    assert master.turn() == 1


def test_sentinels_name_the_primary_before_and_after_a_failover(servers: Servers, primary: int) -> None:
    sentinel = servers.watch(primary)
    with Redis(port=sentinel) as asked:
        store = servers.connect(f"redis+sentinel://127.0.0.1:{sentinel}/fairlog")
        first = replication(store)["master_replid"]
        store.set("before", 1)
        until(lambda: int(store.wait(1, 100)) == 1)
        until(lambda: bool(asked.execute_command("SENTINEL", "FAILOVER", "fairlog")))
    until(lambda: bool(store.set("after", 1)) and replication(store)["master_replid"] != first)
    assert store.get("before") == b"1"


def test_a_primary_that_hangs_is_left_once_another_one_is_named(
    servers: Servers, primary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by who only listens; its machine keeps the connections as long as it hangs."""
    monkeypatch.setattr("scheduler.store.connection.ANSWER_S", 100_000)
    sentinel = servers.watch(primary)
    store = servers.connect(f"redis+sentinel://127.0.0.1:{sentinel}/fairlog")
    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        stack.callback(servers.kill, primary)
        listening = pool.submit(store.blpop, "key", 0)
        until(lambda: store.info("clients")["blocked_clients"] == 1)
        servers.signal(primary, signal.SIGSTOP)
        asking = pool.submit(store.set, "asked", 1)
        wait_until(lambda: len(store.connection_pool._in_use_connections) == 2, "both wait")
        assert not listening.done()
        servers.hurry(sentinel)
        for left in (listening, asking):
            with pytest.raises(StoreConnectionError, match=f"{primary} does not answer, and .* is the primary now"):
                left.result(timeout=HOPELESS_S)
    until(lambda: store.set("after", 1))


def _knows_another(sentinel: Redis) -> bool:
    said: Any = sentinel.sentinel_master("fairlog")
    return int(said["num-other-sentinels"]) == 1


def test_a_majority_of_sentinels_names_the_primary(servers: Servers) -> None:
    """One that was cut off names the old primary, wherever it stands in the URL; few of many decide nothing."""
    old, new = servers.start(), servers.start()
    cut_off, *others = (servers.watch(primary, replicas=0) for primary in (old, new, new))
    for sentinel in others:
        with Redis(port=sentinel) as asked:
            until(partial(_knows_another, asked))
    with Redis(port=old) as first, Redis(port=new) as second:
        first.set("here", "old")
        second.set("here", "new")
    for ports in ([cut_off, *others], [*others, cut_off], [others[0]], [others[0], others[0]]):
        places = ",".join(f"127.0.0.1:{port}" for port in ports)
        assert servers.connect(f"redis+sentinel://{places}/fairlog").get("here") == b"new"
    servers.kill(others[1])
    for ports in ([cut_off, others[0]], [cut_off, *others]):
        places = ",".join(f"127.0.0.1:{port}" for port in ports)
        store = servers.connect(f"redis+sentinel://{places}/fairlog")
        with pytest.raises(StoreConnectionError, match=r"2 sentinels of fairlog have to name the primary: .*1 named"):
            store.get("here")


def test_sentinels_that_answer_are_asked_again_while_others_say_nothing(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is cut off, and those that answer do not agree yet: the primary is found once they do."""
    monkeypatch.setattr(connection, "_ASK_S", HOPELESS_S)
    heard: list[object] = []
    voice = connection._voice

    def told(sentinel: Redis, service: str) -> Any:
        heard.append(said := voice(sentinel, service))
        return said

    monkeypatch.setattr(connection, "_voice", told)
    old, new = servers.start(), servers.start()
    late, early = (servers.watch(primary, replicas=0) for primary in (old, new))
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:
        ports = [late, early, silent.getsockname()[1]]
        places = ",".join(f"127.0.0.1:{port}" for port in ports)
        store = servers.connect(f"redis+sentinel://{places}/fairlog")
        asking = pool.submit(store.ping)
        with Redis(port=late) as asked:
            until(lambda: len(heard) > 4)
            assert not asking.done()
            asked.execute_command("SENTINEL", "REMOVE", "fairlog")
            asked.execute_command("SENTINEL", "MONITOR", "fairlog", "127.0.0.1", new, 1)
        assert asking.result(timeout=HOPELESS_S / 2)
        assert [*Replication(store)._announced()] == [_StoreServer("127.0.0.1", ports[-1])]


def test_the_server_that_reports_the_role_of_primary_is_used(servers: Servers) -> None:
    old = servers.start()
    new = servers.replica_of(old)
    store = servers.connect(f"redis://127.0.0.1:{old},127.0.0.1:{new}/0")
    with Redis(port=old) as first, Redis(port=new) as second:
        store.set("before", 1)
        until(lambda: second.get("before") == b"1")
        second.replicaof("NO", "ONE")
        with pytest.raises(StoreConnectionError, match=f"127.0.0.1:{old} and 127.0.0.1:{new} each report the role"):
            servers.connect(f"redis://127.0.0.1:{old},127.0.0.1:{new}").ping()
        first.replicaof("127.0.0.1", str(new))
        until(lambda: bool(store.set("after", 1)))
        assert second.get("after") == b"1"
    servers.kill(new)
    with pytest.raises(StoreConnectionError, match=r"none of .* reports the role of primary \(Error 111"):
        servers.connect(f"redis://127.0.0.1:{old},127.0.0.1:{new}").ping()


def test_a_hung_server_counts_as_unavailable(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients would otherwise wait for it for ever, and not go where it has failed over to."""
    monkeypatch.setattr("scheduler.store.connection.ANSWER_S", 0.2)
    port = servers.start()
    store = servers.connect(f"redis://127.0.0.1:{port}")
    until(store.ping)
    servers.signal(port, signal.SIGSTOP)
    with pytest.raises(StoreTimeoutError):
        store.blpop(["nothing"], 0.1)


@pytest.mark.parametrize("url", ["redis+sentinel://", "redis+sentinel://h:1", "redis+sentinel://h/s", "mysql://h/s"])
def test_an_invalid_store_url_is_refused_with_the_valid_forms(url: str) -> None:
    with pytest.raises(UnsuitableStore, match=r"redis\+sentinel://"):
        connect(url)


def _masters_follow(master: Service) -> bool:
    return any(
        entry["event"] == "the log no longer holds what was folded and is folded again" for entry in master.entries()
    )


@pytest.mark.parametrize("servers", ["embedded"], indirect=True)
def test_a_store_failover_keeps_every_acknowledged_command(servers: Servers, tmp_path: Path) -> None:
    """The replicas are stopped while the primary goes on; then all die, and the primary alone has what came last."""
    primary = servers.start()
    replicas = [servers.replica_of(primary), servers.replica_of(primary)]
    sentinel = servers.watch(primary, replicas=2)
    url = f"redis+sentinel://127.0.0.1:{sentinel}/fairlog"
    shell = Shell(tmp_path / "home")
    shell.env |= {"FAIRLOG_STORE": url, "FAIRLOG_REPLICAS": "1"}
    kept, lost = (f"{name}-{uuid4().hex[:8]}" for name in ("kept", "lost"))
    client = StoreClient(servers.connect(url), timeout_s=HOPELESS_S)
    with (
        Service(shell, "master") as first,
        Service(shell, "master", name="second") as second,
        Service(shell, "worker", "--id", "w", "--cores", "8", "--memory", "8G", "--no-outlive", *PLAIN) as worker,
    ):
        for service in (first, second, worker):
            service.hear("READY=1")
        client.send(ACME)
        client.send(_gated(kept, tmp_path))
        until((tmp_path / f"{kept}.begun").exists)
        until(lambda: client.view("app", app=kept)["executors"][0]["status"] == "running")
        for replica in replicas:
            servers.signal(replica, signal.SIGSTOP)
        client.notify(_gated(lost, tmp_path))
        until(lambda: bool(client.store.hexists(client.keys.grants("w"), f"{lost}.0")))
        until(lambda: a_standby_waits(client.store))
        last = EventLog(client.store, client.keys).head()
        servers.kill(primary)
        for replica in replicas:
            servers.kill(replica)
            servers.launch(replica)
        servers.hurry(sentinel)
        client.send(RegisterCompany(company="afterwards"))
        (tmp_path / "gate").touch()
        until(lambda: client.view("app", app=kept)["state"] == "finished")
        log = EventLog(client.store, client.keys)
        assert log.head() != last
        assert not (tmp_path / f"{lost}.begun").exists()
        state, _ = rebuild(log, whole=True)
        assert (lost in state.apps, sorted(state.companies)) == (False, ["acme", "afterwards"])
        until(lambda: _masters_follow(first) and _masters_follow(second))
        assert sorted(state.workers) == ["w"]
        assert not any(fact.type == "WorkerRemoved" for fact in log.facts())
        assert first.process.poll() is second.process.poll() is worker.process.poll() is None


def _gated(name: str, folder: Path) -> SubmitApp:
    script = f"touch {name}.begun; while ! test -e gate; do sleep 0.05; done"
    return SubmitApp(
        app=name, company="acme", user="ann", cores=4, tasks=1, command=("sh", "-c", script), cwd=str(folder)
    )
