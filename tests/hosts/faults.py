"""What happens to the hosts, each for a time, and whom it meets: chosen when it begins, by who does what then."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from tests.hosts import relay
from tests.hosts.bed import Bed, clock
from workers.processes import send_signal

RESTART_S = 3.0
"""The time until a service manager starts a process again that was killed."""
STOPPED_S = 20.0
DELAY_S = 0.1
WRONG_S = 300
STORE_WRONG_S = 15
"""How far ahead the clock of the store is: for so long afterwards, nothing happens that waits for a time."""
CUT_S = 20.0

Draw = random.Random
Inflict = Callable[[Bed, Draw], Iterator[str]]
"""Begins the fault, yields whom it meets, and ends it."""


class Fault(NamedTuple):
    """A fault that lasts `hold_s`, unless it is over at once; `missing` says why this machine cannot inflict it."""

    name: str
    hold_s: float
    inflict: Inflict
    missing: Callable[[], str] = lambda: ""


def _kill(victim: Callable[[Bed, Draw], str]) -> Inflict:
    def inflict(bed: Bed, draw: Draw) -> Iterator[str]:
        name = victim(bed, draw)
        bed.hold(name, RESTART_S)
        send_signal([bed.pid(name)], signal.SIGKILL)
        yield name

    return inflict


def _stop(victim: Callable[[Bed, Draw], str]) -> Inflict:
    def inflict(bed: Bed, draw: Draw) -> Iterator[str]:
        name = victim(bed, draw)
        pid = bed.pid(name)
        send_signal([pid], signal.SIGSTOP)
        yield name
        send_signal([pid], signal.SIGCONT)

    return inflict


def _apart(victims: Callable[[Bed, Draw], Sequence[str]], from_whom: str = "") -> Inflict:
    """Cut the victims off from all others, or from the hosts whose names begin like that."""

    def inflict(bed: Bed, draw: Draw) -> Iterator[str]:
        names = victims(bed, draw)
        others = [name for name in bed.others(*names) if name.startswith(from_whom)]
        with bed.network.apart(names, others):
            yield " and ".join(names)

    return inflict


def _kill_executor(bed: Bed, draw: Draw) -> Iterator[str]:
    found = sorted(bed.executors().items())
    name, pid = draw.choice(found) if found else ("no executor", 0)
    if pid:
        send_signal([pid], signal.SIGKILL)
    yield name


def _deaf(bed: Bed, draw: Draw) -> Iterator[str]:  # noqa: ARG001 - as all
    primary = bed.primary()
    with bed.network.dropped(bed.others(primary), [primary]):
        yield primary


def _mute(bed: Bed, draw: Draw) -> Iterator[str]:  # noqa: ARG001 - as all
    primary = bed.primary()
    with bed.network.dropped([primary], bed.others(primary)):
        yield primary


def _stores_apart(bed: Bed, draw: Draw) -> Iterator[str]:  # noqa: ARG001 - as all
    names = bed.stores.names()
    with ExitStack() as stack:
        for name in names[:-1]:
            stack.enter_context(bed.network.apart([name], names[names.index(name) + 1 :]))
        yield " and ".join(names)


def _lossy(bed: Bed, draw: Draw) -> Iterator[str]:  # noqa: ARG001 - as all
    primary = bed.primary()
    with bed.relayed(primary, loss=0.3):
        yield primary


def _slow(victim: Callable[[Bed, Draw], str]) -> Inflict:
    def inflict(bed: Bed, draw: Draw) -> Iterator[str]:
        name = victim(bed, draw)
        with bed.relayed(name, delay_s=DELAY_S):
            yield name

    return inflict


def _misled(victim: Callable[[Bed, Draw], str], seconds: int) -> Inflict:
    def inflict(bed: Bed, draw: Draw) -> Iterator[str]:
        name = victim(bed, draw)
        with bed.misled(name, seconds):
            yield name

    return inflict


def _no_clock() -> str:
    return "" if clock() is not None else "there is no libfaketime; install it"


def _set(setting: str, wrong: object, right: object) -> Inflict:
    """Give the store's primary a wrong setting for a time."""

    def inflict(bed: Bed, draw: Draw) -> Iterator[str]:  # noqa: ARG001 - as all
        name = bed.primary()
        with bed.stores.admin(name) as admin:
            admin.config_set(setting, wrong)
        yield name
        with bed.stores.admin(name) as admin:
            admin.config_set(setting, right)

    return inflict


def _replaced(age_s: float | None) -> Inflict:
    def inflict(bed: Bed, draw: Draw) -> Iterator[str]:  # noqa: ARG001 - as all
        with bed.replaced(age_s) as primary:
            yield primary

    return inflict


def _restart_stores(bed: Bed, draw: Draw) -> Iterator[str]:  # noqa: ARG001 - as all
    names = bed.stores.names()
    bed.primary()
    for name in names:
        bed.hold(name, 0)
        send_signal([bed.pid(name)], signal.SIGTERM)
    yield " and ".join(names)


def _primary(bed: Bed, draw: Draw) -> str:  # noqa: ARG001 - as all
    return bed.primary()


def _replica(bed: Bed, draw: Draw) -> str:
    return draw.choice(bed.replicas())


def _sentinel(bed: Bed, draw: Draw) -> str:
    return draw.choice(bed.stores.names()).replace("store", "sentinel")


def _active(bed: Bed, draw: Draw) -> str:  # noqa: ARG001 - as all
    return bed.active()


def _standby(bed: Bed, draw: Draw) -> str:
    return draw.choice(bed.standbys())


def _one_of(*names: str) -> Callable[[Bed, Draw], str]:
    return lambda _, draw: draw.choice(names)


_worker = _one_of("worker-0", "worker-1", "worker-2")
_api = _one_of("api-0", "api-1")
_client = _one_of("client-0", "client-1")

FAULTS: Sequence[Fault] = (
    Fault("active master killed", RESTART_S, _kill(_active)),
    Fault("standby killed", RESTART_S, _kill(_standby)),
    Fault("primary killed", RESTART_S, _kill(_primary)),
    Fault("replica killed", RESTART_S, _kill(_replica)),
    Fault("sentinel killed", RESTART_S, _kill(_sentinel)),
    Fault("API server killed", RESTART_S, _kill(_api)),
    Fault("worker killed", RESTART_S, _kill(_worker)),
    Fault("executor killed", 0, _kill_executor),
    Fault("client killed", RESTART_S, _kill(_client)),
    Fault("active master stopped", STOPPED_S, _stop(_active)),
    Fault("primary stopped", STOPPED_S, _stop(_primary)),
    Fault("replica stopped", STOPPED_S, _stop(_replica)),
    Fault("API server stopped", STOPPED_S, _stop(_api)),
    Fault("worker stopped", STOPPED_S, _stop(_worker)),
    Fault("primary and active master cut off", CUT_S, _apart(lambda bed, _: [bed.primary(), bed.active()])),
    Fault("API server and client cut off", CUT_S, _apart(lambda *_: ["api-0", "client-0"])),
    Fault("primary deaf", CUT_S, _deaf),
    Fault("primary mute", CUT_S, _mute),
    Fault("active master cut off from the stores", CUT_S, _apart(lambda bed, _: [bed.active()], "store")),
    Fault("worker cut off", CUT_S, _apart(lambda *given: [_worker(*given)])),
    Fault("API server cut off from the stores", CUT_S, _apart(lambda *given: [_api(*given)], "store")),
    Fault("API server cut off", CUT_S, _apart(lambda *given: [_api(*given)])),
    Fault("stores cut off from each other", CUT_S, _stores_apart),
    Fault("two of three stores cut off", 25, _apart(lambda bed, _: [bed.primary(), bed.replicas()[0]])),
    Fault("30 % loss at the primary", CUT_S, _lossy, relay.missing),
    Fault("100 ms delay at the primary", CUT_S, _slow(_primary), relay.missing),
    Fault("100 ms delay at the active master", CUT_S, _slow(_active), relay.missing),
    Fault("active master's clock 5 min behind", CUT_S, _misled(_active, -WRONG_S), _no_clock),
    Fault("API server's clock 5 min ahead", CUT_S, _misled(_api, WRONG_S), _no_clock),
    Fault("worker's clock 5 min ahead", CUT_S, _misled(_worker, WRONG_S), _no_clock),
    Fault("primary's clock 5 min behind", CUT_S, _misled(_primary, -WRONG_S), _no_clock),
    Fault("primary's clock 15 s ahead", CUT_S, _misled(_primary, STORE_WRONG_S), _no_clock),
    Fault("store full", CUT_S / 2, _set("maxmemory", 1, 0)),
    Fault("store read-only", CUT_S / 2, _set("min-replicas-to-write", 3, 0)),
    Fault("all stores restarted", 0, _restart_stores),
    Fault("store rewound by 5 s", CUT_S / 2, _replaced(5)),
    Fault("store replaced by an empty one", CUT_S / 2, _replaced(None)),
)
BY_NAME = {fault.name: fault for fault in FAULTS}


@contextmanager
def inflicted(fault: Fault, bed: Bed, draw: Draw) -> Iterator[str]:
    """The fault while it lasts; whom it meets."""
    yield from fault.inflict(bed, draw)


def order(draw: Draw, chosen: Sequence[str]) -> Iterator[Fault]:
    """These faults, or all of them, in another order each time, without end."""
    faults = [BY_NAME[name] for name in chosen] or [fault for fault in FAULTS if not fault.missing()]
    while True:
        draw.shuffle(faults)
        yield from faults
