"""Lists of apps: which are listed, which columns are shown, in which order; once or again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fairlog.cli import render
from fairlog.cli.choice import Filter, filter_options, shown_state, waited_ms
from fairlog.cli.params import P, R, WholeNumber, flag, number_option, read_time, text_option
from fairlog.cli.times import this_month, time_of
from fairlog.efficiency import part, percent
from scheduler.model.errors import CommandRejected
from scheduler.model.resources import size_text

if TYPE_CHECKING:
    from fairlog.cli.sources import Source

Record = Mapping[str, Any]
WATCH_S = 2.0
"""How often a list is shown anew by `--watch`."""
USUAL = ("app", "company", "user", "name", "state", "reason", "wait", "cores", "memory", "submitted")
SPARE = ("memory", "submitted", "core-h", "cores", "company", "name")
"""What is left out on a narrow terminal, unless `-o` asks for it."""
MEASURED = {"cpu", "peak"}
"""What is asked of the store for each app."""
ESTIMATED = {"starts", "starts-by"}
"""What is worked out for the apps that wait."""
USUAL_ENDED = ("app", "company", "user", "name", "state", "submitted", "wait", "took", "core-h", "cpu", "peak")


class Column(NamedTuple):
    """A column of the list: what it sorts by, and how that is shown."""

    key: Callable[[Record], Any]
    shown: Callable[[Record], object] | None = None


def _of(name: str) -> Column:
    return Column(lambda app: app.get(name))


def _time(name: str) -> Column:
    return Column(lambda app: app.get(name), lambda app: render.second(app.get(name)))


def _span(name: str) -> Column:
    return Column(lambda app: app.get(name), lambda app: render.duration(app.get(name)))


def _size(name: str) -> Column:
    return Column(lambda app: app.get(name), lambda app: "-" if app.get(name) is None else size_text(app[name]))


def _part(used: str, granted: str) -> Column:
    """What part was used of what executors and drivers that ended were granted (semantics O5)."""

    def of(app: Record) -> float | None:
        spent = app.get("spent")
        return None if spent is None else part(spent[used], spent[granted])

    return Column(of, lambda app: percent(of(app)))


COLUMNS: Mapping[str, Column] = {
    "app": _of("app"),
    "company": _of("company"),
    "user": _of("user"),
    "name": _of("name"),
    "kind": _of("kind"),
    "state": Column(shown_state, lambda app: shown_state(app).replace("-", " ")),
    "reason": Column(lambda app: app.get("reason")),
    "rule": Column(lambda app: app.get("rule")),
    "wait": _span("waitedMs"),
    "cores": Column(
        lambda app: (app["grantedCores"], app["requestedCores"]),
        lambda app: app["requestedCores"] if app["endedAt"] else f"{app['grantedCores']} of {app['requestedCores']}",
    ),
    "memory": Column(
        lambda app: (app["grantedMemory"], app["requestedMemory"]),
        lambda app: (
            size_text(app["requestedMemory"])
            if app["endedAt"]
            else f"{size_text(app['grantedMemory'])} of {size_text(app['requestedMemory'])}"
        ),
    ),
    "starts": _time("likelyStart"),
    "starts-by": _time("latestStart"),
    "tasks": _of("tasks"),
    "number": _of("submittedSeq"),
    "submitted": _time("submittedAt"),
    "admitted": _time("admittedAt"),
    "ended": _time("endedAt"),
    "took": _span("tookMs"),
    "core-h": Column(
        lambda app: app.get("coreMs"), lambda app: "-" if "coreMs" not in app else f"{app['coreMs'] / 3_600_000:.3f}"
    ),
    "cpu": _span("cpuMs"),
    "peak": _size("peakMemory"),
    "cpu-used": _part("cpuMs", "toldCoreMs"),
    "memory-used": _part("usedMemoryMs", "toldMemoryMs"),
    "detail": Column(lambda app: app.get("detail") or ""),
}


class AppFilter(NamedTuple):
    """Which apps are listed; times in ms. `span`: those that ended in it, from the log."""

    filter: Filter
    everything: bool = False
    ended: bool = False
    reason: str | None = None
    since: int | None = None
    until: int | None = None


class Columns(NamedTuple):
    """How they are listed; `watch`: again and again; `bare`: without headings.

    `for_program`: nothing but rows is printed to stdout.
    """

    names: tuple[str, ...]
    sort: str | None = None
    limit: int | None = None
    watch: bool = False
    bare: bool = False
    for_program: bool = False


def list_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add the options of a list to a verb, which gets them as `wanted` and `columns`."""

    @wraps(function)
    def take(*args: P.args, **kwargs: P.kwargs) -> R:
        def given(name: str) -> Any:  # noqa: ANN401 (as the option says)
            return kwargs.pop(name)

        span = given("month") or (given("since"), given("until"))
        for left in ("since", "until"):
            kwargs.pop(left, None)
        wanted = AppFilter(given("wanted"), given("everything"), given("ended"), given("reason"), *span)
        names, no_header = given("columns") or (), given("no_header")
        ways = no_header or len(names) == 1, no_header or bool(names)
        columns = Columns(names, given("sort"), given("limit"), given("watch"), *ways)
        kwargs["wanted"], kwargs["columns"] = _checked(wanted, columns)
        return function(*args, **kwargs)

    run: Callable[P, R] = take
    for add in (
        flag("--watch", help=f"Show the list anew every {WATCH_S:g} seconds, in a terminal."),
        number_option("--limit", type=WholeNumber(1), help="Show at most N apps, the first ones of the order."),
        click.option(
            "--sort",
            type=_read_order,
            metavar="COLUMN",
            help="Sort by this column; -COLUMN for the largest first.  [default: by submission]",
        ),
        click.option(
            "-o",
            "--columns",
            type=_read_columns,
            metavar="COLUMN,...",
            help=f"Columns to show: {', '.join(COLUMNS)}. A single one has no heading.",
        ),
        flag("--no-header", help="Leave out the headings."),
        click.option(
            "--month",
            type=_read_month,
            metavar="YYYY-MM",
            help="Instead of --since and --until: this month.",
        ),
        click.option(
            "--until",
            type=read_time,
            metavar="TIME",
            help="Only apps that were submitted, or with --ended ended, until then.",
        ),
        click.option(
            "--since",
            type=read_time,
            metavar="TIME",
            help="Only apps that were submitted, or with --ended ended, since then: 2026-03-01, 09:30 or -2h.",
        ),
        text_option(
            "--reason", metavar="CAUSE", help="Only apps that wait for this cause, as the column REASON names it."
        ),
        filter_options,
        flag(
            "--ended", help="Instead, list the apps that have ended since the beginning of the month, or since --since."
        ),
        flag("--all", "everything", help="Include ended apps, as many as the setting retained_apps keeps."),
    ):
        run = add(run)
    return run


def _checked(wanted: AppFilter, columns: Columns) -> tuple[AppFilter, Columns]:
    if wanted.since is not None and wanted.until is not None and wanted.until < wanted.since:
        raise click.UsageError("--until comes before --since")
    if wanted.ended and wanted.since is None:
        wanted = wanted._replace(since=this_month())
    if not columns.names:
        columns = columns._replace(names=USUAL_ENDED if wanted.ended else USUAL)
    return wanted, columns


def show_apps(source: Source, wanted: AppFilter, columns: Columns, *, as_json: bool) -> None:
    """Print the apps, or show them again and again."""
    if columns.watch:
        if as_json or source.past or wanted.ended:
            raise click.UsageError("--watch shows the present in a table; leave out --json, --ended, --at and FILE")
        wanted.filter.check_names(source.ask)
        render.watch(lambda: table(columns, found(source, wanted, columns)), every_s=WATCH_S)
        return
    if as_json:
        records = found(source, wanted, columns)
        if not records:
            wanted.filter.check_names(source.ask)
        render.print_json(records)
        return
    empty = "No app is pending, waiting or running."
    if wanted._replace(everything=False) != AppFilter(Filter()):
        empty = "No app matches."
    elif wanted.everything:
        empty = "No app is known."
    listed = found_in_parts(source, wanted, columns)
    headings = [name.upper() for name in columns.names]
    spare = [name.upper() for name in SPARE] if columns.names in (USUAL, USUAL_ENDED) else ()
    shown = (rows(columns, records) for records in listed if records)
    if not render.print_parts(headings, shown, spare=spare, bare=columns.bare):
        wanted.filter.check_names(source.ask)
        render.say(empty) if columns.for_program else click.echo(empty)


def found_in_parts(source: Source, wanted: AppFilter, columns: Columns) -> Iterator[list[dict[str, Any]]]:
    """As `found`, as they come unless all have to be known for their order or their number."""
    if columns.sort or columns.limit is not None or wanted.ended:
        yield found(source, wanted, columns)
        return
    for records in _listed(source, wanted):
        if MEASURED & set(columns.names):
            _measure(source, records)
        if ESTIMATED & set(columns.names):
            _estimate(source, records)
        yield records


def _listed(source: Source, wanted: AppFilter) -> Iterator[list[dict[str, Any]]]:
    """The apps that the cluster knows and that are wanted, in parts as they come."""
    _check_reason(wanted.reason)
    everything = wanted.everything or bool(set(wanted.filter.state) - {"not-ready", "pending", "waiting", "running"})
    now = source.now_ms() or source.ask("cluster")["at"]
    for page in source.parts("apps", everything=everything):
        records = [
            {
                **app,
                "waitedMs": waited_ms(app, now),
            }
            for app in page
            if _within(app["submittedAt"], wanted) and wanted.reason in (None, app.get("reason"))
        ]
        yield [app for app in records if wanted.filter.takes(app)]


def found(source: Source, wanted: AppFilter, columns: Columns) -> list[dict[str, Any]]:
    """The records of the apps that are wanted, in the order that is wanted."""
    if wanted.ended:
        records = [app for app in _ended(source, wanted) if wanted.filter.takes(app)]
    else:
        records = [app for page in _listed(source, wanted) for app in page]
    if ESTIMATED & {*columns.names, (columns.sort or "").lstrip("-")}:
        _estimate(source, records)
    if columns.sort:
        name, falling = columns.sort.lstrip("-"), columns.sort.startswith("-")
        key = COLUMNS[name].key
        known = sorted((app for app in records if key(app) is not None), key=key, reverse=falling)
        records = known + [app for app in records if key(app) is None]
    records = records if columns.limit is None else records[: columns.limit]
    if wanted.ended or MEASURED & set(columns.names):
        _measure(source, records)
    return records


def _ended(source: Source, wanted: AppFilter) -> list[dict[str, Any]]:
    from witness.ended import ended  # noqa: PLC0415 (other lists do without what folds the log)

    sees = source.sees()
    found = ended(render.counted(source), since=wanted.since or 0, until=wanted.until)
    return [app for app in found if sees(app["company"], app["user"])]


def _estimate(source: Source, records: Sequence[dict[str, Any]]) -> None:
    """Add when each app that waits probably starts, and when at the latest (docs/estimates.md)."""
    wait = any(app["state"] in ("pending", "waiting") for app in records)
    told = source.ask("estimates")["estimates"] if wait else []
    found = {each["app"]: each for each in told}
    for app in records:
        if (each := found.get(app["app"])) is not None:
            app.update(likelyStart=each["likely"], latestStart=each["latest"])


def _measure(source: Source, records: Iterable[dict[str, Any]]) -> None:
    """Add what executors have measured of each app: of its tasks where the store still has that, else by the log."""
    if not source.past:
        from fairlog.cli.outputs import measured  # noqa: PLC0415 (loads RQ)

        work = source.session.tasks()
        for app in records:
            with suppress(CommandRejected):  # the API has forgotten it, or shows its tasks to others only
                app.update(measured(work.progress(app["app"])))
    for app in records:
        if "cpuMs" not in app and (spent := app.get("spent")) is not None and spent["toldCoreMs"]:
            app.update(cpuMs=spent["cpuMs"], peakMemory=spent["peakMemory"])


def _check_reason(reason: str | None) -> None:
    if reason is None:
        return
    from scheduler.model.causes import CAUSES  # noqa: PLC0415 (slow to import)

    if reason not in CAUSES:
        raise click.UsageError(f"no app waits for {reason!r}; the causes are {', '.join(CAUSES)}")


def _within(at: int, wanted: AppFilter) -> bool:
    return (wanted.since is None or at >= wanted.since) and (wanted.until is None or at <= wanted.until)


def rows(columns: Columns, records: Sequence[Record]) -> list[list[object]]:
    """The cells of the records, of those columns."""
    shown = [(COLUMNS[name].shown or COLUMNS[name].key) for name in columns.names]
    return [[tell(app) for tell in shown] for app in records]


def table(columns: Columns, records: Sequence[Record]) -> Any:  # noqa: ANN401 (rich's)
    """The records as a table of rich."""
    cells = [tuple("-" if cell is None else cell for cell in row) for row in rows(columns, records)]
    return render.table_of([name.upper() for name in columns.names], cells)


def _read_columns(text: str) -> tuple[str, ...]:
    return tuple(_column(name.strip()) for name in text.split(","))


def _read_order(text: str) -> str:
    return f"{'-' if text.startswith('-') else ''}{_column(text.removeprefix('-'))}"


def _column(name: str) -> str:
    if name.lower() not in COLUMNS:
        near = get_close_matches(name.lower(), COLUMNS, 1)
        meant = f"did you mean {near[0]}?" if near else f"the columns are {', '.join(COLUMNS)}"
        raise click.BadParameter(f"no column is named {name[:40]!r}; {meant}")
    return name.lower()


def _read_month(text: str) -> tuple[int, int]:
    """The first and the last ms of a month in local time, or in UTC with --utc. Raises: click.BadParameter."""
    year, _, month = text.partition("-")
    first = time_of(f"{text}-01") if len(text) == 7 and year.isdecimal() and month.isdecimal() else None
    if first is None:
        raise click.BadParameter(f"{text[:40]!r} is not a month; write it like 2026-03")
    following = f"{int(year) + int(month) // 12:04}-{int(month) % 12 + 1:02}-01"
    return first, (time_of(following) or first) - 1
