"""A whole cluster in one process: masters, agents, clients and a store, with time and faults drawn from a seed.

Nothing here waits. Time is what `World.now_ms` says, also for the store. A fault strikes at a store
call of a master: before it, after it, or by taking away its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import fakeredis
from fakeredis.commands_mixins import server_mixin
from redis.exceptions import ConnectionError as StoreConnectionError

from recovery.audit import audit
from recovery.rebuild import fold, rebuild
from scheduler.client import SEND_LUA
from scheduler.commands import (
    Command,
    EndApp,
    EndedExecutor,
    KillApp,
    RegisterCompany,
    RegisterWorker,
    StartedExecutor,
    SubmitApp,
)
from scheduler.doorbell import bell_id, queue_key
from scheduler.errors import Deposed
from scheduler.eventlog import GENESIS, CommitUnderWay, EventLog, Position
from scheduler.events import AppRegistered, decode
from scheduler.grants import STOP
from scheduler.keys import Keys
from scheduler.service import Scheduler
from scheduler.state import ClusterState
from scheduler.underway import StoreCommand, UnderWay

if TYPE_CHECKING:
    import pytest

KEYS = Keys("simulated")
COMPANIES = ("north", "south", "west")


class Killed(BaseException):
    """The process died at this store call."""


class FaultyStore(fakeredis.FakeRedis):
    """A connection on which each call may be struck by a fault."""

    strike: Callable[[str], None] | None = None

    def execute_command(self, *args: Any, **options: Any) -> Any:
        return self._struck(lambda: super(FaultyStore, self).execute_command(*args, **options))  # type: ignore[no-untyped-call]

    def pipeline(self, *args: Any, **options: Any) -> Any:
        made = super().pipeline(*args, **options)
        execute = made.execute
        made.execute = lambda *a, **o: self._struck(lambda: execute(*a, **o))  # type: ignore[method-assign]
        return made

    def _struck(self, call: Callable[[], Any]) -> Any:
        strike = self.strike
        if strike is None:
            return call()
        strike("before")
        answer = call()
        strike("after")
        return answer


class FaultyCommit:
    """A commit under way that a fault may strike once it was sent, and once it was answered."""

    def __init__(self, commit: CommitUnderWay, store: FaultyStore) -> None:
        self.commit = commit
        self.store = store
        self.abandon = commit.abandon

    def finish(self) -> None:
        self.store._struck(self.commit.finish)


class FaultyUnderWay(UnderWay):
    """Commands sent ahead that a fault may strike before they are sent, and once they are answered."""

    def __init__(self, store: FaultyStore, commands: Sequence[StoreCommand]) -> None:
        self.store = store
        if store.strike is not None:
            store.strike("before")
        super().__init__(store, commands)

    def answers(self) -> list[Any]:
        return cast("list[Any]", self.store._struck(super().answers))


class Agent:
    """A worker's agent: runs what it is granted, never waits, and loses all it runs when it is restarted."""

    def __init__(self, world: World, worker: str) -> None:
        self.world = world
        self.worker = worker
        self.running: dict[str, str] = {}

    def register(self) -> None:
        self.world.send(RegisterWorker(worker=self.worker, node="n", host="h", cores=16, memory_mb=32768))

    def heartbeat(self) -> None:
        if self.world.store.zscore(KEYS.heartbeats, self.worker) is None:
            self.running.clear()
            self.register()
        else:
            self.world.store.zadd(KEYS.heartbeats, {self.worker: self.world.now_ms})

    def converge(self) -> None:
        granted: Any = self.world.store.hgetall(KEYS.grants(self.worker))
        for field, value in sorted(granted.items()):
            executor = field.decode()
            if value == STOP.encode():
                self.running.pop(executor, None)
                self.world.send(EndedExecutor(executor=executor, reason="killed"))
            elif executor not in self.running:
                assert executor in self.world.granted_now(self.worker), f"{executor} runs but the log does not grant it"
                self.running[executor] = executor.rpartition(".")[0]
                self.world.send(StartedExecutor(executor=executor))
        for executor in sorted(self.running.keys() - {field.decode() for field in granted}):
            del self.running[executor]

    def finish_something(self, random: Random) -> None:
        if not self.running:
            return
        executor = random.choice(sorted(self.running))
        app = self.running[executor]
        match random.randrange(4):
            case 0:
                self._ended(executor, "failed", done=False)
            case 1:
                self._ended(executor, "exited", done=True)
            case _:
                self.world.send(EndApp(app=app, reason=random.choice(("finished", "failed"))))
                self._ended(executor, "exited", done=True)

    def _ended(self, executor: str, reason: Any, *, done: bool) -> None:
        del self.running[executor]
        self.world.send(EndedExecutor(executor=executor, reason=reason, exit_code=0 if done else 1, done=done))


class World:
    """One seeded run: `step` a few hundred times, then `settle`, then `check`."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.random = Random(seed)
        patch.setattr("scheduler.service.BATCH", 3)
        patch.setattr("scheduler.service.AHEAD_FROM", 2)
        begin = EventLog.begin_commit

        def begin_struck(log: EventLog, *args: Any, **options: Any) -> Any:
            commit = begin(log, *args, **options)
            return FaultyCommit(commit, log.store) if isinstance(log.store, FaultyStore) else commit

        patch.setattr(EventLog, "begin_commit", begin_struck)
        for module in ("service", "worklist"):
            patch.setattr(f"scheduler.{module}.UnderWay", FaultyUnderWay)
        self.now_ms = 1_700_000_000_000
        patch.setattr(server_mixin, "time", SimpleNamespace(time=lambda: self.now_ms / 1000))
        patch.setattr(
            "scheduler.service.time", SimpleNamespace(monotonic=lambda: self.now_ms / 1000, sleep=lambda _: None)
        )
        self.server = fakeredis.FakeServer()
        self.store = fakeredis.FakeRedis(server=self.server)
        self.log = EventLog(self.store, KEYS)
        self.follower, self.followed = ClusterState(), GENESIS
        self.submitted: dict[str, str] = {}
        self.acknowledged: set[str] = set()
        self.refused: set[str] = set()
        self.numbers = iter(range(1, 1_000_000))
        self.masters: list[Scheduler] = []
        self.agents = [Agent(self, f"w{number}") for number in range(4)]
        self.elect()
        for company in COMPANIES:
            self.send(RegisterCompany(company=company))
        for agent in self.agents:
            agent.register()

    def send(self, command: Command, *, times: int = 1) -> str:
        """Put a command into the inbox, as often as an impatient client would; its id."""
        identity = f"command-{next(self.numbers)}"
        for _ in range(times):
            self.store.eval(
                SEND_LUA,
                2,
                KEYS.inbox,
                queue_key(KEYS.master_queue),
                bell_id(KEYS.master_queue),
                identity,
                "command",
                command.model_dump_json(),
                identity,
            )
        return identity

    def elect(self) -> None:
        """A new master takes over; the old one, if there is one, does not know yet."""
        store = FaultyStore(server=self.server)
        log = EventLog(store, KEYS)
        master = Scheduler(log, f"master-{next(self.numbers)}", lambda: rebuild(log))
        master.take_over()
        self.masters.append(master)

    def step(self) -> None:
        """Something happens."""
        random = self.random
        self.now_ms += random.choice((1, 5, 50, 400)) if random.random() < 0.95 else -200
        agent = random.choice(self.agents)
        match random.randrange(12):
            case 0 | 1 | 2:
                self._submit()
            case 3:
                if self.submitted:
                    self.send(KillApp(app=random.choice(sorted(self.submitted.values()))))
            case 4 | 5:
                agent.converge()
            case 6:
                agent.finish_something(random)
            case 7:
                for each in self.agents:
                    each.heartbeat()
            case 8 if random.random() < 0.1:
                agent.running.clear()
            case 9 if random.random() < 0.1:
                self.elect()
            case _:
                self._turn(random.choice(self.masters[-2:]), faulty=True)
        self._collect_answers()

    def settle(self) -> None:
        """No more faults: everybody does its part until nothing is left to do."""
        for _ in range(400):
            self.now_ms += 300
            for agent in self.agents:
                agent.heartbeat()
                agent.converge()
                for executor in sorted(agent.running):
                    self.send(EndApp(app=agent.running[executor], reason="finished"))
                    agent._ended(executor, "exited", done=True)
            self._say_what_is_over()
            self._turn(self.masters[-1], faulty=False)
            if not self.store.xlen(KEYS.inbox) and not self.masters[-1].state.executors and not self._open_apps():
                return
        raise AssertionError(f"apps never ended: {self._open_apps()}")

    def check(self) -> None:
        """What was promised holds, judged from the log and from what the clients were told."""
        state = ClusterState()
        registered: dict[str, int] = {}
        for record in self.log.read():
            event = decode(record)
            fold(state, record)
            state.check()
            if isinstance(event, AppRegistered):
                assert record.cause not in registered, f"{record.cause} was carried out twice"
                registered[record.cause] = record.seq
        lost = self.acknowledged & self.submitted.keys() - registered.keys()
        assert not lost, f"acknowledged but not in the log: {sorted(lost)}"
        denied = self.refused & registered.keys()
        assert not denied, f"refused but in the log: {sorted(denied)}"
        assert state.digest() == self.masters[-1].state.digest()
        assert audit(self.log.read()) == []

    def granted_now(self, worker: str) -> set[str]:
        """What the log grants on a worker at this moment."""
        for record in self.log.read(self.followed):
            fold(self.follower, record)
            self.followed = Position(record.seq, record.digest)
        known = self.follower.workers.get(worker)
        return set(known.executors) if known else set()

    def _submit(self) -> None:
        random = self.random
        app = f"app-{next(self.numbers)}"
        command = SubmitApp(
            app=app,
            company=random.choice(COMPANIES),
            user=random.choice(("ann", "bob")),
            cores=random.choice((1, 4, 8, 24)),
            memory_per_task_mb=random.choice((None, 512, 3000)),
            command=("true",),
        )
        self.submitted[self.send(command, times=random.choice((1, 1, 2)))] = app

    def _turn(self, master: Scheduler, *, faulty: bool) -> None:
        if master not in self.masters:
            return
        store = master.store
        assert isinstance(store, FaultyStore)
        store.strike = self._fault() if faulty else None
        try:
            if faulty and self.random.random() < 0.5:
                master.turn()
            else:
                master.work_off_inbox(lambda: not faulty or self.random.random() < 0.7)
        except Killed:
            serving = master is self.masters[-1]
            self.masters.remove(master)
            if serving:
                self.elect()
        except Deposed:
            assert master is not self.masters[-1]
            self.masters.remove(master)
        except StoreConnectionError:
            pass
        finally:
            store.strike = None

    def _fault(self) -> Callable[[str], None]:
        random = self.random
        countdown = random.randrange(40)
        kind = random.choice(("kill", "lose the answer"))

        def strike(when: str) -> None:
            nonlocal countdown
            countdown -= 1
            if countdown == 0:
                if kind == "kill":
                    raise Killed
                if when == "after":
                    raise StoreConnectionError("the answer never came")

        return strike

    def _collect_answers(self) -> None:
        for identity in self.submitted:
            while (answer := self.store.lpop(KEYS.reply(identity))) is not None:
                (self.refused if b'"error"' in answer else self.acknowledged).add(identity)

    def _say_what_is_over(self) -> None:
        """An app whose executors all found no task left: whoever ended its last task says so."""
        for name, app in self.masters[-1].state.apps.items():
            if app.ended is None and app.done_cores and not app.executors:
                self.send(EndApp(app=name, reason="finished"))

    def _open_apps(self) -> list[str]:
        return [name for name, app in self.masters[-1].state.apps.items() if app.ended is None]
