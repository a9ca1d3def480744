"""The verbs about the cluster itself: company, settings, workers and how they leave, shares."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import click

from fairlog.cli import params, render
from fairlog.cli.choice import confirm
from fairlog.cli.completion import complete
from fairlog.cli.decorators import on_cluster, on_log
from fairlog.cli.groups import VerbGroup
from fairlog.cli.sending import check_listed, send_each
from fairlog.cli.stored_log import stored_log
from fairlog.cli.target import Target, in_the_past, target_options
from fairlog.cli.times import localized
from fairlog.cli.verbs.departments import NONE, named
from fairlog.cli.verbs.status import print_suspects
from fairlog.cli.worker_choice import (
    WorkerChoice,
    chosen_workers,
    labelled,
    picked_workers,
    wait_until_empty,
    workers_of,
)
from scheduler.model.resources import size_text
from scheduler.model.sender import local
from scheduler.model.text import counted
from witness.failing import exclusion_in_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlog.cli.session import Session
    from fairlog.cli.sources import Source


@click.group(cls=VerbGroup)
@target_options()
def company() -> None:
    """Add, change, remove or list companies and their quotas."""


def _quota(function: Callable[..., Any]) -> Callable[..., Any]:
    amounts = params.quota_options(
        'Quota as a part of the live cluster, such as 25% or 1/4; "none" is an equal part with the other companies.'
    )
    usual = _runtime_option("--default-max-runtime", "default_max_runtime_s", "Maximum runtime of apps that state none")
    most = _runtime_option("--max-max-runtime", "max_max_runtime_s", "Longest maximum runtime that an app may have")
    idle = click.option(
        "--end-idle/--keep-idle",
        default=None,
        help="End the tasks of executors that use nothing of their cores, or of their GPUs, for the time of the "
        "setting idle_end_s.",
    )
    return amounts(usual(most(idle(function))))


def _runtime_option(name: str, field: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        *(name, field),
        type=_read_runtime,
        metavar="TIME",
        help=f'{text}: 10m or 2h. With `set`, "none" is that of the setting {field}.',
    )


def _read_runtime(text: str) -> int:
    """Seconds, or 0 for "none". Raises: click.BadParameter."""
    found = 0 if text == "none" else params.read_duration(text)
    if not found and text != "none":
        raise click.BadParameter(f'{text!r} is no time to run; write it like 10m or 2h, or "none"')
    return found


_BORROW = "Allow the company to hold more than its quota of what others leave, which it returns when they want it."


@company.command("add")
@click.argument("name", type=params.read_text)
@_quota
@click.option("--borrow/--no-borrow", default=None, help=_BORROW)
@on_cluster
def company_add(session: Session, /, *, name: str, **quota: Any) -> None:  # noqa: ANN401 (fields of the command)
    """Register a company.

    Without a quota, the company gets an equal part of the live cluster.
    """
    from scheduler.model import commands  # noqa: PLC0415 (what only reads needs no commands)

    session.send(commands.RegisterCompany(company=name, **quota))
    click.echo(f"company {name} added")
    _hint_at_idle_end(session, quota)


@company.command("set")
@click.argument("name", type=params.read_text, shell_complete=complete("company"))
@_quota
@click.option("--borrow/--no-borrow", default=None, help=f"{_BORROW} Given alone, it leaves the quota as it is.")
@on_cluster
def company_set(session: Session, /, *, name: str, **quota: Any) -> None:  # noqa: ANN401 (fields of the command)
    """Replace a company's quota, or what else is given."""
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    if not any(map(params.is_given, quota.values())):
        raise click.UsageError(
            "nothing to change is given; give --cores and --memory, --part, --borrow or --no-borrow, "
            "--default-max-runtime, --max-max-runtime, --end-idle or --keep-idle"
        )
    session.check_company(name)
    session.send(commands.ChangeCompany(company=name, **quota))
    equal = quota["part"] == NONE
    click.echo(f"company {name} {'has an equal part of the live cluster now' if equal else 'changed'}")
    _hint_at_idle_end(session, quota)


def _hint_at_idle_end(session: Session, quota: dict[str, Any]) -> None:
    """Say that nothing counts as unused where no time is set (semantics W13)."""
    if quota["end_idle"] and session.ask("settings")["idle_end_s"] is None:
        render.say(
            "--end-idle ends nothing yet: the setting idle_end_s is none; `fairlog settings set idle_end_s=3600` sets "
            "an hour"
        )


@company.command("remove")
@params.flag("--yes", "-y", help="Do not ask before a company is removed of which apps are known.")
@params.names_argument("name", shell_complete=complete("company"))
@on_cluster
def company_remove(session: Session, *, name: tuple[str, ...], yes: bool) -> int:
    """Remove companies that have no app left.

    Of a company whose ended apps are still known, a yes is asked for, or --yes.
    """
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    check_listed(name, "company", lambda: session.ask("companies"))
    apps = Counter(each["company"] for each in session.ask("apps", everything=True) if each["endedAt"] is not None)
    for each in () if yes else name:
        if apps[each]:
            confirm(f"company {each} has {counted(apps[each], 'ended app')}; remove it all the same?")
    return send_each(session, name, lambda each: commands.RemoveCompany(company=each), "removed")


@company.command("move")
@click.argument("name", type=params.read_text, shell_complete=complete("company"))
@click.argument("department", type=params.read_text)
@on_cluster
def company_move(session: Session, *, name: str, department: str) -> None:
    """Put a company into a department; "none" takes it out of all.

    What it holds stays. What becomes surplus by that leaves for needs of others, at their dates.
    """
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    within = named(department)
    session.send(commands.MoveCompany(company=name, department=within))
    click.echo(f"company {name} is in {f'department {within}' if within else 'no department'} now")


@company.command("list")
@params.as_json
@on_cluster
def company_list(session: Session, *, as_json: bool) -> None:
    """List the companies with their quotas, in force and as given."""
    render.print_records(
        session.ask("companies"),
        "company department quota quotaCores quotaMemory quotaResources borrow users apps",
        headings=("COMPANY", "DEPARTMENT", "QUOTA", "CORES", "MEMORY", "RESOURCES", "BORROWS", "USERS", "APPS"),
        spare=("DEPARTMENT",),
        empty="No company is registered; `fairlog company add NAME` adds one.",
        as_json=as_json,
    )


@click.group(cls=VerbGroup)
@target_options()
def limit() -> None:
    """Set or list limits of the cluster, departments, companies and users."""


@limit.command("set")
@click.argument("change", nargs=-1, required=True, type=params.read_named_limit, metavar="NAME=VALUE...")
@params.text_option(
    "--company",
    metavar="C",
    shell_complete=complete("company"),
    help="Company that the limits are for.  [default: each without its own]",
)
@params.text_option("--user", metavar="U", help='User of --company, or "*" for each of its users without their own.')
@params.text_option("--department", metavar="D", help="Department: the limits are for all companies in it together.")
@on_cluster
def limit_set(
    session: Session,
    *,
    change: tuple[tuple[str, int | None], ...],
    company: str | None,
    user: str | None,
    department: str | None,
) -> int:
    """Set limits; a VALUE of none removes one.

    max_pending_apps, max_tasks (of an app), max_app_cores and submit_per_minute refuse a submission, and so do
    max_cores, max_memory_mb and max_KIND, such as max_gpu, where an app alone exceeds them. While max_running_apps,
    max_cores, max_memory_mb or max_KIND is used up, the company or the user is passed over. A limit of a department is
    one of all companies in it together.
    """
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    if user is not None and company is None:
        raise click.UsageError("--user needs --company")
    if department is not None and company is not None:
        raise click.UsageError("--department cannot be combined with --company; leave one of them out")
    if department == "":
        raise click.UsageError("name a department; without --department, the limits are the cluster's")
    scope: Literal["cluster", "company", "user", "department"] = (
        "cluster" if company is None else "company" if user is None else "user"
    )
    scope = scope if department is None else "department"
    values = params.single(change)
    kinds = [each["kind"] for each in session.ask("resources")]
    from scheduler.rules.command import limiting  # noqa: PLC0415 (other verbs need no rules)

    for name, value in change:  # all of them or none
        limiting.check_limit(name, value, kinds)

    def command(name: str) -> commands.SetLimit:
        who = {"company": company, "user": user, "department": department}
        return commands.SetLimit(scope=scope, name=name, value=values[name], **who)

    def done(name: str) -> str:
        return "removed" if values[name] is None else "set"

    return send_each(session, list(values), command, done, nothing="has this value already")


@limit.command("list")
@in_the_past
@params.as_json
@on_log
def limit_list(source: Source, *, as_json: bool) -> None:
    """List the limits, and what counts against each now."""
    render.print_records(
        source.ask("limits"),
        "scope company user department limit value present",
        headings=("OF", "COMPANY", "USER", "DEPARTMENT", "LIMIT", "VALUE", "NOW"),
        spare=("DEPARTMENT",),
        empty="No limit is set; `fairlog limit set NAME=VALUE` sets one.",
        as_json=as_json,
    )


@click.group(cls=VerbGroup)
@target_options()
def resource() -> None:
    """Register or list kinds of resources beside cores and memory, such as gpu."""


@resource.command("add")
@params.names_argument("kind")
@on_cluster
def resource_add(session: Session, *, kind: tuple[str, ...]) -> int:
    """Register kinds, which workers may then offer and apps request."""
    from scheduler.model import commands  # noqa: PLC0415 (likewise)
    from scheduler.rules.checks.kinds import check_kind  # noqa: PLC0415 (other verbs need no rules)

    for each in kind:
        check_kind(each)
    return send_each(
        session, kind, lambda each: commands.RegisterKind(kind=each), "registered", nothing="is registered already"
    )


@resource.command("list")
@params.as_json
@on_cluster
def resource_list(session: Session, *, as_json: bool) -> None:
    """List the registered kinds: what live workers offer, and what is granted."""
    render.print_records(
        session.ask("resources"),
        "kind offered granted workers",
        empty="No kind is registered; `fairlog resource add KIND` registers one.",
        as_json=as_json,
    )


@click.group(cls=VerbGroup, invoke_without_command=True)
@params.as_json
@target_options()
@click.pass_context
def settings(ctx: click.Context, *, as_json: bool) -> None:
    """Show or change the cluster's settings."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(settings_show, as_json=as_json)


@settings.command("show")
@params.as_json
@on_cluster
def settings_show(session: Session, *, as_json: bool) -> None:
    """Show every setting."""
    found = session.ask("settings")
    if as_json:
        render.print_json(found)
    else:
        render.print_table(
            ("SETTING", "VALUE"), [(name, params.setting_text(value)) for name, value in found.items()], empty=""
        )


@click.command()
@click.argument("number", required=False, type=params.read_edition, metavar="[EDITION]")
@params.as_json
@target_options()
@click.pass_obj
def edition(target: Target, *, number: int | None, as_json: bool) -> None:
    """Show the edition of the rules of sharing, or go on by the newest one.

    Masters refuse to serve from a log of an earlier version, which is by edition 2, until it goes on by edition 3. Type
    `fairlog edition 3` where the store can be reached; the decision is recorded in the log. `fairlog whatif --edition
    3` shows beforehand who would be above and below.
    """
    if number is not None:
        from recovery.archive.editions import change_edition  # noqa: PLC0415 (help needs none of it)

        with stored_log(target) as (log, _, _):
            at = change_edition(log, number, local(os.getuid()))
        if as_json:
            render.print_json({"edition": number, "at": at or None})
            return
        done = f"edition {number} of the rules of sharing is in force"
        click.echo(f"{done}; the decision is at {at}" if at else f"{done} already")
        return
    from fairlog.cli.session import opened  # noqa: PLC0415 (likewise)

    with closing(opened(target)) as session:
        found = session.ask("edition")
    if as_json:
        render.print_json(found)
        return
    since = "the beginning" if found["since"] is None else render.moment(found["since"])
    click.echo(f"edition {found['edition']} is in force since {since}")
    if found["earlier"]:
        render.tell("Masters refuse to serve from this log until an operator types `fairlog edition 3`.")
    elif found["byEntitlement"] and found["patienceS"] is None:
        click.echo("Who is told to leave finishes its tasks first, however long: reclaim_patience_s is none.")
    elif found["admission"] == "open":
        click.echo("It decides nothing while the setting admission is open, by which every app enters.")


@settings.command("set")
@click.argument(
    "change",
    nargs=-1,
    required=True,
    type=params.read_setting,
    metavar="NAME=VALUE...",
    shell_complete=complete("setting"),
)
@on_cluster
def settings_set(session: Session, *, change: tuple[tuple[str, int | str | None], ...]) -> None:
    """Change settings, all of them or none, with the next turn."""
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    receipt = session.send(commands.ConfigureCluster(settings=params.single(change)))
    click.echo("settings changed" if receipt.seq else "nothing to change")


@click.command()
@params.label_option(help="Only workers with this label. Repeatable.")
@in_the_past
@params.as_json
@on_log
def workers(source: Source, *, labels: dict[str, str], as_json: bool) -> None:
    """List the workers with their offered and granted resources.

    Below the table: the workers that drain, since when and why, those that are suspected, the apps that are excluded
    from a worker, the room that is held on one, and the lost workers, whose offer may come back.
    """
    found = [worker for worker in source.ask("workers", lost=True) if labelled(worker, labels)]
    spare = {name for name in ("labels", "taints") if not as_json and not any(worker.get(name) for worker in found)}
    render.print_records(
        [{name: each for name, each in worker.items() if name not in spare} for worker in found],
        "worker host rack labels taints status cores grantedCores memory grantedMemory resources grantedResources "
        "executors",
        headings=(
            *("WORKER", "HOST", "RACK", "LABELS", "TAINTS", "STATUS", "CORES", "GRANTED", "MEMORY", "GRANTED"),
            *("RESOURCES", "GRANTED", "EXECUTORS"),
        ),
        spare=("RACK", "LABELS", "TAINTS", "EXECUTORS"),
        empty="No worker has these labels."
        if labels
        else "No worker is registered; `fairlog worker` offers this machine.",
        as_json=as_json,
    )
    if as_json:
        return
    print_suspects(found)
    for worker in found:
        for excluded in worker["excludedApps"]:
            who = f"app {excluded['app']}"
            click.echo(localized(exclusion_in_words({**excluded, "worker": worker["worker"]}, who)))
        for hold in worker["holds"]:
            size = f"{counted(hold['cores'], 'core')}, {size_text(hold['memory'])}"
            click.echo(
                f"worker {worker['worker']}: {size} held for app {hold['app']} since {render.moment(hold['since'])}"
            )
        if worker["status"] == "lost":
            until = render.moment(worker["rememberedUntil"])
            click.echo(
                f"worker {worker['worker']} is lost since {render.moment(worker['since'])}: {worker['reason']}; "
                f"its offer counts until {until} for apps that need it (N3)"
            )
        elif worker["status"] != "alive" and worker["since"]:
            why = f": {worker['reason']}" if worker["reason"] else ""
            click.echo(f"worker {worker['worker']} is {worker['status']} since {render.moment(worker['since'])}{why}")


@click.command()
@chosen_workers
@params.text_option("--reason", default="", metavar="TEXT", help="Why, as `fairlog workers` shows it.")
@params.flag("--wait", help="Return once nothing runs on the workers any more.")
@on_cluster
def drain(session: Session, *, chosen: WorkerChoice, reason: str, wait: bool) -> int:
    """Stop granting resources on workers; running executors continue.

    A worker is named by its id, a unique beginning of it, or its host, which stands for all of its workers. Workers
    that are chosen by a filter are shown first, and drained after a yes or with --yes.
    """
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    names = picked_workers(session, chosen, "drain")
    code = send_each(session, names, lambda name: commands.DrainWorker(worker=name, reason=reason), "draining")
    return code or (wait_until_empty(session, names) if wait else 0)


@click.command()
@params.names_argument("worker", shell_complete=complete("worker"))
@on_cluster
def decommission(session: Session, *, worker: tuple[str, ...]) -> int:
    """Stop the executors of workers, and never grant on these workers again.

    Tasks of the stopped executors run again elsewhere. Drivers stay until they end. To use such a worker again, run
    `fairlog remove` and restart its agent.
    """
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    worker = workers_of(session, worker)
    return send_each(session, worker, lambda name: commands.DecommissionWorker(worker=name), "decommissioned")


@click.command()
@params.names_argument("worker", shell_complete=complete("worker"))
@on_cluster
def undrain(session: Session, *, worker: tuple[str, ...]) -> int:
    """Return drained workers to service."""
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    worker = workers_of(session, worker)

    @cache
    def closed() -> dict[str, str]:
        found = [each for each in session.ask("workers") if each["status"] == "draining" and not each["unwell"]]
        return {each["worker"]: ahead["window"] for each in found if (ahead := each.get("window"))}

    def done(name: str) -> str:
        if name in closed():
            return f"back in service once the window {closed()[name]!r} is over"
        return "back in service"

    return send_each(session, worker, lambda name: commands.UndrainWorker(worker=name), done)


@click.command()
@params.flag("--force", help="Remove at once. Executors on the worker are lost, and their tasks run again elsewhere.")
@params.names_argument("worker", shell_complete=complete("worker"))
@on_cluster
def remove(session: Session, *, worker: tuple[str, ...], force: bool) -> int:
    """Remove workers once they are empty (--force: at once); forget lost ones.

    A removed worker comes back once its agent is started again, that of an `up` by `down` and `up`.
    """
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    done = "removed" if force else "leaves once it is empty"
    known = session.ask("workers", lost=True)
    lost = {each["worker"] for each in known if each["status"] == "lost"}
    named = workers_of(session, worker, known)
    code = 0
    for names, what in (([name for name in named if name not in lost], done), (lost.intersection(named), "forgotten")):
        code |= send_each(session, sorted(names), lambda name: commands.RemoveWorker(worker=name, force=force), what)
    return code


@click.command()
@in_the_past
@params.as_json
@on_log
def shares(source: Source, *, as_json: bool) -> None:
    """Show what companies and users hold, and each company's share of its quota.

    OCCUPIED are the cores and the memory that admitted apps request, which count against shares, at three levels: of
    the list waitingApps, which has all of these apps, of each company and of each of its users.

    WEIGHT is the quota, CAP what the company may hold at most, LENT what its apps hold above their entitlements,
    LEAVING what was told to leave, and BELOW what they hold less than they are entitled to.
    """
    found = source.ask("shares")
    if as_json:
        render.print_json(found)
        return
    rows = [("waitingApps", "", _amounts(found["waitingApps"], "occupied"), *[""] * (2 + len(_STANDING)))]
    for each in found.get("departments", ()):
        cap = "none" if each["capCores"] is None else _amounts(each, "cap")
        occupied = _amounts(each, "occupied")
        rows.append((f"department {each['department']}", "", occupied, _amounts(each, "quota"), cap, *_standing(each)))
    for each in found["companies"]:
        cap = "none" if each["capCores"] is None else _amounts(each, "cap")
        occupied = _amounts(each, "occupied")
        rows.append((each["company"], "", occupied, _amounts(each, "quota"), cap, *_standing(each)))
        users = (user for user in found["users"] if user["company"] == each["company"])
        rows += [("", user["user"], _amounts(user, "occupied"), "", "", *_standing(user)) for user in users]
    columns = ("COMPANY", "USER", "OCCUPIED", "WEIGHT", "CAP", *(name.upper() for name in _STANDING))
    render.print_table(columns, rows, empty="", spare=("LEAVING", "DEMAND", "LENT", "CAP"))


_STANDING = ("demand", "entitled", "held", "lent", "leaving", "below")


def _standing(each: dict[str, Any]) -> list[str]:
    return [_amounts(each, name) for name in _STANDING]


def _amounts(balance: dict[str, Any], name: str) -> str:
    others = (f"{amount} {kind}" for kind, amount in balance.get(f"{name}Resources", {}).items())
    return ", ".join((counted(balance[f"{name}Cores"], "core"), size_text(balance[f"{name}Memory"]), *others))
