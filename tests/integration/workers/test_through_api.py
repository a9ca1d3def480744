"""Workers that hold no store: agents, executors and drivers through API servers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fairlog.api.serve import Where, run_api
from fairlog.local.store import EmbeddedStore
from scheduler.service.keyring import Keyring
from tests.integration.forked import Forked
from tests.integration.workers.test_agent import Cluster
from tests.waiting import wait_until
from workers.agent import run_agent
from workers.offer import Offer

RING = Keyring.new()


class Served(Cluster):
    """A cluster with two API servers; its workers know nothing else."""

    def __init__(self, store: EmbeddedStore, folder: Path, sockets: Path) -> None:
        super().__init__(store, folder, RING)
        self.sockets = [sockets / "a", sockets / "b"]
        self.apis = [self.api(path) for path in self.sockets]

    def api(self, path: Path) -> Forked:
        return self.fork(partial(run_api, self.store.url, self.name, Where(path=path), keyring=RING))

    def agent(self, offer: Offer | None = None) -> Forked:
        offer = offer or self.offer()
        address = ",".join(f"http+unix:{path}" for path in self.sockets)
        process = self.fork(partial(run_agent, address, "", [offer]))
        wait_until(lambda: self.pid_of(offer.worker) == process.pid, f"the agent of {offer.worker}")
        return process


@pytest.fixture
def cluster(store: EmbeddedStore, tmp_path: Path) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="fl-") as sockets, Served(store, tmp_path, Path(sockets)) as running:
        yield running


def test_an_app_goes_from_submit_to_finished(cluster: Served) -> None:
    cluster.agent()
    app = cluster.submit(("/bin/sh", "-c", "echo $FAIRLOG_TASK_INDEX"), tasks=20)
    assert cluster.end_of(app)["state"] == "finished"
    assert [cluster.work.output(app, task) for task in range(20)] == [b"%d\n" % task for task in range(20)]
