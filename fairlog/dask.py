"""`fairlog.dask.FairlogCluster`: a Dask cluster whose workers are executors of one app. Needs `fairlog[dask]`."""

from __future__ import annotations

from fairlog.engines.dask_cluster import FairlogCluster

__all__ = ["FairlogCluster"]
