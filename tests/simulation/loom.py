"""A deterministic scheduler: programs run one at a time in virtual time, in an order that only the seed decides.

Each actor is a greenlet, so it runs the real program with its loops, and all share one thread. It yields at a call to
the store, a pause or a wait, and the seed chooses the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from greenlet import getcurrent, greenlet


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
        self.body = body
        self.error: BaseException | None = None
        self.strand = getcurrent()
        """Where it runs: a greenlet of its own, except of the first actor."""


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
        actor.strand = greenlet(lambda *_: self._live(actor), self.main.strand)
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
        actor.strand.switch()
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
        actor.strand.parent = following.strand  # which goes on when this one returns

    def _hand_on(self) -> None:
        mine = self.current
        if mine.doomed:
            raise Killed
        chosen = self._pick()
        if chosen is not mine:
            chosen.strand.switch()
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
