"""A cluster in one process: masters, agents, executors, clients and a store; time and faults come from a seed.

The programs are the real ones. `loom` schedules them in virtual time, `store` is the server and the network,
`machine` the hosts of the workers, and `promises` checks. The module is long because it holds all actions and
faults, each a small function.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from random import Random
from types import FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from redis.exceptions import RedisError

from recovery.archive.archive import archive, open_log
from recovery.failover.lease import Member
from recovery.failover.master import Master
from scheduler.model.commands import (
    AddDepartment,
    AddWindow,
    ChangeCompany,
    ChangeDepartment,
    Command,
    ConfigureCluster,
    DecommissionWorker,
    DrainWorker,
    ExtendApp,
    FinishApp,
    HoldApp,
    KillApp,
    KillExecutors,
    MoveCompany,
    RegisterCompany,
    RegisterKind,
    ReleaseApp,
    RemoveDepartment,
    RemoveWindow,
    RemoveWorker,
    ReprioritizeApp,
    RequeueApp,
    ScaleApp,
    SetLimit,
    SignalApp,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.errors import CommandRejected, FairlogError, NoMaster
from scheduler.model.sender import By, local
from scheduler.rules.state.records import lines, restored
from scheduler.service.client import CommandClient
from scheduler.service.inbox import received
from scheduler.service.receipts import Receipt
from scheduler.store.keys import OPERATORS, WORKERS, bell_id, queue_key
from tests.simulation.door import COMPANIES, Door, has_accounts
from tests.simulation.loom import Actor, Loom
from tests.simulation.machine import Machine, Nature, patch_machines
from tests.simulation.promises import PromiseBroken, Witness
from tests.simulation.store import FAULTS, KEYS, Plan, Store
from workers.agent import Agent
from workers.offer import Offer, WorkerBusy

if TYPE_CHECKING:
    from scheduler.model.grants import Grant, Leaving
    from scheduler.service.keyring import Keyring
    from scheduler.store.task_queue import Completion, TaskBegun

STEPS = 30_000
"""A run with more switches than this is an endless loop."""
PROGRAMS_FROM = 200
"""From this seed on, every third cluster has apps of programs."""
QUOTAS: tuple[dict[str, Any], ...] = (
    {},
    {"cores": 4, "memory_mb": 65536},
    {"cores": 6, "memory_mb": 65536},
    {"part": "1/5"},
    {"cores": 6, "memory_mb": 65536, "borrow": True},
)
"""What companies may have in clusters where caps bind (semantics H1)."""
POISON = "poison"
"""The name of apps whose submission makes a master raise."""
LANES = (OPERATORS, WORKERS, *(f"company/{company}" for company in COMPANIES))
_PROGRAMS = ("fairlog.", "recovery.", "scheduler.", "workers.")


class World:
    """One seeded run: `happen` repeatedly, then `settle`, then `check`. `story` is its trace."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.seed = seed
        self.loom = loom = Loom(seed, steps=STEPS)
        self.random = random = Random(f"world {seed}")
        self.store = Store(loom, switching=random.choice((0.02, 0.1, 0.3)))
        self.story: list[str] = []
        self.machines: dict[str, Machine] = {}
        self.natures: dict[str, Nature] = {}
        self.door = Door(self) if has_accounts(seed) else None
        self.ring = None if self.door is None else self.door.ring
        self.witness = Witness(self.store, KEYS, self.machines)
        self.store.on_commit = self.witness.committed
        self.ran: dict[tuple[str, int], list[str]] = {}
        self.failed_over_at = -1
        """When (ms) the store failed over last."""
        self.begun: dict[tuple[str, int], int] = {}
        """Executor and task -> when (ms) it began last; the store may have forgotten what began before a failover."""
        self.failed: dict[tuple[str, int], list[tuple[str, int, int]]] = {}
        """App and task -> executors where it failed, when, by the store's clock, and how far that was set then (ms)."""
        self.masters: dict[Actor, Master] = {}
        self.clients: dict[str, Actor] = {}
        self.sent: dict[str, Command] = {}
        self.kept_rings: list[tuple[str, bytes]] = []
        self.refused: dict[str, str] = {}
        self.archive = f"simulated-{seed}"
        """The folder, in memory, where old entries of the log go."""
        self.number = 0
        self.replicas = random.choice((0, 1, 2))
        self.lease_s = random.choice((1.0, 2.0, 3.0))
        self.snapshot_every = random.choice((15, 40, 100_000))
        self.outlive_agent = random.random() < 0.8
        self.programs = Random(f"programs {seed}") if seed >= PROGRAMS_FROM and seed % 3 == 1 else None
        """What apps of programs are drawn from, in clusters that have some (semantics G)."""
        self.with_gangs = seed % 2 == 0
        """Whether those of them that can are gangs (semantics G8)."""
        self.labels = Random(f"labels {seed}") if self.door is None and seed % 4 == 1 else None
        """What labels, taints and demands are drawn from, in clusters that have some (semantics P9)."""
        self.alike = Random(f"alike {seed}") if seed % 8 == 7 else None
        """What apps are drawn from in clusters whose companies differ in little: shares are often equal (H3)."""
        self.windows = Random(f"windows {seed}") if self.door is None and seed % 6 == 4 else None
        """What windows are drawn from, in clusters that have some (semantics W14)."""
        self.backfill = Random(f"backfill {seed}") if seed % 7 == 5 else None
        """What maximum runtimes are drawn from, in clusters that lend the room of targets (semantics H11)."""
        self.departments = Random(f"departments {seed}") if self.door is None and seed % 6 == 1 else None
        """What departments are drawn from, in clusters that have some (semantics H12)."""
        self.weights = [weight * random.choice((0, 1, 4)) for weight in _CHANCES.values()]
        self.weights[0] = _CHANCES[_submit]
        self.kinds = random.sample(FAULTS, random.randrange(1, len(FAULTS) + 1))
        self._patch(patch)

    def say(self, *words: object) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.loom.now_ms / 1000:8.3f} {self.loom.current.name:12} " + " ".join(map(str, words)))

    def fingerprint(self) -> str:
        """A digest that is equal for equal runs."""
        return blake2b("\n".join([*self.story, self.witness.position.digest]).encode(), digest_size=8).hexdigest()

    def happen(self) -> None:
        """Apply one action or fault, then let time pass."""
        random = self.random
        random.choices(_HAPPENINGS, self.weights)[0](self)
        if self.door is not None:
            self.door.happen()
        if self.programs is not None and self.programs.random() < 0.4:
            _program(self, self.programs)
        if self.alike is not None:
            self._ask(ScaleApp(app=_an_app(self), executors=self.alike.choice((1, 8))))
        if self.windows is not None and self.windows.random() < 0.2:
            _window(self, self.windows)
        if self.departments is not None and self.departments.random() < 0.2:
            _department(self, self.departments)
        self.loom.wait(random.choice((0, 5, 50, 400, 1_000)))
        if random.random() < 0.05:
            self.loom.wait(random.randrange(8_000))

    def settle(self) -> None:
        """Stop the faults and run until nothing is left to do."""
        self.say("faults are over")
        store, loom = self.store, self.loom
        store.plans.clear()
        store.cut_off.clear()
        store.away_until_ms = store.replicas_away_until_ms = 0
        for actor in loom.actors:
            actor.stopped_until_ms = 0
        while len(self.masters) < 2:
            self._start_master()
        self._restore_kind()
        for machine in self.machines.values():
            self._start_agent(machine, anew=machine.worker not in self.witness.state.workers)
        if self.door is not None:
            self.door.settle()
        self._open_up()
        for identity, command in [*self.sent.items()]:
            if identity not in self.witness.told | self.refused and not self.clients[identity].alive:
                self._ask(command, identity)
        for tick in range(200):
            loom.wait(500)
            if tick % 20 == 10:
                self._let_apps_run()
            if self._stays_quiet():
                return
        raise PromiseBroken(6, f"without faults it does not come to an end: {self._unfinished()}")

    def _restore_kind(self) -> None:
        """Register the kind that a worker offers, if the end of the log was lost with it."""
        if "gpu" not in self.witness.state.kinds:
            self._tell(RegisterKind(kind="gpu"))
            self.loom.wait(20_000, lambda: "gpu" in self.witness.state.kinds)

    def _open_up(self) -> None:
        """Undo what keeps apps from workers."""
        self._tell(
            *(UndrainWorker(worker=worker) for worker in self.machines),
            *(ChangeCompany(company=company, cores=1_000, memory_mb=1_000_000) for company in COMPANIES),
            *_no_limits(),
            *[
                ChangeDepartment(department=name, borrow_limit="none", lend_limit="none")
                for name in self.witness.state.departments
            ],
            *[
                SetLimit(scope="department", name=name, department=department)
                for department in self.witness.state.departments
                for name, _ in _ABOVE
            ],
        )

    def _replace_decommissioned(self) -> None:
        """Remove workers that were decommissioned since the faults ended, and start agents anew on their machines."""
        known = self.witness.state.workers
        for machine in self.machines.values():
            if machine.worker in known and known[machine.worker].decommissioned:
                self._tell(RemoveWorker(worker=machine.worker))
            self._start_agent(machine, anew=machine.worker not in known)

    def _let_apps_run(self) -> None:
        """Scale up the apps whose limit of 0 executors keeps them from ending, and release those on hold.

        Apps of programs that demand none are killed.
        """
        apps = [(name, app) for name, app in self.witness.state.apps.items() if app.ended is None]
        due: dict[str, list[Command]] = {}
        for name, app in apps:
            if app.executor_limit == 0 and app.spec.programs:
                self._tell(KillApp(app=name, reason="nobody asks for executors any more"))
            elif app.executor_limit == 0:
                due.setdefault(app.spec.company, []).append(ScaleApp(app=name, executors=8))
            if app.on_hold:
                due.setdefault(app.spec.company, []).append(ReleaseApp(app=name))
        self._open_up()  # a caller may only now be heard
        self._replace_decommissioned()
        if self.door is not None:
            self.door.reinstate()
        for company, commands in due.items():
            self._tell(*commands, by=None if self.door is None else self.door.admin_of(company))

    def check(self) -> None:
        """Check every promise at the end."""
        witness = self.witness
        witness.check_history()
        for actor, master in self.masters.items():
            scheduler, follower = master.scheduler, master.follower
            serving = witness.state.master == actor.name
            held = (scheduler.state, scheduler.position) if serving else (follower.state, follower.position)
            witness.check_follower(actor.name, *held)
        for name in witness.apps:
            self._check_end(name)
        for identity in self.sent:
            if identity not in witness.told and identity not in self.refused:
                raise PromiseBroken(6, f"{identity} was never answered")
        for machine in self.machines.values():
            if machine.running():
                raise PromiseBroken(3, f"{machine.running()} still run on {machine.worker}")
        dead = {fields[b"id"].decode() for fields in self._dead_letters()}
        dead -= self.door.forged if self.door is not None else set()
        for identity in dead:
            command = self.sent.get(identity)
            if not isinstance(command, SubmitApp) or command.name != POISON:
                raise PromiseBroken(6, f"{identity} lies among the dead letters: {command}")

    def _check_end(self, name: str) -> None:
        """Check that an app ended, ran all tasks if it finished, and did not fail without a reason."""
        witness, nature, app = self.witness, self.natures[name], self.witness.apps[name]
        if name not in witness.over:
            raise PromiseBroken(6, f"app {name} never ended")
        end = witness.over[name]
        if app.driver:
            return
        if end.reason == "finished" and not witness.tails_lost:
            skipped = [task for task in range(app.tasks) if "succeeded" not in self.ran.get((name, task), ())]
            if skipped:
                raise PromiseBroken(6, f"app {name} finished without its tasks {skipped}")
        may_fail = (
            nature.fails or nature.missing_on or (nature.fails_once and not app.retries) or "executor" in end.detail
        )
        may_fail = may_fail or app.programs  # it may be finished as failed, or lose its owner
        if end.reason == "failed" and not may_fail:
            raise PromiseBroken(6, f"app {name} failed, though all of its tasks succeed: {end.detail}")

    def _dead_letters(self) -> Iterator[dict[bytes, bytes]]:
        for _, flat in self.store.ask("XRANGE", KEYS.dead, "-", "+"):
            pairs = iter(flat)
            yield dict(zip(pairs, pairs, strict=True))

    def _stays_quiet(self) -> bool:
        """Whether nothing is left to do, and no copy of a request comes late."""
        if not self._is_quiet():
            return False
        self.loom.wait(1_100)
        return self._is_quiet()

    def _is_quiet(self) -> bool:
        witness = self.witness
        return (
            not any(actor.alive for actor in self.clients.values())
            and not any(self.store.ask("XLEN", KEYS.lane(lane)) for lane in LANES)
            and not witness.state.executors
            and not witness.state.drivers
            and witness.apps.keys() == witness.over.keys()
            and not any(machine.running() for machine in self.machines.values())
        )

    def _unfinished(self) -> str:
        witness = self.witness
        apps = [
            f"{name} ({app.state}, {len(app.executors)} executors)"
            for name, app in witness.state.apps.items()
            if app.ended is None
        ]
        asking = [name for name, actor in self.clients.items() if actor.alive]
        return f"apps {apps}, executors {[*witness.state.executors]}, clients {asking}, workers " + ", ".join(
            f"{worker.id}: {worker.status}" for worker in witness.state.workers.values()
        )

    def found(self) -> None:
        """Masters, workers and companies."""
        random = self.random
        for number in range(random.choice((2, 2, 3))):
            host = random.choice(("h1", "h2"))
            offer = Offer(
                worker=f"w{number}",
                node=host,
                host=host,
                rack=random.choice(("", "r1")),
                cores=random.choice((8, 8, 16)),
                memory_mb=random.choice((16384, 32768)),
                resources={} if number else {"gpu": ("0", "1")},
                **({} if self.labels is None else _marks(self.labels, number)),
                run_dir=Path(f"w{number}"),
                outlive_agent=self.outlive_agent,
                grace_s=1,
            )
            self.machines[offer.worker] = Machine(self.loom, offer, self._starts)
        for _ in range(random.choice((1, 2, 2, 3))):
            self._start_master()
        self.loom.wait(20)
        settings: dict[str, Any] = {"worker_timeout_s": random.choice((2, 4)), "min_executor_cores": 2}
        settings |= {"max_executor_cores": 8, "min_executor_memory_mb": 1024}
        settings |= {"retained_apps": random.choice((0, 2, 10_000))}
        rules = Random(f"rules {self.seed}")
        settings |= {"min_runtime_s": rules.choice((0, 2)), "kill_grace_s": 1}
        settings |= {"reclaim_patience_s": rules.choice((None, 0, 2, 2)), "retry_backoff_s": rules.choice((1, 1, 2))}
        settings |= {"slot_s": Random(f"slots {self.seed}").choice((0, 0, 2))}
        settings |= {} if self.backfill is None else {"backfill": True, "reclaim_patience_s": 30}
        quotas = Random(f"quotas {self.seed}")
        given = QUOTAS if self.alike is None and quotas.random() < 0.3 else ({},)
        companies = [RegisterCompany(company=company, **quotas.choice(given)) for company in COMPANIES]
        above = _bounded_department(self.departments)
        self._tell(ConfigureCluster(settings=settings), RegisterKind(kind="gpu"), *companies, *above)
        if self.door is not None:
            self.door.found()
        for machine in self.machines.values():
            self._start_agent(machine)
        self.loom.wait(50)
        for _ in range(random.choice((1, 2, 4)) if self.alike is None else 6):
            _submit(self)
        if rules.random() < 0.3:
            self._fill_up(rules)
        if self.programs is not None:
            _submit_programs(self, self.programs)
        for actor in (*self.masters, *(machine.agent for machine in self.machines.values())):
            if actor is not None and random.random() < 0.4:
                self._strike(actor)

    def _fill_up(self, random: Random) -> None:
        """One company takes more than its part before another one comes."""
        first, second = random.sample(COMPANIES, 2)
        for company, cores in ((first, 24), (first, 16), (second, 8)):
            self.number += 1
            name = f"app-{self.number}"
            self.natures[name] = Nature(random.choice((500, 3_000)))
            self._ask(
                SubmitApp(app=name, company=company, user="cem", cores=cores, tasks=cores, command=("true",)),
                f"submit-{name}",
            )
            self.loom.wait(200)

    def _start_master(self) -> None:
        self.number += 1
        name = f"m{self.number}"
        log = open_log(self.store.client, KEYS, replicas=self.replicas)
        made: list[Master] = []

        def live() -> None:
            member, every = Member(name, actor.pid, "h"), self.snapshot_every
            master = Master(log, member, lease_s=self.lease_s, snapshot_every=every, keyring=self.ring)
            made.append(master)
            self.masters[actor] = master
            try:
                master.run()
            finally:
                del self.masters[actor]

        actor = self.loom.spawn(name, live)
        self.loom.wait(0, lambda: bool(made))

    def renew_masters(self, ring: Keyring) -> None:
        """Restart all masters with these keys."""
        self.say("gives all masters the key", ring.door)
        self.ring = ring
        for actor in [*self.masters]:
            self.loom.kill(actor)
        self._start_master()

    def _start_agent(self, machine: Machine, *, anew: bool = False) -> None:
        if machine.agent is not None and machine.agent.alive:
            if not anew:
                return
            self._kill_agent(machine)

        def live() -> None:
            try:
                Agent("store", KEYS.cluster, machine.offer, clock=self._now_s, keyring=self.ring).serve()
            except (CommandRejected, WorkerBusy) as refusal:
                self.say("ends:", refusal)

        machine.agent = self.loom.spawn(f"agent-{machine.worker}", live)

    def _kill_agent(self, machine: Machine) -> None:
        if machine.agent is not None:
            self.loom.kill(machine.agent)
        if not self.outlive_agent:
            for name in machine.running():
                machine.kill(name)

    def _starts(self, worker: str, spec: Any) -> None:
        self.say("starts", spec.grant.executor, "on", worker)
        self.witness.starts(worker, spec)

    def _ran(self, grant: Grant, done: Completion) -> None:
        self.ran.setdefault((grant.app, done.task), []).append(done.outcome)
        if done.outcome == "failed" and self.begun.get((grant.executor, done.task), 0) > self.failed_over_at:
            self.failed.setdefault((grant.app, done.task), []).append(
                (grant.executor, self.store.ms, self.store.skew_ms)
            )

    def _leaving(self, grant: Grant) -> Leaving | None:
        """What the executor was told, if nothing else than that may end its tasks."""
        nature, state = self.natures[grant.app], self.witness.state
        if nature.fails or nature.fails_once or nature.missing_on or self.witness.tails_lost:
            return None
        executor = state.executors.get(grant.executor)
        if executor is None or executor.revoked != "reclaimed" or state.apps[grant.app].over:
            return None
        return self.machines[executor.worker].leaving(grant.executor)

    def _begins(self, grant: Grant, begun: TaskBegun) -> None:
        """Check that a task that failed waits before it begins again (semantics W10)."""
        self.begun[grant.executor, begun.task] = self.store.ms
        told = [each for each in self.failed.get((grant.app, begun.task), ()) if each[0] not in self.witness.lost]
        failed = told[: begun.attempt - 1]
        if not failed or grant.role == "driver" or self.witness.tails_lost:
            return
        _, at, skew_ms = failed[
            0
        ]  # an interrupted attempt counts as well, so a later one may not be known to the store
        wait_ms = 1000 * grant.retry_backoff_s
        if skew_ms == self.store.skew_ms and self.store.ms < at + wait_ms:
            raise PromiseBroken(
                6, f"task {begun.task} of {grant.app} begins again {self.store.ms - at} ms after it failed"
            )

    def _ask(self, command: Command, identity: str | None = None, *, fault: bool = False) -> None:
        """Have a client send the command and repeat it until it is answered, unless the client dies."""
        if identity is None:
            self.number += 1
            identity = f"command-{self.number}"
        if self.door is not None:
            self.door.ask(command, identity, fault=fault)
            return
        self.sent[identity] = command
        self.witness.asked.setdefault(identity, self.witness.elections)

        def live() -> None:
            client = CommandClient(self.store.client, KEYS.cluster, timeout_s=20)
            for _ in range(4):
                try:
                    receipt = client.send(command, command_id=identity)
                    self.say("is told", receipt.seq)
                    self.witness.answered(identity, receipt)
                except CommandRejected as refusal:
                    self.say("is refused:", refusal)
                    self.refused[identity] = type(refusal).__name__
                    self.witness.refused(identity, refusal)
                except (NoMaster, RedisError) as error:
                    self.say("gives up for now:", error)
                    continue
                return

        actor = self.loom.spawn(identity, live)
        self.say("asks for", type(command).__name__, getattr(command, "app", ""))
        self.clients[identity] = actor
        if fault:
            self._strike(actor)

    def _tell(self, *commands: Command, by: By | None = None) -> None:
        """Have the owner of the store, or `by`, send the commands at once."""
        owner = by or local("owner")
        client = CommandClient(self.store.client, KEYS.cluster, keyring=self.ring, by=owner, timeout_s=60)
        self.number += 1
        self.clients[f"admin-{self.number}"] = self.loom.spawn("admin", lambda: self._admin(client, commands))

    def _admin(self, client: CommandClient, commands: Sequence[Command]) -> None:
        for answer in client.send_many(commands):
            self.say("is told", answer)
            if isinstance(answer, Receipt):
                self.witness.answered(answer.command_id, answer)

    def _strike(self, actor: Actor) -> None:
        """Schedule a fault for one of the actor's next calls to the store, for a master often a commit."""
        random = self.random
        kind = random.choice(self.kinds)
        if actor in self.masters and random.random() < 0.5:
            plan = Plan(kind, random.randrange(3), at_commit=True)
        else:
            plan = Plan(kind, int(random.expovariate(1 / random.choice((1, 5, 25)))))
        self.store.plans[actor] = plan
        self.say("will have", actor.name, *plan)

    def _now_s(self) -> float:
        return self.loom.now_ms / 1000

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        random, loom = self.random, self.loom
        self.store.patch(patch)
        ids = iter(range(1 << 60))
        doubles = {
            "time": SimpleNamespace(
                monotonic=self._now_s,
                sleep=lambda seconds: loom.wait(max(1, seconds * 1000)),
                time=lambda: self.store.ms / 1000,
            ),
            "_log": _Log(self),
            "program_log": lambda: _Log(self),
            "uuid4": lambda: SimpleNamespace(hex=f"{next(ids):032x}"),
            "_new_id": lambda: f"{next(ids):032x}",
            "new_salts": lambda number: [f"{next(ids):032x}" for _ in range(number)],
            "connect": lambda _: self.store.client,
        }
        for module, attribute in _doubled(len(sys.modules), *doubles):
            patch.setattr(module, attribute, doubles[attribute])
        patch.setattr("recovery.failover.snapshotter.Fork", lambda work, **_: _Fork(loom, work))
        patch.setattr(
            "recovery.failover.master.gc", SimpleNamespace(set_threshold=lambda *_: None, freeze=lambda: None)
        )
        for name in ("_set_ip_address", "register_birth", "register_death", "heartbeat"):
            patch.setattr(f"rq.worker.base.BaseWorker.{name}", lambda *_, **__: None)  # what `rq info` shows
        patch.setattr("scheduler.service.scheduler.BATCH", random.choice((1, 3, 1_000)))
        patch.setattr("scheduler.service.scheduler.AHEAD_FROM", random.choice((1, 2, 50)))
        patch.setattr("recovery.failover.master.STANDBY_WAIT_MS", random.choice((250, 1_000)))
        patch.setattr("recovery.failover.master.APPEAR_EVERY_S", 5)
        patch.setattr("scheduler.store.eventlog.REPLICATED_WITHIN_S", 2)
        patch.setattr("scheduler.service.inbox.received", _received_unless_poisoned)
        if self.door is not None:
            self.door.patch(patch)
        patch_machines(patch, loom, self.machines, self.natures, self._ran, self._begins, self._leaving)


@cache
def _doubled(_modules: int, *names: str) -> list[tuple[ModuleType, str]]:
    """Where the programs have attributes of these names that get doubles, with so many modules imported."""
    programs = [module for name, module in sys.modules.items() if name.startswith(_PROGRAMS)]
    found = [(module, name) for module in programs for name in names if name in vars(module)]
    return [(module, name) for module, name in found if name != "_log" or not isinstance(module._log, FunctionType)]


class _Fork:
    """The writer of a snapshot: an actor with a copy of the state, in place of a forked process."""

    def __init__(self, loom: Loom, work: partial[int]) -> None:
        log, state, position = work.args
        self._loom = loom
        self._code: int | None = None
        at_fork = restored(list(lines(state)))
        self._actor = loom.spawn("snapshotter", lambda: self._live(partial(work.func, log, at_fork, position)))

    def _live(self, work: partial[int]) -> None:
        self._code = work()

    def exit_code(self) -> int | None:
        """As the real one's."""
        return -signal.SIGKILL if self._code is None and not self._actor.alive else self._code

    def kill(self) -> None:
        """End it."""
        self._loom.kill(self._actor)


class _Log:
    """Writes the programs' log messages into the story."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _said(self, message: str, **about: object) -> None:
        about.pop("trace", None)
        self._world.say(message, *(f"{name}={value}" for name, value in about.items()))

    info = warning = error = _said


def _received_unless_poisoned(body: bytes) -> Command:
    command = received(body)
    if isinstance(command, SubmitApp) and command.name == POISON:
        raise RuntimeError("poison")
    return command


def _submit(world: World) -> None:
    random = world.random
    world.number += 1
    name = f"app-{world.number}"
    tasks = random.choice((1, 1, 2, 3, 6))
    about: dict[str, Any] = {"cores": random.choice((1, 2, 4, 8)), "tasks": tasks}
    about["memory_per_task_mb"] = random.choice((None, 512, 1500))
    retries = random.choice((0, 0, 1, 2))
    match random.randrange(10):
        case 0 | 1:
            size = random.choice((1, 2, 4))
            about |= {"sizing": "fixed", "cores": size * random.choice((1, 2, 3)), "executor_cores": size}
            about["executor_memory_mb"] = 1024
            about |= {"executor_limit": random.choice((None, 2)), "memory_per_task_mb": None}
            about["executor_resources"] = {"gpu": 1} if world.number % 2 else {}
        case 2:
            about |= {"elastic": (random.choice((0, 1)), random.choice((2, 4))), "executor_cores": 2}
            about |= {"executor_memory_mb": 1024, "memory_per_task_mb": None}
            del about["cores"]
        case 3:
            about |= {"driver": True, "driver_cores": 1, "driver_memory_mb": 512, "supervise": random.random() < 0.5}
        case 4:
            about |= {"sizing": "one-per-worker", "executor_memory_mb": 1024, "memory_per_task_mb": None}
        case _:
            pass
    if world.labels is not None:
        about |= _demand(world.labels)
    users: tuple[str, ...] = ("ann", "bob")
    if world.alike is not None:
        tasks, users = world.alike.choice((4, 8, 16)), ("ann",)
        about = {"cores": world.alike.choice((8, 16)), "tasks": tasks}
        about |= {"executor_cores": 2, "executor_memory_mb": 1024}
    company = random.choice(COMPANIES)
    earlier = [app.app for app in world.witness.apps.values() if app.company == company]
    if earlier and random.random() < 0.25:
        about["after"] = {random.choice(("ok", "ok", "any", "not-ok")): (random.choice(earlier),)}
    about |= {"priority": random.choice((0, 0, 1, -5)), "hold": random.random() < 0.06}
    if world.alike is None:
        about["cores_per_task"] = Random(f"{world.seed} {name}").choice((None, None, 1, 1, 2, 3))
    about |= _limit(world)
    command = SubmitApp(
        app=name,
        name=POISON if random.random() < 0.04 else "",
        kind=random.choice(("batch", "sql")),
        company=company,
        user=random.choice(users),
        command=("true",),
        retries=retries,
        **about,
    )
    some = frozenset({random.randrange(tasks)})
    fails = some if random.random() < 0.1 and not command.supervise else frozenset()
    fails_once = some if random.random() < 0.2 and not command.supervise else frozenset()
    missing_on = random.choice(list(world.machines)) if random.random() < 0.1 else ""
    world.natures[name] = Nature(random.choice((20, 500, 3_000, 8_000)), fails, fails_once, missing_on)
    identity = f"submit-{name}"
    world._ask(command, identity, fault=random.random() < 0.3)


def _limit(world: World) -> dict[str, Any]:
    """For how long an app may run, if not for any time."""
    random, found = world.random, dict[str, Any]()
    if random.random() < 0.15:
        found["max_runtime_s"] = random.choice((1, 2, 5))
        found["warn"] = random.choice((None, ("USR1", 1))) if found["max_runtime_s"] > 1 else None
    if world.backfill is not None and world.backfill.random() < 0.6:
        return {"max_runtime_s": world.backfill.choice((2, 4))}
    return found


def _marks(random: Random, number: int) -> dict[str, Any]:
    """The labels and taints of a worker; the first one meets what any app demands."""
    if not number:
        return {"labels": {"zone": "north"}}
    taints = ("spot",) if random.random() < 0.3 else ()
    return {"labels": {"zone": random.choice(("north", "south"))}, "taints": taints}


def _demand(random: Random) -> dict[str, Any]:
    """What an app demands of the labels of its workers."""
    stated: tuple[dict[str, Any], ...] = (
        {"require": ("zone=north",)},
        {"avoid": ("zone=south",)},
        {"prefer_labels": ("zone=south",)},
        {},
    )
    return {**random.choice(stated), "tolerate": ("spot",) if random.random() < 0.5 else ()}


def _submit_programs(world: World, random: Random) -> None:
    """An app whose executors run a program; nobody gives signs of life as its owner."""
    world.number += 1
    name = f"app-{world.number}"
    about: dict[str, Any] = {"executor_limit": random.choice((0, 1, 3)), "executor_cores": random.choice((1, 2))}
    match random.randrange(4):
        case 0:
            about |= {"driver": True, "executor_command": ("true",), "driver_memory_mb": 512}
        case 1:
            about["owner_timeout_s"] = random.choice((2, 30))
        case _:
            pass
    if about["executor_limit"] and world.with_gangs and not {"driver", "owner_timeout_s"} & {*about}:
        about["gang"] = True
        if world.windows is not None and random.random() < 0.7:  # on several workers, of which a window may have one
            about |= {"executor_limit": 2, "executor_cores": 6}
    fails = frozenset(range(3)) if random.random() < 0.2 else frozenset()
    world.natures[name] = Nature(random.choice((500, 3_000, 8_000)), fails)
    company, user = random.choice(COMPANIES), random.choice(("ann", "bob"))
    command = SubmitApp(
        app=name,
        company=company,
        user=user,
        command=("true",),
        executor_memory_mb=512,
        executor_program=True,
        grace_s=random.choice((None, 0, 2)),
        **about,
    )
    world._ask(command, f"submit-{name}")


def _program(world: World, random: Random) -> None:
    """One more app of programs, a demand that stops executors of one, another size, or its end."""
    apps = [name for name, app in world.witness.apps.items() if app.programs and name not in world.witness.over]
    name = random.choice(apps or ["nobody"])
    match random.randrange(6):
        case 0 | 1:
            _submit_programs(world, random)
        case 2:
            world._ask(ScaleApp(app=name, executors=random.choice((1, 2)), executor_cores=2))
        case 3:
            world._ask(FinishApp(app=name, outcome=random.choice(("finished", "failed"))))
        case _:
            stop = tuple(f"{name}.{random.randrange(5)}" for _ in range(2))
            world._ask(ScaleApp(app=name, executors=random.choice((0, 1, 4)), stop=stop))


def _submit_many(world: World) -> None:
    """More than a turn takes."""
    for _ in range(world.random.randrange(3, 7)):
        _submit(world)


def _ask_twice(world: World) -> None:
    asked = [name for name in world.sent if name not in world.refused]
    if asked:
        identity = world.random.choice(asked)
        world._ask(world.sent[identity], identity)


def _an_app(world: World) -> str:
    apps = [name for name in world.natures if name not in world.witness.over]
    return world.random.choice(apps or ["nobody"])


def _kill_app(world: World) -> None:
    world._ask(KillApp(app=_an_app(world)), fault=world.random.random() < 0.1)


def _kill_executors(world: World) -> None:
    name = _an_app(world)
    world._ask(KillExecutors(app=name, executors=(f"{name}.0", f"{name}.{world.random.randrange(5)}")))


def _scale(world: World) -> None:
    random = world.random
    prefer = random.choice(({}, {"h1": 2}, {"h1": 1, "h2": 1}))
    world._ask(ScaleApp(app=_an_app(world), executors=random.choice((0, 1, 2, 4, None)), prefer=prefer))


def _extend(world: World) -> None:
    timed = [name for name, app in world.witness.apps.items() if app.max_runtime_s and name not in world.witness.over]
    if timed:
        world._ask(ExtendApp(app=world.random.choice(timed), by_s=world.random.choice((1, 4))))


def _set_limit(world: World) -> None:
    """A limit that apps can wait for; the simulation removes it before its end."""
    random = world.random
    name, value = random.choice((("max_cores", 8), ("max_running_apps", 1), ("max_pending_apps", 4)))
    company = random.choice((None, *COMPANIES))
    user = random.choice((None, "*", "ann")) if company is not None else None
    scope: Any = "cluster" if company is None else "company" if user is None else "user"
    world._ask(SetLimit(scope=scope, name=name, value=random.choice((value, None)), company=company, user=user))


def _no_limits() -> list[SetLimit]:
    """What removes every limit that `_set_limit` may have set."""
    holders: list[tuple[Any, str | None, str | None]] = [("cluster", None, None)]
    holders += [("company", company, None) for company in COMPANIES]
    holders += [("user", company, user) for company in COMPANIES for user in ("*", "ann")]
    names = ("max_cores", "max_running_apps", "max_pending_apps")
    return [SetLimit(scope=scope, name=name, company=c, user=u) for scope, c, u in holders for name in names]


def _order(world: World) -> None:
    """Change the priority of an app, put one on hold or release one."""
    random, name = world.random, _an_app(world)
    priority, task = random.choice((0, 7, -7)), random.choice((None, 0))
    orders: list[Command] = [ReprioritizeApp(app=name, priority=priority), HoldApp(app=name), ReleaseApp(app=name)]
    orders.append(SignalApp(app=name, signal="USR1", task=task))
    orders += [RequeueApp(app=name)] * 2
    world._ask(random.choice(orders), fault=random.random() < 0.1)


def _change_company(world: World) -> None:
    random = world.random
    quota = random.choice(({"part": "none"}, {"part": "50%"}, {"borrow": True}, {"cores": 6, "memory_mb": 65536}))
    world._ask(ChangeCompany(company=random.choice(COMPANIES), **quota))


_SETTINGS: tuple[dict[str, Any], ...] = (
    {"placement": "pack"},
    {"placement": "spread"},
    {"placement": "classic-spread"},
    {"company_policy": "pay-as-you-go", "half_life_s": 5},
    {"company_policy": "dominant-share"},
    {"user_policy": "least-occupied"},
    {"user_policy": "balanced"},
    {"app_policy": "sql-first"},
    {"worker_selection": "memory-free-asc"},
    {"spare_resources": False},
    {"spread_out_drivers": False},
    {"executor_idle_timeout_s": 2},
    {"admission": "open"},
    {"admission": "fair"},
    {"priority_step_s": 0},
    {"reclaim_patience_s": 1},
    {"reclaim_patience_s": None},
    {"suspect_failures": 2, "suspect_s": 2, "exclude_after": 1, "exclude_s": 3},
)


def _change_settings(world: World) -> None:
    world._ask(ConfigureCluster(settings=world.random.choice(_SETTINGS)))


def _change_worker(world: World) -> None:
    random = world.random
    worker = random.choice([*world.machines])
    unwell = random.random() < 0.3
    kinds: list[Command] = [DrainWorker(worker=worker, unwell=unwell), UndrainWorker(worker=worker, unwell=unwell)]
    if worker != "w0":
        kinds += [RemoveWorker(worker=worker, force=random.random() < 0.5)]
        if random.random() < 0.3:
            kinds = [DecommissionWorker(worker=worker)]
    world._ask(random.choice(kinds))


def _window(world: World, random: Random) -> None:
    """A window of some workers, or the end of one; each has at least 6 s until it begins, a grace and 5 s."""
    known = [*world.witness.state.windows]
    if known and random.random() < 0.3:
        world._ask(RemoveWindow(window=random.choice(known)))
        return
    world.number += 1
    workers = tuple(sorted({random.choice([*world.machines]) for _ in range(2)}))
    begin = world.store.ms + random.choice((6_500, 8_000, 12_000))
    end, company = begin + random.choice((1_000, 4_000)), random.choice(("", *COMPANIES))
    name, notice_s = f"x{world.number}", random.choice((6, 8))
    world._ask(AddWindow(window=name, workers=workers, begin=begin, end=end, company=company, notice_s=notice_s))


_ABOVE = (("max_cores", 8), ("max_running_apps", 1), ("max_memory_mb", 8_192))
"""Limits of departments that apps can wait for; the simulation removes them before its end."""


def _bounded_department(random: Random | None) -> list[Command]:
    """In every other cluster that has departments one with two companies, or one twice, and a cap or a limit of it."""
    if random is None or random.random() < 0.5:
        return []
    commands: list[Command] = [MoveCompany(company=random.choice(COMPANIES), department="d0") for _ in range(2)]
    if random.random() < 0.5:
        return [AddDepartment(department="d0", cores=8, memory_mb=16_384), *commands]
    name, value = random.choice(_ABOVE)
    limit = SetLimit(scope="department", name=name, value=value, department="d0")
    return [AddDepartment(department="d0"), *commands, limit]


def _department(world: World, random: Random) -> None:
    """A department, another quota, place or limit of one, its end, or a company that is put into one."""
    known, names = world.witness.state.departments, ("d0", "d1", "d2")
    name, other = random.choice(names), random.choice(("", *names))
    drawn = random.random()
    if drawn < 0.1 and known:
        world._ask(RemoveDepartment(department=name))
        return
    if drawn < 0.5:
        world._ask(MoveCompany(company=random.choice(COMPANIES), department=other if other in known else ""))
        return
    quota: dict[str, Any] = random.choice(({}, {"part": "1/2"}, {"cores": 8, "memory_mb": 16_384}))
    if drawn < 0.65 and known:
        limit, value = random.choice(_ABOVE)
        world._ask(SetLimit(scope="department", name=limit, value=random.choice((value, value, None)), department=name))
        return
    limits: dict[str, Any] = {
        "borrow_limit": random.choice((None, "none", "25%")),
        "lend_limit": random.choice((None, "50%", "none")),
    }
    kind = ChangeDepartment if name in known else AddDepartment
    world._ask(kind(department=name, parent=other if other in known else "", **quota, **limits))


def _somebody(world: World) -> Actor:
    """A random actor, often a master."""
    if world.masters and world.random.random() < 0.4:
        return world.random.choice([*world.masters])
    return world.random.choice(world.loom.actors)


def _strike_somebody(world: World) -> None:
    """Schedule a fault for one of an actor's next calls to the store."""
    world._strike(_somebody(world))


def _start_what_died(world: World) -> None:
    for machine in world.machines.values():
        world._start_agent(machine)
    if len(world.masters) < world.random.choice((1, 2, 3)):
        world._start_master()


def _kill_executor(world: World) -> None:
    machine = world.random.choice([*world.machines.values()])
    running = machine.running()
    if running:
        chosen = world.random.choice(running)
        world.say("kills", chosen)
        machine.kill(chosen, note=world.random.random() < 0.8)


def _kill_agent(world: World) -> None:
    machine = world.random.choice([*world.machines.values()])
    world.say("kills the agent of", machine.worker)
    world._kill_agent(machine)


def _crash_machine(world: World) -> None:
    machine = world.random.choice([*world.machines.values()])
    world.say("crashes the machine of", machine.worker)
    machine.crash()


def _kill_master(world: World) -> None:
    if world.masters:
        chosen = world.random.choice([*world.masters])
        world.say("kills", chosen.name)
        world.loom.kill(chosen)
    if not world.masters:
        world._start_master()


def _stop_somebody(world: World) -> None:
    """Pause an actor beyond the lease or the worker timeout."""
    chosen = _somebody(world)
    world.loom.stop(chosen, world.random.choice((500, 3_000, 8_000)))
    world.say("stops", chosen.name)


def _stop_an_agent(world: World) -> None:
    """Pause an agent beyond its worker's timeout; its executors continue."""
    machine = world.random.choice([*world.machines.values()])
    if machine.agent is not None:
        world.loom.stop(machine.agent, 1000 * world.witness.state.settings.worker_timeout_s + 3_000)
        world.say("stops the agent of", machine.worker, "past the timeout")
        world.loom.wait(world.random.randrange(6_000))


def _cut_somebody_off(world: World) -> None:
    """Cut an actor off from the store for a while; heartbeats come late."""
    chosen = _somebody(world)
    world.store.cut_off[chosen] = world.loom.now_ms + world.random.choice((300, 3_000, 8_000))
    world.say("cuts off", chosen.name)


def _change_clock(world: World) -> None:
    world.store.skew_ms += world.random.choice((-5_000, -200, -20, 20, 2_000))
    world.say("sets the store's clock to", world.store.ms)


def _ring(world: World) -> None:
    """Double, remove or delay a ring, or add a foreign job."""
    random, store = world.random, world.store
    queue = random.choice([KEYS.master_queue, *(KEYS.worker_queue(worker) for worker in world.machines)])
    world.say("rings", queue)
    match random.randrange(4):
        case 0:
            store.ask("RPUSH", queue_key(queue), bell_id(queue), bell_id(queue))
        case 1:
            taken = store.ask("LPOP", queue_key(queue))
            if taken is not None:
                world.kept_rings.append((queue_key(queue), taken))
        case 2:
            store.ask("RPUSH", queue_key(queue), "foreign")
        case _:
            while world.kept_rings:
                store.ask("RPUSH", *world.kept_rings.pop())


def _restart_store(world: World) -> None:
    world.say("restarts the store")
    world.store.restart(world.random.choice((0, 100, 1_500)))


def _fail_over(world: World) -> None:
    """Fail over to a store that lacks the tail, often right after an answer."""
    told = len(world.witness.told)
    world.loom.wait(world.random.choice((0, 2_000)), lambda: len(world.witness.told) > told)
    lag = world.random.choice((0, 3, 20, 60, 200))
    world.say("fails over to a store that lags by", lag)
    world.store.fail_over(world.random.choice((0, 500)), lag=lag)
    if lag:  # the store may have forgotten that a task failed
        world.failed.clear()
    world.witness.tail_was_lost(promised=world.replicas > 0)
    world.failed_over_at = world.store.ms


def _replicas_away(world: World) -> None:
    world.store.replicas_away_until_ms = world.loom.now_ms + world.random.choice((200, 4_000))


def _archive(world: World) -> None:
    """Archive old entries as a master's child does; a fault may strike meanwhile."""
    retain = world.random.choice((1, 5, 20))

    def live() -> None:
        try:
            for segment in archive(open_log(world.store.client, KEYS), f"memory://{world.archive}", retain=retain):
                world.say("has archived", segment.first, "to", segment.last)
        except (RedisError, FairlogError) as error:
            world.say("does not archive:", error)

    archiver = world.loom.spawn("archiver", live)
    if world.random.random() < 0.5:
        world._strike(archiver)


_CHANCES: dict[Callable[[World], None], int] = {
    _submit: 16,
    _submit_many: 4,
    _ask_twice: 8,
    _kill_app: 6,
    _kill_executors: 6,
    _scale: 4,
    _extend: 2,
    _set_limit: 2,
    _order: 4,
    _change_company: 1,
    _change_settings: 3,
    _change_worker: 4,
    _strike_somebody: 20,
    _start_what_died: 8,
    _kill_executor: 8,
    _kill_agent: 4,
    _crash_machine: 2,
    _kill_master: 4,
    _stop_somebody: 12,
    _stop_an_agent: 6,
    _cut_somebody_off: 6,
    _change_clock: 4,
    _ring: 5,
    _restart_store: 3,
    _fail_over: 5,
    _replicas_away: 3,
    _archive: 8,
}
_HAPPENINGS = [*_CHANCES]


@contextmanager
def running(seed: int) -> Iterator[World]:
    """A world that is torn down afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        world = World(seed, patch)
        try:
            yield world
        finally:
            world.loom.end()
            memory = fsspec.filesystem("memory")
            if memory.exists(world.archive):
                memory.rm(world.archive, recursive=True)


def run(world: World) -> None:
    """Run the world to its end. Most runs are short, since many short runs find more than few long ones.

    Raises: PromiseBroken, or the exception that ended a program.
    """
    world.found()
    for _ in range(world.random.choices((2, 4, 8, 24), (35, 40, 20, 5))[0]):
        world.happen()
    world.settle()
    world.check()
