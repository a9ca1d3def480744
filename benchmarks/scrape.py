"""What watching costs: a scrape of a master, a scrape of an API server, and the continuous audit.

`python benchmarks/scrape.py` prints the figures as JSON: CPU time of the master's process for each scrape and for each
commit that it measures, the latency of a scrape, and how fast the auditor follows.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

import fakeredis

from benchmarks._common import arguments
from fairlog.watch.auditor import Auditor
from fairlog.watch.metrics import Metrics, standing_of
from fairlog.watch.tally import Tally
from recovery.archive.archive import open_log
from recovery.failover.exporter import Exporter
from scheduler.model.commands import RegisterCompany, RegisterWorker, SubmitApp
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.service.measures import Measures
from scheduler.store.keys import Keys
from tests.property.given import recorded
from tests.property.histories import played, seeded
from tests.unit.fairlog.watch.test_metrics import AROUND
from tests.unit.recorded import put

SCRAPES, COMMITS = 200, 100_000
APPS, COMPANIES, WORKERS = 5_000, 20, 50
TURNS = 2_000


def of_a_master() -> dict[str, float]:
    """ms of the master's CPU a scrape, µs of it a commit, and the median latency of a scrape in ms."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "127.0.0.1", int(free.getsockname()[1])
    measures = Measures()
    exporter = Exporter(measures, address)
    url = f"http://127.0.0.1:{address[1]}/metrics"
    try:
        _answered(url)
        child, took = os.fork(), []
        if not child:  # the scraper is a process of its own, so that this one's CPU time is the master's
            latencies = sorted(_timed(url) for _ in range(SCRAPES))
            Path(tempfile.gettempdir(), f"scrapes-{os.getppid()}").write_text(str(latencies[SCRAPES // 2]))
            os._exit(0)
        before_s = time.process_time()
        os.waitpid(child, 0)
        scraped_s = time.process_time() - before_s
        file = Path(tempfile.gettempdir(), f"scrapes-{os.getpid()}")
        took.append(float(file.read_text()))
        file.unlink()
    finally:
        exporter.stop()
    before_s = time.process_time()
    for number in range(COMMITS):
        measures.committed(0.003, 7, 3, number)
    committed_s = time.process_time() - before_s
    return {
        "masterMsAScrape": round(scraped_s * 1000 / SCRAPES, 4),
        "masterUsACommit": round(committed_s * 1e6 / COMMITS, 3),
        "latencyMs": round(median(took) * 1000, 2),
    }


def _answered(url: str) -> None:
    while True:
        try:
            _timed(url)
        except OSError:
            time.sleep(0.05)
        else:
            return


def _timed(url: str) -> float:
    began_s = time.perf_counter()
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own address
        answer.read()
    return time.perf_counter() - began_s


def of_an_api() -> dict[str, float]:
    """ms of CPU for the figures of a large cluster, and for the longest look at its state while no turn is folded."""
    state = ClusterState()
    turn = Turn(state, AROUND.now - 60_000)
    for number in range(COMPANIES):
        turn.take(RegisterCompany(company=f"c{number}", cores=64, memory_mb=1 << 20))
    for number in range(WORKERS):
        turn.take(RegisterWorker(worker=f"w{number}", node="n", host="h", cores=16, memory_mb=1 << 16))
    for number in range(APPS):
        about: dict[str, Any] = {"company": f"c{number % COMPANIES}", "user": f"u{number % 7}", "tasks": 4}
        turn.take(SubmitApp(app=f"a{number}", cores=8, command=("x",), **about))
    turn.settle()
    fake = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    metrics = Metrics(fake, Keys("prod"), Tally(), read=lambda look: look(state), around=lambda: AROUND)
    before_s = time.process_time()
    metrics.text()
    whole_s, before_s = time.process_time() - before_s, time.process_time()
    standing_of(state, AROUND)
    return {
        "apps": APPS,
        "msAScrape": round(whole_s * 1000, 1),
        "longestLookMs": round((time.process_time() - before_s) * 1000, 1),
    }


def of_the_auditor() -> dict[str, float]:
    """Events a second of CPU that the auditor follows, checkpoint included."""
    log = open_log(fakeredis.FakeRedis(server=fakeredis.FakeServer()), Keys("prod"))
    records = recorded(played(seeded(11, TURNS)))
    put(log, records)
    with tempfile.TemporaryDirectory() as folder:
        auditor = Auditor(log, Path(folder))
        auditor.resume()
        before_s = time.process_time()
        for record in records:
            auditor.hear(record)
        heard_s, before_s = time.process_time() - before_s, time.process_time()
        auditor.keep()
        kept_s = time.process_time() - before_s
    events = records[-1].last
    return {"events": events, "eventsASecond": round(events / heard_s), "checkpointMs": round(kept_s * 1000, 1)}


if __name__ == "__main__":
    arguments(__doc__)
    print(json.dumps({"master": of_a_master(), "api": of_an_api(), "auditor": of_the_auditor()}, indent=2))
