"""What is worked out from the whole log: explanations, audits, fairness, statements, comparisons.

A server has them made by processes of their own (`Apart`), with a lower priority and a limit of time, so that they hold
up nobody's commands: one for answers about an app, which people wait for, one for estimates of all that wait, and one
for the rest. A process reads requests, a line of JSON each, and answers each with one.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, cast

import msgspec
from msgspec import Raw
from redis.exceptions import RedisError

from fairlog.api.estimates import errors_of_the_past, given, listed
from fairlog.api.questions import MAX_ADDED, OtherRules
from recovery.archive.archive import open_log
from recovery.replay.bounds import month_of
from recovery.replay.rebuild import rebuild, unhindered
from recovery.replay.window import measure
from scheduler.model import errors
from scheduler.model.commands import RegisterWorker, SubmitApp
from scheduler.model.errors import CommandRejected, FairlogError, InvalidCommand, refusal_of
from scheduler.model.sender import By
from scheduler.service.child import run_module
from scheduler.store.codec import told
from scheduler.store.connection import clock_ms, connect
from scheduler.store.eventlog import GENESIS, Position
from scheduler.store.keys import Keys
from scheduler.store.transient import in_words
from witness.audit.audit import Audit, Audited
from witness.course import SPAN_MS, Course
from witness.explain import explain as explained
from witness.fairness import Fairness
from witness.forecast import Estimate, forecast
from witness.plan import plan as planned
from witness.statement import Level, of_departments, of_month
from witness.timeline import Timeline
from witness.whatif import Rules, replayed

if TYPE_CHECKING:
    from scheduler.store.codec import Fact
    from scheduler.store.eventlog import EventLog

LIMIT_S = 60
"""How long an answer may take."""
IDLE_S = 300
"""How long the process waits for the next request before it ends."""
NICE = 10
FORECAST_S = 10.0
"""How old the estimates of all apps may be, or twice as old as it takes to work them out."""
COURSE_S = 10.0
"""How long each of their courses may take to work out."""
MEMORY = 2 << 30
"""The most bytes that the process may hold."""


class TooLong(FairlogError):
    """The log is too long to be read from its start for one answer."""


class Failed(FairlogError):
    """An answer was not made."""


class AuditedLog:
    """The audit of a log, which is gone on with: only the first question waits until all of the log is audited."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._audit, self._verdict = Audit(), ""

    def verdict(self, to: int) -> str | None:
        """The first verdict on the log up to a position, as `Audited` tells it; None if it follows the rules.

        Raises: UnreadableRecord, InvariantViolated.
        """
        end = self._end
        if end.seq > to or (end != GENESIS and self._log.at(end.seq) != end):
            self._audit, self._verdict = Audit(), ""  # the log is another one than was audited
        try:
            with unhindered():
                for record in () if self._verdict else self._log.read(self._end, to=to):
                    if self._audit.hear(told(record)):
                        self._verdict = str(self._audit.verdicts[0])
                        break
        except FairlogError:
            self._audit = Audit()
            raise
        return self._verdict or None

    @property
    def _end(self) -> Position:
        """Of what was audited."""
        return Position(self._audit.ends_at, self._audit.digest) if self._audit.ends_at else GENESIS


class Courses:
    """The course of the log's last hour, which is gone on with: a later question folds what has been added only."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._course: Course | None = None
        self._end = GENESIS

    def up_to(self, to: int) -> Course:
        """The course up to a position, the end of a turn. Raises: as `EventLog.read`."""
        course, end = self._course, self._end
        if course is None or end.seq > to or (end != GENESIS and self._log.at(end.seq) != end):
            state, end = rebuild(self._log, to=self._an_hour_before(to))
            course = Course(state)
        self._course = None  # what fails is not gone on with
        with unhindered():
            for record in self._log.read(end, to=to):
                course.hear(told(record))
                end = Position(record.last, record.digest)
        self._course, self._end = course, end
        return course

    def _an_hour_before(self, to: int) -> int:
        """The end of the last turn at or before an hour before that of a position; 0 if there is none."""
        last = self._log.turn_of(to)
        begin = None if last is None else self._log.turn_at(last.at - SPAN_MS, to)
        return 0 if begin is None else begin.last


class Forecasts:
    """The estimates of all apps that wait, worked out anew when they are old or do not name one that is asked for."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._found: dict[str, Estimate] = {}
        self._to, self._until_s = 0, 0.0

    def of(self, apps: Collection[str], to: int, now: int) -> dict[str, Estimate]:
        """The estimates of these apps by the state at a position. Raises: as `rebuild`."""
        began_s = time.monotonic()
        fresh = self._to == to or (self._to < to and began_s < self._until_s)
        if not fresh or not self._found.keys() >= set(apps):
            self._found = forecast(rebuild(self._log, to=to)[0], now, within_s=COURSE_S, spoil=True)
            self._to, now_s = to, time.monotonic()
            self._until_s = now_s + max(FORECAST_S, 2 * (now_s - began_s))
        return {app: self._found[app] for app in apps if app in self._found}


class LogSource(NamedTuple):
    """The log up to a position, its audit, the course of its last hour, its forecast, and the present time in ms."""

    log: EventLog
    to: int
    now: Callable[[], int]
    checked: AuditedLog
    courses: Courses
    forecasts: Forecasts

    def facts(self) -> Iterator[Fact]:
        """Its events."""
        return self.log.facts(to=self.to)


class Figures(Protocol):
    """Makes an answer."""

    def __call__(self, name: str, to: int, arguments: Mapping[str, Any]) -> bytes:
        """The answer `name` from the log up to position `to`, as JSON. Raises: as the functions below; TooLong."""


def explain(source: LogSource, app: str, *, submitted: int = 1, audited: bool = False) -> object:
    """Why the app, which was `submitted` at that position, waits, or was placed as it was.

    If it is to be `audited`, as `fairlog explain --json` prints it. Raises: UnknownApp.
    """
    before, position = rebuild(source.log, to=source.log.before(submitted - 1).seq)
    story = explained(source.log.facts(position, to=source.to), app, now=source.now, before=before)
    story["estimate"] = given(source.log, story["app"], source.now(), story["estimate"])
    return {"verdict": source.checked.verdict(source.to), **story} if audited else story


def estimates(source: LogSource, apps: list[str], *, past: bool) -> object:
    """When these apps may start, those that wait, and how far earlier estimates were from what came."""
    if past:
        return listed(None, 0, source.forecasts.of(apps, source.to, 0))
    now = source.now()
    return listed(source.log, now, source.forecasts.of(apps, source.to, now))


def audit(source: LogSource) -> object:
    """The verdicts of an audit."""
    audited = Audit()
    for _ in audited.deviations(source.facts()):
        pass
    return audited_as_json(audited)


def audited_as_json(audited: Audit) -> dict[str, Any]:
    """What an audit has found."""
    return {
        "events": audited.events,
        "decisions": audited.decisions,
        "endsAt": audited.ends_at,
        "digest": audited.digest,
        "verdicts": [each.as_json() for each in audited.verdicts],
    }


def fairness(source: LogSource, by: Literal["company", "user", "department"]) -> object:
    """How fair the log was, as `fairlog fairness --json` prints it."""
    meter, audited = Fairness(by=by), Audited(source.facts())
    state, span = measure(audited, meter)
    return {"verdict": audited.verdict, "log": span.as_json(), **meter.report(state)}


def course(source: LogSource) -> object:
    """The use of the cluster and its queue in the last hour."""
    return {"points": [each._asdict() for each in source.courses.up_to(source.to).points]}


def statement(source: LogSource, company: str, month: str) -> object:
    """The company's use in a month, `YYYY-MM`, as `fairlog statement --json` prints it.

    Raises: UnknownCompany; InvalidCommand if the log has no entry in the month.
    """
    return of_month(source.facts(), company, month, month_of(month))


def departments_statement(source: LogSource, department: str, month: str, by: Level) -> object:
    """The use of a department, or of the cluster, in a month; as `fairlog statement --department --json` prints it.

    Raises: InvalidCommand if there never was such a department, or the log has no entry in the month.
    """
    return of_departments(source.facts(), department, month, month_of(month), by)


def whatif(source: LogSource, rules: Any) -> object:  # noqa: ANN401 (OtherRules as JSON values)
    """The log's inputs under other rules, as `fairlog whatif --json` prints it, and the course of both over time.

    Raises: CommandRejected if a rule is not valid.
    """
    asked = msgspec.convert(rules, OtherRules)
    count = sum(each.count for each in asked.workers)
    if count > MAX_ADDED:
        raise InvalidCommand(f"at most {MAX_ADDED} workers can be added, not {count}")
    offers = [each for each in asked.workers for _ in range(each.count)]
    names = [f"added-{number}" for number in range(1, count + 1)]
    added = [
        RegisterWorker(worker=name, node=name, host=name, cores=offer.cores, memory_mb=offer.memory_mb)
        for name, offer in zip(names, offers, strict=True)
    ]
    quotas = {company: (each.cores, each.memory_mb) for company, each in asked.quotas.items()}
    return replayed(source.facts(), Rules(asked.settings, quotas, added, asked.edition), keep=True)


def lane_of(name: str) -> str:
    """Which answers wait for each other: those about one app, those about all that wait, and those about everything."""
    if name == "estimates":
        return "ahead"
    return "app" if name in {"explain", "timeline", "plan"} else "all"


def timeline(source: LogSource, app: str, *, past: bool) -> object:
    """The life of an app, up to now or to the position that is `past`. Raises: UnknownApp."""
    found = Timeline(app)
    found.hear(source.facts())
    return found.told(0 if past else source.now())


def plan(source: LogSource, command: Any, by: Any) -> object:  # noqa: ANN401 (SubmitApp and By as JSON values)
    """What would become of the submission now. Raises: CommandRejected if it would be refused."""
    state, _ = rebuild(source.log, to=source.to)
    found = planned(state, msgspec.convert(command, SubmitApp), msgspec.convert(by, By), source.now())
    if found["estimate"] is not None:
        found["estimate"]["errors"] = errors_of_the_past(source.log)
    return found


ANSWERS: Mapping[str, Callable[..., object]] = {
    each.__name__: each
    for each in (
        *(explain, audit, fairness, course, statement, departments_statement),
        *(whatif, timeline, plan, estimates),
    )
}


def here(log: EventLog, now: Callable[[], int]) -> Figures:
    """Answers made by this process, without a limit of time."""
    checked, courses, forecasts = AuditedLog(log), Courses(log), Forecasts(log)

    def make(name: str, to: int, arguments: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode(ANSWERS[name](LogSource(log, to, now, checked, courses, forecasts), **arguments))

    return make


class Apart:
    """Answers made by other processes, started when they are first needed; a context manager that ends them.

    One answer of a lane is made at a time: whoever calls sees to that.
    """

    def __init__(self, store_url: str, cluster: str, archive_url: str = "") -> None:
        self._about = msgspec.json.encode([store_url, cluster, archive_url])
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """By lane."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            _ended(process)

    def __call__(self, name: str, to: int, arguments: Mapping[str, Any]) -> bytes:
        """Raises: as `Figures`; Failed if the process ends without an answer."""
        request = msgspec.json.encode([name, to, arguments]) + b"\n"
        said, code = self._asked(lane_of(name), request)
        if code == 0:  # it was idle for long, and ended when it was asked
            said, code = self._asked(lane_of(name), request)
        if code == -signal.SIGALRM:
            raise TooLong(f"the answer takes more than {LIMIT_S} s; use the verb of the command line")
        if code is not None:
            raise Failed(f"the answer was not made: the process for it ended with {code}")
        title, detail, answer = msgspec.json.decode(said, type=tuple[str, str, Raw])
        if title:
            raise _error(title, detail)
        return bytes(answer)

    def _asked(self, lane: str, request: bytes) -> tuple[bytes, int | None]:
        """The answer, or the exit code of the process if it ends without one."""
        process = self._processes.get(lane)
        if process is None:
            process = self._processes[lane] = subprocess.Popen(  # noqa: S603 (our own program)
                run_module(__name__), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            request = self._about + b"\n" + request
        to, answers = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        with suppress(BrokenPipeError):
            to.write(request)
            to.flush()
        said = answers.readline()
        if said.endswith(b"\n"):
            return said, None
        del self._processes[lane]
        return b"", _ended(process)


def _ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process that ends."""
    with suppress(BrokenPipeError), process:
        pass
    return process.wait()


def _error(title: str, detail: str) -> FairlogError:
    kind: Any = getattr(errors, title, Failed)
    return refusal_of(title, detail) if issubclass(kind, CommandRejected) else kind(detail)


def main() -> None:
    """Answer requests from stdin, until none comes for `IDLE_S`; SIGALRM ends the process if one takes too long."""
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing but answers is written to the pipe
    requests = os.fdopen(0, "rb", buffering=0)
    url, cluster, archive_url = msgspec.json.decode(requests.readline())
    with connect(url) as store:
        make = here(open_log(store, Keys(cluster), elsewhere=archive_url), lambda: clock_ms(cast("Any", store.time())))
        while select.select([requests], [], [], IDLE_S)[0] and (request := requests.readline()):
            signal.alarm(LIMIT_S)
            name, to, arguments = msgspec.json.decode(request)
            said: tuple[str, str, Raw]
            try:
                said = "", "", Raw(make(name, to, arguments))
            except FairlogError as error:
                said = type(error).__name__, str(error), Raw(b"null")
            except RedisError as error:
                said = Failed.__name__, in_words(error), Raw(b"null")
            answers.write(msgspec.json.encode(said) + b"\n")
            answers.flush()
            signal.alarm(0)


if __name__ == "__main__":
    main()
