"""The stores of a chaos run: the embedded server, or a primary with two replicas and three sentinels."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from fairlog.local.store import EmbeddedStore, bundled_server
from scheduler.service.child import Child, dies_with_us
from tests.waiting import wait_until

_ANSWER_S = 1.0
_SERVICE = "fairlog"


class Store(Protocol):
    """The operations that the rig needs."""

    url: str
    replicas: int

    def start(self) -> None:
        """Return once it can be used."""

    def victims(self, kind: str) -> Mapping[str, int]:
        """Name -> process id of each `store`, `replica` or `sentinel` that may be hit now."""

    def tend(self, held: Mapping[str, float]) -> None:
        """Restart dead servers, except those `held` until a later time."""

    def stop(self) -> None:
        """End it all."""


class Single:
    """The embedded server."""

    replicas = 0

    def __init__(self, folder: Path) -> None:
        self._store = EmbeddedStore(folder)
        self.url = self._store.url

    def start(self) -> None:
        """Return once it answers."""
        self._store.start()

    def victims(self, kind: str) -> Mapping[str, int]:
        """The server."""
        pid = self._store.pid
        return {"store": pid} if kind == "store" and pid is not None else {}

    def tend(self, held: Mapping[str, float]) -> None:
        """Restart the server once it is no longer held."""
        if self._store.pid is None and held.get("store", 0.0) <= time.monotonic():
            self._store.tend()

    def stop(self) -> None:
        """End the server."""
        self._store.stop()


class Replicated:
    """One primary, two replicas, three sentinels on ports of this machine. A commit counts once one replica has it.

    A server is only hit while all three are in sync and every sentinel reports so: the copy of one replica does not
    survive two faults at once.
    """

    replicas = 1

    def __init__(self, folder: Path) -> None:
        self._program = shutil.which("redis-server") or str(bundled_server())
        self._folder = folder
        self._servers = {f"store-{number}": _free_port() for number in (1, 2, 3)}
        self._sentinels = {f"sentinel-{number}": _free_port() for number in (1, 2, 3)}
        self._first = next(iter(self._servers.values()))
        places = ",".join(f"127.0.0.1:{port}" for port in self._sentinels.values())
        self.url = f"redis+sentinel://{places}/{_SERVICE}"
        self._children: dict[str, Child] = {}

    def start(self) -> None:
        """Return once all three servers are in sync and the sentinels know each other."""
        for name, port in self._servers.items():
            self._launch(name, port, self._durable(port))
        for name, port in self._sentinels.items():
            self._launch(name, port, self._watch(), "--sentinel")
        wait_until(self._primary, "the replicated store")

    def victims(self, kind: str) -> Mapping[str, int]:
        """The primary, the replicas or the sentinels; no server while one of them is out of sync."""
        if kind == "sentinel":
            return self._pids(self._sentinels)
        primary = self._primary()
        if primary is None:
            return {}
        pids = self._pids(self._servers)
        return {name: pid for name, pid in pids.items() if (name == primary) == (kind == "store")}

    def tend(self, held: Mapping[str, float]) -> None:
        """Restart the servers and sentinels that are no longer held."""
        for name, child in self._children.items():
            if held.get(name, 0.0) <= time.monotonic():
                child.tend()

    def stop(self) -> None:
        """End all of them."""
        for child in self._children.values():
            if child.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGCONT)
            child.ask_to_stop()
        for child in self._children.values():
            child.wait(time.monotonic() + 5)

    def _pids(self, names: Mapping[str, int]) -> dict[str, int]:
        return {name: pid for name in names if (pid := self._children[name].pid) is not None}

    def _launch(self, name: str, port: int, settings: str, *options: str) -> None:
        folder = self._folder / name
        folder.mkdir(parents=True)
        config = folder / "server.conf"
        config.write_text(f"port {port}\nbind 127.0.0.1\ndir {folder}\n{settings}")
        command = [self._program, str(config), *options]
        self._children[name] = Child(name, dies_with_us(command), folder / "log")
        self._children[name].start()

    def _durable(self, port: int) -> str:
        follow = "" if port == self._first else f"replicaof 127.0.0.1 {self._first}\n"
        return (
            "appendonly yes\nappendfsync always\nno-appendfsync-on-rewrite no\nmaxmemory-policy noeviction\n"
            f'save ""\nrepl-diskless-sync-delay 0\nrepl-timeout 5\n{follow}'
        )

    def _watch(self) -> str:
        return (
            f"sentinel monitor {_SERVICE} 127.0.0.1 {self._first} 2\n"
            f"sentinel down-after-milliseconds {_SERVICE} 1000\nsentinel failover-timeout {_SERVICE} 6000\n"
        )

    def _primary(self) -> str | None:
        """The name of the primary, if both others follow it, are in sync, and all sentinels agree."""
        roles = {name: self._asked(port) for name, port in self._servers.items()}
        primaries = [name for name, role in roles.items() if role.get("role") == "master"]
        if len(primaries) != 1:
            return None
        port, offset = self._servers[primaries[0]], roles[primaries[0]]["master_repl_offset"]
        followers = [self._asked(other) for other in self._servers.values() if other != port]
        well = all(
            role.get("master_link_status") == "up"
            and role.get("master_port") == port
            and role["slave_repl_offset"] >= offset
            for role in followers
        )
        return primaries[0] if well and self._sentinels_agree(port) else None

    def _sentinels_agree(self, primary: int) -> bool:
        """Whether every sentinel reports this server as the primary and the two others as its replicas."""
        for port in self._sentinels.values():
            try:
                with _asking(port) as sentinel:
                    seen: Any = sentinel.sentinel_master(_SERVICE)
                    replicas: Any = sentinel.sentinel_slaves(_SERVICE)
            except RedisError:
                return False
            if (seen["port"], seen["flags"], int(seen["num-other-sentinels"])) != (primary, "master", 2):
                return False
            if [(replica["flags"], replica["master-port"]) for replica in replicas] != [("slave", primary)] * 2:
                return False
        return True

    def _asked(self, port: int) -> dict[str, Any]:
        try:
            with _asking(port) as server:
                found: dict[str, Any] = server.info("replication")
                return found
        except RedisError:
            return {}


def _asking(port: int) -> Redis:
    return Redis(port=port, socket_timeout=_ANSWER_S, retry=Retry(NoBackoff(), 0))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port
