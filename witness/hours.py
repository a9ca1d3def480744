"""Sums of amounts over time in hours, for statements and for who prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HOUR_MS = 3_600_000
AMOUNTS = ("requestedCoreMs", "requestedMemoryMs", "grantedCoreMs", "grantedMemoryMs")


def kinds_of(said: Mapping[str, Any]) -> list[str]:
    """The further kinds of which anything was requested or granted in the statement (semantics R4)."""
    total = said["total"]
    return sorted({*total.get("requestedResourceMs", ()), *total.get("grantedResourceMs", ())})


def kind_hours(amounts: Mapping[str, Any], kind: str) -> tuple[float, float]:
    """Requested and granted amount-hours of a further kind, to a millionth."""
    requested, granted = (amounts.get(f"{which}ResourceMs", {}).get(kind, 0) for which in ("requested", "granted"))
    return round(requested / HOUR_MS, 6), round(granted / HOUR_MS, 6)


def hours(sums: Mapping[str, int]) -> dict[str, float]:
    """The sums in core-hours and GiB-hours, to a millionth."""
    return {
        "requestedCoreHours": round(sums["requestedCoreMs"] / HOUR_MS, 6),
        "requestedGiBHours": round(sums["requestedMemoryMs"] / HOUR_MS / 1024, 6),
        "grantedCoreHours": round(sums["grantedCoreMs"] / HOUR_MS, 6),
        "grantedGiBHours": round(sums["grantedMemoryMs"] / HOUR_MS / 1024, 6),
    }
