"""Alerts: each condition that begins or ends is told to a webhook or a command, at least once and never twice.

A book in a file remembers the conditions that hold and the notices that are due. A notice is entered before it is sent
and crossed out when it is delivered. If the process is killed in between, it is sent again with the same id.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlsplit

import msgspec
import structlog
from msgspec import Struct, field

from fairlog.watch.conditions import CONDITIONS, Failover, Found, duration
from recovery.replay.bounds import moment
from scheduler.model.errors import FairlogError
from scheduler.service.lossy import DISK_REFUSES
from scheduler.service.private import drafted, private_folder

if TYPE_CHECKING:
    from pathlib import Path

BACK_OFF_S = (1, 2, 5, 10, 30, 60, 120, 300)
"""Seconds after each failed delivery; the last value repeats."""
ANSWER_S = 10.0
COMMAND_S = 60.0
WEBHOOK_VARIABLE = "FAIRLOG_ALERTS_WEBHOOK"
_TOLD_BY_STORE = ("store", "log")
"""The conditions that say that the others are unknown."""
_log = structlog.get_logger()


class Notice(Struct, kw_only=True):
    """The begin or the end of a condition. `since` is when it was first seen, `at` when this was entered (ms)."""

    id: str
    cluster: str
    status: Literal["firing", "resolved"]
    condition: str
    about: str
    severity: str
    sentence: str
    do: str
    cost: str = ""
    since: int
    at: int
    to: list[str]
    """Where it has yet to be delivered."""
    tries: int = 0
    after: int = 0
    """When (ms) it is sent again."""

    @property
    def key(self) -> str:
        """The condition that it is about."""
        return f"{self.condition}/{self.about}"

    def message(self) -> dict[str, Any]:
        """What is delivered, as JSON values."""
        done = "" if self.status == "firing" else f" (resolved after {duration(self.at - self.since)})"
        return {
            "id": self.id,
            "cluster": self.cluster,
            "status": self.status,
            "severity": self.severity,
            "condition": self.condition,
            "about": self.about,
            "sentence": self.sentence,
            "do": self.do,
            "cost": self.cost,
            "since": self.since,
            "at": self.at,
            "text": f"fairlog {self.cluster}: {self.sentence}{done}",
        }


class HeldCondition(Struct):
    """A condition that holds, since when (ms) it has been seen, and its id."""

    id: str
    since: int
    condition: str
    severity: str
    about: str
    sentence: str
    do: str
    cost: str = ""


class Ending(Struct, kw_only=True):
    """The end of an app that is to be delivered to `target`, whose place must be allowed then."""

    id: str
    target: str
    place: str
    message: dict[str, Any]
    at: int
    """When (ms) the app ended."""
    tries: int = 0
    after: int = 0
    """When (ms) it is sent again."""


class EndsTold(Struct):
    """What the book remembers of the ends of apps: the log up to `seq` was looked through."""

    seq: int = 0
    digest: str = ""
    due: list[Ending] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    """Of the last ones that were entered."""


class Pages(Struct):
    """What the book remembers."""

    cluster: str = ""
    holding: dict[str, HeldCondition] = {}
    due: list[Notice] = field(default_factory=list)
    short_since: dict[str, int] = {}
    master: str = ""
    failover: Failover | None = None
    apps: EndsTold = field(default_factory=EndsTold)


class BadBook(FairlogError):
    """The file does not hold a book of alerts."""


class Undelivered(FairlogError):
    """A notice could not be delivered."""


class Sink(Protocol):
    """Where notices are delivered, by a name under which the book remembers it."""

    name: str

    def deliver(self, message: Mapping[str, Any]) -> None:
        """Deliver it. Raises: Undelivered."""


class Book:
    """The book in the file `path`, of the cluster named there. Raises: BadBook, OSError."""

    def __init__(self, path: Path, cluster: str) -> None:
        self._path, self._written, self._unwritten = path, b"", False
        private_folder(path.parent)
        try:
            self.pages = msgspec.json.decode(path.read_bytes(), type=Pages)
        except FileNotFoundError:
            self.pages = Pages(cluster=cluster)
        except msgspec.DecodeError as error:
            raise BadBook(f"{path} holds no book of alerts: {error}; remove it to begin anew") from error
        if self.pages.cluster != cluster:
            raise BadBook(
                f"{path} is the book of the cluster {self.pages.cluster}, not of {cluster}; give --state another FILE"
            )

    def enter(self, found: Iterable[Found], now: int, sinks: Sequence[Sink], *, whole: bool) -> None:
        """Enter the conditions that hold at `now` (ms); what began or ended since becomes due.

        Without `whole`, what is not found may hold nevertheless, and nothing ends.
        """
        pages, names = self.pages, [sink.name for sink in sinks]
        holding = {f"{each.condition}/{each.about}": each for each in found}
        for key, each in holding.items():
            if key not in pages.holding:
                identity = blake2b(f"{pages.cluster}\0{key}\0{now}".encode(), digest_size=12).hexdigest()
                pages.holding[key] = HeldCondition(id=identity, **{**each._asdict(), "since": each.since or now})
                pages.due.append(self._notice(pages.holding[key], "firing", now, names))
        ended = [key for key in pages.holding if key not in holding] if whole else []
        for key in ended:
            pages.due.append(self._notice(pages.holding.pop(key), "resolved", now, names))
        self.save()

    def _notice(self, held: HeldCondition, status: Literal["firing", "resolved"], now: int, names: list[str]) -> Notice:
        about = msgspec.structs.asdict(held)
        identity = about.pop("id")
        return Notice(
            id=f"{identity}-{status}", cluster=self.pages.cluster, status=status, at=now, to=list(names), **about
        )

    def deliver(self, now: int, sinks: Sequence[Sink]) -> int:
        """Deliver what is due at `now` (ms), in order for each condition; returns how many notices were delivered."""
        delivered, waiting = 0, set()
        for notice in list(self.pages.due):
            if notice.after > now:
                waiting.add(notice.key)
            if notice.key in waiting:
                continue
            for sink in sinks:
                if sink.name not in notice.to:
                    continue
                try:
                    sink.deliver(notice.message())
                except Undelivered as error:
                    waiting.add(notice.key)
                    self._again(notice, now, sink, error)
                    continue
                notice.to.remove(sink.name)
                self.save()
            if not [name for name in notice.to if name in {sink.name for sink in sinks}]:
                self.pages.due.remove(notice)
                delivered += 1
            self.save()
        return delivered

    def _again(self, notice: Notice, now: int, sink: Sink, error: Undelivered) -> None:
        pause_s = BACK_OFF_S[min(notice.tries, len(BACK_OFF_S) - 1)]
        notice.tries += 1
        notice.after = now + pause_s * 1000
        _log.error(
            "an alert was not delivered",
            to=sink.name,
            alert=notice.key,
            status=notice.status,
            reason=str(error),
            tries=notice.tries,
            again_in_s=pause_s,
        )

    def save(self) -> None:
        """Write the book to disk if it has changed; a disk that is full is told of once, and tried again.

        Raises: OSError, if it was never written for another reason.
        """
        text = msgspec.json.encode(self.pages)
        if text == self._written:
            return
        try:
            with drafted(self._path, text) as draft:
                draft.replace(self._path)
        except OSError as error:
            if not self._written and error.errno not in DISK_REFUSES:
                raise
            if not self._unwritten:
                _log.error("the book of alerts was not written", file=str(self._path), error=str(error))
            self._unwritten = True
            return
        self._written, self._unwritten = text, False


def partial_knowledge(found: Sequence[Found]) -> bool:
    """Whether one of them says that the state of the cluster is not known."""
    return any(each.condition in _TOLD_BY_STORE for each in found)


def post(url: str, message: Mapping[str, Any]) -> None:
    """Post the message as JSON, with its id in the header `Idempotency-Key`; no redirect is followed.

    Anything but a 2xx is a failure. Raises: Undelivered.
    """
    import httpx  # noqa: PLC0415 (takes long to load)

    try:
        answer = httpx.post(url, json=message, headers={"Idempotency-Key": str(message["id"])}, timeout=ANSWER_S)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise Undelivered(f"{host_of(url)}: {error or type(error).__name__}") from error
    if not answer.is_success:
        raise Undelivered(f"{host_of(url)} answered {answer.status_code} {answer.reason_phrase}")


class Webhook:
    """Posts notices as JSON to a URL, with their id in the header `Idempotency-Key`."""

    def __init__(self, url: str) -> None:
        self.name, self._url = "webhook", url

    def deliver(self, message: Mapping[str, Any]) -> None:
        """Deliver it; anything but a 2xx is a failure. Raises: Undelivered."""
        post(self._url, message)


class Command:
    """Runs a command for each notice, which is JSON on its standard input and in the variables FAIRLOG_ALERT_*.

    Raises: ValueError if the words of the command cannot be told apart.
    """

    def __init__(self, command: str) -> None:
        self.name, self._words = "command", shlex.split(command)
        if not self._words:
            raise ValueError("an empty command")
        self.program = self._words[0]

    def deliver(self, message: Mapping[str, Any]) -> None:
        """Run it; any exit code but 0 is a failure. Raises: Undelivered."""
        variables = {f"FAIRLOG_ALERT_{name.upper()}": str(value) for name, value in message.items()}
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own command
                self._words,
                input=json.dumps(message).encode(),
                env={**os.environ, **variables},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=COMMAND_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            why = error.strerror if isinstance(error, OSError) else f"it ran longer than {COMMAND_S:.0f} s"
            raise Undelivered(f"{self.program}: {why}") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise Undelivered(f"{self.program} exited with {done.returncode}{f': {said[-1]}' if said else ''}")


class NoticePrinter:
    """Prints a line for each notice."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self.name, self._say = "printed", say

    def deliver(self, message: Mapping[str, Any]) -> None:
        """Print it."""
        done = "" if message["status"] == "firing" else "resolved: "
        self._say(f"{moment(message['at'])} {message['severity']} {done}{message['sentence']}; {message['do']}")


def host_of(url: str) -> str:
    """The host in a URL: the rest of a webhook's URL is often a secret."""
    return urlsplit(url).hostname or "the webhook"


def known_conditions() -> list[str]:
    """The names of all conditions."""
    return [condition.name for condition in CONDITIONS]
