"""Fifty viewers of the live page on one API server, while the log grows; printed as JSON.

`viewers.py [VIEWERS] [SECONDS] [EVENTS]` opens VIEWERS pages (default 50), which share out the views of the page: each
follows `/v1/pulse` and asks for what its view shows whenever that has changed, once a second at most, as the page does.
For SECONDS (default 30), apps change EVENTS times a second (default 100), and a user submits apps one at a time: first
with nobody looking, then with the viewers. The viewers are one process of the same machine.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import Counter
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import httpx
import msgspec
import psutil
import uvloop

from benchmarks._common import arguments, show
from benchmarks.followers import APPS, change, measured
from benchmarks.hostile import beside, cluster, set_up
from fairlog.api.addresses import UNIX

LEAST_S, STILL_S = 1.0, 4.0
"""How often a view is asked for at most, and how often if no event tells of what it shows (`page/static/main.js`)."""
WAIT_S = 30.0


class View(NamedTuple):
    """A view of the page: what it asks for, and the topics by which it is asked for again."""

    paths: tuple[str, ...]
    topics: frozenset[str]
    still: bool = False
    app: str = ""


def views(app: str) -> list[View]:
    """The views of the page; the one of an app is of this one."""
    many = frozenset({"apps", "workers", "companies", "settings", "log"})
    entries = "/v1/entries?company=evil&limit=20&kind=AppAdmitted,DriverAllocated,ExecutorAllocated,ExecutorRevoked"
    return [
        View(("/v1/overview",), many - {"log"}, still=True),
        View(("/v1/board?limit=100",), frozenset({"apps", "companies"}), still=True),
        View(
            tuple(f"/v1/apps/{app}/{part}" for part in ("card", "timeline")), frozenset({"apps"}), still=True, app=app
        ),
        View(("/v1/overview", "/v1/companies/evil/card", entries), frozenset({"apps", "companies", "workers"})),
        View(("/v1/fleet",), frozenset({"workers", "apps"})),
        View(("/v1/fairness",), frozenset({"apps", "companies", "workers"})),
        View(("/v1/entries?limit=100", "/v1/overview"), many),
        View(("/v1/overview", "/v1/settings"), frozenset()),
        View(("/v1/settings", "/v1/history?limit=200"), frozenset({"settings", "companies", "workers"})),
    ]


class Viewer:
    """One open page."""

    def __init__(self, api: str, token: str, view: View, answers: Counter[int], took_ms: list[float]) -> None:
        transport = httpx.AsyncHTTPTransport(uds=api)
        headers = {"authorization": f"Bearer {token}"}
        self._client = httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers, timeout=WAIT_S)
        self._view, self._answers, self._took_ms = view, answers, took_ms
        self._dirty = asyncio.Event()

    async def look(self) -> None:
        """Show the view, and follow the log without end."""
        await asyncio.gather(self._follow(), self._refresh())

    async def _follow(self) -> None:
        async with self._client.stream("GET", "/v1/pulse", timeout=None) as answer:
            self._answers[answer.status_code] += 1
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    news = msgspec.json.decode(line[6:])
                    touched = news["topics"] is None or not self._view.topics.isdisjoint(news["topics"])
                    if touched and (not self._view.app or news["apps"] is None or self._view.app in news["apps"]):
                        self._dirty.set()

    async def _refresh(self) -> None:
        while True:
            self._dirty.clear()
            began = time.monotonic()
            for path in self._view.paths:
                asked = time.monotonic()
                while (answer := await self._client.get(path)).status_code == httpx.codes.TOO_MANY_REQUESTS:
                    self._answers[answer.status_code] += 1
                    await asyncio.sleep(min(5.0, float(answer.headers["retry-after"])))
                self._answers[answer.status_code] += 1
                self._took_ms.append(1000 * (time.monotonic() - asked))
            await asyncio.sleep(max(0.0, began + LEAST_S - time.monotonic()))
            try:
                await asyncio.wait_for(self._dirty.wait(), STILL_S - LEAST_S if self._view.still else None)
            except TimeoutError:
                continue


def look(path: str, tokens: list[str], number: int, told: Connection) -> None:
    """Open so many pages, and say of each question how they fare."""
    uvloop.run(_look(path, tokens, number, told))


async def _look(path: str, tokens: list[str], number: int, told: Connection) -> None:
    answers, took_ms = Counter[int](), list[float]()
    opened = []
    for each in range(number):
        shown = views(f"pending-{each % APPS}")
        viewer = Viewer(path, tokens[each % len(tokens)], shown[each % len(shown)], answers, took_ms)
        opened.append(asyncio.create_task(viewer.look()))
        await asyncio.sleep(LEAST_S / number)
    told.send(None)
    while True:
        await asyncio.to_thread(told.recv)
        took_ms.sort()
        ended = sum(page.done() for page in opened)
        told.send((dict(answers), took_ms[len(took_ms) // 2], took_ms[len(took_ms) * 99 // 100], ended))
        answers.clear()
        took_ms.clear()


def main() -> None:
    """Run the benchmark and print the figures."""
    number, seconds, per_s = arguments(__doc__, viewers=50, seconds=30, events=100)
    context = multiprocessing.get_context("spawn")
    with cluster() as running:
        ann, eves = set_up(running.client)
        api, pids = f"{UNIX}{running.path}", {"api": running.server.pid or 0, "master": running.master.pid or 0}

        def load(what: str, *, changing: bool = True) -> dict[str, Any]:
            ends = time.monotonic() + seconds
            goes_on = lambda: time.monotonic() < ends  # noqa: E731
            changes = partial(change, api, eves, per_s, goes_on) if changing else lambda: None
            return measured(partial(beside, api, ann, goes_on, what), changes, pids)

        nobody = load("nobody")
        asking, told = context.Pipe()
        pages = context.Process(target=look, args=(str(running.path), eves, number, told), daemon=True)
        pages.start()
        asking.recv()

        def fared() -> dict[str, Any]:
            asking.send(None)
            answers, p50, p99, ended = asking.recv()
            return {"answers": answers, "p50_ms": round(p50, 1), "p99_ms": round(p99, 1), "ended": ended}

        fared()
        for each in psutil.Process(pids["api"]).children(recursive=True):  # answers that need the whole log
            pids[f"api_child_{each.pid}"] = each.pid
        watched = load("watched")
        viewers = {"open": number, **fared()}
        idle = load("idle", changing=False)
        pages.terminate()
        pages.join(timeout=10)
    show(viewers=viewers, nobody_looks=nobody, viewers_look=watched, viewers_look_at_lone_submits=idle)


if __name__ == "__main__":
    main()
