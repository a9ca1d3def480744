"""Health of the cluster, and health checks of this host for service managers and containers."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import RedisError

from fairlog import credentials
from fairlog.api.addresses import UNIX
from fairlog.cli.failures import NoStore
from fairlog.cli.session import Session, SessionByApi, locate, opened
from fairlog.local.running import KNOWN, others_than
from fairlog.watch.conditions import Around
from fairlog.watch.surroundings import disk_of, look_around, standbys_wanted
from scheduler.model.errors import NotAllowed, NotAuthenticated, UnsuitableStore
from scheduler.service.known import known_at, known_folder
from scheduler.service.signs import living
from scheduler.store.acl import AUDITOR
from scheduler.store.connection import clock_ms, user_of

if TYPE_CHECKING:
    from fairlog.api.client import ApiClient
    from fairlog.cli.target import Target
    from fairlog.local.running import RunningUp

BEATEN_MS = 10_000
"""Age of a heartbeat above which an agent counts as hung; agents send one a second."""
_TROUBLE = ("no space", "error", "can't", "cannot", "failed", "fatal", "out of memory", "bad file")
_LAST_LINES = 40


class Health(NamedTuple):
    """Whether the check passes, and the reason in one sentence."""

    ok: bool
    why: str


def live(target: Target) -> Health:
    """Whether a master, active or standby, or a worker gives signs of life on this host.

    The store is asked only if none is seen: this user may not see those of another one.
    """
    host, known = socket.gethostname(), credentials.named(target.data) if target.store is None else None
    if known is not None and (found := living(known.api, "")):
        return Health(ok=True, why=f"{host} has {', '.join(found)}")
    try:
        url, cluster, up = locate(target)
    except NoStore:
        if known is None:
            raise
        return Health(ok=False, why=_no_worker_behind(known.api, host))
    signs = [*living(url, cluster), *(living(f"{UNIX}{up.socket}", "") if up is not None else ())]
    if found := [name for name in signs if name.startswith(("master", "worker"))]:
        return Health(ok=True, why=f"{host} has {', '.join(found)}")
    try:
        with closing(opened(target)) as session:
            found = [*_masters_of(session, host), *_workers_of(session, host)]
    except (UnsuitableStore, RedisError) as error:
        return Health(ok=False, why=f"{_nothing(cluster, host)}; {error}")
    return Health(bool(found), f"{host} has {', '.join(found)}" if found else _nothing(cluster, host))


def ready(session: Session) -> Health:
    """Whether a master is active, and this host runs a master or a worker that accepts grants."""
    host = socket.gethostname()
    if isinstance(session, SessionByApi):
        return _ready_behind(session.api, session.urls, host)
    if not session.road.is_served():
        return Health(ok=False, why=f"no master of the cluster {session.cluster} is active")
    alive = {f"worker {worker['worker']}" for worker in session.ask("workers") if worker["status"] == "alive"}
    found = [*_masters_of(session, host), *(name for name in _workers_of(session, host) if name in alive)]
    return Health(
        bool(found), f"a master is active, {host} has {', '.join(found)}" if found else _nothing(session.cluster, host)
    )


def _ready_behind(api: ApiClient, url: str, host: str) -> Health:
    """As `ready`, on a host that knows API servers only; without a token that may see the cluster, as far as it can."""
    here = [name for name in living(url, "") if name.startswith("worker")]
    if not here:
        return Health(ok=False, why=_no_worker_behind(url, host))
    try:
        said = api.read("/v1/status", fresh="true")
    except (NotAuthenticated, NotAllowed):
        api.check()
        return Health(ok=True, why=f"{url} answers, {host} has {', '.join(here)}")
    if said["master"] is None:
        return Health(ok=False, why=f"no master of the cluster {said['cluster']} is active")
    alive = {f"worker {worker['worker']}" for worker in said["workers"] if worker["status"] == "alive"}
    if not (found := [name for name in here if name in alive]):
        return Health(ok=False, why=_nothing(said["cluster"], host))
    return Health(ok=True, why=f"a master is active, {host} has {', '.join(found)}")


def around_of(session: Session) -> Around:
    """The surroundings of the cluster's state, as this machine sees them. Raises: redis-py's errors."""
    up, road = session.up, session.road
    standbys = standbys_wanted() if up is None else min(1, up.masters - 1)
    serving, standing_by = road.masters()
    if not _only_reads(session) and not road.is_served():
        serving = None
    known = serving, standing_by
    others = others_than(up, session.target.data)
    return look_around(road.store, road.keys, known=known, standbys=standbys, others=others)


def _only_reads(session: Session) -> bool:
    """Whether it is the store's user for audits, who cannot ask a master and believes the lease."""
    return user_of(session.road.store) == AUDITOR


def around_without_store(error: str, up: RunningUp | None, named: Path | None) -> Around:
    """The surroundings while the store does not answer; of an `up`, its disk and its last complaint.

    `named` is its data folder if somebody named it.
    """
    if up is None:
        folder = known_folder()
        return Around(now=0, serving=None, error=error, known_at=0 if folder is None else known_at(folder))
    words, disk = _last_words(Path(up.data) / "store" / "store.log"), disk_of(Path(up.data))
    said = f"; its log says: {words}" if words else ""
    if disk.disk_is_full and "no space" not in words.lower():
        said += "; No space left on its disk"
    known = known_at(Path(up.data) / KNOWN)
    others = others_than(up, named)
    return Around(now=0, serving=None, error=f"{error}{said}", store=disk, others=others, known_at=known)


def _last_words(log: Path) -> str:
    """The last line of the store's log in which it complains; "" if there is none."""
    try:
        lines = log.read_bytes()[-16_384:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    told = (line.partition(" # ")[2] or line for line in reversed(lines[-_LAST_LINES:]))
    return next((line.strip() for line in told if any(word in line.lower() for word in _TROUBLE)), "")


def _nothing(cluster: str, host: str) -> str:
    return f"no master of the cluster {cluster} runs on {host}, and no worker of it is in service"


def _no_worker_behind(url: str, host: str) -> str:
    return f"no worker of the cluster behind {url} gives signs of life on {host}"


def _masters_of(session: Session, host: str) -> list[str]:
    serving, standbys = session.road.masters()
    here = [member for member in (serving, *standbys) if member is not None and member.host == host]
    return [f"master {member.id}" for member in here]


def _workers_of(session: Session, host: str) -> list[str]:
    """The registered workers of this host with a recent heartbeat."""
    road = session.road
    since = clock_ms(road.store.time()) - BEATEN_MS
    beating: Any = road.store.zrangebyscore(road.keys.heartbeats, since, "+inf")
    agents = road.agents()
    return [f"worker {name}" for name in sorted(map(bytes.decode, beating)) if agents.get(name, {}).get("host") == host]
