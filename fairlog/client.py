"""The client of those who hold the store's credentials: commands through the inbox, views from the log."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from recovery.archive.archive import open_log
from recovery.failover.follower import Reader
from scheduler.service.client import Client


class StoreClient(Client):
    """A `Client` that also reads: it folds the log as a standby does, and asks no master."""

    @cached_property
    def reader(self) -> Reader:
        """The views; the first one folds the whole log."""
        return Reader(open_log(self.store, self.keys))

    def view(self, name: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON values
        """The view `name` (`scheduler.rules.views`) of the state at the end of the log.

        Raises: CommandRejected if the view or its subject is unknown; UnreadableRecord if the log cannot be read.
        """
        return self.reader.view(name, **arguments)
