"""The inputs of all admission policies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Basis:
    """The settings of the policies, and the time (ms) of the last folded event.

    During admissions that is the time of the turn, as a turn admits until no app may enter.
    """

    half_life_ms: int = 3_600_000
    at: int = 0
