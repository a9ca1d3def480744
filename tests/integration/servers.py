"""Store servers of a test's own, on ports of this machine: primaries, replicas, sentinels."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

from redis import Redis
from redis.exceptions import RedisError

from scheduler.store.connection import connect
from tests.waiting import wait_until

DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction")


class Servers:
    """Store servers, until the test is over."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.stack = ExitStack()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._commands: dict[int, Sequence[str]] = {}

    def start(self, *settings: str) -> int:
        """Start a durable server with these settings; its port, once it answers."""
        return self._run(*DURABLE, "--repl-diskless-sync-delay", "0", *settings)

    def replica_of(self, primary: int, *settings: str) -> int:
        """Start a replica of the server at that port; its port, once it has all of it."""
        port = self.start("--replicaof", "127.0.0.1", str(primary), *settings)
        with Redis(port=port) as connection:
            until(lambda: replication(connection)["master_link_status"] == "up")
        return port

    def watch(self, primary: int, *, replicas: int = 1) -> int:
        """Start a sentinel of the service `fairlog` at the port `primary`; its port, once it knows its replicas.

        It takes no server for dead that is only slow, until it is told to `hurry`.
        """
        file = self.folder / f"sentinel-{uuid4().hex}.conf"
        file.write_text(
            f"sentinel monitor fairlog 127.0.0.1 {primary} 1\n"
            "sentinel down-after-milliseconds fairlog 600000\nsentinel failover-timeout fairlog 2000\n"
        )
        port = self._run(str(file), "--sentinel")
        with Redis(port=port) as asked:
            asked.execute_command("SENTINEL", "DEBUG", "INFO-PERIOD", "100", "PUBLISH-PERIOD", "100")
            until(lambda: int(asked.sentinel_master("fairlog")["num-slaves"]) >= replicas)
        return port

    def hurry(self, sentinel: int) -> None:
        """Have the sentinel fail over once the primary has been silent for half a second."""
        with Redis(port=sentinel) as asked:
            asked.sentinel_set("fairlog", "down-after-milliseconds", 500)

    def connect(self, url: str) -> Redis:
        """A connection to the store at `url`, as the program makes it, that is closed with the servers."""
        connected = connect(url)
        self.stack.callback(connected.close)
        return connected

    def kill(self, port: int) -> None:
        """End the server at once; what it has acknowledged lies on its disk."""
        self._processes[port].kill()
        self._processes[port].wait()

    def signal(self, port: int, number: signal.Signals) -> None:
        """Send the server a signal."""
        self._processes[port].send_signal(number)

    def launch(self, port: int, *settings: str) -> None:
        """Start a killed server again, on its data; returns before it answers."""
        process = subprocess.Popen([*self._commands[port], *settings], stdout=subprocess.DEVNULL)
        self._processes[port] = process
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)

    def _run(self, *arguments: str) -> int:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        folder = self.folder / str(port)
        folder.mkdir()
        first = [arguments[0]] if arguments[0].endswith(".conf") else []
        self._commands[port] = [
            *(str(self.program), *first, "--port", str(port), "--dir", str(folder)),
            *arguments[len(first) :],
        ]
        self.launch(port)
        with Redis(port=port) as connection:
            until(lambda: bool(connection.ping()))
        return port


def replication(connection: Redis) -> Any:
    """What the server says of its replication."""
    return connection.info("replication")


def a_standby_waits(store: Redis) -> bool:
    """Whether a standby has read all that is in the log, since it waits for what comes next."""
    return any(client["cmd"] == "xread" and "b" in client["flags"] for client in store.client_list())


def until(holds: Callable[[], object]) -> None:
    """Return once it holds; a store that does not answer yet does not."""

    def answers_so() -> object:
        try:
            return holds()
        except RedisError:
            return False

    wait_until(answers_so, "the store")
