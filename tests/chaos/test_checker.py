"""The checker finds every kind of broken promise in the records of a run, and nothing in a correct run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from scheduler.model.commands import (
    Command,
    EndApp,
    EndedDriver,
    EndedExecutor,
    KillApp,
    LoseWorker,
    RegisterCompany,
    RegisterWorker,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.errors import CommandRejected
from scheduler.model.events import (
    AppAdmitted,
    AppRegistered,
    AppRemoved,
    ClusterConfigured,
    CommandRefused,
    DriverRemoved,
    EditionChanged,
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
    MasterElected,
)
from scheduler.model.resources import Resources
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.store.codec import GENESIS_DIGEST, Fact, encode_turn, told
from tests.chaos.checker import Evidence, check
from tests.chaos.decisions import PROMISES
from tests.chaos.faults import SINGLE, draw
from tests.chaos.history import DRIVER, REFUSED, History, Line, Trace, read_history, read_traces
from tests.unit.recorded import stored


def submission(app: str, how: str = "ok") -> SubmitApp:
    """An app of two tasks that ends in this way."""
    return SubmitApp(app=app, company="acme", user="ann", cores=4, tasks=2, name=how, command=("true",))


class Run:
    """A correct run: `a` finished, `b` failed as intended, `c` was killed by a command, `d` has a driver."""

    def __init__(self) -> None:
        self._state = ClusterState()
        self.lines: list[Line] = []
        self.entries: list[Fact] = []
        self.traces: list[Trace] = []
        self.running: list[str] = []
        first = Turn(self._state, 1_000)
        first.record(MasterElected(master="m"))
        first.record(EditionChanged(edition=3))
        first.record(ClusterConfigured())
        self._keep(first)
        self.turn(2_000, RegisterCompany(company="acme"))
        self.turn(3_000, RegisterWorker(worker="w", node="n", host="h", cores=32, memory_mb=32_768))
        for app, how in (("a", "ok"), ("b", "fails"), ("c", "ok")):
            self.client(4_000, submission(app, how))
            self.turn(5_000, StartedExecutor(executor=f"{app}.0"))
            self.traces += [Trace(app, "begin", task, f"{app}.0", "70", 6_000) for task in (0, 1)]
        self.traces += [Trace("a", "end", task, "a.0", "70", 7_000) for task in (0, 1)]
        self.client(5_500, SubmitApp(app="d", company="acme", user="ann", name="ok", driver=True, command=("true",)))
        self.traces += [Trace("d", what, DRIVER, "d.driver-0", "71", 6_000) for what in ("begin", "end")]
        self.turn(8_000, EndApp(app="a", reason="finished"), EndApp(app="b", reason="failed"))
        self.client(8_000, KillApp(app="c"))
        self.turn(9_000, *(EndedExecutor(executor=f"{app}.0", reason="killed") for app in "abc"))
        self.turn(9_200, EndedDriver(driver="d.driver-0", worker="w", reason="exited", exit_code=0))
        self.turn(9_250, EndedExecutor(executor="d.0", reason="killed"))
        self.refused(9_300, "no", replace(submission("no", REFUSED), company="nobody"))

    def turn(self, at: int, *commands: Command, cause: str = "") -> int:
        """Take a turn with `commands`, each under an id; the position of the last event that they caused."""
        turn = Turn(self._state, at)
        for number, command in enumerate(commands):
            turn.take(command, cause or f"{turn.first}-{number}")
        caused = self._state.head
        turn.settle()
        self._keep(turn)
        return caused

    def client(self, at: int, command: Command) -> None:
        """Execute a command of a client and acknowledge it."""
        cause = f"c{len(self.lines)}"
        self.lines.append(Line(cause, "invoke", to_builtins(command)))
        self.lines.append(Line(cause, "ok", seq=self.turn(at, command, cause=cause)))

    def refused(self, at: int, cause: str, command: Command) -> None:
        """Refuse a command of a client, log that (semantics T3) and tell the client."""
        turn = Turn(self._state, at)
        with pytest.raises(CommandRejected) as found:
            turn.take(command, cause)
        assert turn.refuse(command, found.value, cause)
        turn.settle()
        self._keep(turn)
        self.lines.append(Line(cause, "invoke", to_builtins(command)))
        self.lines.append(Line(cause, "fail", error=f"{type(found.value).__name__}: {found.value}"))

    def place(self, kind: type[Event], nth: int = 0) -> int:
        """Where the `nth` event of a kind stands among the entries."""
        return [number for number, entry in enumerate(self.entries) if isinstance(entry.event, kind)][nth]

    def change(self, kind: type[Event], nth: int = 0, **fields: object) -> None:
        """Change fields of the `nth` event of a kind."""
        place = self.place(kind, nth)
        entry = self.entries[place]
        self.entries[place] = replace(entry, event=replace(entry.event, **fields))

    def evidence(self) -> Evidence:
        """The records of the run, with the digests of its log recomputed."""
        return Evidence(self.lines, stored(self.entries), self.traces, self.running)

    def _keep(self, turn: Turn) -> None:
        record = encode_turn(turn.entries, turn.commands, first=turn.first, at=turn.at, previous=GENESIS_DIGEST)
        self.entries += told(record)


def lose_the_last_acknowledged_entry(run: Run) -> None:
    del run.entries[run.place(AppRemoved, 2) :]


def acknowledge_without_a_place(run: Run) -> None:
    run.lines[1] = run.lines[1]._replace(seq=0)


def refuse_what_was_done(run: Run) -> None:
    run.lines[1] = Line(run.lines[0].id, "fail", error="DuplicateApp: app 'a' exists already")


def let_a_command_make_the_master_fail(run: Run) -> None:
    run.lines[-1] = Line("no", "fail", error="InternalError: the command made the master fail")


def refuse_what_is_as_it_should_be(run: Run) -> None:
    run.lines[-1] = Line("no", "fail", error="InvalidCommand: an app has one task at least")


def acknowledge_what_had_to_be_refused(run: Run) -> None:
    run.lines[-1] = Line("no", "ok", seq=run.place(AppRegistered) + 1)


def carry_a_command_out_twice(run: Run) -> None:
    run.client(9_500, submission("e"))
    run.turn(9_600, submission("e2"), cause=run.lines[-1].id)


def register_an_app_that_nobody_submitted(run: Run) -> None:
    run.turn(9_500, submission("ghost"))


def log_another_refusal_than_the_client_is_told(run: Run) -> None:
    run.change(CommandRefused, message="no company 'somebody' is registered")


def acknowledge_what_the_log_refuses(run: Run) -> None:
    run.lines[-1] = Line("no", "ok", seq=run.place(CommandRefused) + 1)


def take_another_decision_than_the_rules_do(run: Run) -> None:
    run.change(ExecutorAllocated, resources=Resources(2, 2048))


def leave_an_admission_out(run: Run) -> None:
    del run.entries[run.place(AppAdmitted)]


def promise_a_core_twice(run: Run) -> None:
    run.change(ExecutorAllocated, 2, resources=Resources(32, 2048))


def promise_memory_twice(run: Run) -> None:
    run.change(ExecutorAllocated, 2, resources=Resources(4, 32_000))


def grant_on_a_worker_that_is_gone(run: Run) -> None:
    run.change(ExecutorAllocated, worker="nowhere")


def promise_an_address_twice(run: Run) -> None:
    for number in (1, 2):
        run.change(ExecutorAllocated, number, addresses={"gpu": ("0",)})


def skip_a_task(run: Run) -> None:
    run.traces = [trace for trace in run.traces if (trace.app, trace.what, trace.task) != ("a", "end", 1)]


def skip_a_driver(run: Run) -> None:
    run.traces = [trace for trace in run.traces if (trace.app, trace.what) != ("d", "end")]


def start_a_driver_twice(run: Run) -> None:
    run.traces.append(Trace("d", "begin", DRIVER, "d.driver-0", "72", 6_500))


def run_a_driver_that_was_never_granted(run: Run) -> None:
    run.traces.append(Trace("d", "begin", DRIVER, "d.driver-1", "73", 6_500))


def run_a_driver_on_after_the_worker_said_that_it_is_gone(run: Run) -> None:
    run.traces.append(Trace("d", "end", DRIVER, "d.driver-0", "71", 9_201))


def hold_a_drivers_grant_for_ever(run: Run) -> None:
    del run.entries[run.place(DriverRemoved)]


def start_an_executor_twice(run: Run) -> None:
    run.traces.append(Trace("a", "begin", 1, "a.0", "71", 6_500))


def run_a_task_twice_at_once(run: Run) -> None:
    run.traces.append(Trace("a", "twice", 1, "a.0", "70", 6_500))


def run_under_an_executor_that_was_never_granted(run: Run) -> None:
    run.traces.append(Trace("a", "begin", 1, "a.7", "72", 6_500))


def run_before_the_grant(run: Run) -> None:
    run.traces.append(Trace("a", "begin", 1, "a.0", "70", 3_999))


def run_on_after_the_worker_said_that_it_is_gone(run: Run) -> None:
    run.traces.append(Trace("b", "end", 1, "b.0", "70", 9_001))


def leave_a_task_running(run: Run) -> None:
    run.running.append("process 4711 of b")


def never_end_an_app(run: Run) -> None:
    run.client(9_500, submission("late"))


def fail_an_app_whose_command_does_not(run: Run) -> None:
    run.change(AppRemoved, reason="failed", detail="10 executors failed")


def finish_an_app_whose_command_fails(run: Run) -> None:
    run.change(AppRemoved, 1, reason="finished")


def kill_an_app_that_nobody_wants_killed(run: Run) -> None:
    run.change(AppRemoved, reason="killed")


def hold_a_grant_for_ever(run: Run) -> None:
    del run.entries[run.place(ExecutorRemoved, 2)]


def expire_an_app_that_may_run_for_ever(run: Run) -> None:
    run.change(AppRemoved, reason="expired")


def lose_a_worker_right_after_an_election(run: Run) -> None:
    run.turn(9_500, LoseWorker(worker="w", last_seen=100))


def lose_a_worker_that_was_heard_of(run: Run) -> None:
    run.turn(60_000, LoseWorker(worker="w", last_seen=59_000))


PLANTED: dict[Callable[[Run], None], str] = {
    lose_the_last_acknowledged_entry: "what was acknowledged is in the log",
    acknowledge_without_a_place: "what was acknowledged is in the log",
    refuse_what_was_done: "what was refused left nothing but its refusal",
    let_a_command_make_the_master_fail: "what was refused left nothing but its refusal",
    refuse_what_is_as_it_should_be: "what was refused left nothing but its refusal",
    acknowledge_what_had_to_be_refused: "what was refused left nothing but its refusal",
    carry_a_command_out_twice: "no command was carried out twice",
    register_an_app_that_nobody_submitted: "nothing is in the log that nobody asked for",
    log_another_refusal_than_the_client_is_told: "what was refused left nothing but its refusal",
    acknowledge_what_the_log_refuses: "what was acknowledged is in the log",
    take_another_decision_than_the_rules_do: "the log is whole, and every decision follows from it",
    leave_an_admission_out: "the log is whole, and every decision follows from it",
    promise_a_core_twice: "no core was promised twice",
    promise_memory_twice: "no core was promised twice",
    grant_on_a_worker_that_is_gone: "no core was promised twice",
    promise_an_address_twice: "no address was promised twice",
    skip_a_task: "no task was skipped",
    skip_a_driver: "no task was skipped",
    start_a_driver_twice: "no executor ran twice",
    run_a_driver_that_was_never_granted: "nothing ran that was not granted",
    run_a_driver_on_after_the_worker_said_that_it_is_gone: "nothing ran on that was said to be gone",
    hold_a_drivers_grant_for_ever: "every app ended as it should",
    start_an_executor_twice: "no executor ran twice",
    run_a_task_twice_at_once: "no executor ran twice",
    run_under_an_executor_that_was_never_granted: "nothing ran that was not granted",
    run_before_the_grant: "nothing ran that was not granted",
    run_on_after_the_worker_said_that_it_is_gone: "nothing ran on that was said to be gone",
    leave_a_task_running: "nothing ran on that was said to be gone",
    never_end_an_app: "every app ended as it should",
    fail_an_app_whose_command_does_not: "every app ended as it should",
    finish_an_app_whose_command_fails: "every app ended as it should",
    expire_an_app_that_may_run_for_ever: "every app ended as it should",
    kill_an_app_that_nobody_wants_killed: "every app ended as it should",
    hold_a_grant_for_ever: "every app ended as it should",
    lose_a_worker_right_after_an_election: "no worker was declared lost too early",
    lose_a_worker_that_was_heard_of: "no worker was declared lost too early",
}


def test_a_run_in_which_all_went_well_contradicts_no_promise() -> None:
    assert check(Run().evidence(), PROMISES) == []


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_broken_promise_is_found(plant: Callable[[Run], None]) -> None:
    run = Run()
    plant(run)
    assert PLANTED[plant] in {violation.promise for violation in check(run.evidence(), PROMISES)}


def test_every_promise_has_been_broken_once_here() -> None:
    assert set(PLANTED.values()) == PROMISES.keys()


def test_a_command_without_word_may_have_been_carried_out_or_not() -> None:
    run = Run()
    run.lines.append(Line("lost", "invoke", to_builtins(submission("x"))))
    assert check(run.evidence(), PROMISES) == []
    done = run.lines[1]
    run.lines[1] = done._replace(phase="unknown", error="ConnectionError: closed")
    assert check(run.evidence(), PROMISES) == []


def test_a_history_goes_on_where_the_life_before_left_it(tmp_path: Path) -> None:
    path = tmp_path / "client"
    sent = Line("c1", "invoke", {"type": "KillApp", "app": "a"})
    History(path).write(sent)
    assert History(path).unsettled() == sent
    History(path).write(Line("c1", "unknown", error="NoMaster: none"))
    assert History(path).unsettled() == sent
    History(path).write(Line("c1", "ok", seq=3))
    assert History(path).unsettled() is None
    assert [line.phase for line in read_history([path])] == ["invoke", "unknown", "ok"]


def test_what_tasks_say_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.trace").write_text("begin 0 a.1 70 1700000000000\nend 0 a.1 70 1700000000100\n")
    assert list(read_traces(tmp_path)) == [
        Trace("a", "begin", 0, "a.1", "70", 1_700_000_000_000),
        Trace("a", "end", 0, "a.1", "70", 1_700_000_000_100),
    ]


def test_a_seed_draws_the_same_faults_again_and_all_kinds_come() -> None:
    faults = draw(7, 600)
    assert faults == draw(7, 600) != draw(8, 600)
    assert {(fault.kind, fault.deed) for fault in faults} == SINGLE.keys()
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    assert {fault.kind for fault in draw(7, 600, replicated=True)} > {"replica", "sentinel"}
