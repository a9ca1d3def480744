"""What apps used of what they were granted, as their workers say (semantics O5): in a sentence, and in sums.

What an app holds now is not counted before it ends. What executors held of which nobody said what they used, as when
their worker was lost, is neither used nor wasted, but unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from witness.hours import HOUR_MS

Level = Literal["app", "user", "company"]
LEVELS: tuple[Level, ...] = get_args(Level)
_SUMS = ("coreMs", "toldCoreMs", "cpuMs", "toldMemoryMs", "usedMemoryMs")
_KEYS: Mapping[Level, tuple[str, ...]] = {
    "app": ("company", "user", "app", "name"),
    "user": ("company", "user"),
    "company": ("company",),
}


def efficiency(apps: Iterable[Mapping[str, Any]], by: Level = "user") -> list[dict[str, Any]]:
    """A row for each app, user or company, the one that wasted most first; `apps` as the view `apps` has them.

    Times are in ms, memory is in MiB. `wastedCoreMs` is what executors whose workers say what they used did not use of
    their cores, `unknownCoreMs` what the others held; the parts are of those that say something, None without any.
    """
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for app in apps:
        spent = app.get("spent")
        if spent is None:
            continue
        key = tuple(app[name] for name in _KEYS[by])
        row = rows.get(key)
        if row is None:
            start = dict.fromkeys(("apps", *_SUMS, "peakMemory", "peakOfMemory"), 0)
            row = rows[key] = {**dict(zip(_KEYS[by], key, strict=True)), **start}
        row["apps"] += 1
        for name in _SUMS:
            row[name] += spent[name]
        highest = max((row["peakMemory"], row["peakOfMemory"]), (spent["peakMemory"], spent["peakOfMemory"]))
        row["peakMemory"], row["peakOfMemory"] = highest
    found = [_judged(row) for row in rows.values()]
    return sorted(found, key=lambda row: (-row["wastedCoreMs"], *(row[name] for name in _KEYS[by])))


def _judged(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "wastedCoreMs": max(0, row["toldCoreMs"] - row["cpuMs"]),
        "unknownCoreMs": row["coreMs"] - row["toldCoreMs"],
        "cpuPart": part(row["cpuMs"], row["toldCoreMs"]),
        "memoryPart": part(row["usedMemoryMs"], row["toldMemoryMs"]),
    }


def part(used: int, of: int) -> float | None:
    """What part of `of` was used, to four digits; None of nothing."""
    return round(used / of, 4) if of else None


def in_words(spent: Mapping[str, Any]) -> str:
    """What was used of what was granted, in words."""
    unknown = f"{(spent['coreMs'] - spent['toldCoreMs']) / HOUR_MS:.3f} core-h"
    if not spent["toldCoreMs"]:
        return f"not known of {unknown}"
    used = f"{spent['cpuMs'] / HOUR_MS:.3f} of {spent['toldCoreMs'] / HOUR_MS:.3f} core-h"
    cores = f"{used}, {percent(part(spent['cpuMs'], spent['toldCoreMs']))}"
    more = f"; not known of {unknown} more" if spent["coreMs"] > spent["toldCoreMs"] else ""
    return f"{cores}; at most {peak(spent)} of an executor; as their workers say{more}"


def peak(spent: Mapping[str, Any]) -> str:
    """The largest peak of an executor or a driver, and what that was granted."""
    return f"{_size(spent['peakMemory'])} of {_size(spent['peakOfMemory'])}"


def _size(memory_mb: int) -> str:
    return f"{memory_mb // 1024} GiB" if memory_mb and memory_mb % 1024 == 0 else f"{memory_mb} MiB"


def percent(of: float | None) -> str:
    """A part as a percentage; "-" of nothing."""
    return "-" if of is None else f"{100 * of:.0f}%"
