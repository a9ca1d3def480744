"""Health checks of this host, for service managers and containers."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fairlog.cli.session import Session

BEATEN_MS = 10_000
"""Age of a heartbeat above which an agent counts as hung; agents send one a second."""


class Health(NamedTuple):
    """Whether the check passes, and the reason in one sentence."""

    ok: bool
    why: str


def live(session: Session) -> Health:
    """Whether a master, active or standby, or a worker with a recent heartbeat runs on this host."""
    host = socket.gethostname()
    found = [*_masters_of(session, host), *_workers_of(session, host)]
    return Health(bool(found), f"{host} has {', '.join(found)}" if found else _nothing(session, host))


def ready(session: Session) -> Health:
    """Whether a master is active, and this host runs a master or a worker that accepts grants."""
    host = socket.gethostname()
    if not session.is_served():
        return Health(ok=False, why=f"no master of the cluster {session.cluster} is active")
    alive = {f"worker {worker['worker']}" for worker in session.ask("workers") if worker["status"] == "alive"}
    found = [*_masters_of(session, host), *(name for name in _workers_of(session, host) if name in alive)]
    return Health(
        bool(found), f"a master is active, {host} has {', '.join(found)}" if found else _nothing(session, host)
    )


def _nothing(session: Session, host: str) -> str:
    return f"no master of the cluster {session.cluster} runs on {host}, and no worker of it is in service"


def _masters_of(session: Session, host: str) -> list[str]:
    serving, standbys = session.masters()
    here = [member for member in (serving, *standbys) if member is not None and member.host == host]
    return [f"master {member.id}" for member in here]


def _workers_of(session: Session, host: str) -> list[str]:
    """The registered workers of this host with a recent heartbeat."""
    seconds, micros = session.store.time()
    since = seconds * 1000 + micros // 1000 - BEATEN_MS
    beating: Any = session.store.zrangebyscore(session.keys.heartbeats, since, "+inf")
    agents = session.agents()
    return [f"worker {name}" for name in sorted(map(bytes.decode, beating)) if agents.get(name, {}).get("host") == host]
