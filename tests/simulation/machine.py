"""The machines of a simulated cluster: processes as actors, and the files that outlive them.

Agents, executors and drivers are the real programs. Only the operating system is replaced by doubles: process
ids, locks, signals, and the tasks, which take virtual time.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.model.commands import Measured
from scheduler.store.task_queue import Completion, TaskBegun
from tests.simulation.promises import PromiseBroken
from workers.forkserver import run
from workers.rundir import ExitNote, Holder

if TYPE_CHECKING:
    import pytest

    from scheduler.model.grants import Grant, Leaving, RuntimeWarn, SentSignal
    from tests.simulation.loom import Actor, Loom
    from workers.executor import ExecutorSpec
    from workers.offer import Offer

SECONDS = 1000


class Nature(NamedTuple):
    """The duration of an app's tasks, which of them fail, always or at the first attempt, and where none starts."""

    takes_ms: int
    fails: frozenset[int] = frozenset()
    fails_once: frozenset[int] = frozenset()
    missing_on: str = ""
    """The worker on which its command cannot be started."""


class Underway:
    """A running task."""

    def __init__(self, begun: TaskBegun, ends_at_ms: int, *, fails: bool) -> None:
        self.index = begun.task
        self.attempt = begun.attempt
        self.ends_at_ms = ends_at_ms
        self.fails = fails

    def end(self) -> Completion:
        """The outcome of the task."""
        if self.fails:
            return Completion(self.index, "failed", 1, f"task {self.index} failed", b"", self.attempt)
        return Completion(self.index, "succeeded", 0, "", b"", self.attempt)


class Machine:
    """One worker's host: the executors that hold their locks, and the exit notes of the ended ones."""

    def __init__(self, loom: Loom, offer: Offer, tell: Callable[[str, ExecutorSpec], None]) -> None:
        self.loom = loom
        self.offer = offer
        self.worker = offer.worker
        self.tell = tell
        """Is told of each executor that is about to start."""
        self.path = offer.run_dir
        self.holders: dict[str, Holder] = {}
        self.notes: dict[str, ExitNote] = {}
        self.told: dict[str, Leaving] = {}
        self.warned: dict[str, int] = {}
        self.processes: dict[str, Actor] = {}
        self.specs: dict[str, ExecutorSpec] = {}
        self.agent: Actor | None = None

    def running(self) -> list[str]:
        """The running executors and drivers."""
        return [name for name, process in self.processes.items() if process.alive]

    def make(self) -> None:
        """Do nothing: there are no folders."""

    def only_company(self, company: str) -> str:
        """None is the only one here."""
        return company

    def claim_worker(self) -> int:
        """A descriptor; nobody else runs this worker."""
        return -1

    def lock_file(self, executor: str) -> Path:
        """As the real one; there is no such file."""
        return self.path / executor

    def unwritable(self) -> str:
        """No reason: there is no disk."""
        return ""

    def known(self) -> list[Holder]:
        """As the real one."""
        return [self.holders[name] for name in sorted(self.holders)]

    def is_running(self, executor: str) -> bool:
        """As the real one."""
        process = self.processes.get(executor)
        return process is not None and process.alive

    def name_holder(self, _lock: int, holder: Holder) -> None:
        """As the real one."""
        self.holders[holder.executor] = holder

    def write_exit(self, executor: str, note: ExitNote) -> None:
        """As the real one: there is always room."""
        self.notes.setdefault(executor, note)

    def read_exit(self, executor: str) -> ExitNote | None:
        """As the real one."""
        return self.notes.get(executor)

    def tell_to_leave(self, executor: str, leaving: Leaving | None) -> None:
        """As the real one."""
        self.told.pop(executor, None)
        if leaving is not None:
            self.told[executor] = leaving

    def leaving(self, executor: str) -> Leaving | None:
        """As the real one."""
        return self.told.get(executor)

    def forget(self, executor: str) -> None:
        """As the real one."""
        for kept in (self.holders, self.notes, self.told, self.warned):
            kept.pop(executor, None)

    def warned_at(self, executor: str) -> int:
        """As the real one."""
        return self.warned.get(executor, 0)

    def warn(self, executor: str, warning: RuntimeWarn) -> None:
        """As the real one."""
        self.warned[executor] = warning.at

    def signals(self, _executor: str) -> list[SentSignal]:
        """None, as for `warning`."""
        return []

    def tell_signals(self, _executor: str, _sent: Sequence[SentSignal]) -> None:
        """Nobody takes them."""

    def cancelled(self, _executor: str) -> str:
        """None, likewise."""
        return ""

    def tell_cancelled(self, _executor: str, _tasks: str) -> None:
        """Nobody takes them."""

    def gpu_use(self, _addresses: object) -> None:
        """None: nobody knows, as no operator's command tells it here."""

    def warning(self, _executor: str) -> None:
        """None: the tasks here take no signals."""

    @property
    def root(self) -> Path:
        """As the real one."""
        return self.path

    def remove_scratch(self, _executor: str) -> None:
        """Do nothing: there is no such folder."""

    def launch(
        self,
        spec: ExecutorSpec,
        *,
        meanwhile: Callable[[], object],  # noqa: ARG002 - this forkserver takes no time to load
    ) -> int | None:
        """Start an executor, as the forkserver does: with its lock held from the first moment on."""
        name = spec.grant.executor
        if self.is_running(name):
            return None
        self.tell(self.worker, spec)
        self.holders[name] = Holder(name, spec.grant.app, 0)
        self.specs[name] = spec
        process = self.loom.spawn(name, lambda: self._be(spec))
        self.processes[name] = process
        return process.pid

    def kill(self, executor: str, *, note: bool = True) -> None:
        """Kill an executor and its tasks; its forkserver writes the exit note unless it died too."""
        self.loom.kill(self.processes[executor])
        if note:
            spec = self.specs[executor]
            self.write_exit(executor, ExitNote(app=spec.grant.app, reason="failed", exit_code=137))

    def crash(self) -> None:
        """Kill all processes at once, so that nobody writes an exit note."""
        if self.agent is not None:
            self.loom.kill(self.agent)
        for name in self.running():
            self.kill(name, note=False)

    def signal(self, pids: Iterable[int], number: int) -> None:
        """Send a signal."""
        for name in self.running():
            process = self.processes[name]
            if process.pid in pids:
                if number == signal.SIGTERM and process.on_signal is not None:
                    process.signalled = True
                    process.on_signal()
                    self.loom.poke(process)
                else:
                    self.kill(name)

    def _be(self, spec: ExecutorSpec) -> None:
        code = run(spec, -1)
        if spec.grant.executor not in self.notes:
            raise AssertionError(f"{spec.grant.executor} ended with {code} and left no note")


class Forkserver:
    """The agent's interface to its machine."""

    def __init__(self, files: Machine, *, outlive_agent: bool) -> None:
        self._machine = files
        self._outlive_agent = outlive_agent
        self.launch = files.launch

    def try_to_fork(self) -> str:
        """It can."""
        return ""

    def start(self) -> None:
        """It is there."""

    def close(self) -> None:
        """End the executors that do not outlive the agent."""


class TaskGroup:
    """The running tasks of one executor, as `workers.task_group.TaskGroup` has them."""

    def __init__(
        self,
        loom: Loom,
        ran: Callable[[Grant, Completion], None],
        grant: Grant,
        leaving: Callable[[Grant], Leaving | None],
    ) -> None:
        self._loom = loom
        self._ran = ran
        self._leaving = leaving
        self._grant = grant
        self._tasks: dict[int, Underway] = {}
        self.ended: list[Completion] = []
        self.unwritten, self.why_unwritten = 0, ""
        self._over = 0

    @property
    def unused(self) -> None:
        """All that runs uses what it holds."""
        return

    @property
    def used(self) -> Measured:
        """As if each task that ended had used a second of CPU time, and some memory."""
        return Measured(1000 * self._over, 64 * min(1, self._over))

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, index: int) -> bool:
        return index in self._tasks

    def add(self, started: Underway | Completion) -> None:
        """Take charge of a task, or of the word that it could not be started."""
        if isinstance(started, Completion):
            self._ran(self._grant, started)
            self.ended.append(started)
            return
        self._tasks[started.index] = started
        tasks = 0 if self._grant.role == "driver" else len(self._tasks)  # a driver runs one program
        if tasks * self._grant.cores_per_task > self._grant.cores:
            raise PromiseBroken(5, f"{self._grant.executor} runs {len(self._tasks)} tasks on {self._grant.cores} cores")

    def reap(self) -> None:
        """Take in what has ended."""
        for task in [task for task in self._tasks.values() if task.ends_at_ms <= self._loom.now_ms]:
            del self._tasks[task.index]
            done = task.end()
            self._over += 1
            self._ran(self._grant, done)
            self.ended.append(done)

    def enforce(self) -> None:
        """Do nothing: no task exceeds a limit."""

    def quiet_s(self) -> float:
        """The time until a task ends or the grant is checked again."""
        ends = min((task.ends_at_ms for task in self._tasks.values()), default=1 << 62)
        return min(SECONDS, max(0, ends - self._loom.now_ms)) / SECONDS

    def news(self) -> Mapping[int, bytes]:
        """Return nothing: tasks print nothing."""
        return {}

    def wait(self, wakeup: Any, timeout_s: float) -> None:
        """Wait for a signal, or so long."""
        wakeup.wait(timeout_s)

    def stop(self, _wakeup: object, _grace_s: float | None = None) -> None:
        """Tell all tasks to end, wait for them, and abandon them."""
        leaving = self._leaving(self._grant)
        if self._tasks and leaving is not None and not leaving.firm and not self._loom.current.signalled:
            raise PromiseBroken(6, f"{self._grant.executor} is to leave between its tasks, and ends {[*self._tasks]}")
        if self._tasks:
            self._loom.wait(self._loom.random.choice((0, 20, 800)))
        self._tasks.clear()


def patch_machines(  # noqa: C901, PLR0917 - a double after the other
    patch: pytest.MonkeyPatch,
    loom: Loom,
    machines: Mapping[str, Machine],
    natures: Mapping[str, Nature],
    ran: Callable[[Grant, Completion], None],
    begins: Callable[[Grant, TaskBegun], None],
    leaving: Callable[[Grant], Leaving | None],
) -> None:
    """Replace the calls to the operating system by the doubles."""

    def of_current() -> Machine | None:
        return next((machine for machine in machines.values() if machine.agent is loom.current), None)

    def send_signal(pids: Iterable[int], number: int) -> None:
        machine = of_current()
        if machine is not None:
            machine.signal(set(pids), number)

    def kill_until_gone(find: Callable[[], Iterable[int]]) -> bool:
        send_signal(find(), signal.SIGKILL)
        return True

    def is_same_process(pid: int, since_s: float) -> bool:
        return any(actor.pid == pid == since_s for actor in loom.actors)

    def start(grant: Grant, worker: str, begun: TaskBegun) -> Underway | Completion:
        begins(grant, begun)
        nature = natures[grant.app]
        if worker == nature.missing_on and grant.role == "executor":
            return Completion(begun.task, "unstartable", 127, f"nothing to run on {worker}", b"", begun.attempt)
        fails = begun.task in nature.fails or (begun.task in nature.fails_once and begun.attempt == 1)
        takes_ms = loom.random.randrange(nature.takes_ms) + 1
        return Underway(begun, loom.now_ms + takes_ms, fails=fails)

    def wait(timeout_s: float) -> None:
        actor = loom.current
        loom.wait(timeout_s * SECONDS, lambda: actor.poked)
        actor.poked = False

    def wakeup(on_term: Callable[[], None]) -> Any:
        loom.current.on_signal = on_term
        return SimpleNamespace(wait=wait)

    def starter(grant: Grant, worker: str, *_: object, **__: object) -> Any:
        return SimpleNamespace(start=lambda *tasks: [start(grant, worker, begun) for begun in tasks], unfit="")

    system = SimpleNamespace(getpid=lambda: loom.current.pid, close=lambda _: None)
    doubles: dict[str, dict[str, Any]] = {
        "workers.agent": {
            "os": system,
            "RunDir": lambda _, worker: machines[worker],
            "Forkserver": Forkserver,
            "send_signal": send_signal,
            "kill_until_gone": kill_until_gone,
            "in_session": lambda pid: [pid],
            "descendants": lambda _: [],
            "end_remains": lambda *_: True,
            "delegate": lambda _: None,
            "isolation": lambda _: {},
            "with_variable": lambda *_: [],
            "started_s": float,
            "is_same_process": is_same_process,
        },
        "workers.fitness": {"can_make_groups": bool},
        **{
            module: {
                "RunDir": lambda _, worker: machines[worker],
                "TaskGroup": lambda grant, *_: TaskGroup(loom, ran, grant, leaving),
                "Wakeup": wakeup,
            }
            for module in ("workers.executor", "workers.program")
        },
    }
    for module, names in doubles.items():
        for name, double in names.items():
            patch.setattr(f"{module}.{name}", double)
    patch.setattr("workers.executor.TaskStarter", starter)
    patch.setattr("workers.executor.os", system)
    patch.setattr("workers.executor.become_subreaper", lambda: None)
    patch.setattr("workers.executor.launch", lambda *_: None)
