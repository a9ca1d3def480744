"""How long a cluster is without a master that decides, printed as JSON.

`failover.py [EVENTS]`: a log of so many events (10⁶ unless told otherwise) on the embedded server, and beside it as
many keys as a week of apps leaves there. Of two masters the one that serves is killed with `kill -9`, or told to
stop, and a command that is sent at that moment is timed until its answer: the next decision is committed then. As
often as `ROUNDS` says for each lease; a master that has ended is replaced before the next round.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from benchmarks.replay import QUEUED, WORKERS, History, write
from fairlog.local.store import EmbeddedStore
from recovery.failover.lease import members
from recovery.failover.master import SNAPSHOT_EVERY
from recovery.replay.snapshot import positions
from scheduler.model.commands import ConfigureCluster, RegisterCompany
from scheduler.service.client import Client
from scheduler.store.connection import connect
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys

ROUNDS = 10
LEASES_S = (1.0, 3.0)
OTHER_KEYS = 100_000
DAY_S = 86_400
ROOT = Path(__file__).parents[1]


class Masters:
    """Two master processes on one store, one of which serves."""

    def __init__(self, url: str, lease_s: float) -> None:
        self.client = Client(url, timeout_s=120)
        self._command = [sys.executable, "-m", "fairlog", "master", "--store", url, "--lease", str(lease_s)]
        self._processes = {process.pid: process for process in (self._start(), self._start())}
        self._stand_ready()

    def takes_over_after(self, number: signal.Signals) -> float:
        """The seconds from the signal to the serving master until the answer to a command."""
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
        """End both."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.DEVNULL)

    def _serving(self) -> int:
        """The one of both that serves, waited for: on a busy machine a lease may have run out just now."""
        while True:
            found = members(self.client.store, self.client.keys)[0]
            if found is not None and found.pid in self._processes:
                return found.pid
            time.sleep(0.05)

    def _stand_ready(self) -> None:
        """Return once both are there, and the one that stands by has folded all there is and waits for more."""
        store, keys = self.client.store, self.client.keys
        log = EventLog(store, keys)
        _await(lambda: max(positions(log), default=0) > log.head().seq - 2 * SNAPSHOT_EVERY)
        _await(lambda: {member.pid for member in members(store, keys)[1]} >= self._processes.keys() - {self._serving()})
        self.client.view("cluster")
        _await(lambda: any(asked["cmd"] == "xread" and "b" in asked["flags"] for asked in store.client_list()))


def _await(holds: Callable[[], object]) -> None:
    while not holds():
        time.sleep(0.05)


def _measured(url: str, lease_s: float) -> dict[str, object]:
    masters = Masters(url, lease_s)
    try:
        killed = sorted(masters.takes_over_after(signal.SIGKILL) for _ in range(ROUNDS))
        stopped = sorted(masters.takes_over_after(signal.SIGTERM) for _ in range(ROUNDS))
    finally:
        masters.close()
    return {"lease_s": lease_s, "killed_s": [round(s, 3) for s in killed], "stopped_s": [round(s, 3) for s in stopped]}


def main() -> None:
    """Measure and print."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
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
        result = {
            "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()},
            "events": log.head().seq,
            "failover": [_measured(store.url, lease_s) for lease_s in LEASES_S],
        }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
