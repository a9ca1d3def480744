"""A server with known holes is named, with a release that mends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from scheduler.store.connection import dangers
from scheduler.store.known_holes import known_holes

if TYPE_CHECKING:
    from redis import Redis


@pytest.mark.parametrize(
    ("name", "version", "holes", "use"),
    [
        ("valkey", "9.1.0", ("CVE-2026-56684", "GHSA-fq2f-crmw-q97r"), "9.1.2"),
        ("valkey", "9.1.1", ("GHSA-fq2f-crmw-q97r",), "9.1.2"),
        ("valkey", "8.1.3", ("CVE-2025-49844", "CVE-2026-23479", "CVE-2026-56684"), "8.1.9"),
        ("valkey", "9.0.3", ("CVE-2026-25243",), "9.0.5"),
        ("redis", "7.0.15", ("CVE-2024-46981", "CVE-2025-49844"), "a later minor version"),
        ("redis", "7.2.4", ("CVE-2024-46981",), "7.2.11"),
        ("redis", "8.2.8", ("CVE-2026-81934",), "8.2.9"),
    ],
)
def test_a_server_with_holes_is_named(name: str, version: str, holes: tuple[str, ...], use: str) -> None:
    said = known_holes(name, version)
    assert said.startswith(f"the store is {name} {version}, which has known security holes (")
    assert all(hole in said for hole in holes)
    assert f"; use {use}" in said


@pytest.mark.parametrize(
    ("name", "version"),
    [("valkey", "9.1.2"), ("valkey", "9.2.0"), ("valkey", "8.1.9"), ("redis", "8.10.1"), ("redis", "9.0.0")],
)
def test_a_mended_or_newer_server_is_not(name: str, version: str) -> None:
    assert known_holes(name, version) == ""


def test_no_sentence_lists_a_hole_twice() -> None:
    for name, version in (("valkey", "8.1.0"), ("redis", "7.4.0")):
        holes = known_holes(name, version).partition("(")[2].partition(")")[0].split(", ")
        assert len(holes) == len(set(holes)) > 5


class _Server:
    """Says of itself what a server of that version says."""

    def __init__(self, version: str, connections: int = 1) -> None:
        self._version, self._connections = version, connections

    def info(self, section: str) -> dict[str, str] | dict[str, int]:
        """Its INFO."""
        if section == "clients":
            return {"connected_clients": self._connections, "maxclients": 10_000}
        assert section == "server"
        return {"redis_version": "7.2.4", "valkey_version": self._version}


@pytest.mark.parametrize(
    ("url", "version", "said"),
    [
        ("unix:///run/store.sock", "9.1.2", []),
        ("rediss://fairlog-master@store:6379/0", "9.1.2", []),
        ("redis://fairlog-master@127.0.0.1:6379/0", "9.1.2", []),
        ("redis://u@localhost:1,u@[::1]:2/0", "9.1.2", []),
        ("redis://u@store:6379/0", "9.1.2", ["neither encrypted"]),
        ("redis+sentinel://u@127.0.0.1:1,store:2/fairlog", "9.1.2", ["neither encrypted"]),
        ("redis://localhost:6379/0", "9.1.2", ["no password"]),
        ("redis://store", "9.1.0", ["known security holes", "neither encrypted", "no password"]),
        ("rediss://store:6379/0", "9.1.2", ["no password"]),
    ],
)
def test_a_master_says_at_its_start_what_is_unsafe(url: str, version: str, said: list[str]) -> None:
    found = dangers(cast("Redis", _Server(version)), url)
    assert len(found) == len(said)
    assert all(part in sentence for part, sentence in zip(said, found, strict=True))


def test_a_master_says_at_its_start_that_connections_run_out() -> None:
    assert dangers(cast("Redis", _Server("9.1.2", 7_499)), "unix:///run/store.sock") == []
    (found,) = dangers(cast("Redis", _Server("9.1.2", 7_500)), "unix:///run/store.sock")
    assert found.startswith("the store has 7500 of at most 10000 connections; run `CONFIG SET maxclients 40000` on it")
