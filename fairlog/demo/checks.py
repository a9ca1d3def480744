"""The demo's checks of the log: what each app got, and whether admission was fair.

Shares, caps and workers are worked out a second time, as simply as possible, so that a mistake in the scheduler shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from recovery.replay.rebuild import fold
from scheduler.model.errors import FairlogError
from scheduler.model.events import AppAdmitted, ExecutorAllocated, ExecutorRemoved
from scheduler.model.resources import NOTHING
from scheduler.model.text import counted
from scheduler.rules.invariants import check
from scheduler.rules.share.entitlement import Entitlement, entitlement
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import look
from scheduler.service.receipts import Receipt
from scheduler.store.codec import Fact

VIEWS: dict[str, Any] = {"apps": {"everything": True}, "workers": {}, "companies": {}, "shares": {}, "settings": {}}


class CheckFailed(FairlogError):
    """A check of the demo failed."""


@dataclass
class DemoStory:
    """The final state, the core-ms and number of executors of each app, and the numbers of checks passed."""

    state: ClusterState = field(default_factory=ClusterState)
    core_ms: dict[str, int] = field(default_factory=dict)
    executors: dict[str, int] = field(default_factory=dict)
    positions: int = 0
    admissions: int = 0


def read_story(facts: Sequence[Fact]) -> DemoStory:
    """Fold the log and check each position and each admission.

    Raises: Broken naming the position and the violation, InvariantViolated if a ledger does not add up.
    """
    story, since = DemoStory(), dict[str, int]()
    turn, entitled = 0, Entitlement()
    for fact in facts:
        event = fact.event
        if isinstance(event, AppAdmitted):
            if fact.turn != turn or not entitled.units(story.state.apps[event.app]):
                turn, entitled = fact.turn, entitlement(story.state)
            check_admission(story.state, event, fact.seq, entitled)
            story.admissions += 1
        if isinstance(event, ExecutorRemoved):
            cores = story.state.executors[event.executor].resources.cores
            story.core_ms[event.app] = story.core_ms.get(event.app, 0) + cores * (fact.at - since[event.executor])
        fold(story.state, fact)
        if isinstance(event, ExecutorAllocated):
            since[event.executor] = fact.at
            story.executors[event.app] = story.executors.get(event.app, 0) + 1
        check_workers(story.state, fact.seq)
        check_caps(story.state, fact.seq)
        check(story.state)
        story.positions += 1
    return story


def check_workers(state: ClusterState, seq: int) -> None:
    """Raises: Broken if a worker's executors together exceed what it offers (semantics O2)."""
    for worker in state.workers.values():
        cores = sum(executor.resources.cores for executor in worker.executors.values())
        memory_mb = sum(executor.resources.memory_mb for executor in worker.executors.values())
        if cores > worker.offer.cores or memory_mb > worker.offer.memory_mb:
            raise CheckFailed(
                f"log position {seq}: worker {worker.id} is granted {counted(cores, 'core')} and {memory_mb} MiB, "
                f"but offers {counted(worker.offer.cores, 'core')} and {worker.offer.memory_mb} MiB"
            )


def check_admission(state: ClusterState, admitted: AppAdmitted, seq: int, entitled: Entitlement) -> None:
    """Check that the right company was admitted from (semantics C1, C3, H4).

    Of the companies with a pending app that is entitled to an executor it has the lowest share. If there is none, what
    is lent has room on a worker. Who is `entitled` in the turn is asked of the rules; the shares are worked out here.
    Raises: Broken.
    """
    waiting = {name: leaf for name, leaf in entitled.leaves.items() if not state.apps[name].admitted}
    due = {state.apps[name].spec.company for name, leaf in waiting.items() if leaf.units}
    if not due:
        size = state.apps[admitted.app].need.executor
        if not any(worker.free.covers(size) for worker in state.workers.values() if worker.status == "alive"):
            raise CheckFailed(f"log position {seq}: {admitted.app} was admitted although no worker has room for it")
    elif admitted.company not in due:
        others = ", ".join(sorted(due))
        raise CheckFailed(f"log position {seq}: {admitted.app} was admitted, but {others} had an app that is entitled")
    else:
        lowest = min(due, key=lambda name: _share(state, name))
        if _share(state, lowest) < _share(state, admitted.company):
            raise CheckFailed(
                f"log position {seq}: {admitted.company} was chosen with a share of {_share(state, admitted.company)}, "
                f"but {lowest} had a lower share, {_share(state, lowest)}"
            )


def check_caps(state: ClusterState, seq: int) -> None:
    """Raises: Broken if a company that may not borrow is granted more than its quota (semantics H1)."""
    for name, company in state.companies.items():
        moving = sum((app.moving for app in state.apps.values() if app.spec.company == name), NOTHING)
        granted, quota = company.balance.granted - moving, state.quota(name)
        if not company.spec.may_borrow and not quota.covers(NOTHING, granted):
            raise CheckFailed(f"log position {seq}: {name} is granted {granted}, but its quota is {quota.in_whole()}")


def check_acknowledged(facts: Sequence[Fact], receipts: Sequence[Receipt]) -> None:
    """Raises: Broken unless the log has each command at the position in its receipt."""
    for receipt in receipts:
        found = facts[receipt.seq - 1] if 0 < receipt.seq <= len(facts) else None
        if found is None or found.cause != receipt.command_id:
            raise CheckFailed(
                f"command {receipt.command_id} was acknowledged, but is not at log position {receipt.seq}"
            )


def takeover_ms(facts: Sequence[Fact], head: int, killed_ms: int) -> int:
    """Milliseconds from `killed_ms`, when the log ended at `head`, until another master was elected.

    Raises: Broken if none was.
    """
    before = [fact for fact in facts[:head] if fact.type == "MasterElected"]
    for fact in facts[head:]:
        if fact.type == "MasterElected" and (not before or fact.event != before[-1].event):
            return fact.at - killed_ms
    raise CheckFailed(f"no other master was elected after log position {head}, when the active master was killed")


def died_with(facts: Sequence[Fact], worker: str, head: int) -> list[str]:
    """The executors of `worker` that ended after log position `head` for another reason than exiting."""
    removed = [fact.event for fact in facts[head:] if isinstance(fact.event, ExecutorRemoved)]
    return [event.executor for event in removed if event.worker == worker and event.reason != "exited"]


def check_tasks(app: str, expected: int, states: Sequence[str]) -> None:
    """Raises: Broken unless all `expected` tasks of the app succeeded."""
    succeeded = sum(state == "succeeded" for state in states)
    if succeeded != expected or len(states) != expected:
        raise CheckFailed(f"{succeeded} of the {counted(expected, 'task')} of {app} succeeded")


def check_end(story: DemoStory, expected: Sequence[str], ask: Callable[..., Any]) -> None:
    """Raises: Broken unless every app finished, no resources are held, and `ask` returns the same views as the log."""
    state = story.state
    for app in expected:
        found = state.apps.get(app)
        if found is None or found.state != "finished":
            how = "unknown" if found is None else f"{found.state}{found.detail and f': {found.detail}'}"
            raise CheckFailed(f"app {app} did not finish: it is {how}")
    if state.executors or state.balance.requested.cores or state.balance.granted.cores:
        raise CheckFailed("resources are still held although every app has ended")
    for view, arguments in VIEWS.items():
        if ask(view, **arguments) != look(state, view, arguments):
            raise CheckFailed(f"the reader's view of the {view} differs from the log's")


def _share(state: ClusterState, name: str) -> Fraction:
    quota, held = state.quota(name), state.companies[name].balance
    return max(
        Fraction(held.requested.cores * quota.denominator, quota.amount.cores),
        Fraction(held.requested.memory_mb * quota.denominator, quota.amount.memory_mb),
    )
