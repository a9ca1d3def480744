"""Tokens of grants: with one, an executor or driver may do what its own grant is for, and nothing else.

A token is made and checked without the store: `fg_CLAIMS.KEY.MAC`, where CLAIMS is base64 of what it claims as JSON,
KEY the id of a door key and MAC the hex HMAC-SHA256 by that key. It counts only while the store has its grant; whoever
is asked for something checks that as well.

Agents of an `up` show a *pass* instead of a token of an account: `fw_WORKER.KEY.MAC`, made and checked alike, for
one worker. Whoever has the keys can make one.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec

from scheduler.model.errors import NotAuthenticated
from scheduler.store.framing import framed

if TYPE_CHECKING:
    from scheduler.model.grants import Grant
    from scheduler.service.keyring import Keyring

PREFIX = "fg_"
PASS = "fw_"  # noqa: S105 (how each begins)
_PURPOSE, _OF_PASS = "fairlog grant", "fairlog worker"
"""No message of the inbox begins with these, since no cluster has that name."""


class GrantClaims(msgspec.Struct, frozen=True, array_like=True):
    """What a grant's token claims: where the executor or driver runs, since when it is granted (ms), and for what."""

    cluster: str
    worker: str
    executor: str
    app: str
    granted_at: int
    tasks: int
    retries: int = 0
    backoff_s: int = 0
    runs: Literal["tasks", "driver", "program"] = "tasks"
    slots: int = 1
    """How many tasks it runs at once."""
    fetched_by: str = ""
    """The id of the worker's token that its agent showed, "" = none: it is good only as long as that one."""
    company: str = ""
    """The company of the app, "" in tokens of before there was this field."""

    @property
    def rq_name(self) -> str:
        """The name under which RQ's tools show the executor."""
        return f"{self.executor}.{self.granted_at}"


def claims_of(grant: Grant, cluster: str, worker: str) -> GrantClaims:
    """What the grant's token claims."""
    runs: Literal["tasks", "driver", "program"]
    runs = "driver" if grant.role == "driver" else "program" if grant.program else "tasks"
    about = grant.tasks, grant.retries, grant.retry_backoff_s, runs, grant.tasks_at_once
    return GrantClaims(cluster, worker, grant.executor, grant.app, grant.granted_at, *about, company=grant.company)


def grant_token(ring: Keyring, claims: GrantClaims) -> str:
    """The token, signed by the door key of the ring."""
    said = msgspec.json.encode(claims)
    return signed_text(PREFIX, said, ring.door, ring.mac(ring.door, framed(_PURPOSE, said)))


def signed_text(prefix: str, said: bytes, key: str, mac: str) -> str:
    """What was said, the key that signs it and the MAC, as a token: `PREFIX SAID.KEY.MAC`."""
    return f"{prefix}{urlsafe_b64encode(said).decode().rstrip('=')}.{key}.{mac}"


def parts_of(prefix: str, text: str) -> tuple[bytes, str, str]:
    """What was said, the key and the MAC of a `signed_text`. Raises: ValueError, of another spelling of one as well."""
    begin, _, rest = text.removeprefix(prefix).partition(".")
    key, _, mac = rest.partition(".")
    said = urlsafe_b64decode(begin + "=" * (-len(begin) % 4))
    if signed_text(prefix, said, key, mac) != text:
        raise ValueError(text)
    return said, key, mac


def worker_pass(ring: Keyring, cluster: str, worker: str, key: str = "") -> str:
    """The pass of a worker's agent, signed by a door key of the ring, without `key` by the one that signs."""
    text, key = urlsafe_b64encode(worker.encode()).decode().rstrip("="), key or ring.door
    return f"{PASS}{text}.{key}.{ring.mac(key, framed(_OF_PASS, cluster, worker))}"


class GrantTokens:
    """Checks the tokens of a cluster's grants; a token that was checked before is looked up."""

    def __init__(self, cluster: str, ring: Keyring | None) -> None:
        self._cluster = cluster
        self._ring = ring
        self.read = lru_cache(maxsize=16_384)(self._read)

    def check_pass(self, text: str, worker: str) -> None:
        """Raises: NotAuthenticated unless the text is the pass of that worker."""
        ring, key = self._ring, text.rpartition(".")[0].rpartition(".")[2]
        due = worker_pass(ring, self._cluster, worker, key) if ring is not None and ring.may_sign(key, "") else ""
        if not due or not hmac.compare_digest(due.encode(), text.encode()):
            raise NotAuthenticated(f"this is not the pass of worker {worker[:80]!r}")

    def _read(self, text: str) -> GrantClaims:
        """What the token claims. Raises: NotAuthenticated if no door of this cluster has signed it."""
        try:
            said, key, mac = parts_of(PREFIX, text)
            found = msgspec.json.decode(said, type=GrantClaims)
        except ValueError:
            raise NotAuthenticated("this is not the token of a grant") from None
        signed = self._ring is not None and self._ring.is_signed(framed(_PURPOSE, said), key, mac)
        if not signed or found.cluster != self._cluster:
            raise NotAuthenticated("the token of this grant is not signed by a door of this cluster")
        return found
