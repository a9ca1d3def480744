"""The verb whatif: the same inputs under other rules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fairlog.cli import render
from fairlog.cli.decorators import on_log
from fairlog.cli.params import (
    InputFile,
    as_json,
    matched,
    range_option,
    read_edition,
    read_setting,
    read_size,
    read_text,
    text_option,
)
from scheduler.model.commands import RegisterWorker
from witness.swf import read_trace
from witness.whatif import Rules, check_rules, compared, replayed, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlog.cli.sources import Source

_WORKERS = re.compile(r"(?!0+x)(\d{1,5})x(?!0+x)(\d{1,7})x(\S+)", re.ASCII)
_QUOTA = re.compile(r"([^=]+)=(\d{1,12}),(\S+)", re.ASCII)


def read_workers(text: str) -> tuple[int, int, int]:
    """The number of workers, cores and MiB of each, written `4x16x64G`. Raises: click.BadParameter."""
    found = matched(_WORKERS, text, "of the form NUMBERxCORESxMEMORY", "4x16x64G")
    return int(found[1]), int(found[2]), read_size(found[3])


def read_quota(text: str) -> tuple[str, tuple[int, int]]:
    """A company, cores and MiB, written `acme=512,1T`. Raises: click.BadParameter."""
    found = matched(_QUOTA, text, "of the form COMPANY=CORES,MEMORY", "acme=512,1T")
    return read_text(found[1]), (int(found[2]), read_size(found[3]))


@click.command()
@click.option(
    "--set",
    "changes",
    multiple=True,
    type=read_setting,
    metavar="NAME=VALUE",
    help="Setting to change. Can be repeated.",
)
@text_option("--placement", metavar="P", help="Short for --set placement=P.")
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    type=read_quota,
    metavar="C=CORES,MEMORY",
    help="Quota to change. Can be repeated.",
)
@click.option(
    "--edition",
    type=read_edition,
    metavar="N",
    help="Edition of the rules of sharing that is in force from the start on: 2 or 3.  [default: as in the log]",
)
@click.option(
    "--add-workers",
    multiple=True,
    type=read_workers,
    metavar="NxCORESxMEMORY",
    help="Workers to add at the start. Can be repeated.",
)
@click.option(
    "--trace", type=InputFile("r", errors="replace"), metavar="FILE.swf", help="Trace to use instead of the log."
)
@range_option(
    "--companies", 1, 1000, default=4, show_default=True, help="Number of companies that share a trace's users."
)
@as_json
@on_log
def whatif(  # noqa: PLR0913 (options)
    source: Source,
    *,
    changes: tuple[tuple[str, str], ...],
    placement: str | None,
    quotas: tuple[tuple[str, tuple[int, int]], ...],
    edition: int | None,
    add_workers: tuple[tuple[int, int, int], ...],
    trace: IO[str] | None,
    companies: int,
    as_json: bool,
) -> None:
    """Replay the log's inputs, or a trace, under other rules and compare.

    Runs in virtual time. Submissions, task durations and workers are as in the log; settings and quotas are as given,
    and workers may be added but not removed. An app whose schedule differs ends once it was granted as many
    core-milliseconds as in the log. Who is told to leave ends at its date, or with its tasks; what is lost by that is
    done again. Both runs are measured as by `fairlog fairness`. Under unchanged rules every
    decision is that of the log.

    With --edition 3, a second table says who holds above and below an entitlement where the log ends: as the log left
    them, and had that edition been in force from the start.

    A trace is a file in the Standard Workload Format and needs no store. It is compared with a run under the default
    rules; its users are divided among companies by processor-seconds.
    """
    if trace is not None and click.get_current_context().params["file"] is not None:
        raise click.UsageError("--trace and FILE cannot be combined; give one of them")
    if trace is None and click.get_current_context().get_parameter_source("companies") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--companies divides the users of a --trace; leave it out, or give --trace")
    settings = dict(changes)
    if placement is not None:
        settings["placement"] = placement
    rules = Rules(settings, dict(quotas), list(_added(add_workers)), edition)
    if trace is None:
        found = replayed(render.counted(source), rules, partial(render.counted, of="turns"))
    else:
        taken, work = read_trace(trace, companies)
        check_rules(rules, taken)
        watched = partial(render.counted, of="turns")
        log, other = (run(each, taken, work, follows=False, watched=watched) for each in (Rules(), rules))
        found = compared(log, other)
    if as_json:
        render.print_json(found)
    else:
        _print(found)


def _added(groups: Iterable[tuple[int, int, int]]) -> Iterator[RegisterWorker]:
    number = 0
    for count, cores, memory_mb in groups:
        for _ in range(count):
            number += 1
            name = f"added-{number}"
            yield RegisterWorker(worker=name, node=name, host=name, cores=cores, memory_mb=memory_mb)


def _print(found: dict[str, Any]) -> None:
    log, other = found["log"], found["other"]
    rows = [("all", "", *_line(name, _get(log, name), _get(other, name))) for name in _WHOLE]
    for kind, names in (("rows", _COMPANY), ("users", _USER)):
        sides = [{(row["company"], row.get("user", "")): row for row in side[kind]} for side in (log, other)]
        for who in sorted({**sides[0], **sides[1]}):
            theirs, mine = (side.get(who, {}) for side in sides)
            rows += [(*who, *_line(name, theirs.get(name), mine.get(name))) for name in names]
    render.print_table(("COMPANY", "USER", "FIGURE", "LOG", "OTHER"), rows, empty="")
    click.echo()
    if log.get("standing"):
        _print_standings(log["standing"], other["standing"])
    differs = found["firstDifference"]
    if differs is None:
        click.echo("Every decision is the same.")
        return
    click.echo(f"Decision {differs['number']} is the first that differs:")
    for side in ("log", "other"):
        what, said = "nothing more", differs[side]
        if said is not None:
            fields = {name: value for name, value in said.items() if name not in {"at", "type"}}
            what = f"{render.moment(said['at'])}  {said['type']} {render.event_words(said['type'], fields)}"
        click.echo(f"{side:<6} {what}")


def _print_standings(log: dict[str, Any], other: dict[str, Any]) -> None:
    """Who is above and below at the end of the log, in both worlds, in cores."""
    names = ("entitledCores", "heldCores", "lentCores", "belowCores")
    sides = [
        {(row["company"], row["user"]): row for row in (*side["companies"], *side["users"])} for side in (log, other)
    ]
    rows = [
        (*who, *(side.get(who, {}).get(name, 0) for side in sides for name in names))
        for who in sorted({**sides[0], **sides[1]})
    ]
    words = ("ENTITLED", "HELD", "ABOVE", "BELOW")
    columns = ("COMPANY", "USER", *(f"{side} {word}" for side in ("LOG", "OTHER") for word in words))
    render.print_table(columns, rows, empty="Nobody wanted anything where the log ends.")
    click.echo()


_WHOLE = ("utilisation", "jain", "fairnessError", "shortfallCoreS", "queueLength", "ended", "refused", "makespanMs")
_COMPANY = ("share", "occupiedCores", "entitledCores", "shortfallCoreS", "waitP50Ms", "waitP99Ms", "waitLongestMs")
_USER = ("share", "shortfallCoreS", "grantedCoreH", "waitP50Ms", "waitP99Ms", "waitLongestMs")
_WORDS = {
    "jain": "Jain's index",
    "fairnessError": "below entitlement",
    "shortfallCoreS": "short, core-s",
    "queueLength": "apps pending",
    "ended": "apps ended",
    "refused": "apps refused",
    "makespanMs": "makespan",
    "share": "share of quota",
    "occupiedCores": "cores granted",
    "entitledCores": "cores entitled",
    "grantedCoreH": "core-hours granted",
    "waitP50Ms": "wait P50",
    "waitP99Ms": "wait P99",
    "waitLongestMs": "longest wait",
}
"""The names of figures in the table, by their names in the JSON."""


def _get(side: dict[str, Any], name: str) -> Any:  # noqa: ANN401 - JSON values
    return side["cluster"].get(name, side.get(name))


def _line(name: str, log: object, other: object) -> tuple[str, str, str]:
    return _WORDS.get(name, name), _shown(name, log), _shown(name, other)


def _shown(name: str, value: Any) -> str:  # noqa: ANN401 - JSON values
    if name.endswith("Ms"):
        return render.duration(value)
    return "-" if value is None else f"{value:,}"
