"""Whether a host that knows API servers only is ready."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlog.cli import health
from fairlog.cli.session import SessionByApi
from fairlog.cli.target import Target
from fairlog.local.running import RunningUp
from fairlog.watch.conditions import StoreFacts
from scheduler.model.errors import NotAuthenticated

HOST = socket.gethostname()


def readiness(monkeypatch: pytest.MonkeyPatch, signs: list[str], status: dict[str, Any] | None) -> tuple[bool, str]:
    """What `status --ready` says where `signs` are given and the API says `status`; None: without a token."""

    def read(path: str, **query: str) -> dict[str, Any]:
        assert (path, query) == ("/v1/status", {"fresh": "true"})
        if status is None:
            raise NotAuthenticated("no token")
        return {"cluster": "c", **status}

    monkeypatch.setattr(health, "living", lambda url, cluster: signs if (url, cluster) == ("http://a", "") else [])
    session = SessionByApi(Target(), "http://a", "")
    monkeypatch.setattr(session, "api", SimpleNamespace(read=read, check=lambda: None))
    found = health.ready(session)
    return found.ok, found.why


@pytest.mark.parametrize(
    ("signs", "status", "expected"),
    [
        (["auditor"], None, (False, f"no worker of the cluster behind http://a gives signs of life on {HOST}")),
        (["worker w1"], None, (True, f"http://a answers, {HOST} has worker w1")),
        (["worker w1"], {"master": None, "workers": []}, (False, "no master of the cluster c is active")),
        (
            ["worker w1", "worker w2"],
            {"master": {}, "workers": [{"worker": "w1", "status": "draining"}, {"worker": "w2", "status": "alive"}]},
            (True, f"a master is active, {HOST} has worker w2"),
        ),
        (
            ["worker w1"],
            {"master": {}, "workers": [{"worker": "w1", "status": "draining"}]},
            (False, f"no master of the cluster c runs on {HOST}, and no worker of it is in service"),
        ),
    ],
)
def test_a_host_with_workers_alone_is_ready_if_one_of_them_can_be_granted_something(
    monkeypatch: pytest.MonkeyPatch, signs: list[str], status: dict[str, Any] | None, expected: tuple[bool, str]
) -> None:
    assert readiness(monkeypatch, signs, status) == expected


@pytest.mark.parametrize(
    ("words", "left", "expected"),
    [
        ("1:M # Short write\n1:M # Can't recover\n", 0, "away; its log says: Can't recover; No space left on its disk"),
        ("", 4096, "away; No space left on its disk"),
        ("1:M # No space left on device\n", 0, "away; its log says: No space left on device"),
        ("1:M # Can't recover\n", 1 << 30, "away; its log says: Can't recover"),
    ],
)
def test_a_store_whose_disk_is_full_is_told_whatever_its_log_could_still_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, left: int, expected: str
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "store.log").write_text(words)
    size = 1 << 40
    monkeypatch.setattr(health, "disk_of", lambda _: StoreFacts(disk_used=size - left, disk_size=size))
    monkeypatch.setattr(health, "others_than", lambda *_: {})
    up = cast("RunningUp", SimpleNamespace(data=str(tmp_path)))
    assert health.around_without_store("away", up, None).error == expected
