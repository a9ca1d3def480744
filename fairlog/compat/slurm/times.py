"""Times and durations as Slurm reads and prints them."""

from __future__ import annotations

import os
import time

from fairlog.compat.slurm.words import SlurmError, whole

UNLIMITED = ("infinite", "unlimited", "-1")


def now() -> int:
    """The time (ms)."""
    return round(time.time() * 1000)


def read_limit(text: str) -> int | None:
    """Seconds of `minutes[:seconds]`, `hours:minutes:seconds` or `days-hours[:minutes[:seconds]]`; None = no limit.

    Raises: Refused.
    """
    if text.lower() in UNLIMITED or text == "0":
        return None
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if any(whole(each) is None for each in [*parts, *([days] if dash else [])]) or len(parts) > 3:
        raise SlurmError("Invalid --time specification", 255)
    numbers = [int(each) for each in parts]
    if dash:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) < 3:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    else:
        hours, minutes, seconds = numbers
    if seconds > 59 or ((dash or len(numbers) == 3) and minutes > 59) or (dash and hours > 23):
        raise SlurmError("Invalid --time specification", 255)
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    return total or None


def clock(seconds: int | None) -> str:
    """A span as squeue prints it: `0:07`, `1:02:03`, `1-02:03:04`; UNLIMITED for None."""
    if seconds is None:
        return "UNLIMITED"
    days, hours, minutes, left = _parts(seconds)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def elapsed(seconds: int | None) -> str:
    """A span as sacct and scontrol print it: `00:00:07`, `1-02:03:04`; UNLIMITED for None."""
    if seconds is None:
        return "UNLIMITED"
    days, hours, minutes, left = _parts(seconds)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:{left:02}"


def _parts(seconds: int) -> tuple[int, int, int, int]:
    minutes, left = divmod(max(0, seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return *divmod(hours, 24), minutes, left


def moment(ms: int | None, missing: str = "N/A") -> str:
    """A time in local time, as SLURM_TIME_FORMAT has it: a format of strftime, `relative`, or `standard`."""
    if ms is None:
        return missing
    wanted, at = os.environ.get("SLURM_TIME_FORMAT", ""), time.localtime(ms / 1000)
    if wanted == "relative":
        return time.strftime(_near(at), at)
    return time.strftime(wanted if wanted.startswith("%") else "%Y-%m-%dT%H:%M:%S", at)


def _near(at: time.struct_time) -> str:
    """The format of a time by how many days it is away, as Slurm has it."""
    noon, now = (
        time.mktime((each.tm_year, each.tm_mon, each.tm_mday, 12, 0, 0, 0, 0, -1)) for each in (at, time.localtime())
    )
    days = round((noon - now) / 86400)
    if abs(days) <= 1:
        return ("Ystday %H:%M", "%H:%M:%S", "Tomorr %H:%M")[days + 1]
    if abs(days) > 365:
        return "%-d %b %Y"
    return "%a %H:%M" if 1 < days < 6 else "%-d %b %H:%M"


_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_NAMED = {"midnight": (0, 0, 0), "noon": (12, 0, 0), "fika": (15, 0, 0), "teatime": (16, 0, 0)}
_DAYS = {"today": 0, "tomorrow": 1}


def read_moment(text: str, option: str, *, ahead: bool = False) -> int:
    """A time (ms), in local time: `now-2hours`, `2026-03-01T12:00`, `12:30`, `midnight`, `16:00 tomorrow`, `uts17`.

    Of a clock time alone, that of today is meant, or with `ahead` the next one. Raises: Refused.
    """
    said = " ".join(text.lower().split())
    now = time.time()
    if said.startswith("now"):
        return round((now + _offset(said[3:].replace(" ", ""), option)) * 1000)
    if said.startswith("uts") and (seconds := whole(said[3:])) is not None:
        return seconds * 1000
    day, at = _day_and_time(said)
    if said and (not day or day in _DAYS):
        of = time.localtime(now + 86400 * _DAYS.get(day, 0))
        found = time.mktime((of.tm_year, of.tm_mon, of.tm_mday, *at, 0, 0, -1))
        return round((found + 86400 * (ahead and not day and found < now)) * 1000)
    if (of_day := _of_year(day, at)) is None and (of_day := _of_day(day, at, now, ahead=ahead)) is None:
        raise SlurmError(f"Invalid --{option} specification: {text[:40]}", 255 if ahead else 1)
    return round(of_day * 1000)


def _day_and_time(said: str) -> tuple[str, tuple[int, int, int]]:
    """The day, "" for none, and the time of day, which may be named in either order, or which is midnight."""
    if (alone := _clock(said)) is not None:
        return "", alone
    marks = [place for place, letter in enumerate(said) if letter in "t- "]
    last = said.rfind(" ")
    for day, clock in (
        *((said[:place], said[place + 1 :]) for place in marks),
        (said[last + 1 :], said[: max(last, 0)]),
    ):
        if day and (at := _clock(clock)) is not None:
            return day.strip(), at
    return said.removesuffix("t"), (0, 0, 0)


def _clock(text: str) -> tuple[int, int, int] | None:
    """Hours, minutes and seconds of `12:30`, `12:30:15`, `1:30pm` or `noon`; None of anything else."""
    if text in _NAMED:
        return _NAMED[text]
    half = text[-2:] if text[-2:] in ("am", "pm") else ""
    parts = text.removesuffix(half).strip().split(":")
    if len(parts) not in (2, 3) or any(whole(each) is None for each in parts):
        return None
    hours, minutes, seconds = (*map(int, parts), 0)[:3]
    if half and 1 <= hours <= 12:
        hours = hours % 12 + 12 * (half == "pm")
    elif half:
        return None
    return (hours, minutes, seconds) if hours < 24 and minutes < 60 and seconds < 60 else None


def _of_year(day: str, at: tuple[int, int, int]) -> float | None:
    """The time (s) of `YYYY-MM-DD`; None of anything else."""
    try:
        known = time.strptime(day, "%Y-%m-%d")
    except ValueError:
        return None
    return time.mktime((known.tm_year, known.tm_mon, known.tm_mday, *at, 0, 0, -1))


def _of_day(day: str, at: tuple[int, int, int], now: float, *, ahead: bool) -> float | None:
    """The time (s) of `MMDD[YY]`, `MM/DD[/YY]` or `MM.DD[.YY]`; None of anything else.

    Without a year this one is meant, or with `ahead` the next one for a day that is over.
    """
    if day.isdecimal() and len(day) in (4, 6):
        parts = [day[start : start + 2] for start in range(0, len(day), 2)]
    else:
        parts = day.split("/" if "/" in day else ".")
    if len(parts) not in (2, 3) or not all(each.isdecimal() and len(each) <= 2 for each in parts):
        return None
    year = 2000 + int(parts[2]) if len(parts) == 3 else time.localtime(now).tm_year
    for each in (year, year + 1)[: 2 if len(parts) == 2 and ahead else 1]:
        try:
            known = time.strptime(f"{each} {parts[0]} {parts[1]}", "%Y %m %d")
        except ValueError:
            return None
        found = time.mktime((known.tm_year, known.tm_mon, known.tm_mday, *at, 0, 0, -1))
        if found >= now:
            return found
    return found


def _offset(text: str, option: str) -> int:
    """The seconds of `+2hours` or `-30minutes`; a bare number counts seconds."""
    if not text:
        return 0
    number = text[1:].rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[1 + len(number) :].strip().rstrip("s") or "second"
    named = next((seconds for name, seconds in _UNITS.items() if name.startswith(unit)), None)
    if text[0] not in "+-" or whole(number.strip()) is None or named is None:
        raise SlurmError(f"Invalid --{option} specification: now{text[:40]}", 255 if option == "begin" else 1)
    return (1 if text[0] == "+" else -1) * int(number) * named
