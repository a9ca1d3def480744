"""A device of the router through which packets of some hosts go: each is lost with a probability, or comes later."""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import time
from pathlib import Path

from scheduler.service.child import die_with_parent

DEVICE = "relay0"
TUN = Path("/dev/net/tun")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MOST_BYTES = 65_536


def missing() -> str:
    """Why this machine cannot delay and lose packets; "" if it can."""
    try:
        os.close(os.open(TUN, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{TUN} cannot be opened: {error.strerror}"
    return ""


def run_relay(parent: int, *, loss: float, delay_s: float, seed: int) -> None:
    """Be the device, on the present host, as long as the process `parent` lives; its link must be set up then."""
    die_with_parent(parent)
    device = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    draw = random.Random(seed)
    due: list[tuple[float, int, bytes]] = []
    number = 0
    while True:
        now = time.monotonic()
        while due and due[0][0] <= now:
            os.write(device, heapq.heappop(due)[2])
        ready, _, _ = select.select([device], [], [], due[0][0] - now if due else None)
        if ready:
            packet = os.read(device, _MOST_BYTES)
            if draw.random() >= loss:
                number += 1
                heapq.heappush(due, (time.monotonic() + delay_s, number, packet))
