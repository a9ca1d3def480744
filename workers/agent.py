"""The agent of one worker: registers the worker, sends heartbeats, runs what is granted, reports what ended.

An agent takes no commands. On each ring and each tick it compares the worker's grants with what is running, starts what
is missing and stops what is not granted. Lock files tell what is running, so a restarted agent knows everything at
once. A report is repeated until the grant that it ends is gone from the store.
The module is long because one class does everything that a tick consists of.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, NamedTuple

import structlog

from scheduler.model import commands
from scheduler.model.errors import CommandRejected, FairlogError, NoMaster, NotAuthenticated, UnknownWorker
from scheduler.model.grants import Grant, Leaving, diff
from scheduler.model.ids import app_of, is_driver
from scheduler.service.addresses import is_api
from scheduler.service.child import die_with_parent
from scheduler.service.keyring import Keyring
from scheduler.service.notify import ALIVE, READY, SOCKET_VARIABLE, STOPPING, notify
from scheduler.service.outage import AWAY, Outage
from scheduler.service.program_log import log_to_stderr, masked
from workers.api_door import ApiAgentDoor
from workers.cell import end_remains
from workers.cgroups import delegate
from workers.door import AgentDoor, Ended, Held, Registering, Registrant, registering
from workers.executor import ExecutorSpec
from workers.fitness import Fitness
from workers.forkserver import Forkserver, ForkserverLost
from workers.gpus import gpus_of, is_gpu, unknown
from workers.health import HealthCheck, HealthVerdict
from workers.machine import isolation
from workers.offer import Offer, WorkerBusy
from workers.processes import (
    descendants,
    in_session,
    is_same_process,
    kill_until_gone,
    send_signal,
    started_s,
    with_variable,
)
from workers.rundir import ExitNote, Holder, RunDir
from workers.sandbox import private_files
from workers.store_door import StoreAgentDoor
from workers.supervisor import REFUSED, Supervisor
from workers.tasks import LOCK_VARIABLE
from workers.token import Terms
from workers.unused import GpuUse

_REPEAT_S = 5
"""Interval between repetitions of a report."""
_SILENCE_S = 2
"""How long to wait for the exit note of an ended executor: its forkserver first kills what it left behind."""
_CELLS = "start it with --launcher cell, or permit several companies with --unsafe-plain"
_log = structlog.get_logger()


class NotInvited(FairlogError):
    """The worker has no token that is valid."""

    def __init__(self, worker: str, refusal: NotAuthenticated) -> None:
        why = str(refusal).partition(";")[0]
        super().__init__(
            f"worker {worker!r} may not act: {why}; an operator invites it with `fairlog worker invite {worker}`"
        )


class _EndedChild(NamedTuple):
    note: ExitNote
    report_at_s: float


class Agent:
    """One worker's agent. `tick` does all the work; `serve` calls it on every ring and at least once a second.

    It reaches its cluster at `address`: the URLs of API servers, separated by commas, where `token` is the worker's; or
    the URL of the store, where it signs by the `keyring`.

    Raises: WorkerBusy if the worker's files are in use by another agent.
    """

    def __init__(
        self,
        address: str,
        cluster: str,
        offer: Offer,
        *,
        clock: Callable[[], float] = time.monotonic,
        keyring: Keyring | None = None,
        token: str = "",
    ) -> None:
        self.offer = offer
        self._clock = clock
        self._files = RunDir(offer.run_dir, offer.worker)
        self._files.make()
        self._claim = self._files.claim_worker()
        if self._claim is None:
            raise WorkerBusy(offer.worker, self._files.path)
        delegate(
            (self._files.lock_file(each.executor), each.memory_mb, each.cores)
            for each in self._files.known()
            if each.cores
        )
        self._door: AgentDoor = (
            ApiAgentDoor(address, offer.worker, token, self._files, self._comply)
            if is_api(address)
            else StoreAgentDoor(address, cluster, offer.worker, keyring)
        )
        self._private = private_files(offer.cells.share)
        self._forkserver = Forkserver(self._files, outlive_agent=offer.outlive_agent)
        self._forkserver.start()
        self._fitness = Fitness(self._files, offer.launcher, clock, self._forkserver.try_to_fork)
        self._registered = self._registering = False
        self._removed = False
        self._running: dict[str, Holder] = {}
        self._stopping: dict[str, float] = {}
        self._silent: dict[str, float] = {}
        self._told: dict[str, Leaving | None] = {}
        """What executors were told about leaving (semantics H7)."""
        self._ended: dict[str, _EndedChild] = {}
        self._unsent: list[str] = []
        """Executors whose start is not reported yet."""
        self._stop = False
        self._draining: Literal["no", "asked", "yes"] = "no"
        self._health = HealthCheck(offer.health, offer.worker, clock) if offer.health is not None else None
        self._gpu_use = GpuUse(offer.gpu_use, self._note_gpu_use, clock) if offer.gpu_use else None
        self._told_health: HealthVerdict | None = None
        """What the cluster was told of the worker's health since it registered."""
        self._outage = Outage(worker=offer.worker)
        self._resend = True
        """Whether to report again what is running: the agent or the store was away, and reports may be lost."""

    def serve(self) -> None:
        """Tick until `stop`, through outages of the store or the API, then `close`.

        Raises: CommandRejected if the master refuses the worker; WorkerBusy if it has another live agent here;
        NotInvited if its token is not valid any more.
        """
        try:
            while not self._stop:
                try:
                    self._door.listen(self._answer)
                except NotAuthenticated as refusal:
                    raise NotInvited(self.offer.worker, refusal) from None
                except AWAY as error:
                    notify(ALIVE)
                    self._resend = True
                    time.sleep(self._outage.goes_on(error))
        finally:
            notify(STOPPING)
            self.close()
            _log.info("stopped", worker=self.offer.worker, running=len(self._running))

    def _answer(self) -> None:
        notify(ALIVE)
        self.tick()
        self._outage.is_over()
        if self._draining != "no":
            self._drain()

    def stop(self) -> None:
        """Make `serve` return soon; with `drain`, when nothing is running any more or `stop` is called again."""
        if self.offer.drain and self._draining == "no" and (self._registered or self._registering):
            self._draining = "asked"
            self._door.wake()
        else:
            self._end()

    def _end(self) -> None:
        self._stop = True
        self._door.stop()

    def _drain(self) -> None:
        """Accept nothing new; leave the cluster once everything has ended and is in the log (semantics W3)."""
        if self._draining == "asked":
            _log.info("draining", worker=self.offer.worker, running=len(self._running))
            try:
                self._door.drain()
            except NoMaster:
                return
            except UnknownWorker:
                self._end()
                return
            self._draining = "yes"
        held = self._door.look()
        if self._removed or not (held.granted or held.revoked or self._running):
            if not self._removed:
                self.leave()
            self._end()

    def leave(self) -> None:
        """Remove the worker from the cluster."""
        try:
            self._door.leave()
        except (*AWAY, NoMaster, CommandRejected) as error:
            _log.warning("could not remove the worker", worker=self.offer.worker, error=str(error))

    def close(self) -> None:
        """Release everything. Executors that do not outlive the agent are stopped first and return their tasks."""
        if not self.offer.outlive_agent:
            self._look()
            for executor in self._running:
                self._stop_executor(executor)
            graces_s = (holder.grace_s for holder in self._running.values())
            deadline_s = time.monotonic() + max([self.offer.grace_s, *graces_s]) + 2
            while self._running and time.monotonic() < deadline_s:
                time.sleep(0.02)
                self._look()
        self._forkserver.close()
        for watch in (self._health, self._gpu_use):
            if watch is not None:
                watch.close()
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None
        self._door.close()

    def tick(self) -> None:
        """Send a heartbeat, converge on the grants, report. Later ticks do what cannot be done now.

        A worker is not registered again while anything runs that is not granted (semantics W2).
        """
        self._look()
        held = self._door.look()
        rightful = {executor: grant for executor, grant in held.granted.items() if self._is_what_runs(grant)}
        for executor in diff(rightful, self._running).stop:
            self._stop_executor(executor)
        if not held.alive and self._registered:
            self._registered, self._removed = False, self._was_removed()
        if self._removed:
            self._report(held)
            return
        verdict = self._look_at_itself()
        if not (held.alive and self._registered):
            if verdict is None or not self._running.keys() <= rightful.keys() or not self._register(held):
                self._report(held)
                return
            self._told_health = None
            held = self._door.look()
        self._tell_health(verdict)
        if self._resend:
            self._unsent += [name for name in self._running if name in held.granted and not is_driver(name)]
        try:
            self._tell(held)
        except OSError as error:  # whoever was not told is told in a later tick
            self._fitness.failed(error)
        self._start(held)
        self._tell_health(self._look_at_itself())
        for executor in held.revoked:
            if executor not in self._running and executor not in self._ended:
                self._ended[executor] = _EndedChild(ExitNote(app=app_of(executor), reason="killed"), 0)
        self._forget_foreign({*held.granted, *held.revoked})
        self._report(held)
        self._resend = False

    def _note_gpu_use(self, use: Mapping[str, float]) -> None:
        """Let executors know how much of each GPU is used (semantics W13)."""
        with suppress(OSError):  # a full disk is told of elsewhere; what is not known is not unused
            self._files.note_gpu_use(use)

    def _look_at_itself(self) -> HealthVerdict | None:
        """Why the worker is unwell, as it finds itself or the operator's check says; None = that has not said yet."""
        checked = None if self._health is None else self._health.look()
        own = self._fitness.look()
        return own if own.unwell or self._health is None else checked

    def _tell_health(self, verdict: HealthVerdict | None) -> None:
        """Have the cluster grant nothing while the worker is unwell (semantics W11).

        Each check that fails, and each time that something cannot be started, is told, since an operator may have
        taken the worker back before it was mended.
        """
        told = self._told_health
        if verdict is None or verdict == told or (told is not None and not told.unwell and not verdict.unwell):
            return
        try:
            self._door.health(verdict.unwell)
        except (NoMaster, UnknownWorker):
            return
        self._told_health = verdict
        if verdict.unwell and (told is None or not told.unwell):
            _log.warning("unwell", worker=self.offer.worker, reason=verdict.unwell)
        elif told is not None and not verdict.unwell:
            _log.info("well again", worker=self.offer.worker)

    def _forget_foreign(self, held: Collection[str]) -> None:
        """Forget what ended and is not this worker's: an exit note counts only for a grant that the worker holds."""
        for executor in [name for name in self._ended if name not in held]:
            self._forget(executor)

    def _forget(self, executor: str) -> None:
        """Keep nothing of what has ended: after a failover of the store, the same grant may be there again."""
        self._files.forget(executor)
        self._told.pop(executor, None)
        self._stopping.pop(executor, None)
        del self._ended[executor]

    def _tell(self, held: Held) -> None:
        """Tell what runs what there is to tell. Raises: OSError, as where the disk is full."""
        self._tell_to_leave(held.granted)
        self._warn(held.granted)
        self._pass_signals(held.granted)
        self._cancel_tasks(held.granted)
        for executor in self._running.keys() & set(held.visited):
            self._files.call(executor)

    def _tell_to_leave(self, granted: Mapping[str, Grant]) -> None:
        """Tell executors that they are to leave for a claim, or need not any more (semantics H7)."""
        for executor, grant in granted.items():
            if executor not in self._told or self._told[executor] != grant.leaving:
                self._files.tell_to_leave(executor, grant.leaving)
                self._told[executor] = grant.leaving

    def _warn(self, granted: Mapping[str, Grant]) -> None:
        """Tell what runs that its app's time is almost over, once for each warning (semantics X2)."""
        for executor, grant in granted.items():
            holder = self._running.get(executor) if grant.warning is not None else None
            if grant.warning is None or holder is None or not holder.pid:
                continue
            if self._files.warned_at(executor) != grant.warning.at:
                self._files.warn(executor, grant.warning)

    def _pass_signals(self, granted: Mapping[str, Grant]) -> None:
        """Tell what runs which signals somebody has sent to its tasks (semantics X4)."""
        for executor, grant in granted.items():
            holder = self._running.get(executor) if grant.signals else None
            if holder is not None and holder.pid and self._files.signals(executor) != list(grant.signals):
                self._files.tell_signals(executor, grant.signals)

    def _cancel_tasks(self, granted: Mapping[str, Grant]) -> None:
        """Tell what runs which tasks of its app are cancelled (semantics X4)."""
        for executor, grant in granted.items():
            holder = self._running.get(executor) if grant.cancelled else None
            if holder is not None and holder.pid and self._files.cancelled(executor) != grant.cancelled:
                self._files.tell_cancelled(executor, grant.cancelled)

    def _start(self, held: Held) -> None:
        """Start what is missing, unless something is running without a grant: both may use the same cores.

        The log may have removed the worker, with all its grants, just before it registered it again (semantics W2).
        With replicas of the store, only what the replicas have is started.
        """
        if all(executor in held.granted or executor in held.revoked for executor in self._running):
            missing = diff(held.granted, {**self._running, **self._ended}).start
            due = [grant for grant in missing if grant.settled_at <= held.settled]
            fit = not due or self._fitness.is_fit()
            for grant in due:
                if not fit:
                    self._give_back(grant)
                    continue
                try:
                    self._start_executor(grant)
                except OSError as error:
                    self._fitness.failed(error)
                    self._files.forget(grant.executor)
                    self._give_back(grant)
                    fit = False

    def _give_back(self, grant: Grant) -> None:
        """Have an executor that the worker cannot start placed elsewhere; a driver waits for the worker (W11)."""
        if grant.role == "executor":
            self._fitness.met(self._fitness.verdict.unwell)
            note = ExitNote(app=grant.app, reason="killed", unfit=self._fitness.verdict.unwell)
            self._ended[grant.executor] = _EndedChild(self._blameless(note), 0)

    def _blameless(self, note: ExitNote) -> ExitNote:
        """How an executor ended for which its worker is at fault, as its app is told."""
        return note.model_copy(update={"detail": f"worker {self.offer.worker} can start nothing at present"})

    def _is_what_runs(self, grant: Grant) -> bool:
        """Whether nothing of another size runs under its id: after a failover of the store, ids may be reused."""
        holder = self._running.get(grant.executor)
        if holder is None or not holder.cores:
            return True
        addresses = {kind: tuple(found) for kind, found in holder.addresses.items()}
        return (holder.cores, holder.memory_mb, addresses) == (grant.cores, grant.memory_mb, grant.addresses)

    def _look(self) -> None:
        """Update what is running and what has ended, from the lock files and exit notes, and what is used of GPUs."""
        if self._gpu_use is not None:
            self._gpu_use.look()
        running: dict[str, Holder] = {}
        for holder in self._files.known():
            if holder.executor in self._ended:
                continue
            lock = self._files.lock_file(holder.executor)
            if self._files.is_running(holder.executor) or not end_remains(holder.first, holder.first_s, lock):
                running[holder.executor] = holder
                continue
            note = self._files.read_exit(holder.executor)
            if note is None and self._clock() < self._silent.setdefault(holder.executor, self._clock() + _SILENCE_S):
                running[holder.executor] = holder
                continue
            self._silent.pop(holder.executor, None)
            self._note_end(holder, note or self._unnoted(holder))
        self._running = running

    def _note_end(self, holder: Holder, note: ExitNote) -> None:
        """An executor or driver has ended; the note says how."""
        if note.unfit:
            self._fitness.met(note.unfit)
            if is_driver(holder.executor):  # it has not begun, and does once the worker is well
                self._files.forget(holder.executor)
                return
            note = self._blameless(note)
        if note.reason == "failed" and holder.executor in self._stopping:
            note = note.model_copy(update={"reason": "killed"})
        if note.reason == "failed":
            _log.warning(
                "an executor failed",
                worker=self.offer.worker,
                executor=holder.executor,
                exit_code=note.exit_code,
                reason=note.unstartable or note.detail,
            )
        self._ended[holder.executor] = _EndedChild(note, 0)

    def _unnoted(self, holder: Holder) -> ExitNote:
        """How an executor or driver ended that left no note; nothing of it runs any more."""
        if self.offer.launcher == "plain":  # a process in a cell ends with it, and could delay who looks at it
            _kill_tasks(self._files, holder)
        why = self._files.unwritable()
        if why and not is_driver(holder.executor):
            return ExitNote(app=holder.app, reason="killed", unfit=f"nothing can be written to its run folder: {why}")
        said = f"how it ended could not be kept on worker {self.offer.worker}: {why}" if why else ""
        return ExitNote(app=holder.app, reason="failed", detail=said)

    def _register(self, held: Held) -> bool:
        """Register the worker, when nothing runs that is not granted (semantics W2). False if no master answers.

        Raises: WorkerBusy if another process on this machine is the worker's agent.
        """
        offer = self.offer
        if (other := self._other_agent(held.registrant)) is not None:
            raise WorkerBusy(offer.worker, other)
        try:
            self._registering = True
            self._door.register(*self._registration())
        except NoMaster:
            _log.info("no master answers; trying again", worker=offer.worker)
            return False
        finally:
            self._registering = False
        self._registered = True
        notify(READY)
        running = len(self._running)
        _log.info("registered", worker=offer.worker, cores=offer.cores, memory_mb=offer.memory_mb, running=running)
        if offer.smallness is not None:
            _log.warning("the offer is small", worker=offer.worker, reason=offer.smallness)
        if offer.oddity is not None:
            _log.warning("part of the offer may stay unused", worker=offer.worker, reason=offer.oddity)
        if offer.launcher != "plain" and (nameless := unknown(gpus_of(offer.resources))):
            _log.warning("cells find no device file of these GPUs", worker=offer.worker, addresses=nameless)
        return True

    def _registration(self) -> tuple[commands.RegisterWorker, Registrant]:
        """What the worker offers, and who this process is."""
        offer = self.offer
        command = commands.RegisterWorker(
            worker=offer.worker,
            node=offer.node,
            host=offer.host,
            rack=offer.rack,
            cores=offer.cores,
            memory_mb=offer.memory_mb,
            resources=offer.resources,
            labels=offer.labels,
            taints=offer.taints,
        )
        return command, Registrant(os.getpid(), offer.host, started_s(os.getpid()), isolation(offer.launcher))

    def _comply(self, terms: Terms) -> Registering:
        """Offer no more than the worker was invited to; what it registers with."""
        self.offer = self.offer.within(terms)
        return registering(*self._registration())

    def _other_agent(self, last: Registrant | None) -> int | None:
        """The process that registered the worker last, if it is another one, on this machine, and still running."""
        if last is None or last.host != self.offer.host or last.started_s is None or last.pid == os.getpid():
            return None
        return last.pid if is_same_process(last.pid, last.started_s) else None

    def _was_removed(self) -> bool:
        """Whether a command removed the worker (semantics W3), not a missed heartbeat (W2).

        A removed worker is registered again only when its agent is restarted.
        """
        reason = self._door.was_removed()
        if reason:
            _log.warning("the worker was removed from the cluster", worker=self.offer.worker, reason=reason)
        return reason == "removed"

    def _start_executor(self, grant: Grant) -> None:
        offer = self.offer
        if offer.launcher == "plain" and not offer.unsafe_plain:
            only = self._files.only_company(grant.company)
            if only != grant.company:
                why = f"worker {offer.worker} runs tasks without cells, and those of company {only} only; {_CELLS}"
                note = ExitNote(app=grant.app, reason="failed", exit_code=126, detail=why, unstartable=why)
                self._ended[grant.executor] = _EndedChild(note, 0)
                return
        cells = offer.cells
        if offer.launcher == "cell" and not cells.folders and self._files.only_company(grant.company) != grant.company:
            cells = cells.model_copy(update={"guest": True})
        if offer.launcher == "cell":
            cells = cells.model_copy(update={"hidden": (*cells.hidden, *self._private.paths())})
        spec = ExecutorSpec(
            grant=grant,
            worker=offer.worker,
            run_dir=offer.run_dir,
            launcher=offer.launcher,
            cells=cells,
            pin=hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) >= offer.cores,
            outlive_agent=offer.outlive_agent,
            grace_s=offer.grace_s if grant.grace_s is None else grant.grace_s,
            host=offer.host,
            among_gpus=any(map(is_gpu, offer.resources)),
            **self._door.spec_of(grant.executor),
        )
        try:
            pid = self._forkserver.launch(spec, meanwhile=self._show_life)
        except ForkserverLost:
            _log.warning("the forkserver does not answer and is started again", worker=offer.worker)
            return
        if pid is not None:
            self._running[grant.executor] = Holder(grant.executor, grant.app, pid, grace_s=spec.grace_s)
            if grant.role == "executor":
                self._unsent.append(grant.executor)

    def _show_life(self) -> None:
        """Send heartbeats to the service manager and the cluster while a tick takes long."""
        notify(ALIVE)
        with suppress(*AWAY, CommandRejected):  # the next tick handles it
            self._door.look()

    def _stop_executor(self, executor: str) -> None:
        """Send SIGTERM, which stops its tasks; long after the grace period, SIGKILL to all its processes."""
        pid = self._running[executor].pid
        if not pid:
            return
        if executor not in self._stopping:
            self._stopping[executor] = self._clock() + (self._running[executor].grace_s or self.offer.grace_s) + 3
            send_signal([pid], signal.SIGTERM)
        elif self._clock() > self._stopping[executor]:
            kill_until_gone(lambda: [*in_session(pid), *descendants(pid)])

    def _report(self, held: Held) -> None:
        """Report what started and ended; forget an end once it is reported and the grant is gone.

        What the worker is at fault for waits until nothing more is granted on it.
        """
        unwell = self._fitness.verdict
        untold = bool(unwell.unwell) and self._told_health != unwell
        if self._unsent:
            self._door.started(self._unsent)
            self._unsent.clear()
        for executor, (note, report_at_s) in list(self._ended.items()):
            if report_at_s and executor not in held.granted and executor not in held.revoked:
                self._forget(executor)
            elif self._clock() >= report_at_s and not (note.unfit and untold):
                self._door.ended(Ended.of(executor, note))
                self._ended[executor] = _EndedChild(note, self._clock() + _REPEAT_S)


def _kill_tasks(files: RunDir, holder: Holder) -> None:
    """Kill the tasks of an executor that died together with its forkserver."""
    kill_until_gone(lambda: with_variable(LOCK_VARIABLE, str(files.lock_file(holder.executor))))


def run_agent(
    address: str, cluster: str, offers: Sequence[Offer], keyring: Keyring | None = None, token: str = ""
) -> None:
    """Run an agent for each of `offers` until SIGTERM or SIGINT: one in this process, several in child processes.

    `address`, `keyring` and `token` are as of an `Agent`; with a token there is one offer.

    Raises: CommandRejected if the master refuses the worker, WorkerBusy if it has an agent already.
    """
    if len(offers) == 1:
        agent = Agent(address, cluster, offers[0], keyring=keyring, token=token)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop())
        agent.serve()
        return
    Supervisor([partial(_run_child, address, cluster, offer, os.getpid(), keyring) for offer in offers]).run()


def _run_child(address: str, cluster: str, offer: Offer, parent: int, keyring: Keyring | None) -> None:
    """Run one agent until process `parent` ends. The service manager sees only that process."""
    die_with_parent(parent)
    os.environ.pop(SOCKET_VARIABLE, None)
    log_to_stderr()
    try:
        run_agent(address, cluster, [offer], keyring)
    except FairlogError as error:
        sys.stderr.write(f"{masked(str(error))}\n")
        sys.exit(REFUSED)
