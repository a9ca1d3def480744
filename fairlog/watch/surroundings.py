"""What surrounds the state of a cluster, read from its store: masters, memory, disk, the auditor, the last backup."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import msgspec
from redis.exceptions import ResponseError

from fairlog.watch.conditions import (
    BOUNDS,
    UNSERVED_MS,
    UNSERVED_SHOWN_MS,
    Around,
    AuditedTo,
    Failover,
    Found,
    StoreFacts,
    Thresholds,
    Unserved,
)
from recovery.failover.lease import last_sign, members
from scheduler.service.heartbeats import behind_api
from scheduler.service.known import End, noted
from scheduler.service.served import Served, served
from scheduler.store.connection import clock_ms
from scheduler.store.durability import watched
from scheduler.store.eventlog import EventLog
from scheduler.store.full_disks import cuts
from scheduler.store.keys import as_text
from scheduler.store.unused import unused
from witness.fairness import Fairness, shortfall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from redis import Redis

    from recovery.failover.lease import Member
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.store.keys import Keys

STANDBYS_VARIABLE = "FAIRLOG_STANDBYS"
"""Environment variable: how many standbys there should be; 0 where one master is all there is by design."""
T = TypeVar("T", bound=tuple[Any, ...])


class BackedUp(NamedTuple):
    """The last backup: up to which position, when it was made (ms), and where it lies."""

    seq: int
    at: int
    url: str = ""


def standbys_wanted() -> int:
    """How many standbys there should be, by the environment."""
    text = os.environ.get(STANDBYS_VARIABLE, "")
    return int(text) if text.isdecimal() else 1


def read_store(store: Redis, keys: Keys) -> StoreFacts:
    """The store's memory and disk, as far as it says. Raises: redis-py's errors if it does not answer."""
    memory, persistence = _info(store, "memory"), _info(store, "persistence")
    failed = [name for name in ("aof_last_write_status", "aof_last_bgrewrite_status") if persistence.get(name) == "err"]
    taken, disk = 0, StoreFacts()
    with suppress(ResponseError):
        taken = store.memory_usage(keys.log) or 0
    with suppress(ResponseError):
        disk = disk_of(Path(str(store.config_get("dir")["dir"]))) if is_here(store) else disk
    return disk._replace(
        memory_used=int(memory.get("used_memory") or 0),
        memory_limit=int(memory.get("maxmemory") or memory.get("total_system_memory") or 0),
        log_bytes=taken,
        file_bytes=int(persistence.get("aof_current_size") or 0),
        weakness=watched(store),
        write_error=f"it reports {failed[0]}:err; see its log" if failed else "",
    )


def disk_of(folder: Path) -> StoreFacts:
    """The disk that the store's folder is on, if this user can see it."""
    with suppress(OSError):
        whole = shutil.disk_usage(folder)
        return StoreFacts(disk_used=whole.total - whole.free, disk_size=whole.total)
    return StoreFacts()


def _info(store: Redis, section: str) -> Mapping[str, Any]:
    """What the store says of itself; nothing if it refuses."""
    with suppress(ResponseError):
        return store.info(section)
    return {}


def is_here(store: Redis) -> bool:
    """Whether the store runs on this machine, as far as its address says."""
    about = store.connection_pool.connection_kwargs
    return "path" in about or about.get("host") in {"localhost", "127.0.0.1", "::1"}


def audited_to(store: Redis, keys: Keys) -> AuditedTo | None:
    """What the auditor wrote last; None if none ever did. Raises: redis-py's errors."""
    return _read(store.get(keys.audited), AuditedTo)


def backed_up(store: Redis, keys: Keys) -> BackedUp | None:
    """The last backup; None if none was made. Raises: redis-py's errors."""
    return _read(store.get(keys.backed_up), BackedUp)


def note_backup(store: Redis, keys: Keys, made: BackedUp) -> None:
    """Take note of a backup. Raises: redis-py's errors."""
    store.set(keys.backed_up, msgspec.json.encode(made._asdict()))


def _read(text: Any, form: type[T]) -> T | None:  # noqa: ANN401 (redis-py's answer)
    """The record; None if there is none, or something else than one of ours wrote the text."""
    with suppress(msgspec.DecodeError, TypeError):
        return None if text is None else msgspec.convert([*form(**msgspec.json.decode(text))], form)
    return None


class RepeatedLooks:
    """What only repeated looks tell: since when a company is short, and that a master took over.

    `since` and `master` can be kept between processes.
    """

    def __init__(self, since: Mapping[str, int] | None = None, master: str = "") -> None:
        self.since: dict[str, int] = dict(since or {})
        self.master = master
        self.failover: Failover | None = None

    def look(self, master: str | None, short: Mapping[str, float], now: int) -> None:
        """Take note of the master that the log says was elected last, and of the companies that are short."""
        self.since = {company: self.since.get(company, now) for company in short}
        if master and self.master and master != self.master:
            self.failover = Failover(master, self.master, now)
        self.master = master or self.master


def short_of(state: ClusterState) -> dict[str, float]:
    """The companies that are short of at least the smallest executor, and of how many cores."""
    least = state.settings.min_executor_cores
    short = shortfall(Fairness().of_now(state))
    return {company: cores for company, cores in short.items() if cores >= least}


def look_around(
    store: Redis,
    keys: Keys,
    *,
    serving: Member | None = None,
    known: tuple[Member | None, Sequence[Member]] | None = None,
    watched: RepeatedLooks | None = None,
    standbys: int | None = None,
    others: Mapping[str, int] | None = None,
    bounds: Thresholds = BOUNDS,
) -> Around:
    """The surroundings now; `known` are the masters if they were asked for. Raises: redis-py's errors."""
    holder, standing_by = members(store, keys) if known is None else known
    facts = read_store(store, keys)
    log_at, unreplicated, sign = _log_at(store, keys), _unreplicated(store, keys), served(store, keys)
    now = clock_ms(cast("Any", store.time()))
    return Around(
        now=now,
        serving=serving or holder,
        standing_by=standing_by,
        standbys=standbys_wanted() if standbys is None else standbys,
        store=facts,
        audited=audited_to(store, keys),
        short_since={} if watched is None else watched.since,
        failover=None if watched is None else watched.failover,
        others=others or {},
        bounds=bounds,
        cuts=cuts(store, keys),
        unused=unused(store, keys, now),
        log_at=log_at,
        unreplicated=unreplicated,
        unserved=_unserved(store, keys, sign, now),
        shorter=_shorter(store, keys),
        damaged=_damaged(store, keys),
        last_sign=0 if holder is None else last_sign(store, keys, holder.id),
    )


def since_when(store: Redis, keys: Keys, holding: Sequence[Found], around: Around) -> list[Found]:
    """The conditions, each with since when it holds: what its look does not tell is as it was first seen by anybody.

    Whoever may write notes what is new by the look `around`, and forgets what has ended. Who expects no standby says
    nothing of them. Raises: redis-py's errors.
    """
    known = {as_text(key): int(at) for key, at in cast("dict[bytes, bytes]", store.hgetall(keys.noticed)).items()}
    seen = {each.key: known.get(each.key, around.now) for each in holding if not each.since}
    new, gone = {key: at for key, at in seen.items() if key not in known}, known.keys() - seen.keys()
    if not around.standbys:
        gone -= {"no_standby"}
    with suppress(ResponseError):  # it is full, or read-only for this user
        if gone:
            store.hdel(keys.noticed, *gone)
        for key, at in new.items():
            store.hsetnx(keys.noticed, key, str(at))
    return [each._replace(since=each.since or seen[each.key]) for each in holding]


def _unserved(store: Redis, keys: Keys, sign: Served | None, now: int) -> Unserved | None:
    """The time since no API server answers, if one is missed: its end was not wished, or workers need it."""
    if sign is None or now - sign.at <= UNSERVED_MS:
        return None
    behind = behind_api(store, keys)
    missed = behind or not (sign.stopped or now - sign.at > UNSERVED_SHOWN_MS)
    return Unserved(sign.at, behind) if missed else None


def _shorter(store: Redis, keys: Keys) -> tuple[int, End] | None:
    """Where the log ends, and an end that was known and that it does not hold; None if nobody says so."""
    with suppress(ResponseError):
        if (end := noted(store, keys)) is not None:
            return EventLog(store, keys).head().seq, end
    return None


def _damaged(store: Redis, keys: Keys) -> int:
    """The position at which masters found that the log was altered or lacks an entry; 0 if they have not."""
    found: Any = None
    with suppress(ResponseError):
        found = store.get(keys.damaged)
    return int(found) if isinstance(found, bytes) and found.isdigit() else 0


def _log_at(store: Redis, keys: Keys) -> int | None:
    """The time (ms) of the log's last entry; None if it has none that says one."""
    entries: Any = store.xrevrange(keys.log, count=1)
    text = entries[0][1].get(b"at", b"") if entries else b""
    return int(text) if text.isdigit() else None


def _unreplicated(store: Redis, keys: Keys) -> tuple[int, int] | None:
    """How many replicas have what masters wait for, and how many must; None if nobody waits, or may not be asked."""
    with suppress(ResponseError, ValueError):
        found: Any = store.get(keys.unreplicated)
        reached, due = (found or b"").split()
        return int(reached), int(due)
    return None
