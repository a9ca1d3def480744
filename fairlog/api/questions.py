"""What is asked with a body that is no command, and the bounds of answers."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

PAGE = 500
"""The most events of the log in one answer, and the most items of a list unless more are asked for."""
MANY = 10_000
"""The most items of a list in one answer; each `PAGE` of them costs as much as a request."""
MAX_ADDED = 1_000
"""The most workers that a comparison may add."""
_Amount = Annotated[int, Meta(ge=0, le=2**53)]


class Bought(Struct, frozen=True, forbid_unknown_fields=True):
    """A quota in amounts."""

    cores: _Amount
    memory_mb: _Amount


class Added(Struct, frozen=True, forbid_unknown_fields=True):
    """`count` workers with the same offer."""

    cores: Annotated[int, Meta(ge=1, le=2**31)]
    memory_mb: Annotated[int, Meta(ge=1, le=2**53)]
    count: Annotated[int, Meta(ge=1, le=MAX_ADDED)] = 1


class OtherRules(Struct, frozen=True, forbid_unknown_fields=True):
    """Other rules for a log: settings by name, quotas by company, workers and an edition from the start on."""

    settings: dict[str, Any] = {}
    quotas: dict[str, Bought] = {}
    workers: Annotated[tuple[Added, ...], Meta(max_length=MAX_ADDED)] = ()
    edition: int | None = None


class SignIn(Struct, frozen=True, forbid_unknown_fields=True):
    """A code of the OpenID provider, with the PKCE verifier, the redirection and the nonce that belong to it.

    `token` and `hash` are those of the token that is to be issued, as in `IssueToken`.
    """

    code: Annotated[str, Meta(min_length=1, max_length=4096)]
    verifier: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._~-]{43,128}$")]
    redirect: Annotated[str, Meta(pattern=r"^http://127\.0\.0\.1:[0-9]{1,5}/$")]
    nonce: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{22,128}$")]
    token: Annotated[str, Meta(max_length=64)]
    hash: Annotated[str, Meta(max_length=64)]


class MailboxText(Struct, frozen=True, forbid_unknown_fields=True):
    """The text of a message in an app's mailbox."""

    text: str


class OfDriver(Struct, frozen=True, forbid_unknown_fields=True):
    """The app that is about to be submitted, for whose driver a pass is, and whose it will be."""

    app: Annotated[str, Meta(min_length=1, max_length=128)]
    company: Annotated[str, Meta(min_length=1, max_length=128)]
    user: Annotated[str, Meta(min_length=1, max_length=128)]
