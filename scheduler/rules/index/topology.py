"""The live workers of each host and rack, and the rack of each host (semantics L1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from scheduler.rules.index.keyed import Keyed, Place

if TYPE_CHECKING:
    from scheduler.rules.entities.workers import Worker


def _on_host(worker: Worker) -> Place | None:
    return (worker.host, worker.id) if worker.status == "alive" else None


def _in_rack(worker: Worker) -> Place | None:
    return (worker.rack, worker.id) if worker.status == "alive" and worker.rack else None


class Topology:
    """The live workers by host and by rack, sorted by id. A worker without a named rack is in no rack."""

    def __init__(self) -> None:
        self.hosts: Keyed[Worker] = Keyed(_on_host)
        self.racks: Keyed[Worker] = Keyed(_in_rack)
        self.by_host: dict[str, list[str]] = self.hosts.groups
        self.by_rack: dict[str, list[str]] = self.racks.groups

    def racks_of(self, hosts: Iterable[str]) -> dict[str, str]:
        """Host -> rack, for those of `hosts` with a rack. If a host's workers differ, the first by id decides."""
        found: dict[str, str] = {}
        for host in hosts:
            for worker in self.by_host.get(host, ()):
                if worker in self.racks:
                    found[host] = self.racks.members[worker].rack
                    break
        return found
