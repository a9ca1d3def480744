"""How often a master does what is not a turn: over a slow network, its questions to the store take turns their time."""

from __future__ import annotations

import time

REST = 10
"""After what took a time it rests for so many times as long."""


def due_again(began_s: float, every_s: float) -> float:
    """When that which began at `began_s` and has just ended is due again: after `every_s`, or later if it took long."""
    now_s = time.monotonic()
    return now_s + max(every_s, REST * (now_s - began_s))
