"""No app runs for longer than it may, by a clock that reads the log alone (semantics X1, X2)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import example, given

from scheduler.model.errors import CommandRejected
from scheduler.model.events import (
    AppExpired,
    AppExtended,
    AppRegistered,
    AppRemoved,
    AppWarned,
    DriverAllocated,
    DriverRemoved,
    Event,
    ExecutorChanged,
    ExecutorRemoved,
)
from scheduler.model.ids import app_of
from tests.property.given import Cluster, examples, rests
from tests.property.histories import BUILD_UP, HISTORIES, History, Step, command_for


@dataclass
class Watched:
    """An app, what of it runs, and how long it has run up to `at` (ms)."""

    limit_ms: int | None
    before_ms: int | None
    running: set[str] = field(default_factory=set)
    ran_ms: int = 0
    at: int = 0
    warned_at: int | None = None
    expired: bool = False

    def look(self, at: int) -> None:
        """Add the time up to `at`."""
        self.ran_ms += (at - self.at) * bool(self.running)
        self.at = at


class Clock:
    """What the events of a log say about how long apps run."""

    def __init__(self) -> None:
        self.apps: dict[str, Watched] = {}

    def hear(self, event: Event, at: int) -> None:
        """Take in the next event."""
        if isinstance(event, AppRegistered):
            limit_ms = None if event.max_runtime_s is None else event.max_runtime_s * 1000
            self.apps[event.app] = Watched(limit_ms, event.warn and event.warn.before_s * 1000, at=at)
            return
        name = app_of(event.executor) if isinstance(event, ExecutorChanged) else getattr(event, "app", "")
        app = self.apps.get(name)
        if app is None:
            return
        app.look(at)
        match event:
            case ExecutorChanged(executor=who) | DriverAllocated(driver=who):
                app.running.add(who)
            case ExecutorRemoved(executor=who) | DriverRemoved(driver=who):
                app.running.discard(who)
            case AppExtended():
                app.limit_ms, app.warned_at = event.max_runtime_s * 1000, None
            case AppWarned():
                assert app.running, f"{event} reaches nobody"
                assert app.warned_at is None, f"{event} came twice"
                assert app.ran_ms >= (app.limit_ms or 0) - (app.before_ms or 0), f"{event} came too early"
                app.warned_at = at
            case AppExpired():
                assert app.limit_ms is not None, f"{event} came without a limit"
                assert app.ran_ms >= app.limit_ms, f"{event} came after {app.ran_ms} ms"
                app.expired = True
            case AppRemoved():
                assert (event.reason == "expired") == app.expired, f"{event}, and it expired: {app.expired}"
                del self.apps[name]
            case _:
                pass

    def check(self, at: int) -> None:
        """Nothing is due at the end of a turn."""
        for name, app in self.apps.items():
            app.look(at)
            assert app.limit_ms is None or app.expired or app.ran_ms < app.limit_ms, f"{name} has run {app.ran_ms} ms"


@given(HISTORIES)
@example([[Step(66, 0, 0)], [Step(34, 0, 0)], [Step(0, 0, 1)], [Step(0, 0, 1)], [Step(29, 0, 0)]])  # a decommission
@examples(60)
def test_an_app_runs_as_long_as_it_may_and_no_longer(history: History) -> None:
    clock, cluster = Clock(), Cluster(each_refusal=False)
    for turn in (*BUILD_UP, *history):
        began = len(cluster.log)
        commands = [command_for(cluster.state, step) for step in turn]
        with suppress(CommandRejected):
            cluster.turn(*commands)
        for event, at, *_ in cluster.log[began:]:
            clock.hear(event, at)
        if not rests(commands):
            clock.check(cluster.state.at)
