"""The output of tasks, printed: one after the other, or all at once as it is written."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fairlog.cli.printed import leave_stdout
from fairlog.cli.render import say
from scheduler.model.arrays import index_of
from scheduler.model.text import counted, printable
from scheduler.store.tails import STREAMS, Stream, Tail

if TYPE_CHECKING:
    from fairlog.cli.remote_tasks import RemoteTasks
    from fairlog.cli.session import Session
    from scheduler.store.task_queue import Worklist
    from scheduler.store.task_states import TaskState

_OVER = ("succeeded", "failed")
"""The states of a task that writes nothing more; one that was stopped may, until its executor has ended."""
Index = int | None
"""A task, counted from 0; None = the driver."""


class Printer:
    """Writes output of tasks to stdout, by default as printable text; with `labels`, each line after its task's.

    `apart`: what tasks wrote to stderr goes to stderr. `lasting`: a stdout that fails is told of, and does not end it.
    """

    def __init__(
        self,
        *,
        raw: bool = False,
        labels: Mapping[Index, str] | None = None,
        apart: bool = False,
        lasting: bool = False,
    ) -> None:
        self._raw, self._labels, self._apart, self._lasting = raw, labels, apart, lasting
        self._decoders: dict[tuple[Index, int], codecs.IncrementalDecoder] = {}
        self._begun: dict[tuple[Index, int], str] = {}
        """Task and stream -> its last line, which has not ended yet."""
        self._ended_line = True

    @classmethod
    def of(
        cls,
        array: str | None,
        tasks: Sequence[Index],
        *,
        raw: bool,
        prefix: bool | None,
        mixed: bool,
        apart: bool = False,
        lasting: bool = False,
    ) -> Printer:
        """The printer of these tasks, whose output is `mixed` or comes task by task.

        With `prefix`, or by default on a terminal if the tasks are several and mixed, lines begin with `[INDEX] `.
        Lines of several mixed tasks are written whole.
        """
        several = mixed and len(tasks) > 1
        if prefix is None:
            prefix = several and sys.stdout.isatty()
        if raw or not (prefix or several):
            return cls(raw=raw, apart=apart, lasting=lasting)
        named = {task: "driver" if task is None else str(index_of(array, task)) for task in tasks}
        labels = {task: f"[{name}] " if prefix else "" for task, name in named.items()}
        return cls(labels=labels, apart=apart, lasting=lasting)

    def write(self, task: Index, output: Tail) -> None:
        """Write further output of the task."""
        for stream, text in output.parts:
            self._write((task, stream), text)

    def _write(self, source: tuple[Index, int], output: bytes) -> None:
        if self._raw:
            self._put(source[1], output)
            return
        decoder = self._decoders.setdefault(source, codecs.getincrementaldecoder("utf-8")("replace"))
        text = printable(decoder.decode(output))
        if self._labels is None:
            self._put(source[1], text.encode())
            return
        *lines, self._begun[source] = f"{self._begun.get(source, '')}{text}".split("\n")
        self._put(source[1], "".join(f"{self._labels[source[0]]}{line}\n" for line in lines).encode())

    def tell_missing(self, task: Index, missing: int) -> None:
        """Say on stderr that so many bytes, which come before what is written next, are not kept in the store."""
        if missing:
            self.part()
            whose = "the driver" if task is None else f"task {task}"
            kept = "its worker has them in its files, as far as its disk took them"
            say(f"note: {counted(missing, 'byte')} of {whose} are not shown here; {kept}")

    def end(self, task: Index) -> None:
        """The task writes nothing more."""
        for stream in range(len(STREAMS)):
            if self._labels is not None and (line := self._begun.pop((task, stream), "")):
                self._put(stream, f"{self._labels[task]}{line}\n".encode())

    def part(self) -> None:
        """End a line that the task before has not ended."""
        if not self._ended_line:
            self._put(0, b"\n")

    def _put(self, stream: int, output: bytes) -> None:
        if output:
            self._ended_line = output.endswith(b"\n")
            to = sys.stderr if self._apart and stream else sys.stdout
            try:
                to.buffer.write(output)
                to.buffer.flush()
            except OSError as error:
                if not self._lasting or to is sys.stderr:
                    raise
                say(f"note: {leave_stdout(error)}; the output goes on being kept for `fairlog logs`")


def follow_output(  # noqa: PLR0913 (one argument a choice)
    session: Session,
    work: Worklist | RemoteTasks,
    app: str,
    chosen: Sequence[Index],
    printer: Printer,
    *,
    stream: Stream | None = None,
    tail: int | None = None,
    shown: dict[Index, Tail] | None = None,
    silent: Callable[[], object] = lambda: None,
) -> None:
    """Print the output of the chosen tasks as it is written, until they have ended, or the app has with its executors.

    With a `stream`, only what is written to it. Of what a task has written before, the last `tail` lines are printed;
    of those in `shown`, which is kept up to date, what is new. `silent` is called until one has written.
    """
    from fairlog.cli.follow import patiently  # noqa: PLC0415 (loads the store's library)
    from fairlog.cli.outputs import is_over, looks  # noqa: PLC0415 (only who follows looks again)

    again = looks(session, app)
    ended = is_over(session, app)
    shown = {} if shown is None else shown
    left = list(chosen)
    while left:
        states: dict[Index, TaskState] = {}
        if left != [None]:
            states = {task.task: task for task in patiently(partial(work.states, app))}
        going = []
        for task in left:
            state = states.get(task)
            over = ended or (state is not None and state.state in _OVER)
            if over or task is None or (state is not None and state.started_at is not None):
                output = patiently(partial(work.tail, app, task)).only(stream)
                before = shown.get(task)
                new = output.lines(tail) if before is None else output.since(before)
                if before is not None or tail is None:
                    printer.tell_missing(task, output.missing(before, stream=stream))
                shown[task] = output  # first, as a signal that ends the writing must not make it begin anew
                printer.write(task, new)
            if over:
                printer.end(task)
            else:
                going.append(task)
        left = going
        if left:
            if not any(output.parts for output in shown.values()):
                silent()
            ended = next(again)
