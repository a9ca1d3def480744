"""What a pool of functions and its workers say to each other: TLS by the keys of the app, a greeting, then frames.

Both ends show the certificate that was drawn for the app, before anything is unpickled.
"""

from __future__ import annotations

import ssl
import struct
import tempfile
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

NOT_NOW = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)
"""What a connection without a timeout raises that has nothing to give, or takes nothing now."""
HEADER = struct.Struct("!QQBd")
"""Of a frame: the length of its body, the number of the call, its kind, and the seconds that the call took."""
CALL, RESULT, ERROR, RETURNED, INITIALIZE, BROKEN, STOP, CANCEL, OUTPUT, ERRORS = range(10)
"""Kinds of frames: a call and its outcomes; a call that was not begun; the first call, and its failure; the end; that
of a call that runs; what calls write to stdout, and to stderr."""
Body = tuple[bytes, ...]
"""What a frame carries, in pieces that nobody changes any more: large ones are sent as they are, not copied."""
_LARGE = 1 << 15
"""A piece of so many bytes is large: joining it with others would cost more than sending it by itself."""
_BUFFER = 1 << 16
_SENT_AT_ONCE = 1 << 20


class Frame(NamedTuple):
    """A frame as it was read."""

    call: int
    kind: int
    took_s: float
    body: bytes | bytearray


def framed(call: int, kind: int, body: Body = (), took_s: float = 0.0) -> list[bytes]:
    """The frame as it is sent, in order: its large pieces, and what is small before, between and after them."""
    small = HEADER.pack(sum(map(len, body)), call, kind, took_s)
    parts = []
    for piece in body:
        if len(piece) < _LARGE:
            small += piece
            continue
        parts += [small, piece] if small else [piece]
        small = b""
    return [*parts, small] if small else parts


class Outgoing:
    """What is to be sent over a connection that may not take it now."""

    def __init__(self) -> None:
        self._parts: deque[bytes | bytearray] = deque()
        self._sent = 0
        """How much of the first part was sent."""

    def __bool__(self) -> bool:
        """Whether anything is left."""
        return bool(self._parts)

    def put(self, frame: Iterable[bytes]) -> None:
        """Add a frame."""
        for part in frame:
            if len(part) >= _LARGE:
                self._parts.append(part)
            elif self._parts and isinstance(last := self._parts[-1], bytearray):
                last += part
            else:
                self._parts.append(bytearray(part))

    def send(self, connection: socket.socket) -> None:
        """Send what is left. Raises: as `NOT_NOW` says, where the connection does not take it all; OSError."""
        while self._parts:
            part = self._parts[0]
            self._sent += connection.send(memoryview(part)[self._sent : self._sent + _SENT_AT_ONCE])
            if self._sent == len(part):
                self._parts.popleft()
                self._sent = 0


class Frames:
    """Takes frames out of what arrives: `room` says where the next bytes belong, `take` how many have come."""

    def __init__(self) -> None:
        self._buffer = bytearray(_BUFFER)
        self._held = 0
        self._large: tuple[Frame, bytearray] | None = None
        """The frame whose body arrives where it will stay, if it does not fit into the buffer with others."""
        self._arrived = 0
        """How much of that body has come."""

    def room(self) -> memoryview:
        """Where what arrives next belongs; there is room for some bytes at least."""
        if self._large is not None:
            return memoryview(self._large[1])[self._arrived :]
        return memoryview(self._buffer)[self._held :]

    def take(self, count: int) -> list[Frame]:
        """The frames that are complete with the next `count` bytes, which are in the room."""
        if self._large is not None:
            self._arrived += count
            frame, body = self._large
            if self._arrived < len(body):
                return []
            self._large = None
            return [frame]
        self._held += count
        found: list[Frame] = []
        start = 0
        held = memoryview(self._buffer)[: self._held]
        while len(held) - start >= HEADER.size:
            length, call, kind, took_s = HEADER.unpack_from(held, start)
            here = held[start + HEADER.size :][:length]
            if len(here) == length:
                found.append(Frame(call, kind, took_s, bytes(here)))
                start += HEADER.size + length
                continue
            if length >= _LARGE:
                body = bytearray(length)
                self._arrived = len(here)
                body[: self._arrived] = here
                self._large = Frame(call, kind, took_s, body), body
                start = len(held)
            break
        self._held -= start
        if start:
            self._buffer[: self._held] = bytes(held[start:])
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
