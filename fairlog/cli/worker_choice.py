"""Which workers a verb is about: ids, unique beginnings of ids, hosts, filters; and waiting until they are empty."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import click

from fairlog.cli import render
from fairlog.cli.choice import Record, check_names, confirm, only
from fairlog.cli.completion import complete
from fairlog.cli.params import P, R, flag, label_option, read_text, text_option
from scheduler.model.errors import InvalidCommand, UnknownWorker, nearest
from scheduler.model.states import WorkerStatus
from scheduler.model.text import counted

if TYPE_CHECKING:
    from fairlog.cli.session import Session

STATES = ("suspected", *get_args(WorkerStatus))
LOOK_S = 0.5


class WorkerChoice(NamedTuple):
    """The workers that a verb is told to act on; `yes`: without asking."""

    names: tuple[str, ...]
    host: str | None
    rack: str | None
    labels: dict[str, str]
    name: str | None
    user: str | None
    state: tuple[str, ...]
    yes: bool
    dry_run: bool

    @property
    def filters(self) -> bool:
        """Whether it has a filter."""
        return bool(self.host or self.rack or self.labels or self.name or self.user or self.state)

    def takes(self, worker: Record) -> bool:
        """Whether the worker, a record of the view `workers`, is meant; its user is not looked at."""
        status = "suspected" if worker["suspicion"] is not None else worker["status"]
        return (
            self.host in (None, worker["host"])
            and self.rack in (None, worker["rack"])
            and labelled(worker, self.labels)
            and (self.name is None or fnmatchcase(worker["worker"], self.name))
            and (not self.state or status in self.state)
        )


def labelled(worker: Record, labels: Mapping[str, str]) -> bool:
    """Whether the worker, a record of the view `workers`, has all these labels."""
    return all(worker["labels"].get(key) == value for key, value in labels.items())


def chosen_workers(function: Callable[P, R]) -> Callable[P, R]:
    """Let a verb take workers by name or by a filter; it gets them as `chosen`, a `WorkerChoice`."""

    @wraps(function)
    def take(*args: P.args, **kwargs: P.kwargs) -> R:
        given: dict[str, Any] = {name: kwargs.pop(name) for name in WorkerChoice._fields if name != "names"}
        names: Any = kwargs.pop("worker")
        chosen = WorkerChoice(names, **given)
        if not names and not chosen.filters:
            raise click.UsageError(
                "name a WORKER or a host, or choose workers with --host, --rack, --label, --name, --user or --state"
            )
        kwargs["chosen"] = chosen
        return function(*args, **kwargs)

    run: Callable[P, R] = take
    for add in reversed(
        (
            click.argument("worker", nargs=-1, type=read_text, shell_complete=complete("worker")),
            text_option("--host", metavar="HOST", help="Only workers of this host."),
            text_option("--rack", metavar="RACK", help="Only workers of this rack."),
            label_option(help="Only workers with this label. Repeatable."),
            text_option("--name", metavar="PATTERN", help="Only workers of this id; * and ? are wildcards."),
            text_option("--user", metavar="U", help="Only workers on which an app of this user runs."),
            click.option(
                "--state",
                type=click.Choice(STATES),
                multiple=True,
                metavar="STATE",
                help=f"Only workers in this state: {', '.join(STATES)}. Repeatable.",
            ),
            flag("--yes", "-y", help="Do not ask before the workers that a filter chooses are changed."),
            flag("--dry-run", help="Show which workers would be chosen, and change nothing."),
        )
    ):
        run = add(run)
    return run


def picked_workers(session: Session, chosen: WorkerChoice, verb: str) -> list[str]:
    """The ids of the chosen workers; those that a filter chooses are shown and asked for before.

    Raises: click.UsageError if there is nobody to ask, click.Abort for a no, Ambiguous, UnknownWorker.
    """
    known: list[Record] = session.ask("workers")
    named = _named(chosen.names, known)
    found = [each for each in known if chosen.takes(each) and (not chosen.names or each["worker"] in named)]
    if chosen.user is not None:
        hosts = _workers_of_user(session, chosen.user)
        found = [each for each in found if each["worker"] in hosts]
    if not chosen.filters and not chosen.dry_run:
        return named
    if not found:
        _check_filters(session, chosen, known)
        render.say(f"no worker matches; nothing to {verb}")
        return []
    if not chosen.yes or chosen.dry_run:
        rows = [(each["worker"], each["host"], each["rack"], each["status"], each["executors"]) for each in found]
        render.print_table(("WORKER", "HOST", "RACK", "STATUS", "EXECUTORS"), rows, empty="", err=True)
        number = counted(len(found), "worker")
        render.say(f"{verb}: {number}")
    if chosen.dry_run:
        return []
    if not chosen.yes:
        confirm(f"{verb} these workers?")
    return [each["worker"] for each in found]


def workers_of(session: Session, names: Sequence[str], known: Sequence[Record] | None = None) -> tuple[str, ...]:
    """The ids of the workers that are named by an id, a unique beginning of it, or a host.

    Of the `known` ones, by default those that are registered. Raises: Ambiguous; UnknownWorker if any is none.
    """
    return tuple(_named(names, session.ask("workers") if known is None else known))


def wait_until_empty(session: Session, names: Sequence[str]) -> int:
    """Return 0 once nothing runs on the workers; show how much still does. Returns 1 if one is in service again."""
    left, said = set(names), None
    while True:
        known = {each["worker"]: each for each in session.ask("workers")}
        left = {name for name in left if name in known and known[name]["executors"] + known[name]["drivers"]}
        back = sorted(name for name in names if name in known and known[name]["status"] == "alive")
        if back:
            render.say(f"{', '.join(back)} takes executors again, so the wait is over")
            return 1
        running = sum(known[name]["executors"] + known[name]["drivers"] for name in left)
        if running != said:
            said = running
            render.say(
                f"{counted(running, 'executor')} and drivers run on {', '.join(sorted(left))}"
                if left
                else "nothing runs there any more"
            )
            sys.stderr.flush()
        if not left:
            return 0
        time.sleep(LOOK_S)


def _named(names: Sequence[str], known: Sequence[Record]) -> list[str]:
    found: dict[str, None] = {}
    ids = [each["worker"] for each in known]
    for name in names:
        of_host = [each["worker"] for each in known if each["host"] == name]
        meant = of_host if of_host and name not in ids else [only(name, ids, "workers")]
        if meant[0] not in ids:
            raise UnknownWorker(name)
        found |= dict.fromkeys(meant)
    return list(found)


def _check_filters(session: Session, chosen: WorkerChoice, known: Sequence[Record]) -> None:
    """Say of a choice of no worker if its filters name nothing. Raises: InvalidCommand, UnknownUser."""
    for what in ("host", "rack"):
        wanted, there = getattr(chosen, what), {each[what] for each in known} - {""}
        if wanted is not None and wanted not in there:
            meant = nearest(wanted, there)
            raise InvalidCommand(f"no worker has the {what} {wanted!r}; {meant}`fairlog workers` lists the workers")
    check_names(session.ask, None, chosen.user)


def _workers_of_user(session: Session, user: str) -> set[str]:
    """The workers on which executors or drivers of the user's apps run."""
    found: set[str] = set()
    for app in session.ask("apps", everything=True):
        if app["user"] == user and app["grantedCores"]:
            shown = session.ask("app", app=app["app"])
            found |= {held["worker"] for held in (*shown["executors"], *([shown["driver"]] if shown["driver"] else []))}
    return found
