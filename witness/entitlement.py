"""Entitlements: max-min fairness over several resources, weighted by quota.

The algorithm is Dominant Resource Fairness (Ghodsi et al., NSDI 2011) with weights and finite demands (Parkes,
Procaccia, Shah, EC 2012), computed by water-filling: the dominant shares of all tenants rise at the same rate. Each
tenant takes all resources in the proportion of its demand, until the demand is met or a resource that it needs is
used up. What a tenant does not demand goes to the others in proportion to their quotas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

Amount = tuple[float, ...]
"""Cores, MiB, then amounts of further kinds; all amounts of a computation are of the same kinds."""


def entitlements(capacity: Amount, weights: Sequence[Amount], demands: Sequence[Amount]) -> list[Amount]:
    """Each tenant's entitlement to a part of `capacity`, by its quota (the weight) and its demand.

    A tenant that demands a resource of which its quota is 0 is entitled to nothing. A resource that a quota does not
    limit has the weight infinity.
    """
    kinds = range(len(capacity))
    # `full`: the dominant share at which a tenant's demand is met; `level`: the share that all active tenants have.
    full = [_dominant_share(demand, weight) for demand, weight in zip(demands, weights, strict=True)]
    active = [number for number, share in enumerate(full) if 0 < share < float("inf")]
    level_of = dict.fromkeys(active, 0.0)
    left, level = list(capacity), 0.0
    while active:
        rates = [sum(demands[number][kind] / full[number] for number in active) for kind in kinds]
        met = min(full[number] for number in active)
        used_up = [kind for kind in kinds if rates[kind] > 0 and left[kind] <= rates[kind] * (met - level)]
        if used_up:
            rise = min(left[kind] / rates[kind] for kind in used_up)
            used_up = [kind for kind in used_up if left[kind] / rates[kind] == rise]
            level += rise
        else:
            rise, level = met - level, met
        left = [max(0.0, amount - rate * rise) for amount, rate in zip(left, rates, strict=True)]
        for number in active:
            level_of[number] = min(level, full[number])
        active = [
            number
            for number in active
            if full[number] > level and not any(demands[number][kind] > 0 for kind in used_up)
        ]
    return [
        _scaled(demand, level_of[number] / full[number] if number in level_of else 0.0)
        for number, demand in enumerate(demands)
    ]


class Sibling(NamedTuple):
    """A company or a department among its siblings: its weight, and of a company what it demands (semantics H12).

    A department has a `cap`, infinite in kinds that it does not limit; what it has `kept` is lent to nobody.
    """

    weight: Amount
    demand: Amount
    cap: Amount = ()
    kept: Amount = ()
    within: Siblings = MappingProxyType({})


Siblings = Mapping[tuple[str, str], Sibling]
"""Siblings by what names them."""


def entitlements_within(capacity: Amount, nodes: Siblings) -> dict[tuple[str, str], Amount]:
    """What each company is entitled to: `entitlements` among siblings, then in each department of what that is due.

    A department demands what is demanded in it, in the same proportion, up to its cap. What it keeps is nobody's where
    it is not demanded in it.
    """
    reserved = _reserved(nodes, (0.0,) * len(capacity))
    return _filled(tuple([max(0.0, each - kept) for each, kept in zip(capacity, reserved, strict=True)]), nodes)


def _filled(capacity: Amount, nodes: Siblings) -> dict[tuple[str, str], Amount]:
    due = entitlements(capacity, [node.weight for node in nodes.values()], [_demand(node) for node in nodes.values()])
    found: dict[tuple[str, str], Amount] = {}
    for (name, node), part in zip(nodes.items(), due, strict=True):
        found |= _filled(part, node.within) if node.cap else {name: part}
    return found


def _demand(node: Sibling) -> Amount:
    """What is demanded in it, scaled to its cap."""
    if not node.within:
        return node.demand
    whole = _sum([_demand(each) for each in node.within.values()])
    over = [cap / each for cap, each in zip(node.cap, whole, strict=True) if each > cap]
    return _scaled(whole, min(over, default=1.0))


def _reserved(nodes: Siblings, nothing: Amount) -> Amount:
    """What departments keep and is not demanded in them; of one within another the larger one of both."""
    found = [nothing]
    for node in [each for each in nodes.values() if each.cap]:
        own = zip(node.kept, _demand(node), _reserved(node.within, nothing), strict=True)
        found.append(tuple([max(kept - wanted, within) for kept, wanted, within in own]))
    return _sum(found)


def _sum(amounts: Sequence[Amount]) -> Amount:
    return tuple(map(sum, zip(*amounts, strict=True)))


def among_equals(capacity: Amount, weight: Amount, demands: Sequence[Amount]) -> list[Amount]:
    """`entitlements` for equal weights, in O(n log n)."""
    full = [_dominant_share(demand, weight) for demand in demands]
    kinds = [kind for kind in range(len(capacity)) if any(demand[kind] for demand in demands)]
    if not all(0 < level < float("inf") for level in full) or not all(
        demand[kind] for demand in demands for kind in kinds
    ):
        return entitlements(capacity, [weight] * len(demands), demands)
    rates = {kind: sum(demand[kind] / level for demand, level in zip(demands, full, strict=True)) for kind in kinds}
    left, level = list(capacity), 0.0
    for number in sorted(range(len(demands)), key=full.__getitem__):
        rise = full[number] - level
        until = min((left[kind] / rates[kind] for kind in kinds if rates[kind] > 0), default=rise)
        if until < rise:
            level += until
            break
        level = full[number]
        for kind in kinds:
            left[kind] = max(0.0, left[kind] - rates[kind] * rise)
            rates[kind] -= demands[number][kind] / full[number]
    return [_scaled(demand, min(1.0, level / met)) for demand, met in zip(demands, full, strict=True)]


def _scaled(demand: Amount, part: float) -> Amount:
    return tuple(amount * part for amount in demand)


def _dominant_share(demand: Amount, weight: Amount) -> float:
    return max(
        (amount / bought if bought else float("inf")) if amount else 0.0
        for amount, bought in zip(demand, weight, strict=True)
    )


def jain(ratios: Sequence[float]) -> float | None:
    """Jain's fairness index: 1 = all equal, 1/n = one has all; None without ratios (Jain, Chiu, Hawe, DEC-TR-301)."""
    squares = sum(ratio * ratio for ratio in ratios)
    if not squares:
        return 1.0 if ratios else None
    return sum(ratios) ** 2 / (len(ratios) * squares)
