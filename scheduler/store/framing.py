"""Fields written one behind the other so that different ones are never written alike."""

from __future__ import annotations


def framed(*fields: str | int | bytes) -> bytes:
    """The fields, each preceded by its length in bytes and a colon."""
    texts = [field if isinstance(field, bytes) else str(field).encode() for field in fields]
    return b"".join([b"%d:%b" % (len(text), text) for text in texts])
