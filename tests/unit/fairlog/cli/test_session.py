"""A cluster that is named to an API must be the one that it serves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fairlog import credentials
from fairlog.cli import session as sessions
from fairlog.cli.failures import UnknownCluster
from fairlog.cli.session import Session, opened
from fairlog.cli.target import Target
from scheduler.model.errors import NoMaster, NotAllowed, UnsuitableStore


def tried(monkeypatch: pytest.MonkeyPatch, cluster: str | None, answer: str | Exception) -> tuple[list[str], Session]:
    """A session at an API that answers so, and what it was asked."""
    heard: list[str] = []

    def read(path: str) -> dict[str, Any]:
        heard.append(path)
        if isinstance(answer, Exception):
            raise answer
        return {"cluster": answer}

    api = SimpleNamespace(read=read, close=lambda: heard.append("closed"))
    monkeypatch.setattr(credentials, "named", lambda _: SimpleNamespace(api="http://a", token=""))
    monkeypatch.setattr(sessions, "api_at", lambda *_: api)
    try:
        return heard, opened(Target(cluster=cluster))
    except Exception as error:
        error.add_note(heard[-1])
        raise


@pytest.mark.parametrize("answer", ["east", NotAllowed("no")])
def test_a_cluster_that_is_served_passes_and_one_that_may_not_be_known(
    monkeypatch: pytest.MonkeyPatch, answer: str | Exception
) -> None:
    assert tried(monkeypatch, "east", answer)[0] == ["/v1/status"]
    assert tried(monkeypatch, None, answer)[0] == []


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ("east", UnknownCluster, "the API at http://a has no cluster 'esat'; it has 'east'; did you mean"),
        (NoMaster("nobody answers"), UnsuitableStore, "nobody answers"),
    ],
)
def test_another_cluster_is_refused_and_so_is_an_api_that_is_away(
    monkeypatch: pytest.MonkeyPatch, answer: str | Exception, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as found:
        tried(monkeypatch, "esat", answer)
    assert found.value.__notes__ == ["closed"]
