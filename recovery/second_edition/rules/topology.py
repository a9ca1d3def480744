"""The live workers of each host and rack, and the rack of each host (semantics L1)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable


class Topology:
    """The live workers by host and by rack, sorted by id. A worker without a named rack is in no rack."""

    def __init__(self) -> None:
        self.by_host: dict[str, list[str]] = {}
        self.by_rack: dict[str, list[str]] = {}
        self._racks: dict[str, dict[str, str]] = {}

    def join(self, worker: str, host: str, rack: str) -> None:
        """Add a worker that became live; `rack` "" = none."""
        insort(self.by_host.setdefault(host, []), worker)
        if rack:
            insort(self.by_rack.setdefault(rack, []), worker)
            self._racks.setdefault(host, {})[worker] = rack

    def leave(self, worker: str, host: str, rack: str) -> None:
        """Remove a worker that is no longer live."""
        _take(self.by_host, host, worker)
        if rack:
            _take(self.by_rack, rack, worker)
            del self._racks[host][worker]
            if not self._racks[host]:
                del self._racks[host]

    def racks_of(self, hosts: Iterable[str]) -> dict[str, str]:
        """Host -> rack, for those of `hosts` with a rack. If a host's workers differ, the first by id decides."""
        return {host: min(self._racks[host].items())[1] for host in hosts if host in self._racks}


def _take(places: dict[str, list[str]], place: str, worker: str) -> None:
    workers = places[place]
    if len(workers) == 1:
        del places[place]
    else:
        del workers[bisect_left(workers, worker)]
