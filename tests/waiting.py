"""How tests wait: for a condition, however long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

HOPELESS_S = 300.0
"""A wait that has lasted this long is given up. It only ends a test that fails; no test that passes comes near it."""


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Return once `condition` holds; fail naming `what` if it never does."""
    deadline = time.monotonic() + HOPELESS_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)
