"""The token of a worker: an invitation is exchanged for one, and it is renewed when half of its time is over.

An invitation is exchanged only once the cluster would take the worker as it is, so that a refusal does not use it up.

It is kept in the worker's folder. A new one is written there before it is asked for, so that a lost answer, or the end
of the agent, leaves nobody without a token.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import structlog

from scheduler.model.errors import CommandRejected, NoMaster, NotAllowed, NotAuthenticated
from scheduler.service.grant_tokens import PASS
from scheduler.service.outage import ApiAway
from scheduler.service.private import write_private
from scheduler.service.tokens import new_token, token_id
from workers.servers import MASTER_S, Servers

_FILE = "token.json"
PATIENCE_S = 3.0
"""How long a token that is refused is tried again: a server may not have heard of it yet."""
_AGAIN_S = 60.0
"""When a renewal is tried again."""
_log = structlog.get_logger()


class Most(msgspec.Struct, frozen=True, rename="camel"):
    """The most that a worker may offer."""

    cores: int
    memory_mb: int


class Terms(msgspec.Struct, frozen=True):
    """On which terms a worker was invited: from which host, and to offer how much at most; None = any."""

    host: str | None = None
    offer: Most | None = None


class _WorkerTokens(msgspec.Struct):
    """The worker's own tokens: the one in use, or asked for, and the one before; the id of its last invitation."""

    token: str
    before: str = ""
    invitation: str = ""


class WorkerToken:
    """The token of `worker`: its own that `folder` keeps, else the `given` one; `present` is "" if there is none.

    At home, where it may need none, it has none unless one is given. A pass that is given is used as it is. Call
    `settle` before its first use, and when it is refused; `renew` now and then. `comply` is told the terms of the
    invitation, and returns what the worker registers with.
    """

    def __init__(
        self,
        worker: str,
        folder: Path,
        given: str,
        *,
        at_home: bool,
        comply: Callable[[Terms], object] = lambda _: None,
    ) -> None:
        self._worker = worker
        self._path, self._at_home = folder / _FILE, at_home
        self._given, self._comply = given, comply
        self.present = given or ("" if at_home else self._read().token)
        self._id = self._replaced = ""
        """The id of the present token, and of one before it that is still to be revoked."""
        self._renew_at = 0.0

    def settle(self, servers: Servers) -> None:
        """Find out which token is valid, and exchange it if it is an invitation.

        Raises: NotAuthenticated if none is; NotAllowed if it is another worker's; CommandRejected, before the
        invitation is exchanged, if the cluster would not take the worker; ApiAway.
        """
        if self._given.startswith(PASS) or (self._at_home and not self.present):
            return
        if not self.present:
            raise NotAuthenticated(
                f"neither FAIRLOG_TOKEN nor FAIRLOG_TOKEN_FILE gives a token, and none is kept in {self._path.parent}"
            )
        self._settle_in_time(servers)

    def _settle_in_time(self, servers: Servers, *, issued: bool = False) -> None:
        """Settle, with what was `issued` just now alone: a server hears of a token a moment later than it is issued.

        Until then it takes an invitation for valid, which is not to be exchanged again.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._settle(servers, issued=issued)
                break
            except NotAuthenticated:
                if time.monotonic() >= deadline_s:
                    raise
            time.sleep(0.2)

    def _settle(self, servers: Servers, *, issued: bool = False) -> None:
        kept = self._read()
        refusal: NotAuthenticated | None = None
        for text in (kept.token,) if issued else dict.fromkeys((kept.token, kept.before, self._given)):
            if not text:
                continue
            self.present = text
            try:
                who = _whoami(servers)
            except NotAuthenticated as error:
                refusal = error
                continue
            if who["account"] != f"worker/{self._worker}":
                raise NotAllowed(
                    f"the token is that of {who['account']}, not of worker/{self._worker}; use the worker's own, or "
                    "start it with another --id"
                )
            self._id = str(who["token"])
            left_s = int(who["expires"]) / 1000 - time.time()
            self._renew_at = time.monotonic() + max(1.0, left_s / 2)
            asked = self._comply(msgspec.convert(who.get("terms") or {}, Terms))
            if who["once"]:
                servers.call("POST", f"/v1/workers/{quote(self._worker, safe='')}/invited", msgspec.Raw, asked)
                self._issue(servers, text, self._id)
                self._settle_in_time(servers, issued=True)
            return
        raise refusal or NotAuthenticated("there is no token")

    def renew(self, servers: Servers, *, is_over: bool) -> bool:
        """Take a new token if half of the time of the present one is over; later, if that is not possible now.

        Returns whether it did. A later call revokes the one before, if nothing needs that any more: executors must have
        been handed new tokens of their grants, which end with the worker's, and those that are revoked have none.
        """
        if not self.present or self._given.startswith(PASS):
            return False
        try:
            if self._replaced and is_over:
                servers.call("DELETE", f"/v1/tokens/{self._replaced}", msgspec.Raw)
                self._replaced = ""
            if time.monotonic() < self._renew_at:
                return False
            before, old, own = self.present, self._id, self._read().token == self.present
            self._issue(servers, before, None)
            self._settle(servers)
            self._replaced = old if own else ""
        except (ApiAway, NoMaster, CommandRejected) as error:
            _log.warning("the worker's token could not be renewed yet", worker=self._worker, error=str(error))
            self._renew_at = time.monotonic() + _AGAIN_S
            return False
        _log.info("the worker's token was renewed", worker=self._worker)
        return True

    def _issue(self, servers: Servers, before: str, replaces: str | None) -> None:
        made = new_token()
        self._write(_WorkerTokens(made.text, before, replaces or self._read().invitation))
        asked = {"token": made.id, "account": f"worker/{self._worker}", "hash": made.hash, "replaces": replaces}
        servers.call("POST", "/v1/tokens", msgspec.Raw, asked, within_s=MASTER_S)

    def _read(self) -> _WorkerTokens:
        with suppress(FileNotFoundError, msgspec.DecodeError):
            return msgspec.json.decode(self._path.read_bytes(), type=_WorkerTokens)
        return _WorkerTokens("")

    def _write(self, kept: _WorkerTokens) -> None:
        draft = self._path.with_suffix(".draft")
        write_private(draft, msgspec.json.encode(kept).decode())
        draft.replace(self._path)


def invited_as(run_dir: Path, invitation: str) -> str:
    """The worker whose folder below `run_dir` keeps what the invitation was exchanged for; "" if none does."""
    for path in sorted(run_dir.glob(f"*/{_FILE}")):
        with suppress(OSError, msgspec.DecodeError):
            kept = msgspec.json.decode(path.read_bytes(), type=_WorkerTokens)
            if kept.invitation and kept.invitation == token_id(invitation):
                return unquote(path.parent.name)
    return ""


def _whoami(servers: Servers) -> dict[str, Any]:
    said: dict[str, Any] = servers.call("GET", "/v1/whoami", dict[str, Any])["value"]
    return said
