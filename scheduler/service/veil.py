"""What is private to an app is left out of what is said of it before that is logged (semantics I3).

A worker's report says in words why something ended, and a refusal says what was wrong. Both quote what the app was
submitted with: its command, its folder, names of its variables. The log is public, so they are logged without that. The
whole sentence is kept where the private part is: with the app's task and its output, and in the sender's answer. What
people themselves say of an end is private as a whole (`Private.said`).

Of what a worker says, only sentences that are known here are logged, with numbers, reasons of the system and ids of the
log in them, and without what they quote. Of any other sentence nothing is logged but that there was one: it may repeat
what a program has printed, in which parts of a command stand in any form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from scheduler.model.commands import WITHHELD, EndApp, EndedDriver, EndedExecutor, Private, SubmitApp, private_of
from scheduler.model.errors import CommandRejected, refusal_of
from scheduler.model.ids import app_of
from scheduler.service.sentences import LEFT_OUT, NAMED, SENTENCES

if TYPE_CHECKING:
    from scheduler.model.commands import Command
    from scheduler.rules.state.cluster import ClusterState

_QUOTED = re.compile(r"""(?<!\w)'((?:\\.|[^'\\])*)(?:'|\\?$)|(?<!\w)"((?:\\.|[^"\\])*)(?:"|\\?$)""")
_PATH = re.compile(r"(?<!\w)~?/[^\s,;:]+")
_SHORT = 3
"""Words of at most so many characters, such as numbers, are left out only where they are quoted."""

_OURS = frozenset(
    {"code", "command", "driver", "ended", "exit", "executor", "executors", "killed", "memory", "more", "program"}
    | {"signal", "stopped", "task", "tasks", "than", "that", "used", "with", "worker"}
)
"""Words of our own sentences, which stay where they are not quoted: they do not tell what was submitted."""


def veiled(state: ClusterState, command: Command) -> Command:
    """The command with what may be public of its sentence; most kinds have no sentence."""
    match command:
        case EndApp(app=app, detail=said) if said:
            return replace(command, detail=_public(said, _PublicNames(state, app)))
        case EndedDriver(driver=driver, worker=worker, detail=said) if said:
            return replace(command, detail=_public(said, _PublicNames(state, app_of(driver), worker)))
        case EndedExecutor(executor=executor, worker=worker) if command.unstartable or command.detail:
            known = _PublicNames(state, app_of(executor), worker)
            why, said = (_public(text, known) if text else "" for text in (command.unstartable, command.detail))
            return replace(command, unstartable=why, detail=said)
        case _:
            return command


def is_veiled(said: str, logged: str) -> bool:
    """Whether `logged` is the sentence `said`, or what is left of it with private parts left out."""
    start, *parts = logged.split(WITHHELD)
    if not parts or not said.startswith(start):
        return said == logged
    at, (*middle, end) = len(start), parts
    for part in middle:
        found = said.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(said) - at >= len(end) and said.endswith(end)


def veiled_refusal(command: Command, refusal: CommandRejected) -> CommandRejected:
    """The refusal as it is logged: that of a submission does not say what is private to the app."""
    if not isinstance(command, SubmitApp):
        return refusal
    public = (command.app, command.company, command.user, command.kind)
    return refusal_of(type(refusal).__name__, _veil(str(refusal), private_of(command) or Private(), public))


class _PublicNames(NamedTuple):
    """What a sentence about the app, said by `worker` if that is known, may name: what the log tells anyway."""

    state: ClusterState
    app: str
    worker: str | None = None

    def holds(self, kind: str, name: str) -> bool:
        """Whether there is such a worker, company, or executor of the app, or it belongs to that user."""
        match kind:
            case "worker":
                return name == self.worker or name in self.state.workers
            case "company":
                return name in self.state.companies
            case "owner":
                app = self.state.apps.get(self.app)
                return app is not None and name == f"{app.spec.company}/{app.spec.user}"
            case _:
                return app_of(name) == self.app


def _public(said: str, known: _PublicNames) -> str:
    """The sentence without what it quotes, if it is a known one; else `WITHHELD`, and which worker says it."""
    for sentence in SENTENCES:
        found = sentence.fullmatch(said)
        if found is None:
            continue
        named = {kind: name for kind, name in found.groupdict().items() if name is not None}
        if all(known.holds(kind, named[kind]) for kind in NAMED if kind in named):
            for begin, end in sorted((found.span(part) for part in LEFT_OUT if part in named), reverse=True):
                said = f"{said[:begin]}{WITHHELD}{said[end:]}"
            return said
    return WITHHELD


def _veil(text: str, private: Private, public: Iterable[str]) -> str:
    words = {word for word in _words(private) if len(word) > _SHORT}
    for word in sorted(words.difference(public, _OURS), key=len, reverse=True):
        text = text.replace(word, WITHHELD)

    def quoted(found: re.Match[str]) -> str:
        return found[0] if (found[1] or found[2]) in public else f"{found[0][0]}{WITHHELD}{found[0][0]}"

    return _PATH.sub(WITHHELD, _QUOTED.sub(quoted, text))


def _words(private: Private) -> Iterable[str]:
    yield from (private.name, private.cwd or "", private.array, private.output, private.error, private.comment)
    yield private.notify
    for given in (*private.command, *private.executor_command, *private.env):
        yield from (given, *given.split())
