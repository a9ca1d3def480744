"""On which workers drivers go (semantics D)."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.fleet import Fleet


class Draw:
    """The live workers in an order that a log position draws: the same on every replay (semantics D2)."""

    def __init__(self, position: int) -> None:
        self._position = position
        self._stopped_at = b""

    def next_worker(self, fleet: Fleet, cores: int, memory_mb: int) -> str | None:
        """The next one with that much free, from where the last driver stopped, round and round."""
        fitting = [(self._ticket(worker), worker) for worker, _ in fleet.candidates(cores, memory_mb, "worker-id")]
        if not fitting:
            return None
        self._stopped_at, worker = min(fitting, key=lambda one: (one[0] <= self._stopped_at, one))
        return worker

    def _ticket(self, worker: str) -> bytes:
        return blake2b(f"{self._position}\n{worker}".encode(), digest_size=16).digest()


def first_fit(fleet: Fleet, cores: int, memory_mb: int) -> str | None:
    """The first worker by id with that much free (semantics D2)."""
    return next((worker for worker, _ in fleet.candidates(cores, memory_mb, "worker-id")), None)
