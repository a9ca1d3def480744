"""The promises of fairlog, checked against the growing log, the answers to clients and the machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from recovery.archive.archive import open_log
from recovery.archive.segment import Segment, entries, get
from recovery.replay.rebuild import fold, rebuild
from recovery.replay.snapshot import BadSnapshot, load, positions
from scheduler.model.errors import CommandRejected, DuplicateApp, FairlogError
from scheduler.model.events import (
    AccountRemoved,
    AppAdmitted,
    AppRegistered,
    AppRemoved,
    AppsShown,
    CommandRefused,
    CompanyRemoved,
    DriverAllocated,
    DriverRemoved,
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
    MasterElected,
    RoleRevoked,
    TargetEnded,
    TargetSet,
    TokenIssued,
    TokenRevoked,
    WorkerChanged,
    WorkerRegistered,
    WorkerRemoved,
)
from scheduler.model.grants import Grant
from scheduler.model.resources import Resources
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.assignments import all_grants
from scheduler.store.codec import Fact, Record, facts, record_of
from scheduler.store.eventlog import GENESIS, Position
from scheduler.store.keys import Keys
from tests.property.given import rests
from tests.simulation.allowed import sees, why_not
from tests.simulation.sharing import RuleBroken, Sharing
from witness.audit.audit import audit
from witness.audit.proofs import Proofs

if TYPE_CHECKING:
    from scheduler.model.sender import By
    from scheduler.service.receipts import Receipt, SignedReceipt
    from scheduler.store.eventlog import EventLog
    from tests.simulation.machine import Machine
    from tests.simulation.store import Store
    from workers.executor import ExecutorSpec


REVOKED_WITHIN_MS = 1_000
"""How long a token may be taken after the log has ended it."""


class PromiseBroken(AssertionError):
    """A promise of fairlog does not hold; `promise` is its number, or the rule by which sharing promises it."""

    def __init__(self, promise: int | str, what: str) -> None:
        super().__init__(f"promise {promise} is broken: {what}")
        self.promise = promise


class _Slice(NamedTuple):
    worker: str
    cores: int
    memory_mb: int
    addresses: frozenset[tuple[str, str]]


def _addresses(named: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    return [(kind, address) for kind, found in named.items() for address in found]


class Witness:
    """Observes every commit, and records the answers about it."""

    def __init__(self, store: Store, keys: Keys, machines: Mapping[str, Machine]) -> None:
        self._store = store
        self._keys = keys
        self._machines = machines
        self.told: dict[str, int] = {}
        """Command -> the position that its client was told, 0 where it changed nothing."""
        self.excused: set[str] = set()
        """Commands that were lost with a tail of the log that no replica was asked to have."""
        self.torn: set[str] = set()
        """Executors and drivers whose grants were in a tail that was lost."""
        self.tails_lost = 0
        self.elections = 0
        self.asked: dict[str, int] = {}
        """Command -> how many elections there had been when it was asked first, if that is known."""
        self.receipts: list[SignedReceipt] = []
        self.shown: set[str] = set()
        """The companies that have ever shown their apps to all their users."""
        self.forbidden: set[str] = set()
        """Commands that were refused to whoever asked, and asked for once only: nobody may do them."""
        self._started: set[str] = set()
        self._forget()

    def _forget(self) -> None:
        self.state = ClusterState()
        self.position = GENESIS
        self.records: list[Record] = []
        self.facts: list[Fact] = []
        self.causes: dict[str, int] = {}
        self.refusals: set[str] = set()
        self.granted: dict[str, str] = {}
        self.apps: dict[str, AppRegistered] = {}
        self.over: dict[str, AppRemoved] = {}
        self.lost: set[str] = set()
        """Executors and drivers that were lost, so that nobody heard what they did last."""
        self._sharing = Sharing()
        self._rests = False
        """Whether the last turns decided nothing, after a decommission (semantics W3, T3)."""
        self._offers: dict[str, Resources] = {}
        self._offered: dict[str, list[tuple[str, str]]] = {}
        self._held: dict[str, _Slice] = {}
        self._kept: dict[int, TargetSet] = {}
        """Targets by their log positions."""
        self._valid: set[str] = set()
        self._redeemed: dict[str, str] = {}
        """Invitation -> the command that has replaced it."""
        self._ended: dict[str, int] = {}
        """Token -> when the log ended it, in ms since the run began."""

    def committed(self, master: str) -> None:
        """Check a commit: one writer, one chain, and grants that agree with the log."""
        found = self._new_facts()
        for number, fact in enumerate(found):
            event = self._take(fact)
            if isinstance(event, MasterElected):
                self.elections += 1
                if number or event.master != master:
                    raise PromiseBroken(4, f"{master} wrote that {event.master} was elected")
            elif self.state.master != master:
                raise PromiseBroken(4, f"{master} wrote {fact.seq} while {self.state.master} was elected")
        for _, turn in groupby(found, key=attrgetter("turn")):
            entries = list(turn)
            only_refused = all(type(fact.event) is CommandRefused for fact in entries)
            commands = (fact.command for fact in entries if fact.command is not None)
            self._rests = rests(commands) or (self._rests and only_refused)
        if found and not self._rests:
            self._check_sharing(self._sharing.after, self.state)
        self._check_grants()

    def tail_was_lost(self, *, promised: bool) -> None:
        """Check after a failover of the store that the lost entries were promised to nobody, or excuse them."""
        before, causes, granted = self.position.seq, self.causes, self.granted
        self._forget()
        for fact in self._new_facts():
            self._take(fact)
        self._check_grants()
        lost = before - self.position.seq
        self.tails_lost += lost > 0
        gone = {cause for cause in causes if cause not in self.causes}
        if promised:
            for cause in sorted(gone & self.told.keys()):
                if self.told[cause] > self.position.seq:
                    raise PromiseBroken(1, f"{cause} was acknowledged at {self.told[cause]} and is lost with its store")
            begun = sorted(self._started & (granted.keys() - self.granted.keys()))
            if begun:
                raise PromiseBroken(3, f"{begun} were started on grants that are lost with their store")
        self.excused |= gone
        self.torn |= granted.keys() - self.granted.keys()

    def answered(self, command: str, receipt: Receipt) -> None:
        """Check that the log holds a command that a client was told is executed."""
        before = self.told.setdefault(command, receipt.seq)
        late = not receipt.seq and self.asked.get(command, 0) < self.elections  # of a copy that changed nothing
        self.told[command] = before if late else receipt.seq
        if command in self.excused:
            return
        if receipt.seq and command not in self.causes:
            raise PromiseBroken(1, f"{command} was acknowledged at {receipt.seq} before it was in the log")
        if receipt.seq and command in self.refusals:  # a copy of one that changed nothing may come late and be refused
            raise PromiseBroken(1, f"{command} was acknowledged at {receipt.seq}, and the log holds its refusal")
        if self.state.public_keys:
            self._check_receipt(receipt)
        if before and before != receipt.seq and not late:
            raise PromiseBroken(6, f"{command} was acknowledged at {before}, and at {receipt.seq} when asked again")

    def _check_receipt(self, receipt: Receipt) -> None:
        """Check that a master has signed what a client was told, about the log as it is (semantics I6)."""
        command, seq, signed = receipt
        if signed is None or (command, seq) not in signed.outcomes():
            raise PromiseBroken(1, f"{command} was acknowledged at {seq} without a receipt for it")
        self.receipts.append(signed)
        if self.tails_lost:
            return
        if not signed.is_by(self.state.public_keys[signed.key]):
            raise PromiseBroken(1, f"the receipt of {command} is not signed by the key {signed.key}")
        if signed.seq > self.position.seq or (signed.seq and self.facts[signed.seq - 1].digest != signed.digest):
            raise PromiseBroken(
                1, f"the receipt of {command} says that the log ends at {signed.seq}, which it does not"
            )

    def refused(self, command: str, refusal: CommandRejected) -> None:
        """Record that a client was told that its command is refused."""
        if isinstance(refusal, DuplicateApp) and command in self.causes.keys() - self.refusals:
            raise PromiseBroken(6, f"{command} was carried out, and refused when it was asked for again: {refusal}")

    def admitted(self, by: By) -> None:
        """Check that the token that a server has just taken is valid, or was a second ago (semantics I5)."""
        token = self.state.accounts.tokens.get(by.token)
        now_ms = self._store.loom.now_ms
        if token is None and now_ms - self._ended.get(by.token, now_ms) > REVOKED_WITHIN_MS:
            raise PromiseBroken(
                9, f"the token {by.token} of {by.account} ended {now_ms - self._ended[by.token]} ms ago"
            )
        if token is not None and self._store.ms >= token.expires:
            raise PromiseBroken(9, f"the token {by.token} of {by.account} has expired")

    def saw(self, by: By, what: str, owners: Iterable[tuple[str, str]], **about: Any) -> None:
        """Check that `by` may see all of what a server has shown of these owners."""
        for owner in owners:
            shown = owner[0] in self.shown
            if not sees(by, owner, shown=shown, **about):
                raise PromiseBroken(9, f"{by.account} as {by.role} sees {what} of {'/'.join(owner)}")

    def read_at(self, server: str, seq: int, before: int) -> None:
        """Check that a server shows no state before one that it has shown, and none that the log has not reached."""
        if not self.tails_lost and not before <= seq <= self.position.seq:
            raise PromiseBroken(2, f"{server} shows {seq} after {before}, and the log ends at {self.position.seq}")

    def starts(self, worker: str, spec: ExecutorSpec) -> None:
        """Check that the log grants an executor or driver that a worker starts, once, and that it has room."""
        grant, name = spec.grant, spec.grant.executor
        self._started.add(name)
        if name in self.torn or self.tails_lost:
            return
        if self.granted.get(name) != worker:
            raise PromiseBroken(3, f"{name} starts on {worker} and the log grants it on {self.granted.get(name)}")
        for machine in self._machines.values():
            if machine.is_running(name):
                raise PromiseBroken(3, f"{name} starts on {worker} and runs on {machine.worker}")
        machine = self._machines[worker]
        cores = grant.cores + sum(machine.specs[other].grant.cores for other in machine.running())
        if cores > machine.offer.cores:
            raise PromiseBroken(
                5, f"{name} starts on {worker}, where {cores} of {machine.offer.cores} cores are in use then"
            )
        in_use = {one for other in machine.running() for one in _addresses(machine.specs[other].grant.addresses)}
        if not in_use.isdisjoint(_addresses(grant.addresses)):
            raise PromiseBroken(5, f"{name} starts on {worker} with {grant.addresses}, and {sorted(in_use)} are in use")

    def check_history(self) -> None:  # noqa: C901 - one check after the other
        """Check the whole log and all answers at the end."""
        for command, seq in self.told.items():
            if seq and command not in self.excused and command not in self.causes:
                raise PromiseBroken(6, f"{command} was acknowledged at {seq} and is not in the log")
        fresh, position = rebuild(self._log(), whole=True)
        digest = self.state.digest()
        if (position, fresh.digest()) != (self.position, digest):
            raise PromiseBroken(2, f"the log folded again differs at {position.seq}")
        for seq in positions(self._log()):
            try:
                state, after = load(self._log(), seq)
            except BadSnapshot:
                if not self.tails_lost:
                    raise
                continue
            for fact in self._log().facts(after):
                fold(state, fact)
            if state.digest() != digest:
                raise PromiseBroken(2, f"the snapshot at {seq} and what follows it differ from the log")
        proofs = Proofs(self.receipts)
        for deviation in audit(proofs.heard(self.facts)):
            raise PromiseBroken(5 if deviation.rule == "O2" else 2, f"the audit finds {deviation}")
        for deviation in proofs.deviations() if not self.tails_lost else ():
            raise PromiseBroken(1, f"the receipts say otherwise: {deviation}")

    def check_follower(self, name: str, state: ClusterState, position: Position) -> None:
        """Check that a master's state is the folded log, except for a lost tail that it has not noticed yet."""
        if position.seq > self.position.seq or position == GENESIS:
            return
        if position.seq != self.position.seq:
            state_due = ClusterState()
            for fact in self.facts[: position.seq]:
                fold(state_due, fact)
        else:
            state_due = self.state
        if self.facts[position.seq - 1].digest != position.digest:
            return
        if state.digest() != state_due.digest():
            raise PromiseBroken(2, f"{name} has another state at {position.seq} than the log")

    def _log(self) -> EventLog:
        return open_log(self._store.client, self._keys)

    def _new_facts(self) -> list[Fact]:
        try:
            records = [*self._archived(), *self._in_stream()]
            found = list(facts(records, *self.position))
        except FairlogError as error:
            raise PromiseBroken(4, str(error)) from error
        self.records += records
        return found

    def _archived(self) -> Iterator[Record]:
        """The turns that are no longer in the store."""
        for text in self._store.ask("LRANGE", self._keys.archive, 0, -1) if self.position == GENESIS else ():
            segment = Segment(**json.loads(text))
            yield from entries(segment, get(segment))

    def _in_stream(self) -> Iterator[Record]:
        return map(record_of, self._store.ask("XRANGE", self._keys.log, f"({self.position.seq}-0", "+"))

    def _take(self, fact: Fact) -> Event:
        if fact.cause:
            self._check_sender(fact)
            turn = self.causes.setdefault(fact.cause, fact.turn)
            if turn != fact.turn:
                raise PromiseBroken(6, f"{fact.cause} was carried out at {turn} and again at {fact.turn}")
        self._check_sharing(self._sharing.before, self.state, fact.event, fact.at)
        try:
            event = fold(self.state, fact)
        except FairlogError as error:
            raise PromiseBroken(2, str(error)) from error
        if isinstance(event, CommandRefused):
            self.refusals.add(fact.cause)
        self.facts.append(fact)
        self.position = Position(fact.seq, fact.digest)
        if isinstance(event, TargetSet):
            self._kept[fact.seq] = event
        elif isinstance(event, TargetEnded):
            del self._kept[event.target]
        else:
            self._count(event, fact.seq)
        return event

    def _check_sharing(self, check: Callable[..., None], *about: Any) -> None:
        try:
            check(*about)
        except RuleBroken as broken:
            raise PromiseBroken(broken.rule, f"after {self.position.seq}: {broken}") from broken

    def _check_sender(self, fact: Fact) -> None:
        """Check that the log names who sent a command, and that the sender might (semantics I1, I3)."""
        command = fact.command
        if command is None or type(fact.event) is CommandRefused:
            return
        if fact.cause in self.forbidden:
            raise PromiseBroken(9, f"{fact.cause} was refused, and is carried out at {fact.seq}")
        if not fact.by.account:
            raise PromiseBroken(9, f"nobody sent {fact.cause}, which is carried out at {fact.seq}")
        token = self.state.accounts.tokens.get(fact.by.token)
        if token is not None and token.once and self._redeemed.setdefault(token.id, fact.cause) != fact.cause:
            raise PromiseBroken(9, f"the invitation {token.id} is used again at {fact.seq}")
        if self.state.closed and (why := why_not(self.state, command, fact.by, fact.at)):
            raise PromiseBroken(9, f"at {fact.seq} {command} of {fact.by} is carried out: {why}")

    def _count(self, event: Event, seq: int) -> None:  # noqa: C901, PLR0912 - a kind of event after the other
        match event:
            case WorkerRegistered() | WorkerChanged():
                self._offers[event.worker] = event.offer
                self._offered[event.worker] = _addresses(event.addresses)
                self._check_worker(event.worker, seq)
            case WorkerRemoved():
                del self._offers[event.worker]
                left = [name for name, held in self._held.items() if held.worker == event.worker]
                if left:
                    raise PromiseBroken(5, f"{event.worker} leaves at {seq} and {left} are still granted there")
            case ExecutorAllocated(executor=name) | DriverAllocated(driver=name):
                if name in self.granted:
                    raise PromiseBroken(3, f"{name} is granted a second time at {seq}")
                self.granted[name] = event.worker
                size, addresses = event.resources, frozenset(_addresses(event.addresses))
                self._held[name] = _Slice(event.worker, size.cores, size.memory_mb, addresses)
                self._check_worker(event.worker, seq)
                self._check_holds(event, seq)
            case ExecutorRemoved(executor=name) | DriverRemoved(driver=name):
                del self._held[name]
                if event.reason == "lost":
                    self.lost.add(name)
            case AppRegistered():
                self.apps[event.app] = event
            case AppAdmitted():
                self._check_dependencies(self.apps[event.app], seq)
            case AppRemoved():
                self.over[event.app] = event
            case AppsShown(shown=True):
                self.shown.add(event.company)
            case TokenIssued() | TokenRevoked() | RoleRevoked() | AccountRemoved() | CompanyRemoved():
                valid = self.state.accounts.tokens.keys()
                self._ended |= dict.fromkeys(self._valid - valid, self._store.loom.now_ms)
                self._valid = {*valid}
            case _:
                pass

    def _check_dependencies(self, app: AppRegistered, seq: int) -> None:
        """Check that an app is admitted only after the apps that it waits for have ended as it says."""
        for name, condition in app.after:
            how = self.over[name].reason if name in self.over else "running"
            if (
                how == "running"
                or (condition == "ok") > (how == "finished")
                or (condition, how) == ("not-ok", "finished")
            ):
                raise PromiseBroken(7, f"{app.app} is admitted at {seq} after {name}:{condition}, which is {how}")

    def _check_holds(self, granted: ExecutorAllocated | DriverAllocated, seq: int) -> None:
        """Check that the grant takes no room that is being made for another app, if it is not lent (H6, H11)."""
        if self.state.settings.backfill and self.apps[granted.app].max_runtime_s is not None:
            return  # by when it ends is checked by the facts
        kept = [
            target for target in self._kept.values() if target.worker == granted.worker and target.app != granted.app
        ]
        held = [each for each in self._held.values() if each.worker == granted.worker]
        offer = self._offers[granted.worker]
        cores = sum(each.cores for each in held) + sum(target.amounts.cores for target in kept)
        memory_mb = sum(each.memory_mb for each in held) + sum(target.amounts.memory_mb for target in kept)
        if kept and (cores > offer.cores or memory_mb > offer.memory_mb):
            raise PromiseBroken(
                5, f"at {seq} {granted.app} is granted room that is made on {granted.worker} for {kept[0].app}"
            )

    def _check_worker(self, worker: str, seq: int) -> None:
        held = [each for each in self._held.values() if each.worker == worker]
        cores, memory_mb = sum(each.cores for each in held), sum(each.memory_mb for each in held)
        offer = self._offers[worker]
        if cores > offer.cores or memory_mb > offer.memory_mb:
            raise PromiseBroken(5, f"at {seq} {cores} cores, {memory_mb} MiB of {worker} are granted, it has {offer}")
        addresses = sorted(one for each in held for one in each.addresses)
        if len(addresses) > len(set(addresses)) or not set(addresses) <= set(self._offered[worker]):
            raise PromiseBroken(5, f"at {seq} {worker} grants {addresses}, it offers {self._offered[worker]}")

    def _check_grants(self) -> None:
        due = all_grants(self.state)
        for worker in {*due, *self._machines}:
            flat = iter(self._store.ask("HGETALL", self._keys.grants(worker)))
            found = {name.decode(): _grant(text.decode()) for name, text in zip(flat, flat, strict=True)}
            wanted = {name: _grant(text) for name, text in due.get(worker, {}).items()}
            if found != wanted:
                names = sorted({*found} | {*wanted})
                raise PromiseBroken(3, f"at {self.position.seq} {worker} is told grants that the log has not: {names}")


@lru_cache(maxsize=1024)
def _grant(text: str) -> Grant | None:
    """The grant without its time of settlement; None if it is revoked."""
    return Grant.model_validate_json(text).model_copy(update={"settled_at": 0}) if text else None
