"""What Dask's tests of `SpecCluster` ask of a cluster, asked of ours; executors are workers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("distributed", reason="Dask is not installed")
import dask
from distributed import Client
from distributed.core import Status
from distributed.security import Security

from fairlog.engines import dask_cluster
from fairlog.engines.dask_cluster import FairlogCluster
from fairlog.engines.dask_node import DaskWorker
from scheduler.model.commands import SubmitApp
from tests.waiting import HOPELESS_S


class Grants:
    """In place of the app: it holds as many workers as are demanded, as rules G1 and G2 say."""

    def __init__(
        self, submission: SubmitApp, secrets: dict[str, str], *, hear: Callable[[Any], None], **_: Any
    ) -> None:
        self.demand = submission.executor_limit or 0
        self.address = secrets["FAIRLOG_DASK_SCHEDULER"]
        with dask.config.set(dask.config.merge(dask.config.config, dask.config.collect_env(secrets))):
            self.security = Security()  # as the program on an executor makes it
        self.broken = 0
        """So many of the next programs fail at their start."""
        self.workers: dict[str, DaskWorker] = {}
        self.granted = 0
        self.said: list[tuple[int, tuple[str, ...]]] = []
        self.finished = False
        self._hear = hear
        self._news = asyncio.Event()
        self._news.set()
        self._loop = asyncio.get_running_loop()
        self._serving = self._loop.create_task(self._serve())
        self._watching: set[asyncio.Task[None]] = set()

    def scale(self, executors: int, stop: Sequence[str] = ()) -> None:
        self.said.append((executors, tuple(stop)))
        self.demand = executors
        self._news.set()

    def finish(self) -> None:
        self.finished = True
        self._serving.cancel()
        for task in self._watching:
            task.cancel()

    async def _serve(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while len(self.workers) < self.demand:
                name = f"app.{self.granted}"
                self.granted += 1
                if self.broken:
                    self.broken -= 1
                    self.event("ExecutorRemoved", executor=name, reason="failed", detail="")
                    continue
                self.workers[name] = await DaskWorker(self.address, name=name, nthreads=1, security=self.security)
                task = self._loop.create_task(self._watch(name))
                self._watching.add(task)

    async def _watch(self, name: str) -> None:
        await self.workers[name].finished()
        del self.workers[name]
        self.demand = min(self.demand, max(len(self.workers), self.demand - 1))
        self.event("ExecutorRemoved", executor=name, reason="exited", detail="")
        self._news.set()

    def event(self, kind: str, **data: Any) -> None:
        self._hear({"type": kind, "data": data})


Story = Callable[[FairlogCluster, Client, Grants], Awaitable[None]]


def run(monkeypatch: pytest.MonkeyPatch, story: Story, **about: Any) -> Grants:
    """Have the story use a cluster of workers of one core and 512 MiB."""
    monkeypatch.setattr(dask_cluster, "OwnedApp", Grants)

    async def told() -> Grants:
        asked = {"company": "acme", "user": "ann", "memory_mb": 512, "host": "127.0.0.1", "asynchronous": True, **about}
        async with FairlogCluster(**asked) as cluster:
            grants: Any = cluster._owned
            async with Client(cluster, asynchronous=True) as client:
                try:
                    await story(cluster, client, grants)
                finally:
                    grants.finish()
                    grants.finished = False
        for worker in [*grants.workers.values()]:
            await worker.close()
        return grants  # type: ignore[no-any-return]

    return asyncio.run(told())


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(HOPELESS_S):
        while not reached():
            await asyncio.sleep(0.01)


def test_it_serves_no_web_pages_which_would_need_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: FairlogCluster, client: Client, grants: Grants) -> None:
        await client.wait_for_workers(1)
        nodes = [cluster.scheduler, *grants.workers.values()]
        assert [list(node.services) for node in nodes] == [[], []]
        assert all(node.address.startswith("tls://") for node in nodes)

    run(monkeypatch, story, n_workers=1)


def test_keys_of_ones_own_are_refused_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(*_: object) -> None:
        raise AssertionError("it began")

    with pytest.raises(TypeError, match="leave out security="):
        run(monkeypatch, story, security=Security())


def test_a_scheduler_with_options_of_ones_own_has_the_keys_of_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: FairlogCluster, client: Client, _: Grants) -> None:
        await client.wait_for_workers(1)
        assert cluster.scheduler.idle_timeout == 3600
        assert cluster.scheduler.address.startswith("tls://")

    options = {"host": "127.0.0.1", "dashboard": False, "idle_timeout": "1h"}
    run(monkeypatch, story, n_workers=1, scheduler={"options": options})


def test_it_scales_to_workers_cores_and_memory_and_ends_its_app(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: FairlogCluster, client: Client, grants: Grants) -> None:
        await cluster.scale(2)
        await client.wait_for_workers(2)
        assert await client.submit(pow, 2, 10) == 1024
        await until(lambda: len(cluster.scheduler_info["workers"]) == 2)
        assert cluster.observed == cluster.plan == set(grants.workers)
        cluster.scale(1)  # it need not be awaited
        await until(lambda: len(cluster.observed) == len(grants.workers) == 1)
        assert (grants.demand, len(cluster.plan)) == (1, 1)
        await cluster.scale(cores=3)
        await client.wait_for_workers(3)
        await cluster.scale(memory="600 MiB")
        await until(lambda: len(grants.workers) == 2)
        await cluster

    grants = run(monkeypatch, story)
    assert grants.finished


def test_the_demand_falls_before_workers_are_retired_and_they_are_stopped_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(cluster: FairlogCluster, client: Client, grants: Grants) -> None:
        await client.wait_for_workers(2)
        await client.replicate(await client.scatter([1, 2, 3]), n=1)
        await cluster.scale(1)
        lowered = [demand for demand, _ in grants.said]
        assert lowered == [1] * len(lowered)
        assert [len(stopped) for _, stopped in grants.said if stopped] == [1]
        assert grants.granted == 2

    run(monkeypatch, story, n_workers=2)


def test_it_adapts_from_nothing_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: FairlogCluster, client: Client, grants: Grants) -> None:
        adaptive = cluster.adapt(minimum=0, maximum_cores=2, interval="50ms", wait_count=1)
        assert adaptive.maximum == 2
        futures = client.map(pow, range(20), [2] * 20)
        assert sum(await client.gather(futures)) == 2470
        for future in futures:
            future.release()
        del futures, future
        await until(lambda: not grants.workers)
        assert grants.demand == 0
        assert await client.submit(pow, 3, 2) == 9
        adaptive.stop()

    assert run(monkeypatch, story).granted <= 5


def test_workers_that_a_restart_closes_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(_: FairlogCluster, client: Client, grants: Grants) -> None:
        await client.wait_for_workers(2)
        await client.restart(timeout=HOPELESS_S)
        await client.wait_for_workers(2)
        assert (grants.demand, grants.granted) == (2, 4)
        assert await client.submit(pow, 2, 3) == 8

    run(monkeypatch, story, n_workers=2)


def test_a_worker_that_closes_unexpectedly_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: FairlogCluster, client: Client, grants: Grants) -> None:
        await client.wait_for_workers(1)
        grants.broken = 1
        await next(iter(grants.workers.values())).close()
        await until(lambda: grants.granted == 3 and len(cluster.observed) == 1)
        assert await client.submit(pow, 2, 3) == 8

    run(monkeypatch, story, n_workers=1)


def test_the_cluster_closes_with_its_app_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(cluster: FairlogCluster, _: Client, grants: Grants) -> None:
        grants.event("AppRemoved", app=cluster.app, reason="failed", detail="10 of its executors failed in a row")
        await until(lambda: cluster.status == Status.closed)
        assert grants.finished

    run(monkeypatch, story)
    assert "is failed: 10 of its executors failed in a row" in capsys.readouterr().err
