"""A deterministic scheduler: programs run one at a time in virtual time, in an order that only the seed decides.

Each actor is a thread, so it runs the real program with its loops. Only one thread runs at a time. It yields at
a call to the store, a pause or a wait, and the seed chooses the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random


class Killed(BaseException):
    """The process died here."""


class Overrun(BaseException):
    """The run takes too many steps: probably an endless loop."""


def _never() -> bool:
    return False


class Actor:
    """A simulated process: its program, the end of its wait or pause, and whether it is alive."""

    def __init__(self, name: str, pid: int, body: Callable[[], None]) -> None:
        self.name = name
        self.pid = pid
        self.alive = True
        self.doomed = False
        """Whether whatever it does next is the last thing it does."""
        self.killer: Actor | None = None
        self.wakes_at_ms = 0
        self.stopped_until_ms = 0
        self.ready: Callable[[], bool] = _never
        self.poked = False
        self.signalled = False
        """Whether it was told to stop."""
        self.on_signal: Callable[[], None] | None = None
        """What it does when it is told to stop; without it, it dies."""
        self.turn = threading.Lock()
        self.turn.acquire()
        self.body = body
        self.error: BaseException | None = None


class _Hand:
    """A reusable thread, because starting a thread costs more than most actors do."""

    def __init__(self) -> None:
        self._task: Callable[[], None] | None = None
        self._go = threading.Lock()
        self._go.acquire()
        threading.Thread(target=self._work, daemon=True).start()

    def take_up(self, task: Callable[[], None]) -> None:
        """Have the thread do it."""
        self._task = task
        self._go.release()

    def _work(self) -> None:
        while True:
            self._go.acquire()
            if self._task is not None:
                self._task()
            self._task = None
            _idle.append(self)


_idle: list[_Hand] = []


class Loom:
    """All actors of a run and their virtual time. The caller of `Loom` is the first actor."""

    def __init__(self, seed: int, *, steps: int) -> None:
        self.random = Random(seed)
        self.now_ms = 0
        self.left = steps
        self.pids = 100
        self.main = Actor("nemesis", self.pids, lambda: None)
        self.current = self.main
        self.actors = [self.main]
        self.on_pick: Callable[[], None] = lambda: None

    def spawn(self, name: str, body: Callable[[], None]) -> Actor:
        """A new actor, which starts when it is chosen."""
        self.pids += 1
        actor = Actor(name, self.pids, body)
        self.actors.append(actor)
        hand = _idle.pop() if _idle else _Hand()
        hand.take_up(lambda: self._live(actor))
        return actor

    def kill(self, actor: Actor) -> None:
        """End the actor at once, as by SIGKILL."""
        if not actor.alive:
            return
        actor.doomed = True
        if actor is self.current:
            raise Killed
        actor.killer = mine = self.current
        self.current = actor
        actor.turn.release()
        mine.turn.acquire()
        self.current = mine

    def stop(self, actor: Actor, for_ms: int) -> None:
        """Pause the actor for this long without its notice, as by SIGSTOP."""
        actor.stopped_until_ms = max(actor.stopped_until_ms, self.now_ms + for_ms)

    def poke(self, actor: Actor) -> None:
        """Wake the actor if it waits for a signal."""
        actor.poked = True

    def wait(self, for_ms: float, ready: Callable[[], bool] = _never) -> bool:
        """Yield for this long, or until `ready`; return whether it became ready."""
        actor = self.current
        actor.wakes_at_ms = self.now_ms + max(0, int(for_ms))
        actor.ready = ready
        self._hand_on()
        actor.ready = _never
        return ready()

    def pause(self) -> None:
        """Yield to another actor if the seed says so."""
        self.wait(0)

    def end(self) -> None:
        """Kill all actors except the caller."""
        for actor in [*self.actors]:
            if actor is not self.main and actor.alive:
                self.kill(actor)

    def _live(self, actor: Actor) -> None:
        actor.turn.acquire()
        try:
            if not actor.doomed:
                actor.body()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - told to the caller of `Loom`
            actor.error = error
            self.main.error = self.main.error or error
        actor.alive = False
        self.actors.remove(actor)
        following = actor.killer or (self.main if self.main.error is not None else self._pick())
        self.current = following
        following.turn.release()

    def _hand_on(self) -> None:
        mine = self.current
        if mine.doomed:
            raise Killed
        chosen = self._pick()
        if chosen is not mine:
            chosen.turn.release()
            mine.turn.acquire()
        if mine.doomed:
            raise Killed
        if mine is self.main and mine.error is not None:
            raise mine.error

    def _pick(self) -> Actor:
        """The next actor to run; time advances until one is ready."""
        self.left -= 1
        if self.left < 0:
            self.main.error = self.main.error or Overrun("the run does not come to an end")
            self.current = self.main
            return self.main
        while True:
            self.on_pick()
            now_ms = self.now_ms
            ready = [
                actor
                for actor in self.actors
                if actor.doomed or (actor.stopped_until_ms <= now_ms and (actor.wakes_at_ms <= now_ms or actor.ready()))
            ]
            if ready:
                chosen = ready[self.random.randrange(len(ready))] if len(ready) > 1 else ready[0]
                self.current = chosen
                return chosen
            self.now_ms = min(
                actor.stopped_until_ms if actor.stopped_until_ms > now_ms else actor.wakes_at_ms
                for actor in self.actors
            )
