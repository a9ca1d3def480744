"""Times and durations as people write and read them: in local time with its zone, or in UTC with `--utc`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

import click

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SPAN = re.compile(r"(-?\d{1,30})([smhd])?", re.IGNORECASE | re.ASCII)
_UNITS = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.IGNORECASE | re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,6})-)?(\d{1,6}):([0-5]\d):([0-5]\d)", re.ASCII)
_TIME_OF_DAY = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)
_DAY = re.compile(r"\d{4}-?\d\d-?\d\d", re.ASCII)
"""A date alone: the beginning of the day, whatever its clocks do then."""
_WRITTEN = re.compile(r"\b(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3})Z")
_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_TO_MINUTES = re.compile(r"(\d\d:\d\d):00(?=[+-])")
UTC_ASKED = "fairlog.utc"
"""The entry of click's `meta` that is true if times are to be in UTC."""
DURATIONS = "90s, 1h30m or 00:10:00"
TIMES_TO_COME = "2026-03-01T12:00, 18:30, tomorrow or +2h"


class DoubtfulTime(click.BadParameter):
    """A local time that the zone skips, or has twice, when its clocks are changed."""


def in_utc() -> bool:
    """Whether the command line asks for times in UTC."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(UTC_ASKED))


def _zone() -> tzinfo | None:
    """UTC if it is asked for; None = local time."""
    return UTC if in_utc() else None


def moment(at_ms: int, *, to: str = "milliseconds") -> str:
    """A time (ms since the epoch) with its zone: `2026-03-01 13:00:00.000+01:00`, with Z for UTC."""
    said = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(_zone()).isoformat(sep=" ", timespec=to)
    return f"{said.removesuffix('+00:00')}Z" if said.endswith("+00:00") else said


def localized(text: str) -> str:
    """The text with times in UTC, as sentences derived from the log state them, in the zone of the reader."""

    def said(found: re.Match[str]) -> str:
        return moment((datetime.fromisoformat(found[1]).replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1))

    return _WRITTEN.sub(said, text)


def seconds_of(text: str) -> int | None:
    """Seconds, written `90`, `90s`, `1h30m`, `2d`, `00:10:00` or `1-12:00:00`; None for any other form."""
    text = text.strip()
    if found := _SPAN.fullmatch(text):
        return int(found[1]) * _UNIT_S[(found[2] or "").lower()]
    if found := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if text and (found := _UNITS.fullmatch(text)):
        return sum(int(part or 0) * size for part, size in zip(found.groups(), (86400, 3600, 60, 1), strict=True))
    return None


def time_of(text: str) -> int | None:  # noqa: PLR0911 (one for each form)
    """A time in ms since the epoch; None for any other form.

    ISO 8601 (`2026-03-01`, `2026-03-01T12:00`, `2026-03-01 13:00:00+01:00`) in local time unless it names a zone, a
    time of day (`09:30`, the last time that it was so), `now`, `today`, `yesterday` (their beginnings), or a time ago
    (`-2h`). Raises: DoubtfulTime for a local time that does not exist, or twice.
    """
    text, now = text.strip(), datetime.now(UTC).astimezone(_zone())
    if text == "now":
        return _ms(now)
    if text in ("today", "yesterday"):
        return _ms(_local(now - timedelta(days=text == "yesterday")))
    if found := _TIME_OF_DAY.fullmatch(text):
        hour, minute, second = (int(part or 0) for part in found.groups())
        then = _local(now, hour, minute, second)
        then = then if then <= now else _local(now - timedelta(days=1), hour, minute, second)
        return _ms(_checked(text, then.replace(tzinfo=None)))
    if text.startswith("-") and not text[1:].isdecimal() and (ago := seconds_of(text[1:])) is not None and ago >= 0:
        try:
            return max(0, _ms(now) - ago * 1000)
        except OverflowError:
            return None
    try:
        said = datetime.fromisoformat("" if text.isdecimal() else text)
        if said.tzinfo or in_utc():
            return _ms(said if said.tzinfo else said.replace(tzinfo=UTC))
        return _ms(said.astimezone() if _DAY.fullmatch(text) else _checked(text, said))
    except (ValueError, OverflowError):
        return None


def time_to_come(text: str) -> int | None:
    """A time in ms since the epoch, for what is to begin then; None for any other form.

    As `time_of`, but a time of day is the next one that is so, `tomorrow` is the beginning of that day, and `+2h` is a
    time from now. Raises: DoubtfulTime.
    """
    text, now = text.strip(), datetime.now(UTC).astimezone(_zone())
    try:
        if text == "tomorrow":
            return _ms(_local(now + timedelta(days=1)))
        if found := _TIME_OF_DAY.fullmatch(text):
            hour, minute, second = (int(part or 0) for part in found.groups())
            then = _local(now, hour, minute, second)
            then = then if then > now else _local(now + timedelta(days=1), hour, minute, second)
            return _ms(_checked(text, then.replace(tzinfo=None)))
        if text.startswith("+"):
            ahead = seconds_of(text[1:])
            return None if ahead is None or ahead < 0 else _ms(now + timedelta(seconds=ahead))
    except OverflowError:
        return None
    return None if text.startswith("-") else time_of(text)


def this_month() -> int:
    """The beginning of the present month, in ms since the epoch."""
    return _ms(_local(datetime.now(UTC).astimezone(_zone()).replace(day=1)))


def _local(day: datetime, hour: int = 0, minute: int = 0, second: int = 0) -> datetime:
    """A time of the day; by the rules of the zone on that day, which may differ from those of now."""
    naive = datetime(day.year, day.month, day.day, hour, minute, second)  # noqa: DTZ001 (the zone follows)
    return naive.replace(tzinfo=UTC) if in_utc() else naive.astimezone()


def _checked(text: str, naive: datetime) -> datetime:
    """The time in the local zone. Raises: DoubtfulTime naming the readings with their zones."""
    if in_utc():
        return naive.replace(tzinfo=UTC)
    first, second = (naive.replace(fold=fold).astimezone() for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return first
    readings = " or ".join(
        _TO_MINUTES.sub(r"\1", each.isoformat(timespec="seconds")) for each in sorted((first, second))
    )
    if first.replace(tzinfo=None) == naive:
        raise DoubtfulTime(f"{text[:40]!r} is there twice, as the clocks are set back; write {readings}")
    raise DoubtfulTime(
        f"{text[:40]!r} does not exist, as the clocks are set forward over it; write one that does, such as {readings}"
    )


def _ms(time: datetime) -> int:
    return (time - EPOCH) // timedelta(milliseconds=1)
