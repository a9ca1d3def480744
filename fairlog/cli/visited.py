"""A command in the cell of an app's executor, whose input and output are carried to and from this process."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from fairlog.cli import render
from fairlog.cli.printed import leave_stdout
from scheduler.model.errors import CommandRejected, InvalidCommand, TooManyVisits
from scheduler.model.text import printable
from scheduler.store.visits import CHUNK_BYTES, MOST_CHUNKS, MOST_WORDS, NOT_YET, Call, Reply, VisitCommand

if TYPE_CHECKING:
    from fairlog.cli.session import Session

Begin = Callable[[], Callable[[Call], Reply]]
"""Begins a command; gives what carries its input and output."""
HELD_S = 600
"""How long a task holds a place for a command that has not begun."""
PAUSE_S = (0.02, 0.3)
"""The shortest and the longest pause between two questions for output."""
INTERRUPTED = 130


def is_terminal(*, asked: bool | None) -> bool:
    """Whether a command is to have a terminal: as it is asked for, else if stdin and stdout are terminals.

    Raises: click.UsageError if they are none and it is asked for.
    """
    here = sys.stdin.isatty() and sys.stdout.isatty()
    if asked and not here:
        raise click.UsageError("stdin and stdout are no terminals; leave out --tty")
    return here if asked is None else asked


def wanted(command: Sequence[str], place: str, *, terminal: bool, reason: str = "") -> VisitCommand:
    """The command in the cell of the executor with that id, "" = the first one; in a terminal of this one's size.

    Raises: InvalidCommand if it has too many words.
    """
    if len(command) > MOST_WORDS:
        raise InvalidCommand(
            f"a command beside a task has at most {MOST_WORDS} words, and this one {len(command)} with what starts it; "
            "write it into a script"
        )
    size = shutil.get_terminal_size() if terminal else None
    return VisitCommand(
        tuple(command),
        place,
        term=os.environ.get("TERM", "") if terminal else "",
        rows=size.lines if size else 0,
        columns=size.columns if size else 0,
        reason=reason,
    )


def beside(command: Sequence[str]) -> tuple[str, ...]:
    """What runs the command beside the task, or program, that holds a place for it."""
    return ("sh", "-c", VISITOR, "fairlog", *command)


def carry(call: Callable[[Call], Reply], *, terminal: bool, stdin: bool | None) -> int:
    """Carry output, and input if `stdin` is to be read, until the command has ended. Returns its exit code.

    None: it is read if it is a terminal, so that the input of a loop is left to the loop.
    """
    number = _stdin()
    reads = terminal or (stdin if stdin is not None else number is not None and os.isatty(number))
    with _raw() if terminal else nullcontext():
        return _carry(call, terminal=terminal, given=number if reads else None)


HOLDER = r"""
d=${FAIRLOG_SCRATCH:-/tmp} n=0
trap 'exit 143' TERM; trap 'exit 130' INT
until [ -s "$d/.visit" ]; do n=$((n + 1)); [ $n -lt MOST ] || exit 1; sleep 0.1; done
while kill -0 "$(cat "$d/.visit")" 2>/dev/null; do sleep 0.1; done
[ -s "$d/.visited" ] || exit 129
exit "$(cat "$d/.visited")"
""".replace("MOST", str(10 * HELD_S))
"""A shell's script that a task runs for `fairlog run --stdin`: it waits for the command beside it, for ten minutes at
most until that begins, and ends with its exit code; as if by SIGHUP if it was given up."""
VISITOR = r"""
d=${FAIRLOG_SCRATCH:-/tmp}
echo $$ > "$d/.visit"
"$@"
c=$?
echo $c > "$d/.visited"
exit $c
"""
"""Likewise, for the command itself, which is its arguments."""


EACH_HOLDER = r"""
d=${FAIRLOG_SCRATCH:-/tmp} n=0
visited() { [ -s "$d/.visit" ] && kill -0 "$(cat "$d/.visit")" 2>/dev/null; }
trap 'exit 143' TERM; trap 'exit 130' INT
until [ -s "$d/.visit" ] || [ $n -ge MOST ]; do n=$((n + 1)); sleep 0.1; done
while visited; do sleep 0.1; done
[ "$(cat "$d/.visited" 2>/dev/null)" != 0 ] || exit 0
n=0; until [ $n -ge 600 ]; do n=$((n + 1)); ! visited || n=0; sleep 0.1; done
"$0" "$FAIRLOG_APP_NUMBER"
exit 1
""".replace("MOST", str(10 * HELD_S))
"""As `HOLDER`, of each program of a gang: it ends well if its command does, and else whoever visits it ends the app.
$0 does so a minute after the visitor is gone: a gang that goes on begins anew."""
STAYER = r"""
echo $$ > "${FAIRLOG_SCRATCH:-/tmp}/.visit"
while :; do sleep 1; done
"""
"""A shell's script that tells `EACH_HOLDER` that the visitor is there, after the command has failed."""


class _Beginning:
    """A command that begins once its company has not as many visits as there may be, while its place is held."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._due_s, self._next_s = time.monotonic() + HELD_S, 0.0

    def tried(self) -> Callable[[Call], Reply] | None:
        """What carries input and output; None as long as it must wait. It is tried each second, however often asked.

        Raises: TooManyVisits once no place is held any more.
        """
        now_s = time.monotonic()
        if now_s < self._next_s:
            return None
        try:
            return self._begin()
        except TooManyVisits as error:
            if now_s >= self._due_s:
                raise
            if not self._next_s:
                render.say(f"note: {error}; waiting for that")
            self._next_s = now_s + 1
            return None


class _EachVisit:
    """The visit of one of several executors; what it writes is passed on in whole lines."""

    def __init__(self, begin: Begin, stay: Begin) -> None:
        self._beginning, self._stay = _Beginning(begin), stay
        self._call: Callable[[Call], Reply] | None = None
        self._stays: Callable[[Call], Reply] | None = None
        self._may_stay = True
        """Whether its executor has not been found to be gone."""
        self.code: int | None = None
        self.full = False
        self._first = self._after = 0
        self._waiting: list[bytes] = []
        self._first_given: list[bytes] = []
        """The first chunks of input: no more are taken from here before the command has begun."""
        self._lines = {b"1": b"", b"2": b""}

    def stay(self) -> None:
        """Have the program wait, whose command has failed, for those of the others, if it is there."""
        if not (self.code and self._may_stay):
            return
        try:
            self._stays = self._stays or self._stay()
            self._stays(Call())
        except TooManyVisits:
            pass  # one may end in time
        except CommandRejected:
            self._may_stay = False

    def exchange(self, given: bytes, *, ended: bool) -> bool:
        """Hand on input, and print what there is of output; whether there was anything."""
        self._waiting += [given] if given else []
        if given and len(self._first_given) < MOST_CHUNKS:
            self._first_given.append(given)
        line = self._call = self._call or self._beginning.tried()
        if line is None:
            self.full = True
            return False
        reply = line(Call(self._first, tuple(self._waiting), self._after, ended=ended, rows=0, columns=0))
        if reply.error == NOT_YET:
            time.sleep(PAUSE_S[1])
            self._call = None
            self._first, self._waiting, self.full = 0, list(self._first_given), False
            return False
        busy = bool(self._waiting or reply.chunks)
        self._first, self._waiting, self.full = self._first + len(self._waiting), [], reply.full
        self._after += len(reply.chunks)
        for chunk in reply.chunks:
            self._pass_on(chunk[:1], chunk[1:])
        if reply.error:
            render.say(reply.error, error=True)
        if reply.error or reply.exit_code is not None:
            self.code = reply.exit_code or (1 if reply.error else 0)
            with suppress(InvalidCommand):
                line(Call(leaves=True))  # a company has so many visits, of which this is none any more
            for stream in self._lines:
                self._pass_on(stream, b"", last=True)
        return busy

    def _pass_on(self, stream: bytes, text: bytes, *, last: bool = False) -> None:
        whole, newline, rest = (self._lines[stream] + text).rpartition(b"\n")
        if last:
            whole, newline, rest = self._lines[stream], b"", b""
        self._lines[stream] = rest
        if whole or newline:
            _write(stream + whole + newline, terminal=False)


def visit_each(session: Session, app: str, command: Sequence[str], size: int, *, look: Callable[[], None]) -> list[int]:
    """Run the command beside each of so many programs of a gang that was just submitted, which hold by `EACH_HOLDER`.

    All of them read all of stdin. Returns the exit codes by rank, 1 alone if the app ends before.
    """
    while True:
        found = session.ask("app", app=app)
        if found["endedAt"] is not None:
            return [1]
        held = [each for each in found["executors"] if each["status"] == "running"]
        if len(held) == size:
            break
        look()
        time.sleep(PAUSE_S[1])
    places = [each["executor"] for each in sorted(held, key=lambda each: int(each["rank"]))]
    lines = [_each_visit(session, app, command, place) for place in places]
    given, pause_s = _stdin(), PAUSE_S[0]
    while going := [line for line in lines if line.code is None]:
        read = [] if given is None or any(line.full for line in going) else [given]
        ready, _, _ = select.select(read, [], [], pause_s)
        chunk = os.read(ready[0], CHUNK_BYTES) if ready else b""
        given = None if ready and not chunk else given
        busy = [line.exchange(chunk, ended=given is None) for line in going]
        for line in lines:
            line.stay()
        pause_s = PAUSE_S[0] if any(busy) else min(PAUSE_S[1], pause_s * 1.3)
    return [line.code or 0 for line in lines]


def _each_visit(session: Session, app: str, command: Sequence[str], place: str) -> _EachVisit:
    staying = wanted(("sh", "-c", STAYER), place, terminal=False)
    asked = wanted(beside(command), place, terminal=False)
    return _EachVisit(partial(session.visit, app, asked), partial(session.visit, app, staying))


def visit_new(session: Session, app: str, command: Sequence[str], *, terminal: bool, look: Callable[[], None]) -> int:
    """Run the command beside the task of an app that was just submitted, which holds its place by `HOLDER`.

    `look` is called while the app waits. Returns the exit code, 1 if the app ends before.
    """
    tasks = session.tasks()
    while not (states := tasks.states(app)) or states[0].state == "queued":
        if session.ask("app", app=app)["endedAt"] is not None:
            return 1
        look()
        time.sleep(PAUSE_S[1])
    beginning = _Beginning(partial(session.visit, app, wanted(beside(command), "", terminal=terminal)))
    while (call := beginning.tried()) is None:
        time.sleep(1)
    return carry(call, terminal=terminal, stdin=True)


def _carry(call: Callable[[Call], Reply], *, terminal: bool, given: int | None) -> int:
    first = after = 0
    waiting: list[bytes] = []
    full = False
    pause_s = PAUSE_S[0]
    try:
        while True:
            ready, _, _ = select.select([] if given is None or full else [given], [], [], pause_s)
            if ready:
                chunk = os.read(ready[0], CHUNK_BYTES)
                if chunk:
                    waiting.append(chunk)
                else:
                    given = None
            size = shutil.get_terminal_size() if terminal else None
            rows, columns = (size.lines, size.columns) if size else (0, 0)
            reply = call(Call(first, tuple(waiting), after, ended=given is None, rows=rows, columns=columns))
            pause_s = PAUSE_S[0] if waiting or reply.chunks else min(PAUSE_S[1], pause_s * 1.3)
            first, waiting, full = first + len(waiting), [], reply.full
            after += len(reply.chunks)
            for chunk in reply.chunks:
                _write(chunk, terminal=terminal)
            if reply.error:
                render.say(reply.error, error=True)
                return reply.exit_code or 1
            if reply.exit_code is not None:
                return reply.exit_code
    except KeyboardInterrupt:
        call(Call(leaves=True))
        return INTERRUPTED


def _stdin() -> int | None:
    """The descriptor of stdin, None if it is closed or no file."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def _write(chunk: bytes, *, terminal: bool) -> None:
    """Write output: as it is in raw mode or to a file; as printable text to a terminal.

    What cannot be written is left out, which is said once: the command goes on, and its exit code counts.
    """
    stream = sys.stderr if chunk[:1] == b"2" else sys.stdout
    text = chunk[1:]
    if not terminal and stream.isatty():
        text = printable(text.decode(errors="replace")).encode()
    try:
        stream.buffer.write(text)
        stream.buffer.flush()
    except OSError as error:
        if stream is not sys.stdout:
            return
        why = leave_stdout(error)
        with suppress(OSError):
            render.say(f"note: {why}; the command goes on")


@contextmanager
def _raw() -> Iterator[None]:
    """Pass every key on, while it lasts."""
    import termios  # noqa: PLC0415 (not on every system)
    import tty  # noqa: PLC0415 (likewise)

    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
