"""`fairlog.Executor`: the calls of `concurrent.futures` on executors of one app (semantics G).

The pool listens; workers connect to it by TLS with keys drawn for the app. Calls and results pass only between these
processes, all of one user, never through the store or the API. One thread, the pool's, sends calls and takes results.
"""

from __future__ import annotations

import os
import pickle
import selectors
import socket
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor as _Executor
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from fairlog.engines import function_worker as worker
from fairlog.engines import wire
from fairlog.engines.keys import draw_keys
from fairlog.engines.owner import LEASE_S, OwnedApp, own_folder, own_host, whose, why_ended
from scheduler.model.commands import SubmitApp
from scheduler.model.text import counted

if TYPE_CHECKING:
    import ssl
    from typing import TextIO

    from fairlog.engines.owner import Event

T = TypeVar("T")
AHEAD = 16
"""The most calls that lie at a worker at once."""
_SHORT_S = 0.004
"""So much work may lie at a worker."""
_HANDSHAKE_S = 10.0
_HANDSHAKES = 64
_MOST_RECORDS = 64
"""So much is read of a worker before the others have their turn: TLS gives at most 16 KiB at once."""
_TOLD_WITHIN_S = 5.0
"""How long a call that failed with its worker waits for the log, or for the worker after it, to say why that ended."""
_LOOK_S = 1.0
_BACK_WITHIN_S = 5.0
"""How long `cancel` waits for a call that lies at a worker to begin, or to come back: most need some 20 ms."""
_MOST_UNPRINTED = 1 << 24
"""So many bytes that calls have printed wait at most to be printed here."""
_PRINTED_WITHIN_S = 5.0
"""How long `shutdown` waits until all is printed."""
_COMMAND = "from fairlog.engines.function_worker import main; raise SystemExit(main())"


class WorkerLost(BrokenProcessPool):
    """The worker of a call was lost more often than `retries` allows. Other calls go on."""


class _Future(Future[T]):
    """The future of a call, which may lie at a worker behind others: until it begins, it can be cancelled."""

    _moved = threading.Condition()
    """Told when a call that lay at a worker begins or comes back."""
    _lies = False

    def __init__(self, pool: _WorkerPool | None = None) -> None:
        """`pool` makes the call; None: nobody does."""
        super().__init__()
        self._pool = pool

    def lie(self) -> None:
        """The call lies at a worker, behind another one."""
        self._lies = True

    def go_on(self, *, back: bool = False) -> None:
        """The call begins at its worker; or it has come back, and waits again."""
        if back:
            with self._condition:
                if self._state == "RUNNING":
                    self._state = "PENDING"
        if self._lies:
            with self._moved:
                self._lies = False
                self._moved.notify_all()

    def give_up(self) -> None:
        """The call was running, and is cancelled."""
        self.go_on(back=True)
        super().cancel()
        self.set_running_or_notify_cancel()

    def cancel(self, *, running: bool = False) -> bool:
        """As `concurrent.futures` does; for a call that lies at a worker, once it has begun or has come back.

        `running`: a call that has begun is ended as well, with the process that makes it. Returns False if that took
        longer than a few seconds.
        """
        if self._cancel_waiting() or not running or self.done() or self._pool is None:
            return self.cancelled()
        self._pool.end_call(self)
        if not self._pool.is_here():
            wait([self], _BACK_WITHIN_S)
        return self.cancelled()

    def _cancel_waiting(self) -> bool:
        if not super().cancel() and self._lies and not (self._pool is not None and self._pool.is_here()):
            with self._moved:
                self._moved.wait_for(lambda: not self._lies, _BACK_WITHIN_S)
        return super().cancel()


class _PendingCall:
    __slots__ = ("body", "cancelled", "future", "number", "tries", "workers")

    def __init__(self, future: _Future[Any], body: wire.Body, workers: int = 1) -> None:
        self.future, self.body, self.tries = future, body, 0
        self.workers = workers
        """How many workers of an executor it occupies; one of them makes it."""
        self.number = 0
        """Its place among the calls of the pool."""
        self.cancelled = False


class _Waiting:
    """The calls that no worker has, oldest first: those that occupy one worker, and the wide ones, which need more."""

    def __init__(self) -> None:
        self.narrow: deque[_PendingCall] = deque()
        self.wide: deque[_PendingCall] = deque()
        self._last = 0

    def __len__(self) -> int:
        return len(self.narrow) + len(self.wide)

    def __iter__(self) -> Iterator[_PendingCall]:
        return chain(self.narrow, self.wide)

    def add(self, call: _PendingCall) -> None:
        """Take a new call."""
        self._last += 1
        call.number = self._last
        self._line_of(call).append(call)

    def put_back(self, calls: Iterable[_PendingCall]) -> None:
        """Take calls again, which are older than all that wait; the last of them first."""
        for call in calls:
            self._line_of(call).appendleft(call)

    def remove(self, call: _PendingCall) -> None:
        """Leave out a call. Raises: ValueError if it does not wait."""
        self._line_of(call).remove(call)

    def take_all(self) -> list[_PendingCall]:
        """All calls; none waits any more."""
        calls = [call for each in (self.narrow, self.wide) for call in [each.popleft() for _ in range(len(each))]]
        return sorted(calls, key=lambda call: call.number)

    def _line_of(self, call: _PendingCall) -> deque[_PendingCall]:
        return self.wide if call.workers > 1 else self.narrow

    def oldest_wide(self) -> _PendingCall | None:
        """The oldest wide call, if no narrow one is older."""
        with suppress(IndexError):  # another thread may take all away
            if not self.narrow or self.wide[0].number < self.narrow[0].number:
                return self.wide[0]
        return None


class _Link:
    """A worker's connection, the calls that lie there in order, and what is to be sent."""

    def __init__(self, connection: socket.socket, about: str) -> None:
        self.connection = connection
        self.executor, _, self.process, before, self.how = (*about.split(" ", 4), *[""] * 4)[:5]
        self.before = before
        """The process of which this one is the successor, and how it ended."""
        self.frames = wire.Frames()
        self.calls: dict[int, _PendingCall] = {}
        self.out = wire.Outgoing()
        self.mean_s: float | None = None
        self.leaving = self.stopped = False
        self.held: set[_Link] = set()
        """The other workers that a wide call here occupies."""
        self.is_held = False

    def room(self) -> int:
        """How many more calls may lie at the worker: several if they are short."""
        if self.leaving or self.stopped or self.is_held:
            return 0
        if self.mean_s is None or self.mean_s > _SHORT_S / 2:
            return 1 - len(self.calls)
        return min(AHEAD, 1 + int(_SHORT_S / max(self.mean_s, 1e-6))) - len(self.calls)

    def let_go(self) -> None:
        """The wide call here is over."""
        for other in self.held:
            other.is_held = False
        self.held.clear()

    def note(self, took_s: float) -> None:
        """How long a call took."""
        self.mean_s = took_s if self.mean_s is None else 0.8 * self.mean_s + 0.2 * took_s


class _WorkerPool:
    """The pool's state and thread; it does not refer to the `Executor`, so that this can be collected."""

    def __init__(
        self, listener: socket.socket, tls: ssl.SSLContext, *, slots: int, retries: int, idle_s: float
    ) -> None:
        self._listener, self._tls = listener, tls
        self._slots, self._retries, self._idle_s = slots, retries, idle_s
        self.bounds: tuple[int, int] | None = None
        """The least and the most executors, if their number follows the calls."""
        self.initializer: wire.Body = ()
        """The call that each worker makes first, pickled."""
        self.app: OwnedApp | None = None
        self.calls = _Waiting()
        self._lock = threading.Lock()
        self._closing = self._ended = False
        self._broken: BaseException | None = None
        self._links: set[_Link] = set()
        self._arrived: deque[_Link] = deque()
        self._events: deque[Event] = deque()
        self._why: dict[str, str] = {}
        """Executor -> why it failed, as the log says."""
        self._ends: dict[tuple[str, str], str] = {}
        """Executor and process -> how it ended, as its successor says."""
        self._doomed: list[tuple[float, _PendingCall, _Link]] = []
        self._cancelled: deque[_Future[Any]] = deque()
        self.printer = _PrintThread()
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.settimeout(0)
        self._waker.settimeout(0)
        self._asleep = False
        self._handshakes = threading.BoundedSemaphore(_HANDSHAKES)
        self._number = 0
        self._gathering = ""
        """The executor whose workers get no more calls until enough are idle for the oldest wide call."""
        self._asked = 0
        self._fewer_since_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="fairlog pool")

    # Called by any thread

    def start(self, app: OwnedApp, asked: int) -> None:
        """Begin to work for the app, of which so many executors are asked."""
        self.app, self._asked = app, asked
        self.printer.start()
        self._thread.start()

    def add(self, call: _PendingCall) -> None:
        """Take a call. Raises: RuntimeError after the shutdown, BrokenProcessPool once the pool is broken."""
        with self._lock:
            self.check()
            self.calls.add(call)
        self._wake()

    def check(self) -> None:
        """Raises: as `add`."""
        if self._broken is not None:
            raise BrokenProcessPool(str(self._broken)) from self._broken
        if self._closing:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def hear(self, event: Event) -> None:
        """Take an event of the app."""
        self._events.append(event)
        self._wake()

    def end_call(self, future: _Future[Any]) -> None:
        """End the call, which is running, and the worker process that makes it."""
        self._cancelled.append(future)
        self._wake()

    def close(self, *, cancel: bool = False) -> None:
        """Take no more calls; end once those taken are answered."""
        cancelled = []
        with self._lock:
            if cancel:
                calls = self.calls.take_all()
                self.calls.put_back(call for call in reversed(calls) if call.future.running())  # its worker was lost
                cancelled = [call for call in calls if not call.future.running()]
            self._closing = True
        for call in cancelled:
            call.future.cancel()
            call.future.set_running_or_notify_cancel()
        self._wake()

    def is_here(self) -> bool:
        """Whether the pool's thread asks, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def join(self) -> None:
        """Wait for the end of the thread."""
        if self._thread.is_alive() and not self.is_here():
            self._thread.join()
            self.printer.join(_PRINTED_WITHIN_S)

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            with suppress(OSError):
                self._waker.send(b"x")

    # The pool's thread

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, "listener")
        self._selector.register(self._woken, selectors.EVENT_READ, "woken")
        try:
            while not self._is_over():
                self._turn()
            self._end("finished", "")
        except BaseException as error:
            self._break(error)
            self._end("failed", type(error).__name__)
            raise

    def _is_over(self) -> bool:
        if not self._closing and not threading.main_thread().is_alive():
            self._closing = True  # the interpreter ends: as concurrent.futures does, answer what was asked
        open_calls = self.calls or self._doomed or any(link.calls for link in self._links)
        return self._closing and not open_calls

    def _turn(self) -> None:
        self._asleep = True
        idle = not (self._arrived or self._events) and not (self.calls.narrow and self._has_room())
        for key, mask in self._selector.select(_LOOK_S if idle else 0):
            if isinstance(key.data, _Link):
                self._serve(key.data, mask)
            elif key.data == "listener":
                self._accept()
            else:
                with suppress(OSError):
                    self._woken.recv(4096)
        self._asleep = False
        while self._events:
            self._take(self._events.popleft())
        while self._arrived:
            self._welcome(self._arrived.popleft())
        for _ in range(len(self._cancelled)):
            self._end_running(self._cancelled.popleft())
        self._dispatch()
        self._bury()
        self._adapt()

    def _has_room(self) -> bool:
        return any(self._room(link) > 0 for link in self._links)

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            if self._handshakes.acquire(blocking=False):
                threading.Thread(target=self._shake_hands, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _shake_hands(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_HANDSHAKE_S)
            connection = self._tls.wrap_socket(connection, server_side=True)
            about = wire.welcome(connection).decode(errors="replace")
            connection.settimeout(0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._arrived.append(_Link(connection, about))
            if self._ended:
                connection.close()
            self._wake()
        except OSError:
            connection.close()
        finally:
            self._handshakes.release()

    def _welcome(self, link: _Link) -> None:
        self._links.add(link)
        if link.before:
            self._ends[link.executor, link.before] = link.how
        self._selector.register(link.connection, selectors.EVENT_READ, link)
        if self.initializer:
            link.out.put(wire.framed(0, wire.INITIALIZE, self.initializer))
            self._send(link)

    def _send(self, link: _Link) -> None:
        try:
            self._flush(link)
        except OSError:
            self._lose(link)

    def _serve(self, link: _Link, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                self._flush(link)
            if mask & selectors.EVENT_READ:
                for _ in range(_MOST_RECORDS):
                    count = link.connection.recv_into(link.frames.room())
                    if not count:
                        raise ConnectionError("the worker is gone")
                    self._hear(link, link.frames.take(count))
        except wire.NOT_NOW:
            pass
        except OSError:
            self._lose(link)

    def _hear(self, link: _Link, frames: list[wire.Frame]) -> None:
        """Take what a worker says; of the calls that are still there, it makes the first."""
        for frame in frames:
            self._answer(link, frame)
        for first in islice(link.calls.values(), 1):
            first.future.go_on()

    def _answer(self, link: _Link, frame: wire.Frame) -> None:
        if frame.kind in {wire.OUTPUT, wire.ERRORS}:
            self.printer.put(frame)
            return
        if frame.kind == wire.BROKEN:
            self._break(pickle.loads(frame.body))  # noqa: S301 (of this user's own worker, by the app's key)
            return
        call = link.calls.pop(frame.call, None)
        if call is None:
            return
        call.future.go_on(back=frame.kind == wire.RETURNED)
        if frame.kind == wire.RETURNED:
            link.mean_s = _SHORT_S
            self.calls.put_back([call])
            return
        if call.workers > 1:
            link.let_go()
        link.note(frame.took_s)
        try:
            value = pickle.loads(frame.body)  # noqa: S301 (likewise)
        except BaseException as error:  # noqa: BLE001 (whatever its class raises)
            call.future.set_exception(error)
            return
        if frame.kind == wire.ERROR:
            call.future.set_exception(value)
        else:
            call.future.set_result(value)

    def _dispatch(self) -> None:
        """Give calls to workers: first one to each that has none, then more to those whose calls are short."""
        if not self.calls:
            return
        self._gathering = ""
        while (call := self.calls.oldest_wide()) is not None:
            if call.future.cancelled():
                self._takes(call)
            elif not self._give_wide(call):
                break
        for link in [link for link in self._links if not link.calls]:
            if self._room(link) > 0 and not self._give(link, 1):
                return
        for link in [*self._links]:
            if (room := self._room(link)) > 0 and not self._give(link, room):
                return

    def _room(self, link: _Link) -> int:
        return 0 if link.executor == self._gathering else link.room()

    def _give_wide(self, call: _PendingCall) -> bool:
        """Give a wide call to workers of one executor; if none has enough that are idle, the next one gathers them."""
        fit: dict[str, list[_Link]] = {}
        for link in self._links:
            if not (link.leaving or link.stopped):
                fit.setdefault(link.executor, []).append(link)
        idle = {name: [each for each in links if not each.calls and not each.is_held] for name, links in fit.items()}
        best = max(
            (name for name in fit if len(fit[name]) >= call.workers), key=lambda name: len(idle[name]), default=""
        )
        if not best or len(idle[best]) < call.workers:
            self._gathering = best
            return False
        if self._takes(call):
            first, *others = idle[best][: call.workers]
            first.held = set(others)
            for other in others:
                other.is_held = True
            self._lay(first, call)
            self._send(first)
        return True

    def _takes(self, call: _PendingCall) -> bool:
        """Whether the call, which waits no longer, is to be made."""
        with self._lock, suppress(ValueError):  # taken away by another thread
            self.calls.remove(call)
            return _is_open(call.future)
        return False

    def _give(self, link: _Link, number: int) -> bool:
        """Send up to so many calls to the worker; whether any are left."""
        given = 0
        while given < number:
            try:
                call = self.calls.narrow.popleft()
            except IndexError:
                break
            if not _is_open(call.future):
                continue
            if link.calls:
                call.future.lie()
            self._lay(link, call)
            given += 1
        if given:
            self._send(link)
        return bool(self.calls.narrow)

    def _lay(self, link: _Link, call: _PendingCall) -> None:
        self._number += 1
        link.calls[self._number] = call
        link.out.put(wire.framed(self._number, wire.CALL, call.body))

    def _end_running(self, future: _Future[Any]) -> None:
        """Have the worker that makes the call end; one that no worker makes is cancelled at once."""
        for link in self._links:
            for place, (number, call) in enumerate(link.calls.items()):
                if call.future is future and place == 0:
                    call.cancelled = True
                    link.out.put(wire.framed(number, wire.CANCEL))
                    self._send(link)
                    return
                if call.future is future:
                    self._cancelled.append(future)  # until it begins or has come back
                    return
        with self._lock:
            waiting = [call for call in self.calls if call.future is future]
            for call in waiting:
                self.calls.remove(call)
        if waiting:
            future.give_up()

    def _flush(self, link: _Link) -> None:
        """Send what the connection takes now, and wait for the rest."""
        before = bool(link.out)
        with suppress(*wire.NOT_NOW):
            link.out.send(link.connection)
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.out else 0)
        if before and self._selector.get_key(link.connection).events != wanted:
            self._selector.modify(link.connection, wanted, link)

    def _lose(self, link: _Link) -> None:
        """The worker is gone: its calls come again, the one that ran at most `retries` times."""
        if link not in self._links:
            return
        self._links.discard(link)
        link.let_go()
        self._selector.unregister(link.connection)
        link.connection.close()
        again = []
        for number, call in enumerate(link.calls.values()):
            call.tries += number == 0
            call.future.go_on(back=number > 0)
            if call.cancelled:
                call.future.give_up()
            elif call.tries > self._retries:
                self._doomed.append((time.monotonic() + _TOLD_WITHIN_S, call, link))
            else:
                again.append(call)
        self.calls.put_back(reversed(again))

    def _bury(self) -> None:
        """Fail the calls whose workers were lost too often, once the log says why, or after a while."""
        waiting = []
        for due_s, call, link in self._doomed:
            why, how = self._why.get(link.executor), self._ends.get((link.executor, link.process))
            if why is None and how is None and time.monotonic() < due_s:
                waiting.append((due_s, call, link))
                continue
            times = "once" if call.tries == 1 else f"{call.tries} times"
            said = f"; executor {link.executor} {why}" if why else f"; it {how}" if how else ""
            call.future.set_exception(WorkerLost(f"the call's worker was lost {times}{said}"))
        self._doomed = waiting

    def _take(self, event: Event) -> None:
        data = event["data"]
        match event["type"]:
            case "ExecutorRevoked":
                self._let_go(data["executor"], leaving=True)
            case "RevocationWithdrawn":
                self._let_go(data["executor"], leaving=False)
            case "ExecutorRemoved" if data["reason"] == "failed":
                self._why[data["executor"]] = f"failed: {data.get('detail') or 'it was killed'}"
            case "AppRemoved":
                if not self._closing or self.calls or any(link.calls for link in self._links):
                    said = f": {why}" if (why := why_ended(event)) else ""
                    self._break(BrokenProcessPool(f"app {data['app']} is {data['reason']}{said}"))
            case _:
                pass

    def _let_go(self, executor: str, *, leaving: bool) -> None:
        """The executor is to leave: its workers get no more calls, and end after those that they have."""
        for link in self._links:
            if link.executor == executor and not link.stopped:
                link.leaving = leaving

    def _adapt(self) -> None:
        """Stop workers that leave and are idle, and state the number of executors that the calls need."""
        for link in [link for link in self._links if link.leaving and not link.stopped and not link.calls]:
            self._stop(link)
        if self.bounds is None or self.app is None or self._closing:
            return
        least, most = self.bounds
        wanted = max(least, min(most, self._executors_needed()))
        now_s = time.monotonic()
        if wanted >= self._asked:
            self._fewer_since_s = None
            if wanted > self._asked:
                self._asked = wanted
                self.app.scale(wanted)
            return
        self._fewer_since_s = self._fewer_since_s or now_s
        if now_s >= self._fewer_since_s + self._idle_s:
            self._fewer_since_s = None
            self._shrink(wanted)

    def _executors_needed(self) -> int:
        """How many executors the calls need, those that are made and those that wait."""
        with self._lock:
            wide = Counter(call.workers for call in self.calls.wide)
        wide.update(len(link.held) + 1 for link in self._links if link.held)
        narrow = len(self.calls.narrow) + sum(len(link.calls) - bool(link.held) for link in self._links)
        whole = sum(-(-count // (self._slots // workers)) for workers, count in wide.items())
        return whole + -(-narrow // self._slots)

    def _shrink(self, wanted: int) -> None:
        """Ask for fewer executors and stop as many that are idle, in one command."""
        busy = {link.executor for link in self._links if link.calls}
        known = dict.fromkeys(self.app.executors) if self.app is not None else {}
        idle = [executor for executor in known if executor not in busy]
        stop = idle[: max(0, len(known) - wanted)]
        self._asked = max(wanted, len(busy))
        for executor in stop:
            self._let_go(executor, leaving=True)
        if self.app is not None:
            self.app.scale(self._asked, stop)

    def _stop(self, link: _Link) -> None:
        link.stopped = True
        link.out.put(wire.framed(0, wire.STOP))
        self._send(link)

    def _break(self, error: BaseException) -> None:
        """No call will be answered any more."""
        with self._lock:
            self._broken = self._broken or error
            self._closing = True
            calls = [*self.calls.take_all(), *(call for _, call, _ in self._doomed)]
        for link in self._links:
            calls += link.calls.values()
            link.calls.clear()
        self._doomed = []
        for call in calls:
            call.future.go_on()
            broken = BrokenProcessPool(str(error) or type(error).__name__)
            broken.__cause__ = error
            with suppress(Exception):
                call.future.set_exception(broken)

    def _end(self, outcome: str, detail: str) -> None:
        for link in [*self._links]:
            if not link.stopped:
                self._stop(link)
        if self.app is not None:
            self.app.finish("failed" if outcome == "failed" or self._broken else "finished", detail)
        self._ended = True
        for link in (*self._links, *self._arrived):
            link.connection.close()
        self.printer.put(None)
        self.abandon()

    def abandon(self) -> None:
        """Close everything; the thread must not run."""
        for each in (self._listener, self._selector, self._woken, self._waker):
            each.close()


class _PrintThread(threading.Thread):
    """Prints what calls have printed: a stdout that nobody reads holds up this thread alone."""

    def __init__(self) -> None:
        super().__init__(name="fairlog prints", daemon=True)
        self._waiting: SimpleQueue[wire.Frame | None] = SimpleQueue()
        self._put = self._printed = self._left_out = 0

    def put(self, frame: wire.Frame | None) -> None:
        """Have the frame printed, unless too much waits for that; None: there are no more."""
        if frame is None:
            self._waiting.put(None)
        elif self._put - self._printed > _MOST_UNPRINTED:
            self._left_out += len(frame.body)
        else:
            self._put += len(frame.body)
            self._waiting.put(frame)

    def run(self) -> None:
        """Print until there is no more."""
        while (frame := self._waiting.get()) is not None:
            _print(sys.stdout if frame.kind == wire.OUTPUT else sys.stderr, frame.body.decode(errors="replace"))
            self._printed += len(frame.body)
        if self._left_out:
            _print(
                sys.stderr,
                f"{counted(self._left_out, 'byte')} that calls printed were left out here; the app's output has them\n",
            )


def _print(stream: TextIO | None, text: str) -> None:
    """Print what a call has printed; not where nothing can be printed."""
    if stream is not None:
        with suppress(OSError, ValueError):
            stream.write(text)
            stream.flush()


def _is_open(future: Future[Any]) -> bool:
    """Whether the call is to be made, for the first time or again; it is running from then on."""
    state = future._state  # noqa: SLF001 (there is no other way to tell)
    return state == "RUNNING" or (state in ("PENDING", "CANCELLED") and future.set_running_or_notify_cancel())


def _result_of(future: Future[T], due_s: float | None) -> T:
    """The result, until that moment; a call that is not begun by then is cancelled. Raises: TimeoutError; its own."""
    try:
        return future.result(None if due_s is None else due_s - time.monotonic())
    finally:
        future.cancel()


def _executors_for(max_workers: int, cores: int, executors: int | None, elastic: object) -> int:
    """How many executors run so many calls at once. Raises: ValueError."""
    if max_workers < 1:
        raise ValueError("max_workers must be greater than 0")
    if executors is not None or elastic is not None:
        other = "executors" if executors is not None else "elastic"
        raise ValueError(f"max_workers says how many executors there are, and so does {other}; leave one out")
    if max_workers % cores:
        raise ValueError(f"max_workers is a multiple of cores, {cores}, not {max_workers}")
    return max_workers // cores


class _CallMaker:
    """Makes calls on the workers of a pool, each of which occupies as many of them."""

    _workers = 1

    def _pool_of(self) -> Executor:
        raise NotImplementedError

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> _Future[T]:  # noqa: ANN401
        """Make a call on a worker. Raises: RuntimeError after the shutdown; BrokenProcessPool."""
        return self._pool_of()._submit(self._workers, fn, *args, **kwargs)  # noqa: SLF001 (of this module)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """As `map`, on the workers; `chunksize` calls at a time.

        With `buffersize`, as in Python 3.14, the iterables are read only as far as so many chunks are ahead of the
        results; without it they are read to their end at once.
        """
        return self._pool_of()._map(  # noqa: SLF001 (of this module)
            self._workers, fn, iterables, timeout=timeout, chunksize=chunksize, buffersize=buffersize
        )


class Executor(_CallMaker, _Executor):
    """Runs calls in worker processes on granted executors, as `concurrent.futures.ProcessPoolExecutor` does locally.

    An executor has `cores` cores and `memory_mb`, and runs as many calls at once. There are `executors` of them, or as
    many as run `max_workers` calls at once, or with `elastic` (MIN, MAX) as many as the calls need within these bounds;
    one that was not needed for `idle_s` is returned. A call whose worker dies is made again, at most `retries` times:
    then it raises `WorkerLost`, which says how that ended. What calls print is kept as output of the app, and printed
    here as well, line by line, unless `show` is false.

    The workers run `python` (this interpreter, at the same path) with this process's `sys.path` and the variables
    `env`. They connect to `host`, which they must be able to reach; it is this machine for a cluster on it.

    Raises: TypeError for an argument that there is not, ValueError for bounds with which no call would ever be made,
    and what `fairlog.Client` raises for a submission.
    """

    def __init__(  # noqa: PLR0913 (by name only)
        self,
        max_workers: int | None = None,
        *,
        company: str | None = None,
        user: str | None = None,
        cores: int = 1,
        executors: int | None = None,
        elastic: tuple[int, int] | None = None,
        memory_mb: int | None = None,
        name: str = "functions",
        retries: int = 3,
        idle_s: float = 10.0,
        show: bool = True,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        host: str | None = None,
        api: str | None = None,
        token: str | None = None,
        **submission: Any,  # noqa: ANN401 (further fields of `SubmitApp`)
    ) -> None:
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if executors is not None and executors < 1:
            raise ValueError(f"a pool needs at least 1 executor, not {executors}; elastic=(0, N) begins with none")
        if unknown := submission.keys() - set(SubmitApp.__struct_fields__):
            raise TypeError(f"Executor has no argument {min(unknown)!r}; docs/python.md lists those that it has")
        if elastic is not None and not (len(elastic) == 2 and 0 <= elastic[0] <= elastic[1] and elastic[1]):
            raise ValueError(f"elastic is (MIN, MAX), with 0 <= MIN <= MAX and at least 1 as MAX, not {elastic}")
        if retries < 0:
            raise ValueError(f"retries is at least 0, not {retries}")
        if max_workers is not None:
            executors = _executors_for(max_workers, cores, executors, elastic)
        executors = executors or 1
        company, user = whose(company, user, api, token)
        app, folder = f"app-{uuid4().hex[:12]}", own_folder()
        keys = draw_keys(app)
        chain = f"{keys.certificate}{keys.key}"
        listener = socket.create_server((host or own_host(api), 0), backlog=128)
        listener.settimeout(0)
        address, port = listener.getsockname()[:2]
        variables = {
            "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path),  # noqa: PTH100 (no such file may be)
            **(env or {}),
            worker.POOL: f"{address}:{port}",
            worker.AUTHORITY: keys.authority,
            worker.KEY: chain,
            worker.SLOTS: str(cores),
            **({worker.SHOWN: "1"} if show else {}),
        }
        asked = executors if elastic is None else elastic[0]
        tls = wire.context(keys.authority, chain, server=True)
        pool = _WorkerPool(listener, tls, slots=cores, retries=retries, idle_s=idle_s)
        if initializer is not None:
            pool.initializer = worker.dumped((initializer, initargs, {}))
        request = SubmitApp(
            **{
                "app": app,
                "company": company,
                "user": user,
                "name": name,
                "executor_program": True,
                "executor_cores": cores,
                "executor_memory_mb": memory_mb if memory_mb is not None else 512 * cores,
                "executor_limit": asked,
                "owner_timeout_s": LEASE_S,
                "command": (python, "-c", _COMMAND),
                "cwd": folder,
                "env": tuple(sorted(variables)),
                **submission,
            }
        )
        try:
            owned = OwnedApp(request, variables, api=api, token=token, hear=pool.hear)
        except BaseException:
            pool.abandon()
            raise
        self.app = request.app
        """The id of the app."""
        self._max_workers = cores * (executors if elastic is None else elastic[1])
        pool.bounds = elastic
        pool.start(owned, asked)
        self._pool = pool
        self._cores, self._memory_mb = cores, request.executor_memory_mb or 512 * cores
        self._collected = weakref.finalize(self, pool.close)
        self._collected.atexit = False

    def needing(self, *, cores: int = 1, memory_mb: int | None = None) -> WideCalls:
        """Calls that need more than one core, or more memory than is there for one core: each has so much for itself.

        Raises: ValueError for more than an executor of this pool has.
        """
        if cores < 1:
            raise ValueError(f"a call needs at least 1 core, not {cores}")
        if cores > self._cores:
            raise ValueError(
                f"an executor of this pool has {counted(self._cores, 'core')}, so no call can have {cores}"
            )
        if memory_mb is None:
            return WideCalls(self, cores)
        if not 0 < memory_mb <= self._memory_mb:
            raise ValueError(f"an executor of this pool has {self._memory_mb} MiB, so no call can have {memory_mb}")
        return WideCalls(self, max(cores, -(-memory_mb * self._cores // self._memory_mb)))

    def _pool_of(self) -> Executor:
        return self

    def _submit(self, workers: int, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> _Future[T]:  # noqa: ANN401
        future: _Future[T] = _Future(self._pool)
        try:
            body = worker.dumped((fn, args, kwargs))
        except Exception as error:  # noqa: BLE001 (as with a process pool, the future says that it cannot be pickled)
            self._pool.check()
            future.set_running_or_notify_cancel()
            future.set_exception(error)
            return future
        self._pool.add(_PendingCall(future, body, workers))
        return future

    def _map(
        self,
        workers: int,
        fn: Callable[..., T],
        iterables: tuple[Iterable[Any], ...],
        *,
        timeout: float | None,
        chunksize: int,
        buffersize: int | None,
    ) -> Iterator[T]:
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        items = zip(*iterables, strict=False)
        if chunksize == 1:
            return self._mapped(workers, fn, items, timeout, buffersize)
        chunks = ((chunk,) for chunk in iter(lambda: tuple(islice(items, chunksize)), ()))
        return chain.from_iterable(self._mapped(workers, partial(worker.each, fn), chunks, timeout, buffersize))

    def _mapped(
        self,
        workers: int,
        fn: Callable[..., T],
        calls: Iterator[tuple[Any, ...]],
        timeout: float | None,
        buffersize: int | None,
    ) -> Iterator[T]:
        """The results of these calls in their order, the first of which are made now."""
        due_s = None if timeout is None else time.monotonic() + timeout
        waiting = deque(self._submit(workers, fn, *arguments) for arguments in islice(calls, buffersize))
        this = weakref.ref(self)

        def results() -> Iterator[T]:
            try:
                while waiting:
                    further = next(calls, None) if buffersize is not None else None
                    if further is not None and (pool := this()) is not None:
                        waiting.append(pool._submit(workers, fn, *further))  # noqa: SLF001 (this class's own)
                        del pool
                    yield _result_of(waiting.popleft(), due_s)
            finally:
                for future in waiting:
                    future.cancel()

        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 (as the library's)
        """Take no more calls and end the app once all are answered; `wait` until then."""
        self._collected.detach()
        self._pool.close(cancel=cancel_futures)
        if wait:
            self._pool.join()


class WideCalls(_CallMaker):
    """What `Executor.needing` returns: makes calls of that pool, each of which occupies several of its workers."""

    def __init__(self, pool: Executor, workers: int) -> None:
        self._executor, self._workers = pool, workers

    def _pool_of(self) -> Executor:
        return self._executor
