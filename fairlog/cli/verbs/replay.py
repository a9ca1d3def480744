"""The verb replay: plays the log."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from fairlog.cli import render
from fairlog.cli.decorators import on_log
from fairlog.cli.params import as_json, matched, span_options
from fairlog.cli.printed import terminal
from fairlog.cli.reached import check_reached
from recovery.replay.bounds import Bound
from scheduler.model.text import counted, one_line
from witness.playback import Playback, pending_apps, told

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairlog.cli.sources import Source
    from scheduler.rules.state.cluster import ClusterState
    from witness.playback import TurnFrame

LONGEST_PAUSE_S = 2.0
SHOWN_EVERY_S = 0.1
"""A live view leaves out a frame that follows a shown one sooner than this."""
_LAST = 8
"""Number of latest events in a live view."""
_NAMED = 6
"""Number of companies in a line."""
_BAR = 24
_SPEED = re.compile(r"(?=.*[1-9])(\d{1,9}(?:\.\d{1,6})?)x?", re.ASCII)


def read_speed(text: str) -> float:
    """The speed as a multiple of real time, written `60`, `0.5` or `60x`. Raises: click.BadParameter."""
    return float(matched(_SPEED, text, "a speed above 0", "60, 0.5 or 60x")[1])


@click.command()
@span_options
@click.option(
    "--speed", type=read_speed, metavar="X", help="Speed as a multiple of real time.  [default on a terminal: 1]"
)
@as_json
@on_log
def replay(source: Source, *, first: Bound, last: Bound, speed: float | None, as_json: bool) -> None:
    """Play the log as a live view: shares, queue, workers and decisions.

    Plays at the log's own speed or X times as fast, and shortens pauses to 2 s. If stdout is not a terminal, prints
    one line per turn, or one JSON object per turn with --json, and does not pause unless --speed is given.
    """
    playback = Playback(source, last)
    for _ in render.counted(playback.wind(first)):
        pass
    if as_json or not sys.stdout.isatty():
        show, pace = _json if as_json else _line, Pace(speed or math.inf)
        for frame in playback.frames():
            pace.wait(frame)
            click.echo(show(frame))
    else:
        _live(playback.frames(), speed or 1.0)
    check_reached(last, playback.state.head, playback.state.at)


class Pace:
    """Waits between frames at a speed; pauses are at most `LONGEST_PAUSE_S`."""

    def __init__(
        self, speed: float, pause: Callable[[float], None] = time.sleep, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.speed, self.pause, self.now = speed, pause, now
        self._due = now()
        self._next_in = 0.0
        self._shown = -math.inf

    def wait(self, frame: TurnFrame) -> None:
        """Return when the frame is due."""
        self._due += self._next_in
        self._next_in = 0.0
        if frame.next_at is not None:
            self._next_in = min(LONGEST_PAUSE_S, (frame.next_at - frame.at) / 1000 / self.speed)
        if (early := self._due - self.now()) > 0:
            self.pause(early)

    def is_worth_showing(self, frame: TurnFrame) -> bool:
        """Whether the frame or the one shown before lasts `SHOWN_EVERY_S`, or the frame is the last."""
        now = self.now()
        shown = frame.next_at is None or self._next_in >= SHOWN_EVERY_S or now - self._shown >= SHOWN_EVERY_S
        self._shown = now if shown else self._shown
        return shown


def _json(frame: TurnFrame) -> str:
    return json.dumps(frame.as_json(), separators=(",", ":"))


def _line(frame: TurnFrame) -> str:
    """The frame in one line: position, time, queue, cores, largest shares, events."""
    state = frame.state
    held = [f"{name} {render.percent(share)}" for name, share in _shares(state)[:_NAMED] if _part(share)]
    words = [text for fact in frame.happened if (text := told(fact.event))]
    parts = [f"{frame.seq:>7}", render.moment(frame.at), _queue(state), ", ".join(held) or "no resources are granted"]
    return "  ".join([*parts, "; ".join(words)]).rstrip()


def _queue(state: ClusterState) -> str:
    granted = f"{state.balance.granted.cores} of {counted(state.fleet.total.cores, 'core')} granted"
    return f"{sum(pending_apps(state).values())} pending, {len(state.waiting)} admitted, {granted}"


def _shares(state: ClusterState) -> list[tuple[str, str]]:
    """(company, share "n/d"), largest share first."""
    shares = [(name, str(state.queue.share(name))) for name in state.companies]
    return sorted(shares, key=lambda each: (-_part(each[1]), each[0]))


def _part(share: str) -> float:
    numerator, denominator = (int(part) for part in share.split("/"))
    return numerator / denominator if denominator else math.inf


def _live(frames: Iterator[TurnFrame], speed: float) -> None:
    """Draw the frames on the terminal, each over the one before; the last one stays."""
    from rich.console import Console  # noqa: PLC0415 (only terminals need it)
    from rich.live import Live  # noqa: PLC0415 (likewise)

    console = Console(file=terminal(sys.stdout), markup=False, highlight=False, emoji=False)
    last: deque[str] = deque(maxlen=_LAST)
    pace = Pace(speed)
    with Live(console=console, auto_refresh=False) as live:
        for frame in frames:
            pace.wait(frame)
            last.extend(f"{fact.seq:>7}  {one_line(text)}" for fact in frame.happened if (text := told(fact.event)))
            if pace.is_worth_showing(frame):
                live.update(_picture(frame, last, speed, console.height), refresh=True)


def _picture(frame: TurnFrame, last: Iterable[str], speed: float, height: int) -> RenderableType:
    """The frame for a terminal of `height` lines: largest companies, busiest workers, latest events."""
    from rich.console import Group  # noqa: PLC0415 (only terminals need it)
    from rich.text import Text  # noqa: PLC0415 (likewise)

    state = frame.state
    room = max(2, (height - _LAST - 10) // 2)
    pending = pending_apps(state)
    companies = []
    for name, share in _shares(state):
        held = state.companies[name].balance
        bar = f"{_bar(_part(share))} {render.percent(share):>6}"
        companies.append((name, bar, held.requested.cores, held.granted.cores, pending[name]))
    workers = []
    for worker in sorted(
        state.workers.values(), key=lambda worker: (worker.free.cores - worker.offer.cores, worker.id)
    ):
        granted = worker.offer.cores - worker.free.cores
        bar = f"{_bar(granted / worker.offer.cores)} {granted:>3} of {worker.offer.cores}"
        workers.append((worker.id, bar, worker.status, len(worker.executors)))
    return Group(
        Text(f"{render.moment(frame.at)}  position {frame.seq}  {speed:g} times as fast", style="bold"),
        Text(_queue(state)),
        Text(),
        _table(("COMPANY", "SHARE OF QUOTA", "OCCUPIED", "GRANTED", "PENDING"), companies, room, "companies"),
        Text(),
        _table(("WORKER", "CORES GRANTED", "STATUS", "EXECUTORS"), workers, room, "workers"),
        Text(),
        *(Text(line, no_wrap=True, overflow="ellipsis") for line in last),
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], room: int, of: str) -> RenderableType:
    table = render.table_of(columns, rows[:room])
    if len(rows) > room:
        table.caption, table.caption_justify = f"and {len(rows) - room} more {of}", "left"
    return table


def _bar(part: float) -> str:
    return f"{'█' * round(_BAR * min(1.0, part)):<{_BAR}}"
