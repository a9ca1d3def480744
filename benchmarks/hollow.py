"""What a cluster of many workers costs that have little to do, printed as JSON.

`hollow.py [AGENTS] [APPS]` starts the embedded store with fsync on every write, an active and a standby master with a
lease of 1 s, and an API server. AGENTS hollow agents (default 1,000), each with a connection of its own, register
through the API, ask for their grants as real agents do, and report each executor as started; they run nothing.

- idle: CPU and what is written to disk while nothing happens; soon after registering, also that what answered it
  expires.
- lone_submit: from call to answer, over the store, one after the other; `alone` is that before there are any agents.
- take_over: APPS apps (default 10 an agent) fill the cluster and its queues. The active master is killed; the time
  ends with the answer to a command that was sent at that moment.
- lost: a tenth of the agents fall silent at once. The time counts from their silence until all are out of the log.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks._common import arguments, companies, show, submission, wait_for, worker
from benchmarks.api import serve_api
from benchmarks.throughput import lone_submits
from fairlog.local.store import EmbeddedStore
from recovery.failover.lease import members
from scheduler.model.commands import RegisterCompany
from scheduler.model.events import WorkerRemoved
from scheduler.service.client import CommandClient
from scheduler.store.codec import told
from scheduler.store.eventlog import EventLog, Position
from workers.api_door import WAIT_S
from workers.door import Registering, Registrant

ROOT = Path(__file__).parents[1]
LEASE_S = 1.0
IDLE_S = 10.0
AT_ONCE = 64
"""How many agents connect at once."""
OTHER_FILES = 500


class Agents:
    """Hollow agents in a thread of their own, which ask the API server at the Unix socket `path`."""

    def __init__(self, path: Path, number: int) -> None:
        self._path = path
        self.names = [worker(each).worker for each in range(number)]
        self.registered = self.answers = self.started = 0
        self.silent: set[str] = set()
        self.told: Counter[str] = Counter()
        """Why questions were not answered."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._all())

    async def _all(self) -> None:
        door = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._agent(number, name, door) for number, name in enumerate(self.names)))

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            with suppress(ConnectionRefusedError):
                return await asyncio.open_unix_connection(str(self._path))
            await asyncio.sleep(0.1)

    async def _agent(self, number: int, name: str, door: asyncio.Semaphore) -> None:
        path, known, tag, wait_ms = f"/v1/workers/{name}", set[str](), "", 0

        async def ask(line: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
            content = b"" if body is None else msgspec.json.encode(body)
            head = f"{line} HTTP/1.1\r\nhost: api\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
            writer.write(f"{head}\r\n\r\n".encode() + content)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(each[15:]) for each in answer.lower().split(b"\r\n") if each.startswith(b"content-length")
            )
            content = await reader.readexactly(length)
            if int(answer.split(b" ", 2)[1]) >= 400:
                raise OSError(content)
            return json.loads(content)

        about = worker(number)
        registrant = Registrant(os.getpid(), about.host)
        offer = Registering(registrant, about.node, about.host, about.cores, about.memory_mb)
        async with door:
            reader, writer = await self._connection()
            await ask(f"POST {path}/register", offer)
            self.registered += 1
        while name not in self.silent:
            try:
                said = await ask(f"GET {path}/grants?after={tag}&wait={wait_ms}")
                self.answers += 1
                tag = said["tag"]
                if not said["alive"]:  # it was lost, and comes back as a real one does
                    await ask(f"POST {path}/register", offer)
                    self.registered += 1
                    tag, known = "", set()
                    continue
                if said["grants"] is not None:
                    granted = {each["grant"]["executor"] for each in said["grants"]}
                    if new := sorted(granted - known):
                        await ask(f"POST {path}/reports", {"started": new, "ended": []})
                        self.started += len(new)
                    known = granted
                wait_ms = max(round(1000 * WAIT_S), said["beat_ms"])
            except (OSError, asyncio.IncompleteReadError) as error:  # no master yet, say; real agents try again as well
                self.told[str(error)[:200]] += 1
                await asyncio.sleep(WAIT_S)
                if reader.at_eof():
                    reader, writer = await self._connection()
        writer.close()


@contextmanager
def _masters(url: str) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "fairlog", "master", "--store", url, "--lease", str(LEASE_S)]
    started = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        yield {process.pid: process for process in started}
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def _serving(client: CommandClient) -> int:
    wait_for(lambda: members(client.store, client.keys)[0], "a master")
    found = members(client.store, client.keys)[0]
    return found.pid if found is not None else _serving(client)


def _cpu_s(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def _idle(client: CommandClient, agents: Agents, processes: dict[str, int]) -> dict[str, float]:
    def look() -> dict[str, float]:
        written: Any = client.store.info("persistence")
        used = {f"{name}_cores": _cpu_s(pid) for name, pid in processes.items()}
        return {**used, "questions_per_s": agents.answers, "bytes_to_disk_per_s": written["aof_current_size"]}

    before, began = look(), time.monotonic()
    time.sleep(IDLE_S)
    after, took_s = look(), time.monotonic() - began
    return {name: round((after[name] - before[name]) / took_s, 4) for name in after}


def _is_busy(agents: Agents) -> bool:
    """Whether an agent has started anything within a second."""
    before = agents.started
    time.sleep(1)
    return agents.started > before


def _take_over(client: CommandClient, masters: dict[int, subprocess.Popen[bytes]]) -> float:
    serving = _serving(client)
    began = time.perf_counter()
    masters[serving].send_signal(signal.SIGKILL)
    client.send(RegisterCompany(company="after"))
    return time.perf_counter() - began


def _lose(client: CommandClient, agents: Agents, number: int) -> dict[str, float]:
    """Have so many agents fall silent; how long until the log has it, and the longest submit meanwhile."""
    log, gone, longest, elections = EventLog(client.store, client.keys), set[str](), 0.0, 0
    leaving = set(agents.names[:number])
    after = log.head()
    agents.silent |= leaving
    began, each = time.monotonic(), 0
    while not leaving <= gone:
        sent = time.perf_counter()
        client.send(submission(each, prefix="meanwhile"))
        longest, each = max(longest, time.perf_counter() - sent), each + 1
        for record in log.read(after):
            after = Position(record.last, record.digest)
            elections += record.events.count(b'"MasterElected"')
            if b"WorkerRemoved" in record.events:
                gone |= {fact.event.worker for fact in told(record) if isinstance(fact.event, WorkerRemoved)}
        if time.monotonic() > began + 120:
            raise SystemExit(f"only {len(gone)} of {number} silent workers were lost; {elections} elections meanwhile")
        time.sleep(0.02)
    return {
        "workers": number,
        "seconds": round(time.monotonic() - began, 2),
        "others_lost": len(gone - leaving),
        "elections": elections,
        "longest_submit_ms": round(1000 * longest, 1),
    }


def main() -> None:
    """Run the benchmark and print the figures."""
    number, apps = arguments(__doc__, agents=1_000, apps=0)
    apps = apps or 10 * number
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 2 * number + OTHER_FILES), most))
    with tempfile.TemporaryDirectory() as folder, EmbeddedStore(Path(folder)) as store:
        path = Path(folder) / "api.sock"
        api = multiprocessing.get_context("spawn").Process(target=serve_api, args=(store.url, path), daemon=True)
        api.start()
        with _masters(store.url) as masters:
            client = CommandClient(store.url, timeout_s=120)
            client.send_many(companies())
            wait_for(path.exists, "the API's socket")
            alone = lone_submits(store.url, "alone")
            agents, began = Agents(path, number), time.monotonic()
            wait_for(lambda: agents.registered >= number, "the agents")
            registered_s = time.monotonic() - began
            time.sleep(1)
            serving = _serving(client)
            processes = {"store": store.pid or 0, "master": serving, "api": api.pid or 0}
            processes["standby"] = next(pid for pid in masters if pid != serving)
            idle = _idle(client, agents, processes)
            lone = lone_submits(store.url)
            for first in range(0, apps, 1_000):
                client.send_many([submission(each) for each in range(first, min(apps, first + 1_000))])
            wait_for(lambda: not _is_busy(agents), "the last report of a start")
            full = [_idle(client, agents, processes), lone_submits(store.url, "beside")]
            took_s = _take_over(client, masters)
            too_early = agents.registered - number
            lost = _lose(client, agents, number // 10)
            agents.silent |= set(agents.names)
            api.terminate()
            api.join(10)
    show(
        agents=number,
        registered_per_s=round(number / registered_s),
        idle=idle,
        lone_submit={"alone": alone, "beside the agents": lone},
        apps=apps,
        executors=agents.started,
        with_apps={"idle": full[0], "lone_submit": full[1]},
        take_over={"lease_s": LEASE_S, "seconds": round(took_s, 3)},
        lost_although_they_beat=too_early,
        lost=lost,
        agents_away=agents.told,
    )


if __name__ == "__main__":
    main()
