"""What was estimated holds where nothing else comes: on random clusters, by ends that no forecast makes."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.model.commands import (
    ChangeCompany,
    Command,
    ConfigureCluster,
    DrainWorker,
    EndApp,
    EndedDriver,
    EndedExecutor,
    ExtendApp,
    HoldApp,
    KillApp,
    RegisterCompany,
    ReleaseApp,
    RemoveWorker,
    ReprioritizeApp,
    SetLimit,
    StartedExecutor,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.errors import CommandRejected
from scheduler.model.events import DriverAllocated, Event, ExecutorAllocated
from scheduler.model.resources import Resources
from scheduler.rules.invariants import check
from scheduler.rules.simulate import NEVER
from scheduler.rules.stage.turn import Turn
from tests.property.given import Cluster, examples, worker
from tests.property.histories import BUILD_UP, HISTORIES, History, command_for
from witness.forecast import Estimate, forecast, waiting


class Wanted(NamedTuple):
    """An app of that company and user, what it asks for, and what part of its limit it needs, in percent."""

    company: str
    user: str
    cores: int
    limit_s: int
    begin_s: int
    driver: bool
    needs: int

    def command(self, name: str) -> SubmitApp:
        """Its submission."""
        submitted = SubmitApp(
            app=name, company=self.company, user=self.user, tasks=self.cores, command=("true",), cores=self.cores
        )
        own = replace(submitted, executor_cores=min(self.cores, 4), executor_memory_mb=512, max_runtime_s=self.limit_s)
        if self.driver:
            own = replace(own, driver=True, driver_cores=1, driver_memory_mb=512, tasks=None)
        return replace(own, begin=self.begin_s * 1000) if self.begin_s else own


APPS = st.lists(
    st.builds(
        Wanted,
        company=st.sampled_from("ab"),
        user=st.sampled_from("uv"),
        cores=st.sampled_from([1, 2, 4, 8]),
        limit_s=st.sampled_from([20, 50, 90, 200]),
        begin_s=st.sampled_from([0, 0, 0, 60]),
        driver=st.sampled_from([False, False, False, True]),
        needs=st.integers(10, 99),
    ),
    min_size=2,
    max_size=9,
)
OFFERS = st.lists(st.sampled_from([4, 8, 16]), min_size=1, max_size=3)


class Running:
    """A cluster whose apps need all of their limits, or a part of them, and whose workers do as they are told."""

    def __init__(self, offers: list[int], apps: list[Wanted], *, whole: bool) -> None:
        cluster = Cluster({"reclaim_patience_s": 30, "min_runtime_s": 0, "kill_grace_s": 5}, each_event=False)
        self.state, self.whole = cluster.state, whole
        self.wanted = {f"x{number}": app for number, app in enumerate(apps)}
        self.starts: dict[str, int] = {}
        self.gone: dict[str, int] = {}
        cluster.turn(*[RegisterCompany(company=name, borrow=True) for name in "ab"])
        cluster.turn(*[worker(f"w{number}", cores) for number, cores in enumerate(offers)])
        for name, app in self.wanted.items():
            self.turn(self.state.at, app.command(name))

    def turn(self, at: int, *commands: Command) -> None:
        """A turn at that time (ms), and the reports of what it started."""
        turn = Turn(self.state, at)
        for command in commands:
            turn.take(command)
        turn.settle()
        check(self.state)
        events: list[Event] = [entry.event for entry in turn.entries]
        for event in events:
            if isinstance(event, ExecutorAllocated | DriverAllocated):
                self.starts.setdefault(event.app, at)
        up = [StartedExecutor(executor=event.executor) for event in events if isinstance(event, ExecutorAllocated)]
        self._heed()
        if up:
            self.turn(at, *up)

    def _heed(self) -> None:
        """Note until when what is told to stop is there: until its date or from now on for its grace."""
        for app in self.state.apps.values():
            for held in app.allocations():
                if held.status != "stopping":
                    self.gone.pop(held.id, None)
                else:
                    due = held.deadline if held.claim and app.goes_on else self.state.at
                    self.gone[held.id] = min(self.gone.get(held.id, NEVER), due + 5_000)

    def run(self) -> None:
        """Let time pass until nothing is left."""
        while self.goes_on():
            pass

    def goes_on(self) -> bool:
        """Let time pass until the next thing is due, and the turn in which it happens; False if nothing is."""
        ends = {
            name: app.running_since + self.wanted[name].limit_s * self.wanted[name].needs * 10
            for name, app in self.state.apps.items()
            if not self.whole and app.running_since is not None and not app.over
        }
        timer = self.state.timers.next(self.state.at)
        at = min([*ends.values(), *self.gone.values(), NEVER if timer is None else timer], default=NEVER)
        if at == NEVER:
            return False
        at = max(at, self.state.at)
        commands: list[Command] = []
        for held in [held for held, due in self.gone.items() if due <= at]:
            del self.gone[held]
            if held in self.state.executors:
                commands.append(EndedExecutor(executor=held, reason="killed"))
            elif held in self.state.drivers:
                commands.append(EndedDriver(driver=held, reason="killed"))
        for name in [name for name, due in ends.items() if due <= at]:
            app = self.state.apps[name]
            left = [one for one in app.executors if one not in {getattr(c, "executor", "") for c in commands}]
            commands += [EndedExecutor(executor=one, reason="exited", exit_code=0, done=True) for one in left]
            if app.driver is not None:
                commands.append(EndedDriver(driver=app.driver.id, reason="exited", exit_code=0))
            else:
                commands.append(EndApp(app=name, reason="finished"))
        self.turn(at, *commands)
        return True

    def change(self, command: Command) -> None:
        """What somebody does now; who was told to stop takes all of its grace from now on, as an estimate assumes."""
        with suppress(CommandRejected):
            self.turn(self.state.at, command)
        self.gone.clear()
        self._heed()


def estimated(offers: list[int], apps: list[Wanted], *, whole: bool) -> tuple[Running, dict[str, Estimate]]:
    """A cluster that has run to its end, and what was estimated of each app that waited at the beginning."""
    running = Running(offers, apps, whole=whole)
    found = forecast(running.state, running.state.at)
    running.run()
    return running, found


@given(OFFERS, APPS)
@examples(60)
def test_no_app_starts_after_its_latest_start_where_all_need_their_limits(
    offers: list[int], apps: list[Wanted]
) -> None:
    running, found = estimated(offers, apps, whole=True)
    for app, (earliest, likely, latest, why) in found.items():
        if latest is None or earliest is None or likely is None:
            assert why
            assert latest is None
            continue
        assert earliest <= running.starts[app] <= latest, f"{app} started at {running.starts[app]} of {found[app]}"
        assert earliest <= likely <= latest
        assert not why


NAMES = st.sampled_from(["x0", "x1", "x2", "x3", "x4", "x5"])
COMPANIES = st.sampled_from("ab")
CHANGES: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        ChangeCompany, COMPANIES, cores=st.integers(0, 24), memory_mb=st.sampled_from([512, 4096, 65536]),
        borrow=st.booleans(),
    ),
    st.builds(ChangeCompany, COMPANIES, part=st.sampled_from(["1/4", "3/4"]), borrow=st.booleans()),
    st.builds(worker, st.sampled_from(["n0", "n1"]), st.sampled_from([2, 4, 8, 16])),
    st.builds(DrainWorker, st.sampled_from(["w0", "w1"])),
    st.builds(UndrainWorker, st.sampled_from(["w0", "w1"])),
    st.builds(RemoveWorker, st.sampled_from(["w1", "w2"]), force=st.just(value=True)),
    st.builds(
        SetLimit, st.just("company"), st.sampled_from(["max_cores", "max_running_apps"]),
        st.sampled_from([1, 2, 4, 8, None]), COMPANIES,
    ),
    st.builds(
        SetLimit, st.just("user"), st.sampled_from(["max_cores", "max_running_apps"]),
        st.sampled_from([1, 2, 4, 8, None]), COMPANIES, st.sampled_from("uv"),
    ),
    st.builds(ReprioritizeApp, NAMES, st.integers(-3, 3)),
    st.builds(HoldApp, NAMES),
    st.builds(ReleaseApp, NAMES),
    st.builds(KillApp, NAMES),
    st.builds(ExtendApp, NAMES, st.sampled_from([10, 100]), st.just(value=True)),
    st.builds(lambda after: ConfigureCluster({"reclaim_patience_s": after}), st.sampled_from([0, 5, 60])),
)  # fmt: skip
"""Other quotas, workers, limits, and what people do with apps."""


@given(OFFERS, APPS, st.lists(st.tuples(st.integers(0, 6), CHANGES), min_size=1, max_size=5))
@examples(60)
def test_what_is_told_after_a_change_holds_if_it_is_the_last_one(
    offers: list[int], apps: list[Wanted], changes: list[tuple[int, Command]]
) -> None:
    """An estimate looks at what runs already, and at what is leaving for somebody."""
    running = Running(offers, apps, whole=True)
    for turns, change in changes:
        for _ in range(turns):
            running.goes_on()
        running.change(change)
    running.starts.clear()
    found = forecast(running.state, running.state.at)
    running.run()
    for app, (earliest, likely, latest, why) in found.items():
        start = running.starts.get(app)
        if latest is not None:
            assert start is not None, f"{app} of {found[app]} has not started"
            assert earliest is not None
            assert likely is not None
            assert earliest <= start <= latest, f"{app} started at {start} of {found[app]}"
            assert earliest <= likely <= latest, found[app]
        else:
            assert why
            assert earliest is None or start is None or earliest <= start
            assert earliest is not None or start is None, f"{app} started at {start}, though {why}"


@given(OFFERS, APPS)
@examples(60)
def test_no_app_starts_before_its_earliest_start_however_soon_others_end(offers: list[int], apps: list[Wanted]) -> None:
    running, found = estimated(offers, apps, whole=False)
    for app, estimate in found.items():
        if app in running.starts:
            assert estimate.earliest is not None
            assert estimate.earliest <= running.starts[app]


def test_of_apps_with_limits_every_one_that_can_start_has_a_latest_start() -> None:
    apps = [Wanted("ab"[n % 2], "u", 8, 50, 0, driver=False, needs=50) for n in range(6)]
    running, found = estimated([16], apps, whole=True)
    assert len(found) == 4
    assert all(each.latest is not None for each in found.values())
    assert resources(running) == Resources(0, 0)


@given(HISTORIES)
@examples(60)
def test_whatever_has_happened_an_app_that_waits_is_told_when_or_why_not(history: History) -> None:
    cluster = Cluster(each_refusal=False, each_event=False)
    for turn in (*BUILD_UP, *history):
        with suppress(CommandRejected):
            cluster.turn(*[command_for(cluster.state, step) for step in turn])
    known = cluster.state.digest()
    found = forecast(cluster.state, cluster.state.at + 1)
    assert found.keys() == {app.id for app in waiting(cluster.state)}
    for app, (earliest, likely, latest, why) in found.items():
        assert why or (earliest is not None and likely is not None and latest is not None), app
        assert latest is None or (likely is not None and earliest is not None and earliest <= likely <= latest), app
    assert cluster.state.digest() == known


def resources(running: Running) -> Resources:
    """What is granted in the end."""
    return sum([one.offer - one.free for one in running.state.workers.values()], Resources(0, 0))
