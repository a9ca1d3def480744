"""Which apps a verb is about: ids, unique beginnings of ids, filters; and the preview before many change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import click

from fairlog.api.addresses import check_app
from fairlog.cli import render
from fairlog.cli.completion import complete
from fairlog.cli.params import P, R, flag, read_text, text_option
from fairlog.cli.whose import company_option, is_typed, user_option
from scheduler.model.errors import CommandRejected, FairlogError, UnknownApp, UnknownCompany, UnknownUser
from scheduler.model.states import AppState
from scheduler.model.text import counted, few

if TYPE_CHECKING:
    from fairlog.cli.session import Session

STATES = ("not-ready", *get_args(AppState))
"""What `--state` takes: the states of apps; `not-ready` = pending, and on hold or waiting for another app."""
_SHOWN = 20
"""The most rows of a preview."""
_NAMED = 5
_IDS = 300
"""How many apps are asked for by their ids at once."""
Record = Mapping[str, Any]


def waited_ms(app: Record, now: int) -> int:
    """How long (ms) the app of the view `apps` waits at `now`; has waited until it was admitted, if it has executors.

    One that is admitted, asks for executors and has none waits on.
    """
    begun = None if app["state"] == "waiting" and app["requestedCores"] else app["admittedAt"]
    return int((begun or app["endedAt"] or max(now, app["submittedAt"])) - app["submittedAt"])


class Ambiguous(FairlogError):
    """Several ids begin with the text."""

    def __init__(self, what: str, text: str, found: Sequence[str]) -> None:
        super().__init__(f"{len(found)} {what} begin with {text!r}: {few(found, _NAMED)}; write more of one")


class Filter(NamedTuple):
    """What the apps that are meant have in common; empty = everything."""

    company: str | None = None
    user: str | None = None
    name: str | None = None
    state: tuple[str, ...] = ()

    def takes(self, app: Record) -> bool:
        """Whether the app, a record of the view `apps`, is meant."""
        return (
            self.company in (None, app["company"])
            and self.user in (None, app["user"])
            and (self.name is None or fnmatchcase(app["name"], self.name))
            and (not self.state or shown_state(app) in self.state)
        )

    def check_names(self, ask: Callable[[str], Any]) -> None:
        """As `check_names`, of its company and user."""
        check_names(ask, self.company, self.user)


def check_names(ask: Callable[[str], Any], company: str | None, user: str | None) -> None:
    """Say of a filter that chose nothing if it names nobody; `ask` answers views. Raises: UnknownCompany, UnknownUser.

    A user that a variable names, not an option, may be about to submit a first app.
    """
    if company is not None:
        known = [each["company"] for each in ask("companies")]
        if company not in known:
            raise UnknownCompany(company, known)
    if user is None or not is_typed("user"):
        return
    users = {each["user"] for each in ask("shares")["users"] if company in (None, each["company"])}
    with suppress(CommandRejected):  # not everybody may list the accounts
        of_accounts = (each["account"].partition("/") for each in ask("accounts"))
        users |= {name for whose, _, name in of_accounts if company in (None, whose)}
    if user not in users:
        raise UnknownUser(user, company, users)


class Choice(NamedTuple):
    """The apps that a verb is told to act on: ids or beginnings of ids, or a filter; `yes`: without asking."""

    names: tuple[str, ...]
    filter: Filter
    yes: bool = False
    dry_run: bool = False


def shown_state(app: Record) -> str:
    """The state of an app as lists show it."""
    return app["state"] if app["ready"] or app["endedAt"] else "not-ready"


def filter_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add `--company`, `--user`, `--name` and `--state` to a verb, which gets them as `wanted`, a `Filter`."""

    @wraps(function)
    def take(*args: P.args, **kwargs: P.kwargs) -> R:
        given: dict[str, Any] = {name: kwargs.pop(name) for name in Filter._fields}
        kwargs["wanted"] = Filter(**given)
        return function(*args, **kwargs)

    run: Callable[P, R] = take
    for add in reversed(
        (
            company_option("Only apps of this company."),
            user_option("Only apps of this user."),
            text_option("--name", metavar="PATTERN", help="Only apps with this display name; * and ? are wildcards."),
            click.option(
                "--state",
                type=click.Choice(STATES),
                multiple=True,
                metavar="STATE",
                help=f"Only apps in this state: {', '.join(STATES)}. Repeatable.",
            ),
        )
    ):
        run = add(run)
    return run


def chosen_apps(*, asks: bool = True) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a verb take apps by id, by a unique beginning of an id, or by a filter; it gets them as `chosen`.

    A company or user that a variable names narrows a filter; apps that are named by id are taken whoever's they are.
    With `asks`, apps that are chosen by a filter are shown, and the verb goes on after a yes or with `--yes`.
    """

    def add(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def take(*args: P.args, **kwargs: P.kwargs) -> R:
            names: Any = kwargs.pop("app")
            wanted: Any = kwargs.pop("wanted")
            yes, dry_run = (bool(kwargs.pop(name, False)) for name in ("yes", "dry_run"))
            typed = wanted._replace(**{name: None for name in ("company", "user") if not is_typed(name)})
            wanted = typed if names else wanted
            if not names and typed == Filter():
                raise click.UsageError("name an APP, or choose apps with --company, --user, --name or --state")
            kwargs["chosen"] = Choice(names, wanted, yes, dry_run)
            return function(*args, **kwargs)

        run: Callable[P, R] = apps_argument(filter_options(take))
        if asks:
            run = flag("--dry-run", help="Show which apps would be chosen, and change nothing.")(run)
            run = flag("--yes", "-y", help="Do not ask before the apps that a filter chooses are changed.")(run)
        return run

    return add


def apps_argument(function: Callable[P, R]) -> Callable[P, R]:
    """Add the argument APP..., which may be left out."""
    return click.argument("app", nargs=-1, type=read_text, shell_complete=complete("app"))(function)


app_argument = click.argument("app", type=read_text, shell_complete=complete("app"))


def picked(session: Session, chosen: Choice, verb: str) -> list[str]:
    """The ids of the chosen apps; those that a filter chooses are shown, and asked for, before `verb` is done to them.

    Raises: click.UsageError if there is nobody to ask, click.Abort for a no; as `known_ids`.
    """
    if chosen.filter == Filter():
        names = known_ids(session, chosen.names)
        if chosen.dry_run:
            render.say(f"would {verb} {', '.join(names)}")
        return [] if chosen.dry_run else names
    found = matching(session, chosen)
    if not found:
        render.say(f"no app matches; nothing to {verb}")
        return []
    if not chosen.yes or chosen.dry_run:
        preview(found, verb)
    if chosen.dry_run:
        return []
    if not chosen.yes:
        confirm(f"{verb} {counted(len(found), 'app')}?")
    return [app["app"] for app in found]


def matching(session: Session, chosen: Choice) -> list[Record]:
    """The apps that the filter takes, of those that are named if any are; ended ones only if their state is named.

    Raises: as `check_names` if it takes none.
    """
    ended = {"finished", "failed", "killed", "unmet", "expired"} & set(chosen.filter.state)
    listed: list[Record] = session.ask("apps", everything=bool(ended))
    named = set(known_ids(session, chosen.names))
    found = [app for app in listed if chosen.filter.takes(app) and (not named or app["app"] in named)]
    if not found:
        chosen.filter.check_names(session.ask)
    return found


def preview(found: Sequence[Record], verb: str) -> None:
    """Show on stderr which apps `verb` is about to be done to."""
    rows = [(app["app"], app["company"], app["user"], app["name"], shown_state(app)) for app in found[:_SHOWN]]
    render.print_table(("APP", "COMPANY", "USER", "NAME", "STATE"), rows, empty="", err=True)
    more = f", of which the first {_SHOWN} are shown" if len(found) > _SHOWN else ""
    render.say(f"{verb}: {counted(len(found), 'app')}{more}")


def confirm(question: str) -> None:
    """Ask on a terminal. Raises: click.Abort for a no; click.UsageError without a terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here, so nothing was changed; add --yes to go on without asking")
    click.confirm(question, abort=True, err=True)


def full_ids(session: Session, names: Sequence[str]) -> list[str]:
    """The ids that these texts are, or of which they are the only beginning; a text that is neither stays.

    A number is the log position of an app's submission. The part after `app-` is a beginning as well.

    Raises: Ambiguous; UnknownApp for a text that no app can be named, which could name something else in a path.
    """
    for name in names:
        check_app(name)
    names = [_numbered(session, name) if name.isdecimal() else name for name in names]
    if all(map(_is_whole, names)):
        return names
    known = [app["app"] for app in session.ask("apps", everything=True)]
    return [only(name, known, "apps") for name in names]


def known_ids(session: Session, names: Sequence[str]) -> list[str]:
    """As `full_ids`, each once, for a verb that changes all of these apps or, if one of several is wrong, none.

    The master refuses a single one that is wrong. Raises: also NotAllowed for an app of others.
    """
    found = list(dict.fromkeys(full_ids(session, names)))
    for start in range(0, len(found) if len(found) > 1 else 0, _IDS):
        part = found[start : start + _IDS]
        known = {app["app"] for app in session.ask("apps", everything=True, ids=",".join(part))}
        for name in part:
            if name not in known:
                session.ask("app", app=name)
    return found


def _numbered(session: Session, name: str) -> str:
    """The id of the app with that number; the text if there is none."""
    with suppress(UnknownApp):
        return str(session.ask("app", app=name)["app"])
    return name


def full_id(session: Session, name: str) -> str:
    """As `full_ids`, of one app."""
    return full_ids(session, [name])[0]


def only(text: str, known: Sequence[str], what: str) -> str:
    """The one of `known` that is, or alone begins with, the text; the text if there is none. Raises: Ambiguous."""
    if not text or text in known:
        return text
    found = [name for name in known if name.startswith((text, f"app-{text}"))]
    if len(found) > 1:
        raise Ambiguous(what, text, found)
    return found[0] if found else text


def _is_whole(name: str) -> bool:
    """Whether the text looks like an id that `submit` has made, so that nothing has to be looked up."""
    return len(name) == 16 and name.startswith("app-") and all(digit in "0123456789abcdef" for digit in name[4:])
