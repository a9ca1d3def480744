"""Why an app waits, and how it stands, where sharing is by entitlement (semantics H)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from recovery.replay.bounds import moment
from scheduler.model.answers import AppStands, Leaver, RoomTarget, SlotShown
from scheduler.model.resources import NOTHING, Resources
from scheduler.model.text import few
from scheduler.rules.command.windows import barred
from scheduler.rules.entities.labels import met_by
from scheduler.rules.index.closings import grace_of
from scheduler.rules.share.demands import may_have_another
from scheduler.rules.share.entitlement import Entitlement, entitlement
from scheduler.rules.stage.caps import is_capped
from scheduler.rules.stage.needs import runs_for_s
from scheduler.rules.stage.room import Gathering, Seeking, unit_of
from scheduler.rules.stage.slots import Larger, Shortage
from scheduler.rules.state.preconditions import TARGETS
from scheduler.rules.view.standings import NOWHERE, Standing, standing_of, standings

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.grants import Allocation, Hold
    from scheduler.rules.share.fill import GroupNode
    from scheduler.rules.state.cluster import ClusterState

_NAMED = 5
"""The largest number of names in a sentence."""

Told = tuple[str, dict[str, Any]]
Found = tuple[str, str, Callable[[], Told]]
"""A cause, its rule, and what tells it."""


class _Last:
    """The filling of the state that was asked about last, valid until the state changes."""

    def __init__(self) -> None:
        self._of: tuple[ClusterState, int, Entitlement, Shortage] | None = None

    def _look(self, state: ClusterState) -> tuple[ClusterState, int, Entitlement, Shortage]:
        if self._of is None or self._of[0] is not state or self._of[1] != state.head:
            entitled = entitlement(state)
            self._of = state, state.head, entitled, Shortage(state, entitled)
        return self._of

    def filling(self, state: ClusterState) -> Entitlement:
        """The filling of the state as it stands."""
        return self._look(state)[2]

    def shortage(self, state: ClusterState) -> Shortage:
        """Who is larger than its company's share in it."""
        return self._look(state)[3]


_LAST = _Last()
filling_of, shortage_of = _LAST.filling, _LAST.shortage
"""The filling of a state, and who is larger than its share in it; those of the last state are kept (H2, H10)."""


def left_out(state: ClusterState, app: App) -> Found | None:
    """Why the app is not entitled to its next unit (semantics H2); None if others of its user come before it.

    Asked of an app that is ready and that a live worker could host.
    """
    leaf = filling_of(state).leaves.get(app.id)
    if leaf is None:
        return None
    if leaf.units or leaf.driven or not leaf.cause:
        return "next-turn", "H4", lambda: ("it is entitled to a unit, and gets it in the next turn", {})
    if leaf.cause == "cap":
        return "cap", "H12" if _is_above(state, app) else "H1", partial(_capped, state, app)
    if leaf.cause == "drivers":
        return "drivers", "H5", partial(_drivers, state, app)
    larger = shortage_of(state).of(app)
    if larger is not None:
        return "larger-than-share", "H10", partial(_too_large, state, app, larger)
    return "not-entitled", "H2", partial(_without_room, state, app)


def _of_company(state: ClusterState, app: App) -> Standing:
    return standings(state, filling_of(state)).get((app.spec.company, ""), NOWHERE)


def _facts(state: ClusterState, app: App) -> dict[str, Any]:
    unit, of = _unit(app), _of_company(state, app)
    named = {"unit": unit, "demand": of.demand, "entitled": of.entitled, "held": of.held}
    return {
        key: value
        for name, amounts in named.items()
        for key, value in ((f"{name}Cores", amounts.cores), (f"{name}Memory", amounts.memory_mb))
    }


def _unit(app: App) -> Resources:
    """What it gets at once: its driver with its first executor, or an executor (semantics H2)."""
    driver = app.unplaced_driver
    return app.need.unit if driver is NOTHING else driver + app.need.executor


def _without_room(state: ClusterState, app: App) -> Told:
    of, facts = _of_company(state, app), _facts(state, app)
    text = (
        f"{_unit(app)} more are not its company's: all apps together want more than fits, and {app.spec.company} is "
        f"entitled to {of.entitled}, of which it holds {of.held}"
    )
    if of.below != NOTHING:
        text += f" and other apps of it wait for {of.below}"
    text += "; nothing is left over that could be lent to it"
    node = filling_of(state).companies.get(app.spec.company)
    left = NOTHING if node is None else (shortage_of(state).fair_part(node) - of.entitled).at_least(NOTHING)
    if left.cores and left.memory_mb and not left.covers(_unit(app)):
        text += f"; of its fair part {left} are not handed out, which are too little for that"
    return text, facts


def _too_large(state: ClusterState, app: App, larger: Larger) -> Told:
    slot, slot_s = state.slots.get(app.id), state.settings.slot_s
    whose = f"{app.spec.user} within {app.spec.company}" if larger.within else app.spec.company
    text = (
        f"its unit, {larger.unit}, is {float(larger.times):.1f} times the fair part of {whose}, {larger.fair}; once "
        f"the cluster is shared, no room is left for it, and {larger.got} are due to {whose}; "
    )
    if slot is not None:
        text += f"it may have a slot of {slot_s} s from {moment(slot.date)} on"
    else:
        text += f"another app of {app.spec.company} has a slot first" if slot_s else "there are no slots: `slot_s` is 0"
    facts = {
        **_facts(state, app),
        "fairCores": larger.fair.cores,
        "fairMemory": larger.fair.memory_mb,
        "times": str(larger.times),
        "slotS": slot_s,
        "slotDate": None if slot is None else slot.date,
    }
    return text, facts


def _is_above(state: ClusterState, app: App) -> bool:
    """Whether not its company's cap but that of a department keeps its unit out (semantics H12)."""
    node = filling_of(state).companies[app.spec.company]
    return not (node.capped and not node.quota.covers(node.used, _unit(app)))


def never_within(state: ClusterState, app: App) -> Found | None:
    """The cap or lend limit that keeps its unit out even where nothing else is held, until it is changed (H1, H12)."""
    if app.spec.company not in filling_of(state).companies or not _passes_alone(state, app):
        return None
    return "cap", "H12" if _is_above(state, app) else "H1", partial(_capped, state, app)


def _passes_alone(state: ClusterState, app: App) -> bool:
    node, unit = filling_of(state).companies[app.spec.company], _unit(app)
    if node.capped and not node.quota.covers(NOTHING, unit):
        return True
    total = state.fleet.total
    if any(not (total - each.kept).at_least(NOTHING).covers(unit) for each in _beside(state, app)):
        return True
    group = node.above
    while group is not None:
        if group.cap is not None and not group.cap.covers(NOTHING, unit):
            return True
        group = group.above
    return False


def _capped_above(state: ClusterState, app: App) -> Told:
    group, unit = filling_of(state).companies[app.spec.company].above, _unit(app)
    while group is not None and (group.cap is None or group.cap.covers(group.used, unit)):
        group = group.above
    if group is not None and group.cap is not None:
        text = (
            f"{app.spec.company} is in the department {group.name}, which may not pass its cap, {group.cap.whole}, and "
            f"is entitled to {group.used} of it already; {unit} more would pass it"
        )
        if not group.cap.covers(NOTHING, unit):
            text += f"; that alone does, so it starts once `fairlog department set {group.name}` has raised the cap"
        return text, {**_facts(state, app), "department": group.name}
    text = f"{unit} more would take what other departments lend to nobody, by their lend limits"
    keeping = _keeping(state, app)
    if keeping is None:
        return text, _facts(state, app)
    kept, total = keeping.kept, state.fleet.total
    text += f"; {keeping.name} alone keeps {kept}, and is entitled to {keeping.used} of it now"
    if kept.cores >= total.cores or kept.memory_mb >= total.memory_mb:
        text += f", which is as much as the cluster offers, {total}, so nobody else gets any"
    text += f"; `fairlog department set {keeping.name} --lend-limit PART` lends more"
    return text, {**_facts(state, app), "department": keeping.name}


def _beside(state: ClusterState, app: App) -> list[GroupNode]:
    """The departments that the app's company is not in."""
    tree = filling_of(state).tree
    own = {each.name for each in state.companies[app.spec.company].above}
    return [] if tree is None else [each for name, each in tree.groups.items() if name not in own]


def _keeping(state: ClusterState, app: App) -> GroupNode | None:
    """The department beside the app's which keeps the most cores that are not used in it."""
    beside = [each for each in _beside(state, app) if each.kept.cores > each.used.cores]
    return max(beside, key=lambda each: (each.kept.cores - each.used.cores, each.name), default=None)


def _capped(state: ClusterState, app: App) -> Told:
    if _is_above(state, app):
        return _capped_above(state, app)
    quota, of = state.quota(app.spec.company).in_whole(), _of_company(state, app)
    text = (
        f"{app.spec.company} may not pass its quota, {quota}, and "
        f"is entitled to {of.entitled} of it already; {_unit(app)} more would pass it"
    )
    if not state.quota(app.spec.company).covers(NOTHING, _unit(app)):
        text += f"; that alone does, so it starts once `fairlog company set {app.spec.company}` has raised the quota"
    return text, _facts(state, app)


def _drivers(state: ClusterState, app: App) -> Told:
    node = filling_of(state).companies[app.spec.company]
    text = (
        f"drivers of {app.spec.company} hold {node.drivers}, and with its driver, {app.unplaced_driver}, they would "
        "hold more than half of its quota"
    )
    return text, {**_facts(state, app), "driverCores": node.drivers.cores, "driverMemory": node.drivers.memory_mb}


def in_need(state: ClusterState, app: App) -> Found | None:
    """Why an admitted app has no executor although it is below its entitlement, or why it is not (semantics H6)."""
    if app.lack.units:
        return "need", "H6", partial(_need, state, app)
    if filling_of(state).below(app) > 0:
        return "next-turn", "T2", lambda: ("it will be placed in the next turn", {})
    return left_out(state, app)


def _need(state: ClusterState, app: App) -> Told:
    units = "unit" if app.lack.units == 1 else "units"
    text = f"it is {app.lack.units} {units} below its entitlement since {moment(app.lack.since)}{_coming(state, app)}"
    if not app.holds and not ahead_of(state, app) and not _is_overdue(state, app) and _finds_no_room(state, app):
        text += f"; {_no_room(state, app)}"
    facts = {"units": app.lack.units, "since": app.lack.since, "date": _date(state, app)}
    return text, {**facts, "targets": to_builtins(targets_of(app)), "ahead": ahead_of(state, app)}


def _no_room(state: ClusterState, app: App) -> str:
    """Why room can be made for it nowhere now."""
    if is_capped(state, app, unit_of(app)):
        return _beyond_cap(state, app)
    closed = barred(state, app, state.at)
    for worker in state.workers.values():
        may = worker.id not in closed and met_by(app.need.demand, worker.labels, worker.taints)
        if worker.status == "alive" and may and worker.offer.covers(app.need.executor):
            return "no worker can be emptied for it now: what is entitled stands in fragments"
    return "windows close to it all workers that could host it"


def _beyond_cap(state: ClusterState, app: App) -> str:
    """Its company is at its cap, and nobody there has to leave: memory of executors that grow is held beside (H2)."""
    company = app.spec.company
    theirs = [each for each in state.waiting.values() if each.spec.company == company and each.need.growing]
    grown_mb = sum([one.resources.memory_mb for each in theirs for one in each.executors.values()])
    text = f"what {company} and its departments may hold leaves it no room, and nobody is there beyond what is entitled"
    if not grown_mb:
        return text
    most = few([each.id for each in theirs if each.executors], _NAMED)
    return f"{text}; executors that grow, of {most}, hold {grown_mb} MiB, of which entitlements count no memory (H2)"


def _is_overdue(state: ClusterState, app: App) -> bool:
    """Whether room should have been made for it by now, and nobody is told to leave for it."""
    date = _date(state, app)
    return date is not None and date <= state.at and not any(hold.reason in TARGETS for hold in app.holds.values())


def _finds_no_room(state: ClusterState, app: App) -> bool:
    """Whether room can be made for it nowhere now."""
    entitled = filling_of(state)
    if app.need.gang:
        return Gathering(state, entitled, app, state.at).gathered() is None
    return Seeking(state, entitled, app, state.at).cheapest() is None


def ahead_of(state: ClusterState, app: App) -> int:
    """How many apps with a need that still lacks a target go before this one: the first date first (semantics H6)."""
    mine = app.lack.date, app.admitted
    return sum(
        each.lack.units > len(each.holds) and (each.lack.date, each.admitted) < mine
        for each in state.waiting.values()
        if each is not app
    )


def targets_of(app: App) -> list[RoomTarget]:
    """Where room is made for the app, by whom that leaves until when (semantics H6, H7)."""
    return [
        RoomTarget(
            worker=hold.worker,
            cores=hold.amounts.cores,
            memory=hold.amounts.memory_mb,
            why=hold.reason,
            since=hold.since,
            leaving=[
                Leaver(executor=one.id, app=one.app, deadline=one.deadline if one.firm else None)
                for one in hold.leaving.values()
            ],
        )
        for hold in app.holds.values()
        if hold.reason in TARGETS
    ]


def _date(state: ClusterState, app: App) -> int | None:
    """By when (ms) room is made for the app's need; None if nobody has to leave by a date (semantics H7)."""
    return (app.lack.date or None) if app.lack.units and state.settings.reclaim_patience_s is not None else None


def _until(state: ClusterState, leaving: Iterable[Allocation]) -> str:
    """By when those who were told to leave have left, as the rest of a sentence; empty if nobody was (semantics H7).

    Who gets SIGTERM at its date has a grace from then on.
    """
    told = list(leaving)
    if any(not one.firm for one in told):
        return ", as tasks there end"
    if not told:
        return ""
    settings = state.settings
    latest = max([one.deadline + 1000 * grace_of(settings, state.apps[one.app], one) for one in told])
    if latest > state.at:
        return f", by {moment(latest)} at the latest"
    return f", which is overdue since {moment(latest)}"


def _running_on(state: ClusterState, app: App, leaving: Iterable[Allocation]) -> str:
    """Who leaves later than the app's date since it may run on for its minimum, as the rest of a sentence (H7)."""
    late = [one for one in leaving if one.firm and one.deadline > app.lack.date]
    last = max(late, key=lambda one: (one.deadline, one.id), default=None)
    if last is None or last.deadline != last.granted_at + 1000 * runs_for_s(state, last):
        return ""
    return f", as {last.id} may run for {runs_for_s(state, last)} s from its grant on"


def _where(state: ClusterState, app: App, targets: list[Hold]) -> str:
    """On which workers room is made for it, or is there already but not below its company's cap (H1, H6)."""
    there = [each for each in targets if state.workers[each.worker].free.covers(each.amounts)]
    kept = [each for each in there if is_capped(state, app, each.amounts)]
    emptied = list(dict.fromkeys([each.worker for each in targets if each not in kept]))
    text = f"; {_listed(emptied)} {'is' if len(emptied) == 1 else 'are'} being emptied for it" if emptied else ""
    if kept:
        where = _listed(list(dict.fromkeys([each.worker for each in kept])))
        text += f"; room on {where} is kept for it until executors below the same cap have left"
    return text


def _coming(state: ClusterState, app: App) -> str:
    """What is being done for it, as the rest of a sentence."""
    targets = [hold for hold in app.holds.values() if hold.reason in TARGETS]
    text = ""
    if targets:
        text += _where(state, app, targets)
        leaving = [one for target in targets for one in target.leaving.values()]
        text += _until(state, leaving) + _running_on(state, app, leaving)
    elif _is_overdue(state, app):
        why = f": {_no_room(state, app)}" if not ahead_of(state, app) and _finds_no_room(state, app) else ""
        text += f"; room for it is overdue since {moment(app.lack.date)}{why}"
    elif (date := _date(state, app)) is not None:
        text += f"; room is made for it by {moment(date)}"
    if app.lack.units > len(targets) and (before := ahead_of(state, app)):
        text += f"; {before} {'need goes' if before == 1 else 'needs go'} first"
    return text


def _slot(state: ClusterState, app: App) -> str:
    """When its slot begins or ends, as the rest of a sentence (semantics H10)."""
    slot = state.slots.get(app.id)
    if slot is None:
        return ""
    if slot.began:
        return f"; its slot lasts until {moment(slot.until)}"
    return f"; its slot begins at {moment(slot.date)} at the earliest"


def _listed(names: list[str]) -> str:
    if len(names) > _NAMED:
        return few(names, _NAMED)
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def stands(state: ClusterState, app: App) -> AppStands | None:
    """How the app stands in one sentence, and its figures (semantics H); None if it has ended or takes no part."""
    if not state.by_entitlement or app.ended is not None:
        return None
    mine = standing_of(app, filling_of(state))
    kinds = [kind for kind, _ in app.need.executor.others]
    held, due = _amounts(mine.held, kinds), _amounts(mine.entitled, kinds)
    if mine.lent != NOTHING and mine.below == NOTHING:
        text = f"The app holds {held}, of which {_amounts(mine.lent, kinds)} are lent to it; {due} are its own"
    elif mine.held == NOTHING and mine.entitled == NOTHING:
        text = "The app holds nothing, and nothing is its own now"
    else:
        are = "is" if due == "1 core" else "are"
        text = f"The app holds {mine.held.cores} of the {due} that {are} its own"
        if app.executors and not may_have_another(app):
            text += "; it requests no further executor"
    if mine.leaving != NOTHING:
        told = (one for one in app.executors.values() if one.status == "stopping" and one.deadline)
        text += f"; {_amounts(mine.leaving, kinds)} leave{_until(state, told)}"
    text += _coming(state, app) + _slot(state, app)
    figures: dict[str, Resources] = mine._asdict()
    return AppStands(
        text=f"{text}.",
        **{f"{name}_cores": amounts.cores for name, amounts in figures.items()},
        **{f"{name}_memory": amounts.memory_mb for name, amounts in figures.items()},
        date=_date(state, app),
        ahead=ahead_of(state, app) if app.lack.units else 0,
        targets=targets_of(app),
        slot=None if (slot := state.slots.get(app.id)) is None else SlotShown(**slot._asdict()),
    )


def _amounts(amounts: Resources, kinds: list[str]) -> str:
    """Cores, and the further kinds that its executors have."""
    words = [f"{amounts.cores} core{'' if amounts.cores == 1 else 's'}"]
    words += [f"{amounts.amount(kind)} {kind}" for kind in kinds]
    return " and ".join(words)


def is_entitled(state: ClusterState, app: App) -> bool:
    """Whether a pending app is entitled to a unit, and so enters (semantics H4)."""
    leaf = filling_of(state).leaves.get(app.id)
    return leaf is not None and (leaf.units > 0 or leaf.driven)


def why_entered(state: ClusterState, app: App) -> list[dict[str, str]]:
    """Why a pending app enters: it is entitled to a unit, or left-over room is lent to it (semantics H4)."""
    leaf = filling_of(state).leaves.get(app.id)
    if app.need.executor.cores and not is_entitled(state, app):
        text = f"left-over room was lent to it, for nobody who is below an entitlement could use {_unit(app)} there"
    else:
        units = 0 if leaf is None else leaf.units
        text = f"it was entitled to {units} executor{'' if units == 1 else 's'} of {app.need.executor}"
    return [{"rule": "H4", "text": text}]
