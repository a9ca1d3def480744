"""Times and durations as people write and read them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import click
import pytest
from click.testing import CliRunner

from fairlog.cli.params import read_begin, read_bound, read_time
from fairlog.cli.target import target_options
from fairlog.cli.times import localized, moment, time_of, time_to_come
from recovery.replay.bounds import Bound

SUMMER = datetime(2026, 7, 1, 10, tzinfo=UTC)
MS = timedelta(milliseconds=1)


def ms(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // MS


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    os.environ["TZ"] = "UTC"
    time.tzset()


@click.command()
@target_options()
@click.option("--at", type=read_bound)
def shown(at: Bound) -> None:
    click.echo(f"{at.at} {moment(at.at or 0, to='seconds')} {localized('since 2026-07-01 10:00:00.000Z (A3)')}")


@pytest.mark.usefixtures("in_berlin")
def test_times_are_local_with_their_zone_unless_utc_is_asked_for() -> None:
    assert moment(ms(SUMMER)) == "2026-07-01 12:00:00.000+02:00"
    assert time_of(moment(ms(SUMMER))) == ms(SUMMER)
    here = CliRunner().invoke(shown, ["--at", "2026-07-01T12:00"]).output
    assert here == f"{ms(SUMMER)} 2026-07-01 12:00:00+02:00 since 2026-07-01 12:00:00.000+02:00 (A3)\n"
    for order in (["--utc", "--at", "2026-07-01T10:00"], ["--at", "2026-07-01T10:00", "--utc"]):
        assert CliRunner().invoke(shown, order).output == (
            f"{ms(SUMMER)} 2026-07-01 10:00:00Z since 2026-07-01 10:00:00.000Z (A3)\n"
        )


@pytest.mark.usefixtures("in_berlin")
def test_a_zone_that_is_written_counts_and_so_do_the_rules_of_the_day() -> None:
    assert time_of("2026-07-01T10:00Z") == ms(SUMMER) == time_of("2026-07-01 12:00:00+02:00")
    assert time_of("2026-01-01") == ms(datetime(2025, 12, 31, 23, tzinfo=UTC))
    assert time_of("2026-07-01") == ms(datetime(2026, 6, 30, 22, tzinfo=UTC))


@pytest.mark.usefixtures("in_berlin")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-10-25T02:30", "is there twice, .* write 2026-10-25T02:30.02:00 or 2026-10-25T02:30.01:00"),
        ("2026-10-25 02:00:00", "is there twice"),
        ("2026-03-29T02:30", "does not exist, .* such as 2026-03-29T01:30.01:00 or 2026-03-29T03:30.02:00"),
    ],
)
def test_a_time_that_the_zone_has_twice_or_not_at_all_is_refused(text: str, why: str) -> None:
    for read in (read_time, read_bound):
        with pytest.raises(click.BadParameter, match=why):
            read(text)
    assert CliRunner().invoke(shown, ["--utc", "--at", text]).exit_code == 0
    assert read_time(f"{text}+01:00") - read_time(f"{text}+02:00") == 3_600_000


@pytest.mark.usefixtures("in_berlin")
def test_times_beside_a_change_of_the_clocks_are_what_they_say() -> None:
    assert read_time("2026-03-29T03:00") - read_time("2026-03-29T01:59:59") == 1000
    assert read_time("2026-10-25T03:00") - read_time("2026-10-25T01:59:59") == 7_201_000
    assert read_time("2026-10-26") - read_time("2026-10-25") == 25 * 3_600_000


def test_a_time_of_day_is_the_last_one_and_days_begin_at_midnight() -> None:
    now = datetime.now(UTC)
    for text in ("00:00", "09:30", "23:59", "12:00:01"):
        at = time_of(text)
        assert at is not None
        assert 0 <= ms(now) - at + 2_000 < 86_402_000
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    assert time_of("today") in (ms(midnight), ms(midnight + timedelta(days=1)))
    today, yesterday = time_of("today"), time_of("yesterday")
    assert today is not None
    assert yesterday == today - 86_400_000


def test_what_is_to_begin_names_a_time_to_come() -> None:
    now = ms(datetime.now(UTC))
    for text in ("00:00", "09:30", "23:59", "12:00:01", "tomorrow"):
        at = time_to_come(text)
        assert at is not None
        assert -5_000 < at - now < 86_402_000
    ahead = read_begin("+1h30m")
    assert 0 <= ahead - now - 5_400_000 < 60_000
    assert read_begin("2036-03-01T12:00Z") == 2_087_985_600_000
    for text in ("", "soon", "-2h", "+x", "+-5", "25:00", "+", "+99999999999d"):
        with pytest.raises(click.BadParameter, match=r"write it like 2026-03-01T12:00, 18:30, tomorrow or \+2h"):
            read_begin(text)


@pytest.mark.parametrize(
    ("text", "ago_s"), [("-2h", 7200), ("-90s", 90), ("-1h30m", 5400), ("-00:10:00", 600), ("-1d", 86400), ("now", 0)]
)
def test_a_time_ago_counts_from_now(text: str, ago_s: int) -> None:
    at = read_time(text)
    assert 0 <= ms(datetime.now(UTC)) - at - ago_s * 1000 < 5_000


@pytest.mark.parametrize(
    "text", ["", "soon", "-5", "25:00", "9:60", "-2x", "2026-02-30", "--2h", "12", "-2h ago", "٣:00"]
)
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write it like 2026-03-01T12:00:00, 09:30, yesterday or -2h"):
        read_time(text)
