"""How estimates of starts look (docs/estimates.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from fairlog.cli import render
from fairlog.cli.times import localized


def print_estimate(estimate: Mapping[str, Any] | None, now: int) -> None:
    """Print when an app that waits may start, as one knows at `now` (ms), and how far earlier estimates were off."""
    if estimate is None:
        return
    earliest, likely, latest = (estimate[name] for name in ("earliest", "likely", "latest"))
    why = localized(estimate["why"])
    if earliest is None:
        click.echo(f"starts    not by itself: {why}")
        return
    said = [f"not before {render.second(earliest)}"] if earliest > now else []
    if likely is not None:
        said.append(f"probably at {render.second(likely)}")
    said.append(f"with no latest time: {why}" if latest is None else f"at {render.second(latest)} at the latest")
    if likely is None and latest is not None:
        said.append(f"with no likely time: {why}")
    click.echo(f"starts    {', '.join(said)}")
    if errors := estimate.get("errors"):
        median, ninth = (render.duration(errors[name]) for name in ("medianMs", "p90Ms"))
        number = errors["number"]
        half = "the last estimate was" if number == 1 else f"half of the last {number} estimates were"
        ninths = "" if number == 1 else f" or less, 9 in 10 by {ninth}"
        click.echo(f"          {half} off by {median}{ninths}")
