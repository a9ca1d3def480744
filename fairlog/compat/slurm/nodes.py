"""Workers as Slurm's nodes, of the one partition that there is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fairlog.compat.slurm.road import ApiRoad
from fairlog.compat.slurm.words import SlurmError, listed, runs

NO_GRES = "(null)"
"""What Slurm tells of what has nothing of further kinds."""
_STATES = {"draining": "drain", "leaving": "drain", "decommissioned": "down", "lost": "down"}


class SlurmNode:
    """A worker. `state` is one of idle, mix, alloc, drng, drain, down."""

    def __init__(self, worker: dict[str, Any]) -> None:
        self.worker = worker
        self.name, self.cores, self.used = worker["worker"], worker["cores"], worker["grantedCores"]
        self.memory, self.used_memory = worker["memory"], worker["grantedMemory"]
        self.reason = worker["reason"] or ""
        self.kinds: dict[str, list[str]] = worker.get("resources") or {}
        """Its addresses of further kinds; those that are granted are in `used_kinds`."""
        self.used_kinds: dict[str, list[str]] = worker.get("grantedResources") or {}
        found = _STATES.get(worker["status"])
        if found == "drain" and self.used:
            found = "drng"
        self.state = found or ("idle" if not self.used else "alloc" if self.used >= self.cores else "mix")

    def is_among(self, names: set[str]) -> bool:
        """Whether it is one of these: nodes are named as workers are, or by their hosts."""
        return bool(names & {self.name, self.worker["host"], str(self.worker["host"]).partition(".")[0]})

    @property
    def offered(self) -> dict[str, int]:
        """How much it has of further kinds; of a lost one, what it had."""
        return {kind: len(found) for kind, found in self.kinds.items()} or self.worker.get("offeredResources") or {}

    @property
    def gres(self) -> str:
        """What it has of further kinds, as Slurm lists it: `gpu:2`."""
        return gres(self.offered) or NO_GRES

    @property
    def gres_used(self) -> str:
        """How much of that is granted, also nothing: `gpu:0`."""
        return ",".join(f"{kind}:{len(self.used_kinds.get(kind, ()))}" for kind in self.offered) or NO_GRES

    @property
    def tres(self) -> str:
        """All that it has, as Slurm lists it."""
        return f"cpu={self.cores},mem={self.memory}M,billing={self.cores}{tres_of(self.offered)}"

    @property
    def tres_used(self) -> str:
        """What of it is granted; "" for nothing."""
        kinds = {kind: len(found) for kind, found in self.used_kinds.items()}
        return f"cpu={self.used},mem={self.used_memory}M{tres_of(kinds)}" if self.used else ""

    @property
    def load(self) -> str:
        """Its granted cores as its load, which nobody measures; of one that does not answer, nothing."""
        return "N/A" if self.state == "down" else f"{self.used:.2f}"

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Its cores: granted, idle, others, all."""
        away = self.state in ("drain", "drng", "down")
        return self.used, 0 if away else self.cores - self.used, self.cores - self.used if away else 0, self.cores


def gres(kinds: dict[str, int]) -> str:
    """Amounts of further kinds as Slurm lists those of a node: `gpu:2`; "" for none."""
    return ",".join(f"{kind}:{number}" for kind, number in kinds.items() if number)


def tres_of(kinds: dict[str, int]) -> str:
    """What follows cores and memory in a list of all that somebody has: `,gres/gpu=2`."""
    return "".join(f",gres/{kind}={number}" for kind, number in kinds.items() if number)


def nodes(road: ApiRoad) -> list[SlurmNode]:
    """The workers by name, also lost ones that are still remembered."""
    return [SlurmNode(worker) for worker in road.get("/v1/workers", fresh="true", lost="true")]


def workers_named(road: ApiRoad, text: str, *, known: bool = False) -> set[str]:
    """The workers of a list of nodes, those of a host that it names included; `known`: each name must be of one.

    Raises: Refused.
    """
    names = set(hosts_of(text))
    if not names:
        return names
    found = nodes(road)
    for name in sorted(names) if known else ():
        if not any(node.is_among({name}) for node in found):
            raise SlurmError(f"Invalid node name {name[:40]}")
    return names | {node.name for node in found if node.is_among(names)}


def features(group: Sequence[SlurmNode]) -> str:
    """The labels that all of these workers have, as features; "(null)" if there is none."""
    each = [{f"{key}={value}" for key, value in node.worker["labels"].items()} for node in group]
    return ",".join(sorted(set.intersection(*each))) or "(null)" if each else "(null)"


def hosts_of(text: str) -> list[str]:
    """The names of a list such as `a[1-3,7],b2`. Raises: Refused."""
    found: list[str] = []
    for part in _parts(text):
        names = [part]
        while any("[" in name for name in names):
            names = [each for name in names for each in _first(name)]
        found += names
    return found


def _parts(text: str) -> list[str]:
    """The parts of a list of hosts. Raises: Refused."""
    if text.count("[") != text.count("]"):
        raise SlurmError(f"Invalid hostlist: {text[:80]}")
    return [each for each in listed(text) if each]


def _first(name: str) -> list[str]:
    """The names of which the first bracket is written out. Raises: Refused."""
    before, bracket, rest = name.partition("[")
    if not bracket:
        return [name]
    inside, _, after = rest.partition("]")
    found: list[str] = []
    for span in inside.split(","):
        first, dash, last = span.partition("-")
        if (
            not first.isdecimal()
            or (dash and not last.isdecimal())
            or (dash and int(last) - int(first) not in range(65536))
        ):
            raise SlurmError(f"Invalid hostlist: {name[:80]}")
        numbers = range(int(first), int(last if dash else first) + 1)
        found += [f"{before}{str(number).zfill(len(first))}{after}" for number in numbers]
    return found


def list_of(names: list[str]) -> str:
    """The names as a list that `hosts_of` reads, runs of numbers in brackets; in the order of their first ones."""
    by_stem: dict[tuple[str, int], list[int] | None] = {}
    for name in names:
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        if digits and len(digits) < 10:
            width = len(digits) if digits.startswith("0") else 0
            numbers = by_stem.setdefault((stem, width), [])
            if numbers is not None:
                numbers.append(int(digits))
        else:
            by_stem[name, -1] = None
    done: list[str] = []
    for (stem, width), numbers in by_stem.items():
        if numbers is None:
            done.append(stem)
            continue
        found = runs(sorted(set(numbers)))
        said = [f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}" for first, last in found]
        alone = len(found) == 1 and found[0][0] == found[0][1]
        done.append(f"{stem}{said[0]}" if alone else f"{stem}[{','.join(said)}]")
    return ",".join(done)


def node_here() -> str:
    """The name of this machine, as jobs are told it."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
