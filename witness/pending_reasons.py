"""Why an app waits between two turns: the cause, its rule, a sentence and the facts.

The cause is determined at every turn of an app's life, the sentence and the facts only on request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from recovery.replay.bounds import moment
from scheduler.model.events import Computed, Fixed, OnePerWorker
from scheduler.model.quota import Quota, Share
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.admission.app import APP_POLICIES
from scheduler.rules.admission.company import COMPANY_POLICIES
from scheduler.rules.admission.limits import Broken, holder_text, over_app_cores
from scheduler.rules.admission.queue import CompanyQueue, UserQueue
from scheduler.rules.admission.user import USER_POLICIES
from scheduler.rules.decide import is_full
from scheduler.rules.entities import App, Worker
from scheduler.rules.failures import kept_from
from scheduler.rules.failures import left_out as left_out_of
from scheduler.rules.placement.drivers import within_driver_limits
from scheduler.rules.placement.sizing import executor_memory_mb, for_tasks, smallest_cores
from scheduler.rules.reclaim import is_unlawful
from scheduler.rules.state import ClusterState
from scheduler.rules.submission import nearest
from scheduler.rules.views import exclusions, suspicion
from witness.entitled_reasons import in_need, left_out
from witness.failing import exclusion_in_words, suspicion_in_words

CAUSES = (
    "dependency",
    "hold",
    "begin",
    "no-live-worker",
    "beyond-limit",
    "beyond-quota",
    "quota",
    "reserved",
    "queue",
    "company-turn",
    "user-turn",
    "cluster-full",
    "next-turn",
    "not-entitled",
    "larger-than-share",
    "cap",
    "drivers",
    "driver",
    "limit",
    "no-worker-large-enough",
    "excluded",
    "suspect-worker",
    "need",
    "claim",
    "room-held",
    "reclaim-unlawful",
    "held-for-others",
    "parts-exceed-cluster",
    "locality",
    "workers-full",
)
"""Every cause of waiting, in the order of reports."""
_NEXT = "it will be admitted in the next turn: "
_NAMED = 5
"""The largest number of names in a sentence."""

Told = tuple[str, dict[str, Any]]
"""A sentence, and its facts as JSON values."""


class Wait(NamedTuple):
    """The cause of waiting, its rule, and a function that describes it, valid until the state changes."""

    cause: str
    rule: str
    tell: Callable[[], Told]

    def as_json(self) -> dict[str, Any]:
        """The cause, the rule, a sentence and its facts."""
        text, facts = self.tell()
        return {"cause": self.cause, "rule": self.rule, "text": text, "facts": facts}


def waits_for(state: ClusterState, app: App) -> Wait | None:
    """Why the app is not admitted (A3) or has no executor (P1); None if it does not wait for either (semantics Z2)."""
    if app.ended is not None or app.executors:
        return None
    if app.admitted:
        return _for_executors(state, app)
    if not app.ready:
        return _until_ready(app)
    return _until_admitted(state, app)


def _until_admitted(state: ClusterState, app: App) -> Wait:
    """Why a ready app is not admitted."""
    if not state.fleet.live:
        return Wait("no-live-worker", "A3", _no_worker)
    if state.settings.admission == "open":
        return Wait("next-turn", "A6", lambda: ("it will be admitted in the next turn", {}))
    company = state.queue.companies[app.spec.company]
    if state.by_entitlement:
        return _not_entitled(state, company, app)
    return _behind_its_company(state, company, app) or _for_its_turn(state, company, app)


def _not_entitled(state: ClusterState, company: CompanyQueue, app: App) -> Wait:
    """No large worker (N3), a limit (N2), others of its user (F), or what keeps it out of the filling (H2)."""
    if (shut := _shut_out(state, company, app)) is not None:
        return shut
    found = left_out(state, app)
    if found is not None:
        return Wait(*found)
    queue = company.users[app.spec.user]
    ahead = queue.by_policy
    if not app.need.executor.cores and app.unplaced_driver == NOTHING:
        return Wait("next-turn", "H4", lambda: ("it asks for no executor now, and is admitted in the next turn", {}))
    rule = APP_POLICIES[state.settings.app_policy].rule
    return Wait("queue", rule, partial(_queued, queue, app, ahead[0]))


def _shut_out(state: ClusterState, company: CompanyQueue, app: App) -> Wait | None:
    """No large worker (N3), or a limit (N2): such an app takes no part in the filling (semantics H2)."""
    spec, limit = app.spec, company.limit
    if not app.need.hostable:
        size = app.need.least if not state.fleet.could_host(app.need.least) else app.need.driver
        return Wait("no-worker-large-enough", "N3", partial(_nearest, _live(state), size, of_free=False))
    if limit.limited and (over := limit.broken(spec.user, app.requested)) is not None:
        return Wait("beyond-limit", "N2", partial(_over_limit, spec.company, *over))
    return None


def _until_ready(app: App) -> Wait:
    """Its dependencies (J1), a hold (J3), a time (J4), or the next turn, which lets it be ready."""
    if app.awaits:
        return Wait("dependency", "J1", partial(_dependent, app))
    if app.on_hold:
        return Wait("hold", "J3", lambda: (f"it is on hold; `fairlog release {app.id}` ends that", {}))
    if app.not_before:
        at = app.not_before
        return Wait("begin", "J4", lambda: (f"it is not to begin before {moment(at)}", {"beginAt": at}))
    return Wait("next-turn", "J2", lambda: ("it will be ready in the next turn", {}))


def _dependent(app: App) -> Told:
    named = [f"{name}:{condition}" for name, condition in app.awaits.items()]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"it starts after {', '.join(named[:_NAMED])}{more}", {"after": dict(app.awaits), "onHold": app.on_hold}


def _no_worker() -> Told:
    return "no worker is live", {}


def _behind_its_company(state: ClusterState, company: CompanyQueue, app: App) -> Wait | None:
    """No large worker (N3), a limit (N2), the quota (C4, C6), a reservation (C7), the user's queue (F1, F2)."""
    if (shut := _shut_out(state, company, app)) is not None:
        return shut
    spec, limit, queue = app.spec, company.limit, company.users[app.spec.user]
    borrows = state.queue.may_borrow(spec.company)
    if not borrows and not limit.admits(app.requested):
        alone = not limit.fits_alone(app.requested)
        rule = "C6" if company.borrows else "C4"
        return Wait("beyond-quota" if alone else "quota", rule, partial(_over_quota, company, app.requested))
    reserver = limit.reserver() if limit.reservations else None
    if reserver is not None and reserver is not app:
        return Wait("reserved", "C7", partial(_reserved, company, reserver))
    head = (queue.first if borrows else queue.head) or _kept_out(company, queue, borrows=borrows)
    if head is not None and head is not app:
        return Wait("queue", APP_POLICIES[state.settings.app_policy].rule, partial(_queued, queue, app, head))
    return None


def _live(state: ClusterState) -> list[Worker]:
    return [worker for worker in state.workers.values() if worker.status == "alive"]


def _kept_out(company: CompanyQueue, queue: UserQueue, *, borrows: bool) -> App | None:
    """The user's next app that a limit keeps out now (N2); None if there are no limits."""
    limit, user = company.limit, queue.contender.user
    apps = (one for one in queue.by_policy if one.need.hostable and limit.possible(user, one.requested))
    return next((one for one in apps if borrows or limit.fits_alone(one.requested)), None) if limit.limited else None


def _over_limit(company: str, user: str, over: Broken) -> Told:
    holds = {"max_running_apps": "runs", "max_app_cores": "the app requests"}.get(over.name, "claims")
    text = (
        f"limit {over.name} of {holder_text(company, user)}: {holds} {over.present} of {over.limit}, {over.asked} asked"
    )
    facts = {"limit": over.name, "company": company, "user": user or None}
    return text, {**facts, "present": over.present, "most": over.limit, "asked": over.asked}


def _over_quota(company: CompanyQueue, request: Resources) -> Told:
    quota, claimed, name = company.tenant.quota, company.tenant.standing.claimed, company.tenant.company
    cores, memory = exact(quota.amount.cores, quota.denominator), exact(quota.amount.memory_mb, quota.denominator)
    others = {kind: exact(quota.amount.amount(kind), quota.denominator) for kind in _limited(quota, request)}
    bought = " and ".join(
        (f"its quota of {cores} cores", f"{memory} MiB", *(f"{n} {kind}" for kind, n in others.items()))
    )
    text = f"company {name} claims {claimed}; {request} more exceed {bought}"
    if not company.limit.fits_alone(request):
        text = f"the app requests {request}; company {name} cannot exceed {bought}"
    if company.borrows:
        text += "; it cannot borrow while another company has an app within its quota"
    return text, {
        "claimCores": claimed.cores,
        "claimMemory": claimed.memory_mb,
        "appCores": request.cores,
        "appMemory": request.memory_mb,
        "quotaCores": cores,
        "quotaMemory": memory,
        **_others(claim=claimed, app=request),
        **({"quotaResources": others} if others else {}),
        "borrow": company.borrows,
    }


def _limited(quota: Quota, amounts: Resources) -> list[str]:
    """The further kinds of these amounts that the quota limits (semantics R4)."""
    return [kind for kind, _ in amounts.others if quota.named is None or kind in quota.named]


def _others(**amounts: Resources) -> dict[str, dict[str, int]]:
    """The further kinds of these amounts, by the name of each; without those that have none."""
    return {f"{name}Resources": dict(held.others) for name, held in amounts.items() if held.others}


def _reserved(company: CompanyQueue, reserver: App) -> Told:
    since = company.limit.reserved[reserver.id][0]
    text = f"the company's room is reserved for app {reserver.id}, which its quota has held back since {moment(since)}"
    return text, {"app": reserver.id, "heldBackSince": since}


def _queued(queue: UserQueue, app: App, head: App) -> Told:
    """Who is before it, and its user's head, which need not be the first of them: that may be no head (C4, N2, N3)."""
    place = next(number for number, one in enumerate(queue.by_policy) if one is app)
    ahead = queue.by_policy[:place]
    text = f"{place} of {app.spec.user}'s apps {'is' if place == 1 else 'are'} before it; the next is {head.id}"
    if any(one.priority != app.priority for one in ahead):
        text += f", with priority {head.priority}; its own is {app.priority}"
    names = [one.id for one in ahead[:100]]
    return text, {"place": place + 1, "of": len(queue.by_policy), "ahead": names, "priority": app.priority}


def place_in_queue(state: ClusterState, app: App) -> dict[str, int] | None:
    """The app's place among its user's pending apps (F), from 1; None if it is not pending or not ready (J2)."""
    if app.state != "pending" or not app.ready:
        return None
    order = state.queue.companies[app.spec.company].users[app.spec.user].by_policy
    return {"place": order.index(app) + 1, "of": len(order)}


def _for_its_turn(state: ClusterState, company: CompanyQueue, app: App) -> Wait:
    """Another company's turn (C3, C5), another user's turn (U1, U3), or a full cluster (A3)."""
    spec, settings = app.spec, state.settings
    first = state.queue.first()
    if first is not None and first.spec.company != spec.company:
        if first is state.queue.next_within():
            return Wait("company-turn", "A3", partial(_within_part, state, first))
        rule = COMPANY_POLICIES[settings.company_policy].rule
        return Wait("company-turn", rule, partial(_company_turn, state, company))
    if first is not None and first.spec.user != spec.user:
        return Wait("user-turn", USER_POLICIES[settings.user_policy].rule, partial(_user_turn, state, company, app))
    cause, rule = ("cluster-full", "A3") if is_full(state, app.requested) else ("next-turn", "T2")
    return Wait(cause, rule, partial(_cluster, state, app.requested))


def _within_part(state: ClusterState, first: App) -> Told:
    """Another company is next because it has not its part yet."""
    name = first.spec.company
    part, claimed = state.queue.part(name), state.claims.of(name).claimed
    text = f"company {name} is next: it claims {claimed} of its part, {part}, and {first.id} keeps it within"
    return text, {"ahead": [{"company": name}]}


def companies_in_turn(state: ClusterState) -> list[tuple[CompanyQueue, str]]:
    """The companies that take part (C1), in the order of their turns, each with the value that the policy compares."""
    key, basis = COMPANY_POLICIES[state.settings.company_policy].key, state.queue.basis
    taking = [state.queue.companies[name] for name in state.queue.taking_part()]
    return [(queue, str(key(queue.tenant, basis))) for queue in taking]


def users_in_turn(state: ClusterState, company: CompanyQueue) -> list[tuple[UserQueue, str]]:
    """The users whose next app is within the quota, in the order of their turns, each with the policy's value or ""."""
    borrows = state.queue.may_borrow(company.tenant.company)  # updates the users' contenders
    policy, quota, basis = USER_POLICIES[state.settings.user_policy], company.tenant.quota, state.queue.basis
    passing = [
        queue
        for queue in company.users.values()
        if (head := queue.first if borrows else queue.head) and (borrows or company.limit.admits(head.requested))
    ]
    ranked = sorted(((policy.rank(each.contender, quota, basis), each) for each in passing), key=lambda one: one[0])
    return [(queue, str(key) if policy.measure else "") for (_, key, *_), queue in ranked]


def _company_turn(state: ClusterState, company: CompanyQueue) -> Told:
    me = company.tenant.company
    order = companies_in_turn(state)
    place = next((number for number, (each, _) in enumerate(order) if each is company), len(order))
    mine = next((value for each, value in order if each is company), "none")
    ahead = [(each.tenant, value) for each, value in order[:place]]
    first, value = ahead[0]
    measure = COMPANY_POLICIES[state.settings.company_policy].measure
    text = f"company {first.company} is next, with {measure} {value}; {me} has {mine}"
    if value == mine:
        text += f"; {first.company} was {_turn(first.last_selected)}, {me} {_turn(company.tenant.last_selected)}"
    told = [
        {"company": each.company, "value": value, "lastSelected": each.last_selected or None} for each, value in ahead
    ]
    return text + _rest([f"{each.company} ({value})" for each, value in ahead[1:]]), {"value": mine, "ahead": told}


def _user_turn(state: ClusterState, company: CompanyQueue, app: App) -> Told:
    order = users_in_turn(state, company)
    me = app.spec.user
    place = next((number for number, (each, _) in enumerate(order) if each.contender.user == me), len(order))
    mine = company.users[me].contender
    ahead = [
        {
            "user": each.contender.user,
            "lastSelected": each.contender.last_selected or None,
            "lastSelectedAt": each.contender.last_selected_at or None,
            "oldestAt": each.contender.oldest_at,
            **({"value": value} if value else {}),
        }
        for each, value in order[:place]
    ]
    first = order[0][0].contender
    since = _turn(first.last_selected, first.last_selected_at)
    if not first.last_selected:
        since += f", with an app pending since {moment(first.oldest_at)}"
    text = f"user {first.user} is next, {since}; {me} was {_turn(mine.last_selected, mine.last_selected_at)}"
    if order[0][1] and place < len(order):
        measure = USER_POLICIES[state.settings.user_policy].measure
        text += f"; {first.user} has {measure} {order[0][1]}, {me} has {order[place][1]}"
    return text + _rest([str(each["user"]) for each in ahead[1:]]), {"ahead": ahead}


def _cluster(state: ClusterState, request: Resources) -> Told:
    """What fills the cluster for the request: the companies by claim, each with how much is beyond its part."""
    claims, fleet = state.claims, state.fleet
    claimed, cluster = claims.total.claimed, Quota(fleet.total, 1)
    text = (
        f"the apps in waitingApps claim {claimed.cores} of {fleet.total.cores} cores "
        f"and {claimed.memory_mb} of {fleet.total.memory_mb} MiB"
    )
    for kind, _ in request.others:
        text += f" and {claimed.amount(kind)} of {fleet.total.amount(kind)} {kind}"
    names = sorted(state.companies, key=lambda name: (-cluster.share_of(claims.of(name).claimed).rounded, name))
    parts = [
        (name, claim, (claim - state.queue.part(name)).at_least(NOTHING))
        for name in names
        if (claim := claims.of(name).claimed) != NOTHING
    ]
    companies = [
        {
            "company": name,
            "claimCores": claim.cores,
            "claimMemory": claim.memory_mb,
            "beyondCores": beyond.cores,
            "beyondMemory": beyond.memory_mb,
            **_others(claim=claim, beyond=beyond),
        }
        for name, claim, beyond in parts
    ]
    asked = ("cores", "memory_mb", *(kind for kind, _ in request.others))
    full = [kind for kind in asked if _amount(claimed, kind) >= _amount(fleet.total, kind)]
    told = [f"{name} {_beyond_part(claim, beyond, full)}" for name, claim, beyond in parts]
    facts = {
        "claimCores": claimed.cores,
        "claimMemory": claimed.memory_mb,
        "cores": fleet.total.cores,
        "memory": fleet.total.memory_mb,
        **_others(claim=claimed, total=fleet.total),
        "companies": companies,
    }
    if not is_full(state, request):
        return f"{_NEXT}{text}", facts
    more = f" and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    return f"{text}: {', '.join(told[:_NAMED])}{more}", facts


def _amount(amounts: Resources, kind: str) -> int:
    return amounts.by_kind().get(kind, 0)


def _beyond_part(claim: Resources, beyond: Resources, kinds: Sequence[str]) -> str:
    """What is claimed of these kinds, and how much of that is beyond the company's part, in words."""
    units = {"memory_mb": "MiB"}
    return " and ".join(
        f"{_amount(claim, kind)} {units.get(kind, kind)}, {_amount(beyond, kind)} beyond its part" for kind in kinds
    )


def _for_executors(state: ClusterState, app: App) -> Wait | None:
    """No live worker (A4), its driver (D), its demand (P5), or placement; None if it lacks no executor."""
    if not state.fleet.live:
        return Wait("no-live-worker", "A4", _no_worker)
    if app.spec.driver is not None and app.driver is None:
        return _for_its_driver(state, app, app.spec.driver)
    sizing = app.sizing
    if app.executor_limit == 0 and app.demand.target and isinstance(sizing, Fixed):
        return _for_its_wish(state, app, sizing.each)
    if app.executor_limit == 0:
        return Wait("limit", "P5", lambda: ("its demand is 0 executors", {}))
    if isinstance(sizing, Fixed) and 0 < app.left_cores < sizing.each.cores and not state.wants_executors(app):
        return Wait("limit", "P6", partial(_too_little_left, app, sizing.each))
    return _for_placement(state, app) if state.wants_executors(app) else None


def _for_its_wish(state: ClusterState, app: App, size: Resources) -> Wait:
    """Why its demand does not rise from nothing to what was stated (L1): N3, N2, C4 or C6, or a full cluster."""
    company = state.queue.companies[app.spec.company]
    if not app.need.hostable:
        return Wait("no-worker-large-enough", "N3", partial(_nearest, _live(state), size, of_free=False))
    over = company.limit.broken(app.spec.user, size, 0)
    if over := over or over_app_cores(state.limits, app.spec, app.requested.cores, size.cores):
        return Wait("beyond-limit", "N2", partial(_over_limit, app.spec.company, *over))
    if state.by_entitlement:
        return Wait("next-turn", "L1", lambda: ("its demand rises in the next turn", {}))
    if not state.queue.may_borrow(app.spec.company) and not company.limit.admits(size, lent=False):
        return Wait("quota", "C6" if company.borrows else "C4", partial(_over_quota, company, size))
    return Wait("cluster-full", "L1", partial(_without_room, state, app, size))


def _without_room(state: ClusterState, app: App, size: Resources) -> Told:
    text, facts = _cluster(state, size)
    text = text.removeprefix(_NEXT)
    return f"there is no room for an executor of {size}, of which it asks for {app.demand.target}: {text}", facts


def _too_little_left(app: App, size: Resources) -> Told:
    """The rest of the request is smaller than an executor (P6)."""
    left, left_mb = app.left_cores, app.left_memory_mb
    facts = {"cores": size.cores, "memory": size.memory_mb, "leftCores": left, "leftMemory": left_mb}
    text = f"its request leaves {left} cores and {left_mb} MiB, and an executor takes {size.cores} and {size.memory_mb}"
    return text, facts


def _for_placement(state: ClusterState, app: App) -> Wait:
    """A preferred host (L5), a worker that is large enough, or room on one (P1)."""
    kept = kept_from(state, app, state.at)
    with state.seen_by(app, kept):
        size = _smallest(state, app)
        room = state.fleet.has_room(size)
    if room:
        if app.demand.wanted:
            return Wait("locality", "L5", partial(_preferring, state, app))
        if size.cores > app.left_cores or size.memory_mb > app.left_memory_mb:
            return Wait("limit", "A2", partial(_too_little_left, app, size))
        return Wait("next-turn", "T2", lambda: ("it will be placed in the next turn", {}))
    if state.by_entitlement:
        needed = in_need(state, app)
        return _barred(state, app, size, kept) or (_for_room(state, size) if needed is None else Wait(*needed))
    return _barred(state, app, size, kept) or _for_its_hold(state, app) or _for_full_workers(state, app, size)


def _smallest(state: ClusterState, app: App) -> Resources:
    """The smallest executor of the app that placement would try now (A7, S3)."""
    settings, each = state.settings, app.spec.cores_per_task
    match app.sizing:
        case Fixed(each=size):
            return size
        case OnePerWorker(memory_mb=memory_mb, others=others):
            return Resources(each, memory_mb, others)
        case Computed(memory_per_task_mb=per_task) as sizing:
            cores = smallest_cores(settings, each)
            computed_mb = executor_memory_mb(state.fleet, settings, cores, per_task, each)
            others = for_tasks(sizing.per_task, cores // each)
            return Resources(cores, computed_mb or settings.min_executor_memory_mb, others)


def _for_its_hold(state: ClusterState, app: App) -> Wait | None:
    """Executors are to leave for it (E5), or room is gathered for a large one (P8); None if nothing is held for it."""
    if not app.holds:
        return None
    claims = any(hold.reason == "reclaim" for hold in app.holds.values())
    return Wait(*(("claim", "E5") if claims else ("room-held", "P8")), partial(_its_holds, state, app))


def _its_holds(state: ClusterState, app: App) -> Told:
    found, texts = held_for(app), []
    for hold in app.holds.values():
        text = f"room for {hold.amounts} is held for it on {hold.worker} since {moment(hold.since)}"
        if hold.leaving:
            are = "is" if len(hold.leaving) == 1 else "are"
            text += f"; {', '.join([*hold.leaving][:_NAMED])} {are} to leave for it"
            if state.settings.reclaim == "firm":
                text += f" by {moment(min(one.deadline for one in hold.leaving.values()))}"
        texts.append(text)
    return "; ".join(texts[:_NAMED]), {"claims": found}


def held_for(app: App) -> list[dict[str, Any]]:
    """What is held for the app, and which executors were told to leave for it until when (semantics E8, P8)."""
    return [
        {
            "worker": hold.worker,
            "cores": hold.amounts.cores,
            "memory": hold.amounts.memory_mb,
            **_others(held=hold.amounts),
            "reason": hold.reason,
            "since": hold.since,
            "leaving": [
                {"executor": one.id, "app": one.app, "deadline": one.deadline} for one in hold.leaving.values()
            ],
        }
        for hold in app.holds.values()
    ]


def _for_full_workers(state: ClusterState, app: App, size: Resources) -> Wait:
    """Nothing may be taken for it (E4), the room is held for others (P8), parts are too large (C8), or no room (P1)."""
    wait, company = _for_room(state, size), app.spec.company
    if wait.cause != "workers-full" or state.settings.admission == "open":
        return wait
    if is_unlawful(state, app):
        return Wait("reclaim-unlawful", "E4", partial(_unlawful, state, app))
    held = [worker for worker in _live(state) if worker.holds and not worker.shut and worker.free.covers(size)]
    if held:
        return Wait("held-for-others", "P8", partial(_holders, state, held))
    if state.queue.reached(company) or not _parts_exceed(state):
        return wait
    return Wait("parts-exceed-cluster", "C8", partial(_parts, state, company))


def _unlawful(state: ClusterState, app: App) -> Told:
    size, company = app.need.executor, app.spec.company
    part, held = state.queue.part(company), state.claims.of(company).held
    text = (
        f"{company} holds {held} of its part, {part}, but no executors can leave for {size} without taking from a "
        "company what it is assured"
    )
    return text, {"cores": size.cores, "memory": size.memory_mb, "part": [part.cores, part.memory_mb]}


def _holders(state: ClusterState, workers: Sequence[Worker]) -> Told:
    held = [
        {"worker": worker.id, "app": hold.app, "company": state.apps[hold.app].spec.company, "since": hold.since}
        for worker in workers
        for hold in worker.holds.values()
    ]
    named = [f"{one['worker']} for {one['app']} of {one['company']}" for one in held[:_NAMED]]
    more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
    return f"what is free is held on {', '.join(named)}{more}", {"holds": held}


def _barred(state: ClusterState, app: App, size: Resources, kept: Collection[str]) -> Wait | None:
    """The app is excluded from the workers that have room (W7, W9), or these are suspected (W8)."""
    there = [state.workers[name] for name in kept if name in state.workers]
    if any(worker.status == "alive" and worker.open_to(app.id).covers(size) for worker in there):
        unstartable = all(app.troubles[worker.id].unstartable for worker in there)
        return Wait("excluded", "W9" if unstartable else "W7", partial(_excluded, state, app))
    suspects = [worker for worker in state.suspects.values() if worker.shut and worker.free.covers(size)]
    return Wait("suspect-worker", "W8", partial(_suspected, suspects)) if suspects else None


def _excluded(state: ClusterState, app: App) -> Told:
    found = exclusions(state, app)
    return "; ".join(exclusion_in_words(each) for each in found[:_NAMED]), {"excludedWorkers": found}


def _suspected(suspects: Sequence[Worker]) -> Told:
    known = [(worker.id, seen) for worker in suspects if (seen := suspicion(worker)) is not None]
    text = "; ".join(suspicion_in_words(worker, seen) for worker, seen in known[:_NAMED])
    return text, {"suspects": [{"worker": worker, **seen} for worker, seen in known]}


def _parts_exceed(state: ClusterState) -> bool:
    """Whether parts cannot all be had: they are more than the cluster has, or than executors fit (semantics C8)."""
    parts = state.queue.parts_of_active()
    assured, fit = _smallest_executors(state, parts)
    return assured > fit or not state.fleet.total.covers(sum(parts, NOTHING))


def _smallest_executors(state: ClusterState, parts: Sequence[Resources]) -> tuple[int, int]:
    """How many minimum executors take all companies to these parts, and how many fit on the live workers (S1, C8)."""
    least = Resources(state.settings.min_executor_cores, state.settings.min_executor_memory_mb)
    return sum(part.holds(least) for part in parts), sum(worker.offer.holds(least) for worker in _live(state))


def _parts(state: ClusterState, company: str) -> Told:
    """The parts of all active companies, each at least one smallest executor, against what there is."""
    parts, total, mine = state.queue.parts_of_active(), state.fleet.total, state.queue.part(company)
    together = sum(parts, NOTHING)
    assured, fit = _smallest_executors(state, parts)
    text = f"the companies are assured {together} together, and the cluster has {total}"
    if assured > fit:
        text += f"; that is {assured} minimum executors, and {fit} fit on the live workers"
    named = {"parts": together, "cluster": total, "part": mine}
    facts = {name: [amounts.cores, amounts.memory_mb] for name, amounts in named.items()}
    return f"{text}; {company} is assured {mine}", {**facts, "assuredExecutors": assured, "fittingExecutors": fit}


def _for_its_driver(state: ClusterState, app: App, size: Resources) -> Wait:
    settings = state.settings
    if app.tries.driver_after > state.at:
        ends, after = app.tries.driver_ends, app.tries.driver_after
        text = f"its driver ended {ends} times in a row soon after its start, and starts again at {moment(after)}"
        return Wait("driver", "D3", lambda: (text, {"ends": ends, "startsAt": after}))
    if settings.max_drivers is not None and len(state.drivers) >= settings.max_drivers:
        most = f"{len(state.drivers)} drivers run, and max_drivers is {settings.max_drivers}"
    elif state.by_entitlement:
        return _for_an_entitled_driver(state, app, size)
    elif not within_driver_limits(state, size.cores):
        most = (
            f"drivers hold {state.driver_cores} of {state.fleet.total.cores} cores, and {size.cores} more exceed "
            f"max_driver_share, {settings.max_driver_share}"
        )
    else:
        *_, kept = left_out_of(state, app, size, state.at)
        barred = _barred(state, app, size, kept)

        def for_room() -> Told:
            text, facts = barred.tell() if barred is not None else _for_room(state, size).tell()
            return f"its driver waits: {text}", facts

        return Wait("driver", "D1" if barred is None else barred.rule, for_room)
    facts = {"drivers": len(state.drivers), "driverCores": state.driver_cores}
    return Wait("driver", "D4", lambda: (f"its driver waits: {most}", facts))


def _for_an_entitled_driver(state: ClusterState, app: App, size: Resources) -> Wait:
    """Its workers are barred to it (W7, W8), a need (H6), or what keeps its driver out of the filling (H2, H5)."""
    *_, kept = left_out_of(state, app, size, state.at)
    found = _barred(state, app, size, kept)
    if found is None:
        needed = in_need(state, app)
        found = _for_room(state, size) if needed is None else Wait(*needed)
    tell = found.tell

    def driver_waits() -> Told:
        text, facts = tell()
        return f"its driver waits: {text}", facts

    return Wait("driver", found.rule, driver_waits)


def _preferring(state: ClusterState, app: App) -> Told:
    hosts = dict.fromkeys(host for wanted in app.demand.wanted for host in wanted.locations.hosts or ())
    since = min(wanted.since for wanted in app.demand.wanted)
    text = (
        f"it has waited since {moment(since)} for room on a host that its tasks prefer "
        f"({', '.join([*hosts][:_NAMED])}): up to {state.settings.locality_wait_host_ms} ms on these hosts, "
        f"then up to {state.settings.locality_wait_rack_ms} ms in their racks"
    )
    return text, {"hosts": [*hosts], "since": since}


def _for_room(state: ClusterState, size: Resources) -> Wait:
    """No worker is large enough, or none has room; the nearest one is told."""
    live = _live(state)
    if fitting := [worker for worker in live if worker.offer.covers(size)]:
        if not any(worker.beside_drivers.covers(size) for worker in fitting):
            return Wait("workers-full", "P1", partial(_drivers_stay, fitting, size))
        return Wait("workers-full", "P1", partial(_nearest, live, size, of_free=True))
    return Wait("no-worker-large-enough", "P1", partial(_nearest, live, size, of_free=False))


def _drivers_stay(workers: list[Worker], size: Resources) -> Told:
    """Drivers, which are never taken (E2), leave less than `size` on each worker that offers it."""
    text, facts = _nearest(workers, size, of_free=True)
    drivers = [name for worker in workers for name in worker.drivers]
    more = f" and {len(drivers) - _NAMED} more" if len(drivers) > _NAMED else ""
    text += f"; drivers leave too little on every worker that is large enough: {', '.join(drivers[:_NAMED])}{more}"
    return text, {**facts, "drivers": drivers}


def _nearest(live: list[Worker], size: Resources, *, of_free: bool) -> Told:
    """The live worker with the largest part of `size`, of its free resources or of its offer."""
    worker, has = nearest(((one.id, one.open_to(None) if of_free else one.offer) for one in live), size)
    facts = {
        "cores": size.cores,
        "memory": size.memory_mb,
        **_others(app=size),
        "nearest": {
            "worker": worker,
            "cores": has.cores,
            "memory": has.memory_mb,
            **_others(worker=has),
            "free": of_free,
        },
    }
    if of_free:
        return f"no worker has {size} free; the nearest is {worker} with {has} free", facts
    return f"no worker offers {size}; the nearest is {worker} with {has}", facts


def _rest(names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"; also before it: {', '.join(names[:_NAMED])}{more}"


def _turn(seq: int | None, at: int | None = None) -> str:
    if not seq:
        return "never selected"
    return f"last selected at position {seq}" + ("" if at is None else f", {moment(at)}")


def exact(amount: int, denominator: int) -> str:
    """A quota's amount, as "n/d" in lowest terms unless it is whole (semantics C2)."""
    return str(amount // denominator) if amount % denominator == 0 else str(Share(amount, denominator))
