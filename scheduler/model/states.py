"""The states that things are in, by name: for who shows or filters them and needs no event."""

from __future__ import annotations

from typing import Literal

WorkerStatus = Literal["alive", "draining", "leaving", "decommissioned"]
AppState = Literal["pending", "waiting", "running", "finished", "failed", "killed", "unmet", "expired"]
Condition = Literal["ok", "any", "not-ok", "began"]
"""How an app must have ended: finished, in any way, or in any other way than finished; or that it began (J1)."""
