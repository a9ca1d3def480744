"""When a machine at the other end of a connection counts as lost, by the word of this machine's kernel."""

from __future__ import annotations

import socket

LOST_MS = 3_000
"""After so long without a sign of life from the other machine, a connection over the network is lost.

The machine's kernel gives it, so a server that only works for long is not taken for lost; a machine that is down, or
cut off, is not waited for until the answer is overdue.
"""


def signs_of_life() -> dict[int, int]:
    """Options of TCP by which this machine's kernel asks the other one for them, as far as it has the options."""
    due = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": LOST_MS // 1000, "TCP_USER_TIMEOUT": LOST_MS}
    return {getattr(socket, name): value for name, value in due.items() if hasattr(socket, name)}
