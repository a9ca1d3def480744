"""A worker's own token: an invitation is exchanged once, also where a server hears of that a moment later."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from scheduler.model.errors import NotAuthenticated
from workers.servers import Servers
from workers.token import WorkerToken

INVITATION = "fl_invited_secret_00000000"


class Behind:
    """A server that hears of what was issued only once it has been asked for it so many times."""

    def __init__(self, unheard: int) -> None:
        self.unheard = unheard
        self.issued: list[str] = []
        self.worker: WorkerToken | None = None

    def call(self, method: str, path: str, _: object, asked: Any = None, **__: object) -> Any:
        assert self.worker is not None
        if (method, path) == ("POST", "/v1/tokens"):
            self.issued.append(asked["token"])
            return None
        if path != "/v1/whoami":
            return None
        shown = self.worker.present
        if shown == INVITATION:
            return self._answer("invited", once=True)
        assert self.issued[-1] in shown
        if self.unheard:
            self.unheard -= 1
            raise NotAuthenticated("the token is unknown or was revoked")
        return self._answer(self.issued[-1], once=False)

    @staticmethod
    def _answer(token: str, *, once: bool) -> dict[str, Any]:
        who = {"account": "worker/w8", "token": token, "expires": 2**42, "once": once, "terms": {}}
        return {"value": who}


def test_an_invitation_is_exchanged_once_though_the_server_is_behind(tmp_path: Path) -> None:
    behind = Behind(unheard=3)
    token = behind.worker = WorkerToken("w8", tmp_path, INVITATION, at_home=False)
    token.settle(cast("Servers", behind))
    assert len(behind.issued) == 1
    assert behind.issued[0] in token.present


def test_a_worker_that_was_given_no_token_is_told_so_before_it_asks(tmp_path: Path) -> None:
    with pytest.raises(
        NotAuthenticated, match=r"^neither FAIRLOG_TOKEN nor FAIRLOG_TOKEN_FILE gives a token, and none is kept in "
    ):
        WorkerToken("w8", tmp_path, "", at_home=False).settle(cast("Servers", None))
    WorkerToken("w8", tmp_path, "", at_home=True).settle(cast("Servers", None))
