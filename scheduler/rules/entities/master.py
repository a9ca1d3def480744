"""The election by which a master serves (semantics R)."""

from __future__ import annotations

from typing import NamedTuple


class Election(NamedTuple):
    """The election of the last master at `at` (ms), after `before`; a master's last turn before is of `silent_since`.

    "" and 0 = it was the first entry. No rule looks at it.
    """

    master: str
    before: str
    at: int
    silent_since: int
