"""The verbs that measure the log: fairness, statement."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

import click

from fairlog.cli import render
from fairlog.cli.decorators import on_log
from fairlog.cli.params import as_json, file_option, flag, span_options, text_option
from fairlog.cli.reached import check_reached
from fairlog.cli.whose import company_option, is_typed
from fairlog.efficiency import in_words
from recovery.replay.bounds import OPEN, Bound, month_of
from scheduler.model.errors import InvalidCommand
from scheduler.model.text import cell
from witness.hours import AMOUNTS, hours, kind_hours, kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlog.cli.sources import Source

By = Literal["company", "user", "department"]
Level = Literal["department", "company", "user"]


def read_month(text: str) -> str:
    """A month, written `YYYY-MM`. Raises: click.BadParameter."""
    try:
        month_of(text)
    except InvalidCommand as error:
        raise click.BadParameter(str(error)) from None
    return text


@click.command()
@span_options
@click.option(
    "--by",
    type=click.Choice(["company", "user", "department"]),
    default="company",
    show_default=True,
    help="Report per company, per user, or per department.",
)
@file_option("--html", help="Write a page of charts to FILE.")
@as_json
@on_log
def fairness(source: Source, *, first: Bound, last: Bound, by: By, html: Path | None, as_json: bool) -> None:
    """Report how fair the log was to companies, users or departments.

    Entitlement is the max-min fair share of all resources, by water-filling over quotas and limited by demand
    (Dominant Resource Fairness, Ghodsi 2011). Shortfall is the entitlement that was not granted, in core-seconds;
    fairness error (as in Armada) is its mean as a part of the cluster. Jain's index is computed over granted /
    entitled. Finish-time fairness (Themis, Mahajan 2020) is the time taken divided by the time on a dedicated 1/N of
    the cluster. Out of turn is the longest time that a company or user with a pending app stayed below entitlement.
    An app waits from when it is ready until its first executor or its driver is granted; who waits still counts as
    long as it has. GRANTED is what executors and drivers hold, the mean over the span.

    By department, a line sums up all companies in the department, however deep, and JAIN compares what is directly in
    it. Companies in no department have a line of their own.

    --html writes one page that needs no network.
    """
    report = None
    if not source.past and html is None and (first, last) == (OPEN, OPEN):
        report = source.session.worked_out("/v1/fairness", view="shares", by=by)
    if report is None:
        report, waits = _measured(source, first, last, by)
        if html is not None:
            from fairlog.cli import fairness_page  # noqa: PLC0415 (only --html needs it)
            from recovery.archive.files import whole_file  # noqa: PLC0415 (likewise)

            with whole_file(html) as draft:
                draft.write_text(fairness_page.page(report, waits), encoding="utf-8")
    if as_json:
        render.print_json(report)
    else:
        _print_fairness(report)
        if html is not None:
            click.echo(f"\ncharts    {html}")


def _measured(source: Source, first: Bound, last: Bound, by: By) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The report, worked out here from the log, and the waits by party."""
    from recovery.replay.window import measure  # noqa: PLC0415 (loads the rules, which an API server does without)
    from witness.audit.audit import Audited  # noqa: PLC0415 (likewise)
    from witness.fairness import Fairness  # noqa: PLC0415 (likewise)

    meter = Fairness(by=by)
    audited = Audited(source)
    state, span = measure(render.counted(audited), meter, first=first, last=last)
    check_reached(last, state.head, state.at)
    report = {"verdict": audited.verdict, "log": span.as_json(), **meter.report(state)}
    return report, meter.waits(span.last_at)


def _print_fairness(report: dict[str, Any]) -> None:
    whole, log = report["cluster"], report["log"]
    render.print_verdict(report["verdict"])
    click.echo(_in_a_sentence(report))
    click.echo()
    click.echo(f"log       {log['from']} to {log['to']}, {render.duration(log['toAt'] - log['fromAt'])}")
    click.echo(f"digest    {log['digest']}")
    click.echo(f"Jain      {_number(whole['jain'])}")
    error = whole["fairnessError"]
    owed = "-" if error is None else f"{100 * error:.1f}%"
    click.echo(f"shortfall on average {owed} of the cluster was owed to somebody and not given")
    click.echo(f"used      {_number(whole['utilisation'])} of the cores, apps pending: {_number(whole['queueLength'])}")
    who = {"user": ("COMPANY", "USER"), "department": ("DEPARTMENT", "COMPANY")}.get(report["by"], ("COMPANY",))
    cores = (_CORES, _cores) if report["by"] != "department" else (("JAIN", *_CORES), _with_jain)
    tables = (cores, (_WAITS, _waits)) if report["rows"] else ((_CORES, _cores),)
    for headings, figures in tables:
        rows = [(*(row[name.lower()] or "-" for name in who), *figures(row)) for row in report["rows"]]
        click.echo()
        render.print_table((*who, *headings), rows, empty="No app existed in this span.")
    if kinds := whole.get("resources"):
        rows = [
            (kind, *(row[name.lower()] or "-" for name in who), *map(_number, _of_kind(row["resources"][kind])))
            for kind in kinds
            for row in report["rows"]
            if kind in row.get("resources", {})
        ]
        click.echo()
        render.print_table(("KIND", *who, *_CORES[:3], "SHORT, S"), rows, empty="")
    _print_lost((" ".join(row[name.lower()] for name in who), row) for row in report["rows"])


def _in_a_sentence(report: dict[str, Any]) -> str:
    """Whether everybody held what was due, and who missed the most."""
    if not report["rows"]:
        return "No app existed in this span, so nothing was due to anybody."
    short = sorted((row for row in report["rows"] if row["shortfallCoreS"]), key=lambda row: -row["shortfallCoreS"])
    if not short:
        return "Everybody held all that was due, at every moment."
    most, span_s = short[0], (report["log"]["toAt"] - report["log"]["fromAt"]) / 1000
    who = f"{most['user']} of {most['company']}" if report["by"] == "user" else most["company"] or most["department"]
    due, owed = (most["entitledCores"] or 0) * span_s, report["cluster"]["shortfallCoreS"]
    others = "" if len(short) == 1 else f"; {len(short)} parties missed {owed:.0f} core-s in all"
    return f"{who} missed the most of what was due: {most['shortfallCoreS']:.0f} of {due:.0f} core-s{others}."


def _print_lost(parties: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Print what these lost to claims, if anything (semantics H7)."""
    lost = [(who, amounts["executorsLost"], amounts["lostCoreMs"]) for who, amounts in parties]
    for who, number, core_ms in (each for each in lost if each[1]):
        killed = f"; those that were killed had run {core_ms / 1000:g} core-s" if core_ms else ""
        click.echo(f"\n{who} lost {number} {'executor' if number == 1 else 'executors'} to claims of others{killed}")


_CORES = ("DEMAND", "ENTITLED", "GRANTED", "SHORT", "OUT OF TURN")
_WAITS = ("APPS", "WAIT P50", "P90", "P99", "LONGEST", "SLOWDOWN", "FINISH TIME")


def _cores(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        _number(row["demandCores"]),
        _number(row["entitledCores"]),
        _number(row["grantedCores"]),
        f"{row['shortfallCoreS']:g} core-s",
        render.duration(row["longestOutOfTurnMs"]),
    )


def _of_kind(figures: dict[str, Any]) -> list[float | None]:
    """The figures of a further kind, as `_CORES` names them."""
    return [figures[name] for name in ("demand", "entitled", "granted", "shortfallS")]


def _with_jain(row: dict[str, Any]) -> tuple[object, ...]:
    return _number(row["jain"]), *_cores(row)


def _waits(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["apps"],
        *(render.duration(row[f"wait{which}Ms"]) for which in ("P50", "P90", "P99", "Longest")),
        _number(row["boundedSlowdown"] and row["boundedSlowdown"]["mean"]),
        _number(row["finishTimeFairness"] and row["finishTimeFairness"]["mean"]),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


@click.command()
@company_option("Company to report on.  [default: that of your account]")
@text_option("--department", metavar="NAME", help="Department to report on, with all that was in it at the time.")
@click.option(
    "--by",
    type=click.Choice(["department", "company", "user"]),
    help="Lowest lines of a department's statement, or of the cluster's without one.  [default: company]",
)
@click.option("--month", required=True, type=read_month, metavar="YYYY-MM", help="Month to report on, in UTC.")
@flag("--csv", "as_csv", help="Print CSV, with the log's span and digest on every line; no cell is a formula.")
@as_json
@on_log
def statement(
    source: Source,
    /,
    *,
    company: str | None,
    department: str | None,
    by: Level | None,
    month: str,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Report a month's resource use of a company, a department or the cluster.

    Figures are core-hours, GiB-hours and hours of each further kind of resources. Requested is what apps requested,
    from admission to removal; granted is what their executors and drivers held. Used is what workers say that those
    have used which ended in the month. The report names the span of the log and the digest of its last entry, so that
    the figures can be verified.

    A company's statement has its users and apps. With --department or --by, a statement has departments and what was
    in them: a company counts in those that it was in at the time, so the lines of each level add up to the whole.

    Whoever may read the public log has a statement of every company worked out from it here, without what was used: an
    API server tells that the company's admins, operators and auditors alone (docs/security.md, rule I3).
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json cannot be combined; give one of them")
    if department is None and by is None:
        found = _of_company(source, company or _own_company(source), month)
    else:
        if is_typed("company"):
            raise click.UsageError("--company cannot be combined with --department or --by; leave one of them out")
        if department == "":
            raise click.UsageError("name a department; without --department, --by reports on the whole cluster")
        found = _of_departments(source, department or "", month, by or "company")
    if as_json:
        render.print_json(found.said)
    elif as_csv:
        if found.said["verdict"] is not None:
            click.echo(found.said["verdict"], err=True)
        click.echo(_csv(found), nl=False)
    else:
        _print_statement(found)


class StatementLine(NamedTuple):
    """A line of a statement: its level, what it is about, "" for all and None for no department, and its amounts."""

    level: str
    names: tuple[str | None, ...]
    amounts: dict[str, Any]


class Stated(NamedTuple):
    """A statement, what it is about, what its lines name, and the lines."""

    said: dict[str, Any]
    about: str
    columns: tuple[str, ...]
    lines: list[StatementLine]


def _of_company(source: Source, company: str, month: str) -> Stated:
    """The statement of a company: each user's apps, then the user; last the company."""
    said = None
    if not source.past:
        path = f"/v1/companies/{quote(company, safe='')}/statement"
        said = source.session.worked_out(path, view="shares", month=month)
    if said is None:
        from witness.statement import of_month  # noqa: PLC0415 (as in `_measured`)

        said = of_month(render.counted(source), company, month, month_of(month))
    lines = list[StatementLine]()
    for user in said["users"]:
        lines += [StatementLine("app", (user["user"], app["app"]), app) for app in user["apps"]]
        lines.append(StatementLine("user", (user["user"], ""), user))
    return Stated(said, "company", ("user", "app"), [*lines, StatementLine("company", ("", ""), said["total"])])


def _of_departments(source: Source, department: str, month: str, by: Level) -> Stated:
    """The statement of a department, or of the cluster: what is within each, then itself; last the whole."""
    said = None
    if not source.past:
        one = {"department": department} if department else {}
        said = source.session.worked_out("/v1/statement", view="shares", month=month, by=by, **one)
    if said is None:
        from witness.statement import of_departments  # noqa: PLC0415 (as in `_measured`)

        said = of_departments(render.counted(source), department, month, month_of(month), by)
    columns = _LEVELS[: _LEVELS.index(by) + 1]
    lines = [
        StatementLine(
            row["level"], ("/".join(row["departments"]) or None, row["company"], row["user"])[: len(columns)], row
        )
        for row in said["rows"]
    ]
    level = "department" if department else "cluster"
    return Stated(said, level, columns, [*lines, StatementLine(level, ("",) * len(columns), said["total"])])


_LEVELS: tuple[Level, ...] = ("department", "company", "user")


def _own_company(source: Source) -> str:
    """The company of the account. Raises: click.UsageError where there is none."""
    company = "" if source.is_file else source.session.own_company()
    if not company:
        raise click.UsageError("name the company with --company; your commands are sent by no account of a company")
    return company


def _csv(found: Stated) -> str:
    said, text = found.said, io.StringIO()
    log, writer = said["log"], csv.writer(text, lineterminator="\n")
    names = [*hours(said["total"]), *AMOUNTS]
    kinds = kinds_of(said)
    further = [f"{which}:{kind}" for kind in kinds for which in ("requestedHours", "grantedHours")]
    about = "company" if found.about == "company" else "statement_of"
    writer.writerow(["level", about, "month", *found.columns, *names, *further, *(f"log_{name}" for name in log)])
    for level, those, amounts in found.lines:
        row = [
            level,
            _reported(said),
            said["month"],
            *(name or "" for name in those),
            *(amounts[name] for name in names),
        ]
        row += [*(each for kind in kinds for each in kind_hours(amounts, kind)), *log.values()]
        writer.writerow(map(cell, row))
    return text.getvalue()


def _reported(said: dict[str, Any]) -> str:
    """The company or department that the statement is about; "" for the cluster."""
    name: str = said["company"] if "company" in said else said["department"]
    return name


def _print_statement(found: Stated) -> None:
    said = found.said
    render.print_verdict(said["verdict"])
    log = said["log"]
    click.echo(f"{found.about:<9} {', '.join(filter(None, (_reported(said), said['month'])))}")
    click.echo(
        f"log       {log['from']} to {log['to']}, {render.moment(log['fromAt'])} to {render.moment(log['toAt'])}"
    )
    click.echo(f"digest    {log['digest']}")
    click.echo()
    kinds, rows = kinds_of(said), []
    for _, names, amounts in found.lines:
        figures = [*hours(amounts).values(), *(each for kind in kinds for each in kind_hours(amounts, kind))]
        rows.append((*("all" if name == "" else name for name in names), *(f"{value:.3f}" for value in figures)))
    columns = [*map(str.upper, found.columns), "REQUESTED CORE-H", "GIB-H", "GRANTED CORE-H", "GIB-H"]
    columns += [f"{which} {kind.upper()}-H" for kind in kinds for which in ("REQUESTED", "GRANTED")]
    render.print_table(columns, rows, empty="")
    if (spent := said["total"].get("spent")) is not None:
        click.echo(f"\nused      {in_words(spent)}")
    lowest = "app" if found.about == "company" else found.columns[-1]
    _print_lost((_who(line), line.amounts) for line in found.lines if line.level == lowest)


def _who(line: StatementLine) -> str:
    """What the line is about, in words."""
    if line.level == "app":
        return f"{line.names[1]} of {line.names[0]}"
    return " ".join([name for name in line.names if name])
