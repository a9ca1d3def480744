"""Hosts on one machine: a network namespace each, joined by a router in one more, which drops what it is told to.

The namespaces have no names. They, their links and rules are gone with the process that made them and its children.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEWNET, _NEWUTS = 0x40000000, 0x04000000
_ROUTER = "router"
_DROPS = 50
"""The priority of the router's rules that drop packets: before that of its table of routes."""
_RELAYED = 77
"""The router's table of routes for what goes through a device."""
_libc = ctypes.CDLL(None, use_errno=True)


class _Space(NamedTuple):
    """The namespaces of a host, as files of this process, and the address of the host."""

    net: int
    uts: int
    address: str


def missing() -> str:
    """Why this machine cannot have a network of several hosts; "" if it can."""
    if os.geteuid() != 0:
        return "only root can make networks"
    if shutil.which("ip") is None or shutil.which("nsenter") is None:
        return "there is no `ip` or no `nsenter`; install iproute2 and util-linux"
    link, rule = "ip link add x0 type veth peer name x1", "ip rule add from 192.0.2.1 blackhole"
    script = f"{link} && {rule} && echo 1 > /proc/sys/net/ipv4/ip_forward"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    return f"this machine permits no network of one's own: {tried.stderr.strip()}" if tried.returncode else ""


class Network:
    """Hosts of these names, each of which reaches each other one. The process that makes it becomes the first one.

    It must have one thread. A process that it starts is on its host until it calls `enter`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._owner = os.getpid()
        self._spaces: dict[str, _Space] = {}
        self._make(_ROUTER, "")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for number, name in enumerate(names, start=1):
            net = f"10.77.{number}"
            self._make(name, f"{net}.2")
            _ip(
                f"link add eth0 type veth peer name to-{number} netns {self._file(_ROUTER)}",
                f"address add {net}.2/24 dev eth0",
                "link set eth0 up",
                f"route add default via {net}.1",
            )
            self._on_router(f"address add {net}.1/24 dev to-{number}", f"link set to-{number} up")
        self.enter(names[0])

    def address(self, name: str) -> str:
        """The address of the host."""
        return self._spaces[name].address

    def enter(self, name: str) -> None:
        """Be on that host from now on. Raises: OSError."""
        for kind, flag in (("net", _NEWNET), ("uts", _NEWUTS)):
            file = os.open(self._file(name, kind), os.O_RDONLY | os.O_CLOEXEC)
            _called(_libc.setns(file, flag))
            os.close(file)

    def on(self, name: str, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on that host."""
        files = [f"--{kind}={self._file(name, kind)}" for kind in ("net", "uts")]
        return [str(shutil.which("nsenter")), *files, "--", *command]

    @contextmanager
    def dropped(self, senders: Iterable[str], receivers: Iterable[str]) -> Iterator[None]:
        """What `senders` send to `receivers` is lost, without a word to the senders."""
        pairs = [(a, b) for a, b in product(senders, receivers) if a != b]
        rules = [f"priority {_DROPS} from {self.address(a)} to {self.address(b)} blackhole" for a, b in pairs]
        self._on_router(*(f"rule add {rule}" for rule in rules))
        try:
            yield
        finally:
            self._on_router(*(f"rule del {rule}" for rule in rules))

    @contextmanager
    def apart(self, ours: Sequence[str], others: Sequence[str]) -> Iterator[None]:
        """Neither `ours` reach `others`, nor they them."""
        with ExitStack() as stack:
            stack.enter_context(self.dropped(ours, others))
            stack.enter_context(self.dropped(others, ours))
            yield

    def has_device(self, device: str) -> bool:
        """Whether the router has that device."""
        shown = subprocess.run(self.on(_ROUTER, ["ip", "link", "show", device]), capture_output=True, check=False)
        return shown.returncode == 0

    def on_router(self, program: Callable[[], None]) -> Callable[[], None]:
        """The program, run on the router; for a process of its own."""

        def run() -> None:
            self.enter(_ROUTER)
            program()

        return run

    @contextmanager
    def through(self, device: str, name: str) -> Iterator[None]:
        """What comes from the host or goes to it goes through that device of the router, and on when it comes out."""
        address = self.address(name)
        rules = [
            f"priority {_DROPS - 20} iif {device} lookup main",
            f"priority {_DROPS + 20} from {address} lookup {_RELAYED}",
            f"priority {_DROPS + 20} to {address} lookup {_RELAYED}",
        ]
        route = f"route add default dev {device} table {_RELAYED}"
        self._on_router(f"link set {device} up", route, *(f"rule add {rule}" for rule in rules))
        try:
            yield
        finally:
            self._on_router(*(f"rule del {rule}" for rule in rules))

    def _make(self, name: str, address: str) -> None:
        _called(_libc.unshare(_NEWNET | _NEWUTS))
        socket.sethostname(name)
        net, uts = (os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("net", "uts"))
        self._spaces[name] = _Space(net, uts, address)
        _ip("link set lo up")

    def _file(self, name: str, kind: str = "net") -> str:
        space = self._spaces[name]
        return f"/proc/{self._owner}/fd/{space.net if kind == 'net' else space.uts}"

    def _on_router(self, *lines: str) -> None:
        _ip(*lines, on=self.on(_ROUTER, ()))


def _ip(*lines: str, on: Sequence[str] = ()) -> None:
    done = subprocess.run(
        [*on, "ip", "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"ip refuses {'; '.join(lines)}: {done.stderr.strip()}")


def _called(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
