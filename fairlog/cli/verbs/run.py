"""The verbs that run something: up, down, demo, master, worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from fairlog.api.addresses import SPARK_REST_VARIABLE, UNIX, URL_VARIABLE
from fairlog.cli import render
from fairlog.cli.groups import VerbGroup
from fairlog.cli.params import (
    FILE,
    FOLDER,
    Seconds,
    flag,
    kinds_option,
    label_option,
    range_option,
    read_offered,
    read_size,
    read_taint,
    read_text,
    read_words,
    size_option,
    text_option,
)
from fairlog.cli.target import Target, target_options
from fairlog.cli.verbs.accounts import worker_invite
from fairlog.local.running import advise_for, check_own_keys, default_data, find_running, keyring_for
from recovery.archive.allowed import VARIABLE as ALLOW_VARIABLE
from scheduler.model.errors import FairlogError, NotAuthenticated
from scheduler.model.grants import IMAGE_LABEL
from scheduler.model.text import counted
from scheduler.rules.checks.validate import (
    MAX_CORES,
    MAX_LEASE_S,
    MAX_MEMORY_MB,
    check_identifier,
    check_labels,
    check_taints,
)
from scheduler.service.folders import working_folder
from scheduler.service.known import known_folder
from scheduler.service.lossy import outlive_full_disks
from scheduler.service.program_log import FORMAT_VARIABLE, log_to_stderr
from scheduler.service.signs import live_as

if TYPE_CHECKING:
    from scheduler.service.keyring import Keyring
    from workers.health import Check

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_HEALTH_EVERY_S = 60
MAX_PORT = 65535
_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 (to be refused)


class NotRunning(FairlogError):
    """There is no `up` to stop."""


def _memory(text: str) -> int:
    memory_mb = read_size(text)
    if not 1 <= memory_mb <= MAX_MEMORY_MB:
        raise click.BadParameter(f"a worker offers between 1 and {MAX_MEMORY_MB} MiB, not {memory_mb}")
    return memory_mb


def read_address(text: str) -> tuple[str, int]:
    """Host and port, written HOST:PORT. Raises: click.BadParameter."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > MAX_PORT:
        raise click.BadParameter(f"an address is written like 127.0.0.1:8080, not {text!r}")
    return host.strip("[]"), int(port)


def _read_place(text: str) -> tuple[str, int]:
    """Host and port, written [HOST:]PORT, on this machine unless a host is named. Raises: click.BadParameter."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 1 <= int(port) <= MAX_PORT:
        raise click.BadParameter(
            f"metrics are served at [HOST:]PORT, with a port from 1 to {MAX_PORT}, not at {text!r}"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def _metrics_option(text: str) -> Callable[[Any], Any]:
    return click.option(
        "--metrics",
        type=_read_place,
        metavar="[HOST:]PORT",
        envvar="FAIRLOG_METRICS",
        show_envvar=True,
        help=f"{text}  [default HOST: 127.0.0.1]",
    )


def _spark_rest_option(text: str) -> Callable[[Any], Any]:
    return click.option(
        "--spark-rest",
        "beside",
        type=read_address,
        metavar="HOST:PORT",
        envvar=SPARK_REST_VARIABLE,
        show_envvar=True,
        help=text,
    )


_logs = click.option(
    "--log-format",
    type=click.Choice(["console", "json"]),
    default="console",
    show_default=True,
    envvar=FORMAT_VARIABLE,
    show_envvar=True,
    expose_value=False,
    callback=lambda _ctx, _param, log_format: os.environ.update({FORMAT_VARIABLE: log_format}),
    help="Format of the program's own log on stderr.",
)


@click.command()
@flag("--detach", help="Run in the background; return once a master is active. `fairlog down` stops it.")
@range_option("--workers", 0, 100, default=2, show_default=True, help="Number of workers.")
@range_option(
    "--cores", *(1, MAX_CORES), help="Cores of each worker.  [default: the machine's cores, divided among the workers]"
)
@size_option(
    "--memory", type=_memory, help="Memory of each worker.  [default: the machine's memory, divided among the workers]"
)
@range_option(
    "--masters", 1, 9, default=2, show_default=True, help="Number of masters. One is active, the others are standbys."
)
@click.option(
    "--data", type=FOLDER, metavar="DIR", help="Folder for all data.  [default: fairlog in the user's data folder]"
)
@text_option("--cluster", metavar="NAME", help='Name of the cluster.  [default: "default"]')
@_metrics_option(
    "Serve the metrics of the first master at http://HOST:PORT/metrics, those of each further one at the next port."
)
@_spark_rest_option(
    "Listen for spark-submit as a Master of Spark does, on this machine (docs/spark.md).  [default: nowhere]"
)
@_logs
@click.pass_obj
def up(target: Target, /, *, detach: bool, data: Path | None, cluster: str | None, **asked: Any) -> None:  # noqa: ANN401
    """Run a whole cluster on this machine: store, masters and workers.

    A process that dies is restarted. All acknowledged commands are kept in the data folder, and the next `up`
    continues from there. A worker offers at least the size of the smallest executor.
    """
    from fairlog.local.up import UpPlan, run_up, start_detached  # noqa: PLC0415 (the other verbs need none of it)
    from workers.machine import plain_note  # noqa: PLC0415 (likewise)
    from workers.offer import (  # noqa: PLC0415 (likewise)
        SMALLEST_CORES,
        SMALLEST_MB,
        default_cores,
        default_memory_mb,
        smallness,
    )

    if target.store is not None:
        raise click.UsageError("`up` runs its own store: leave out --store, and unset FAIRLOG_STORE")
    last = asked["metrics"] and asked["metrics"][1] + asked["masters"] - 1
    if last and last > MAX_PORT:
        raise click.UsageError(
            f"--metrics needs a port for each of {counted(asked['masters'], 'master')}, and {last} is above "
            f"{MAX_PORT}; give a lower one"
        )
    if asked["beside"] is not None:
        _check_spark()
    each = max(1, asked["workers"])
    plan = UpPlan(
        data=data or target.data or default_data(),
        cluster=cluster or target.cluster or "default",
        masters=asked["masters"],
        workers=asked["workers"],
        cores=asked["cores"] or max(SMALLEST_CORES, default_cores() // each // 2 * 2),
        memory_mb=asked["memory"] or max(SMALLEST_MB, default_memory_mb() // each // 512 * 512),
        metrics=asked["metrics"],
        spark_rest=asked["beside"],
    )
    advise_for(plan.data)
    check_own_keys(plan.data)
    if note := plain_note():
        render.say(note)
    if plan.workers and (small := smallness(plan.cores, plan.memory_mb)):
        render.say(f"note: {small}")
    if detach:
        started = start_detached(plan)
        render.tell(f"fairlog is up (process {started.pid}); data in {started.data}; `fairlog down` stops it")
    else:
        run_up(plan, _reporter())


@click.command()
@target_options()
@click.pass_obj
def down(target: Target) -> None:
    """Stop the running `up` and its executors.

    Stops the `up` started last, or the one that uses --data.
    """
    from fairlog.local.up import stop_running  # noqa: PLC0415 (the other verbs need none of it)

    found = find_running(target.data)
    if found is None:
        raise NotRunning(f"no `fairlog up` is running{f' on the data in {target.data}' if target.data else ''}")
    stop_running(found)
    click.echo(f"stopped; the data stays in {found.data}")


@click.command()
@flag("--keep", help="Keep the cluster up afterwards, until Ctrl-C.")
@flag("--examples", help="Only write the example logs of the README into the folder examples, and run nothing.")
def demo(*, keep: bool, examples: bool) -> int:
    """Run a guided demonstration on a cluster of its own."""
    if examples:
        return _write_examples(keep=keep)
    from fairlog.demo.run import run_demo  # noqa: PLC0415 (the other verbs need none of it)

    return run_demo(keep=keep)


def _write_examples(*, keep: bool) -> int:
    from fairlog.demo.examples import FOLDER, LOGS, write_examples  # noqa: PLC0415 (likewise)

    if keep:
        raise click.UsageError("--examples runs nothing that could be kept; leave out --keep")
    written = write_examples(working_folder())
    for name in LOGS:
        done = "written" if name in {path.name for path in written} else "is there already"
        click.echo(f"{FOLDER}/{name} {done}")
    return 0


@click.command()
@range_option(
    "--replicas",
    *(0, 9),
    default=0,
    show_default=True,
    envvar="FAIRLOG_REPLICAS",
    show_envvar=True,
    help="Acknowledge a command only when N replicas of the store have it on disk.",
)
@click.option(
    "--lease",
    "lease_s",
    type=Seconds(1.0, MAX_LEASE_S),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    envvar="FAIRLOG_LEASE",
    show_envvar=True,
    help="Time without a sign of the active master after which a standby takes over.",
)
@text_option(
    "--archive-allow",
    multiple=True,
    metavar="URL",
    envvar=ALLOW_VARIABLE,
    show_envvar=True,
    help="Folder to which, or below which, the setting archive_url may point. Repeatable.",
)
@_metrics_option("Serve metrics for Prometheus at http://HOST:PORT/metrics, to everyone who reaches it.")
@_logs
@target_options()
@click.pass_obj
def master(
    target: Target,
    replicas: int,
    lease_s: float,
    archive_allow: tuple[str, ...],
    metrics: tuple[str, int] | None,
) -> None:
    """Run a master, active or standby.

    A standby follows the log and keeps the state ready. On SIGTERM a master hands over and stops.
    """
    from fairlog.cli.session import locate  # noqa: PLC0415 (help needs no store)
    from recovery.archive.seal_files import SEALS_VARIABLE  # noqa: PLC0415 (likewise)
    from recovery.failover.master import run_master  # noqa: PLC0415 (likewise)

    url, cluster, _ = locate(target)
    log_to_stderr()
    unsafe, archive_url = target.unsafe_store, target.archive
    live_as(url, cluster, ["master (process {pid})"])
    run_master(
        url,
        cluster,
        unsafe=unsafe,
        replicas=replicas,
        lease_s=lease_s,
        archive_url=archive_url,
        archive_allow=archive_allow,
        keyring=keyring_for(url),
        seals_url=os.environ.get(SEALS_VARIABLE, ""),
        metrics=metrics,
        known=known_folder(),
    )


@click.command()
@click.option(
    "--socket",
    "path",
    type=FILE,
    metavar="PATH",
    envvar="FAIRLOG_API_SOCKET",
    show_envvar=True,
    help="Listen on a Unix socket, in a folder that only you can enter. Whoever reaches it is an operator.",
)
@click.option(
    "--listen",
    "address",
    type=read_address,
    metavar="HOST:PORT",
    envvar="FAIRLOG_API_LISTEN",
    show_envvar=True,
    help="Listen on TCP, for those with a token.",
)
@click.option("--tls-cert", "certificate", type=_FILE, metavar="FILE", help="Certificate chain for TLS on TCP, PEM.")
@click.option("--tls-key", "key", type=_FILE, metavar="FILE", help="Its private key, PEM.")
@flag("--plain-http", "plain", help="Allow TCP without TLS from other machines, behind a proxy that ends TLS.")
@click.option(
    "--oidc",
    type=_FILE,
    metavar="FILE",
    envvar="FAIRLOG_OIDC",
    show_envvar=True,
    help="Let people sign in at the OpenID provider that FILE describes (docs/security.md).",
)
@_spark_rest_option(
    "Listen for spark-submit as a Master of Spark does, besides --listen (docs/spark.md).  [default: nowhere]"
)
@_logs
@target_options()
@click.pass_obj
def api(target: Target, /, oidc: Path | None, **where: Any) -> None:  # noqa: ANN401 (the fields of `Where`)
    """Serve the HTTP API, through which everybody else reaches the cluster.

    Only masters and API servers need the store's credentials. Any number of them can run. An API server answers reads
    from the log, which it follows; GET /openapi.json describes what can be asked.
    """
    from fairlog.api.serve import Where, run_api  # noqa: PLC0415 (the other verbs need none of it)
    from fairlog.cli.session import locate  # noqa: PLC0415 (help needs no store)

    if (where["certificate"] is None) != (where["key"] is None):
        raise click.UsageError("--tls-cert and --tls-key belong together; give both")
    beside = None if where["beside"] is None else _spark_rest(where["address"])
    url, cluster, _ = locate(target)
    log_to_stderr()
    run_api(
        url,
        cluster,
        Where(**where),
        archive_url=target.archive,
        keyring=keyring_for(url),
        oidc=oidc,
        known=known_folder(),
        beside=beside,
    )


def _check_spark() -> str:
    """The folder of Spark. Raises: NoSpark."""
    from fairlog.engines.spark.driver import home_of_spark  # noqa: PLC0415 (few need it)

    return home_of_spark()


def _spark_rest(address: tuple[str, int] | None) -> Callable[[Any], Any]:
    """What makes the listener for Spark's clients. Raises: NoSpark; click.UsageError if drivers could not reach us."""
    from fairlog.compat.spark_rest.server import make_app  # noqa: PLC0415 (few need it)

    if not os.environ.get(URL_VARIABLE) and (address is None or address[0] in _EVERY_ADDRESS):
        raise click.UsageError(
            "drivers of --spark-rest reach this server by its API: give --listen HOST:PORT with the host by which "
            f"workers know it, or the URL in {URL_VARIABLE}"
        )
    return partial(make_app, home=_check_spark())


@click.group(cls=VerbGroup, invoke_without_command=True)
@range_option("--cores", 1, MAX_CORES, help="Cores to offer.  [default: the machine's, or what its invitation allows]")
@size_option("--memory", type=_memory, help="Memory to offer.  [default: the machine's, or what its invitation allows]")
@text_option("--id", "worker", metavar="ID", help="Id of the worker.  [default: the host's name]")
@text_option(
    "--host",
    metavar="NAME",
    help="Name of the machine, as peers reach it and --prefer names it.  [default: its hostname]",
)
@text_option("--rack", default="", metavar="RACK", help="Rack of the machine.")
@label_option(
    envvar="FAIRLOG_LABELS",
    show_envvar=True,
    help="Label of the worker, such as zone=north, by which people find and group workers, and apps require or avoid "
    "them. Repeatable.",
)
@click.option(
    "--taint",
    "taints",
    type=read_taint,
    multiple=True,
    metavar="NAME",
    help="Take only apps that tolerate this, with `fairlog submit --tolerate`. Repeatable.",
)
@kinds_option(
    "--resource",
    "resources",
    read_offered,
    metavar="KIND=ADDRESSES",
    help="Addresses to offer of a kind of resources, such as gpu=0,1, or gpu=2 for the same; gpu=0 is one. Repeatable.",
)
@click.option(
    "--discover",
    type=read_text,
    multiple=True,
    metavar="CMD",
    help='Command that prints the addresses of a kind as Spark\'s JSON, {"name": …, "addresses": […]}. Repeatable.',
)
@text_option(
    "--api",
    metavar="URL",
    envvar=URL_VARIABLE,
    show_envvar=True,
    help="URLs of API servers, separated by commas; the worker then needs no store, but its token in FAIRLOG_TOKEN, or "
    "in the file that FAIRLOG_TOKEN_FILE names.  [default: that of the last login, else that of the running `up`]",
)
@range_option("--instances", 1, 1000, default=1, show_default=True, help="Number of workers.")
@click.option(
    "--run-dir",
    type=FOLDER,
    metavar="DIR",
    help="Folder for executors' files, including the complete output of tasks.",
)
@flag("--drain", help="On SIGTERM, let running executors end, then leave the cluster.")
@click.option(
    "--health",
    type=read_words,
    metavar="CMD",
    help="Command that exits with 0 while the machine is well. The worker takes no work while it fails; its last line "
    "says why.",
)
@range_option(
    "--health-every",
    1,
    86400,
    metavar="SECONDS",
    help="Seconds between two health checks, and the longest that one may take.  [default: 60]",
)
@click.option(
    "--gpu-use",
    type=read_words,
    metavar="CMD",
    help="Command that prints a line ADDRESS PERCENT for each GPU, run every 15 s: so that it is noticed when an "
    "executor uses none that it holds.",
)
@click.option(
    "--launcher",
    type=click.Choice(["cell", "account", "plain"]),
    envvar="FAIRLOG_LAUNCHER",
    show_envvar=True,
    help="Where tasks run: in a sandbox, in one of another user's, or as this user.  [default: cell where it works]",
)
@text_option(
    "--share",
    multiple=True,
    metavar="PATH",
    envvar="FAIRLOG_SHARE",
    show_envvar=True,
    help="Show tasks this path of the machine in their cells; with :rw they may write it. Repeatable.",
)
@text_option(
    "--folders",
    multiple=True,
    metavar="PATTERN",
    envvar="FAIRLOG_FOLDERS",
    show_envvar=True,
    help="Where folders of apps may be, such as /srv/{company}/{user}. Repeatable.  [default: anywhere but at home, "
    "for one company]",
)
@text_option(
    "--image",
    "images",
    multiple=True,
    metavar="NAME=FOLDER",
    envvar="FAIRLOG_IMAGE",
    show_envvar=True,
    help="Image that apps can name: a whole system, unpacked in this folder, which their tasks find in the place of "
    "the machine's. Repeatable.",
)
@flag(
    "--unsafe-plain",
    envvar="FAIRLOG_UNSAFE_PLAIN",
    show_envvar=True,
    help="Permit tasks without a cell as root, or of several companies.",
)
@flag("--check", "only_check", help="Say what this machine can do for tasks and what is missing, and end.")
@flag("--json", "as_json", help="Print the findings of --check as JSON.")
@click.option("--hide", multiple=True, type=FOLDER, hidden=True)
@flag("--no-outlive", hidden=True)
@_logs
@target_options()
@click.pass_context
def worker(
    ctx: click.Context,
    /,
    *,
    api: str | None,
    no_outlive: bool,
    drain: bool,
    memory: int | None,
    resources: dict[str, tuple[str, ...]],
    labels: dict[str, str],
    discover: tuple[str, ...],
    **asked: Any,  # noqa: ANN401 (the options as click gives them)
) -> None:
    """Offer this machine's cores and memory to the cluster.

    A worker that was invited offers as much as its invitation allows.

    A worker speaks to API servers, with the token that `fairlog worker invite` prints for it. An invitation is
    exchanged for a token that the worker keeps in its folder and renews itself; only once the cluster would take the
    worker, so that a refusal does not use it up. With --store it uses the store directly, which is for the store's own
    host only.

    With --resource or --discover it also offers addresses of further kinds of resources, divided among its workers; the
    kinds must be registered with `fairlog resource add`.

    With --health it drains itself while its check fails, and takes work again once the check succeeds, unless an
    operator has drained it. It joins once the check has run for the first time.

    On SIGTERM the worker's agent stops and its executors continue; the next agent with the same id finds them. With
    --drain it accepts nothing new after SIGTERM and stops once its executors have ended; a second SIGTERM stops it at
    once.
    """
    if ctx.invoked_subcommand is not None:
        return
    health = _health_check(asked.pop("health"), asked.pop("health_every"))
    watched = {"health": health, "gpu_use": asked.pop("gpu_use") or ()}
    only_check, as_json = asked.pop("only_check"), asked.pop("as_json")
    if only_check or as_json:
        ctx.exit(_check_machine(only_check=only_check, as_json=as_json))
    from workers.agent import run_agent  # noqa: PLC0415 (help needs none of it)
    from workers.offer import default_run_dir, divided, make_offers  # noqa: PLC0415 (likewise)
    from workers.token import invited_as  # noqa: PLC0415 (likewise)

    if asked["worker"] is not None:
        check_identifier("the worker id", asked["worker"])
    taints = check_taints("a worker", asked.pop("taints"))
    typed = ctx.get_parameter_source("api") is ParameterSource.COMMANDLINE
    place = _place_of_worker(ctx.ensure_object(Target), api, api_first=typed)
    if place.token and asked["instances"] > 1:
        raise click.UsageError("a token is good for one worker: start each of them by itself, with its own --id")
    if place.token and asked["worker"] is None:
        asked["worker"] = invited_as(asked["run_dir"] or default_run_dir(), place.token) or _worker_of(place)
    log_to_stderr()
    _add_discovered(resources, discover, ask_use=bool(watched["gpu_use"]))
    chosen = _where_tasks_run(**{name: asked.pop(name) for name in _WHERE})
    marks = {"labels": _with_images(labels, chosen["cells"].images), "taints": taints}
    made = make_offers(memory_mb=memory, outlive_agent=not no_outlive, **asked)
    offers = [
        offer.model_copy(update={**chosen, **watched, **marks, "drain": drain, "resources": addresses})
        for offer, addresses in zip(made, divided(resources, len(made)), strict=True)
    ]
    for offer in offers:
        check_identifier("the worker id, by --id or else the name of the host,", offer.worker)
    live_as(place.address, place.cluster, [f"worker {offer.worker}" for offer in offers])
    run_agent(place.address, place.cluster, offers, place.keyring, place.token)


worker.add_command(worker_invite)


def _add_discovered(resources: dict[str, tuple[str, ...]], discover: tuple[str, ...], *, ask_use: bool) -> None:
    """Add what the commands discover to the kinds and addresses that were named; whether GPUs must be among them."""
    from workers.gpus import gpus_of  # noqa: PLC0415 (help needs none of it)
    from workers.offer import discovered  # noqa: PLC0415 (likewise)

    for kind, addresses in map(discovered, discover):
        if resources.setdefault(kind, addresses) is not addresses:
            raise click.UsageError(f"--resource and --discover name {kind!r} twice; name each kind once")
    if ask_use and not gpus_of(resources):
        raise click.UsageError(
            "--gpu-use tells of GPUs, and this worker offers none; add --resource gpu=0 or --discover"
        )


def _health_check(command: tuple[str, ...] | None, every_s: int | None) -> Check | None:
    """What the options say of the worker's health. Raises: click.UsageError."""
    from workers.health import Check  # noqa: PLC0415 (likewise)

    if command is None and every_s is not None:
        raise click.UsageError("--health-every needs --health CMD")
    return None if command is None else Check(command, every_s or _HEALTH_EVERY_S)


class NoInvitation(FairlogError):
    """The token with which a worker was started is not valid, and it has none of its own."""

    def __init__(self, refusal: NotAuthenticated) -> None:
        why = str(refusal).partition(";")[0]
        super().__init__(f"this machine cannot join: {why}; an operator invites it with `fairlog worker invite ID`")


class _WorkerAccess(NamedTuple):
    """Where a worker finds its cluster: the URLs of API servers and its token, or the store with its keys."""

    address: str
    token: str = ""
    cluster: str = ""
    keyring: Keyring | None = None


def _place_of_worker(target: Target, api: str | None, *, api_first: bool) -> _WorkerAccess:
    """Where the worker finds its cluster; `api_first`: `api` counts more than a store.

    Raises: NoStore if nothing is named and no `up` runs; UnsuitableStore.
    """
    from fairlog import credentials  # noqa: PLC0415 (help needs none of it)
    from fairlog.api.client import api_urls  # noqa: PLC0415 (likewise)
    from fairlog.cli.session import locate  # noqa: PLC0415 (likewise)

    if elsewhere := target.typed & {"store", "data"}:
        if api_first:
            raise click.UsageError(f"--api and --{elsewhere.pop()} name two places; give one of them")
        api = None
    if target.store is None or api_first:
        token = credentials.token_named()
        if api is not None:
            return _WorkerAccess(",".join(api_urls(api)), token)
        if (known := credentials.named(target.data)) is not None:
            return _WorkerAccess(known.api, token or known.token)
        if (up := find_running(target.data)) is not None:
            return _WorkerAccess(f"{UNIX}{up.socket}")
    url, cluster, _ = locate(target)
    from scheduler.store.connection import connect  # noqa: PLC0415 (likewise)
    from scheduler.store.durability import check_store  # noqa: PLC0415 (likewise)

    with connect(url) as store:
        check_store(store, unsafe=target.unsafe_store, serving=False)
    return _WorkerAccess(url, "", cluster, keyring_for(url, own="data" in target.typed))


def _worker_of(place: _WorkerAccess) -> str:
    """The worker that the token is for. Raises: NoInvitation if the token is not valid."""
    from fairlog.cli.session import api_at  # noqa: PLC0415 (likewise)

    with api_at(place.address, place.token) as client:
        try:
            account = str(client.read("/v1/whoami")["account"])
        except NotAuthenticated as refusal:
            raise NoInvitation(refusal) from None
    kind, _, name = account.partition("/")
    if kind != "worker":
        raise click.UsageError(
            f"the token is that of {account}; a worker needs its own, which `fairlog worker invite ID` prints"
        )
    return name


_WHERE = ("launcher", "unsafe_plain", "share", "folders", "images", "hide")


def _with_images(labels: dict[str, str], images: Mapping[str, Path]) -> dict[str, str]:
    """The labels of a worker with these images. Raises: InvalidCommand, click.UsageError."""
    from workers.images import labels_of  # noqa: PLC0415 (help needs none of it)

    if found := [label for label in labels if label.startswith(IMAGE_LABEL)]:
        raise click.UsageError(f"--image NAME=FOLDER makes the label {found[0]}; leave it out of --label")
    whole = {**labels, **labels_of(images)}
    check_labels(whole)
    return whole


def _where_tasks_run(
    launcher: str | None,
    *,
    unsafe_plain: bool,
    share: tuple[str, ...],
    folders: tuple[str, ...],
    images: tuple[str, ...],
    hide: tuple[Path, ...],
) -> dict[str, Any]:
    """The fields of an offer that say where tasks run. Raises: Refused."""
    from workers.images import read_images  # noqa: PLC0415 (likewise)
    from workers.machine import choose_launcher  # noqa: PLC0415 (the other verbs need none of it)
    from workers.sandbox import CellSettings  # noqa: PLC0415 (likewise)

    cells = CellSettings(share=share, folders=folders, images=read_images(images), hidden=hide)
    chosen = choose_launcher(launcher, unsafe_plain=unsafe_plain)
    return {"launcher": chosen, "unsafe_plain": unsafe_plain, "cells": cells}


def _check_machine(*, only_check: bool, as_json: bool) -> int:
    """Print what this machine can do for tasks. Returns the exit code: 1 if a cell cannot be started."""
    if not only_check:
        raise click.UsageError("--json prints the findings of --check; give both")
    from workers.machine import check  # noqa: PLC0415 (the other verbs need none of it)

    found = check()
    if as_json:
        render.print_json([finding._asdict() for finding in found])
    else:
        render.print_table(("SUBJECT", "", "FOUND", "TO MEND IT"), found, empty="")
    return int(any(finding.verdict == "missing" for finding in found))


def _reporter() -> Callable[[str], None]:
    """What reports on the processes of `up`: sentences, or log lines with --log-format json."""
    if os.environ[FORMAT_VARIABLE] == "console":
        outlive_full_disks()
        return render.say
    import structlog  # noqa: PLC0415 (takes long to load)

    log_to_stderr()
    said: Callable[[str], None] = structlog.get_logger().info
    return said
