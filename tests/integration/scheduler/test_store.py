"""The embedded store as a process: what it writes stays, and nothing of it stays that should not."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as StoreConnectionError

from fairlog.local.store import EmbeddedStore, StoreUnavailable, most_clients
from tests.integration.cli_rig import is_gone
from tests.waiting import wait_until


@pytest.fixture(params=["embedded", "redis-server"])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedStore]:
    """A store for one test alone, that it may kill."""
    server = None
    if request.param == "redis-server":
        installed = shutil.which("redis-server")
        if installed is None:
            pytest.skip("no redis-server on the PATH")
        server = Path(installed)
    with EmbeddedStore(tmp_path / "with a space" / ("d" * 150), server=server) as store:
        yield store


def test_the_store_has_the_settings_that_the_promises_rest_on(own: EmbeddedStore) -> None:
    with Redis.from_url(own.url, decode_responses=True) as connection:
        found = {
            name: connection.config_get(name)[name]
            for name in ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy", "save", "port")
        }
    assert found == {
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "maxmemory-policy": "noeviction",
        "save": "",
        "port": "0",
    }


def test_the_store_accepts_as_many_connections_as_the_system_allows(own: EmbeddedStore) -> None:
    with Redis.from_url(own.url, decode_responses=True) as connection:
        assert connection.config_get("maxclients")["maxclients"] == str(most_clients())
    assert most_clients() == min(65_536, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 64)


def test_the_bundled_server_uses_the_systems_jemalloc_if_there_is_one(
    own: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux lists the libraries of a process")
    there = "libjemalloc" in Path(f"/proc/{own.pid}/maps").read_text()
    system = [*Path("/usr/lib").glob(f"{platform.machine()}-*/libjemalloc.so.2"), Path("/usr/lib64/libjemalloc.so.2")]
    assert there == any(path.exists() for path in system)
    monkeypatch.setattr("fairlog.local.store._JEMALLOC", "libnone.so.2")
    with EmbeddedStore(tmp_path / "without") as store:
        assert "libjemalloc" not in Path(f"/proc/{store.pid}/maps").read_text()


def test_only_the_owner_may_use_the_socket(own: EmbeddedStore) -> None:
    mode = Path(own.url.removeprefix("unix://")).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o700


def test_what_was_acknowledged_survives_a_killed_server(own: EmbeddedStore) -> None:
    with Redis.from_url(own.url) as connection:
        for number in range(100):
            connection.rpush("numbers", number)
    _kill(own)
    assert own.pid is None
    own.start()
    with Redis.from_url(own.url) as connection:
        assert connection.lrange("numbers", 0, -1) == [b"%d" % number for number in range(100)]


def test_what_was_written_is_there_after_an_orderly_stop(own: EmbeddedStore) -> None:
    with Redis.from_url(own.url) as connection:
        connection.set("kept", "yes")
    pid = own.pid
    own.stop()
    assert own.pid is None
    assert pid is not None
    assert not psutil.pid_exists(pid)
    own.start()
    with Redis.from_url(own.url) as connection:
        assert connection.get("kept") == b"yes"


def test_starting_a_store_that_runs_changes_nothing(own: EmbeddedStore) -> None:
    pid = own.pid
    own.start()
    assert own.pid == pid


def test_a_second_store_on_the_same_data_is_refused_at_once_in_one_sentence(
    own: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    monkeypatch.setattr("fairlog.local.store.time", SimpleNamespace(monotonic=time.monotonic, sleep=naps.append))
    with pytest.raises(StoreUnavailable) as refused:
        EmbeddedStore(own.data_dir).start()
    assert naps == []
    assert str(refused.value) == (
        f"another store, started by process {os.getpid()}, uses the data in {own.data_dir}; stop that process first"
    )
    with Redis.from_url(own.url) as connection:
        assert connection.ping()


def test_a_lock_is_free_again_once_the_store_has_stopped(own: EmbeddedStore) -> None:
    own.stop()
    with EmbeddedStore(own.data_dir) as next_one, Redis.from_url(next_one.url) as connection:
        assert connection.ping()


_STARTER = """
import sys
from pathlib import Path
from fairlog.local.store import EmbeddedStore

store = EmbeddedStore(Path(sys.argv[1]))
store.start()
print(store.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_the_server_ends_when_its_starter_is_killed_and_the_next_one_gets_the_data(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STARTER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        server = psutil.Process(int(starter.stdout.readline()))
        with Redis.from_url(EmbeddedStore(tmp_path).url) as connection:
            connection.set("kept", "yes")
        starter.kill()
        starter.wait()
    with EmbeddedStore(tmp_path) as store, Redis.from_url(store.url) as connection:
        assert connection.get("kept") == b"yes"
        wait_until(lambda: is_gone(server), "the end of the server")


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        ("/nowhere/valkey-server", "/nowhere/valkey-server is not an executable program; install Redis"),
        ("/bin/false", "the store ended before it answered"),
        ("text", "text does not start: Exec format error"),
    ],
)
def test_an_unusable_server_program_is_named_and_releases_the_data(tmp_path: Path, server: str, sentence: str) -> None:
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o700)
    with pytest.raises(StoreUnavailable) as refused:
        EmbeddedStore(tmp_path, server=tmp_path / server).start()
    assert sentence in str(refused.value)
    with EmbeddedStore(tmp_path) as store:
        assert store.pid


def test_a_crashing_server_is_restarted_after_growing_pauses(
    own: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.service.child.SHORT_LIFE_S", float("inf"))
    child = own._child
    assert child is not None
    command = child.command
    child.command = ["/bin/false"]
    _kill(own)
    said: list[str] = []

    def is_said_thrice() -> bool:
        said.extend(filter(None, [own.tend()]))
        return len(said) == 3

    wait_until(is_said_thrice, "three sentences")
    assert said[0].startswith("the store was ended by SIGKILL; starting it again")
    assert said[1].startswith("the store ended with exit code 1 (")
    pauses = [float(sentence.rpartition(" in ")[2].removesuffix(" s")) for sentence in said]
    assert pauses == [0.2, 0.5, 1.0]
    child.command = command
    with Redis.from_url(own.url) as connection:
        wait_until(lambda: own.tend() is None and _answers(connection), "the store")


def _answers(connection: Redis) -> bool:
    try:
        return bool(connection.ping())
    except StoreConnectionError:
        return False


def test_a_data_folder_that_is_a_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match=r"the data folder .*/file cannot be used: File exists"):
        EmbeddedStore(tmp_path / "file").start()


def test_a_damaged_append_only_file_stops_the_start_with_the_servers_own_words(own: EmbeddedStore) -> None:
    with Redis.from_url(own.url) as connection:
        for number in range(100):
            connection.rpush("numbers", number)
    own.stop()
    log = next((own.data_dir / "appendonlydir").glob("*.incr.aof"))
    written = bytearray(log.read_bytes())
    written[len(written) // 2 : len(written) // 2 + 40] = b"\xff" * 40
    log.write_bytes(written)
    with pytest.raises(StoreUnavailable, match="Bad file format"):
        own.start()


def _kill(store: EmbeddedStore) -> None:
    assert store.pid is not None
    os.kill(store.pid, signal.SIGKILL)
    wait_until(lambda: store.pid is None, "the end of the store")
