"""What a pool does next, as a function of what the log and the provider say, and of what it saw before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from scheduler.model.resources import NOTHING, Resources, amounts_of
from scheduler.rules.entities.labels import demand_of, met_by

if TYPE_CHECKING:
    from fairlog.pools.providers import Instance
    from fairlog.pools.spec import Pool

LETS_GO = "pool {}: nothing to do"
"""Why a worker drains that its pool lets go, as `fairlog workers` shows it."""
TAKEN_AWAY = "pool {}: its machine is about to be taken away"
TOO_MANY = "pool {}: more workers than most"
_PLACED = 10_000
"""The most executors that are looked for room for."""


class PoolSeen(NamedTuple):
    """What one look has found: what the provider has, the workers of the log by id, and what apps lack by size."""

    listed: Mapping[str, Instance]
    workers: Mapping[str, Mapping[str, Any]]
    lacking: Sequence[Mapping[str, Any]]
    accounts: Collection[str] = ()
    """Workers that have an account; looked for only now and then."""


class PoolPlan(NamedTuple):
    """What is to be done, each list by the worker's number, and the figures of the line that tells of the pool."""

    start: list[str]
    stop: list[str]
    drain: dict[str, str]
    """Worker -> why."""
    undrain: list[str]
    forget: list[str]
    """Workers of which the log has something, and the provider nothing any more."""
    given_up: list[str]
    """Workers of `stop` that never joined."""
    serve: int
    coming: int
    empty: int
    wanted: int
    """How many workers would hold what is lacking."""
    unfit: Resources
    """The largest executor that is asked for and is larger than a worker of the pool."""
    names: list[str]
    """Every worker that the provider or the log has."""

    @property
    def acts(self) -> bool:
        """Whether anything is to be done."""
        return bool(self.start or self.stop or self.drain or self.undrain or self.forget)


Fate = Literal["serve", "come", "wait", "take back", "take away", "stop", "give up", "forget"]
"""What a worker of the pool does, or what is to become of it."""


class Memory:
    """What the pool has seen of each worker, in seconds of one clock; a pool that begins anew waits anew."""

    def __init__(self) -> None:
        self.empty: dict[str, float] = {}
        """Since when a worker that serves has had nothing to do."""
        self.coming: dict[str, float] = {}
        """Since when the provider has something that is no worker of the log."""
        self.not_before = 0.0
        """Nothing is started before."""

    def note(self, pool: Pool, seen: PoolSeen, now_s: float) -> None:
        """Remember what is seen now, and forget what is over."""
        empty = {name for name, each in seen.workers.items() if each["status"] == "alive" and is_empty(each)}
        coming = {name for name in seen.listed if pool.number(name) is not None and not is_live(seen, name)}
        for kept, found in ((self.empty, empty), (self.coming, coming)):
            for name in [name for name in kept if name not in found]:
                del kept[name]
            for name in found:
                kept.setdefault(name, now_s)


def is_empty(worker: Mapping[str, Any]) -> bool:
    """Whether nothing runs on the worker."""
    return not worker["executors"] and not worker["drivers"]


def is_live(seen: PoolSeen, name: str) -> bool:
    """Whether the log has the worker, and not as lost."""
    return name in seen.workers and seen.workers[name]["status"] != "lost"


def _fate(pool: Pool, seen: PoolSeen, name: str, late: bool) -> Fate:  # noqa: FBT001 (of one caller)
    """What is to become of a worker of the pool; `late`: it has had its time to join."""
    worker, instance = seen.workers.get(name), seen.listed.get(name)
    joined = worker is not None and worker["status"] != "lost"
    if instance is None:  # its machine is gone; a master finds out if the log does not know
        over = worker is not None and (not joined or (worker["status"] != "alive" and is_empty(worker)))
        return "forget" if over else "wait"
    if instance.broken:
        return "stop"
    if worker is None or not joined:
        return "wait" if instance.leaving else "give up" if late else "come"
    if worker["status"] == "alive":
        return "take away" if instance.leaving else "serve"
    if is_empty(worker):
        return "stop"
    ours = worker["status"] == "draining" and worker["reason"] == LETS_GO.format(pool.name)
    return "take back" if ours and not instance.leaving else "wait"


def plan(pool: Pool, seen: PoolSeen, memory: Memory, now_s: float) -> PoolPlan:
    """What to do now, after `memory.note`.

    A name is in use while the provider has it or the log has its worker; so nothing is ever there twice, whatever
    happened to the pool in between.
    """
    ours = {number: name for name in {*seen.listed, *seen.workers} if (number := pool.number(name)) is not None}
    names = [ours[number] for number in sorted(ours)]
    late = {name for name, since_s in memory.coming.items() if now_s - since_s >= pool.start_within}
    fates: dict[Fate, list[str]] = {fate: [] for fate in get_args(Fate)}
    for name in names:
        fates[_fate(pool, seen, name, name in late)].append(name)
    serving, coming = fates["serve"], len(fates["come"])
    empty = [name for name in serving if name in memory.empty]
    wanted, unfit = _needed(pool, seen.lacking)
    here = len(serving) + coming
    wished = max(0, min(max(wanted - coming - len(empty), pool.least - here), pool.most - here))
    undrain = fates["take back"][:wished]
    free = [number for number in range(1, pool.most + 1) if number not in ours]
    more = min(wished - len(undrain), pool.most - len(ours)) if now_s >= memory.not_before else 0
    drain = dict.fromkeys(fates["take away"], TAKEN_AWAY.format(pool.name))
    drain |= dict.fromkeys(serving[max(0, pool.most - coming) :], TOO_MANY.format(pool.name))
    if not wished:
        spare = min(len(empty) - max(0, wanted - coming), here - pool.least)
        idle = [name for name in reversed(empty) if now_s - memory.empty[name] >= pool.cool_down]
        drain |= dict.fromkeys(
            [name for name in idle if name not in drain][: max(0, spare - len(drain))], LETS_GO.format(pool.name)
        )
    start = [pool.worker(number) for number in free[: max(0, more)]]
    return PoolPlan(
        start=start,
        stop=[*fates["stop"], *fates["give up"]],
        drain=drain,
        undrain=undrain,
        forget=[*fates["forget"], *sorted(name for name in seen.accounts if name not in {*names, *start})],
        given_up=fates["give up"],
        serve=len(serving),
        coming=coming,
        empty=len(empty),
        wanted=wanted,
        unfit=unfit,
        names=names,
    )


def _needed(pool: Pool, lacking: Sequence[Mapping[str, Any]]) -> tuple[int, Resources]:
    """How many workers of the pool hold what is lacking, first fit, the largest first, at most `most`.

    And the largest executor that no worker of the pool can hold.
    """
    each, rooms, unfit = pool.each, list[Resources](), NOTHING
    labels = {"pool": pool.name, **pool.labels}
    sizes = [
        (Resources(want["cores"], want["memory"], amounts_of(want["resources"])), int(want["missing"]))
        for want in lacking
        if met_by(demand_of(want.get("require", ()), want.get("avoid", ()), want.get("tolerate", ())), labels, ())
    ]
    for size, missing in sorted(sizes, key=lambda found: (-found[0].cores, -found[0].memory_mb)):
        if not each.covers(size):
            unfit = max(unfit, size, key=lambda found: (found.cores, found.memory_mb))
            continue
        left = min(missing, _PLACED)
        for number, room in enumerate(rooms):
            fits = min(left, room.holds(size)) if room.covers(size) else 0
            rooms[number] = room - size * fits
            left -= fits
        while left and len(rooms) < pool.most:
            fits = min(left, each.holds(size))
            rooms.append(each - size * fits)
            left -= fits
    return len(rooms), unfit
