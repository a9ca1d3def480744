"""Random clusters whose companies are in departments, and a filling by the text alone (semantics H2, H3, H12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from random import Random
from typing import Any

from scheduler.model.commands import (
    AddDepartment,
    Command,
    MoveCompany,
    RegisterCompany,
    RegisterWorker,
    SetLimit,
    SubmitApp,
)
from scheduler.model.resources import Resources
from scheduler.rules.entities.apps import App
from scheduler.rules.share.demands import held_units, wanted_units
from scheduler.rules.state.cluster import ClusterState
from tests.property.reference import within_above

PER_CORE_MB = 1024


def departments(random: Random, total: int, *, limits: bool) -> list[AddDepartment]:
    """A tree of two to four levels above companies' users."""
    depth = random.randint(1, 3)
    found: list[AddDepartment] = []
    for number in range(random.randint(depth, depth + 4)):
        places = [each.department for each in found if len(way(found, each.department)) < depth]
        parent = found[-1].department if 0 < number < depth else random.choice(["", *places])
        fields: dict[str, Any] = {}
        drawn = random.random()
        if drawn < 0.3:
            fields = {"cores": random.randint(0, total), "memory_mb": total * PER_CORE_MB}
        elif drawn < 0.5:
            fields = {"part": f"1/{random.randint(1, 6)}"}
        if limits or random.random() < 0.5:
            fields["borrow_limit"] = random.choice(["0%", "25%", "100%", "none"])
        if limits and random.random() < 0.5:
            fields["lend_limit"] = random.choice(["0%", "50%", "90%", "none"])
        found.append(AddDepartment(department=f"d{number}", parent=parent, **fields))
    return found


def _bounds(random: Random, names: list[str], total: int) -> list[SetLimit]:
    """Limits of every other department or so on what the apps of its companies claim together (semantics N2, H12)."""
    choices = {"max_running_apps": 3, "max_cores": 2 * total, "max_memory_mb": 2 * total * PER_CORE_MB}
    found = []
    for department in names:
        name, most = random.choice([*choices.items()])
        if random.random() < 0.4:
            found.append(SetLimit(scope="department", name=name, value=random.randint(1, most), department=department))
    return found


def way(found: list[AddDepartment], name: str) -> list[str]:
    """The departments from that one up."""
    parents = {each.department: each.parent for each in found}
    steps = []
    while name:
        steps.append(name)
        name = parents[name]
    return steps


def random_tree(seed: int, *, limits: bool = False) -> list[Command]:
    """Up to eight workers, six companies in departments, and ten apps of executors of one size each.

    With `limits` departments have borrow and lend limits, and some of them limits of what their companies claim.
    """
    random = Random(seed)
    sizes = [random.choice([4, 8, 16, 32]) for _ in range(random.randint(1, 8))]
    total = sum(sizes)
    commands: list[Command] = [*departments(random, total, limits=limits)]
    names = [each.department for each in commands if isinstance(each, AddDepartment)]
    commands += _bounds(Random(f"limits {seed}"), names, total) if limits else []
    number = random.randint(2, 6)
    for company in "abcdef"[:number]:
        quota: dict[str, Any] = {}
        if random.random() < 0.3:
            quota = {"part": f"1/{random.randint(1, 6)}", "borrow": random.random() < 0.6}
        commands += [
            RegisterCompany(company=company, **quota),
            MoveCompany(company=company, department=random.choice(["", *names, *names, *names])),
        ]
    for index, cores in enumerate(sizes):
        memory_mb = cores * PER_CORE_MB * random.choice([1, 2])
        commands.append(RegisterWorker(worker=f"w{index}", node="node", host="host", cores=cores, memory_mb=memory_mb))
    for index in range(random.randint(2, 10)):
        cores = random.choice([1, 1, 2, 3, 4, 8])
        commands.append(
            SubmitApp(
                app=f"app-{index}",
                company="abcdef"[random.randrange(number)],
                user=random.choice(["ann", "bob"]),
                command=("true",),
                cores=cores * random.choice([1, 2, 4, 8, 40]),
                tasks=100_000,
                executor_cores=cores,
                executor_memory_mb=cores * random.choice([256, 1024, 1536]),
            )
        )
    return commands


Share = tuple[Fraction | float, Resources, bool, tuple[int, ...]]
"""Whose turn it is: the share, the next unit, whether nobody holds that, and the rank (semantics H3)."""


@dataclass(eq=False)
class Demand:
    """One app in a user's queue."""

    app: str
    size: Resources
    most: int
    held: int
    rank: tuple[int, ...]
    units: int = 0
    out: bool = False


@dataclass(eq=False)
class Part:
    """A department, a company or a user."""

    quota: tuple[Fraction, Fraction]
    """Cores and MiB."""
    cap: tuple[Fraction, Fraction] | None = None
    kept: tuple[int, int] = (0, 0)
    parts: list[Part] = field(default_factory=list)
    demands: list[Demand] = field(default_factory=list)
    cores: int = 0
    memory_mb: int = 0

    def turns(self) -> Iterator[tuple[Share, list[Part], Demand]]:
        """What may come next in it, with the way down from this part."""
        for each in self.demands:
            if not each.out and each.units < each.most:
                yield self._turn((Fraction(0), each.size, each.units >= each.held, each.rank)), [self], each
                return
        found = [turn for part in self.parts for turn in part.turns()]
        if found:
            first, way, demand = min(found, key=lambda turn: turn[0])
            yield self._turn(first), [self, *way], demand

    def _turn(self, first: Share) -> Share:
        of_cores, of_memory = self.quota
        share = inf if not (of_cores and of_memory) else max(self.cores / of_cores, self.memory_mb / of_memory)
        return share, *first[1:]

    def reserved(self, kind: int) -> int:
        """What is kept in it of cores (0) or memory (1), and not used."""
        within = sum(part.reserved(kind) for part in self.parts)
        return max(within, self.kept[kind] - (self.cores, self.memory_mb)[kind])


def _quota(state: ClusterState, company: str) -> tuple[Fraction, Fraction]:
    quota = state.quota(company)
    return Fraction(quota.amount.cores, quota.denominator), Fraction(quota.amount.memory_mb, quota.denominator)


def _of_company(state: ClusterState, name: str) -> Part:
    company = state.companies[name]
    part = Part(_quota(state, name), cap=None if company.spec.may_borrow else _quota(state, name))
    users: dict[str, list[Demand]] = {}
    theirs = [app for app in state.apps.values() if app.spec.company == name and app.ended is None]
    before: dict[str, list[App]] = {}
    for app in sorted(theirs, key=lambda app: (not app.admitted, app.admitted or app.ready_position)):
        rank: tuple[int, ...] = (0, app.admitted)
        if not app.admitted:
            pending = before.setdefault(app.spec.user, [])
            if not within_above(state, app, pending):
                continue
            pending.append(app)
            rank = (1, company.last_selected, company.users[app.spec.user].last_selected, app.ready_position)
        demand = Demand(app.id, app.need.executor, wanted_units(app), held_units(app), rank)
        users.setdefault(app.spec.user, []).append(demand)
    total = state.fleet.total
    whole = Fraction(total.cores), Fraction(total.memory_mb)
    part.parts = [Part(whole, demands=demands) for demands in users.values()]
    return part


def _of_department(state: ClusterState, name: str) -> Part:
    spec = state.departments[name].spec
    parts = [_of_company(state, each) for each, company in state.companies.items() if company.department == name]
    parts += [_of_department(state, each) for each, other in state.departments.items() if other.spec.parent == name]
    total = state.fleet.total
    if spec.amounts is not None:
        quota = Fraction(spec.amounts.cores), Fraction(spec.amounts.memory_mb)
    elif spec.part is not None:
        quota = total.cores * Fraction(spec.part), total.memory_mb * Fraction(spec.part)
    else:
        cores, memory_mb = [sum((part.quota[kind] for part in parts), Fraction(0)) for kind in (0, 1)]
        quota = cores, memory_mb
    part = Part(quota, parts=parts)
    if spec.borrow_limit is not None:
        beyond = 1 + Fraction(spec.borrow_limit)
        part.cap = quota[0] * beyond, quota[1] * beyond
    if spec.lend_limit is not None:
        own = 1 - Fraction(spec.lend_limit)
        part.kept = int(quota[0] * own), int(quota[1] * own)
    return part


def naive_filling(state: ClusterState) -> Counter[str]:
    """App -> executors, handed out one by one as the text says; of clusters without drivers and further kinds."""
    total = state.fleet.total
    top = Part((Fraction(1), Fraction(1)))
    top.parts = [_of_company(state, name) for name, each in state.companies.items() if not each.department]
    top.parts += [_of_department(state, name) for name, each in state.departments.items() if not each.spec.parent]
    rooms = [(worker.offer.cores, worker.offer.memory_mb) for worker in state.workers.values()]
    found: Counter[str] = Counter()
    while turns := list(top.turns()):
        _, way, demand = turns[0]
        size = demand.size
        fitting = [room for room in rooms if room[0] >= size.cores and room[1] >= size.memory_mb]
        passes = all(
            part.cap is None
            or (part.cores + size.cores <= part.cap[0] and part.memory_mb + size.memory_mb <= part.cap[1])
            for part in way
        )
        before = [top.cores + top.reserved(0), top.memory_mb + top.reserved(1)]
        for part in way:
            part.cores, part.memory_mb = part.cores + size.cores, part.memory_mb + size.memory_mb
        after = [top.cores + top.reserved(0), top.memory_mb + top.reserved(1)]
        leaves = all(
            then <= most or then <= now
            for now, then, most in zip(before, after, (total.cores, total.memory_mb), strict=True)
        )
        if not (fitting and passes and leaves):
            demand.out = True
            for part in way:
                part.cores, part.memory_mb = part.cores - size.cores, part.memory_mb - size.memory_mb
            continue
        room = min(fitting, key=lambda room: (room[0] - size.cores, room[1] - size.memory_mb))
        rooms.remove(room)
        rooms.append((room[0] - size.cores, room[1] - size.memory_mb))
        demand.units += 1
        found[demand.app] += 1
    return found
