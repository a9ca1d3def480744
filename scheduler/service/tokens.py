"""The text of a token: `fl_ID_SECRET_CRC`, of which the log holds the id and a hash (semantics I5)."""

from __future__ import annotations

import os
import zlib
from base64 import b32encode
from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING, NamedTuple

from scheduler.model.errors import NotAuthenticated
from scheduler.model.sender import By

if TYPE_CHECKING:
    from scheduler.rules.entities.accounts import Token
    from scheduler.rules.state.cluster import ClusterState

_PARTS = 4


class NewToken(NamedTuple):
    """The text of a token, which only its owner keeps, its id, and the hex SHA-256 of the text."""

    text: str
    id: str
    hash: str


def new_token() -> NewToken:
    """A token of 256 random bits."""
    identity, secret = os.urandom(8).hex(), b32encode(os.urandom(32)).decode().rstrip("=").lower()
    begin = f"fl_{identity}_{secret}"
    text = f"{begin}_{zlib.crc32(begin.encode()):08x}"
    return NewToken(text, identity, _hash(text))


def token_id(text: str) -> str:
    """The id in the text of a token; "" in what is none."""
    parts = text.split("_")
    return parts[1] if len(parts) == _PARTS and parts[0] == "fl" else ""


def authenticate(state: ClusterState, text: str, at: int) -> By:
    """The sender that the token shows, without a door. Raises: NotAuthenticated unless it is valid at `at` (ms)."""
    parts = text.split("_")
    begin, _, checksum = text.rpartition("_")
    whole = text.isascii() and len(parts) == _PARTS and parts[0] == "fl"
    if not whole or checksum != f"{zlib.crc32(begin.encode()):08x}":
        raise NotAuthenticated("this is not a token, or it was not copied in full")
    token: Token | None = state.accounts.tokens.get(parts[1])
    if token is None or not compare_digest(token.hash, _hash(text)):
        raise NotAuthenticated("the token is unknown or was revoked")
    if at >= token.expires:
        raise NotAuthenticated("the token has expired")
    return By(token.account, token.id, token.role)


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()
