"""What a process tells the service manager that started it (systemd's `Type=notify`).

The protocol is a datagram to the socket that `NOTIFY_SOCKET` names; `sd_notify(3)` describes it.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

READY, ALIVE, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"
SOCKET_VARIABLE = "NOTIFY_SOCKET"


def notify(*said: str) -> None:
    """Say it, a `NAME=VALUE` each, where a service manager listens. Never blocks, and never fails for its sake."""
    address = os.environ.get(SOCKET_VARIABLE)
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.settimeout(0)
        line.sendto("\n".join(said).encode(), f"\0{address[1:]}" if address.startswith("@") else address)
