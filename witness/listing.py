"""Apps in lists, with the cause for which each waits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from scheduler.model.answers import AppInDetail, AppListed
from scheduler.model.commands import Private
from scheduler.model.events import Computed, Fixed
from scheduler.rules.entities.apps import App
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import named, summary_fields
from witness.pending_reasons import waits_for


class Among(NamedTuple):
    """Which apps are meant: those of these ids or numbers, companies and users; empty = all.

    Of apps that have ended, those that did so after `ended_after` (ms).
    """

    apps: Collection[str] = ()
    companies: Collection[str] = ()
    users: Collection[str] = ()
    ended_after: int = 0

    def of(self, state: ClusterState) -> Callable[[App], bool]:
        """What tells whether an app of the state is meant."""
        ids = {named(state, app) for app in self.apps}

        def meant(app: App) -> bool:
            return (
                (not ids or app.id in ids)
                and (not self.companies or app.spec.company in self.companies)
                and (not self.users or app.spec.user in self.users)
                and (app.ended is None or app.ended_at > self.ended_after)
            )

        return meant


def listed(state: ClusterState, app: App) -> AppListed:
    """As the view `apps` has it, with `reason` and `rule`: the cause for which it waits; None if it does not."""
    return AppListed(**_listed(state, app))


def detailed(state: ClusterState, app: App) -> AppInDetail:
    """As `listed`, with what its job asks for, where it runs, and since when (ms) something of it does."""
    spec, private, held = app.spec, app.private or Private(), list(app.allocations())
    return AppInDetail(
        **_listed(state, app),
        cwd=private.cwd,
        array=private.array or None,
        comment=private.comment,
        priority=app.priority,
        cores_per_task=spec.cores_per_task,
        memory_per_task=spec.sizing.memory_per_task_mb if isinstance(spec.sizing, Computed) else None,
        time_limit=spec.time_limit_s,
        max_runtime=app.max_runtime_s,
        after=dict(app.awaits) or None,
        begin_at=app.not_before or None,
        cancelled=list(app.cancelled) or None,
        ready_at=app.ready_at if app.ready else None,
        workers=[each.worker for each in held],
        started_at=min([each.granted_at for each in held], default=None),
        **_as_gang(app),
    )


def _as_gang(app: App) -> dict[str, Any]:
    """How many executors of which size a gang has, also once it has ended; nothing of another app."""
    sizing = app.spec.sizing
    if not app.spec.gang or not isinstance(sizing, Fixed):
        return {}
    each = sizing.each
    return {"executors": app.spec.executor_limit, "executor_cores": each.cores, "executor_memory": each.memory_mb}


def _listed(state: ClusterState, app: App) -> dict[str, Any]:
    """The fields of an `AppListed` without details."""
    wait = waits_for(state, app)
    return {**summary_fields(app), "reason": wait and wait.cause, "rule": wait and wait.rule}
