"""What one tenant can do to another through the API: floods of junk commands and of reads; printed as JSON.

`hostile.py [COMMANDS] [READS]` has the user of one company send COMMANDS (default 300,000) that are refused, in batches
of 1,000, then ask READS times (default 10,000) for what costs most, with several tokens and without ever waiting when
told to. Meanwhile the user of another company submits apps, one at a time, ten a second. A master and one API server
run on the embedded store with fsync on every write, and everybody on the same machine.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import structlog

from benchmarks._common import arguments, show, wait_for, worker
from fairlog.api.addresses import UNIX
from fairlog.api.client import ApiClient
from fairlog.api.serve import Where, run_api
from fairlog.local.store import EmbeddedStore
from recovery.failover.master import run_master
from scheduler.model.commands import AddAccount, ConfigureCluster, IssueToken, RegisterCompany, SubmitApp
from scheduler.model.events import MasterElected
from scheduler.model.sender import local
from scheduler.service.client import CommandClient
from scheduler.service.keyring import Keyring
from scheduler.service.tokens import new_token
from scheduler.store.eventlog import EventLog

HOSTILE, TOKENS, TOGETHER = 2, 8, 1_000
"""Hostile processes, the tokens of each, and commands in a batch."""
PENDING = 1_000
EVERY_S = 0.1
READS = (
    "/v1/apps?everything=true",
    "/v1/board?state=all",
    "/v1/log?limit=500",
    "/v1/shares",
    "/v1/audit",
    "/v1/apps?at={}",
)
JUNK: tuple[Any, ...] = (
    {"type": "KillApp", "app": "nobody's"},
    {"type": "SubmitApp", "app": "x", "company": "acme", "user": "ann", "command": ["true"]},
    {"type": "SubmitApp", "app": "y", "company": "evil", "user": "eve", "cores": 10**6, "command": ["true"]},
    {"type": "ConfigureCluster", "settings": {"placement": "pack"}},
    {"type": "SubmitApp", "app": "z" * 500},
    {"no": "command"},
    [[[[]]]],
)


def serve(url: str, keys: Path) -> None:
    """The master process. It logs to stderr; stdout is for the figures."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    run_master(url, keyring=Keyring.load(keys))


def serve_api(url: str, keys: Path, path: Path) -> None:
    """The API's process."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    run_api(url, "default", Where(path), keyring=Keyring.load(keys).without_masters())


def send_junk(path: Path, tokens: list[str], number: int, told: Any) -> None:  # noqa: ANN401 (a queue)
    """Send `number` commands; tell how often which status was answered."""
    batch = {"commands": [JUNK[each % len(JUNK)] for each in range(TOGETHER)]}
    _flood(path, tokens, -(-number // TOGETHER), told, lambda client, _: client.post("/v1/commands", json=batch))


def read(path: Path, tokens: list[str], number: int, told: Any) -> None:  # noqa: ANN401 (a queue)
    """Ask `number` times; tell how often which status was answered."""
    _flood(
        path,
        tokens,
        number,
        told,
        lambda client, each: client.get(READS[each % len(READS)].format(1 + each * 7919 % PENDING)),
    )


def _flood(
    path: Path,
    tokens: list[str],
    number: int,
    told: Any,  # noqa: ANN401 (a queue)
    ask: Callable[[httpx.Client, int], httpx.Response],
) -> None:
    answered: Counter[int] = Counter()
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://api", timeout=60) as client:
        for each in range(number):
            client.headers["authorization"] = f"Bearer {tokens[each % len(tokens)]}"
            answered[ask(client, each).status_code] += 1
    told.put(answered)


def beside(api: str, token: str, flood: Callable[[], bool], prefix: str) -> dict[str, Any]:
    """The latency of lone submits while the flood lasts."""
    times: list[float] = []
    with ApiClient(api, token=token) as client:
        while flood():
            started = time.perf_counter()
            client.send(_held(f"{prefix}-{len(times)}", "acme", "ann"))
            times.append(1000 * (time.perf_counter() - started))
            time.sleep(EVERY_S)
    times.sort()
    return {
        "submits": len(times),
        "p50_ms": round(times[len(times) // 2], 1),
        "p99_ms": round(times[len(times) * 99 // 100], 1),
        "max_ms": round(times[-1], 1),
    }


class Running(NamedTuple):
    """A cluster with keys: the API's socket, a client of the store, and the processes of master and API server."""

    path: Path
    client: CommandClient
    master: BaseProcess
    server: BaseProcess


@contextmanager
def cluster() -> Iterator[Running]:
    """A master and one API server on the embedded store, with fsync on every write; ended with the block."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, EmbeddedStore(Path(folder) / "store") as store:
        path, keys = Path(folder) / "api.sock", Path(folder) / "keys.json"
        keyring = Keyring.create(keys)
        master = context.Process(target=serve, args=(store.url, keys), daemon=True)
        server = context.Process(target=serve_api, args=(store.url, keys, path), daemon=True)
        for process in (master, server):
            process.start()
        wait_for(path.exists, "the API's socket")
        yield Running(path, CommandClient(store.url, keyring=keyring), master, server)
        for process in (server, master):
            process.terminate()
            process.join(timeout=10)


def main() -> None:
    """Run the benchmark and print the figures."""
    junk, reads = arguments(__doc__, commands=300_000, reads=10_000)
    context = multiprocessing.get_context("spawn")
    with cluster() as running:
        path, client = running.path, running.client
        ann, eves = set_up(client)
        api = f"{UNIX}{path}"

        def under(what: Callable[..., None], number: int, prefix: str) -> dict[str, Any]:
            told = context.Queue()
            hostile = [
                context.Process(target=what, args=(path, eves[each::HOSTILE], number // HOSTILE, told), daemon=True)
                for each in range(HOSTILE)
            ]
            started = time.monotonic()
            for process in hostile:
                process.start()
            found = beside(api, ann, lambda: any(each.is_alive() for each in hostile), prefix)
            answered = sum((told.get() for _ in hostile), Counter[int]())
            took_s = round(time.monotonic() - started, 1)
            return {**found, "seconds": took_s, "answered": {str(each): answered[each] for each in sorted(answered)}}

        ends = time.monotonic() + 5
        quiet = beside(api, ann, lambda: time.monotonic() < ends, "quiet")
        commands, asked = under(send_junk, junk, "junk"), under(read, reads, "reads")
        log = EventLog(client.store, client.keys)
        elections = sum(isinstance(fact.event, MasterElected) for fact in log.facts())
    show(submits_beside_nobody=quiet, beside_junk=commands, beside_reads=asked, elections=elections)


def set_up(client: CommandClient) -> tuple[str, list[str]]:
    """Two companies, each with a user, and apps to read; the token of one user, and those of the other."""
    root = local(0)
    client.send(ConfigureCluster(settings={"worker_timeout_s": 3600}), by=root)
    for command in (
        RegisterCompany(company="acme"),
        RegisterCompany(company="evil"),
        worker(0, cores=8, memory_mb=8192),
    ):
        client.send(command, by=root)
    client.send_many([_held(f"pending-{number}", "evil", "eve") for number in range(PENDING)], by=root)
    tokens = []
    for account in ("acme/ann", "evil/eve"):
        client.send(AddAccount(account=account), by=root)
    for account in ("acme/ann", *["evil/eve"] * HOSTILE * TOKENS):
        token = new_token()
        client.send(IssueToken(token=token.id, account=account, hash=token.hash), by=root)
        tokens.append(token.text)
    return tokens[0], tokens[1:]


def _held(app: str, company: str, user: str) -> SubmitApp:
    """An app that waits until it is released."""
    return SubmitApp(app=app, company=company, user=user, command=("true",), hold=True)


if __name__ == "__main__":
    main()
