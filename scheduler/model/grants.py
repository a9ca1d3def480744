"""What a worker should run, as the commit writes it down for the agent to converge on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict


class Leaving(BaseModel):
    """The executor was told to leave for a claim: it begins no task and ends when those it runs have (semantics E5).

    `deadline` is in ms since the epoch. With `firm`, the tasks that run then get SIGTERM, and SIGKILL `grace_s` later.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    deadline: int
    firm: bool = False
    grace_s: int = 0


class Grant(BaseModel):
    """One executor or driver that a worker is to run, with all it needs to know of the app.

    A driver's id stands in `executor`, and `command` is its program. An executor that `stays` ends
    with its app only; only where the app has no driver does the result of its tasks end the app. In an
    `elastic` app it says how much work there is (semantics L6). It is not started before the master has said that
    all is settled up to log position `settled_at`: where commits are to reach replicas, one is seen before it has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    executor: str
    app: str
    company: str
    user: str
    name: str
    cores: int
    memory_mb: int
    tasks: int
    command: tuple[str, ...]
    env: tuple[str, ...] = ()
    cwd: str | None = None
    retries: int = 0
    time_limit_s: int | None = None
    role: Literal["executor", "driver"] = "executor"
    stays: bool = False
    has_driver: bool = False
    elastic: bool = False
    settled_at: int = 0
    leaving: Leaving | None = None


STOP = ""
"""In the place of a grant: the executor must not run any more, and its worker still owes the word that it is gone.

Without it, an executor that was revoked before its worker had seen the grant would hold its cores for ever."""


class Difference(NamedTuple):
    """What brings a worker from what it runs to what it should run; both in the order of executor ids."""

    start: list[Grant]
    stop: list[str]


def diff(granted: Mapping[str, Grant], running: Collection[str]) -> Difference:
    """What to start and what to stop so that `granted`, and nothing else, runs."""
    start = [granted[executor] for executor in sorted(granted) if executor not in running]
    stop = [executor for executor in sorted(running) if executor not in granted]
    return Difference(start, stop)


class GrantChanges(NamedTuple):
    """What a turn changes of the workers' grants: a grant's text, `STOP`, or None = the worker owes nothing any more.

    `left` and then `joined` are the workers whose heartbeat the commit stops and starts to expect.
    """

    by_worker: dict[str, dict[str, str | None]]
    joined: list[str]
    left: list[str]

    def put(self, worker: str, executor: str, grant: str | None) -> None:
        """What stands there for the executor or driver from now on."""
        self.by_worker.setdefault(worker, {})[executor] = grant

    def leave(self, worker: str) -> None:
        """The worker is out, whatever was to change there."""
        self.by_worker.pop(worker, None)
        if worker in self.joined:
            self.joined.remove(worker)
        self.left.append(worker)
