"""A Dask cluster on one app: its scheduler runs in the owner's process, its workers are executors (semantics G)."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Collection, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dask.utils import parse_bytes
from distributed import Adaptive
from distributed.deploy.spec import NoOpAwaitable, SpecCluster
from distributed.security import Security

from fairlog.engines.dask_node import DaskScheduler
from fairlog.engines.keys import draw_keys
from fairlog.engines.owner import LEASE_S, OwnedApp, own_folder, own_host, say, whose, why_ended
from scheduler.model.commands import SubmitApp

if TYPE_CHECKING:
    from fairlog.engines.owner import Event

GRACE_S = 30
_SCRIPT = (
    'exec "$0" -m distributed.cli.dask_worker "$FAIRLOG_DASK_SCHEDULER" --name "$FAIRLOG_EXECUTOR_ID" '
    "--worker-class fairlog.engines.dask_node.DaskWorker "
    '--nthreads "$FAIRLOG_CORES" --memory-limit "${FAIRLOG_MEMORY_MB}MiB" --no-nanny --no-dashboard '
    '--local-directory "$FAIRLOG_SCRATCH" --host "${FAIRLOG_DASK_HOST:-$FAIRLOG_HOST}" --death-timeout 60'
)


def _drawn(app: str) -> tuple[dict[str, str], Security]:
    """New keys for the app: the variables that give Dask's processes on its executors theirs, and those of this one."""
    keys = draw_keys(app)
    pair = {"cert": keys.certificate, "key": keys.key}
    roles = {f"{role}_{part}": text for role in ("client", "scheduler", "worker") for part, text in pair.items()}
    security = Security(
        require_encryption=True,
        tls_ca_file=keys.authority,
        **{f"tls_{name}": text for name, text in roles.items()},
    )
    prefix = "DASK_DISTRIBUTED__COMM"
    variables = {f"{prefix}__TLS__{name.upper().replace('_', '__')}": text for name, text in roles.items()}
    return {f"{prefix}__REQUIRE_ENCRYPTION": "True", f"{prefix}__TLS__CA_FILE": keys.authority, **variables}, security


class _Adaptive(Adaptive):  # type: ignore[misc]  # its types are partial
    """Dask's, but that the cluster retires workers itself, once it has lowered the demand."""

    async def scale_down(self, workers: Collection[str]) -> None:
        """Have the cluster do it."""
        if workers:
            await self.cluster.scale_down(workers)


class FairlogCluster(SpecCluster):  # type: ignore[misc]  # its types are partial
    """A Dask cluster whose workers fairlog grants: `scale`, `adapt` from 0 and back, as any `SpecCluster`.

    Each worker has `cores` threads and `memory_mb`. A worker is called as its executor, so that the one which Dask
    retires is the one that is stopped. Scheduler and workers accept nobody but each other and clients with
    `cluster.security`: all show a certificate drawn for the app. Raises: TypeError for `security` of one's own.
    """

    def __init__(  # noqa: PLR0913 (by name only)
        self,
        n_workers: int = 0,
        *,
        company: str | None = None,
        user: str | None = None,
        cores: int = 1,
        memory_mb: int = 1024,
        name: str = "dask",
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        host: str | None = None,
        api: str | None = None,
        token: str | None = None,
        **options: Any,  # noqa: ANN401 (of `SpecCluster`)
    ) -> None:
        if "security" in options:
            raise TypeError("a FairlogCluster draws the keys of its app; leave out security=, and see cluster.security")
        company, user = whose(company, user, api, token)
        self._asked = n_workers
        self._api, self._token = api, token
        self._host = host or own_host(api)
        self._env = dict(env or {})
        self._owned: OwnedApp | None = None
        self._stating = threading.RLock()
        self._cores, self._memory_mb = cores, memory_mb
        self._request = SubmitApp(
            app=f"app-{uuid4().hex[:12]}",
            company=company,
            user=user,
            name=name,
            executor_program=True,
            executor_cores=cores,
            executor_memory_mb=memory_mb,
            executor_limit=n_workers,
            owner_timeout_s=LEASE_S,
            grace_s=GRACE_S,
            command=("sh", "-c", _SCRIPT, python),
            cwd=own_folder(),
        )
        self.app = self._request.app
        self._variables, security = _drawn(self.app)
        scheduler = {
            "cls": DaskScheduler,
            "options": {"host": self._host, "dashboard": False},
            **options.pop("scheduler", {}),
        }
        scheduler["options"] = {**scheduler["options"], "security": security}
        super().__init__(workers={}, name=self.app, scheduler=scheduler, security=security, **options)

    async def _start(self) -> None:
        await super()._start()
        if self._owned is not None:
            return
        variables = {
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
            **self._env,
            **self._variables,
            "FAIRLOG_DASK_SCHEDULER": self.scheduler_address,
        }
        if self._host == "127.0.0.1":
            variables["FAIRLOG_DASK_HOST"] = self._host
        submission = SubmitApp(
            **{name: getattr(self._request, name) for name in self._request.__struct_fields__}
            | {"env": tuple(sorted(variables)), "executor_limit": self._asked}
        )
        with self._stating:
            self._owned = OwnedApp(submission, variables, api=self._api, token=self._token, hear=self._hear)

    def _hear(self, event: Event) -> None:
        """State the demand again once a worker has closed by itself (G2), as for `Client.restart`; end with the app."""
        with self._stating:
            owned = self._owned
            if owned is None:
                return
            if event["type"] == "ExecutorRemoved" and event["data"]["reason"] == "exited":
                owned.scale(self._asked)
        if event["type"] == "AppRemoved":
            say(f"app {self.app} is {event['data']['reason']}: {why_ended(event) or 'ended by somebody'}")
            self.loop.add_callback(self._close)

    @property
    def observed(self) -> set[str]:
        """The workers that the scheduler knows."""
        return {worker["name"] for worker in self.scheduler_info["workers"].values()}

    @property
    def plan(self) -> set[str]:
        """The workers, and a name for each worker that is asked for beside them."""
        here = self.observed
        return here | {f"pending-{number}" for number in range(self._asked - len(here))}

    @property
    def requested(self) -> set[str]:
        """As `plan`: what is asked for is asked of the cluster at once."""
        return self.plan

    def _threads_per_worker(self) -> int:
        return self._cores

    def _memory_per_worker(self) -> int:
        return self._memory_mb << 20

    def _state(self, number: int, stop: Collection[str] = ()) -> None:
        with self._stating:
            self._asked = number
            if self._owned is not None:
                self._owned.scale(number, tuple(stop))

    def scale(self, n: int = 0, memory: str | int | None = None, cores: int | None = None) -> Any:  # noqa: ANN401 (Dask's)
        """Ask for so many workers, or for as many as have that memory or that many cores together.

        Of workers beyond, the ones without work are retired first. In an asynchronous cluster what is returned can be
        awaited.
        """
        if memory is not None:
            n = max(n, ceil(parse_bytes(memory) / self._memory_per_worker()))
        if cores is not None:
            n = max(n, ceil(cores / self._cores))
        if n >= len(self.observed):
            self._state(n)
            return NoOpAwaitable() if self.asynchronous else None
        return asyncio.ensure_future(self._shrink(n)) if self.asynchronous else self.sync(self._shrink, n)

    def adapt(self, Adaptive: type[Adaptive] = _Adaptive, **bounds: Any) -> Adaptive:  # noqa: ANN401, N803 (Dask's)
        """As `SpecCluster.adapt`."""
        return super().adapt(Adaptive=Adaptive, **bounds)

    async def _shrink(self, number: int) -> None:
        leaving = await self.scheduler_comm.workers_to_close(n=len(self.observed) - number, attribute="name")
        await self.scale_down(leaving, number)

    async def scale_up(self, n: int) -> None:
        """What `Adaptive` asks for."""
        self._state(n)

    async def scale_down(self, workers: Collection[str], number: int | None = None) -> None:
        """Lower the demand, so that nothing comes in their place; then retire the workers, then stop them."""
        here = [worker for worker in workers if worker in self.observed]
        self._state(max(0, self._asked - len(workers)) if number is None else number)
        if here:
            await self.scheduler_comm.retire_workers(names=here, remove=True, close_workers=True)
            self._state(self._asked, here)

    async def _close(self) -> None:
        with self._stating:
            owned, self._owned = self._owned, None
        await super()._close()
        if owned is not None:
            owned.finish()
