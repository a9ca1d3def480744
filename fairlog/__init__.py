"""The face of fairlog: everything that people and programs touch.

`from fairlog import Client` is what programs need; it is loaded when asked for, so that the command line starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.service.client import Client, Receipt

__all__ = ["Client", "Receipt"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from fairlog import client  # noqa: PLC0415 (loaded when asked for)

        found: object = getattr(client, name)
        return found
    raise AttributeError(f"module 'fairlog' has no attribute {name!r}")
