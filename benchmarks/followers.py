"""1,000 followers by server-sent events on one API server, while the log grows; printed as JSON.

`followers.py [STREAMS] [SECONDS] [EVENTS]` has the user of one company open STREAMS streams (default 1,000): a third
follows the log, a third apps, a third the company. For SECONDS (default 20) that user's apps change EVENTS times a
second (default 100), by batches of 10 commands. Meanwhile the user of another company submits apps, one at a time, ten
a second: beside nobody, beside the changes alone, and beside changes and streams. Then each stream must have had every
event that concerns it, in order. A delay runs from the time of the turn, which is before its commit, to the arrival at
the follower. A master and one API server run on the embedded store with fsync on every write, and all followers in one
process of the same machine.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.connection import Connection
from statistics import quantiles
from typing import Any, NamedTuple

import httptools
import msgspec
import psutil
import uvloop

from benchmarks._common import arguments, show, wait_for
from benchmarks.hostile import beside, cluster, set_up
from fairlog.api.addresses import UNIX
from fairlog.api.client import ApiClient
from scheduler.model.commands import ReprioritizeApp
from scheduler.store.codec import lines_of
from scheduler.store.eventlog import EventLog

APPS, TOGETHER = 50, 10
"""How many apps change, and commands in a batch."""
SAMPLED = 10
"""The delay of every tenth event is measured."""
OTHER_FILES = 500
PATHS = ("/v1/log/events", "/v1/apps/pending-{}/events", "/v1/companies/evil/events")


class Had(NamedTuple):
    """What a stream has had: how many events, and a hash over their positions in order."""

    events: int
    order: int

    def then(self, seq: int) -> Had:
        """With one event more."""
        return Had(self.events + 1, hash((self.order, seq)))


class Stream(asyncio.Protocol):
    """A stream that takes note of what it receives."""

    def __init__(self, request: bytes, delays_ms: list[float]) -> None:
        self._request, self._delays_ms = request, delays_ms
        self._parser, self._text = httptools.HttpResponseParser(self), b""
        self.status, self.had, self.ended = 0, Had(0, 0), False

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 (a transport)
        """Ask for the stream."""
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Take what has come of the answer."""
        self._parser.feed_data(data)

    def connection_lost(self, _: Exception | None) -> None:
        """Nothing more will come."""
        self.ended = True

    def on_headers_complete(self) -> None:
        """Note whether the stream was allowed."""
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Note the events."""
        *whole, self._text = (self._text + body).split(b"\n\n")
        for event in whole:
            if event.startswith(b"id: "):
                seq = int(event[4 : event.index(b"\n")])
                self.had = self.had.then(seq)
                if seq % SAMPLED == 0:
                    at = msgspec.json.decode(event[event.index(b"data: ") + 6 :])["at"]
                    self._delays_ms.append(time.time() * 1000 - at)


def follow(path: str, tokens: list[str], paths: list[str], after: int, told: Connection) -> None:
    """Open the streams, say so, and answer each question with what they have had."""
    _allow_files(len(paths))
    uvloop.run(_follow(path, tokens, paths, after, told))


async def _follow(path: str, tokens: list[str], paths: list[str], after: int, told: Connection) -> None:
    loop, delays_ms, streams = asyncio.get_running_loop(), list[float](), list[Stream]()
    for number, each in enumerate(paths):
        token = tokens[number % len(tokens)]
        head = f"GET {each}?after={after} HTTP/1.1\r\nhost: api\r\nauthorization: Bearer {token}\r\n\r\n".encode()
        while True:
            _, stream = await loop.create_unix_connection(lambda head=head: Stream(head, delays_ms), path)  # type: ignore[misc]
            while not stream.status:
                await asyncio.sleep(0.001)
            if stream.status == 200:
                break
            await asyncio.sleep(0.1)  # asked too often
        streams.append(stream)
    told.send(None)
    while True:
        await asyncio.to_thread(told.recv)
        told.send(([tuple(each.had) for each in streams], sum(each.ended for each in streams), delays_ms))


def change(api: str, tokens: list[str], per_s: float, goes_on: Callable[[], bool]) -> None:
    """Change the apps so many times a second."""
    clients = [ApiClient(api, token=token) for token in tokens]
    number, started = 0, time.monotonic()
    while goes_on():
        batch = [
            ReprioritizeApp(app=f"pending-{(number + each) % APPS}", priority=1 + (number + each) // APPS % 1000)
            for each in range(TOGETHER)
        ]
        clients[number // TOGETHER % len(clients)].send_many(batch)
        number += TOGETHER
        time.sleep(max(0.0, started + number / per_s - time.monotonic()))


def due(events: Iterable[dict[str, Any]], path: str) -> Had:
    """What the stream at `path` must have had of the events."""
    _, _, kind, name, *_ = path.split("/")
    had = Had(0, 0)
    for event in events:
        said = {**(event.get("command") or {}), **event["data"]}
        app = str(said.get("app", ""))
        of = said.get("company") or ("evil" if app.startswith("pending-") else "")
        if kind == "log" or (kind == "apps" and app == name) or (kind == "companies" and of == name):
            had = had.then(event["seq"])
    return had


def measured(
    submits: Callable[[], dict[str, Any]], changes: Callable[[], None], processes: dict[str, int]
) -> dict[str, Any]:
    """The latency of lone submits beside the changes, and what the processes compute meanwhile, in cores."""
    load = threading.Thread(target=changes)
    before = {name: _cpu_s(pid) for name, pid in processes.items()}
    began = time.monotonic()
    load.start()
    found = submits()
    took_s = time.monotonic() - began
    used = {f"{name}_cores": round((_cpu_s(pid) - before[name]) / took_s, 2) for name, pid in processes.items()}
    load.join()
    return {**found, **used}


def main() -> None:
    """Run the benchmark and print the figures."""
    number, seconds, per_s = arguments(__doc__, streams=1_000, seconds=20, events=100)
    _allow_files(number)
    context = multiprocessing.get_context("spawn")
    with cluster() as running:
        client = running.client
        log = EventLog(client.store, client.keys)
        ann, eves = set_up(client)
        api = f"{UNIX}{running.path}"

        pids = {"api": running.server.pid or 0, "master": running.master.pid or 0}

        def load(what: str, processes: dict[str, int], *, changing: bool = True) -> dict[str, Any]:
            ends = time.monotonic() + seconds
            goes_on = lambda: time.monotonic() < ends  # noqa: E731
            changes = partial(change, api, eves, per_s, goes_on) if changing else lambda: None
            return measured(partial(beside, api, ann, goes_on, what), changes, processes)

        alone, changing = load("alone", pids, changing=False), load("changing", pids)
        start = log.head()
        paths = [PATHS[each % len(PATHS)].format(each // len(PATHS) % APPS) for each in range(number)]
        asking, told = context.Pipe()
        followers = context.Process(target=follow, args=(str(running.path), eves, paths, start.seq, told), daemon=True)
        began = time.monotonic()
        followers.start()
        asking.recv()
        opened_s = round(time.monotonic() - began, 1)
        followed = load("followed", {**pids, "followers": followers.pid or 0})
        events = [line.as_json() for record in log.read(start) for line in lines_of(record)]
        expected = {each: due(events, each) for each in set(paths)}

        def short() -> tuple[int, int, list[float]]:
            """The streams that have not had what they must have, those that ended, and the delays."""
            asking.send(None)
            had, ended, delays_ms = asking.recv()
            return sum(Had(*each) != expected[of] for each, of in zip(had, paths, strict=True)), ended, delays_ms

        wait_for(lambda: not short()[0], "streams that have had every event in order")
        wrong, ended, delays_ms = short()
        cuts = quantiles(delays_ms, n=100)
        followers.terminate()
        followers.join(timeout=10)
    show(
        streams={"open": number, "opened_s": opened_s, "ended": ended, "without_an_event_or_out_of_order": wrong},
        events={"committed": len(events), "received": sum(expected[each].events for each in paths)},
        delay_ms={"sampled": len(delays_ms), "p50": round(cuts[49], 1), "p99": round(cuts[98], 1)},
        submits_beside_nobody=alone,
        beside_changes=changing,
        beside_changes_and_streams=followed,
    )


def _cpu_s(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def _allow_files(number: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, number + OTHER_FILES), most))


if __name__ == "__main__":
    main()
