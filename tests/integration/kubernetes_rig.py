"""Kubernetes' API as a pool asks it: objects by kind and name, in pages; subclasses may run the pods."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Thing = dict[str, Any]


class FakeKubernetes:
    """What the API holds and has heard."""

    def __init__(self, page: int = 1) -> None:
        self.page = page
        self.objects: dict[str, Thing] = {}
        """`pods/NAME` -> the object."""
        self.heard: list[str] = []
        """The authorization of each request."""

    def made(self, name: str) -> None:
        """An object was made."""

    def gone(self, name: str) -> None:
        """An object was deleted."""

    @contextmanager
    def served(self, tls: ssl.SSLContext | None = None) -> Iterator[int]:
        """Answer on a port of this machine, which is given."""
        handler = type("Handler", (_Handler,), {"kubernetes": self})
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            if tls is not None:
                server.socket = tls.wrap_socket(server.socket, server_side=True)
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield server.server_port
            finally:
                server.shutdown()
                thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    kubernetes: FakeKubernetes

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        query = dict(parse_qsl(where.query))
        key, _, value = query["labelSelector"].partition("=")
        kind = where.path.rpartition("/")[2]
        found = [one for name, one in sorted(self.kubernetes.objects.items()) if name.startswith(f"{kind}/")]
        found = [one for one in found if one["metadata"]["labels"].get(key) == value]
        start = int(query.get("continue", "0"))
        end = start + self.kubernetes.page
        self._answer(200, {"items": found[start:end], "metadata": {"continue": str(end)} if end < len(found) else {}})

    def do_POST(self) -> None:
        kind = self.path.rpartition("/")[2]
        thing = json.loads(self.rfile.read(int(self.headers["content-length"])))
        name = f"{kind}/{thing['metadata']['name']}"
        if name in self.kubernetes.objects:
            self._answer(409, {"message": f'{kind} "{thing["metadata"]["name"]}" already exists'})
            return
        self.kubernetes.objects[name] = thing
        self.kubernetes.made(name)
        self._answer(201, thing)

    def do_DELETE(self) -> None:
        name = "/".join(self.path.split("/")[-2:])
        if self.kubernetes.objects.pop(name, None) is None:
            self._answer(404, {"message": f"{name} not found"})
            return
        self.kubernetes.gone(name)
        self._answer(200, {})

    def _answer(self, code: int, said: object) -> None:
        assert self.path.startswith("/api/v1/namespaces/fairlog-workers/"), self.path
        self.kubernetes.heard.append(self.headers.get("authorization", ""))
        body = json.dumps(said).encode()
        self.send_response(code)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""
