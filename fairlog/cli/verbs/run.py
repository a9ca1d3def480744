"""The verbs that run something: up, down, demo, master, worker."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fairlog.cli.params import Seconds, read_size, read_text
from fairlog.cli.target import Place, place_options
from fairlog.local.running import default_data, find_running
from scheduler.model.errors import FairlogError
from scheduler.rules.validate import MAX_CORES, MAX_MEMORY_MB, check_identifier
from scheduler.service.program_log import FORMAT_VARIABLE, LogFormat, log_to_stderr

_CORES = click.IntRange(1, MAX_CORES)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_SMALLEST_CORES = 4
_SMALLEST_MB = 2048


class NotRunning(FairlogError):
    """There is no `up` to stop."""

    def __init__(self, data: Path | None) -> None:
        super().__init__(f"no `fairlog up` is running{f' on the data in {data}' if data else ''}")


def _memory(text: str) -> int:
    memory_mb = read_size(text)
    if not 1 <= memory_mb <= MAX_MEMORY_MB:
        raise click.BadParameter(f"a worker offers between 1 and {MAX_MEMORY_MB} MiB, not {memory_mb}")
    return memory_mb


def _log_as(_ctx: click.Context, _param: click.Parameter, log_format: LogFormat) -> None:
    os.environ[FORMAT_VARIABLE] = log_format


_logs = click.option(
    "--log-format",
    type=click.Choice(["console", "json"]),
    default="console",
    show_default=True,
    envvar=FORMAT_VARIABLE,
    show_envvar=True,
    expose_value=False,
    callback=_log_as,
    help="Format of the program's own log on stderr.",
)


@click.command()
@click.option(
    "--detach", is_flag=True, help="Run in the background; return once a master is active. `fairlog down` stops it."
)
@click.option(
    "--workers", type=click.IntRange(0, 100), default=2, show_default=True, metavar="N", help="Number of workers."
)
@click.option(
    "--cores",
    type=_CORES,
    metavar="N",
    help="Cores of each worker.  [default: the machine's cores, divided among the workers]",
)
@click.option(
    "--memory",
    type=_memory,
    metavar="SIZE",
    help="Memory of each worker.  [default: the machine's memory, divided among the workers]",
)
@click.option(
    "--masters",
    type=click.IntRange(1, 9),
    default=2,
    show_default=True,
    metavar="N",
    help="Number of masters. One is active, the others are standbys.",
)
@click.option(
    "--data", type=_FOLDER, metavar="DIR", help="Folder for all data.  [default: fairlog in the user's data folder]"
)
@click.option("--cluster", type=read_text, metavar="NAME", help='Name of the cluster.  [default: "default"]')
@_logs
@click.pass_obj
def up(place: Place, /, *, detach: bool, data: Path | None, cluster: str | None, **asked: Any) -> None:  # noqa: ANN401
    """Run a whole cluster on this machine: store, masters and workers.

    A process that dies is restarted. All acknowledged commands are kept in the data folder, and the next `up`
    continues from there. A worker offers at least the size of the smallest executor.
    """
    from fairlog.local.up import Plan, run_up, start_detached  # noqa: PLC0415 (the other verbs need none of it)
    from workers.offer import default_cores, default_memory_mb  # noqa: PLC0415 (likewise)

    if place.store is not None:
        raise click.UsageError("`up` runs its own store: leave out --store, and unset FAIRLOG_STORE")
    each = max(1, asked["workers"])
    plan = Plan(
        data=data or place.data or default_data(),
        cluster=cluster or place.cluster or "default",
        masters=asked["masters"],
        workers=asked["workers"],
        cores=asked["cores"] or max(_SMALLEST_CORES, default_cores() // each // 2 * 2),
        memory_mb=asked["memory"] or max(_SMALLEST_MB, default_memory_mb() // each // 512 * 512),
    )
    if detach:
        started = start_detached(plan)
        click.echo(f"fairlog is up (process {started.pid}); data in {started.data}; `fairlog down` stops it")
    else:
        run_up(plan, _reporter())


@click.command()
@place_options()
@click.pass_obj
def down(place: Place) -> None:
    """Stop the running `up` and its executors.

    Stops the `up` started last, or the one that uses --data.
    """
    from fairlog.local.up import stop_running  # noqa: PLC0415 (the other verbs need none of it)

    found = find_running(place.data)
    if found is None:
        raise NotRunning(place.data)
    stop_running(found)
    click.echo(f"stopped; the data stays in {found.data}")


@click.command()
def demo() -> int:
    """Run a guided demonstration on a cluster of its own."""
    from fairlog.demo.run import run_demo  # noqa: PLC0415 (the other verbs need none of it)

    return run_demo()


def _until_the_parent_ends(ctx: click.Context, _param: click.Parameter, parent: int | None) -> None:
    if parent is not None and not ctx.resilient_parsing:
        from scheduler.service.child import die_with_parent  # noqa: PLC0415 (only `up` asks for it)

        die_with_parent(parent)


def _is_child(function: Callable[..., Any]) -> Callable[..., Any]:
    """How `up` starts it: it ends with the process of that number."""
    option = click.option("--end-with", type=int, hidden=True, expose_value=False, callback=_until_the_parent_ends)
    return option(function)


@click.command()
@_is_child
@click.option(
    "--replicas",
    type=click.IntRange(0, 9),
    default=0,
    show_default=True,
    metavar="N",
    envvar="FAIRLOG_REPLICAS",
    show_envvar=True,
    help="Acknowledge a command only when N replicas of the store have it on disk.",
)
@click.option(
    "--lease",
    "lease_s",
    type=Seconds(1.0, 3600.0),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    envvar="FAIRLOG_LEASE",
    show_envvar=True,
    help="Time without a sign of the active master after which a standby takes over.",
)
@_logs
@place_options()
@click.pass_obj
def master(place: Place, replicas: int, lease_s: float) -> None:
    """Run a master, active or standby.

    A standby follows the log and keeps the state ready. On SIGTERM a master hands over and stops.
    """
    from fairlog.cli.session import locate  # noqa: PLC0415 (help needs no store)
    from recovery.failover.master import run_master  # noqa: PLC0415 (likewise)

    url, cluster, _ = locate(place)
    log_to_stderr()
    run_master(
        url,
        cluster,
        unsafe=place.unsafe_store,
        replicas=replicas,
        lease_s=lease_s,
        archive_url=place.archive,
    )


@click.command()
@click.option("--cores", type=_CORES, metavar="N", help="Cores to offer.  [default: the machine's]")
@click.option("--memory", type=_memory, metavar="SIZE", help="Memory to offer.  [default: the machine's]")
@click.option("--id", "worker", type=read_text, metavar="ID", help="Id of the worker.  [default: the host's name]")
@click.option("--rack", type=read_text, default="", metavar="RACK", help="Rack of the machine.")
@click.option(
    "--instances", type=click.IntRange(1, 1000), default=1, show_default=True, metavar="N", help="Number of workers."
)
@click.option(
    "--run-dir",
    type=_FOLDER,
    metavar="DIR",
    help="Folder for executors' files, including the complete output of tasks.",
)
@click.option("--drain", is_flag=True, help="On SIGTERM, let running executors end, then leave the cluster.")
@click.option("--no-outlive", is_flag=True, hidden=True)
@_is_child
@_logs
@place_options()
@click.pass_obj
def worker(place: Place, /, *, no_outlive: bool, drain: bool, memory: int | None, **asked: Any) -> None:  # noqa: ANN401 (the options as click gives them)
    """Offer this machine's cores and memory to the cluster.

    On SIGTERM the worker's agent stops and its executors continue; the next agent with the same id finds them. With
    --drain it accepts nothing new after SIGTERM and stops once its executors have ended; a second SIGTERM stops it at
    once.
    """
    from fairlog.cli.session import locate  # noqa: PLC0415 (help needs no store)
    from scheduler.store.connection import check_store, connect  # noqa: PLC0415 (likewise)
    from workers.agent import run_agent  # noqa: PLC0415 (likewise)
    from workers.offer import make_offers  # noqa: PLC0415 (likewise)

    url, cluster, _ = locate(place)
    log_to_stderr()
    offers = [
        offer.model_copy(update={"drain": drain})
        for offer in make_offers(memory_mb=memory, outlive_agent=not no_outlive, **asked)
    ]
    for offer in offers:
        check_identifier("the worker id", offer.worker)
    with connect(url) as store:
        check_store(store, unsafe=place.unsafe_store)
    if offers[0].cores < _SMALLEST_CORES or offers[0].memory_mb < _SMALLEST_MB:
        _say(
            f"note: {offers[0].cores} cores and {offers[0].memory_mb} MiB are less than the smallest executor takes by "
            f"default ({_SMALLEST_CORES} cores, {_SMALLEST_MB} MiB); --cores and --memory offer more"
        )
    run_agent(url, cluster, offers)


def _say(sentence: str) -> None:
    click.echo(sentence, err=True)


def _reporter() -> Callable[[str], None]:
    """What says what happens to the processes of `up`: sentences, or entries of its log where programs read it."""
    if os.environ[FORMAT_VARIABLE] == "console":
        return _say
    import structlog  # noqa: PLC0415 (takes long to load)

    log_to_stderr()
    said: Callable[[str], None] = structlog.get_logger().info
    return said
