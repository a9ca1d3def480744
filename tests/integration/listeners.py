"""What listens: the sockets of processes to which others can connect, and attempts to get in without a key."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from pathlib import Path

import psutil

from fairlog.engines import wire
from fairlog.engines.keys import draw_keys
from tests.waiting import HOPELESS_S

Address = tuple[str, int]
_ACCEPTS = 0x10000
"""`__SO_ACCEPTCON`, the flag of a Unix socket that listens."""
_STRANGER = draw_keys("another app")


def listening(pids: Iterable[int]) -> set[Address | str]:
    """The addresses of TCP and the names of Unix sockets at which these processes listen."""
    found: set[Address | str] = set()
    for pid in pids:
        held = _sockets(pid)
        for line in psutil.Process(pid).net_connections(kind="tcp"):
            if line.status == psutil.CONN_LISTEN:
                host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(line.laddr.ip, line.laddr.ip)  # noqa: S104 - to connect to
                found.add((host, line.laddr.port))
        for fields in map(str.split, Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]):
            if int(fields[3], 16) & _ACCEPTS and fields[6] in held:
                found.add(" ".join(fields[7:]))
    return found


def _sockets(pid: int) -> set[str]:
    """The inodes of its sockets."""
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(descriptor.readlink()))
        except FileNotFoundError:
            continue  # closed meanwhile
    return {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")}


def answers(address: Address) -> dict[str, bytes]:
    """What it says to those without the keys of its app, by how they asked; b"" to nobody but those who need none."""
    attempts = {
        "nothing": b"",
        "http": b"GET /metrics HTTP/1.0\r\n\r\n",
        "frames": bytes(28) + b"\x00" * 64,
    }
    said = {name: _said(address, text) for name, text in attempts.items()}
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    said["tls"] = _said(address, attempts["http"], trusting)
    others = wire.context(_STRANGER.authority, f"{_STRANGER.certificate}{_STRANGER.key}", server=False)
    others.verify_mode = ssl.CERT_NONE
    said["tls of another app"] = _said(address, attempts["http"], others)
    return {name: text for name, text in said.items() if text}


def _said(address: Address, text: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """What comes back before the end; of a connection that is only held open, nothing. An alert of TLS is no answer."""
    try:
        with socket.create_connection(address, timeout=HOPELESS_S) as plain:
            if tls is None:
                plain.sendall(text)
                plain.shutdown(socket.SHUT_WR)
                found = _read(plain)
                return b"" if found[:1] == b"\x15" else found
            with tls.wrap_socket(plain) as line:
                line.sendall(text)
                return _read(line)
    except OSError:
        return b""


def _read(line: socket.socket) -> bytes:
    found = b""
    while part := line.recv(4096):
        found += part
    return found
