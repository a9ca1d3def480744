"""The output of tasks on stdout: one after the other, or all at once as it is written."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fairlog.cli.follow import appended, patiently
from scheduler.model.arrays import index_of
from scheduler.model.text import printable

if TYPE_CHECKING:
    from fairlog.cli.outputs import RemoteTasks
    from fairlog.cli.session import Session
    from scheduler.store.task_queue import TaskState, Worklist

OVER = ("succeeded", "failed", "stopped")
"""The states of a task that has ended for good."""
Index = int | None
"""A task, counted from 0; None = the driver."""


class Printer:
    """Writes output of tasks to stdout, by default as printable text; with `labels`, each line after its task's."""

    def __init__(self, *, raw: bool = False, labels: Mapping[Index, str] | None = None) -> None:
        self._raw, self._labels = raw, labels
        self._decoders: dict[Index, codecs.IncrementalDecoder] = {}
        self._begun: dict[Index, str] = {}
        """Task -> its last line, which has not ended yet."""
        self._ended_line = True

    @classmethod
    def of(cls, array: str | None, tasks: Sequence[Index], *, raw: bool, prefix: bool | None, mixed: bool) -> Printer:
        """The printer of these tasks, whose output is `mixed` or comes task by task.

        With `prefix`, or by default on a terminal if the tasks are several and mixed, lines begin with `[INDEX] `.
        Lines of several mixed tasks are written whole.
        """
        several = mixed and len(tasks) > 1
        if prefix is None:
            prefix = several and sys.stdout.isatty()
        if raw or not (prefix or several):
            return cls(raw=raw)
        named = {task: "driver" if task is None else str(index_of(array, task)) for task in tasks}
        return cls(labels={task: f"[{name}] " if prefix else "" for task, name in named.items()})

    def write(self, task: Index, output: bytes) -> None:
        """Write further output of the task."""
        if not output:
            return
        if self._raw:
            self._put(output)
            return
        decoder = self._decoders.setdefault(task, codecs.getincrementaldecoder("utf-8")("replace"))
        text = printable(decoder.decode(output))
        if self._labels is None:
            self._put(text.encode())
            return
        *lines, self._begun[task] = f"{self._begun.get(task, '')}{text}".split("\n")
        self._put("".join(f"{self._labels[task]}{line}\n" for line in lines).encode())

    def end(self, task: Index) -> None:
        """The task writes nothing more."""
        if self._labels is not None and (line := self._begun.pop(task, "")):
            self._put(f"{self._labels[task]}{line}\n".encode())

    def part(self) -> None:
        """End a line that the task before has not ended."""
        if not self._ended_line:
            self._put(b"\n")

    def _put(self, output: bytes) -> None:
        if output:
            self._ended_line = output.endswith(b"\n")
            sys.stdout.buffer.write(output)
            sys.stdout.buffer.flush()


def last_lines(output: bytes, number: int | None) -> bytes:
    """The last `number` lines of the output; None = all."""
    if number is None:
        return output
    lines = output.splitlines(keepends=True)
    return b"".join(lines[max(0, len(lines) - number) :])


def read_of(work: Worklist | RemoteTasks, app: str, task: Index) -> bytes:
    """The end of the output of the task, or of the driver."""
    return work.driver_output(app) if task is None else work.output(app, task)


def follow_output(
    session: Session,
    work: Worklist | RemoteTasks,
    app: str,
    chosen: Sequence[Index],
    printer: Printer,
    *,
    tasks: int,
    tail: int | None = None,
) -> None:
    """Print the output of the chosen tasks as it is written, until they have ended or the app has.

    The app has `tasks` tasks; of what a task has written before, the last `tail` lines are printed.
    """
    from fairlog.cli.outputs import looks  # noqa: PLC0415 (loads RQ, which most verbs do without)
    from scheduler.store.task_queue import OUTPUT_BYTES, output_bytes  # noqa: PLC0415 (likewise)

    again = looks(session, app)
    ended = session.ask("app", app=app)["endedAt"] is not None
    shown: dict[Index, bytes] = {}
    left = list(chosen)
    while left:
        states: dict[Index, TaskState] = {}
        if left != [None]:
            states = {task.task: task for task in patiently(partial(work.states, app))}
        going = []
        for task in left:
            state = states.get(task)
            over = ended or (state is not None and state.state in OVER)
            if over or task is None or (state is not None and state.started_at is not None):
                output = patiently(partial(read_of, work, app, task))
                kept = OUTPUT_BYTES if task is None else output_bytes(tasks)
                new = appended(shown[task], output, kept=kept) if task in shown else last_lines(output, tail)
                printer.write(task, new)
                shown[task] = output
            if over:
                printer.end(task)
            else:
                going.append(task)
        left = going
        if left:
            ended = next(again)
