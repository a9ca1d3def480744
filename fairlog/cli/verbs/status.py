"""The verb `status`: the health of the cluster, and health checks of this host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from fairlog.cli import params, render
from fairlog.cli.target import Target, in_the_past, target_options
from fairlog.cli.times import localized
from scheduler.model.errors import InvariantViolated, UnreadableRecord, UnsuitableStore
from scheduler.model.resources import size_text
from scheduler.service.program_log import masked

if TYPE_CHECKING:
    from redis.exceptions import RedisError

    from fairlog.cli.health import Health
    from fairlog.cli.session import Session

EXIT = {"ok": 0, "critical": 1, "warning": 3}
"""Severity -> the verb's exit code."""


@click.command()
@params.range_option(
    "--warn-at",
    *(0, 100),
    default=50,
    show_default=True,
    metavar="PERCENT",
    help="Warn if the log takes more than this percentage of the store's memory.",
)
@click.option(
    "--ready",
    "check",
    flag_value="ready",
    help="Health check: a master is active and this host takes part in the cluster.",
)
@click.option("--live", "check", flag_value="live", help="Health check: a master or worker of this host is running.")
@in_the_past
@params.as_json
@target_options()
@click.pass_context
def status(ctx: click.Context, *, as_json: bool, warn_at: int, check: str | None) -> int:
    """Show what is wrong, the active master, the standbys and the workers.

    The first line says what is wrong. Exits with 0 if nothing is, with 3 if the cluster works but something needs
    attention, and with 1 if it does not work. --ready and --live are health checks of this host: they print one
    sentence and exit with 0 if the check passes, else with 1. --live needs no store.
    """
    from fairlog.cli.session import opened  # noqa: PLC0415 (help needs no cluster)

    target = ctx.ensure_object(Target)
    if check is not None and target.at is not None:
        raise click.UsageError(f"--{check} checks the present; leave out --at")
    if check == "live":
        from fairlog.cli.health import live  # noqa: PLC0415 (loads what the store needs)

        return _print_health(check, live(target), as_json=as_json)
    try:
        session = opened(target)
    except UnsuitableStore as error:
        from redis.exceptions import RedisError  # noqa: PLC0415 (likewise)

        if check is not None or target.at is not None or not isinstance(error.__cause__, RedisError):
            raise
        return _print_away(error, target, as_json=as_json)
    ctx.call_on_close(session.close)
    if check is not None:
        from fairlog.cli.health import ready  # noqa: PLC0415 (likewise)

        return _print_health(check, ready(session), as_json=as_json)
    if target.at is not None:
        return _past_status(session, as_json=as_json)
    if (told := session.told()) is None:
        return _present_status(session, warn_at, as_json=as_json)
    facts = told.get("store", _UNKNOWN)  # an older API server does not tell it
    code = _print({**told, "store": session.place()}, as_json=as_json)
    _warn(facts["logBytes"], facts["memoryLimit"], warn_at)
    return code


_UNKNOWN = {"logBytes": 0, "memoryLimit": 0}


def _warn(taken: int, limit: int, warn_at: int) -> None:
    """Warn if the log takes more than so many percent of the store's memory."""
    if limit and taken * 100 > limit * warn_at:
        sizes = f"{size_text(taken >> 20)} of {size_text(limit >> 20)}"
        render.say(f"Warning: the log takes {sizes}, over {warn_at}% of the store's memory; see `fairlog archive`")


def _present_status(session: Session, warn_at: int, *, as_json: bool) -> int:
    from fairlog.cli.health import around_of  # noqa: PLC0415 (as in `status`)
    from fairlog.watch import conditions  # noqa: PLC0415 (likewise)
    from fairlog.watch.surroundings import since_when  # noqa: PLC0415 (likewise)
    from scheduler.rules.state.cluster import ClusterState  # noqa: PLC0415 (likewise)
    from scheduler.rules.view.views import look  # noqa: PLC0415 (likewise)

    road = session.road
    state, head = ClusterState(), road.log.head().seq
    around = around_of(session)
    try:
        state = road.reader.state()  # also of a store from which no master serves
        head = state.head
    except (UnreadableRecord, InvariantViolated) as error:
        around = around._replace(unreadable=str(error))
    agents, workers, cluster = road.agents(), [], look(state, "cluster", {})
    for worker in cluster["workers"]:
        name, agent = worker["worker"], agents.get(worker["worker"], {})
        place = {"pid": agent.get("pid"), "host": agent.get("host")}
        workers.append({"worker": name, **place, "status": worker["status"], "suspicion": worker["suspicion"]})
    election, holding = conditions.elected(state, around), conditions.found(state, around)
    said = {
        "cluster": session.cluster,
        "head": head,
        "health": conditions.as_json(since_when(road.store, road.keys, holding, around)),
        "master": around.serving and around.serving._asdict(),
        "standbys": [member._asdict() for member in around.standing_by],
        "election": election and election.as_json(),
        "workers": workers,
        "tooLarge": cluster["tooLarge"],
        "store": session.place(),
    }
    code = _print(said, as_json=as_json)
    if around.store is not None:
        _warn(around.store.log_bytes, around.store.memory_limit, warn_at)
    return code


def _print_away(error: UnsuitableStore, target: Target, *, as_json: bool) -> int:
    """Say that the store does not answer; of an `up`, also what it said last, and if its disk is full."""
    from fairlog.cli.health import around_without_store  # noqa: PLC0415 (as in `status`)
    from fairlog.cli.session import locate  # noqa: PLC0415 (likewise)
    from fairlog.watch import conditions  # noqa: PLC0415 (likewise)
    from scheduler.rules.state.cluster import ClusterState  # noqa: PLC0415 (likewise)
    from scheduler.store.transient import in_words  # noqa: PLC0415 (likewise)

    url, cluster, up = locate(target)
    why = in_words(cast("RedisError", error.__cause__))
    said: dict[str, Any] = {
        "cluster": cluster,
        "head": None,
        "health": conditions.as_json(conditions.found(ClusterState(), around_without_store(why, up, target.data))),
        "master": None,
        "standbys": [],
        "election": None,
        "workers": [],
        "tooLarge": 0,
        "store": {"url": masked(url), "pid": up and up.store_pid},
    }
    return _print(said, as_json=as_json)


def _print(said: dict[str, Any], *, as_json: bool) -> int:
    """Print the status. Returns the exit code."""
    health = said["health"]
    if as_json:
        render.print_json(said)
        return EXIT[health["severity"]]
    render.tell(f"health    {health['sentence']}")
    for each in health["conditions"]:
        alone = len(health["conditions"]) == 1 and each["sentence"] == health["sentence"]
        render.tell(f"{each['severity']:<8}  {'' if alone else each['sentence'] + ': '}{each['do']}")
        if each.get("cost"):  # an older API server does not tell it
            since = f"since {render.moment(each['since'])}: " if each["since"] else ""
            render.tell(f"{'':<10}{since}{each['cost']}")
    master = said["master"]
    process = f" (process {said['store']['pid']})" if said["store"]["pid"] else ""
    where = "" if said["head"] is None else f", log at {said['head']}"
    click.echo(f"cluster   {said['cluster']}{where}")
    click.echo(f"store     {said['store']['url']}{process}")
    if said["head"] is not None:
        click.echo(f"master    {_member(master) if master else 'none active'}")
    if (election := said.get("election")) is not None:
        click.echo(f"elected   {_elected(election)}")
    for member in said["standbys"]:
        click.echo(f"standby   {_member(member)}")
    for worker in said["workers"]:
        where = f", process {worker['pid']} on {worker['host']}" if worker["pid"] else ""
        click.echo(f"worker    {worker['worker']} {worker['status']}{where}")
    print_suspects(said["workers"])
    return EXIT[health["severity"]]


def _past_status(session: Session, *, as_json: bool) -> int:
    """Print the elected master and the workers of a past state."""
    from fairlog.watch.conditions import elected  # noqa: PLC0415 (as in `status`)
    from scheduler.rules.view.views import look, suspicion  # noqa: PLC0415 (the present needs no rules)

    state = session.folded()
    workers = [
        {"worker": name, "pid": None, "host": worker.host, "status": worker.status, "suspicion": suspicion(worker)}
        for name, worker in sorted(state.workers.items())
    ]
    too_large, election = look(state, "cluster", {})["tooLarge"], elected(state)
    if as_json:
        master = state.master and {"id": state.master, "pid": None, "host": None}
        head = {"cluster": session.cluster, "head": state.head, "at": state.at}
        known: dict[str, Any] = {"master": master, "standbys": [], "election": election and election.as_json()}
        render.print_json({**head, **known, "workers": workers, "tooLarge": too_large})
        return 0
    click.echo(f"cluster   {session.cluster}, log at {state.head}, {render.moment(state.at)}")
    click.echo(f"master    {state.master or 'none elected yet'}")
    if election is not None:
        click.echo(f"elected   {_elected(election.as_json())}")
    for worker in workers:
        click.echo(f"worker    {worker['worker']} {worker['status']} on {worker['host']}")
    print_suspects(workers)
    if too_large:
        needs = "app needs" if too_large == 1 else "apps need"
        click.echo(f"apps      {too_large} {needs} a larger worker than was live")
    return 0


def _print_health(check: str, health: Health, *, as_json: bool) -> int:
    if as_json:
        render.print_json({check: health.ok, "why": health.why})
    else:
        click.echo(f"{check}: {health.why}" if health.ok else f"not {check}: {health.why}", err=not health.ok)
    return 0 if health.ok else 1


def print_suspects(workers: list[dict[str, Any]]) -> None:
    """Say of each suspected worker why it is."""
    from witness.failing import suspicion_in_words  # noqa: PLC0415 (as in `status`)

    for worker in workers:
        if worker["suspicion"] is not None:
            click.echo(localized(suspicion_in_words(worker["worker"], worker["suspicion"])))


def _elected(election: dict[str, Any]) -> str:
    """The last election, as its JSON has it."""
    from fairlog.watch.elections import Elected  # noqa: PLC0415 (as in `status`)

    known = Elected.of_json(election)
    return f"{known.master} at {render.moment(known.at)}, {known}"


def _member(member: dict[str, Any]) -> str:
    return f"{member['id']}, process {member['pid']} on {member['host']}"
