"""What every test may ask for: a real store, on each server that this machine has, or the double."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import fakeredis
import pytest
from hypothesis import settings
from redis import Redis

from fairlog.local.store import EmbeddedStore, bundled_server
from scheduler.service.advice import DATA_VARIABLE
from tests.integration.servers import Servers

REDIS_SERVER = shutil.which("redis-server")

os.environ["TZ"] = "UTC"  # what the tests read and write as local time, wherever they run
time.tzset()

settings.register_profile(
    "default", deadline=None, print_blob=True, max_examples=int(os.environ.get("EXAMPLES", "100"))
)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("ci" if "CI" in os.environ else "default")


@pytest.fixture(scope="session", autouse=True)
def _tests_folders_are_shown_to_tasks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tasks in cells tell tests what they do by files in their folders."""
    os.environ["FAIRLOG_SHARE"] = f"{tmp_path_factory.getbasetemp()}:rw"
    os.environ["FAIRLOG_UNSAFE_PLAIN"] = "1"  # where cells do not work, tests run as root nevertheless


@pytest.fixture(autouse=True)
def _no_folder_is_advised() -> Iterator[None]:
    """A verb that is called in this process leaves the data folder that was typed for those who speak after it."""
    yield
    os.environ.pop(DATA_VARIABLE, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal the tests out to pytest-xdist's processes so that the cores are busy from the beginning to the end.

    Each process begins with its part of the list, in order. As many processes as there are cores begin with the
    simulation, which computes, and the others with the slow tests, which mostly wait. The other tests stay with their
    module, for its fixtures, and begin with those of the page: only one process has the browser, to the end.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    computing = min(os.cpu_count() or 1, processes)
    waiting = processes - computing or processes
    simulated: list[pytest.Item] = []
    slow: list[pytest.Item] = []
    rest: list[pytest.Item] = []
    for item in items:
        if item.path.parent.name == "simulation":
            simulated.append(item)
        elif item.get_closest_marker("slow"):
            slow.append(item)
        else:
            rest.append(item)
    others = iter(sorted(rest, key=lambda item: item.path.name != "test_page.py"))
    dealt: list[pytest.Item] = []
    for number in range(processes):
        first = [*slow[number::waiting]] if number < waiting else []
        if number >= processes - computing:
            first += simulated[processes - 1 - number :: computing]
        part = len(items) * (number + 1) // processes - len(items) * number // processes
        dealt += [*first, *islice(others, max(0, part - len(first)))]
    items[:] = [*dealt, *others]


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over the modules and the tests: that takes a tenth of the time otherwise."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> Iterator[None]:
    """Programs that a test starts heed SIGINT, even if the shell that started the tests ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _serve(folder: Path, server: Path | None) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(folder, server=server) as running:
        yield running


@pytest.fixture(scope="session")
def _bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    yield from _serve(tmp_path_factory.mktemp("bundled"), None)


@pytest.fixture(scope="session")
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    if REDIS_SERVER is None:
        pytest.skip("no redis-server on the PATH")
    yield from _serve(tmp_path_factory.mktemp("installed"), Path(REDIS_SERVER))


@pytest.fixture(params=["embedded", "redis-server"])
def store(request: pytest.FixtureRequest) -> EmbeddedStore:
    """A durable store with nothing in it: the embedded server, then the one that the system has installed."""
    name = "_bundled" if request.param == "embedded" else "_installed"
    running: EmbeddedStore = request.getfixturevalue(name)
    running.start()
    with Redis.from_url(running.url) as connection:
        connection.flushall()
    return running


@pytest.fixture
def connection(store: EmbeddedStore) -> Iterator[Redis]:
    """A connection to `store` that speaks bytes."""
    with Redis.from_url(store.url) as connected:
        yield connected


@pytest.fixture(params=["embedded", "redis-server"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    """Servers of the test's own, which it may stop, demote and kill."""
    if request.param == "redis-server" and REDIS_SERVER is None:
        pytest.skip("no redis-server on the PATH")
    made = Servers(bundled_server() if request.param == "embedded" else Path(str(REDIS_SERVER)), tmp_path)
    with made.stack:
        yield made


@pytest.fixture
def nothing_left_open() -> Iterator[None]:
    """Fails a test that leaves a socket open: whoever opens a connection closes it."""
    before = _sockets()
    yield
    assert not _sockets() - before


def _sockets() -> set[str]:
    """The open sockets of this process, on a system that lists them in `/proc`."""
    found = set()
    for descriptor in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            found.add(str(descriptor.readlink()))
    return {name for name in found if name.startswith("socket:")}


@pytest.fixture
def fake() -> fakeredis.FakeRedis:
    """A double of the store with nothing in it, scripts included."""
    return fakeredis.FakeRedis(server=fakeredis.FakeServer())
