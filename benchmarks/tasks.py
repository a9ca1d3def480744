"""Tasks per second of an app with many short tasks, compared with plain RQ's forking workers; printed as JSON.

Both run the same program on the embedded server with fsync on every write. fairlog gets one worker that offers far
more cores than the machine has. RQ gets one forking `Worker` process per CPU of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from redis import Redis
from rq import Queue, Worker

from fairlog.local.store import EmbeddedStore
from scheduler.model.commands import RegisterCompany, SubmitApp
from scheduler.service.client import Client
from scheduler.store.task_queue import Worklist
from workers.agent import STORE_VARIABLE
from workers.offer import Offer

PROGRAM = "/bin/true"
CLUSTER = "bench"
QUEUE = "plain"


@contextmanager
def process(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process with these arguments, its output in `log`; terminated on exit."""
    with log.open("ab") as out:
        running = subprocess.Popen([sys.executable, *arguments], stdout=out, stderr=out)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(30)


def wait_for(condition: Callable[[], object], what: str, within_s: float = 300) -> None:
    """Return once `condition()` holds. Raises: SystemExit after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"timed out after {within_s:.0f} s waiting for {what}")
        time.sleep(0.01)


def fairlog_tasks(folder: Path, tasks: int, cores: int) -> dict[str, Any]:
    """Run the tasks as one app, timed from its submission to its end in the log."""
    offer = Offer(
        worker="w1",
        node="here",
        host="here",
        cores=cores,
        memory_mb=cores * 1024,
        run_dir=folder / "run",
        outlive_agent=False,
    )
    with EmbeddedStore(folder / "fairlog") as store:
        master = ("-c", f"from recovery.failover.master import run_master; run_master({store.url!r}, {CLUSTER!r})")
        os.environ[STORE_VARIABLE] = store.url
        agent = ("-m", "workers.agent", CLUSTER, offer.model_dump_json())
        with process(folder / "log", *master), process(folder / "log", *agent):
            client = Client(store.url, CLUSTER, timeout_s=60)
            client.send(RegisterCompany(company="acme"))
            wait_for(lambda: client.view("workers"), "the worker")
            began = time.monotonic()
            client.send(
                SubmitApp(app="bench", company="acme", user="ann", cores=cores, tasks=tasks, command=(PROGRAM,))
            )
            wait_for(lambda: client.view("app", app="bench")["state"] in {"finished", "failed"}, "the app's end")
            took_s = time.monotonic() - began
            succeeded = Worklist(client.store, CLUSTER).progress("bench").succeeded
            if succeeded != tasks:
                raise SystemExit(f"only {succeeded} of {tasks} tasks succeeded")
            executors = len(client.view("app", app="bench")["executors"])
            server = client.store.info("server")
            client.store.close()
    return {
        "tasks_per_s": round(tasks / took_s, 1),
        "seconds": round(took_s, 3),
        "offered_cores": cores,
        "executors_at_the_end": executors,
        "store": f"{server.get('server_name', 'redis')} {server.get('valkey_version', server['redis_version'])}",
    }


def plain_rq_tasks(folder: Path, tasks: int, processes: int) -> dict[str, Any]:
    """Run the tasks as plain RQ jobs on forking workers, timed from enqueueing to the last job's end.

    The start-up of the workers, and the jobs that end during it, do not count.
    """
    with EmbeddedStore(folder / "rq") as store, Redis.from_url(store.url) as connection:
        script = (
            "from redis import Redis; from rq import Worker; "
            f"Worker([{QUEUE!r}], connection=Redis.from_url({store.url!r})).work(logging_level='ERROR')"
        )
        queue = Queue(QUEUE, connection=connection)
        began = time.monotonic()
        queue.enqueue_many(
            [Queue.prepare_data("subprocess.call", args=([PROGRAM],), result_ttl=600) for _ in range(tasks)]
        )
        enqueued_s = time.monotonic() - began
        with ExitStack() as workers:
            for _ in range(processes):
                workers.enter_context(process(folder / "log", "-c", script))
            wait_for(lambda: Worker.count(queue=queue) == processes, "RQ's workers")
            began = time.monotonic()
            already = queue.finished_job_registry.get_job_count(cleanup=False)
            wait_for(lambda: queue.finished_job_registry.get_job_count(cleanup=False) >= tasks, "RQ's last job")
            took_s = time.monotonic() - began + enqueued_s
    return {
        "tasks_per_s": round((tasks - already) / took_s, 1),
        "seconds": round(took_s, 3),
        "forking_worker_processes": processes,
        "rq": version("rq"),
    }


def main() -> None:
    """Run the benchmark and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=2_000)
    parser.add_argument("--cores", type=int, default=512, help="cores that the worker offers")
    parser.add_argument("--rq-workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlog-tasks-") as folder:
        ours = fairlog_tasks(Path(folder), options.tasks, options.cores)
        plain = plain_rq_tasks(Path(folder), options.tasks, options.rq_workers)
    figures = {
        "benchmark": "tasks",
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "program": PROGRAM,
        "tasks": options.tasks,
        "fairlog": ours,
        "plain_rq": plain,
        "ratio": round(ours["tasks_per_s"] / plain["tasks_per_s"], 1),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
