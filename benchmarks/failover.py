"""Failover time, printed as JSON.

`failover.py [EVENTS]` writes a log of EVENTS events (default 10⁶) to the embedded server, plus the keys that a week of
apps leaves behind, and starts two masters. Each round ends the active master, with SIGKILL or SIGTERM, and sends a
command at the same moment. The measured time ends with the answer, when the standby has committed the command. There
are `ROUNDS` rounds per signal and lease time. A new master replaces the ended one before the next round.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

from benchmarks._common import arguments, show, wait_for
from benchmarks.replay import QUEUED, WORKERS, History, write
from fairlog.client import StoreClient
from fairlog.local.store import EmbeddedStore
from recovery.failover.lease import members
from recovery.failover.master import SNAPSHOT_EVERY
from recovery.replay.snapshot import positions
from scheduler.model.commands import ConfigureCluster, RegisterCompany
from scheduler.store.connection import connect
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys

ROUNDS = 10
LEASES_S = (1.0, 3.0)
OTHER_KEYS = 100_000
DAY_S = 86_400
ROOT = Path(__file__).parents[1]


class Masters:
    """Two master processes on one store: one active, one standby."""

    def __init__(self, url: str, lease_s: float) -> None:
        self.client = StoreClient(url, timeout_s=120)
        self._command = [sys.executable, "-m", "fairlog", "master", "--store", url, "--lease", str(lease_s)]
        self._processes = {process.pid: process for process in (self._start(), self._start())}
        self._stand_ready()

    def takes_over_after(self, number: signal.Signals) -> float:
        """Seconds from the signal to the active master until the answer to a command."""
        serving = self._serving()
        sent = time.perf_counter()
        os.kill(serving, number)
        self.client.send(RegisterCompany(company=f"after-{uuid4().hex}"))
        took = time.perf_counter() - sent
        self._processes.pop(serving).wait()
        started = self._start()
        self._processes[started.pid] = started
        self._stand_ready()
        return took

    def close(self) -> None:
        """Terminate both."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.DEVNULL)

    def _serving(self) -> int:
        """The pid of the active master. Waits for one: on a busy machine the lease may just have expired."""
        while (found := members(self.client.store, self.client.keys)[0]) is None or found.pid not in self._processes:
            time.sleep(0.05)
        return found.pid

    def _stand_ready(self) -> None:
        """Wait until both run and the standby has replayed the log and blocks for new entries."""
        store, keys = self.client.store, self.client.keys
        log = EventLog(store, keys)
        wait_for(lambda: max(positions(log), default=0) > log.head().seq - 2 * SNAPSHOT_EVERY, "a snapshot")
        wait_for(
            lambda: {standby.pid for standby in members(store, keys)[1]} >= self._processes.keys() - {self._serving()},
            "the standby",
        )
        self.client.view("cluster")
        wait_for(
            lambda: any(asked["cmd"] == "xread" and "b" in asked["flags"] for asked in store.client_list()),
            "its replay",
        )


def _measured(url: str, lease_s: float) -> dict[str, object]:
    masters = Masters(url, lease_s)
    try:
        killed = sorted(masters.takes_over_after(signal.SIGKILL) for _ in range(ROUNDS))
        stopped = sorted(masters.takes_over_after(signal.SIGTERM) for _ in range(ROUNDS))
    finally:
        masters.close()
    return {"lease_s": lease_s, "killed_s": [round(s, 3) for s in killed], "stopped_s": [round(s, 3) for s in stopped]}


def main() -> None:
    """Run the benchmark and print the figures."""
    (events,) = arguments(__doc__, events=1_000_000)
    with tempfile.TemporaryDirectory() as folder, EmbeddedStore(Path(folder)) as store:
        connection, keys = connect(store.url), Keys()
        log, history = EventLog(connection, keys), History(workers=WORKERS, queued=QUEUED)
        write(log, history, events)
        with connection.pipeline(transaction=False) as keeping:
            for number in range(OTHER_KEYS):
                keeping.set(keys.output(f"kept-{number}"), "")
            keeping.execute()
        first = Masters(store.url, LEASES_S[0])
        first.client.send(ConfigureCluster(settings={"worker_timeout_s": DAY_S}))
        first.close()
        show(events=log.head().seq, failover=[_measured(store.url, lease_s) for lease_s in LEASES_S])


if __name__ == "__main__":
    main()
