"""The verb `efficiency`: what apps, users and companies used of what they were granted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from fairlog.cli import render
from fairlog.cli.choice import Filter, filter_options
from fairlog.cli.decorators import on_log
from fairlog.cli.params import WholeNumber, as_json, number_option, read_time
from fairlog.efficiency import LEVELS, Level, peak, percent
from fairlog.efficiency import efficiency as judged
from witness.hours import HOUR_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlog.cli.sources import Source

_WHO: Mapping[Level, tuple[str, ...]] = {
    "app": ("app", "company", "user", "name"),
    "user": ("company", "user"),
    "company": ("company",),
}


@click.command()
@click.option(
    "--by", type=click.Choice(LEVELS), default="user", show_default=True, help="A row for each app, user or company."
)
@filter_options
@click.option("--since", type=read_time, metavar="TIME", help="Only apps that were submitted since then.")
@click.option("--until", type=read_time, metavar="TIME", help="Only apps that were submitted until then.")
@number_option("--limit", type=WholeNumber(1), help="Show at most N rows, those that wasted most.")
@as_json
@on_log
def efficiency(
    source: Source, *, by: str, wanted: Filter, since: int | None, until: int | None, limit: int | None, as_json: bool
) -> None:
    """Report what apps used of what they were granted, and what they wasted.

    Who wasted most comes first. CPU time and peak memory are what workers have measured of executors and drivers that
    ended. WASTED is what these held and did not use; UNKNOWN is what those held of which nobody said what they used, as
    when a worker is lost. The peak is that of the executor that used the most memory, beside what it was granted;
    MEMORY USED counts the peak of each executor for as long as it was held.

    Only apps that you may see count, as many as the setting retained_apps keeps. A public export of the log does not
    say what was used.
    """
    if since is not None and until is not None and until < since:
        raise click.UsageError("--until comes before --since")
    apps = [
        app
        for app in source.ask("apps", everything=True)
        if wanted.takes(app)
        and (since is None or app["submittedAt"] >= since)
        and (until is None or app["submittedAt"] <= until)
    ]
    if not apps:
        wanted.check_names(source.ask)
    kind = cast("Level", by)
    rows = judged(apps, kind)[:limit]
    if as_json:
        render.print_json(rows)
        return
    who = _WHO[kind]
    headings = [*(name.upper() for name in who), *(("APPS",) if kind != "app" else ()), *_FIGURES]
    cells = [(*(row[name] for name in who), *((row["apps"],) if kind != "app" else ()), *_figures(row)) for row in rows]
    render.print_table(headings, cells, empty="Nothing of the apps that match has ended yet.")


_FIGURES = ("GRANTED CORE-H", "USED", "WASTED", "UNKNOWN", "CPU USED", "MEMORY USED", "PEAK")


def _figures(row: Mapping[str, Any]) -> tuple[str, ...]:
    sums = (row[name] / HOUR_MS for name in ("coreMs", "cpuMs", "wastedCoreMs", "unknownCoreMs"))
    told = row["toldCoreMs"] or row["peakMemory"]
    parts = percent(row["cpuPart"]), percent(row["memoryPart"]), peak(row) if told else "-"
    return (*(f"{each:.3f}" for each in sums), *parts)
