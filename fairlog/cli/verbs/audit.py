"""The verbs that check the log: audit, reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click
import platformdirs
from click.core import ParameterSource
from msgspec.structs import asdict

from fairlog.cli import render
from fairlog.cli.decorators import on_cluster
from fairlog.cli.params import EXPORT, FOLDER, as_json, flag, named_option, read_point, span_options
from fairlog.cli.reached import check_reached
from fairlog.cli.target import Target, target_options
from fairlog.cli.whose import company_option
from fairlog.local.running import find_running
from recovery.archive import seal_files
from recovery.archive.reads import left, recorded
from recovery.replay.bounds import OPEN, Bound
from recovery.replay.rebuild import unhindered
from scheduler.model.errors import InvalidCommand, UnknownCompany, UnreadableRecord
from scheduler.model.text import counted
from scheduler.service.program_log import log_to_stderr
from scheduler.service.receipts import read_receipts
from scheduler.service.seals import lost_reads
from scheduler.store.codec import read_export
from scheduler.store.eventlog import EventLog
from witness.audit import spans
from witness.audit.audit import Audit
from witness.audit.deviation import CommonCause
from witness.audit.proofs import Proofs

if TYPE_CHECKING:
    from fairlog.cli.session import Session
    from recovery.archive.seal_files import KeptSeal
    from scheduler.store.codec import Fact

_NOWHERE = 1 << 63


@click.command()
@click.argument("file", type=EXPORT, required=False)
@span_options
@company_option("Report only what concerns this company or all companies.")
@flag("--all", "everything", help="List every deviation, not only the first of each cause.")
@click.option(
    "--expect",
    type=read_point,
    metavar="SEQ:DIGEST",
    help="Check that the log contains this point, as `fairlog checkpoint` printed it.",
)
@click.option(
    "--golden",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Audit every *.jsonl file in DIR instead, and report what this version would decide differently.",
)
@click.option("--receipts", type=EXPORT, metavar="FILE", help="Compare the log with the receipts in FILE.")
@named_option("--seals", metavar="URL", help="Compare the log with the seals that masters have kept below URL.")
@flag("--follow", help="Go on with what is appended to the log, as a service does, until SIGTERM or SIGINT.")
@click.option(
    "--checkpoints",
    type=FOLDER,
    metavar="DIR",
    envvar="FAIRLOG_AUDIT_CHECKPOINTS",
    show_envvar=True,
    help="With --follow: where it keeps how far it is, to go on from there.  [default: in the user's state folder]",
)
@as_json
@target_options()
@click.pass_context
def audit(  # noqa: PLR0913 - its options
    ctx: click.Context,
    /,
    *,
    file: IO[bytes] | None,
    first: Bound,
    last: Bound,
    company: str | None,
    everything: bool,
    expect: tuple[int, str] | None,
    golden: Path | None,
    receipts: IO[bytes] | None,
    seals: str | None,
    follow: bool,
    checkpoints: Path | None,
    as_json: bool,
) -> int:
    """Check every decision in the log against the rules.

    The audit makes every decision of the log again, from the state before it, and compares the result with the log.
    Commands are inputs and are believed, including the reports of workers: an executor started or ended, an app ended,
    tasks are waiting.

    The verdict is one sentence for each cause; --all lists all deviations. With --json, each verdict contains its later
    deviations. --expect detects a log whose end was cut off, --receipts and --seals one that was rewritten
    although its chain was made anew.

    With FILE (- is stdin), a complete log written by `fairlog log --json`, no store is needed. Exits with 1 if
    anything deviates. The audit always reads the log from its start; --from limits the report only. The whole log in a
    store is audited on all cores, from snapshot to snapshot, unless --from, --to, --expect, --receipts or --seals
    is given.

    With --follow, it goes on with every turn as it is committed. It keeps checkpoints, so that it need not begin anew,
    and writes its position and verdict into the store, where `fairlog status`, the API and alerts find them. Every
    deviation is a line of its own log. It waits for a store that is away, and exits with 1 if anything deviated.
    """
    if _is_followed(ctx, follow=follow):
        return _follow(ctx.ensure_object(Target), checkpoints)
    if golden is not None and (file is not None or expect is not None):
        raise click.UsageError("--golden reads logs from a folder; leave out FILE and --expect")
    if expect is not None and last != OPEN:
        raise click.UsageError("--expect needs the whole log; leave out --to")
    proofs = _proofs(receipts, seals)
    if proofs is not None and (golden is not None or company is not None or (first, last) != (OPEN, OPEN)):
        raise click.UsageError("--receipts and --seals need one whole log; leave out --golden, --company, --from, --to")
    found: list[tuple[str, CommonCause]] = []
    whole = (expect, proofs, first, last) == (None, None, OPEN, OPEN)
    for name, log in _logs(file, golden, whole=whole):
        audited = _by_spans(log) if isinstance(log, EventLog) else _one_by_one(log, expect, proofs, first, last)
        verdicts = _verdicts(audited, name, company)
        if proofs is not None and audited.blind_from is None:
            verdicts = [*verdicts, *map(CommonCause, proofs.deviations())]
        _check_span(audited, first, last)
        if not as_json:
            _print_verdicts(f"{name}: " if golden else "", audited, verdicts, everything=everything)
        found += [(name, each) for each in verdicts]
    if as_json:
        render.print_json([{**({"file": name} if golden else {}), **each.as_json()} for name, each in found])
    return 1 if found else 0


_NOT_FOLLOWED = {
    "file": "FILE",
    "first": "--from",
    "last": "--to",
    "company": "--company",
    "everything": "--all",
    "expect": "--expect",
    "golden": "--golden",
    "receipts": "--receipts",
    "seals": "--seals",
    "as_json": "--json",
}
"""What cannot be combined with --follow."""


def _is_followed(ctx: click.Context, *, follow: bool) -> bool:
    """`follow`. Raises: click.UsageError if it is combined with what concerns a log that has an end, or the reverse."""
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if not follow and "checkpoints" in given:
        raise click.UsageError("--checkpoints needs --follow")
    if follow and (wrong := [option for name, option in _NOT_FOLLOWED.items() if name in given]):
        raise click.UsageError(f"--follow takes no {wrong[0]}; leave one of them out")
    return follow


def _follow(target: Target, checkpoints: Path | None) -> int:
    """Audit the log as it grows. Returns 1 if anything deviated."""
    from fairlog.cli.session import locate  # noqa: PLC0415 (help needs no store)
    from fairlog.watch.auditor import run_auditor  # noqa: PLC0415 (likewise)

    url, cluster, _ = locate(target)
    log_to_stderr()
    folder = checkpoints or platformdirs.user_state_path("fairlog") / "audit"
    return 1 if run_auditor(url, cluster, folder, archive_url=target.archive) else 0


def _proofs(receipts: IO[bytes] | None, seals: str | None) -> Proofs | None:
    """What the log is compared with; None if nothing is named."""
    if receipts is None and seals is None:
        return None
    kept: list[KeptSeal] = []
    if seals is not None:
        target = click.get_current_context().ensure_object(Target)
        up = None if target.cluster else find_running(target.data)
        kept = list(seal_files.kept(seals, target.cluster or (up.cluster if up else "default")))
        if not kept:
            raise InvalidCommand(f"{seals} holds no seal of the cluster; name it with --cluster")
    return Proofs(read_receipts(receipts) if receipts is not None else (), kept)


@click.command()
@as_json
@on_cluster
def reads(session: Session, *, as_json: bool) -> None:
    """List who read what is private: outputs and private parts of the log.

    The list is kept in the store beside the log, chained by digests and signed by API servers; its end is sealed with
    the log's, and its oldest entries are archived with the log's. All of it is checked. Where nothing is archived, the
    oldest entries are dropped once there are 100,000, which this verb says.
    """
    road = session.road
    told = [fact.event for fact in session.facts()]  # first, so that all that they seal is recorded
    signed = None if road.keyring is None else road.keyring.is_signed
    numbered = list(recorded(road.store, road.keys, elsewhere=session.target.archive, is_signed=signed))
    parts = left(road.store, road.keys)
    dropped = [part for part in parts if not part.folder]
    numbers = {part.digest: part.last for part in parts} | {each.digest: number for number, each in numbered}
    if (lost := lost_reads(told, numbers, max((part.last for part in dropped), default=0))) is not None:
        raise UnreadableRecord(lost, "the seal of this position covers a read that is no longer recorded")
    if dropped:
        number = sum(part.last - part.first + 1 for part in dropped)
        render.say(f"{number} reads were dropped, because nobody archived them; see `fairlog archive`")
    found = [each for _, each in numbered]
    rows = [{**each._asdict(), "by": asdict(each.by)} for each in found]
    shown = [{**each._asdict(), "at": render.moment(each.at), **asdict(each.by)} for each in found]
    render.print_records(
        rows if as_json else shown,
        "at account role what subject reason",
        empty="Nobody has read what is private.",
        as_json=as_json,
    )


def _logs(
    file: IO[bytes] | None, golden: Path | None, *, whole: bool
) -> Iterator[tuple[str, Iterable[Fact] | EventLog]]:
    """The logs to audit, with their names: every file of the folder `golden`, `file`, or the selected cluster's log.

    The latter with its snapshots if it is audited as a `whole`, unless it comes through the API.
    """
    if golden is not None:
        files = sorted(golden.glob("*.jsonl"))
        if not files:
            raise InvalidCommand(f"{golden} contains no log; logs are files whose names end with .jsonl")
        for path in files:
            with path.open("rb") as lines:
                yield path.name, read_export(lines)
    elif file is not None:
        yield getattr(file, "name", "the file"), read_export(file)
    else:
        from fairlog.cli.sources import Source  # noqa: PLC0415 (help needs no store)

        session = Source(click.get_current_context(), None).session
        yield "the log", session.whole_log() if whole else session.facts()


def _expected(entries: Iterable[Fact], point: tuple[int, str]) -> Iterator[Fact]:
    """The entries. Raises: InvalidCommand once they show that the log does not contain the point."""
    seq, digest = point
    missing = f"this log does not contain {seq}:{digest}"
    latest: Fact | None = None
    for latest in entries:
        if latest.digest and latest.turn <= seq <= latest.seq:
            if latest.seq != seq:
                raise InvalidCommand(
                    f"position {seq} is inside the turn {latest.turn} to {latest.seq}; "
                    f"give the digest of position {latest.seq}"
                )
            if latest.digest != digest:
                raise InvalidCommand(f"{missing}; its digest there is {latest.digest}")
        yield latest
    ended_at = 0 if latest is None else latest.seq
    if ended_at < seq:
        raise InvalidCommand(f"{missing}: it ends at position {ended_at}, so its end was cut off")


def _spanned(audited: Audit, entries: Iterable[Fact], first: Bound, last: Bound) -> Iterator[Fact]:
    """Yield the entries and set the audit's span by position.

    An altered entry belongs to the span or not by the time that it states.
    """
    audited.first, audited.last = first.seq or 1 if first.at is None else _NOWHERE, last.seq
    try:
        for entry in entries:
            if audited.first == _NOWHERE and first.reached(entry):
                audited.first = entry.seq
            if audited.last is None and last.passed(entry):
                audited.last = entry.seq - 1
            yield entry
    except UnreadableRecord as error:
        if audited.last is None and last.at is not None and error.at is not None and error.at > last.at:
            audited.last = error.seq - 1
        raise


def _check_span(audited: Audit, first: Bound, last: Bound) -> None:
    """Raises: InvalidCommand, NotThatLong if the log, as far as it can be read, ends before the span does."""
    if audited.ends_at < audited.first and first != OPEN:
        raise InvalidCommand(f"the log ends at {audited.ends_at}, before --from {first}")
    if audited.blind_from is None:
        check_reached(last, audited.ends_at, audited.state.at)


def _by_spans(log: EventLog) -> Audit:
    """The audit of the whole log, on all cores."""
    try:
        return spans.audited(log, spans.processes(), progress=lambda count: render.progress(counted(count, "entry")))
    finally:
        render.progress("")


def _one_by_one(
    entries: Iterable[Fact], expect: tuple[int, str] | None, proofs: Proofs | None, first: Bound, last: Bound
) -> Audit:
    """The audit of a log whose entries only come one after the other. Raises: InvalidCommand as `_expected`."""
    audited = Audit()
    proven = entries if expect is None else _expected(entries, expect)
    proven = proven if proofs is None else proofs.heard(proven)
    with unhindered():
        for _ in audited.deviations(render.counted(_spanned(audited, proven, first, last))):
            pass
    return audited


def _verdicts(audited: Audit, name: str, company: str | None) -> list[CommonCause]:
    """The verdicts on the log; with `company`, only those that concern it.

    Raises: InvalidCommand for a log without entries, UnknownCompany.
    """
    if not audited.events and not audited.verdicts:
        raise InvalidCommand(f"{name} has no entry")
    if company is None:
        return audited.verdicts
    if company not in audited.companies and audited.blind_from is None:
        raise UnknownCompany(company)
    return [each for each in audited.verdicts if each.concerns(company)]


def _print_verdicts(name: str, audited: Audit, verdicts: list[CommonCause], *, everything: bool) -> None:
    checked = f"{counted(audited.events, 'entry')} and {counted(audited.decisions, 'decision')} were checked"
    end = f"up to {audited.ends_at}:{audited.digest}"
    if not verdicts:
        click.echo(f"{name}This log follows its rules: {checked}, {end}.")
        _print_restored(name, audited)
        return
    for verdict in verdicts:
        click.echo(f"{name}{verdict}")
    if audited.events:
        click.echo(f"{checked}, {end}; reports of workers were believed.")
    if everything:
        found = sorted(each for verdict in verdicts for each in (verdict.first, *verdict.later))
        rows = [(each.seq, each.rule, each.done, each.due, each.entitled) for each in found]
        render.print_table(("SEQ", "RULE", "DONE", "DUE", "ENTITLED"), rows, empty="")
    elif any(verdict.later for verdict in verdicts):
        render.tell("`fairlog audit --all` lists every deviation.")
    _print_restored(name, audited)


def _print_restored(name: str, audited: Audit) -> None:
    for each in audited.restored:
        click.echo(f"{name}{each}")
