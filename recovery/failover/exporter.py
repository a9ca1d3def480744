"""The metrics of a master, served by a process of their own that shares its measures: a scrape takes no turn's time."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from scheduler.model.errors import FairlogError
from scheduler.service.child import Child, die_with_parent

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from scheduler.service.measures import Histogram, Measures

Address = tuple[str, int]
METRICS_VARIABLE = "FAIRLOG_METRICS"
"""Where a master serves its metrics, [HOST:]PORT."""


class CannotExport(FairlogError):
    """The address cannot be listened on."""


def try_to_listen(address: Address) -> None:
    """Raises: OSError if nothing can listen at the address."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(address)


def check_free(address: Address) -> None:
    """Raises: CannotExport if nothing can be served at the address."""
    host, port = address
    try:
        try_to_listen(address)
    except OSError as error:
        raise CannotExport(
            f"cannot serve metrics at {host}:{port}: {error.strerror}; give --metrics another port"
        ) from error


class Exporter:
    """Serves `/metrics` at an address, in a process that ends with this one. Start it while there is one thread.

    Raises: CannotExport if the address cannot be used.
    """

    def __init__(self, measures: Measures, address: Address) -> None:
        check_free(address)
        self._child = Child("the exporter of metrics", partial(_serve, measures, address, os.getpid()), cwd=None)
        self._child.start()

    def tend(self) -> str | None:
        """Start it again if it has ended. Returns a sentence then."""
        return self._child.tend()

    def stop(self) -> None:
        """End it."""
        self._child.ask_to_stop()
        self._child.wait()


class Collector:
    """The measures as metrics of Prometheus."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 (as in `_serve`)

        value = self._measures.value
        for name, text, source in (
            ("serving", "Whether this master is the active one.", "serving"),
            ("log_position", "Position up to which it has folded the log.", "position"),
            ("last_commit_timestamp_seconds", "When it committed last, in seconds since the epoch.", "last_commit_s"),
            ("clock_offset_seconds", "How far the store's clock is ahead of its own.", "clock_offset_s"),
        ):
            yield GaugeMetricFamily(f"fairlog_master_{name}", text, value=value(source))
        for name, text, source in (
            ("commands", "Commands of the turns that it committed.", "commands"),
            ("messages_put_aside", "Messages that it put aside, unsigned or too old.", "put_aside"),
        ):
            family = CounterMetricFamily(f"fairlog_master_{name}", text)
            family.add_metric((), value(source))
            yield family
        yield histogram(
            "fairlog_master_commit_duration_seconds",
            "From sending a commit to its confirmation.",
            self._measures.commits(),
        )
        yield histogram("fairlog_master_turn_events", "Events of the turns that it committed.", self._measures.turns())

    def describe(self) -> Iterable[Metric]:
        """Nothing more."""
        return ()


def histogram(name: str, text: str, measured: Histogram) -> Metric:
    """The family of a histogram."""
    from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415 (as in `_serve`)

    family = HistogramMetricFamily(name, text)
    reached, buckets = 0, []
    for bound, count in zip((*map(str, map(float, measured.bounds)), "+Inf"), measured.counts, strict=True):
        reached += count
        buckets.append((bound, float(reached)))
    family.add_metric((), buckets, measured.total)
    return family


def _serve(measures: Measures, address: Address, parent: int) -> None:
    """Serve until the master ends."""
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 (masters need none of it)

    die_with_parent(parent)
    registry = CollectorRegistry()
    registry.register(Collector(measures))
    host, port = address
    start_http_server(port, host, registry)
    while True:
        signal.pause()
