"""The clients of a cluster: through its API, or, for those who hold the store's credentials, through its store."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any, Self

from fairlog.api.client import UNIX, ApiClient
from fairlog.local.running import find_running
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

    Without `url`, of the API that FAIRLOG_API names, or that of the `up` that runs. `cluster` is the name in a store.

    Raises: NoCluster if neither is there.
    """
    if url is not None and not url.startswith(("http://", "https://", UNIX)):
        return StoreClient(url, cluster, timeout_s=timeout_s)
    if url is None and not os.environ.get("FAIRLOG_API"):
        running = find_running()
        if running is None:
            raise NoCluster("no cluster found: give a URL, set FAIRLOG_API, or start one with `fairlog up`")
        url = f"{UNIX}{running.socket}"
    return ApiClient(url, token=token, timeout_s=timeout_s)
