"""Submitting through the API beside submitting to the store directly, in one run; printed as JSON.

`api.py [SECONDS]` loads the cluster for SECONDS (default 20) each way, in turns of store and API, as `throughput.py`
does, each on a cluster of its own: a master and one API server on the embedded store with fsync on every write. Clients
reach the API over its Unix socket, in batches. In another, four clients read 5,000 pending apps again and again while
one submits.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from benchmarks._common import arguments, show, submission, wait_for
from benchmarks.throughput import APP_CORES, lone_submits, prepare, serve, sustained
from fairlog.api.addresses import UNIX
from fairlog.api.client import ApiClient
from fairlog.api.serve import Where, run_api
from fairlog.local.store import EmbeddedStore
from scheduler.service.client import CommandClient

ROUNDS = 2
PENDING = 5_000
READERS = 4


def serve_api(url: str, path: Path) -> None:
    """The API's process. It logs to stderr; stdout is for the figures."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    run_api(url, "default", Where(path))


def beside_readers(api: str) -> dict[str, float]:
    """Latency of lone submits while others read all pending apps, and how often a second they did."""
    stopped, reads = threading.Event(), [0] * READERS

    def read(number: int) -> None:
        with ApiClient(api) as client:
            while not stopped.is_set():
                client.view("apps")
                reads[number] += 1

    with ApiClient(api) as client:
        client.send_many([submission(number, cores=APP_CORES, prefix="pending") for number in range(PENDING)])
    threads = [threading.Thread(target=read, args=(number,)) for number in range(READERS)]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    found = lone_submits(api, "beside")
    lasted = time.monotonic() - started
    stopped.set()
    for thread in threads:
        thread.join()
    return {**found, "reads_of_5000_apps_per_s": round(sum(reads) / lasted, 1)}


@contextmanager
def cluster() -> Iterator[tuple[str, str]]:
    """A cluster of its own, so that each load begins with an empty log: the URLs of its store and of its API."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, EmbeddedStore(Path(folder) / "store") as store:
        path = Path(folder) / "api.sock"
        processes = [
            context.Process(target=serve, args=(store.url,), daemon=True),
            context.Process(target=serve_api, args=(store.url, path), daemon=True),
        ]
        for process in processes:
            process.start()
        prepare(CommandClient(store.url))
        wait_for(path.exists, "the API's socket")
        yield store.url, f"{UNIX}{path}"
        for process in processes:
            process.terminate()
            process.join(timeout=10)


def main() -> None:
    """Run the benchmark and print the figures."""
    (seconds,) = arguments(__doc__, seconds=20.0)
    with cluster() as (store, api):
        lone = {"store": lone_submits(store), "api": lone_submits(api, "door")}
        read = beside_readers(api)
    load: dict[str, list[float]] = {"store": [], "api": []}
    for _ in range(ROUNDS):
        for name, rates in load.items():
            with cluster() as (store, api):
                through = api if name == "api" else store
                rates.append(sustained(store, seconds, through=through)["apps_per_s"])
    show(
        lone_submit=lone,
        lone_submit_p50_api_to_store=round(lone["api"]["p50_ms"] / lone["store"]["p50_ms"], 2),
        apps_per_s=load,
        apps_per_s_api_to_store=round(sum(load["api"]) / sum(load["store"]), 2),
        lone_submit_beside_readers=read,
    )


if __name__ == "__main__":
    main()
