"""How tests wait: for a condition, however long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
HOPELESS_S = 300.0
"""A wait that has lasted this long is given up. It only ends a test that fails; no test that passes comes near it."""


def wait_until(condition: Callable[[], T], what: str) -> T:
    """Return what `condition` returns once that is true; fail naming `what` if it never is."""
    deadline = time.monotonic() + HOPELESS_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)
    return found
