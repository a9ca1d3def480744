"""What can go wrong with the cluster that the command line names."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from scheduler.model.errors import FairlogError

if TYPE_CHECKING:
    from collections.abc import Sequence


class NoStore(FairlogError):
    """No store is named and no `up` runs, or no `up` runs on the given data folder."""


class UnknownCluster(FairlogError):
    """The store, or the API, serves other clusters and none of that name."""

    def __init__(self, where: str, cluster: str, known: Sequence[str]) -> None:
        near = get_close_matches(cluster, known, 1) or known[:1]
        serves = f"{where} has no cluster {cluster!r}; it has {', '.join(map(repr, known[:5]))}"
        super().__init__(f"{serves}; did you mean `--cluster {near[0]}`?")


class Unconfirmed(FairlogError):
    """A command was sent and not answered; `what_now` is what the sender can do."""

    def __init__(self, why: str, what_now: str) -> None:
        super().__init__(f"{why}; the command is not confirmed and may still be carried out later; {what_now}")


class PositionMissing(FairlogError):
    """The log does not contain the requested position or time."""
