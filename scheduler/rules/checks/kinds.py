"""Resources beyond cores and memory: registered kinds, and addresses that are offered and granted (semantics R)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from scheduler.model.errors import AddressGranted, InvalidCommand, UnknownKind
from scheduler.model.events import DriverAllocated, ExecutorAllocated
from scheduler.model.resources import MAX_AMOUNT, Amounts, Resources, amounts_of
from scheduler.rules.checks.validate import MAX_CORES, MAX_MEMORY_MB, check_range, shorten

if TYPE_CHECKING:
    from scheduler.model.commands import AddDepartment, ChangeCompany, ChangeDepartment, RegisterCompany
    from scheduler.rules.entities.workers import Worker

    Quoted = RegisterCompany | ChangeCompany | AddDepartment | ChangeDepartment

MAX_QUOTA = 10**9
_KIND = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
_RESERVED = ("cores", "memory", "memory_mb")
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}")
_PER_TASK = re.compile(r"([0-9]{1,9})(?:/([1-9][0-9]{0,4}))?")

_Grant = TypeVar("_Grant", ExecutorAllocated, DriverAllocated)


def check_kind(kind: str) -> None:
    """Raises: InvalidCommand unless it can be the name of a kind (semantics R1)."""
    if not _KIND.fullmatch(kind) or kind in _RESERVED:
        raise InvalidCommand(
            "a kind of resources must be 1 to 63 lower-case letters, digits, '_', '.' or '-', starting with a letter, "
            f"and none of {', '.join(_RESERVED)}; not {shorten(kind)}"
        )


def check_registered(registered: Collection[str], named: Iterable[str]) -> None:
    """Raises: UnknownKind for the first kind that is not registered (semantics R1)."""
    for kind in named:
        if kind not in registered:
            raise UnknownKind(kind[:80], registered)


def check_addresses(registered: Collection[str], offered: Mapping[str, Collection[str]]) -> None:
    """Raises: UnknownKind, or InvalidCommand, unless a worker may offer these addresses (semantics R1)."""
    check_registered(registered, offered)
    for kind, addresses in offered.items():
        check_range(f"the number of {kind} addresses", len(addresses), 0, MAX_AMOUNT)
        for address in addresses:
            if not _ADDRESS.fullmatch(address):
                raise InvalidCommand(
                    f"an address of {kind} must be 1 to 128 letters, digits, '_', '.', ':', '/' or '-', starting with "
                    f"a letter or digit, not {shorten(address)}"
                )
        twice = next((one for one, number in Counter(addresses).items() if number > 1), None)
        if twice is not None:
            raise InvalidCommand(f"the {kind} address {shorten(twice)} is offered twice; name each address once")


def check_still_offered(worker: Worker, offered: Mapping[str, Collection[str]]) -> None:
    """Raises: AddressGranted if an address that is granted would leave the offer (semantics W1, R1)."""
    for kind, address in worker.granted_addresses():
        if address not in offered.get(kind, ()):
            raise AddressGranted(worker.id, kind, address)


def amounts_named(registered: Collection[str], whose: str, named: Mapping[str, int], least: int, most: int) -> Amounts:
    """The amounts as a part of `Resources`. Raises: UnknownKind or InvalidCommand (semantics R1, R3)."""
    check_registered(registered, named)
    for kind, amount in named.items():
        check_range(f"{whose} {kind}", amount, least, most)
    return amounts_of(named)


def check_beside_cores(command: Quoted) -> None:
    """Raises: InvalidCommand for a quota of further kinds without cores."""
    if command.resources and command.cores is None:
        raise InvalidCommand(f"a quota of {', '.join(command.resources)} needs --cores and --memory as well")


def quota_stated(registered: Collection[str], command: Quoted) -> Resources | None:
    """The amounts of a quota that a command states, None without (C2). Raises: UnknownKind or InvalidCommand."""
    if (command.cores is None) != (command.memory_mb is None):
        raise InvalidCommand("a quota in amounts needs both --cores and --memory")
    limited = amounts_named(registered, "a quota's", command.resources, 0, MAX_QUOTA)
    check_beside_cores(command)
    if command.cores is None or command.memory_mb is None:
        return None
    if command.part is not None:
        raise InvalidCommand("a quota is either --cores with --memory, or --part; give one of them")
    check_range("a quota's cores", command.cores, 0, 1000 * MAX_CORES)
    check_range("a quota's memory, in MiB,", command.memory_mb, 0, MAX_MEMORY_MB)
    return Resources(command.cores, command.memory_mb, limited)


def per_task(registered: Collection[str], named: Mapping[str, str]) -> tuple[tuple[str, int, int], ...]:
    """What each task needs, as `Computed.per_task`. Raises: UnknownKind or InvalidCommand (semantics R3)."""
    check_registered(registered, named)
    found: list[tuple[str, int, int]] = []
    for kind, text in sorted(named.items()):
        written = _PER_TASK.fullmatch(text)
        amount = Fraction(int(written[1]), int(written[2] or 1)) if written else Fraction(0)
        if not 0 < amount <= MAX_AMOUNT:
            raise InvalidCommand(
                f"a task's {kind} must be a whole number up to {MAX_AMOUNT} or a fraction such as 1/4, "
                f"not {shorten(text)}"
            )
        found.append((kind, amount.numerator, amount.denominator))
    return tuple(found)


def whole_amounts(named: Mapping[str, str]) -> dict[str, int] | None:
    """The addresses that an executor of one such task has of each kind; None if an amount is not one (semantics R3)."""
    found: dict[str, int] = {}
    for kind, text in named.items():
        written = _PER_TASK.fullmatch(text)
        if written is None or int(written[1]) == 0:
            return None
        found[kind] = -(-int(written[1]) // int(written[2] or 1))
    return found


def with_addresses(worker: Worker, grant: _Grant) -> _Grant:
    """The grant with its addresses: the first free ones in the order of the worker's offer (semantics R5)."""
    held = set(worker.granted_addresses())
    addresses = {
        kind: tuple([one for one in worker.addresses.get(kind, ()) if (kind, one) not in held][:number])
        for kind, number in grant.resources.others
    }
    return replace(grant, addresses=addresses)
