"""The verb `explain`: why an app waits, or was placed as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlog.cli import render
from fairlog.cli.choice import app_argument, full_id
from fairlog.cli.decorators import on_log
from fairlog.cli.estimates import print_estimate
from fairlog.cli.params import as_json
from fairlog.cli.target import in_the_past
from fairlog.cli.times import localized
from fairlog.efficiency import in_words
from scheduler.model.errors import FairlogError, NotAllowed
from scheduler.model.resources import size_text
from scheduler.model.text import counted, one_line
from witness.failing import exclusion_in_words

if TYPE_CHECKING:
    from fairlog.cli.sources import Source


@click.command()
@app_argument
@in_the_past
@as_json
@on_log
def explain(source: Source, *, app: str, as_json: bool) -> None:
    """Explain why an app waits, or why it was admitted and placed as it was.

    Everything is derived from the log and cites the rules of docs/semantics.md: what the app waits for, which
    companies and users competed with it, and how its waiting time divides by cause.

    An API server, where there is one, reads the log; this verb reads it with --at or FILE, and if the server does not
    answer.
    """
    if not source.past:
        app = full_id(source.session, app)
    told = _told(source, app)
    if as_json:
        render.print_json(told)
    else:
        render.print_verdict(told.pop("verdict"))
        _print_story(told)


def _told(source: Source, app: str) -> dict[str, Any]:
    """What there is to tell of the app, and what an audit says of the log.

    Raises: UnknownApp; NotAllowed if it is somebody else's, in the past and forgotten too (semantics I3); as `Session`.
    """
    server = None if source.past else source.session.server
    if server is None:
        told = _read(source, app)
    else:
        try:
            return server.explain(app, audited=True)
        except NotAllowed:
            raise
        except FairlogError as problem:  # the log still tells of an app that servers have forgotten; it may be too long
            try:
                told = _read(source, app)
            except NotAllowed:
                raise problem from None
    if not source.sees()(told["company"], told["user"]):
        from scheduler.rules.command.permission import not_of  # noqa: PLC0415 (likewise)

        raise not_of(source.session.account(), "read", f"{told['company']}/{told['user']}")
    return told


def _read(source: Source, app: str) -> dict[str, Any]:
    """The explanation from the log itself."""
    from witness.audit.audit import Audited  # noqa: PLC0415 (an API server has loaded what reads the log)
    from witness.explain import explain as tell  # noqa: PLC0415 (likewise)

    audited = Audited(source)
    told = tell(render.counted(audited), app, now=source.now_ms)
    return {"verdict": audited.verdict, **told}


def _print_story(told: dict[str, Any]) -> None:
    ended = told["ended"]
    since = f"{told['state']} at {told['head']}"
    if ended is not None:
        since = f"{told['state']} at {ended['seq']}, {render.moment(ended['at'])}"
    click.echo(f"app       {told['app']} of {told['user']} at {told['company']}, {since}")
    _print_waiting(told)
    if told["runtime"]:
        over = told["runtime"]["expiredAt"]
        since = "(X1)" if over is None else f"and was told to stop at {render.moment(over)} (X2)"
        click.echo(f"ran       {told['runtime']['ranMs']} ms of {told['runtime']['maxRuntime']} s that it may {since}")
    if told["endedAt"] and told.get("spent") and told["spent"]["toldCoreMs"]:
        click.echo(f"used      {in_words(told['spent'])} (O5)")
    for asked in told["askedFor"]:
        _print_sender(told, asked)
    if told["detail"]:
        click.echo(f"ended     {one_line(told['detail'])}")
    if told["admission"]:
        _print_admission(told["admission"])
    for driver in told["drivers"]:
        size = f"{counted(driver['cores'], 'core')}, {size_text(driver['memory'])} on {driver['worker']}"
        click.echo(f"driver    {driver['driver']} at {driver['seq']}: {size}")
        click.echo(f"          {localized(driver['why']['text'])} ({driver['why']['rule']})")
    _print_executors(told)
    _print_targets(told)


def _print_waiting(told: dict[str, Any]) -> None:
    """What it is entitled to, why it waits now, and why it waited."""
    waits = told["waitsFor"]
    if told["standing"]:
        click.echo(f"stands    {localized(told['standing']['text'])}")
    if waits:
        click.echo(f"waits     {waits['cause']} ({waits['rule']}): {localized(waits['text'])}")
    if told["queue"]:
        click.echo(
            f"queue     number {told['queue']['place']} of {told['queue']['of']} that {told['user']} has pending"
        )
    print_estimate(told["estimate"], told["at"])
    for each in told["waited"]["byCause"]:
        click.echo(f"waited    {each['ms']} ms: {each['cause']} ({each['rule']})")
    click.echo(f"waited    {told['waited']['ms']} ms in all, until {render.moment(told['endedAt'] or told['at'])}")


def _print_sender(told: dict[str, Any], asked: dict[str, Any]) -> None:
    """Say who sent a command and in which role; who needs no account is named only for what is done to others."""
    account, role = asked["by"]["account"], asked["by"]["role"]
    if account.startswith("local/"):
        if asked["command"] == "SubmitApp":
            return
        who = f"{account}, who owns the socket or the store"
    else:
        company = account.partition("/")[0] if role in ("user", "admin") else "the cluster"
        who = f"{account}, {role} of {company}"
    whose = "" if account == f"{told['company']}/{told['user']}" else f"; the app is {told['company']}/{told['user']}'s"
    said = f": refused, {asked['refused']}" if asked["refused"] else f": {asked['reason']}" if "reason" in asked else ""
    click.echo(f"asked     {asked['command']} at {asked['seq']} by {who}{whose}{said} (I3)")


def _print_executors(told: dict[str, Any]) -> None:
    for executor in told["executors"]:
        size, why = f"{counted(executor['cores'], 'core')}, {size_text(executor['memory'])}", executor["why"]
        click.echo(f"executor  {executor['executor']} at {executor['seq']}: {size} on {executor['worker']}")
        for name in ("size", "memory", *(["resources"] if "resources" in why else []), "workers"):
            click.echo(f"          {localized(why[name])} ({why[f'{name}Rule']})")
    for exclusion in told["excludedWorkers"]:
        click.echo(
            f"excluded  {localized(exclusion_in_words(exclusion))} ({'W9' if exclusion['unstartable'] else 'W7'})"
        )


def _print_targets(told: dict[str, Any]) -> None:
    for target in told["targets"]:
        size = f"{counted(target['cores'], 'core')}, {size_text(target['memory'])} on {target['worker']}"
        click.echo(f"target    {size}, since {render.moment(target['since'])}, by {target['why']} (H6)")
        for one in target["leaving"]:
            by = "once its tasks have ended"
            if one["deadline"] is not None:
                by = f"by {render.moment(one['deadline'])}, and is gone a grace later at the latest"
            click.echo(f"          {one['executor']} leaves, {by} (H7)")
    for loss in told["losses"]:
        shares = loss["shares"]
        click.echo(
            f"lost      {loss['executor']} at {loss['seq']}, {render.moment(loss['at'])}, to {loss['claimant']} of "
            f"{loss['claimantCompany']}, which waits since {render.moment(loss['since'])} ({loss['rule']})"
        )
        click.echo(
            f"          {_of_what(loss)}: {told['company']} {shares['loser_before']} before, "
            f"{shares['loser_after']} after; {loss['claimantCompany']} {shares['claimant_before']} before, "
            f"{shares['claimant_after']} after"
        )


def _of_what(loss: dict[str, Any]) -> str:
    """What the shares of a receipt are: of entitlements (H7), or of parts by the second edition."""
    return "granted of their parts" if loss["why"] is None else f"executors of those entitled ({loss['why']})"


def _print_admission(admission: dict[str, Any]) -> None:
    click.echo(f"admitted  at {admission['seq']}, {render.moment(admission['at'])}")
    for reason in admission["why"]:
        click.echo(f"          {localized(reason['text'])} ({reason['rule']})")
    click.echo("          the candidates were")
    rows = []
    for user in admission["users"]:
        company = next(each for each in admission["companies"] if each["company"] == user["company"])
        part = "yes" if company["takesPart"] and user["passes"] else f"no, {user['keptOutBy'] or 'quota'}"
        last = (company["lastSelected"], user["user"], user["lastSelected"], user["app"])
        rows.append((company["company"], render.percent(company["share"]), part, *last))
    columns = ("COMPANY", "SHARE", "TAKES PART", "LAST TURN", "USER", "LAST TURN", "NEXT APP")
    render.print_table(columns, rows, empty="none but this one")
