"""Who sent a command, as the log states it (semantics I1)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Role = Literal["user", "admin", "operator", "auditor", "worker", "master"]


class By(Struct, frozen=True, array_like=True, gc=False):
    """The sender of a command, all "" if nobody is known, as in logs older than accounts.

    `account` is `COMPANY/NAME`, `op/NAME`, `auditor/NAME` or `worker/ID`; `local/UID`, who uses the socket or the store
    of an `up` directly; or `master/ID`. `token` is the id of the token used, `role` the role in which the account acts,
    `door` the id of the key that signed the message.
    """

    account: str = ""
    token: str = ""
    role: Role | Literal[""] = ""
    door: str = ""


NOBODY = By()
ASSUMED = By("assumed")
"""Who sends what is only tried out, such as the commands of a what-if: it needs no permission, and no log has it."""


def worker_sender(worker: str) -> By:
    """The agent and the executors of a worker, which talk to the store themselves."""
    return By(account=f"worker/{worker}", role="worker")


def local(uid: int | str) -> By:
    """Who needs no account: the owner of the socket or of the store (semantics I2)."""
    return By(account=f"local/{uid}", role="operator")
