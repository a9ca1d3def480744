"""What every policy of admission goes by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Basis:
    """The settings that policies go by, and the time (ms) of the last folded event.

    That is the time of the turn whenever somebody can be admitted: admission goes on until nobody may
    enter, so only what a later turn has folded can let another one in.
    """

    occupancy: str = "requested"
    half_life_ms: int = 3_600_000
    at: int = 0
