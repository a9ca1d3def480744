"""Fields written one behind the other so that different ones are never written alike."""

from __future__ import annotations

from collections.abc import Sequence


def framed(*fields: str | int | bytes) -> bytes:
    """The fields, each preceded by its length in bytes and a colon."""
    return framed_bytes([field if isinstance(field, bytes) else str(field).encode() for field in fields])


def framed_bytes(fields: Sequence[bytes]) -> bytes:
    """As `framed`, of fields that are bytes."""
    return b"".join([b"%d:%b" % (len(field), field) for field in fields])
