"""Bring the store in line with a log that was folded again: the grants, the task queues, the secrets.

Another master may have been elected meanwhile, so only what the folded log proves is acted on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from scheduler.model.grants import GrantChanges
from scheduler.model.ids import number_of
from scheduler.rules.view.assignments import all_grants
from scheduler.store.inflight import InFlight
from scheduler.store.keys import as_text
from scheduler.store.scripts import script

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.rules.state.cluster import ClusterState
    from scheduler.store.inflight import StoreCommand
    from scheduler.store.keys import Keys
    from scheduler.store.task_queue import Worklist

_AT_ONCE = 256
"""Of how many workers the grants are read at once: the store does nothing else meanwhile."""
_HASHES_LUA = script(__file__, "hashes")


def stored_grants(store: Redis, keys: Keys) -> dict[str, dict[str, str]]:
    """The grants in the store by worker and id. Every worker with grants is expected to send heartbeats."""
    members: Any = store.zrange(keys.heartbeats, 0, -1)
    workers = [as_text(member) for member in members]
    places = [keys.grants(worker) for worker in workers]
    parts = (places[first : first + _AT_ONCE] for first in range(0, len(places), _AT_ONCE))
    found = chain.from_iterable(InFlight(store, [("EVAL", _HASHES_LUA, len(part), *part) for part in parts]).answers())
    return {
        worker: {as_text(name): as_text(grant) for name, grant in zip(flat[::2], flat[1::2], strict=True)}
        for worker, flat in zip(workers, found, strict=True)
    }


def differing_grants(state: ClusterState, stored: Mapping[str, Mapping[str, str]], *, settled_at: int) -> GrantChanges:
    """The changes that turn the `stored` grants into those of the state. A failover may have left any others."""
    granted = all_grants(state, settled_at=settled_at)
    by_worker: dict[str, dict[str, str | None]] = {}
    for worker, grants in granted.items():
        found = stored.get(worker, {})
        differing: dict[str, str | None] = dict.fromkeys(sorted(found.keys() - grants.keys()))
        differing |= {name: grant for name, grant in grants.items() if found.get(name) != grant}
        if differing:
            by_worker[worker] = differing
    return GrantChanges(by_worker, sorted(granted.keys() - stored.keys()), sorted(stored.keys() - granted.keys()))


def concerned(state: ClusterState, changes: GrantChanges) -> list[str]:
    """The workers that a new master must ring: their grants changed, or they have yet to start or stop something.

    The master before may have died between a commit and its rings.
    """
    busy = (
        worker.id
        for worker in state.workers.values()
        if any(held.status != "running" for held in (*worker.executors.values(), *worker.drivers.values()))
    )
    return [*dict.fromkeys((*changes.by_worker, *changes.joined, *busy))]


def reconcile_tasks(
    store: Redis, keys: Keys, worklist: Worklist, state: ClusterState, open_apps: Sequence[str]
) -> None:
    """Return the tasks of removed executors to their queues, and delete what is left of apps that are over.

    `open_apps`, the apps with a task queue, must have been read before the log. An executor counts as removed only if
    this log granted it and removed it.
    """
    living = [app for name in open_apps if (app := state.apps.get(name)) is not None and app.ended is None]
    ended = [name for name, app in state.apps.items() if app.ended is not None and has_variables(state, name)]
    asked: list[StoreCommand] = [("HVALS", keys.begun(app.id)) for app in living]
    asked += [("EXISTS", keys.secrets(name)) for name in ended]
    answers = InFlight(store, asked).all()
    for app, holders in zip(living, answers, strict=False):
        if isinstance(holders, ResponseError):
            continue  # no hash: nothing of it can be trusted
        gone = sorted({as_text(value) for value in holders} - app.executors.keys())
        granted_once = [executor for executor in gone if number_of(executor) < app.next_executor]
        if granted_once:
            worklist.put_back(app.id, *granted_once)
    with_secrets = [name for name, there in zip(ended, answers[len(living) :], strict=True) if there]
    worklist.forget({name: company_of(state, name) for name in (*open_apps, *with_secrets) if is_over(state, name)})


def has_variables(state: ClusterState, app: str) -> bool:
    """Whether the app has environment variables, whose values are secrets in the store."""
    found = state.apps.get(app)
    if found is None or b'"env":' not in found.private_json:  # it may also stand in the command
        return False
    return found.private is not None and bool(found.private.env)


def company_of(state: ClusterState, name: str) -> str:
    """The company of the app; "" if the state has forgotten the app."""
    app = state.apps.get(name)
    return app.spec.company if app is not None else ""


def is_over(state: ClusterState, name: str) -> bool:
    """Whether nothing of the app will run any more. An app that the state has forgotten is over."""
    app = state.apps.get(name)
    return app is None or (app.ended is not None and not app.allocations())
