"""The process of a pool: it looks at the log, through the API, and at the provider's own list, and acts.

It keeps no state that counts. Whoever runs the pool next, after whatever happened to this process, finds all of it in
the log and in the provider's list. One process runs a pool on a machine: it holds the lock of the pool's name, as do
the commands that it has begun, until they end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import platformdirs

from fairlog.pools.look import Memory, PoolPlan, PoolSeen, plan
from fairlog.pools.providers import Order, ProviderFailed, provider_of
from scheduler.model.commands import (
    AddAccount,
    Command,
    DrainWorker,
    IssueToken,
    RemoveAccount,
    RemoveWorker,
    UndrainWorker,
)
from scheduler.model.errors import (
    CommandRejected,
    FairlogError,
    NoMaster,
    NotAllowed,
    NotAuthenticated,
    UnknownAccount,
    UnknownWorker,
)
from scheduler.model.text import counted
from scheduler.service.addresses import TOKEN_VARIABLE, URL_VARIABLE
from scheduler.service.locks import try_lock
from scheduler.service.private import private_folder
from scheduler.service.tokens import new_token

if TYPE_CHECKING:
    from fairlog.api.client import ApiClient
    from fairlog.pools.spec import Pool

AT_ONCE = 8
"""How many commands of the provider run at a time."""
LOCK_S = 150.0
"""How long a pool waits for the commands of an earlier process of it."""
_AGAIN_S = 0.1
_HOUR_MS = 3_600_000
_PAUSE_S = 30.0
"""How long nothing is started after a start that failed; twice as long each further time, up to ten times that."""
Tell = Callable[[Mapping[str, Any]], None]
"""Takes what is done or went wrong: `did`, `worker` and `text`."""


class PoolBusy(FairlogError):
    """Another process runs the pool."""

    def __init__(self, pool: str) -> None:
        super().__init__(
            f"another process runs the pool {pool!r} on this machine, or a command that it began has not ended; stop "
            "it first, or give this pool another name"
        )


def hold(pool: str, wait_s: float = LOCK_S) -> int:
    """The descriptor of the pool's lock, held. Raises: PoolBusy if it is not free within `wait_s`."""
    folder = platformdirs.user_state_path("fairlog") / "pools"
    private_folder(folder)
    deadline_s = time.monotonic() + wait_s
    while (lock := try_lock(folder / f"{pool}.lock")) is None:
        if time.monotonic() >= deadline_s:
            raise PoolBusy(pool)
        time.sleep(_AGAIN_S)
    return lock


class RunningPool:
    """A pool that runs: `look`, `act`, or `serve`, which does both until `stop`. `tell` hears what is done.

    `api` is where workers find API servers if the file does not say so; `lock` that of the pool (`hold`).
    """

    def __init__(self, pool: Pool, client: ApiClient, api: str, lock: int, tell: Tell) -> None:
        self._pool, self._client, self._tell = pool, client, tell
        self._api = pool.api or api
        self._provider = provider_of(pool, lock)
        self._memory = Memory()
        self._over = threading.Event()
        self._failures = 0
        self._said = ""
        """The last line about the pool as a whole."""
        self._untidy = True
        """Whether an account may be there whose worker is not."""
        self._closed = False
        """Whether the cluster is known to have accounts, so that workers need a token."""

    def stop(self) -> None:
        """End `serve` after the present round; the workers stay."""
        self._over.set()

    def look(self) -> PoolPlan:
        """What there is to do now. Raises: ProviderFailed; what the API client raises."""
        listed = self._provider.present()
        known = self._client.view("workers", lost=True)
        ours = {each["worker"]: each for each in known if self._pool.number(each["worker"]) is not None}
        seen = PoolSeen(listed, ours, self._client.view("demand"), self._accounts() if self._untidy else ())
        now_s = time.monotonic()
        self._memory.note(self._pool, seen, now_s)
        return plan(self._pool, seen, self._memory, now_s)

    def _accounts(self) -> list[str]:
        """The workers of the pool that have an account: a start that did not come about leaves one."""
        accounts = (each["account"].partition("/") for each in self._client.view("accounts"))
        found = [name for kind, _, name in accounts if kind == "worker" and self._pool.number(name) is not None]
        self._untidy = bool(found)
        return found

    def act(self, found: PoolPlan) -> None:
        """Do it, several things at a time, and return once all is done or has failed."""
        for name, why in found.drain.items():
            self._send(name, "drain", f"{name} takes nothing new: {why}", DrainWorker(worker=name, reason=why))
        for name in found.undrain:
            self._send(name, "undrain", f"{name} is back in service", UndrainWorker(worker=name))
        for name in found.forget:
            self._leave(name, f"{name} is gone")
        with ThreadPoolExecutor(AT_ONCE) as several:
            stops = [several.submit(self._stop, name, given_up=name in found.given_up) for name in found.stop]
            starts = [several.submit(self._start, name) for name in found.start]
        done = [each.result() for each in [*stops, *starts]]
        if not all(done) or found.given_up:
            self._failures += 1
            pause_s = _PAUSE_S * min(2 ** (self._failures - 1), 10)
            self._memory.not_before = time.monotonic() + min(pause_s, self._pool.start_within)
        elif done:
            self._failures = 0

    def serve(self, until: Callable[[PoolPlan], bool] = lambda _: False) -> int:
        """Look and act until `stop`, or until `until` says so of a round with nothing to do. Returns an exit code.

        Raises: NotAllowed, NotAuthenticated if the account may not do what a pool does.
        """
        while True:
            try:
                found = self.look()
                self._summary(found)
                if not found.acts and until(found):
                    return 0
                self.act(found)
            except (NotAllowed, NotAuthenticated):
                raise
            except (FairlogError, OSError) as error:
                self._line(f"nothing is done: {error}", did="wait")
            if self._over.wait(self._pool.every):
                return 0

    def once(self) -> int:
        """Look and act once. Returns an exit code: 1 if something failed. Raises: as `look` and `act`."""
        found = self.look()
        self._summary(found)
        self.act(found)
        return 1 if self._failures else 0

    def _start(self, name: str) -> bool:
        try:
            token = self._invited(name)
            environment = {
                URL_VARIABLE: self._api,
                **({TOKEN_VARIABLE: token} if token else {}),
            }
            self._provider.start(Order(name, environment, self._arguments(name)))
        except (ProviderFailed, NoMaster, CommandRejected, OSError) as error:
            self._untidy = True
            self._tell({"did": "failed", "worker": name, "text": f"{name} is not started: {error}"})
            return False
        self._tell({"did": "start", "worker": name, "text": f"{name} is asked for"})
        return True

    def _arguments(self, name: str) -> list[str]:
        pool = self._pool
        return [
            *("worker", "--id", name, "--drain", "--cores", str(pool.cores), "--memory", f"{pool.memory}M"),
            *[word for kind, number in pool.resources.items() for word in ("--resource", f"{kind}={number}")],
            *[word for pair in {"pool": pool.name, **pool.labels}.items() for word in ("--label", "=".join(pair))],
            *pool.options,
        ]

    def _invited(self, name: str) -> str:
        """A new invitation of the worker; those before it are good for nothing. "" where there are no accounts."""
        if not self._has_accounts():
            return ""
        account, made, pool = f"worker/{name}", new_token(), self._pool
        terms = {"cores": pool.cores, "memory_mb": pool.memory, "resources": pool.resources}
        self._carry_out(
            RemoveAccount(account=account),
            AddAccount(account=account, **terms),  # type: ignore[arg-type]
            IssueToken(token=made.id, account=account, hash=made.hash, once=True),
        )
        return made.text

    def _stop(self, name: str, *, given_up: bool) -> bool:
        why = f"{name} has not joined within {self._pool.start_within} s and is given up" if given_up else ""
        try:
            self._provider.stop(name)
            self._leave(name, why or f"{name} is let go")
        except (ProviderFailed, NoMaster, CommandRejected, OSError) as error:
            self._tell({"did": "failed", "worker": name, "text": f"{name} is not stopped: {error}"})
            return False
        return True

    def _leave(self, name: str, text: str) -> None:
        """Remove the worker and its account from the log, if they are there."""
        account = [RemoveAccount(account=f"worker/{name}")] if self._has_accounts() else []
        self._carry_out(RemoveWorker(worker=name), *account)
        self._tell({"did": "stop", "worker": name, "text": text})

    def _has_accounts(self) -> bool:
        """Whether the cluster has accounts; once it had any, it stays closed (semantics I2)."""
        self._closed = self._closed or self._client.read("/v1/whoami")["accounts"]
        return self._closed

    def _send(self, name: str, did: str, text: str, command: Command) -> None:
        self._carry_out(command)
        self._tell({"did": did, "worker": name, "text": text})

    def _carry_out(self, *commands: Command) -> None:
        """Raises: the first refusal that does not say that what is to go is gone."""
        for outcome in self._client.send_many(commands):
            if isinstance(outcome, CommandRejected) and not isinstance(outcome, UnknownWorker | UnknownAccount):
                raise outcome

    def _summary(self, found: PoolPlan) -> None:
        """Tell how the pool stands, if that has changed."""
        pool = self._pool
        text = (
            f"{found.serve} of at most {counted(pool.most, 'worker')} serve, {found.empty} of them with nothing to do"
        )
        text += f"; {found.coming} come; what waits would fill {found.wanted}"
        told = figures(pool, found)
        if told["costPerHour"] is not None:
            text += f"; {told['costPerHour']:.2f}{f' {pool.currency}' if pool.currency else ''} an hour"
        if found.unfit.cores:
            text += f"; no worker of the pool holds an executor of {found.unfit}"
        if text != self._said:
            self._said = text
            self._line(text, did="look", **told)

    def _line(self, text: str, *, did: str, **more: object) -> None:
        self._tell({"did": did, "worker": None, "text": text, **more})


def figures(pool: Pool, found: PoolPlan) -> dict[str, Any]:
    """The figures of a plan, as JSON values."""
    rate = None if pool.price is None else (found.serve + found.coming) * pool.price
    return {
        "serve": found.serve,
        "empty": found.empty,
        "coming": found.coming,
        "wanted": found.wanted,
        "most": pool.most,
        "costPerHour": rate,
        "currency": pool.currency or None,
    }


def hours(
    pool: Pool, events: Sequence[Mapping[str, Any]], live: Collection[str], begin: int, end: int
) -> dict[str, float]:
    """How long each worker of the pool was in the log between two times (ms), in hours.

    `events` are those between them by which workers came and went, in order; `live` the workers that are there at the
    end. One whose beginning is not among the events was there from the begin on.
    """
    since: dict[str, int] = {}
    ran_ms: dict[str, int] = {}
    known: set[str] = set()
    for event in events:
        name, at = event["data"]["worker"], event["at"]
        if pool.number(name) is None:
            continue
        if event["type"] == "WorkerRegistered":
            since.setdefault(name, at)
        elif name in since or name not in known:
            ran_ms[name] = ran_ms.get(name, 0) + at - since.pop(name, begin)
        known.add(name)
    for name in {*live, *since}:
        if pool.number(name) is not None and (name in since or name not in known):
            ran_ms[name] = ran_ms.get(name, 0) + end - since.get(name, begin)
    return {name: ran_ms[name] / _HOUR_MS for name in sorted(ran_ms)}


def cost(pool: Pool, client: ApiClient, begin: int) -> dict[str, Any]:
    """An estimate of what the pool's workers cost since `begin` (ms), by the log. Raises: as the client."""
    found: list[dict[str, Any]] = []
    before: int | None = None
    while True:
        query = {} if before is None else {"before": str(before)}
        said = client.read("/v1/entries", kind="WorkerRegistered,WorkerRemoved", limit="100", **query)
        entries = [each for each in said["entries"] if each["at"] >= begin]
        found += entries
        before = said["before"]
        if before is None or len(entries) < len(said["entries"]):
            break
    live = [each["worker"] for each in client.view("workers")]
    now = client.view("cluster")["at"]
    ran = hours(pool, found[::-1], live, begin, max(now, begin))
    total = sum(ran.values())
    return {
        "since": begin,
        "until": max(now, begin),
        "workers": len(ran),
        "hours": round(total, 4),
        "cost": None if pool.price is None else round(total * pool.price, 4),
        "currency": pool.currency or None,
    }
