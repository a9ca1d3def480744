"""All that can happen in one small world, and what of it must not.

A state that is reached again in another way is looked at once. Executors leave when they are told to, at their deadline
or before; apps come, lose executors, end and come again at every moment. It must not happen that

- a ledger does not add up, a cap is passed, or a second turn without an input decides anything;
- an app waits for a turn that nothing causes, or a need for which room can be made is not served in time;
- a state comes again while an app is below its entitlement and others were served on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scheduler.model.errors import CommandRejected, InvariantViolated
from scheduler.model.events import EditionChanged, Event, ExecutorAllocated
from scheduler.rules.invariants import check
from scheduler.rules.share.entitlement import entitlement
from scheduler.rules.simulate import _commands
from scheduler.rules.stage.room import Seeking
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from tests.exploration.worlds import SETTINGS, World
from witness.pending_reasons import waits_for

STEP_MS = 1000
LATE_MS = 12 * STEP_MS
"""After its date a need is served by then: two steps for each unit of all apps, of which there are at most six (H9)."""
Key = tuple[Any, ...]
Operation = dict[str, Any]


class Wrong(NamedTuple):
    """What must not happen, and the scenario that makes it happen, as `fairlog simulate` reads it."""

    what: str
    scenario: dict[str, Any]


class Edge(NamedTuple):
    """A step: where it leads, which app acted, and which were granted executors."""

    to: Key
    actor: int | None
    served: frozenset[int]


@dataclass(slots=True)
class Node:
    """A state: how it came about, and who is below its entitlement there."""

    operations: tuple[Operation, ...]
    events: tuple[tuple[Event, int], ...]
    now: int
    below: frozenset[int]
    edges: list[Edge] = field(default_factory=list)


@dataclass(slots=True)
class Explored:
    """What was looked at of a world; `cut`: whether there were more states than that."""

    states: int = 0
    steps: int = 0
    cut: bool = False
    wrong: list[Wrong] = field(default_factory=list)


class _Step:
    """A state while operations are carried out in it."""

    def __init__(self, node: Node | None) -> None:
        self.state, self.now = ClusterState(), 0 if node is None else node.now
        self.operations = list(node.operations) if node is not None else []
        self.events = list(node.events) if node is not None else [(EditionChanged(edition=3), 0)]
        for event, at in self.events:
            self.state.apply(event, at=at)
        self.began = len(self.events)

    def carry_out(self, *operations: Operation, at: int) -> None:
        """One turn, and another one in which executors that were granted run."""
        before, self.now = len(self.events), at
        self._turn(*operations, at=at)
        granted = (event for event, _ in self.events[before:] if isinstance(event, ExecutorAllocated))
        begun = [{"op": "executor_running", "executor": event.executor} for event in granted]
        if begun:
            self._turn(*begun, at=at)

    def _turn(self, *operations: Operation, at: int) -> None:
        self.operations.append({"op": "turn", "at": at, "commands": list(operations)})
        timer = self.state.timers.next(self.state.at)
        turn = Turn(self.state, at)
        for operation in operations:
            for _, by, command in _commands(self.state, operation, 0):
                turn.take(command, by=by)
        turn.settle(due=timer is not None and timer <= at)
        self.events += [(entry.event, at) for entry in turn.entries]


def explore(world: World, most_states: int) -> Explored:
    """Look at up to `most_states` states of the world, the nearest first."""
    done = Explored()
    first = _Step(None)
    try:
        first.carry_out({"op": "settings", **SETTINGS}, at=1)
        first.carry_out(*world.found(), at=2)
        _look(first.state, first.now)
    except (AssertionError, InvariantViolated) as error:
        done.wrong.append(_wrong(str(error), first.operations))
        return done
    nodes: dict[Key, Node] = {}
    start = _key(first.state, first.now)
    nodes[start] = _node(first)
    waiting = [start]
    for key in waiting:
        node = nodes[key]
        for actor, operations, at in list(_possible(_Step(node).state, node.now, world)):
            step = _Step(node)
            done.steps += 1
            try:
                step.carry_out(*operations, at=at)
                _look(step.state, step.now)
            except CommandRejected:
                continue
            except (AssertionError, InvariantViolated) as error:
                done.wrong.append(_wrong(str(error), step.operations))
                continue
            to = _key(step.state, step.now)
            served = (event for event, _ in step.events[step.began :] if isinstance(event, ExecutorAllocated))
            node.edges.append(Edge(to, actor, frozenset(_place(event.app) for event in served)))
            if to in nodes:
                continue
            if len(nodes) >= most_states:
                done.cut = True
                continue
            try:
                nodes[to] = _node(step)
            except AssertionError as error:
                done.wrong.append(_wrong(str(error), step.operations))
                continue
            waiting.append(to)
    done.states = len(nodes)
    done.wrong += _starved(world, nodes)
    return done


def _wrong(what: str, operations: list[Operation] | tuple[Operation, ...]) -> Wrong:
    return Wrong(what, {"edition": 3, "commands": list(operations)})


def _node(step: _Step) -> Node:
    state, entitled = step.state, entitlement(step.state)
    below = set()
    for app in state.apps.values():
        if app.ended is not None or entitled.below(app) <= 0 or not app.admitted:
            continue
        if app.holds or Seeking(state, entitled, app, step.now).cheapest() is not None:
            below.add(_place(app.id))
            assert step.now - (app.lack.date or step.now) <= LATE_MS, f"{app.id} has no room long after its date (H9)"
    return Node(tuple(step.operations), tuple(step.events), step.now, frozenset(below))


def _look(state: ClusterState, now: int) -> None:
    check(state)
    again = Turn(state, now)
    again.settle()
    assert not again.entries, f"a second turn decides {again.entries[0].event}"
    for company in state.companies.values():
        apps = [app for app in state.apps.values() if app.spec.company == company.spec.company]
        moving = sum(app.moving.cores for app in apps)
        quota = state.quota(company.spec.company).in_whole().cores
        over = company.balance.granted.cores - moving > quota and not company.spec.may_borrow
        assert not over, f"{company.spec.company} passes its cap (H1)"
    for app in state.apps.values():
        wait = waits_for(state, app)
        assert wait is None or wait.cause != "next-turn", f"{app.id} waits for a turn that nothing causes"


def _place(app: str) -> int:
    return int(app[1:])


def _possible(state: ClusterState, now: int, world: World) -> Iterator[tuple[int | None, list[Operation], int]]:
    """Who can do what when: the app that acts, or None if time passes, or who was told to leave leaves."""
    soon = now + STEP_MS
    leaving = sorted((one for one in state.executors.values() if one.status == "stopping"), key=lambda one: one.id)
    late = [one for one in leaving if one.deadline <= now]
    if late:
        yield None, [{"op": "executor_ended", "executor": late[0].id, "reason": "killed"}], soon
        return
    times = [one.deadline for one in leaving]
    timer = state.timers.next(now)
    if timer is not None:
        times.append(timer)
    if times:
        yield None, [], max(now, min(times))
    elif state.indexes.needy:
        dates = [date for app in state.indexes.needy for date in (app.lack.date, app.lack.date + LATE_MS + 1)]
        yield None, [], min((date for date in dates if date > now), default=soon)
    if times and min(times) <= soon:
        return
    for one in _one_of_each(leaving):
        yield None, [{"op": "executor_ended", "executor": one.id, "reason": "exited"}], soon
    for place, operation in _of_apps(state, world):
        yield place, [operation], soon


def _of_apps(state: ClusterState, world: World) -> Iterator[tuple[int, Operation]]:
    """What apps do: each comes if it is not there, else it ends, or loses an executor on a worker."""
    alive = {_place(app.id): app for app in state.apps.values() if app.ended is None}
    for place in range(len(world.apps)):
        app = alive.get(place)
        if app is not None:
            yield place, {"op": "finish", "app": app.id}
            for one in _one_of_each([one for one in app.executors.values() if one.status == "running"]):
                yield place, {"op": "executor_ended", "executor": one.id, "reason": "exited"}
        elif f"a{place}" not in state.apps:
            yield place, world.submission(place)


def _one_of_each(executors: list[Any]) -> list[Any]:
    """Of the executors of an app on one worker, the first."""
    found: dict[tuple[str, str], Any] = {}
    for one in executors:
        found.setdefault((one.app, one.worker), one)
    return list(found.values())


def _key(state: ClusterState, now: int) -> Key:
    """What the future depends on: facts without names that only count, and times as distances from now."""
    apps = []
    alive = [app for app in state.apps.values() if app.ended is None or app.executors or app.driver is not None]
    grants = sorted(state.executors.values(), key=lambda one: (one.granted_at, one.id))
    for app in sorted(alive, key=lambda app: app.id):
        lack = (app.lack.units, max(-LATE_MS - 1, app.lack.date - now)) if app.lack.date else ()
        if app.lack.date and not app.lack.units:
            lack = (*lack, max(-SETTINGS["reclaim_patience_s"] * 1000 - 1, app.lack.ended - now))
        driver = None if app.driver is None else app.driver.worker
        apps.append((_place(app.id), app.state, lack, driver, app.left_cores, app.tries.driver_after > now))
    executors = [
        (
            *(_place(one.app), one.worker, one.resources.cores, one.status, one.moved, one.firm),
            max(-1, one.deadline - now) if one.deadline else None,
            _place(state.holds[one.claim].app) if one.claim in state.holds else None,
        )
        for one in grants
    ]
    holds = sorted((_place(hold.app), hold.worker, hold.amounts, hold.reason) for hold in state.holds.values())
    order = tuple(_place(app.id) for app in sorted(alive, key=lambda app: (app.admitted, app.submitted)))
    turns = sorted(state.queue.companies.values(), key=lambda each: each.tenant.last_selected)
    selected = tuple(each.tenant.company for each in turns if each.tenant.last_selected)
    timer = state.timers.next(now)
    return (
        *(tuple(apps), tuple(executors), tuple(holds), order, selected),
        None if timer is None else timer - now,
    )


def _starved(world: World, nodes: dict[Key, Node]) -> Iterator[Wrong]:
    """Of each app, a way round through states in which it is below, on which others were served and it was not."""
    for place in range(len(world.apps)):
        edges = {
            key: [edge for edge in node.edges if edge.actor != place and place not in edge.served]
            for key, node in nodes.items()
            if place in node.below
        }
        for key, out in edges.items():
            if any(edge.served and edge.to in edges and key in _reached(edges, edge.to) for edge in out):
                yield _wrong(f"a{place} is below, and others are served in a round that goes on", nodes[key].operations)
                break


def _reached(edges: dict[Key, list[Edge]], start: Key) -> set[Key]:
    """The states that can be reached from that one, itself included."""
    found, waiting = {start}, [start]
    for key in waiting:
        for edge in edges[key]:
            if edge.to in edges and edge.to not in found:
                found.add(edge.to)
                waiting.append(edge.to)
    return found
