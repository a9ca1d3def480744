"""Dask's scheduler and worker without their web servers, which would answer whoever reaches them, without a key."""

from __future__ import annotations

import distributed


class _WithoutWeb:
    def start_http_server(self, *_: object, **__: object) -> None:
        """Listen nowhere."""


class DaskScheduler(_WithoutWeb, distributed.Scheduler):  # type: ignore[misc]  # its types are partial
    """The scheduler of a `FairlogCluster`."""


class DaskWorker(_WithoutWeb, distributed.Worker):  # type: ignore[misc]  # its types are partial
    """A worker of a `FairlogCluster`."""
