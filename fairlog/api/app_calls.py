"""What an app's people and its driver ask of it: tasks, output, mailbox, commands in its cells."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from msgspec import Raw

from fairlog.api.pages import Viewed, number_in, to_json
from fairlog.api.questions import PAGE, MailboxText
from fairlog.api.replica import Replica
from fairlog.api.sight import Sight, machine_ms, read_subject
from fairlog.visiting import check_may_visit, place_of
from scheduler.model.errors import AppEnded
from scheduler.model.sender import By
from scheduler.rules.state.cluster import ClusterState
from scheduler.service.owners import beat
from scheduler.store.mailbox import Mailboxes
from scheduler.store.task_queue import Worklist
from scheduler.store.visits import Visits

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.rules.entities.grants import Allocation
    from scheduler.store.keys import Keys
    from scheduler.store.tails import Stream, Tail
    from scheduler.store.visits import Call, VisitCommand


OUTPUTS_BYTES = 1 << 20
"""A page of outputs ends with the one that makes it this long."""


class AppCalls:
    """The tasks, the output and the mailbox of an app, and visits to its cells. May be used by several threads."""

    def __init__(self, store: Redis, keys: Keys, replica: Replica, sight: Sight, work: Worklist) -> None:
        self.store, self.keys, self.replica, self._sight, self.work = store, keys, replica, sight, work
        self.mailbox = Mailboxes(store, keys)
        self._visits = Visits(store, self.keys)

    def tasks(self, who: By, app: str, *, cursor: str = "", limit: int = PAGE) -> Viewed:
        """The states of the app's tasks by index, after the task `cursor`. Raises: UnknownApp, NotAllowed."""
        self._sight.check_app(who, app)
        states, start = self.work.states(app), number_in(cursor, -1) + 1
        page = [Raw(to_json(task._asdict())) for task in states[start : start + max(1, min(limit, PAGE))]]
        end = start + len(page)
        return Viewed(self.replica.seen(), page, str(end - 1) if page and end < len(states) else None)

    def output(
        self, who: By, app: str, task: int | None = None, *, stream: Stream | None = None, reason: str = ""
    ) -> bytes:
        """The last 64 KiB of the output of a task, or of the driver (None). Raises: UnknownApp, NotAllowed."""
        owner = self._sight.check_app(who, app, "private", reason=reason)
        self._sight.note(who, "output", read_subject(who, app, owner), reason)
        return self.work.output(app, task, stream)

    def outputs(
        self, who: By, app: str, *, task: str = "", cursor: str = "", limit: int = PAGE, reason: str = ""
    ) -> Viewed:
        """What tasks have written, as `output`, base64; those after the task `cursor` that have written anything.

        `stderr` are the places of its bytes from stderr, [first, end]; `written` is how many bytes stdout and stderr
        have had in all. With a `task`, only this one, or the "driver". Raises: UnknownApp, NotAllowed.
        """
        owner = self._sight.check_app(who, app, "private", reason=reason)
        self._sight.note(who, "output", read_subject(who, app, owner), reason)
        if task:
            number = None if task == "driver" else int(task)
            return Viewed(self.replica.seen(), [_printed(number, self.work.tail(app, number))])
        start = number_in(cursor, -1) + 1
        tasks = [each for each in self.work.written(app) if each >= start]
        page: list[Raw] = []
        size = 0
        for each, tail in zip(tasks, self.work.tails(app, tasks), strict=True):
            page.append(_printed(each, tail))
            size += len(tail.text())
            if len(page) == min(limit, PAGE) or size > OUTPUTS_BYTES:
                following = None if each == tasks[-1] else str(each)
                return Viewed(self.replica.seen(), page, following)
        return Viewed(self.replica.seen(), page)

    def exec(self, who: By, app: str, rules: VisitCommand) -> Viewed:
        """Run a command in the cell of the app's executor (`Visits.begin`); its id.

        Raises: UnknownApp, InvalidCommand without such an executor; NotAllowed.
        """
        owner = self._sight.check_app(who, app, "private", reason=rules.reason)

        def find(state: ClusterState) -> Allocation:
            check_may_visit(state, who, owner, machine_ms(), reason=rules.reason)
            return place_of(state, app, rules.executor)

        seen, place = self.replica.read(find)
        self._sight.note(who, "exec", read_subject(who, app, owner), rules.reason)
        visit = self._visits.begin(rules, place.worker, place.id, who.account)
        return Viewed(seen, Raw(to_json({"visit": visit})))

    def exec_call(self, who: By, app: str, visit: str, rules: Call) -> Viewed:
        """Exchange its input and output (`Visits.call`). Raises: UnknownApp; InvalidCommand if it is over."""
        self._sight.check_app(who, app)
        return Viewed(self.replica.seen(), Raw(to_json(self._visits.call(visit, who.account, rules))))

    def beat(self, who: By, app: str) -> Viewed:
        """A sign of life of the app's owner (semantics G4). `state` says whether it goes on.

        Raises: UnknownApp, NotAllowed.
        """
        self._sight.check_app(who, app, "submit")
        seen, state = self.replica.read(lambda state: state.apps[app].state)
        beat(self.store, self.keys, app)
        return Viewed(seen, Raw(to_json({"state": state})))

    def publish(self, who: By, app: str, name: str, rules: MailboxText, *, passed: bool = False) -> Viewed:
        """Leave a message in the app's mailbox; `passed`: the caller has shown a pass of that app.

        Raises: UnknownApp, NotAllowed; AppEnded; InvalidCommand for a message out of bounds.
        """
        self._check_mail(who, app, passed=passed)
        seen, known = self.replica.read(lambda state: state.apps[app])
        if known.ended is not None:
            raise AppEnded(app, known.state)
        self.mailbox.publish(app, name, rules.text)
        return Viewed(seen, Raw(to_json({"name": name})))

    def message(self, who: By, app: str, name: str, *, passed: bool = False) -> Viewed:
        """The message of that name in the app's mailbox, `text` null if there is none. Raises: as `publish`."""
        self._check_mail(who, app, passed=passed)
        text = self.mailbox.read(app, name)
        return Viewed(self.replica.seen(), Raw(to_json({"name": name, "text": text})))

    def _check_mail(self, who: By, app: str, *, passed: bool) -> None:
        if not passed:
            self._sight.check_app(who, app, "submit")

    def links(self, who: By, app: str) -> Viewed:
        """The addresses of the app's user interfaces, by name. Raises: UnknownApp, NotAllowed."""
        self._sight.check_app(who, app)
        return Viewed(self.replica.seen(), Raw(to_json(self.mailbox.links(app))))


def _printed(task: int | None, tail: Tail) -> Raw:
    places = pairwise(accumulate((len(text) for _, text in tail.parts), initial=0))
    errors = [place for place, (stream, _) in zip(places, tail.parts, strict=True) if stream]
    return Raw(to_json({"task": task, "output": tail.text(), "stderr": errors, "written": tail.totals}))
