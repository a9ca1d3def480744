"""Compare what a scenario leads to with what rules2.json and greedy.json expect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scheduler.rules.checks.validate import of_now
from scheduler.rules.simulate import run_scenario

HERE = Path(__file__).parent
_BAG = ("held", "hold_ended", "withdrawn")
_COMPARED = (*_BAG, "admitted", "granted", "revoked", "requested", "removed", "expired", "refused")


def cases(file: str) -> list[dict[str, Any]]:
    """The cases of the file of that name."""
    found: list[dict[str, Any]] = json.loads((HERE / file).read_text())["cases"]
    return found


def settings_of(case: dict[str, Any]) -> dict[str, Any]:
    """The settings of a case, but for those that nobody reads any more."""
    return of_now(case["settings"])


def difference(case: dict[str, Any]) -> str:
    """The first difference from what a case of rules2.json expects; "" if there is none."""
    outcome = run_scenario({"settings": settings_of(case), "commands": case["commands"]})
    expected = case["expected"]
    ordered, bag = _split(outcome["decisions"])
    expected_ordered, expected_bag = _split(expected["decisions"])
    for number, (mine, theirs) in enumerate(zip(ordered, expected_ordered, strict=False)):
        if mine != theirs:
            return f"decision {number}: {mine}, not {theirs}"
    if len(ordered) != len(expected_ordered):
        least = min(len(ordered), len(expected_ordered))
        return f"decisions from {least} on: {ordered[least:]}, not {expected_ordered[least:]}"
    if bag != expected_bag:
        return f"besides: {_without(bag, expected_bag)}, not {_without(expected_bag, bag)}"
    return _final_difference(outcome["final"], expected["final"])


def broken_promise(case: dict[str, Any]) -> str:
    """What a case of greedy.json demands and does not get; "" if all of it holds."""
    outcome = run_scenario({"settings": settings_of(case), "commands": case["commands"]})
    said = _said(outcome["decisions"])
    order = [name for what, name in (one[:2] for one in said) if what == "admitted"]
    for demand in map(tuple, case["must"]):
        if not _holds(demand, said, order):
            return f"must: {demand}"
    for demand in map(tuple, case["must_not"]):
        if _holds(demand, said, order):
            return f"must not: {demand}"
    return _greedy_final(outcome["final"], case["final"])


def _holds(demand: tuple[Any, ...], said: list[tuple[Any, ...]], order: list[str]) -> bool:
    if demand[0] == "before":
        first, second = demand[1:]
        return first in order and (second not in order or order.index(first) < order.index(second))
    return any(one[: len(demand)] == demand for one in said)


def _said(decisions: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The decisions as greedy.json words them."""
    said: list[tuple[Any, ...]] = []
    for decision in decisions:
        what, whom = next(iter(decision.items()))
        match what:
            case "granted":
                said.append((what, whom, decision["worker"]))
            case "revoked":
                said += [("revoked_for", decision.get("claimant")), ("revoked_of", whom.rpartition(".")[0])]
            case "withdrawn":
                said.append(("withdrawn_of", whom.rpartition(".")[0]))
            case "held" | "hold_ended":
                said.append((f"{what}_for", decision["app"]))
            case _:
                said.append((what, whom))
    return said


def _greedy_final(final: dict[str, Any], expected: dict[str, Any]) -> str:
    for what, wanted in expected.items():
        if what == "pending":
            pending = [app for users in final["pending"].values() for apps in users.values() for app in apps]
            if sorted(pending) != sorted(wanted):
                return f"pending: {pending}, not {wanted}"
            continue
        bound, _, ledger = what.partition("_")
        for name, amount in wanted.items():
            known = final["companies"].get(name, {}).get(ledger or what, [None])
            found = final["free"][name] if what == "free" else known[0]
            if found is None or (
                found < amount if bound == "min" else found > amount if bound == "max" else found != amount
            ):
                return f"{what} of {name}: {found}, not {amount}"
    return ""


def _split(decisions: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The decisions that are compared in order, and the others as sorted texts."""
    ordered, bag = [], []
    for decision in decisions:
        what = next(iter(decision))
        if what in _BAG:
            bag.append(json.dumps(decision, sort_keys=True))
        elif what in _COMPARED:
            ordered.append({"refused": decision["refused"]} if what == "refused" else decision)
    return ordered, sorted(bag)


def _without(these: list[str], those: list[str]) -> list[str]:
    remaining = list(those)
    return [one for one in these if one not in remaining or remaining.remove(one)]  # type: ignore[func-returns-value]


def _final_difference(final: dict[str, Any], expected: dict[str, Any]) -> str:
    for what in ("waitingApps", "free", "pending"):
        if final[what] != expected[what]:
            return f"{what}: {final[what]}, not {expected[what]}"
    if final["companies"].keys() != expected["companies"].keys():
        return f"companies: {list(final['companies'])}, not {list(expected['companies'])}"
    for name, ledgers in expected["companies"].items():
        for what, amount in ledgers.items():
            if what == "part":
                continue
            found = final["companies"][name].get(what)
            if amount is not None and any(
                theirs not in (None, mine) for mine, theirs in zip(found, amount, strict=True)
            ):
                return f"{what} of {name}: {found}, not {amount}"
    return ""
