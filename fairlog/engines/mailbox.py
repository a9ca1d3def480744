"""The mailbox of the app that this process runs for, as a program in an executor, or as a driver, finds it."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fairlog.api.client import ApiClient
from scheduler.model.errors import FairlogError
from scheduler.service.addresses import MAILBOX_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_VARIABLE = "FAIRLOG_MAILBOX_TOKEN"  # noqa: S105 (its name)


class NoMailbox(FairlogError):
    """This process is no program of an app, or was told of no mailbox."""


class Mailbox:
    """The mailbox of this process's app: at most 64 short messages by name. To be closed, or used by `with`.

    Raises: NoMailbox in a process that runs for no app.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        told = os.environ if variables is None else variables
        if not all(name in told for name in (MAILBOX_VARIABLE, TOKEN_VARIABLE, "FAIRLOG_APP_ID")):
            raise NoMailbox(
                f"{MAILBOX_VARIABLE} is not set: only drivers and executors' programs whose worker uses the API have a "
                "mailbox here; an owner uses `Client.publish`"
            )
        self.app = told["FAIRLOG_APP_ID"]
        self._client = ApiClient(told[MAILBOX_VARIABLE], token=told[TOKEN_VARIABLE])

    def publish(self, name: str, text: str) -> None:
        """Leave a message of at most 4096 bytes, in place of an earlier one of that name."""
        self._client.publish(self.app, name, text)

    def wait(self, name: str, timeout_s: float) -> str | None:
        """The message of that name once it is there; None if it does not come in time."""
        return self._client.message(self.app, name, timeout_s=timeout_s)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
