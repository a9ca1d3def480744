"""The clients of a cluster: through its API, or, for those who hold the store's credentials, through its store."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any, Self

from fairlog.api.addresses import UNIX
from fairlog.api.client import ApiClient
from fairlog.credentials import named
from fairlog.local.running import find_running, keyring_for
from recovery.archive.archive import open_log
from recovery.failover.follower import Reader
from scheduler.model.errors import FairlogError
from scheduler.service import client as service


class NoCluster(FairlogError):
    """No cluster is named, and no `up` runs."""


class StoreClient(service.Client):
    """A client that also reads: it folds the log as a standby does, and asks no master."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    @cached_property
    def reader(self) -> Reader:
        """The views; the first one folds the whole log."""
        return Reader(open_log(self.store, self.keys))

    def view(self, name: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON values
        """The view `name` (`scheduler.rules.views`) of the state at the end of the log.

        Raises: CommandRejected if the view or its subject is unknown; UnreadableRecord if the log cannot be read.
        """
        return self.reader.view(name, **arguments)


def Client(  # noqa: N802 (used like a class)
    url: str | None = None, cluster: str = "default", *, token: str | None = None, timeout_s: float = 30
) -> ApiClient | StoreClient:
    """A client of the API at `url`, as `ApiClient`; or, for operators, of the store at `url` (redis://…, unix://PATH).

    Without `url`, of the store that FAIRLOG_STORE names; else of the API that FAIRLOG_API names or `fairlog login` was
    given, with its token; else of the API of the running `up`. `cluster` is the name in a store, whose masters take
    only what is signed by the keys in FAIRLOG_KEYS if they have keys.

    Raises: NoCluster if there is none, BadCredentials.
    """
    url = url or os.environ.get("FAIRLOG_STORE")
    if url is not None and not url.startswith(("http://", "https://", UNIX)):
        return StoreClient(url, cluster, keyring=keyring_for(url), timeout_s=timeout_s)
    found = named() if url is None else None
    if found is not None:
        url, token = found.api, token or found.token
    elif url is None:
        running = find_running()
        if running is None:
            raise NoCluster("no cluster found: give a URL, run `fairlog login`, or start one with `fairlog up`")
        url = f"{UNIX}{running.socket}"
    return ApiClient(url, token=token, timeout_s=timeout_s)
