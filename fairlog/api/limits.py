"""How often a token and a company may ask: token buckets, kept by each server for itself.

A request costs one. A batch costs one more for every `TOGETHER` commands after the first `TOGETHER`, so that a token
can send 4,000 commands a second in batches, and no more, and a company 40,000.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address

from fairlog.api.problems import TooMany

TOGETHER = 200
TOKEN_RATE, TOKEN_BURST = 20.0, 100.0
COMPANY_RATE, COMPANY_BURST = 200.0, 200.0
WORKER_RATE, WORKER_BURST = 2_000.0, 4_000.0
"""How often a worker may ask, with all its executors."""
STRANGER_RATE, STRANGER_BURST = 0.5, 10.0
"""How often somebody may ask who has no token yet, by `neighbourhood`."""
ONE_LINE = 64
"""The leading bits of an IPv6 address that a provider gives to one customer, who chooses all others."""
WORK_RATE, WORK_BURST = 0.25, 30.0
"""How many seconds a second may be spent on answers from the whole log, for a company or an account without one."""
KEPT = 10_000
"""The most buckets that are remembered; one that was not used for long is full anyway."""


class Buckets:
    """Buckets by name: each holds at most `burst` and gains `rate` a second."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, cost: float) -> float:
        """Take `cost`; returns 0, or the seconds until there is enough; then nothing is taken.

        A cost above what a bucket holds is taken from a full one, which then is in debt.
        """
        now = self._clock()
        held, since = self._held.pop(name, (self._burst, now))
        held = min(self._burst, held + (now - since) * self._rate)
        short = min(cost, self._burst) - held
        self._held[name] = (held if short > 0 else held - cost), now
        if len(self._held) > KEPT:
            self._held.popitem(last=False)
        return max(0.0, short) / self._rate

    def owe(self, name: str, cost: float) -> None:
        """Take `cost` whatever the bucket holds."""
        self.take(name, 0.0)
        held, since = self._held[name]
        self._held[name] = held - cost, since


class Rates:
    """The rates of all callers of this server. Who has no token, the owner of the Unix socket, has none."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = Buckets(TOKEN_RATE, TOKEN_BURST, clock)
        self._addresses = Buckets(TOKEN_RATE, TOKEN_BURST, clock)
        self._companies = Buckets(COMPANY_RATE, COMPANY_BURST, clock)
        self._workers = Buckets(WORKER_RATE, WORKER_BURST, clock)
        self._work = Buckets(WORK_RATE, WORK_BURST, clock)
        self._strangers = Buckets(STRANGER_RATE, STRANGER_BURST, clock)

    def charge(self, token: str, company: str, cost: float = 1.0) -> None:
        """Charge a request of `cost`. Raises: TooMany."""
        for buckets, name, what in ((self._tokens, token, "token"), (self._companies, company, "company")):
            if name and (wait_s := buckets.take(name, cost)):
                raise TooMany(f"the {what} {name} asks too often; ask again in {wait_s:.1f} s", wait_s)

    def owe(self, token: str, company: str, cost: float) -> None:
        """Charge for an answer what its question did not say."""
        for buckets, name in ((self._tokens, token), (self._companies, company)):
            if name and cost:
                buckets.owe(name, cost)

    def charge_worker(self, worker: str) -> None:
        """Charge a request of a worker or one of its executors. Raises: TooMany."""
        if wait_s := self._workers.take(worker, 1.0):
            raise TooMany(f"worker {worker} asks too often; ask again in {wait_s:.1f} s", wait_s)

    def check_work(self, owner: str) -> None:
        """Raises: TooMany if the owner's answers have taken too long."""
        if wait_s := self._work.take(owner, 0.01):
            raise TooMany(f"{owner} has asked for much that takes long; ask again in {wait_s:.0f} s", wait_s)

    def charge_work(self, owner: str, took_s: float) -> None:
        """Charge an answer that took so long."""
        self._work.owe(owner, took_s)

    def charge_address(self, address: str) -> None:
        """Charge a request without a token, where it needs none, as a token would be. Raises: TooMany."""
        if wait_s := self._addresses.take(neighbourhood(address), 1.0):
            raise TooMany(f"this address asks too often; ask again in {wait_s:.1f} s", wait_s)

    def charge_stranger(self, address: str) -> None:
        """Charge a request to sign in from the IP address, or "" if there is none. Raises: TooMany."""
        if wait_s := self._strangers.take(neighbourhood(address), 1.0):
            raise TooMany(f"too many requests to sign in; ask again in {wait_s:.0f} s", wait_s)


def neighbourhood(address: str) -> str:
    """Who shares a bucket with that IP address: its IPv6 network of `ONE_LINE` bits; itself if it is of IPv4.

    An IPv4 address that is mapped into IPv6, as a listener on `[::]` sees it, is that of IPv4. What is no IP address
    stands for itself.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or IPv6Network((found, ONE_LINE), strict=False))


def cost_of(commands: int) -> int:
    """What a batch costs beside its request."""
    return max(0, commands - 1) // TOGETHER
