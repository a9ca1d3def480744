"""For each promise a bug is planted into the real programs; the simulation finds it within few seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

import pytest
from msgspec import structs

from fairlog.api.replica import Replica
from fairlog.api.sender import CommandSender
from fairlog.api.sight import Sight
from scheduler.model.commands import IssueToken
from scheduler.model.errors import NoMaster
from scheduler.model.events import AppRemoved, Event, ExecutorAllocated, ExecutorRemoved, ExecutorRevoked, KeyChanged
from scheduler.model.grants import Grant, diff
from scheduler.model.resources import NOTHING
from scheduler.model.sender import NOBODY, By
from scheduler.rules.admission.limits import Broken, CompanyLimits
from scheduler.rules.command import windows
from scheduler.rules.command.decide import decide
from scheduler.rules.entities.apps import App
from scheduler.rules.entities.labels import Term
from scheduler.rules.entities.workers import Worker
from scheduler.rules.share.fill import GroupTree, Leaf
from scheduler.rules.stage import granting
from scheduler.rules.stage.needs import _Telling
from scheduler.rules.stage.sharing import shared
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import restored
from scheduler.service.commit import Commits, Decided
from scheduler.service.keyring import Keyring
from scheduler.service.receipts import Receipt
from scheduler.service.scheduler import Scheduler
from scheduler.service.seals import key_change
from scheduler.service.signing import Gate, Sent
from scheduler.service.tokens import authenticate
from scheduler.store import eventlog, task_queue
from scheduler.store.eventlog import EventLog
from scheduler.store.task_queue import Worklist
from tests.simulation.door import has_accounts
from tests.simulation.sweep import failure_of
from workers.agent import Agent
from workers.door import Held

SEEDS = 200
Plant = Callable[[pytest.MonkeyPatch], None]


def answers_come_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    begin = Commits.begin

    def hasty(commits: Commits, decided: Decided) -> None:
        commits._tell(decided)
        begin(commits, decided)

    patch.setattr(Commits, "begin", hasty)


def nobody_waits_for_the_replicas(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EventLog, "await_replicas", lambda *_: None)


def a_snapshot_forgets_which_commands_were_carried_out(patch: pytest.MonkeyPatch) -> None:
    def forgetful(lines: Iterable[bytes]) -> ClusterState:
        state = restored(lines)
        state.commands.clear()
        state.carried_out.clear()
        return state

    patch.setattr("recovery.replay.snapshot.restored", forgetful)


def a_snapshot_tells_other_dates_of_slots(patch: pytest.MonkeyPatch) -> None:
    def misread(lines: Iterable[bytes]) -> ClusterState:
        state = restored(lines)
        for name, slot in state.slots.items():
            state.slots[name] = slot._replace(date=slot.date + 1, until=slot.until + 1)
        return state

    patch.setattr("recovery.replay.snapshot.restored", misread)


def grants_are_given_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    begin = Commits.begin

    def hasty(commits: Commits, decided: Decided) -> None:
        for worker, grants in decided.changes.by_worker.items():
            for executor, grant in grants.items():
                if grant:
                    commits._store.hset(commits._keys.grants(worker), executor, grant)
        begin(commits, decided)

    patch.setattr(Commits, "begin", hasty)


def a_commit_appends_wherever_the_log_ends(patch: pytest.MonkeyPatch) -> None:
    unfenced = eventlog.COMMIT_LUA
    behind = "string.match(id, '%d+') + string.match(ARGV[4], '%d+') - ARGV[5] + 1"
    for what, instead in (
        ("return {0, id, digest}", "local _ = 0"),
        ("'XADD', log, ARGV[4]", f"'XADD', log, string.format('%d-0', {behind})"),
    ):
        assert what in unfenced
        unfenced = unfenced.replace(what, instead)
    patch.setattr(eventlog, "COMMIT_LUA", unfenced)


def _start_at_once(agent: Agent, held: Held) -> None:
    for grant in diff(held.granted, {**agent._running, **agent._ended}).start:
        if grant.settled_at <= held.settled:
            agent._start_executor(grant)


def what_is_told_to_stop_counts_as_gone(patch: pytest.MonkeyPatch) -> None:
    """Planted into master and agent, since each of them alone keeps the promise.

    Also planted into the audit, which would find otherwise that the master does not follow the rules.
    """

    def hasty(state: ClusterState, command: Any, at: int | None = None, by: By = NOBODY) -> list[Event]:
        decided: list[Event] = []
        for event in decide(state, command, at, by):
            told: list[tuple[str, str]] = []
            if isinstance(event, AppRemoved):
                told = [(held.id, held.worker) for held in state.apps[event.app].executors.values()]
            elif isinstance(event, ExecutorRevoked):
                told = [(event.executor, event.worker)]
            for executor, worker in told:
                decided.append(ExecutorRemoved(app=event.app, executor=executor, worker=worker, reason="killed"))  # type: ignore[union-attr]
            if not isinstance(event, ExecutorRevoked):
                decided.append(event)
        return decided

    for decider in ("scheduler.rules.stage.turn", "witness.audit.rule_of", "witness.audit.as_due"):
        patch.setattr(f"{decider}.decide", hasty)
    patch.setattr(Agent, "_start", _start_at_once)


def a_state_remembers_no_commands(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClusterState, "_remember", lambda _state, _command: None)


def begun_tasks_do_not_come_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(task_queue, "PUT_BACK_LUA", "return 0")
    patch.setattr(Worklist, "returned", lambda work, app, _gone: (work._queue(app), "", "", "", ""))


def executors_outstay_the_time_of_their_app(patch: pytest.MonkeyPatch) -> None:
    """An expired app waits for its executors, which no command can stop any more (semantics X2)."""
    patch.setattr("workers.executor.ExecutorProcess._leave", lambda *_: None)


def every_end_meets_every_condition(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.index.dependents.is_met", lambda _condition, _ended: True)


def an_executor_runs_a_task_on_each_core(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Grant, "tasks_at_once", property(lambda grant: grant.cores))


def who_holds_which_address_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Worker, "granted_addresses", lambda _: iter(()))


def what_leaves_for_a_claim_does_not_end_its_tasks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("workers.executor.ExecutorProcess._leave", lambda *_: "killed")


def room_that_is_made_for_a_need_is_given_to_anybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Worker, "open_to", lambda worker, *_: NOTHING if worker.shut else worker.free)


def companies_are_lent_more_than_their_caps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.stage.sharing.is_bounded", lambda *_: False)


def caps_of_departments_bound_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupTree, "passes", lambda *_: True)


def limits_of_departments_keep_nobody_out(patch: pytest.MonkeyPatch) -> None:
    broken_by = CompanyLimits.broken_by

    def broken(limit: CompanyLimits, *asked: Any, **how: Any) -> tuple[str, Broken] | None:
        found = broken_by(limit, *asked, **how)
        return None if found is not None and found[1].department else found

    patch.setattr(CompanyLimits, "broken_by", broken)


def an_entitlement_is_kept_whatever_changes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.share.entitlement._holds_for", lambda *_: True)


def equal_shares_go_to_who_holds_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leaf, "is_held", False)


def who_is_entitled_does_not_enter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.stage.sharing._entering", lambda *_: iter(()))


def what_is_left_is_lent_to_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.stage.sharing._lent", lambda *_: iter(()))


def every_worker_has_a_target_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.stage.needs.most_targets", lambda state: state.fleet.live)


def needs_get_no_targets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.stage.needs._targets", lambda *_: iter(()))


def who_is_told_to_leave_has_no_time(patch: pytest.MonkeyPatch) -> None:
    told = _Telling.told
    patch.setattr(
        _Telling, "told", lambda telling, *who: structs.replace(told(telling, *who), deadline=telling._state.at)
    )


def a_turn_ends_before_all_is_decided(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.stage.turn.shared", lambda state, at: islice(shared(state, at), 3))


def slots_begin_before_their_date(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "scheduler.rules.stage.slots._due",
        lambda state, _: [state.apps[name] for name, slot in state.slots.items() if not slot.began],
    )


def labels_exclude_no_worker(patch: pytest.MonkeyPatch) -> None:
    """Planted into all that asks whether a worker meets what is demanded: rooms, what must hold before an event."""
    patch.setattr(Term, "excludes", lambda *_: False)


def nobody_leaves_before_a_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.command.windows.due", lambda *_: iter(()))


def windows_keep_nobody_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.command.windows.barring", lambda *_: [])


def targets_lend_their_room_for_any_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.state.backfill.later_dates", lambda state, *_: len(state.indexes.targeted))
    patch.setattr("scheduler.rules.state.preconditions.lent_on", lambda _, worker, __: [*worker.holds])


def the_others_go_on_without_one_of_their_gang(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.command.decide.broken_up", lambda *_: [])


def a_gang_is_granted_what_has_room(patch: pytest.MonkeyPatch) -> None:
    """And the log takes it: else it refuses the first event after a part of a gang."""

    def fitting(state: ClusterState, app: App, at: int, most: Any, without: Any = ()) -> list[ExecutorAllocated]:
        tried = [granting._placed(state, app, at, most, without, demand) for demand in windows.tries(state, app, at)]
        return next(filter(None, tried), [])

    patch.setattr(granting, "_place", fitting)
    patch.setattr("scheduler.rules.state.cluster.of_whole_gang", lambda *_: None)


def one_of_a_gang_leaves_for_a_need(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.stage.losses.leaving_with", lambda _, one: [one])


def a_window_tells_those_of_a_gang_on_its_workers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.command.windows.with_gang", lambda _, held: [held])


def targets_of_a_gang_end_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """And the log takes an event after a part of a gang, which such ends bring about."""
    patch.setattr("scheduler.rules.state.cluster.of_whole_gang", lambda *_: None)
    patch.setattr("scheduler.rules.stage.needs._with_gang", lambda _, target: [target])


def failed_tasks_are_tried_again_at_once(patch: pytest.MonkeyPatch) -> None:
    waiting = "if backoff_s > 0 then\n        task.due_at"
    assert waiting in task_queue.STEP_LUA
    patch.setattr(task_queue, "STEP_LUA", task_queue.STEP_LUA.replace(waiting, "if false then\n        task.due_at"))


def masters_permit_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.command.decide.permit", lambda *_: None)


def unsigned_messages_are_taken(patch: pytest.MonkeyPatch) -> None:
    read = Gate.read

    def trusting(gate: Gate, lane: str, flat: Any) -> Sent:
        found = read(gate, lane, flat)
        return found._replace(wrong=None) if not found.sent else found

    patch.setattr(Gate, "read", trusting)
    patch.setattr(Scheduler, "_checked", lambda _scheduler, message, _now: message)


def a_server_acknowledges_what_it_has_sent(patch: pytest.MonkeyPatch) -> None:
    send = CommandSender.send

    def hasty(sender: CommandSender, *request: Any, command_id: str = "") -> Receipt:
        sender._client.timeout_s = 0.1
        try:
            return send(sender, *request, command_id=command_id)
        except NoMaster:
            return Receipt(command_id, sender.replica.head + 1)

    patch.setattr(CommandSender, "send", hasty)


def a_server_remembers_who_had_a_token(patch: pytest.MonkeyPatch) -> None:
    known: dict[str, By] = {}

    def remembered(state: ClusterState, text: str, at: int) -> By:
        return known.get(text) or known.setdefault(text, authenticate(state, text, at))

    patch.setattr("fairlog.api.handlers.authenticate", remembered)


def a_server_takes_tokens_while_it_hears_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "check_fresh", lambda _: None)


def a_server_shows_apps_of_other_companies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sight, "may_see", lambda *_: True)


def an_invitation_issues_any_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.command.permission._joins", lambda command, _: isinstance(command, IssueToken))


def workers_offer_more_than_they_were_invited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.rules.command.permission._check_worker", lambda *_: None)


def nobody_signs_for_a_new_key(patch: pytest.MonkeyPatch) -> None:
    def unsigned(ring: Keyring, state: ClusterState) -> KeyChanged | None:
        change = key_change(ring, state)
        return change and structs.replace(change, signature="")

    patch.setattr("scheduler.service.seals.key_change", unsigned)


def masters_take_no_message_signed_by_an_older_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keyring, "may_sign", lambda ring, door, _: door == ring.door)


class Found(NamedTuple):
    """The promise that finds the bug, and the first seed to try: one that found it last, or shortly before it.

    `accounts`: the bug is in what only clusters with accounts have, so only their seeds are tried.
    """

    promise: int | str
    from_seed: int = 0
    accounts: bool = False


PLANTS: dict[Plant, Found] = {
    answers_come_before_the_commit: Found(1),
    nobody_waits_for_the_replicas: Found(1, from_seed=55),
    a_snapshot_forgets_which_commands_were_carried_out: Found(2, from_seed=8),
    a_snapshot_tells_other_dates_of_slots: Found(2, from_seed=33),
    grants_are_given_before_the_commit: Found(3, from_seed=157),
    a_commit_appends_wherever_the_log_ends: Found(4, from_seed=146),
    what_is_told_to_stop_counts_as_gone: Found(5, from_seed=50),
    an_executor_runs_a_task_on_each_core: Found(5),
    a_state_remembers_no_commands: Found(6, from_seed=2),
    begun_tasks_do_not_come_back: Found(6, from_seed=9),
    executors_outstay_the_time_of_their_app: Found(6, from_seed=28),
    every_end_meets_every_condition: Found(7, from_seed=345),
    who_holds_which_address_is_not_looked_at: Found(5),
    what_leaves_for_a_claim_does_not_end_its_tasks: Found(6, from_seed=28),
    room_that_is_made_for_a_need_is_given_to_anybody: Found(5, from_seed=11),
    companies_are_lent_more_than_their_caps: Found("H1", from_seed=3),
    caps_of_departments_bound_nobody: Found("H12", from_seed=19),
    limits_of_departments_keep_nobody_out: Found("N2", from_seed=175),
    an_entitlement_is_kept_whatever_changes: Found("H2", from_seed=2),
    equal_shares_go_to_who_holds_nothing: Found("H3", from_seed=167),
    who_is_entitled_does_not_enter: Found("H4"),
    what_is_left_is_lent_to_nobody: Found("H5", from_seed=131),
    every_worker_has_a_target_at_once: Found("H6", from_seed=2),
    needs_get_no_targets: Found("H6", from_seed=2),
    who_is_told_to_leave_has_no_time: Found("H7", from_seed=2),
    a_turn_ends_before_all_is_decided: Found("H9"),
    slots_begin_before_their_date: Found("H10", from_seed=11),
    labels_exclude_no_worker: Found("P9"),
    nobody_leaves_before_a_window: Found("W14", from_seed=4),
    windows_keep_nobody_out: Found("W14", from_seed=4),
    targets_lend_their_room_for_any_time: Found("H11", from_seed=11),
    the_others_go_on_without_one_of_their_gang: Found("G8", from_seed=262),
    a_gang_is_granted_what_has_room: Found("G8", from_seed=346),
    targets_of_a_gang_end_one_by_one: Found("G8", from_seed=346),
    one_of_a_gang_leaves_for_a_need: Found("G8", from_seed=892),
    a_window_tells_those_of_a_gang_on_its_workers: Found("G8", from_seed=370),
    failed_tasks_are_tried_again_at_once: Found(6),
    masters_permit_everything: Found(9, accounts=True),
    unsigned_messages_are_taken: Found(9, from_seed=40, accounts=True),
    a_server_acknowledges_what_it_has_sent: Found(1, accounts=True),
    a_server_remembers_who_had_a_token: Found(9, from_seed=22, accounts=True),
    a_server_takes_tokens_while_it_hears_nothing: Found(9, from_seed=27, accounts=True),
    a_server_shows_apps_of_other_companies: Found(9, from_seed=22, accounts=True),
    an_invitation_issues_any_token: Found(9, from_seed=75, accounts=True),
    workers_offer_more_than_they_were_invited_for: Found(9, accounts=True),
    nobody_signs_for_a_new_key: Found(2, from_seed=55, accounts=True),
    masters_take_no_message_signed_by_an_older_key: Found(6, from_seed=55, accounts=True),
}


@pytest.mark.parametrize(("plant", "found"), PLANTS.items(), ids=[plant.__name__ for plant in PLANTS])
def test_a_planted_bug_is_found_by_its_promise(plant: Plant, found: Found) -> None:
    seeds = range(found.from_seed, found.from_seed + SEEDS)
    for seed in filter(has_accounts, seeds) if found.accounts else seeds:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            failure = failure_of(seed)
        if failure is not None and failure.promise is not None:
            break
    assert failure is not None, f"not found within {SEEDS} seeds"
    assert failure.promise == found.promise, failure
