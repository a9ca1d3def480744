"""Squares on a Dask cluster that grows from nothing: `python examples/dask_cluster.py COMPANY USER`."""

from __future__ import annotations

import sys

from distributed import Client

from fairlog.dask import FairlogCluster


def main(company: str, user: str) -> None:
    """Let Dask ask for workers as it needs them."""
    with FairlogCluster(company=company, user=user, memory_mb=512) as cluster, Client(cluster) as client:
        cluster.adapt(minimum=0, maximum=2)
        print(sum(client.gather(client.map(pow, range(100), [2] * 100))), "is the sum of the squares")  # noqa: T201 (likewise)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/dask_cluster.py COMPANY USER")
    main(*sys.argv[1:])
