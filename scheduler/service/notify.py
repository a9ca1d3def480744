"""Status messages to the service manager: datagrams to the socket in `NOTIFY_SOCKET`; see `sd_notify(3)`.

Whoever is alive for the service manager also gives a sign of life to this machine (`signs`).
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from scheduler.service import signs

READY, ALIVE, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"
SOCKET_VARIABLE = "NOTIFY_SOCKET"


def notify(*said: str) -> None:
    """Send `NAME=VALUE` strings to the service manager, if there is one. Never blocks or raises."""
    if STOPPING in said:
        signs.end()
    elif ALIVE in said:
        signs.beat()
    address = os.environ.get(SOCKET_VARIABLE)
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.settimeout(0)
        line.sendto("\n".join(said).encode(), f"\0{address[1:]}" if address.startswith("@") else address)
