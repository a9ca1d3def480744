"""Tasks per second of an app with many short tasks, compared with plain RQ's forking workers; printed as JSON.

`tasks.py [TASKS [CORES]]` runs a program TASKS times (default 2,000), on the embedded server with fsync on every write:
through an API server, as workers are, without cells and in cells; over the store; and with RQ. fairlog gets one worker
that offers CORES cores (default 512, far more than the machine has; 16 make one executor). RQ gets one forking `Worker`
process per CPU of the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from redis import Redis
from rq import Queue, Worker

from benchmarks._common import arguments, show, wait_for
from fairlog.client import StoreClient
from fairlog.local.store import EmbeddedStore
from scheduler.model.commands import RegisterCompany, SubmitApp
from scheduler.service.addresses import UNIX
from scheduler.service.keyring import Keyring
from scheduler.service.private import private_folder
from scheduler.store.task_queue import Worklist
from workers.offer import make_offers
from workers.sandbox import why_no_cell

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


def fairlog_tasks(folder: Path, tasks: int, cores: int, launcher: str, *, through_api: bool = True) -> dict[str, Any]:
    """Run the tasks as one app, timed from its submission to its end in the log."""
    run_dir = folder / "run"
    made = make_offers(worker="w1", cores=cores, memory_mb=cores * 1024, run_dir=run_dir, outlive_agent=False)
    offer = [made[0].model_copy(update={"launcher": launcher})]
    keys = private_folder(folder) / "keys.json"
    ring = Keyring.create(keys)
    with EmbeddedStore(folder / "fairlog") as store, ExitStack() as processes:
        where = f"{store.url!r}, {CLUSTER!r}"
        load = f"k = Keyring.load(Path({str(keys)!r}))"
        signed = f"from pathlib import Path; from scheduler.service.keyring import Keyring; {load}"
        run_master = f"from recovery.failover.master import run_master; run_master({where}, keyring=k)"
        served = f"Where(path=Path({str(store.api_socket)!r}))"
        run_api = f"from fairlog.api.serve import Where, run_api; run_api({where}, {served}, keyring=k)"
        offered = f"[Offer.model_validate_json({offer[0].model_dump_json()!r})]"
        way = f"{UNIX + str(store.api_socket)!r}, ''" if through_api else where
        run = f"run_agent({way}, {offered}{'' if through_api else ', k'})"
        run_agent = f"from workers.agent import run_agent; from workers.offer import Offer; {run}"
        for program in (run_master, *([run_api] if through_api else []), run_agent):
            processes.enter_context(process(folder / "log", "-c", f"{signed}; {program}"))
        with Redis.from_url(store.url) as connection:
            client = StoreClient(connection, CLUSTER, timeout_s=60, keyring=ring)
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
    return {
        "tasks_per_s": round(tasks / took_s, 1),
        "seconds": round(took_s, 3),
        "offered_cores": cores,
        "executors_at_the_end": executors,
        "store": f"{server.get('server_name', 'redis')} {server.get('valkey_version', server['redis_version'])}",
    }


def plain_rq_tasks(folder: Path, tasks: int) -> dict[str, Any]:
    """Run the tasks as plain RQ jobs on forking workers, timed from enqueueing to the last job's end.

    The start-up of the workers, and the jobs that end during it, do not count.
    """
    processes = os.cpu_count() or 1
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
    tasks, cores = arguments(__doc__, tasks=2_000, cores=512)
    with tempfile.TemporaryDirectory(prefix="fairlog-tasks-") as folder:
        where = Path(folder)
        plain = fairlog_tasks(where / "plain", tasks, cores, "plain")
        direct = fairlog_tasks(where / "store", tasks, cores, "plain", through_api=False)
        rq = plain_rq_tasks(where, tasks)
        why = why_no_cell()
        cell = {"skipped": why} if why else fairlog_tasks(where / "cell", tasks, cores, "cell")
    ratio = round(plain["tasks_per_s"] / rq["tasks_per_s"], 1)
    part = None if why else round(cell["tasks_per_s"] / plain["tasks_per_s"], 2)
    show(
        program=PROGRAM,
        tasks=tasks,
        fairlog=plain,
        cell=cell,
        over_the_store=direct,
        plain_rq=rq,
        ratio=ratio,
        cell_of_fairlog=part,
        fairlog_of_over_the_store=round(plain["tasks_per_s"] / direct["tasks_per_s"], 2),
    )


if __name__ == "__main__":
    main()
