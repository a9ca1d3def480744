"""The verbs by which the log bears witness: explain, audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from fairlog.cli import render
from fairlog.cli.decorators import on_log
from fairlog.cli.params import EXPORT, as_json, read_text, span_options
from fairlog.cli.target import Place, in_the_past, place_options
from recovery.replay.bounds import OPEN, Bound
from recovery.replay.chain import read_export, read_store
from recovery.replay.rebuild import unhindered
from scheduler.model.errors import InvalidCommand, UnknownCompany
from scheduler.model.resources import size_text
from witness.audit.audit import Audit, Deviation
from witness.explain import explain as tell

if TYPE_CHECKING:
    from fairlog.cli.sources import Source
    from scheduler.store.codec import Fact

_NOWHERE = 1 << 63


@click.command()
@click.argument("app", type=read_text)
@in_the_past
@as_json
@on_log
def explain(source: Source, *, app: str, as_json: bool) -> None:
    """Explain why an app waits, or why it was admitted and placed as it was.

    Everything is derived from the log and cites the rules of docs/semantics.md: what the app waits for, which
    companies and users competed with it, and how its waiting time divides by cause.
    """
    told = tell(render.counted(source), app, now=source.now_ms)
    if as_json:
        render.print_json(told)
    else:
        _print_story(told)


def _print_story(told: dict[str, Any]) -> None:
    click.echo(f"app       {told['app']} of {told['user']} at {told['company']}, {told['state']} at {told['head']}")
    waits, admission = told["waitsFor"], told["admission"]
    if waits:
        click.echo(f"waits     {waits['cause']} ({waits['rule']}): {waits['text']}")
    if told["queue"]:
        click.echo(
            f"queue     number {told['queue']['place']} of {told['queue']['of']} that {told['user']} has pending"
        )
    for each in told["waited"]["byCause"]:
        click.echo(f"waited    {each['ms']} ms: {each['cause']} ({each['rule']})")
    click.echo(f"waited    {told['waited']['ms']} ms in all, until {render.moment(told['endedAt'] or told['at'])}")
    if told["detail"]:
        click.echo(f"ended     {told['detail']}")
    if admission:
        _print_admission(admission)
    for driver in told["drivers"]:
        size = f"{driver['cores']} cores, {size_text(driver['memory'])} on {driver['worker']}"
        click.echo(f"driver    {driver['driver']} at {driver['seq']}: {size}")
        click.echo(f"          {driver['why']['text']} ({driver['why']['rule']})")
    for executor in told["executors"]:
        size, why = (
            f"{executor['cores']} cores, {size_text(executor['memory'])} on {executor['worker']}",
            executor["why"],
        )
        click.echo(f"executor  {executor['executor']} at {executor['seq']}: {size}")
        for name in ("size", "memory", "workers"):
            click.echo(f"          {why[name]} ({why[f'{name}Rule']})")


def _print_admission(admission: dict[str, Any]) -> None:
    click.echo(f"admitted  at {admission['seq']}, {render.moment(admission['at'])}")
    for reason in admission["why"]:
        click.echo(f"          {reason['text']} ({reason['rule']})")
    click.echo("          the candidates were")
    rows = []
    for user in admission["users"]:
        company = next(each for each in admission["companies"] if each["company"] == user["company"])
        part = "yes" if company["takesPart"] and user["passes"] else "no, capped"
        last = (company["lastSelected"], user["user"], user["lastSelected"], user["app"])
        rows.append((company["company"], render.percent(company["share"]), part, *last))
    columns = ("COMPANY", "SHARE", "TAKES PART", "LAST TURN", "USER", "LAST TURN", "NEXT APP")
    render.print_table(columns, rows, empty="none but this one")


@click.command()
@click.argument("file", type=EXPORT, required=False)
@span_options
@click.option(
    "--company", type=read_text, metavar="C", help="Report only deviations that concern this company or all companies."
)
@click.option(
    "--golden",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Audit every *.jsonl file in DIR instead, and report what this version would decide differently.",
)
@as_json
@place_options()
@click.pass_context
def audit(
    ctx: click.Context,
    *,
    file: IO[bytes] | None,
    first: Bound,
    last: Bound,
    company: str | None,
    golden: Path | None,
    as_json: bool,
) -> int:
    """Check every decision in the log against the rules.

    With FILE (- is stdin), a complete log written by `fairlog log --json`, no store is needed. Exits with 1 if
    anything deviates. The audit always reads the log from its start; --from limits the report only.
    """
    if golden is not None and file is not None:
        raise click.UsageError("--golden reads logs from a folder; leave out FILE")
    found: list[tuple[str, Deviation]] = []
    for log in _logs(ctx, file, golden):
        audited, name = Audit(), log.name
        meant = _Log(name, _spanned(audited, log.entries, first, last))
        found += [(name, each) for each in _deviations(audited, meant, company)]
        if audited.ends_at < audited.first and first != OPEN:
            raise InvalidCommand(f"the log ends at {audited.ends_at}, before --from {first}")
        if not as_json:
            _print_summary(name, audited, sum(where == name for where, _ in found))
    if as_json:
        render.print_json([{**({"file": name} if golden else {}), **each.as_json()} for name, each in found])
    elif found:
        rows = [(name, each.seq, each.rule, each.done, each.due, each.entitled) for name, each in found]
        columns = ("LOG", "SEQ", "RULE", "DONE", "DUE", "ENTITLED")
        skip = 0 if golden else 1
        render.print_table(columns[skip:], [row[skip:] for row in rows], empty="")
    return 1 if found else 0


class _Log(NamedTuple):
    """A log by its name."""

    name: str
    entries: Iterable[Fact]


def _logs(ctx: click.Context, file: IO[bytes] | None, golden: Path | None) -> Iterator[_Log]:
    """Each log that is meant."""
    if golden is not None:
        files = sorted(golden.glob("*.jsonl"))
        if not files:
            raise InvalidCommand(f"{golden} contains no log; logs are files whose names end with .jsonl")
        for path in files:
            with path.open("rb") as lines:
                yield _Log(path.name, read_export(lines))
    elif file is not None:
        yield _Log(getattr(file, "name", "the file"), read_export(file))
    else:
        from fairlog.cli.session import Session  # noqa: PLC0415 (a file needs no store)

        session = Session(ctx.ensure_object(Place))
        ctx.call_on_close(session.close)
        yield _Log("the log", read_store(session.log))


def _spanned(audited: Audit, entries: Iterable[Fact], first: Bound, last: Bound) -> Iterable[Fact]:
    """The entries; the audit is told the positions of the span as they are known, before the entries that decide it."""
    audited.first, audited.last = first.seq or 1, last.seq
    if first.at is None and last.at is None:
        return entries
    if first.at is not None:
        audited.first = _NOWHERE
    return _dated(audited, entries, first, last)


def _dated(audited: Audit, entries: Iterable[Fact], first: Bound, last: Bound) -> Iterator[Fact]:
    for entry in entries:
        if audited.first == _NOWHERE and first.reached(entry):
            audited.first = entry.seq
        if audited.last is None and last.passed(entry):
            audited.last = entry.seq - 1
        yield entry


def _deviations(audited: Audit, log: _Log, company: str | None) -> list[Deviation]:
    """What of the log deviates, of that company or everybody's.

    Raises: InvalidCommand for a log without entries or that ends before, UnknownCompany.
    """
    with unhindered():
        found = list(audited.deviations(render.counted(log.entries)))
    if not audited.events and not found:
        raise InvalidCommand(f"{log.name} holds no entry")
    if company is None:
        return found
    if company not in audited.companies and audited.blind_from is None:
        raise UnknownCompany(company)
    return [each for each in found if not each.companies or company in each.companies]


def _print_summary(name: str, audited: Audit, deviations: int) -> None:
    number = {0: "nothing deviates", 1: "1 deviation"}.get(deviations, f"{deviations} deviations")
    click.echo(f"{name}: {audited.events} entries, {audited.decisions} decisions worked out again, {number}")
    if audited.blind_from is not None:
        click.echo(f"from position {audited.blind_from} on only the chain could be verified: the state is not known")
    click.echo(f"read up to {audited.ends_at}, digest {audited.digest}")
