"""Apps per second through the real inbox, and latency of a submit on an idle cluster; printed as JSON.

A master runs on the embedded store with fsync on every write and 100 registered workers. Clients submit apps of one
executor (4 cores) in batches and wait for the answers. One process in place of the agents follows the log and reports
an app's end as soon as its cores are granted. An app counts once its grant is committed. For comparison, plain RQ runs
one job per command on a SimpleWorker, on the same store.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from statistics import quantiles
from typing import Any

import structlog
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

from fairlog.local.store import EmbeddedStore
from recovery.failover.master import run_master
from scheduler.model.commands import EndApp, EndedExecutor, RegisterCompany, RegisterWorker, SubmitApp, write_command
from scheduler.model.events import ExecutorAllocated
from scheduler.service.client import Client
from scheduler.store.codec import record_of, told
from scheduler.store.connection import connect
from scheduler.store.inflight import InFlight

WORKERS, WORKER_CORES, WORKER_MEMORY_MB = 100, 64, 262_144
COMPANIES, USERS_PER_COMPANY = 8, 10
APP_CORES = 4
CLIENTS, WINDOW, BACKLOG = 3, 1_500, 3_000
LONE_SUBMITS = 300
PAGE = ("COUNT", 10_000, "BLOCK", 200)
RQ_JOBS = 2_000


def worker_id(number: int) -> str:
    """The id of worker `number`."""
    return f"w{number:03}"


def submission(number: int, prefix: str) -> SubmitApp:
    """App `number`; companies and their users take turns. It gets one executor."""
    company, user = number % COMPANIES, number // COMPANIES % USERS_PER_COMPANY
    return SubmitApp(
        app=f"{prefix}-{number}",
        company=f"company{company}",
        user=f"user{user}",
        cores=APP_CORES,
        command=("true",),
    )


def serve(url: str) -> None:
    """The master process. It logs to stderr; stdout is for the figures."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    run_master(url)


def submit_until(url: str, prefix: str, granted: Synchronized[int], stop: Flag) -> None:
    """A client: submit `WINDOW` apps, wait for the answers, repeat.

    It pauses while more than `BACKLOG` of its apps wait for their grant, so that the rate is sustainable.
    """
    client = Client(url)
    number = 0
    while not stop.is_set():
        if number - granted.value / CLIENTS > BACKLOG:
            time.sleep(0.002)
            continue
        client.send_many([submission(number + extra, prefix) for extra in range(WINDOW)])
        number += WINDOW


def end_what_is_granted(url: str, granted: Synchronized[int], stop: Flag) -> None:
    """In place of the agents: count the apps with all cores granted, report their end, and send heartbeats."""
    client = Client(url)
    executors: defaultdict[str, list[str]] = defaultdict(list)
    cores: defaultdict[str, int] = defaultdict(int)
    last: Any = "0-0"
    next_heartbeat = 0.0
    while not stop.is_set():
        if time.monotonic() >= next_heartbeat:
            next_heartbeat = time.monotonic() + 1
            now: Any = client.store.time()
            client.store.zadd(client.keys.heartbeats, {worker_id(number): now[0] * 1000 for number in range(WORKERS)})
        [answer] = InFlight(client.store, [("XREAD", *PAGE, "STREAMS", client.keys.log, last)]).answers()
        reports: list[EndedExecutor | EndApp] = []
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
                reports += [
                    EndedExecutor(executor=executor, reason="exited", exit_code=0, done=True)
                    for executor in executors.pop(app)
                ]
                reports.append(EndApp(app=app, reason="finished"))
                granted.value += 1
        if reports:
            client.notify(*reports)


def sustained(url: str, seconds: float) -> dict[str, float]:
    """Apps granted per second over `seconds` under full load."""
    context = multiprocessing.get_context("spawn")
    granted: Synchronized[int] = context.Value("q", 0)
    stop = context.Event()
    others = [context.Process(target=end_what_is_granted, args=(url, granted, stop), daemon=True)]
    others += [
        context.Process(target=submit_until, args=(url, f"app{number}", granted, stop), daemon=True)
        for number in range(CLIENTS)
    ]
    for process in others:
        process.start()
    while not granted.value:
        time.sleep(0.01)
    rates = []
    started, before = time.monotonic(), granted.value
    while (elapsed := time.monotonic() - started) < seconds:
        time.sleep(min(5.0, seconds - elapsed))
        rates.append((granted.value, time.monotonic()))
        print(f"\r{(granted.value - before) / (time.monotonic() - started):,.0f} apps/s", end="", file=sys.stderr)
    print(file=sys.stderr)
    count, ended = rates[-1]
    stop.set()
    for process in others:
        process.join(timeout=30)
    return {
        "apps": count - before,
        "seconds": round(ended - started, 1),
        "apps_per_s": round((count - before) / (ended - started)),
    }


def lone_submits(url: str) -> dict[str, float]:
    """Latency in ms of a submit on an idle cluster, from call to answer."""
    client = Client(url)
    times = []
    for number in range(LONE_SUBMITS):
        started = time.perf_counter()
        client.send(submission(number, "lone"))
        times.append(1000 * (time.perf_counter() - started))
    return _latency(times)


def plain_rq(url: str) -> dict[str, float]:
    """The same commands as plain RQ jobs, enqueued by this process and run by one SimpleWorker process."""
    connection = connect(url)
    queue = Queue("plain", connection=connection, serializer=JSONSerializer)
    worker = multiprocessing.get_context("spawn").Process(target=_work_plain, args=(url,), daemon=True)
    worker.start()
    queue.enqueue("json.loads", write_command(submission(0, "rq")))
    while queue.finished_job_registry.count < 1:
        time.sleep(0.01)
    started = time.monotonic()
    for number in range(1, RQ_JOBS):
        queue.enqueue("json.loads", write_command(submission(number, "rq")))
    while queue.finished_job_registry.count < RQ_JOBS:
        time.sleep(0.01)
    rate = RQ_JOBS / (time.monotonic() - started)
    times = []
    for number in range(LONE_SUBMITS):
        started = time.perf_counter()
        job = queue.enqueue("json.loads", write_command(submission(number, "lone")))
        job.latest_result(timeout=10)
        times.append(1000 * (time.perf_counter() - started))
    worker.terminate()
    return {"jobs_per_s": round(rate), **_latency(times)}


def _work_plain(url: str) -> None:
    SimpleWorker(["plain"], connection=connect(url), serializer=JSONSerializer).work(logging_level="ERROR")


def _latency(times_ms: list[float]) -> dict[str, float]:
    cuts = quantiles(times_ms, n=100)
    return {"p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2)}


def main() -> None:
    """Run the benchmark and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="duration of the load")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder, EmbeddedStore(Path(folder)) as store:
        master = multiprocessing.get_context("spawn").Process(target=serve, args=(store.url,), daemon=True)
        master.start()
        client = Client(store.url)
        client.send_many([RegisterCompany(company=f"company{number}") for number in range(COMPANIES)])
        client.send_many(
            [
                RegisterWorker(
                    worker=worker_id(number), node="node", host="host", cores=WORKER_CORES, memory_mb=WORKER_MEMORY_MB
                )
                for number in range(WORKERS)
            ]
        )
        lone, load, plain = lone_submits(store.url), sustained(store.url, seconds), plain_rq(store.url)
        result = {
            "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()},
            "store": {"fsync": "always", "version": client.store.info("server").get("valkey_version")},
            "workers": WORKERS,
            "clients": CLIENTS,
            "lone_submit": lone,
            "sustained": load,
            "plain_rq": plain,
            "apps_per_s_to_plain_rq_jobs_per_s": round(load["apps_per_s"] / plain["jobs_per_s"], 1),
            "lone_submit_p50_to_plain_rq": round(lone["p50_ms"] / plain["p50_ms"], 2),
        }
        master.terminate()
        master.join(timeout=10)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
