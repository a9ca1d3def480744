"""Visits: commands that people run in the cell of a running executor, beside its tasks.

A visit is a record in the store, with a list of chunks each way. Either end sends its chunks with the number of the
first one, and says how many of the other's it has, so a call can be repeated. A visit is over once its visitor has not
called for `GONE_S`.

Visits hold little of the store's memory: a company has at most `MOST_VISITS`, and of each at most `MOST_CHUNKS` chunks
wait each way. Whoever sends more although it was told `full` loses them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from scheduler.model.errors import InvalidCommand, TooManyVisits
from scheduler.store.scripts import script

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis

    from scheduler.store.keys import Keys

GONE_S = 60
ATTENDED_S = 45
"""An executor that has not called for so long does not attend any more."""
CHUNK_BYTES = 32_768
NOT_YET = "it has started no task yet; try again"
"""Why a visit has not begun that comes before what its executor is to run."""
MOST_CHUNKS = 64
"""The most chunks in a call and in an answer, and those that wait one way."""
MANY_CHUNKS = MOST_CHUNKS // 4
"""How many chunks one way wait before the sender is told to wait."""
REPORT_BYTES = 180_000
"""The most bytes of chunks in a report: an API server takes a request of 256 KiB, where they are in base64."""
MOST_VISITS = 32
MOST_WORDS = 1000
"""The most words of a command."""
_COUNT = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_SIZE = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
_CHUNK = Annotated[bytes, msgspec.Meta(max_length=CHUNK_BYTES + 1)]
_WORD = Annotated[str, msgspec.Meta(max_length=65_536)]


class Visit(msgspec.Struct, frozen=True):
    """What is to run in the executor's cell; with `rows`, in a terminal of that size."""

    visit: str
    command: tuple[str, ...]
    term: str = ""
    rows: int = 0
    columns: int = 0


class Awaited(msgspec.Struct, frozen=True, array_like=True):
    """A visit that the executor on the worker is to begin."""

    visit: str
    worker: str
    executor: str


_awaited = msgspec.json.Decoder(Awaited).decode


def read_awaited(stored: Iterable[bytes]) -> list[Awaited]:
    """The visits as the store has them."""
    return [_awaited(each) for each in stored]


class VisitCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command for the cell of an app's executor, by its id; "" = the first one, or the driver.

    With `rows`, it runs in a terminal of that size and of the type `term`.
    """

    command: Annotated[tuple[_WORD, ...], msgspec.Meta(min_length=1, max_length=MOST_WORDS)]
    executor: Annotated[str, msgspec.Meta(max_length=200)] = ""
    term: Annotated[str, msgspec.Meta(max_length=64)] = ""
    rows: _SIZE = 0
    columns: _SIZE = 0
    reason: Annotated[str, msgspec.Meta(max_length=200)] = ""


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a visitor says: chunks of input from number `first`, and that it has `after` chunks of the output.

    `ended`: no more input comes; `leaves`: the command is to be killed.
    """

    first: _COUNT = 0
    chunks: Annotated[tuple[_CHUNK, ...], msgspec.Meta(max_length=MOST_CHUNKS)] = ()
    after: _COUNT = 0
    ended: bool = False
    leaves: bool = False
    rows: _SIZE = 0
    columns: _SIZE = 0


class Reply(msgspec.Struct, frozen=True):
    """What a visitor is told: chunks of output, each after "1" or "2" for stdout or stderr.

    `exit_code` comes with the last ones; `error` says why the command did not run. `full`: take back no input yet.
    """

    chunks: list[bytes]
    exit_code: int | None = None
    error: str = ""
    full: bool = False


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an executor says: chunks of output from number `first`, and that it has `after` chunks of the input."""

    visit: Annotated[str, msgspec.Meta(max_length=64)]
    first: _COUNT = 0
    chunks: Annotated[tuple[_CHUNK, ...], msgspec.Meta(max_length=MOST_CHUNKS)] = ()
    after: _COUNT = 0
    exit_code: int | None = None
    error: Annotated[str, msgspec.Meta(max_length=2000)] = ""


class Orders(msgspec.Struct, frozen=True):
    """What an executor is told: chunks of input; whether more may come, and whether anybody is `there`."""

    there: bool
    chunks: list[bytes] = []
    ended: bool = False
    rows: int = 0
    columns: int = 0
    full: bool = False


_EXCHANGE = script(__file__, "exchange")


class Visits:
    """The visits of a cluster; may be used by several threads."""

    def __init__(self, store: Redis, keys: Keys) -> None:
        self._store, self._keys = store, keys
        self._exchange = store.register_script(_EXCHANGE)

    def begin(self, wanted: VisitCommand, worker: str, executor: str, account: str) -> str:
        """Ask the executor to run the command for the account. Returns the visit's id.

        Raises: TooManyVisits if accounts of its company have `MOST_VISITS` already.
        """
        owner = account.partition("/")[0]
        visitors = self._keys.visitors(owner)
        known: Any = list(self._store.smembers(visitors))
        there = self._store.pipeline()
        for each in known:
            there.exists(self._keys.visit(each.decode()))
        over = [each for each, lasts in zip(known, there.execute(), strict=True) if not lasts]
        if len(known) - len(over) >= MOST_VISITS:
            raise TooManyVisits(f"{owner} runs {MOST_VISITS} commands by `fairlog exec` already; end one of them first")
        visit = os.urandom(16).hex()
        about: dict[Any, Any] = {"executor": executor, "account": account, "wanted": msgspec.json.encode(wanted)}
        record, asked = self._keys.visit(visit), self._keys.visited
        now_s = self._store.time()[0]
        ignored: Any = self._store.zrangebyscore(asked, 0, now_s - GONE_S)
        pipeline = self._store.pipeline()
        if ignored:
            pipeline.zrem(asked, *ignored)
        if over:
            pipeline.srem(visitors, *over)
        pipeline.sadd(visitors, visit)
        pipeline.expire(visitors, GONE_S)
        pipeline.hset(record, mapping=about)
        pipeline.expire(record, GONE_S)
        pipeline.zadd(asked, {msgspec.json.encode(Awaited(visit, worker, executor)): now_s})
        pipeline.expire(asked, GONE_S)
        pipeline.set(f"{record}:attended", "", ex=ATTENDED_S)
        pipeline.execute()
        return visit

    def call(self, visit: str, account: str, call: Call) -> Reply:
        """Carry out a visitor's call. Raises: InvalidCommand if the visit is over or another account's."""
        record = self._keys.visit(visit)
        lists = [f"{record}:in", f"{record}:out"]
        said: list[Any] = ["account", account, "sent_in", "taken_out", call.first, call.after, MOST_CHUNKS]
        found: Any = self._exchange([record, *lists], [*said, *call.chunks])
        if found is None:
            raise InvalidCommand("the command runs no more, or is not yours; `fairlog exec` runs another one")
        chunks, waiting, (ended, error, *_) = found
        if call.leaves:
            self._store.delete(record, *lists)
            return Reply([])
        pipeline = self._store.pipeline()
        pipeline.exists(f"{record}:attended")
        pipeline.hset(record, mapping={"ended": int(call.ended), "rows": call.rows, "columns": call.columns})
        for key in (record, *lists, self._keys.visitors(account.partition("/")[0])):
            pipeline.expire(key, GONE_S)
        attended = pipeline.execute()[0]
        if ended is None and not error and not attended:
            error = b"the executor does not answer; it may have ended"
        last = len(chunks) <= MOST_CHUNKS
        return Reply(
            chunks[:MOST_CHUNKS],
            int(ended) if ended is not None and last else None,
            (error or b"").decode() if last else "",
            waiting >= MANY_CHUNKS,
        )

    def take(self, worker: str, executor: str) -> list[Visit]:
        """What the executor is asked to run, which it is told once."""
        found = []
        asked: Any = self._store.zrange(self._keys.visited, 0, -1)
        for member, awaited in zip(asked, read_awaited(asked), strict=True):
            if (awaited.worker, awaited.executor) == (worker, executor) and self._store.zrem(
                self._keys.visited, member
            ):
                text: Any = self._store.hget(self._keys.visit(awaited.visit), "wanted")
                if text is not None:
                    wanted = msgspec.json.decode(text, type=VisitCommand)
                    size = wanted.term, wanted.rows, wanted.columns
                    found.append(Visit(awaited.visit, wanted.command, *size))
        return found

    def awaited(self) -> set[str]:
        """The workers whose executors are asked to run something and have not heard of it."""
        asked: Any = self._store.zrange(self._keys.visited, 0, -1)
        return {awaited.worker for awaited in read_awaited(asked)}

    def attend(self, executor: str, report: Report) -> Orders:
        """Carry out an executor's call."""
        record = self._keys.visit(report.visit)
        lists = [f"{record}:out", f"{record}:in"]
        said: list[Any] = ["executor", executor, "sent_out", "taken_in", report.first, report.after, MOST_CHUNKS]
        found: Any = self._exchange([record, *lists], [*said, *report.chunks])
        if found is None:
            return Orders(there=False)
        chunks, waiting, (*_, ended, rows, columns) = found
        pipeline = self._store.pipeline()
        pipeline.set(f"{record}:attended", "", ex=ATTENDED_S)
        pipeline.expire(lists[0], GONE_S)
        if report.exit_code is not None:
            pipeline.hset(record, "exit", report.exit_code)
        if report.error:
            pipeline.hset(record, "error", report.error)
        pipeline.execute()
        last = len(chunks) <= MOST_CHUNKS
        return Orders(
            there=True,
            chunks=chunks[:MOST_CHUNKS],
            ended=last and bool(int(ended or 0)),
            rows=int(rows or 0),
            columns=int(columns or 0),
            full=waiting >= MANY_CHUNKS,
        )
