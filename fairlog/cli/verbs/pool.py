"""The verb about pools: workers that come with demand and go without it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlog.cli import render
from fairlog.cli.decorators import on_cluster
from fairlog.cli.params import FILE, flag
from fairlog.cli.params import as_json as json_option
from fairlog.cli.session import Session
from scheduler.model.text import counted
from scheduler.service.lossy import outlive_full_disks

if TYPE_CHECKING:
    from fairlog.pools.look import PoolPlan
    from fairlog.pools.pool import RunningPool
    from fairlog.pools.spec import Pool


@click.command()
@click.argument("file", type=FILE)
@flag("--once", help="Look and act once, and end.")
@flag("--plan", "only_plan", help="Print what there is to do, and end; nothing is changed.")
@flag("--empty", help="Let all workers of the pool go, and end when nothing of it is left.")
@flag("--cost", "only_cost", help="Print what the workers of the pool cost in this month (UTC) by the log, and end.")
@json_option
@on_cluster
def pool(
    session: Session, *, file: Path, once: bool, only_plan: bool, empty: bool, only_cost: bool, as_json: bool
) -> int:
    """Have workers come with demand and go without it.

    FILE names the pool, its size and its provider in TOML (docs/pools.md): commands that start, stop and list workers,
    Slurm, or Kubernetes. What ready apps ask for and are not granted brings workers; a worker that had nothing to do
    for a while is drained and stopped.

    SIGTERM ends the verb; the workers stay. Started again, it goes on where it was: what there is, it learns from the
    log and from the provider.
    """
    from fairlog.pools.pool import RunningPool, cost, hold  # noqa: PLC0415 (few need it)
    from fairlog.pools.spec import read_pool  # noqa: PLC0415 (likewise)

    if sum((once, only_plan, empty, only_cost)) > 1:
        raise click.UsageError("--once, --plan, --empty and --cost exclude each other; give one of them")
    spec = read_pool(file)
    if empty:
        spec = spec.model_copy(update={"least": 0, "most": 0})
    client, api = session.front("a pool reaches the cluster through its API; set FAIRLOG_API and unset FAIRLOG_STORE")
    if only_cost:
        month = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        _print_cost(spec, cost(spec, client, round(month.timestamp() * 1000)), as_json=as_json)
        return 0
    running = RunningPool(spec, client, api, hold(spec.name), _teller(as_json=as_json))
    if only_plan:
        _print_plan(spec, running.look(), as_json=as_json)
        return 0
    if once:
        return running.once()
    return _serve(running, empty=empty)


def _serve(running: RunningPool, *, empty: bool) -> int:
    outlive_full_disks()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: running.stop())
    return running.serve(_is_gone if empty else lambda _: False)


def _is_gone(found: PoolPlan) -> bool:
    """Whether nothing of the pool is left."""
    return not found.names


def _teller(*, as_json: bool) -> Callable[[Mapping[str, Any]], None]:
    """What prints the lines of the pool on stdout, or as objects of JSON."""

    def tell(line: Mapping[str, Any]) -> None:
        now = datetime.now(UTC)
        if as_json:
            text = json.dumps({"at": round(now.timestamp() * 1000), **line})
        else:
            text = f"{render.moment(round(now.timestamp() * 1000))} {line['text']}"
        click.echo(text)

    return tell


def _print_plan(spec: Pool, found: PoolPlan, *, as_json: bool) -> None:
    from fairlog.pools.pool import figures  # noqa: PLC0415 (likewise)

    what = {
        "start": found.start,
        "stop": found.stop,
        "drain": sorted(found.drain),
        "undrain": found.undrain,
        "forget": found.forget,
    }
    if as_json:
        render.print_json({**figures(spec, found), **what})
        return
    rows = [(did, ", ".join(names)) for did, names in what.items() if names]
    render.print_table(("TO DO", "WORKERS"), rows, empty="Nothing is to be done.")


def _print_cost(spec: Pool, found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        render.print_json(found)
        return
    text = f"{counted(found['workers'], 'worker')} of pool {spec.name}: {found['hours']:.2f} hours since "
    text += render.moment(found["since"])
    if found["cost"] is not None:
        text += f", {found['cost']:.2f}{f' {spec.currency}' if spec.currency else ''}"
    click.echo(text)
