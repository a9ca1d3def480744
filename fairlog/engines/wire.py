"""What a pool of functions and its workers say to each other: a handshake by a drawn key, then frames.

Both ends prove that they know the key by HMAC-SHA256 over two nonces, each with its own role, before anything is
unpickled. The connection is not encrypted.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from typing import NamedTuple

NONCE = 32
MAGIC = b"fairlog functions 1\n"
HEADER = struct.Struct("!QQBd")
"""Of a frame: the length of its body, the number of the call, its kind, and the seconds that the call took."""
CALL, RESULT, ERROR, RETURNED, INITIALIZE, BROKEN, STOP = range(7)
"""Kinds of frames: a call and its outcomes; a call that was not begun; the first call, and its failure; the end."""


class WrongKey(ConnectionError):
    """The other end does not know the key."""


class Frame(NamedTuple):
    """A frame as it was read."""

    call: int
    kind: int
    took_s: float
    body: memoryview | bytes


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


def greet(connection: socket.socket, key: bytes, about: bytes) -> None:
    """The worker's side of the handshake; `about` says which worker it is. Raises: WrongKey, OSError."""
    mine = os.urandom(NONCE)
    theirs = _exactly(connection, len(MAGIC) + NONCE)[len(MAGIC) :]
    connection.sendall(mine + _proof(key, b"worker", theirs, mine, about) + struct.pack("!H", len(about)) + about)
    if not hmac.compare_digest(_exactly(connection, NONCE), _proof(key, b"pool", theirs, mine, about)):
        raise WrongKey("the pool does not know the key")


def welcome(connection: socket.socket, key: bytes) -> bytes:
    """The pool's side of the handshake; what the worker says about itself. Raises: WrongKey, OSError."""
    mine = os.urandom(NONCE)
    connection.sendall(MAGIC + mine)
    theirs, proof = _exactly(connection, NONCE), _exactly(connection, NONCE)
    about = _exactly(connection, struct.unpack("!H", _exactly(connection, 2))[0])
    if not hmac.compare_digest(proof, _proof(key, b"worker", mine, theirs, about)):
        raise WrongKey("a worker does not know the key")
    connection.sendall(_proof(key, b"pool", mine, theirs, about))
    return about


def _proof(key: bytes, role: bytes, pool: bytes, worker: bytes, about: bytes) -> bytes:
    return hmac.digest(key, b"%d:%b" % (len(role), role) + pool + worker + about, "sha256")


def _exactly(connection: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        part = connection.recv(length - len(found))
        if not part:
            raise ConnectionError("the other end is gone")
        found += part
    return bytes(found)
