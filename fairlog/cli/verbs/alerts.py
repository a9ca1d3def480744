"""The verb `alerts`: tells a webhook or a command what begins to need attention, and what no longer does."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click
import platformdirs

from fairlog.cli import params
from fairlog.cli.target import Target, target_options
from fairlog.watch.alerts import (
    WEBHOOK_VARIABLE,
    Book,
    Command,
    NoticePrinter,
    Webhook,
    known_conditions,
    partial_knowledge,
)
from fairlog.watch.conditions import Found, Thresholds, found
from fairlog.watch.mail import SMTP_VARIABLE, MailServer
from scheduler.model.errors import (
    FairlogError,
    InvalidCommand,
    InvariantViolated,
    UnreadableRecord,
    UnsuitableStore,
)
from scheduler.model.targets import place_of
from scheduler.service.notify import ALIVE, READY, STOPPING, notify
from scheduler.service.program_log import log_to_stderr, program_log

if TYPE_CHECKING:
    from fairlog.api.client import ApiClient
    from fairlog.cli.session import Session
    from fairlog.watch.alerts import Pages, Sink
    from fairlog.watch.endings import Endings


class BookInUse(FairlogError):
    """Another `alerts` uses the file."""


class AlertOptions(NamedTuple):
    """The options of the verb."""

    webhook: str | None
    command: str | None
    once: bool
    every: int
    short: int
    disk: float
    memory: float
    ignore: tuple[str, ...]
    state: Path | None
    apps: bool
    smtp: str | None
    mail_from: str | None

    def sinks(self) -> list[Sink]:
        """Where notices are delivered; on stdout if nothing is named."""
        found: list[Sink] = [Webhook(self.webhook)] if self.webhook else []
        found += [Command(self.command)] if self.command else []
        return found or [NoticePrinter(click.echo)]

    def mail(self) -> MailServer | None:
        """What sends mail to whom apps name. Raises: click.UsageError unless both options are given, or none."""
        if self.smtp is None and self.mail_from is None:
            return None
        if self.smtp is None or self.mail_from is None:
            given, missing = ("--smtp", "--mail-from") if self.smtp else ("--mail-from", "--smtp")
            raise click.UsageError(f"{given} needs {missing}; give both")
        return MailServer.of(self.smtp, self.mail_from)


class Eyes:
    """Looks at the cluster again and again, through the API or the store, which may be away.

    `pages` is what it remembers from earlier looks.
    """

    def __init__(self, target: Target, bounds: Thresholds, pages: Pages) -> None:
        from fairlog.watch.surroundings import RepeatedLooks  # noqa: PLC0415 (help needs none of it)

        self._target, self._bounds, self._pages = target, bounds, pages
        self._watched = RepeatedLooks(pages.short_since, pages.master)
        self._watched.failover = pages.failover
        self._session: Session | None = None

    def look(self) -> list[Found]:
        """The conditions that hold now."""
        from redis.exceptions import RedisError  # noqa: PLC0415 (as above)

        from fairlog.cli.session import SessionByApi, opened  # noqa: PLC0415 (likewise)
        from scheduler.store.transient import in_words  # noqa: PLC0415 (likewise)

        try:
            if self._session is None:
                self._session = opened(self._target)
            if isinstance(self._session, SessionByApi):
                return _by_api(self._session.api)
            return self._by_store(self._session)
        except RedisError as error:
            return _away(self._target, in_words(error))
        except UnsuitableStore as error:
            return _away(self._target, str(error))

    def look_for_ends(self, endings: Endings) -> None:
        """Enter the ends of apps, unless the store is away or its log cannot be read, which is a condition."""
        from redis.exceptions import RedisError  # noqa: PLC0415 (as above)

        if self._session is None:
            return
        try:
            endings.look(self._session.road.log)
        except (RedisError, UnsuitableStore, UnreadableRecord, InvariantViolated) as error:
            program_log().warning("the ends of apps cannot be looked for", reason=str(error))

    def _by_store(self, session: Session) -> list[Found]:
        from fairlog.local.running import find_running, others_than  # noqa: PLC0415 (as above)
        from fairlog.watch.surroundings import look_around, short_of, since_when, standbys_wanted  # noqa: PLC0415 (likewise)
        from scheduler.rules.state.cluster import ClusterState  # noqa: PLC0415 (likewise)

        road = session.road
        unreadable, state = "", ClusterState()
        try:
            state = road.reader.state()
            self._watched.look(state.master, short_of(state), session.now_ms())
        except (UnreadableRecord, InvariantViolated) as error:
            unreadable = str(error)
        up, seen = session.up, self._watched
        up = up and find_running(Path(up.data))  # it may have been started again
        around = look_around(
            road.store,
            road.keys,
            watched=seen,
            standbys=standbys_wanted() if up is None else min(1, up.masters - 1),
            others=others_than(up, session.target.data),
            bounds=self._bounds,
        )
        pages = self._pages
        pages.short_since, pages.master, pages.failover = seen.since, seen.master, seen.failover
        holding = found(state, around._replace(unreadable=unreadable))
        return since_when(road.store, road.keys, holding, around)


def _by_api(api: ApiClient) -> list[Found]:
    try:
        said = api.read("/v1/status", fresh="true")["health"]["conditions"]
    except FairlogError as error:
        raise UnsuitableStore(f"the API does not answer: {error}") from error
    return [Found(**{name: each[name] for name in Found._fields if name in each}) for each in said]


def _away(target: Target, error: str) -> list[Found]:
    from fairlog.cli.health import around_without_store  # noqa: PLC0415 (as above)
    from fairlog.local.running import find_running  # noqa: PLC0415 (likewise)
    from scheduler.rules.state.cluster import ClusterState  # noqa: PLC0415 (likewise)

    up = None if target.store else find_running(target.data)
    return found(ClusterState(), around_without_store(error, up, target.data))


def _part(text: str) -> float:
    """A percentage as a part of 1. Raises: click.BadParameter."""
    number = text.removesuffix("%").strip()
    if not re.fullmatch(r"\d{1,3}", number) or not 1 <= int(number) <= 100:
        raise click.BadParameter(f"a percentage is a number from 1 to 100, not {text!r}")
    return int(number) / 100


def _webhook(text: str) -> str:
    """Raises: click.BadParameter unless it is an http URL."""
    with suppress(ValueError):
        url = urlsplit(text)
        if url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port):
            return text
    raise click.BadParameter(f"a webhook is a URL like https://HOST:8443/PATH, not {text!r}")


def _short(text: str) -> int:
    """Seconds. Raises: click.BadParameter unless they are positive."""
    if (seconds := params.read_duration(text)) < 1:
        raise click.BadParameter(f"a company is short for a second or longer, not {text!r}; write it like 15m")
    return seconds


def _smtp(text: str) -> str:
    """Raises: click.BadParameter unless it is the URL of a server for mail."""
    try:
        MailServer.of(text, "")
    except ValueError:
        raise click.BadParameter("a server for mail is a URL like smtps://NAME:PASSWORD@HOST") from None
    return text


def _mail_from(text: str) -> str:
    """Raises: click.BadParameter unless it is an address of mail."""
    with suppress(InvalidCommand):
        if place_of(text).startswith("@"):
            return text
    raise click.BadParameter(f"an address of mail is written like fairlog@example.org, not {text!r}")


def _command(text: str) -> str:
    try:
        program = Command(text).program
    except ValueError:
        raise click.BadParameter(f"{text!r} is no command; quote its arguments as in a shell") from None
    if shutil.which(program) is None:
        raise click.BadParameter(f"no program {program!r} can be run here; give the path of one, or one on PATH")
    return text


@click.command()
@click.option(
    "--webhook",
    type=_webhook,
    metavar="URL",
    envvar=WEBHOOK_VARIABLE,
    show_envvar=True,
    help="Post each notice there, as JSON.",
)
@click.option("--command", type=_command, metavar="CMD", help="Run CMD for each notice, which is JSON on its stdin.")
@params.flag("--once", help="Look once, deliver what is due, and exit; for cron.")
@params.range_option("--every", 1, 3600, default=5, show_default=True, metavar="SECONDS", help="How often to look.")
@click.option(
    "--short",
    type=_short,
    default="15m",
    show_default=True,
    metavar="TIME",
    help="Tell of a company that is short of its entitlement for longer.",
)
@click.option(
    "--disk",
    type=_part,
    default="90%",
    show_default=True,
    metavar="PERCENT",
    help="Tell of a disk of the store that is fuller.",
)
@click.option(
    "--memory",
    type=_part,
    default="80%",
    show_default=True,
    metavar="PERCENT",
    help="Tell of a store that uses more of its memory.",
)
@click.option(
    "--ignore",
    type=click.Choice(known_conditions()),
    multiple=True,
    metavar="CONDITION",
    help="Do not tell of this condition. Repeatable.",
)
@params.flag(
    "--apps",
    help="Tell the ends of apps as well, to whom `fairlog submit --notify` names at the places that the setting "
    "notify_targets allows. Needs the store.",
)
@click.option(
    "--smtp",
    type=_smtp,
    metavar="URL",
    envvar=SMTP_VARIABLE,
    show_envvar=True,
    help="Server that takes the mail of --apps: smtp://[NAME:PASSWORD@]HOST[:PORT] or smtps://…",
)
@click.option("--mail-from", type=_mail_from, metavar="MAIL", help="Address from which that mail comes.")
@click.option(
    "--state",
    type=params.FILE,
    metavar="FILE",
    help="File that remembers what was told.  [default: one for each cluster in the user's state folder]",
)
@target_options()
@click.pass_context
def alerts(ctx: click.Context, /, **asked: Any) -> int:  # noqa: ANN401 (the fields of `AlertOptions`)
    """Tell a webhook or a command what needs attention, and when it no longer does.

    The conditions are those of `fairlog status`. Each is told when it begins and when it ends: at least once, also if
    the webhook is away for long, and never twice. Without --webhook and --command, a line is printed for each notice.

    What was told is remembered in a file, which only one `alerts` uses at a time. A notice whose delivery was cut off
    by a crash is sent again under the same id. With --once, exits with 1 if a notice could not be delivered.

    With --apps, the end of each app that names somebody is told once all that it ran has ended: a POST of JSON, or a
    mail, with its figures. The first look begins at the end of the log. What cannot be delivered is tried for 3 days.
    """
    from scheduler.service.locks import try_lock  # noqa: PLC0415 (help needs none of it)

    target, options = ctx.ensure_object(Target), AlertOptions(**asked)
    mail = options.mail()
    log_to_stderr()
    cluster, where = _named(ctx, target)
    path = options.state or platformdirs.user_state_path("fairlog") / f"alerts-{where}.json"
    book = Book(path, cluster)
    lock = try_lock(path.with_name(f"{path.name}.lock"))
    if lock is None:
        raise BookInUse(f"another `fairlog alerts` uses {path}; give --state another FILE")
    try:
        eyes = Eyes(target, Thresholds(options.memory, options.disk, options.short), book.pages)
        endings = None
        if options.apps:
            from fairlog.watch.endings import Endings  # noqa: PLC0415 (loads the rules)

            endings = Endings(book.pages.apps, cluster, book.save, mail)
        return _follow(book, eyes, options, endings)
    finally:
        os.close(lock)


_OF_THE_API = ("short", "disk", "memory")
"""What the API has bounds of its own for."""


def _named(ctx: click.Context, target: Target) -> tuple[str, str]:
    """The cluster, or the API's URL, and a name for its file. Raises: NoStore, click.UsageError."""
    from fairlog import credentials  # noqa: PLC0415 (help needs none of it)
    from fairlog.cli.session import locate  # noqa: PLC0415 (likewise)

    known = credentials.named(target.data) if target.store is None else None
    if known is None:
        _, cluster, _ = locate(target)
        return cluster, cluster
    given = [name for name in _OF_THE_API if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if given:
        raise click.UsageError(f"--{given[0]} needs the store: the API at {known.api} has bounds of its own")
    if ctx.params.get("apps"):
        raise click.UsageError(f"--apps needs the store: the API at {known.api} does not say whom apps name")
    return known.api, re.sub(r"[^A-Za-z0-9.-]+", "-", known.api)


def _follow(book: Book, eyes: Eyes, options: AlertOptions, endings: Endings | None) -> int:
    """Look and deliver, once or until SIGTERM or SIGINT."""
    stopping = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    sinks = options.sinks()
    notify(READY)
    while True:
        holding = [each for each in eyes.look() if each.condition not in options.ignore]
        now = round(time.time() * 1000)
        book.enter(holding, now, sinks, whole=not partial_knowledge(holding))
        book.deliver(now, sinks)
        if endings is not None:
            eyes.look_for_ends(endings)
            endings.deliver(now)
        if options.once:
            return 1 if book.pages.due or (endings is not None and endings.due) else 0
        notify(ALIVE)
        if stopping.wait(options.every):
            notify(STOPPING)
            return 0
