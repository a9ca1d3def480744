"""Sessions of the page: a token, or a link that is good once, is exchanged for a cookie.

A cookie names the session, the account, the id of its token and its end, and has the HMAC-SHA256 of these by a key that
follows from a door key. So all API servers of a cluster accept it, and it is worth no more than its token: it is
refused as soon as the token is, or the session was ended at any of them. Without a keyring there are no accounts, and
a key of this process signs.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from scheduler.model.errors import NotAuthenticated
from scheduler.model.sender import By
from scheduler.store.framing import framed

if TYPE_CHECKING:
    from collections.abc import Container

    from scheduler.rules.state.cluster import ClusterState
    from scheduler.service.keyring import Keyring

SESSION_MS = 3_600_000
"""How long a cookie is good; the page asks for a new one before that."""
LINK_MS = 12 * 3_600_000
"""How long a link is good if nobody has opened it."""
KEPT = 10_000
"""The most links that are remembered."""
_PARTS = 6
_PURPOSE = b"session of the page"
_WITHOUT = "-"


class PageVisit(NamedTuple):
    """Who looks at the page, under which id, and until when (ms) without a new cookie."""

    id: str
    who: By
    until: int


class Sessions:
    """The sessions of one API server, without those `ended`. May be used by several threads."""

    def __init__(self, cluster: str, keyring: Keyring | None = None, ended: Container[object] = frozenset()) -> None:
        self._cluster, self._keyring, self._ended = cluster, keyring, ended
        self.at_home = False
        """Whether the owner of its Unix socket needs no token."""
        self._own = secrets.token_bytes(32)
        self._links: OrderedDict[str, tuple[By, int]] = OrderedDict()
        """SHA-256 of a link's key -> whose session it opens, and until when (ms)."""
        self._lock = Lock()

    def link(self, who: By, now: int) -> str:
        """A key that opens one session of `who`."""
        key = secrets.token_urlsafe(32)
        with self._lock:
            self._links[_hash(key)] = who, now + LINK_MS
            if len(self._links) > KEPT:
                self._links.popitem(last=False)
        return key

    def redeem(self, key: str, now: int) -> By:
        """Whose session the key opens; it opens no second one. Raises: NotAuthenticated."""
        with self._lock:
            who, until = self._links.pop(_hash(key), (None, 0))
        if who is None or now >= until:
            raise NotAuthenticated(
                "this link was opened before, or is not a link of this server: `fairlog page` prints a new one"
            )
        return who

    def cookie(self, who: By, now: int, *, identity: str = "") -> str:
        """The value of a cookie for `who`, for the session `identity` or a new one."""
        door = self._keyring.door if self._keyring is not None and self._keyring.door else _WITHOUT
        parts = identity or secrets.token_hex(8), who.account, who.token or _WITHOUT, str(now + SESSION_MS), door
        return _spelled(":".join((*parts, self._mac(door, parts[:-1]))).encode())

    def of(self, cookie: str, state: ClusterState, now: int) -> PageVisit:
        """The session that the cookie shows. Raises: NotAuthenticated unless it, and its token, is good at `now`."""
        identity, account, token, until = self._read(cookie)
        if now >= int(until):
            raise NotAuthenticated("the session has ended")
        if identity in self._ended:
            raise NotAuthenticated("the session was ended")
        return PageVisit(identity, self._sender(state, account, token, now), int(until))

    def token(self, cookie: str) -> str:
        """The id of the token for which a server of this cluster made the cookie; "" if none did, or without one."""
        try:
            token = self._read(cookie)[2]
        except NotAuthenticated:
            return ""
        return "" if token == _WITHOUT else token

    def _read(self, cookie: str) -> tuple[str, str, str, str]:
        """Identity, account, token and end of the session. Raises: NotAuthenticated unless this cluster signed it."""
        try:
            said = urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4))
            parts = said.decode("ascii").split(":")
        except ValueError:
            said, parts = b"", []
        if len(parts) != _PARTS or _spelled(said) != cookie:  # the decoder skips what is no base64
            raise NotAuthenticated("this is not a session of the page")
        identity, account, token, until, door, mac = parts
        try:
            due = self._mac(door, (identity, account, token, until))
        except KeyError:
            raise NotAuthenticated("the session is of another cluster, or its key was removed") from None
        if not hmac.compare_digest(due, mac):
            raise NotAuthenticated("this is not a session of the page")
        return identity, account, token, until

    def _sender(self, state: ClusterState, account: str, token: str, now: int) -> By:
        if token == _WITHOUT:
            if not self.at_home:
                raise NotAuthenticated("this server knows nobody without a token")
            return By(account, role="operator")
        known = state.accounts.tokens.get(token)
        if known is None or known.account != account:
            raise NotAuthenticated("the token of this session was revoked")
        if now >= known.expires:
            raise NotAuthenticated("the token of this session has expired")
        return By(known.account, known.id, known.role)

    def _mac(self, door: str, parts: tuple[str, ...]) -> str:
        """Raises: KeyError if the door key is unknown."""
        if self._keyring is not None and door != _WITHOUT:
            key = bytes.fromhex(self._keyring.mac(door, _PURPOSE))
        elif door == _WITHOUT and (self._keyring is None or not self._keyring.door):
            key = self._own
        else:
            raise KeyError(door)
        said = framed(self._cluster, *parts)
        return hmac.digest(key, said, "sha256").hex()


def _spelled(said: bytes) -> str:
    """The one spelling of a cookie."""
    return urlsafe_b64encode(said).decode().rstrip("=")


def _hash(key: str) -> str:
    return sha256(key.encode(errors="replace")).hexdigest()
