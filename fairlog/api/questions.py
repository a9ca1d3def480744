"""What is asked with a body and changes nothing, and the bounds of answers."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

PAGE = 500
"""The most items of a list, or events of the log, in one answer."""
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
    """Other rules for a log: settings by name, quotas by company, and workers that are there from the start."""

    settings: dict[str, Any] = {}
    quotas: dict[str, Bought] = {}
    workers: Annotated[tuple[Added, ...], Meta(max_length=MAX_ADDED)] = ()
