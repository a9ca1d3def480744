"""What a pool of functions and its workers say to each other: TLS by the keys of the app, a greeting, then frames.

Both ends show the certificate that was drawn for the app, before anything is unpickled.
"""

from __future__ import annotations

import ssl
import struct
import tempfile
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import socket

NOT_NOW = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a connection without a timeout raises that has nothing to give, or takes nothing now."""
HEADER = struct.Struct("!QQBd")
"""Of a frame: the length of its body, the number of the call, its kind, and the seconds that the call took."""
CALL, RESULT, ERROR, RETURNED, INITIALIZE, BROKEN, STOP = range(7)
"""Kinds of frames: a call and its outcomes; a call that was not begun; the first call, and its failure; the end."""


class Frame(NamedTuple):
    """A frame as it was read."""

    call: int
    kind: int
    took_s: float
    body: bytes


def framed(call: int, kind: int, body: bytes = b"", took_s: float = 0.0) -> bytes:
    """The frame as it is sent."""
    return HEADER.pack(len(body), call, kind, took_s) + body


class Frames:
    """Takes frames out of the bytes that arrive."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete with `data`."""
        self._bytes += data
        found: list[Frame] = []
        start, size = 0, HEADER.size
        while len(self._bytes) - start >= size:
            length, call, kind, took_s = HEADER.unpack_from(self._bytes, start)
            if len(self._bytes) - start - size < length:
                break
            begin = start + size
            found.append(Frame(call, kind, took_s, bytes(self._bytes[begin : begin + length])))
            start = begin + length
        if start:
            del self._bytes[:start]
        return found


def context(authority: str, chain: str, *, server: bool) -> ssl.SSLContext:
    """How an end that has this certificate and key, as PEM, speaks to one whose certificate that authority signed."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False  # the authority signs for one app, whatever its hosts are called
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=authority)
    if server:
        made.num_tickets = 0  # nobody resumes
    with tempfile.NamedTemporaryFile("w") as file:  # it takes no text
        file.write(chain)
        file.flush()
        made.load_cert_chain(file.name)
    return made


def greet(connection: socket.socket, about: bytes) -> None:
    """Say which worker this is. Raises: OSError."""
    connection.sendall(struct.pack("!H", len(about)) + about)


def welcome(connection: socket.socket) -> bytes:
    """What a worker says about itself. Raises: OSError."""
    return _exactly(connection, struct.unpack("!H", _exactly(connection, 2))[0])


def _exactly(connection: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        part = connection.recv(length - len(found))
        if not part:
            raise ConnectionError("the other end is gone")
        found += part
    return bytes(found)
