"""The Master's page `/json/`: workers, apps and drivers, with the fields that Spark 4 prints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from fairlog.compat.spark_rest.answers import driver_state, submission_of
from scheduler.model.commands import Private
from scheduler.model.events import Fixed
from scheduler.rules.view.views import summary

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.grants import Allocation
    from scheduler.rules.entities.workers import Worker
    from scheduler.rules.state.cluster import ClusterState

RETAINED = 200
"""How many ended apps, and how many ended drivers, are shown, the last ones; Spark's default."""
SCANNED = 10_000
"""How many apps are looked at, the last ones submitted."""
_WORKERS = {"alive": "ALIVE", "draining": "ALIVE", "leaving": "DECOMMISSIONED", "decommissioned": "DECOMMISSIONED"}
_APPS = {
    "pending": "WAITING",
    "waiting": "WAITING",
    "running": "RUNNING",
    "finished": "FINISHED",
    "killed": "KILLED",
    "expired": "KILLED",
}
_ENDED = ("FINISHED", "FAILED", "KILLED", "ERROR")


def page_of(
    state: ClusterState,
    *,
    url: str,
    led: bool,
    heard: Mapping[str, int],
    shown: Callable[[App], bool],
    public: Callable[[dict[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
    """The page of a Master at `url`, which is `led` by an active one; `heard` is each worker's last sign of life (ms).

    Of the apps it has those that are `shown`, with what is `public` of them.
    """
    workers = [_worker(worker, heard.get(name, 0)) for name, worker in sorted(state.workers.items())]
    alive = [worker for worker in workers if worker["state"] == "ALIVE"]
    apps: list[dict[str, Any]] = []
    drivers: list[dict[str, Any]] = []
    for app in islice(reversed(state.apps.values()), SCANNED):
        if not shown(app):
            continue
        if app.spec.driver is None:
            apps.append(_app(app, state.at, public))
        else:
            drivers.append(_driver(app, public))
    active = [app for app in apps if app["state"] in ("WAITING", "RUNNING")]
    ended = [app for app in apps if app["state"] not in ("WAITING", "RUNNING")]
    sums = {name: sum(worker[name] for worker in alive) for name in ("cores", "coresused", "memory", "memoryused")}
    return {
        "url": url,
        "workers": workers,
        "aliveworkers": len(alive),
        **sums,
        "resources": [worker["resources"] for worker in alive],
        "resourcesused": [worker["resourcesused"] for worker in alive],
        "activeapps": active,
        "completedapps": ended[:RETAINED],
        "activedrivers": [driver for driver in drivers if driver["state"] not in _ENDED],
        "completeddrivers": [driver for driver in drivers if driver["state"] in _ENDED][:RETAINED],
        "status": "ALIVE" if led else "RECOVERING",
    }


def part_of(page: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One field of the page, or how full the cluster is; "" for what it does not have, as Spark says it."""
    if name != "clusterutilization":
        return {name: page.get(name, "")}
    waiting = sum(driver["state"] in ("SUBMITTED", "RELAUNCHING") for driver in page["activedrivers"])
    said: dict[str, Any] = {"waitingDrivers": waiting}
    for what in ("cores", "memory"):
        all_of_it, used = page[what], page[f"{what}used"]
        said |= {what: all_of_it, f"{what}used": used}
        said[f"{what}utilization"] = 100 * used // all_of_it if all_of_it else 100
    return said


def _worker(worker: Worker, heard: int) -> dict[str, Any]:
    offer, free = worker.offer, worker.free
    used: dict[str, set[str]] = {}
    for held in (*worker.executors.values(), *worker.drivers.values()):
        for kind, addresses in held.addresses.items():
            used.setdefault(kind, set()).update(addresses)
    every = {kind: list(addresses) for kind, addresses in worker.addresses.items()}
    return {
        "id": worker.id,
        "host": worker.host,
        "port": 0,
        "webuiaddress": "",
        "cores": offer.cores,
        "coresused": offer.cores - free.cores,
        "coresfree": free.cores,
        "memory": offer.memory_mb,
        "memoryused": offer.memory_mb - free.memory_mb,
        "memoryfree": free.memory_mb,
        "resources": _kinds(every),
        "resourcesused": _kinds({kind: [each for each in every[kind] if each in used.get(kind, ())] for kind in every}),
        "resourcesfree": _kinds(
            {kind: [each for each in every[kind] if each not in used.get(kind, ())] for kind in every}
        ),
        "state": _WORKERS[worker.status],
        "lastheartbeat": heard,
    }


def _kinds(addresses: Mapping[str, list[str]]) -> dict[str, Any]:
    return {kind: {"name": kind, "addresses": each} for kind, each in addresses.items()}


def _app(app: App, at: int, public: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    executor = next(iter(app.executors.values()), None)
    if executor is not None:
        memory_mb = executor.resources.memory_mb
    else:
        memory_mb = app.sizing.each.memory_mb if isinstance(app.sizing, Fixed) else 0
    kinds = [] if executor is None else _each(executor)
    return {
        "id": app.id,
        "starttime": app.submitted_at,
        "name": public(to_builtins(summary(app)))["name"],
        "cores": app.granted.cores if app.ended is None else app.requested.cores,
        "user": app.spec.user,
        "memoryperexecutor": memory_mb,
        "memoryperslave": memory_mb,
        "resourcesperexecutor": kinds,
        "resourcesperslave": kinds,
        "submitdate": _date(app.submitted_at),
        "state": _APPS.get(app.state, "FAILED"),
        "duration": max(0, (app.ended_at or at) - app.submitted_at),
    }


def _each(executor: Allocation) -> list[dict[str, Any]]:
    return [{"name": kind, "amount": len(addresses)} for kind, addresses in executor.addresses.items()]


def _driver(app: App, public: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    asked = app.spec.driver
    command = public({**to_builtins(summary(app)), "command": list((app.private or Private()).command)})["command"]
    named = command.index("--class") + 1 if "--class" in command[:-1] else len(command)
    return {
        "id": submission_of(app.id),
        "starttime": str(app.submitted_at),
        "state": driver_state(app),
        "cores": 0 if asked is None else asked.cores,
        "memory": 0 if asked is None else asked.memory_mb,
        "resources": {} if app.driver is None else _kinds({kind: list(a) for kind, a in app.driver.addresses.items()}),
        "submitdate": _date(app.submitted_at),
        "worker": "None" if app.driver is None else app.driver.worker,
        "mainclass": command[named] if named < len(command) else "",
    }


def _date(at: int) -> str:
    """The time (ms) as Java writes it, in UTC."""
    return time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(at / 1000))
