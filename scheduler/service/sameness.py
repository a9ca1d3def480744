"""Whether a message that comes again under its id says what was carried out under it.

An id answers for one body. What arrives later under it gets the old answer only if it says the same. A master knows the
messages that it carried out itself by a digest of their bodies; those of before it finds in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from scheduler.model.commands import SubmitApp, private_of, without_private
from scheduler.model.errors import CommandRejected, IdReused
from scheduler.service import inbox
from scheduler.service.veil import is_veiled
from scheduler.store.codec import command_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.model.commands import Command, Private
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.service.inbox import Message
    from scheduler.service.recall import Recall
    from scheduler.store.codec import Record

_SENTENCES = ("detail", "unstartable")
"""The fields that are logged without what is private to the app."""


_OF_SIZE = ("cores", "cores_per_task", "executor_cores", "executor_memory_mb", "memory_per_task_mb")
"""The fields of a submission that say how large the executor of its single task is."""


class Sameness:
    """Compares the messages of a turn with what `recall` knows, and with the log.

    `record_at` is the turn that holds a position, None if the store has it no more.
    """

    def __init__(self, recall: Recall, record_at: Callable[[int], Record | None]) -> None:
        self._recall = recall
        self._record_at = record_at
        self._record: Record | None = None
        """The turn that was read last; a batch is of one turn."""

    def check(self, message: Message, state: ClusterState) -> None:
        """Raises: IdReused if another body was carried out under an id of the message; UnreadableRecord."""
        if message.refusal is not None:
            return
        seq = self._recall.other(message, state)
        if message.id not in dict(message.commands):  # a batch, whose commands have ids of their own
            seq = seq or state.commands.get(message.id)
        if seq:
            raise IdReused(message.id, seq)
        if self._recall.repeats(message):
            return
        for identity, body in message.commands:
            at = state.commands.get(identity)
            if at is not None and not self._is_logged(identity, body, at):
                raise IdReused(message.id, at)

    def _is_logged(self, identity: str, body: bytes, seq: int) -> bool:
        """Whether the log has what the body says at `seq`, or cannot be asked any more."""
        if self._record is None or not self._record.first <= seq <= self._record.last:
            self._record = self._record_at(seq)
        logged = None if self._record is None else command_in(self._record, identity)
        return logged is None or _says(body, *logged)


def _says(body: bytes, logged: Command, private: Private | Literal["withheld"] | None) -> bool:
    """Whether the body says what was logged; a `private` part that is withheld is not compared."""
    try:
        command = inbox.received(body)
    except CommandRejected:
        return False
    if type(command) is not type(logged):
        return False
    if private is not None:
        if private != "withheld" and private_of(command) != private:
            return False
        command = without_private(command)
    if isinstance(command, SubmitApp) and isinstance(logged, SubmitApp):
        command = _with_namesakes(_with_cores(command, logged), logged)
    return _with_sentences(command, logged) == logged


def _with_cores(command: SubmitApp, logged: SubmitApp) -> SubmitApp:
    """The submission with the cores of each task, or the size of its executor, that the logged one has (semantics A1).

    They follow from settings, which may have changed since.
    """
    if command.small:
        command = replace(command, small=False)
        if logged.executor_cores != (command.cores_per_task or command.cores) or logged == command:
            return command
        return replace(command, **{name: getattr(logged, name) for name in _OF_SIZE})
    each, cores = logged.cores_per_task, command.cores
    if each is None or command.cores_per_task is not None or not command.task_resources or cores == "unlimited":
        return command
    return replace(command, cores_per_task=each, cores=None if cores is None else max(cores, each))


def _with_namesakes(command: SubmitApp, logged: SubmitApp) -> SubmitApp:
    """The submission with the apps of its name that it waits for by what was logged, if it is a singleton (J1)."""
    own = all(set(names) <= set(logged.after.get(condition, ())) for condition, names in command.after.items())
    return replace(command, singleton=False, after=logged.after) if command.singleton and own else command


def _with_sentences(command: Command, logged: Command) -> Command:
    """The command with the logged sentences in place of its own that say the same.

    What was left out of them depends on what was known of the app then.
    """
    fields: dict[str, Any] = {
        name: said
        for name in _SENTENCES
        if (said := getattr(logged, name, "")) and is_veiled(getattr(command, name, ""), said)
    }
    return replace(command, **fields) if fields else command
