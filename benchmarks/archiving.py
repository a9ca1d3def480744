"""Whether archiving keeps up with sustained load, and what it costs the others; printed as JSON.

`archiving.py [SECONDS] [ROUNDS]` loads a cluster as `throughput.py` does for SECONDS (default 60), ROUNDS times
(default 2) without and with archiving in turns, each on a store of its own. `cpu_us_per_app` is the CPU time for an app
of the master's process and of the store; `children_us_per_app` that of the master's children: it forks to write
snapshots and starts archiving. `behind` is how many events the store held at most beside those that it is to retain,
and at the end.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks._common import arguments, show
from benchmarks.throughput import prepare, serve, sustained
from fairlog.local.store import EmbeddedStore
from recovery.archive.archive import archived_to
from scheduler.model.commands import ConfigureCluster
from scheduler.service.client import CommandClient
from scheduler.store.eventlog import EventLog

RETAINED = AFTER = 100_000


def loaded(seconds: float, *, archives: bool) -> dict[str, Any]:
    """The figures of one round."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedStore(Path(folder)) as store:
        url = Path(folder, "archive").as_uri()
        master = multiprocessing.get_context("spawn").Process(target=serve, args=(store.url, url))
        master.start()
        client = CommandClient(store.url)
        log, behind = EventLog(client.store, client.keys), [0]
        prepare(client)
        if archives:
            where = {"archive_url": url, "archive_after_events": AFTER, "archive_retain_events": RETAINED}
            client.send(ConfigureCluster(settings=where))

        def look() -> None:
            behind.append(log.head().seq - RETAINED - archived_to(client.store, client.keys).seq)

        pid = master.pid or 0
        processes = {"master": pid, "store": client.store.info("server")["process_id"]}
        figures = sustained(store.url, seconds, processes=processes, look=look)
        head = log.head().seq
        while archives and behind[-1] > AFTER:
            time.sleep(1)
            look()
        used = psutil.Process(pid).cpu_times()
        figures["events"], figures["behind"] = head, {"most": max(behind), "at_the_end": behind[-1]}
        figures["children_us_per_app"] = round((used.children_user + used.children_system) / figures["apps"] * 1e6, 1)
        master.terminate()
        master.join(timeout=10)
    return figures


def _per_app(rounds: list[dict[str, Any]], name: str) -> float:
    return float(median(value for each in rounds for value in each["cpu_us_per_app"][name]))


def main() -> None:
    """Run the benchmark and print the figures."""
    seconds, number = arguments(__doc__, seconds=60.0, rounds=2)
    without: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    for _ in range(number):
        without.append(loaded(seconds, archives=False))
        beside.append(loaded(seconds, archives=True))
    ratios = {name: round(_per_app(beside, name) / _per_app(without, name), 3) for name in ("master", "store")}
    show(without=without, archiving=beside, cpu_ratio=ratios)


if __name__ == "__main__":
    main()
