"""The stores of a chaos run: the embedded server, or a primary with two replicas and three sentinels."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from fairlog.local.store import EmbeddedStore, bundled_server
from scheduler.service.child import Child, dies_with_us
from tests.waiting import wait_until

_ANSWER_S = 1.0
SERVICE = "fairlog"
Place = tuple[str, int]
"""An address and a port."""


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
    """One primary, two replicas, three sentinels, each at a place. A commit counts once one replica has it.

    A server is only hit while all three are in sync and every sentinel reports so: the copy of one replica does not
    survive two faults at once.
    """

    replicas = 1

    def __init__(self, folder: Path, program: str, servers: Sequence[Place], sentinels: Sequence[Place]) -> None:
        self._program = program
        self._folder = folder
        self._servers = {f"store-{number}": place for number, place in enumerate(servers, start=1)}
        self._sentinels = {f"sentinel-{number}": place for number, place in enumerate(sentinels, start=1)}
        self._first = servers[0]
        places = ",".join(f"{host}:{port}" for host, port in sentinels)
        self.url = f"redis+sentinel://{places}/{SERVICE}"
        self._children: dict[str, Child] = {}

    @classmethod
    def here(cls, folder: Path) -> Self:
        """All six on ports of this machine."""
        places: list[Place] = [("127.0.0.1", _free_port()) for _ in range(6)]
        return cls(folder, shutil.which("redis-server") or str(bundled_server()), places[:3], places[3:])

    def start(self) -> None:
        """Return once all three servers are in sync and the sentinels know each other."""
        for name, place in self._servers.items():
            self._launch(name, place, self._durable(place))
        for name, place in self._sentinels.items():
            self._launch(name, place, self._watch(), "--sentinel")
        wait_until(self.primary, "the replicated store")

    def victims(self, kind: str) -> Mapping[str, int]:
        """The primary, the replicas or the sentinels; no server while one of them is out of sync."""
        if kind == "sentinel":
            return self._pids(self._sentinels)
        primary = self.primary()
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

    def _pids(self, names: Iterable[str]) -> dict[str, int]:
        return {name: pid for name in names if (pid := self._children[name].pid) is not None}

    def _launch(self, name: str, place: Place, settings: str, *options: str) -> None:
        folder = self._folder / name
        folder.mkdir(parents=True)
        config = folder / "server.conf"
        config.write_text(f"port {place[1]}\nbind {place[0]}\ndir {folder}\n{settings}")
        command = self._command(name, [self._program, str(config), *options])
        self._children[name] = Child(name, dies_with_us(command), folder / "log")
        self._children[name].start()

    def _command(self, name: str, command: list[str]) -> list[str]:  # noqa: ARG002 - for others
        """The command line that runs this server or sentinel."""
        return command

    def _asking(self, place: Place) -> Redis:
        """A connection to a server or a sentinel, by which the rig looks at it."""
        host, port = place
        return Redis(host=host, port=port, socket_timeout=_ANSWER_S, retry=Retry(NoBackoff(), 0))

    def _durable(self, place: Place) -> str:
        follow = "" if place == self._first else f"replicaof {self._first[0]} {self._first[1]}\n"
        return (
            "appendonly yes\nappendfsync always\nno-appendfsync-on-rewrite no\nmaxmemory-policy noeviction\n"
            f'save ""\nrepl-diskless-sync-delay 0\nrepl-timeout 5\n{follow}'
        )

    def _watch(self) -> str:
        return (
            f"sentinel monitor {SERVICE} {self._first[0]} {self._first[1]} 2\n"
            f"sentinel down-after-milliseconds {SERVICE} 1000\nsentinel failover-timeout {SERVICE} 6000\n"
        )

    def primary(self) -> str | None:
        """The name of the primary, if both others follow it, are in sync, and all sentinels agree."""
        roles = {name: self._asked(place) for name, place in self._servers.items()}
        primaries = [name for name, role in roles.items() if role.get("role") == "master"]
        if len(primaries) != 1:
            return None
        place, offset = self._servers[primaries[0]], roles[primaries[0]]["master_repl_offset"]
        followers = [self._asked(other) for other in self._servers.values() if other != place]
        well = all(
            role.get("master_link_status") == "up"
            and (role.get("master_host"), role.get("master_port")) == place
            and role["slave_repl_offset"] >= offset
            for role in followers
        )
        return primaries[0] if well and self._sentinels_agree(place) else None

    def _sentinels_agree(self, primary: Place) -> bool:
        """Whether every sentinel reports this server as the primary and the two others as its replicas."""
        host, port = primary
        for place in self._sentinels.values():
            try:
                with self._asking(place) as sentinel:
                    seen: Any = sentinel.sentinel_master(SERVICE)
                    replicas: Any = sentinel.sentinel_slaves(SERVICE)
            except RedisError:
                return False
            if (seen["ip"], seen["port"], seen["flags"], int(seen["num-other-sentinels"])) != (host, port, "master", 2):
                return False
            if [(replica["flags"], replica["master-port"]) for replica in replicas] != [("slave", port)] * 2:
                return False
        return True

    def _asked(self, place: Place) -> dict[str, Any]:
        try:
            with self._asking(place) as server:
                found: dict[str, Any] = server.info("replication")
                return found
        except RedisError:
            return {}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port
