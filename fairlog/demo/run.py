"""The demo: three companies, 40 apps that do real work, two kills, and a check that nothing was lost or unfair.

It runs on a cluster started like `fairlog up`, in a temporary folder.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
from redis.exceptions import RedisError

from fairlog.cli import render
from fairlog.cli.printed import terminal
from fairlog.client import StoreClient
from fairlog.demo import checks
from fairlog.demo import tasks as demo_tasks
from fairlog.demo.kills import Kills
from fairlog.local.up import Tree, UpPlan
from scheduler.model.commands import RegisterCompany, SubmitApp
from scheduler.model.errors import CommandRejected, NoMaster
from scheduler.model.text import counted
from scheduler.service.receipts import Receipt
from scheduler.store.codec import Fact
from scheduler.store.connection import connect
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from scheduler.store.task_queue import Worklist
from workers.machine import plain_note

WORKERS, CORES, MEMORY_MB = 2, 16, 8192
"""The number of workers and the offer of each, whatever the machine has."""
QUOTAS = {"north": 512, "south": 128, "west": 1024}
_SCALE = max(QUOTAS.values()) // (WORKERS * CORES)
_USERS = {"north": ("ann", "ben", "cem"), "south": ("dora", "emil"), "west": ("fay", "gus", "hana", "ivo")}
_ORDERS = {
    "north": ((8, "words"), (4, "pi"), (8, "squeeze"), (8, "imports")) * 3,
    "south": ((4, "pi"), (4, "words"), (4, "squeeze"), (4, "imports")) * 2,
    "west": ((8, "imports"), (16, "pi"), (8, "words"), (8, "squeeze")) * 5,
}
"""Company -> (cores, work) of each of its apps. The company's users take turns."""
DEADLINE_S = 110.0
_LOOK_S = 0.25
_ANSWER_S = 1.0
_LINE_EVERY_S = 2.0


def run_demo(*, keep: bool = False) -> int:
    """Run the demo, printing progress, results and checks. Returns exit code 0.

    With `keep`, the cluster stays up afterwards until SIGINT or SIGTERM.

    Raises: Broken naming the failed check, FairlogError if the cluster does not start.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fairlog-demo-", ignore_cleanup_errors=True) as folder:
        plan = UpPlan(Path(folder), workers=WORKERS, cores=CORES, memory_mb=MEMORY_MB)
        click.echo(f"Starting a store, 2 masters and {WORKERS} workers of {CORES} cores and {MEMORY_MB} MiB each …")
        if note := plain_note():
            click.echo(note)
        with Tree(plan, say=render.say, findable=False) as tree, connect(tree.store.url) as store:
            tree.wait_until_ready()
            click.echo(f"Watch it in a browser, by a link that is good once: {tree.page()}")
            client = StoreClient(store, plan.cluster, keyring=tree.keyring)
            orders, receipts = _submit(client)
            log = EventLog(store, Keys(plan.cluster))
            kills = Kills(tree, log, len(orders), click.echo)
            _watch(tree, StoreClient(store, plan.cluster, keyring=tree.keyring, timeout_s=_ANSWER_S), orders, kills)
            facts = list(log.facts())
            story = checks.read_story(facts)
            checks.check_end(story, [order.app for order in orders], client.view)
            checks.check_acknowledged(facts, receipts)
            _print_story(story, orders)
            _print_results(Worklist(store, plan.cluster), orders)
            _print_checks(story, orders)
            _print_survived(facts, kills, receipts)
            if keep:
                _stay(tree)
    click.echo(f"Done after {time.monotonic() - started_s:.0f} s; everything was stopped and removed.")
    return 0


def _stay(tree: Tree) -> None:
    """Keep the cluster up until SIGINT, or SIGTERM, which ends the program."""
    click.echo(f"\nThe cluster stays up until Ctrl-C: {tree.page()}")
    with suppress(KeyboardInterrupt):
        while True:
            tree.tend()
            time.sleep(_LOOK_S)


def _submit(client: StoreClient) -> tuple[list[SubmitApp], list[Receipt]]:
    """Register the companies and submit all apps in one batch, company by company. Returns apps and receipts."""
    receipts: list[Receipt] = []
    for company, bought in QUOTAS.items():
        cores = bought // _SCALE
        command = RegisterCompany(company=company, cores=cores, memory_mb=cores * MEMORY_MB // CORES)
        receipts.append(client.send(command))
    quotas = " : ".join(f"{name} {bought // _SCALE}" for name, bought in QUOTAS.items())
    click.echo(
        f"Three companies have quotas of {quotas} (512 : 128 : 1024 scaled to {counted(WORKERS * CORES, 'core')})."
    )
    orders = [
        SubmitApp(
            app=f"{company}-{number:02}",
            company=company,
            user=_USERS[company][number % len(_USERS[company])],
            name=kind,
            cores=cores,
            tasks=cores,
            command=(sys.executable, "-I", demo_tasks.__file__, kind),
            cwd="/",
        )
        for company, asked in _ORDERS.items()
        for number, (cores, kind) in enumerate(asked)
    ]
    for outcome in client.send_many(orders):
        if isinstance(outcome, CommandRejected):
            raise checks.CheckFailed(f"an app was refused: {outcome}")
        receipts.append(outcome)
    click.echo(f"{counted(len(orders), 'app')} were submitted in one batch. The scheduler admits them in fair order.")
    click.echo("What admitted apps request may be more than there is: they get executors as others end.\n")
    return orders, receipts


def _watch(tree: Tree, client: StoreClient, orders: Sequence[SubmitApp], kills: Kills) -> None:
    """Show progress and do the kills until every app has ended and no cores are granted.

    Raises: Broken after `DEADLINE_S` seconds.
    """
    began_s = time.monotonic()
    with _display(len(orders)) as (show, kills.say):
        while True:
            tree.tend()
            elapsed_s = time.monotonic() - began_s
            try:
                apps, shares = client.view("apps", everything=True), client.view("shares")
                workers = client.view("workers")
            except (NoMaster, RedisError):
                apps, shares, workers = [], None, []
            if shares is not None:
                show(elapsed_s, apps, shares)
                kills.look(sum(app["endedAt"] is not None for app in apps), workers)
                held = shares["waitingApps"]
                if all(app["endedAt"] for app in apps) and not held["grantedCores"]:
                    return
            if elapsed_s > DEADLINE_S:
                left = sorted(app["app"] for app in apps if not app["endedAt"])
                raise checks.CheckFailed(f"these apps did not end within {DEADLINE_S:.0f} s: {', '.join(left)}")
            time.sleep(_LOOK_S)


Show = Callable[[float, list[dict[str, Any]], dict[str, Any]], None]


@contextmanager
def _display(total: int) -> Iterator[tuple[Show, Callable[[str], None]]]:
    """Shows progress and says sentences: a live table below them on a terminal; else a line every `_LINE_EVERY_S`."""
    next_line_s = 0.0

    def line(elapsed_s: float, apps: list[dict[str, Any]], shares: dict[str, Any]) -> None:
        nonlocal next_line_s
        if elapsed_s < next_line_s:
            return
        next_line_s = elapsed_s + _LINE_EVERY_S
        ended = sum(app["endedAt"] is not None for app in apps)
        requested = ", ".join(
            f"{each['company']} {each['occupiedCores']}/{each['quotaCores']}" for each in shares["companies"]
        )
        click.echo(
            f"{elapsed_s:5.1f} s  {ended:>2} of {counted(total, 'app')} ended; cores requested/quota: {requested}"
        )

    if not sys.stdout.isatty():
        yield line, click.echo
        return
    from rich.console import Console  # noqa: PLC0415 (only terminals need it)
    from rich.live import Live  # noqa: PLC0415 (likewise)

    console = Console(file=terminal(sys.stdout), markup=False, highlight=False, emoji=False)
    with Live(console=console, refresh_per_second=8, redirect_stdout=False, redirect_stderr=False) as live:
        yield lambda elapsed_s, apps, shares: live.update(_picture(elapsed_s, apps, shares)), console.print


def _picture(elapsed_s: float, apps: list[dict[str, Any]], shares: dict[str, Any]) -> Any:  # noqa: ANN401 (rich's)
    from rich.table import Table  # noqa: PLC0415 (only terminals need it)

    table = Table(
        "company", "share of quota", "requested/quota", "pending", "admitted", "ended", title=f"{elapsed_s:.0f} s"
    )
    for each in shares["companies"]:
        states = Counter(
            "ended" if app["endedAt"] else "pending" if app["state"] == "pending" else "admitted"
            for app in apps
            if app["company"] == each["company"]
        )
        bar = "█" * round(24 * min(1.0, each["occupiedCores"] / Fraction(each["quotaCores"])))
        cores = f"{each['occupiedCores']}/{each['quotaCores']}"
        numbers = (str(states[name]) for name in ("pending", "admitted", "ended"))
        table.add_row(each["company"], f"{bar:<24} {render.percent(each['share'])}", cores, *numbers)
    return table


def _print_story(story: checks.DemoStory, orders: Sequence[SubmitApp]) -> None:
    """Print a table of the apps in order of admission, and a table of the companies."""
    apps = sorted((story.state.apps[order.app] for order in orders), key=lambda app: app.admitted)
    first_ms = min(app.submitted_at for app in apps)
    click.echo()
    render.print_table(
        ("ADMITTED", "APP", "USER", "WORK", "CORES", "EXECUTORS", "WAITED", "RAN", "ENDED AFTER"),
        [
            (
                f"{number}.",
                app.id,
                app.spec.user,
                app.name,
                app.requested.cores,
                story.executors.get(app.id, 0),
                render.duration(app.admitted_at - app.submitted_at),
                render.duration(app.ended_at - app.admitted_at),
                render.duration(app.ended_at - first_ms),
            )
            for number, app in enumerate(apps, start=1)
        ],
        empty="",
    )
    click.echo()
    rows = []
    for company, users in _USERS.items():
        mine = [app for app in apps if app.spec.company == company]
        waits = [app.admitted_at - app.submitted_at for app in mine]
        core_s = sum(story.core_ms.get(app.id, 0) for app in mine) // 1000
        quota = story.state.quota(company).amount.cores
        spread = (min(waits), sum(waits) // len(waits), max(waits))
        rows.append((company, quota, len(users), len(mine), core_s, *map(render.duration, spread)))
    columns = ("COMPANY", "QUOTA", "USERS", "APPS", "CORE-SECONDS", "SHORTEST WAIT", "MEAN WAIT", "LONGEST WAIT")
    render.print_table(columns, rows, empty="")


def _print_results(work: Worklist, orders: Sequence[SubmitApp]) -> None:
    """Print the results of one app of each kind.

    Raises: Broken if a task of any app did not succeed, or a task of these did not print its result.
    """
    totals: dict[str, Counter[str]] = {}
    for order in orders:
        states, kind = work.states(order.app), order.command[-1]
        checks.check_tasks(order.app, order.tasks or 0, [task.state for task in states])
        if kind in totals:
            continue
        total = totals[kind] = Counter()
        for task in states:
            try:
                total.update(json.loads(work.output(order.app, task.task)))
            except ValueError:
                raise checks.CheckFailed(f"task {task.task} of {order.app} did not print its result") from None
    squeezed = totals["squeeze"]
    click.echo(
        f"\nPython's standard library: {totals['words']['words']:,} words and {totals['imports']['imports']:,} imports "
        f"in {counted(totals['words']['files'], 'file')}; {squeezed['bytes'] // 1024:,} KiB compress to "
        f"{squeezed['compressed'] // 1024:,} KiB; pi is about {4 * totals['pi']['hits'] / totals['pi']['darts']:.3f}."
    )


def _print_checks(story: checks.DemoStory, orders: Sequence[SubmitApp]) -> None:
    held = (
        f"all {counted(len(orders), 'app')} finished and released their resources",
        f"all digests up to log position {story.positions} are valid, and replaying the log gives the master's state",
        f"at all {counted(story.positions, 'position')} the ledgers add up and no worker is overcommitted",
        f"all {story.admissions} admissions went to the eligible company with the lowest share, within its quota",
    )
    _print_held("Checked from the log alone:", held)


def _print_survived(facts: Sequence[Fact], kills: Kills, receipts: Sequence[Receipt]) -> None:
    """Print the effect of the two kills.

    Raises: Broken if no other master took over, or all apps ended before the kills.
    """
    master, worker = kills.done()
    after = render.duration(checks.takeover_ms(facts, master.head, master.at_ms))
    died = len(checks.died_with(facts, worker.name, worker.head))
    held = (
        f"all {len(receipts)} acknowledged commands are in the log at the positions in their receipts",
        f"{master.name} was killed while active; another master took over {after} later",
        f"{worker.name} was killed with {counted(died, 'executor')}; their tasks ran again, and every task succeeded",
    )
    _print_held("Nothing was lost:", held)


def _print_held(title: str, held: Sequence[str]) -> None:
    click.echo(f"\n{title}")
    for sentence in held:
        click.echo(f"  ok  {sentence}")
