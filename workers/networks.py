"""The network of an app on one worker: a namespace with a loopback of its own, for the cells of its executors alone.

The first of them makes it, the others find it by a process of one that is there, and with the last one it is gone.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from workers.processes import is_same_process
from workers.sandbox import NoCell

_NEWNET, _NEWUSER = 0x4000_0000, 0x1000_0000
_OWNER_OF = 0xB701
"""ioctl NS_GET_USERNS: the namespace of users that owns one of another kind."""
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1


class NetworkPlace(NamedTuple):
    """Where a network is found: in the files of a process, which was started then."""

    pid: int
    since_s: float
    file: str = "ns/net"


class Network(NamedTuple):
    """The descriptors of a network's namespace and, unless root goes by it, of the one of users that owns it."""

    network: int
    users: int | None

    def enter(self) -> None:
        """Have this process, which has one thread, and those that it starts in it. Raises: OSError."""
        if self.users is not None:
            _call("setns", self.users, _NEWUSER)
        _call("setns", self.network, _NEWNET)


@contextmanager
def network_of(places: Iterable[NetworkPlace]) -> Iterator[Network]:
    """The network that is found at one of the places; a new one if none is there any more. Raises: NoCell."""
    with ExitStack() as opened:
        try:
            found = _joined(places, opened) or _made(opened)
        except OSError as error:
            raise NoCell(f"no network can be made for the app: {error.strerror}") from error
        yield found


def _joined(places: Iterable[NetworkPlace], opened: ExitStack) -> Network | None:
    for place in places:
        with suppress(FileNotFoundError, ProcessLookupError):
            network = _open(f"/proc/{place.pid}/{place.file}", opened)
            if is_same_process(place.pid, place.since_s):  # so it was that one's
                return Network(network, None if os.geteuid() == 0 else _owner(network, opened))
    return None


def _owner(network: int, opened: ExitStack) -> int:
    users = fcntl.ioctl(network, _OWNER_OF)
    opened.callback(os.close, users)
    return users


def _made(opened: ExitStack) -> Network:
    """A new one, which a process of its own makes and then leaves to us."""
    ours, its = (opened.enter_context(each) for each in socket.socketpair())
    pid = os.fork()
    if pid == 0:
        error = 0
        try:
            _unshare()
        except OSError as refused:
            error = refused.errno or 1
        finally:
            with suppress(OSError):
                its.sendall(struct.pack("i", error))
                ours.close()
                its.recv(1)
            os._exit(0)
    try:
        (error,) = struct.unpack("i", ours.recv(4, socket.MSG_WAITALL))
        if error:
            raise OSError(error, os.strerror(error))
        network = _open(f"/proc/{pid}/ns/net", opened)
        users = None if os.geteuid() == 0 else _open(f"/proc/{pid}/ns/user", opened)
    finally:
        its.close()
        ours.close()
        os.waitpid(pid, 0)
    return Network(network, users)


def _unshare() -> None:
    """Have this process in a new network, whose loopback is up. Raises: OSError."""
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", _NEWNET if uid == 0 else _NEWNET | _NEWUSER)
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        told = fcntl.ioctl(asked, _GET_FLAGS, struct.pack("16sh22x", b"lo", 0))
        (flags,) = struct.unpack_from("h", told, 16)
        fcntl.ioctl(asked, _SET_FLAGS, struct.pack("16sh22x", b"lo", flags | _UP))


def _open(path: str, opened: ExitStack) -> int:
    found = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    opened.callback(os.close, found)
    return found


def _call(name: str, *arguments: int) -> None:
    """A call of the C library, which Python 3.11 does not have. Raises: OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
