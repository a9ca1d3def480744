"""The small clusters that are explored: workers, companies and apps, each set of equals once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, product
from typing import Any, NamedTuple

GIB = 1024
WORKERS = (2, 4)
"""Cores of a worker; it has as many GiB."""
SIZES = (1, 2, 3, 4)
"""Cores of an executor."""
NUMBERS = (1, 2)
"""How many executors an app wants."""
MOST_WORKERS, MOST_COMPANIES, MOST_APPS = 2, 3, 3
SETTINGS = {"reclaim_patience_s": 2, "min_runtime_s": 0, "kill_grace_s": 0, "retained_apps": 0}


class AppKind(NamedTuple):
    """An app: the cores of an executor, how many it wants, and whether it has a driver of one core, or needs a GPU."""

    size: int
    number: int
    driver: bool = False
    gpu: bool = False


class Tenant(NamedTuple):
    """A company: its apps, and whether it may hold no more than its quota, which is half of the cluster then."""

    apps: tuple[AppKind, ...]
    capped: bool = False


class World(NamedTuple):
    """A cluster; the first worker has a GPU if an app needs one."""

    workers: tuple[int, ...]
    tenants: tuple[Tenant, ...]

    @property
    def apps(self) -> list[tuple[int, AppKind]]:
        """Company and app, in the order of the names."""
        return [(number, app) for number, tenant in enumerate(self.tenants) for app in tenant.apps]

    def found(self) -> Iterator[dict[str, Any]]:
        """The operations that make the cluster, before any app (docs/cli.md, simulate)."""
        with_gpu = any(app.gpu for _, app in self.apps)
        if with_gpu:
            yield {"op": "resource", "kind": "gpu"}
        for number, cores in enumerate(self.workers):
            gpus = {"resources": {"gpu": ["0"]}} if with_gpu and not number else {}
            yield {"op": "worker", "worker": f"w{number}", "cores": cores, "memory_mb": cores * GIB, **gpus}
        total = sum(self.workers)
        for number, tenant in enumerate(self.tenants):
            quota = total // 2 if tenant.capped else total
            amounts = {"cores": quota, "memory_mb": quota * GIB}
            yield {"op": "company", "company": f"c{number}", **amounts, "borrow": not tenant.capped}

    def submission(self, place: int) -> dict[str, Any]:
        """The operation that submits the app at this place."""
        company, app = self.apps[place]
        cores = app.size * app.number
        asked = {"cores": cores, "tasks": cores, "executor_cores": app.size, "executor_memory_mb": app.size * GIB}
        driver = {"driver": True, "driver_cores": 1, "driver_memory_mb": GIB} if app.driver else {}
        gpu = {"executor_resources": {"gpu": 1}} if app.gpu else {}
        who = {"company": f"c{company}", "user": f"u{company}"}
        return {"op": "submit", "app": f"a{place}", **who, **asked, **driver, **gpu}


def worlds() -> Iterator[World]:
    """All of them, each set of equal workers, apps or companies once."""
    kinds = [AppKind(*each) for each in product(SIZES, NUMBERS, (False, True), (False, True))]
    for number in range(1, MOST_WORKERS + 1):
        for workers in combinations_with_replacement(WORKERS, number):
            for apps in range(1, MOST_APPS + 1):
                for chosen in combinations_with_replacement(kinds, apps):
                    if any(app.size + app.driver > max(workers) for app in chosen):
                        continue
                    for parted in _parted(chosen):
                        for capped in product((False, True), repeat=len(parted)):
                            tenants = tuple(map(Tenant, parted, capped))
                            if tenants == tuple(sorted(tenants)):
                                yield World(workers, tenants)


_OWNERS = {
    number: {
        tuple(sorted(tuple(place for place in range(number) if owners[place] == each) for each in set(owners)))
        for owners in product(range(MOST_COMPANIES), repeat=number)
    }
    for number in range(1, MOST_APPS + 1)
}
"""Number of apps -> each way in which they, by their places, belong to companies."""


def _parted(apps: Sequence[AppKind]) -> list[tuple[tuple[AppKind, ...], ...]]:
    """Each way in which the apps belong to one to three companies, those that are alike once."""
    owned = ([tuple(apps[place] for place in mine) for mine in owners] for owners in _OWNERS[len(apps)])
    return sorted({tuple(sorted(each)) for each in owned})
