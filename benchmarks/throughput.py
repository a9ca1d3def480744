"""Apps per second through the real inbox, and latency of a submit on an idle cluster; printed as JSON.

`throughput.py [SECONDS [WINDOW]]` loads the cluster for SECONDS (default 60). A master runs on the embedded store with
fsync on every write and 100 registered workers. Clients submit apps of one executor (4 cores), WINDOW at a time
(default 1500), and wait for the answers. One process in place of the agents follows the log and reports an app's end as
soon as its cores are granted. An app counts once its grant is committed. `cpu_us_per_app` is the CPU time of the
master's process and of the store for an app, minute by minute: other load on the machine hardly affects it, so a cliff
shows in it. `replay` verifies and folds the whole log of that load. For comparison, plain RQ runs one job per command
on a SimpleWorker, on the same store.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from statistics import quantiles
from typing import Any

import psutil
import structlog
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

from benchmarks._common import arguments, companies, endings, show, submission, wait_for, worker
from fairlog.api.addresses import UNIX
from fairlog.api.client import ApiClient
from fairlog.local.store import EmbeddedStore
from recovery.failover.master import run_master
from recovery.replay.rebuild import rebuild
from scheduler.model.commands import Command, ConfigureCluster, write_command
from scheduler.model.events import ExecutorAllocated
from scheduler.service.client import CommandClient
from scheduler.store.codec import record_of, told
from scheduler.store.connection import connect
from scheduler.store.eventlog import EventLog
from scheduler.store.inflight import InFlight

WORKERS, WORKER_CORES, WORKER_MEMORY_MB = 100, 64, 262_144
APP_CORES = 4
CLIENTS, WINDOW, BACKLOG = 3, 1_500, 3_000
LONE_SUBMITS = 300
PAGE = ("COUNT", 10_000, "BLOCK", 200)
RQ_JOBS = 2_000


def serve(url: str, archive: str = "") -> None:
    """The master process, which may archive below `archive`. It logs to stderr; stdout is for the figures."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    run_master(url, archive_allow=[archive] if archive else [])


def submit_until(url: str, prefix: str, window: int, granted: Synchronized[int], stop: Flag) -> None:
    """A client: submit `window` apps, wait for the answers, repeat.

    It pauses while more than `BACKLOG` of its apps wait for their grant, so that the rate is sustainable.
    """
    client = client_of(url)
    number = 0
    while not stop.is_set():
        if number - granted.value / CLIENTS > BACKLOG:
            time.sleep(0.002)
            continue
        client.send_many([submission(number + extra, cores=APP_CORES, prefix=prefix) for extra in range(window)])
        number += window


def client_of(url: str) -> CommandClient | ApiClient:
    """A client of the store, or of the API if the URL names its Unix socket as `unix:PATH`."""
    return ApiClient(url) if url.startswith(UNIX) and not url.startswith("unix://") else CommandClient(url)


def end_what_is_granted(url: str, granted: Synchronized[int], stop: Flag) -> None:
    """In place of the agents: count the apps with all cores granted, report their end, and send heartbeats."""
    client = CommandClient(url)
    executors: defaultdict[str, list[str]] = defaultdict(list)
    cores: defaultdict[str, int] = defaultdict(int)
    last: Any = "0-0"
    next_heartbeat = 0.0
    names = [worker(number).worker for number in range(WORKERS)]
    while not stop.is_set():
        if time.monotonic() >= next_heartbeat:
            next_heartbeat = time.monotonic() + 1
            now: Any = client.store.time()
            client.store.zadd(client.keys.heartbeats, dict.fromkeys(names, now[0] * 1000))
        [answer] = InFlight(client.store, [("XREAD", *PAGE, "STREAMS", client.keys.log, last)]).answers()
        reports: list[Command] = []
        page = answer[client.keys.log.encode()] if answer else ()
        last = page[-1][0] if page else last
        for grant in (fact.event for entry in page for fact in told(record_of(entry))):
            if not isinstance(grant, ExecutorAllocated):
                continue
            app = grant.app
            executors[app].append(grant.executor)
            cores[app] += grant.resources.cores
            if cores[app] == APP_CORES:
                del cores[app]
                reports += endings(app, executors.pop(app))
                granted.value += 1
        if reports:
            client.notify(*reports)


def prepare(client: CommandClient) -> None:
    """Register companies and workers. Nobody beats for these until the load begins, so none is declared lost."""
    client.send(ConfigureCluster(settings={"worker_timeout_s": 3600}))
    client.send_many(companies())
    shape = {"cores": WORKER_CORES, "memory_mb": WORKER_MEMORY_MB}
    client.send_many([worker(number, **shape) for number in range(WORKERS)])


MINUTE_S = 60.0


def busy_s(processes: Mapping[str, int]) -> dict[str, float]:
    """The CPU time of each process so far, named, by its id; without its children."""
    times = {name: psutil.Process(pid).cpu_times() for name, pid in processes.items()}
    return {name: used.user + used.system for name, used in times.items()}


def sustained(
    url: str,
    seconds: float,
    *,
    window: int = WINDOW,
    through: str = "",
    processes: Mapping[str, int] = {},
    look: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Apps granted per second over `seconds` of full load on a cluster without apps.

    Clients submit `window` apps at a time to the store, or `through` another URL. Of these `processes`, by their names,
    the CPU time for an app is told, minute by minute. `look` is called every five seconds.
    """
    context = multiprocessing.get_context("spawn")
    granted: Synchronized[int] = context.Value("q", 0)
    stop = context.Event()
    others = [context.Process(target=end_what_is_granted, args=(url, granted, stop), daemon=True)]
    others += [
        context.Process(target=submit_until, args=(through or url, f"app{number}", window, granted, stop), daemon=True)
        for number in range(CLIENTS)
    ]
    for process in others:
        process.start()
    wait_for(lambda: granted.value, "the first grant")
    rates: list[tuple[int, float]] = []
    started, before = time.monotonic(), granted.value
    minutes = [(started, before, busy_s(processes))]
    while (elapsed := time.monotonic() - started) < seconds:
        time.sleep(min(5.0, seconds - elapsed))
        rates.append((granted.value, time.monotonic()))
        look()
        if rates[-1][1] - minutes[-1][0] >= MINUTE_S:
            minutes.append((rates[-1][1], granted.value, busy_s(processes)))
        print(f"\r{(granted.value - before) / (time.monotonic() - started):,.0f} apps/s", end="", file=sys.stderr)
    print(file=sys.stderr)
    count, ended = rates[-1]
    if len(minutes) == 1 or ended - minutes[-1][0] > MINUTE_S / 2:
        minutes.append((ended, count, busy_s(processes)))
    stop.set()
    for process in others:
        process.join(timeout=30)
    return {
        "apps": count - before,
        "seconds": round(ended - started, 1),
        "apps_per_s": round((count - before) / (ended - started)),
        "cpu_us_per_app": {
            name: [
                round((after[name] - until[name]) / max(1, then - apps) * 1e6, 1)
                for (_, apps, until), (_, then, after) in pairwise(minutes)
            ]
            for name in processes
        },
    }


def lone_submits(url: str, prefix: str = "lone") -> dict[str, float]:
    """Latency in ms of a submit on an idle cluster, from call to answer."""
    client = client_of(url)
    times = []
    for number in range(LONE_SUBMITS):
        started = time.perf_counter()
        client.send(submission(number, cores=APP_CORES, prefix=prefix))
        times.append(1000 * (time.perf_counter() - started))
    return _latency(times)


def plain_rq(url: str) -> dict[str, float]:
    """These commands as plain RQ jobs, enqueued by this process and run by one SimpleWorker process."""
    connection = connect(url)
    queue = Queue("plain", connection=connection, serializer=JSONSerializer)
    worker = multiprocessing.get_context("spawn").Process(target=_work_plain, args=(url,), daemon=True)
    worker.start()
    queue.enqueue("json.loads", write_command(submission(0, prefix="rq")))
    wait_for(lambda: queue.finished_job_registry.count, "RQ's worker")
    started = time.monotonic()
    for number in range(1, RQ_JOBS):
        queue.enqueue("json.loads", write_command(submission(number, prefix="rq")))
    wait_for(lambda: queue.finished_job_registry.count >= RQ_JOBS, "RQ's last job")
    rate = RQ_JOBS / (time.monotonic() - started)
    times = []
    for number in range(LONE_SUBMITS):
        started = time.perf_counter()
        job = queue.enqueue("json.loads", write_command(submission(number, prefix="lone")))
        job.latest_result(timeout=10)
        times.append(1000 * (time.perf_counter() - started))
    worker.terminate()
    return {"jobs_per_s": round(rate), **_latency(times)}


def _work_plain(url: str) -> None:
    SimpleWorker(["plain"], connection=connect(url), serializer=JSONSerializer).work(logging_level="ERROR")


def replayed(log: EventLog) -> dict[str, float]:
    """Replay speed of the whole log."""
    started = time.perf_counter()
    _, position = rebuild(log, whole=True)
    return {"events": position.seq, "events_per_s": round(position.seq / (time.perf_counter() - started))}


def _latency(times_ms: list[float]) -> dict[str, float]:
    cuts = quantiles(times_ms, n=100)
    return {"p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2)}


def main() -> None:
    """Run the benchmark and print the figures."""
    seconds, window = arguments(__doc__, seconds=60.0, window=WINDOW)
    with tempfile.TemporaryDirectory() as folder, EmbeddedStore(Path(folder)) as store:
        master = multiprocessing.get_context("spawn").Process(target=serve, args=(store.url,), daemon=True)
        master.start()
        client = CommandClient(store.url)
        prepare(client)
        processes = {"master": master.pid or os.getpid(), "store": client.store.info("server")["process_id"]}
        lone = lone_submits(store.url)
        load = sustained(store.url, seconds, window=window, processes=processes)
        plain = plain_rq(store.url)
        version = client.store.info("server").get("valkey_version")
        master.terminate()
        master.join(timeout=10)
        replay = replayed(EventLog(client.store, client.keys))
    show(
        store={"fsync": "always", "version": version},
        workers=WORKERS,
        clients=CLIENTS,
        window=window,
        lone_submit=lone,
        sustained=load,
        replay=replay,
        plain_rq=plain,
        apps_per_s_to_plain_rq_jobs_per_s=round(load["apps_per_s"] / plain["jobs_per_s"], 1),
        lone_submit_p50_to_plain_rq=round(lone["p50_ms"] / plain["p50_ms"], 2),
    )


if __name__ == "__main__":
    main()
