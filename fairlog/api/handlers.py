"""What the API does, as plain functions of who asks and what: no HTTP. Each answers or raises an error of fairlog."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from fairlog.api.app_calls import AppCalls
from fairlog.api.figures import Failed, Figures, here
from fairlog.api.health import ClusterHealth
from fairlog.api.log_reads import LogReads
from fairlog.api.private import Reads
from fairlog.api.questions import SignIn
from fairlog.api.replica import Replica
from fairlog.api.sender import CommandSender
from fairlog.api.sight import Sight, machine_ms
from fairlog.api.views import StateViews
from fairlog.api.work import Work
from scheduler.model.commands import IssueToken
from scheduler.model.errors import NotAuthenticated
from scheduler.model.sender import By, local
from scheduler.service.client import CommandClient
from scheduler.service.keyring import Keyring
from scheduler.service.tokens import authenticate
from scheduler.store.connection import clock_ms
from scheduler.store.keys import Keys
from scheduler.store.task_queue import Worklist

if TYPE_CHECKING:
    from redis import Redis


class Handlers:
    """The API of one cluster over its store and a replica of its log.

    Every method may be called from several threads. `figures` makes answers from the whole log, one at a time; without
    it they are made here.
    """

    def __init__(
        self,
        store: Redis,
        cluster: str,
        replica: Replica,
        *,
        keyring: Keyring | None = None,
        timeout_s: float = 30,
        figures: Figures | None = None,
    ) -> None:
        self.store, self.keys, self.replica = store, Keys(cluster), replica
        self.keyring = keyring
        self.work = Worklist(store, cluster)
        client = CommandClient(store, cluster, keyring=keyring, timeout_s=timeout_s)
        self.sight = Sight(replica, Reads(store, self.keys, keyring))
        self.sender = CommandSender(store, self.keys, replica, client)
        self.views = StateViews(replica, self.sight, self.work, self.now_ms)
        self.log = LogReads(replica, self.sight, self.sender, figures or here(replica.log, self.now_ms))
        self.apps = AppCalls(store, self.keys, replica, self.sight, self.work)
        self.health = ClusterHealth(store, self.keys, replica, self.sight, self.views)
        self.workers = Work(store, cluster, replica, self.of_token, keyring)

    def now_ms(self) -> int:
        """The time (ms) by the store's clock."""
        return clock_ms(cast("Any", self.store.time()))

    def principal(self, token: str, *, at_home: bool) -> By:
        """Who asks, by the token, or without one over the Unix socket (`at_home`) the user who runs this process.

        Raises: NotAuthenticated saying what to do; NotReady if the replica may have missed that a token was revoked.
        """
        if token:
            return self.of_token(token)
        if at_home:
            return local(os.getuid())
        raise NotAuthenticated(
            "this address takes nobody without a token, `Authorization: Bearer fl_…`; while there are no accounts, use "
            "the Unix socket of the API on its own machine"
        )

    def of_token(self, token: str) -> By:
        """Who shows the token. Raises: as `principal`."""
        self.replica.check_fresh()
        return self.replica.peek(lambda state: authenticate(state, token, machine_ms()))

    def sign_in(self, token: str, prove: Callable[[], str], asked: SignIn) -> dict[str, object]:
        """Issue, by this server's `token`, the token that is asked for of the account that `prove` returns.

        Raises: NotAuthenticated if there is no such account; Failed if `token` is not valid; as `send`, and as `prove`.
        """
        account = prove()
        try:
            who = self.principal(token, at_home=False)
        except NotAuthenticated as error:
            raise Failed(f"this server's own token cannot issue others: {error}") from None
        if account not in self.sight.present().accounts.known:
            raise NotAuthenticated(f"there is no account {account}; an admin of the company adds it")
        receipt = self.sender.send(who, IssueToken(token=asked.token, account=account, hash=asked.hash))
        return {"account": account, "seq": receipt.seq}
