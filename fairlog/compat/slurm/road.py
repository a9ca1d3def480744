"""The road to the API: which one this user's programs use, and one request over a connection of its own.

`http.client` takes longer to load than a whole command may take, so requests are HTTP/1.0, whose answers end with the
connection.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from fairlog.compat.slurm.words import SlurmError
from fairlog.credentials import named, two_places
from fairlog.local.running import find_running
from scheduler.model.errors import FairlogError
from scheduler.model.versions import HEADER, MESSAGES
from scheduler.service.addresses import UNIX, URL_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

    from fairlog.local.running import RunningUp

TIMEOUT_S = 30.0
"""How long a request is repeated until a server answers it."""
_PAUSE_S = 0.2
_MOST_BYTES = 1 << 30
_OF_THE_APP = ("FAIRLOG_MAILBOX", "FAIRLOG_MAILBOX_TOKEN")
"""What runs in a job finds an API by, and a pass for its own app, where it finds no other."""
_INSIDE = (
    "; what runs in a job asks for others and submits them with a token of its user: set FAIRLOG_API to the API's "
    "https:// or http:// URL and FAIRLOG_TOKEN to a token (`fairlog token new`), and submit with --export "
    "ALL,FAIRLOG_API,FAIRLOG_TOKEN"
)
"""What to type where the pass does not permit what a command of Slurm asks for."""
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~,")


class Problem(SlurmError):
    """The API has refused the request; `title` is the class of the error."""

    def __init__(self, sentence: str, title: str) -> None:
        super().__init__(sentence)
        self.title = title


class ApiRoad:
    """The API that this user's programs use. Raises: Refused if there is none."""

    def __init__(self) -> None:
        if why := two_places():
            raise SlurmError(why)
        self.is_inside = False
        """Whether a pass of the job is all that it has, with which it sees the job alone."""
        folder = os.environ.get("FAIRLOG_DATA")
        if os.environ.get("FAIRLOG_STORE") and not os.environ.get(URL_VARIABLE):
            raise SlurmError(
                f"Slurm's commands reach the cluster through its API; set {URL_VARIABLE} and unset FAIRLOG_STORE"
            )
        try:
            from pathlib import Path  # noqa: PLC0415 (loaded by what finds the API)

            data = Path(folder) if folder else None
            found = named(data)
            if found is None and (up := _running(data)) is not None:
                self.urls, self.token = [f"{UNIX}{up.socket}"], ""
            elif found is None and all(name in os.environ for name in _OF_THE_APP):
                url, self.token = [os.environ[name] for name in _OF_THE_APP]
                self.urls, self.is_inside = [url], True
            elif found is None:
                raise SlurmError(
                    "no cluster found: start one with `fairlog up`, log in with `fairlog login --api URL`, or set "
                    "FAIRLOG_API"
                )
            else:
                self.urls, self.token = [url for url in found.api.split(",") if url], found.token
        except FairlogError as error:
            raise SlurmError(str(error)) from None

    def get(self, path: str, **query: str | int) -> Any:  # noqa: ANN401 (JSON)
        """The value, or all the items, that the path has. Raises: Refused."""
        items: list[Any] = []
        cursor = ""
        while True:
            asked = {**query, "cursor": cursor} if cursor else query
            text = "&".join(f"{name}={quoted(str(value))}" for name, value in asked.items())
            said = self._ask("GET", f"{path}?{text}" if text else path)
            if "value" in said:
                return said["value"]
            items += said["items"]
            cursor = said["next"] or ""
            if not cursor:
                return items

    def post(self, path: str, body: object) -> Any:  # noqa: ANN401 (JSON)
        """The answer to a question or a command, which is carried out once. Raises: Refused."""
        return self._ask("POST", path, json.dumps(body).encode(), f"idempotency-key: {os.urandom(16).hex()}\r\n")

    def send(self, command: dict[str, Any]) -> int:
        """Carry out a command; the position of its last event. Raises: Refused."""
        return self.send_many([command])[0]

    def send_many(self, commands: list[dict[str, Any]]) -> list[int]:
        """As `send`, of some commands in order. Raises: Refused for the first that is refused, after all were tried."""
        answers = self.post("/v1/commands", {"commands": commands})["answers"]
        for each in answers:
            if "seq" not in each:
                raise Problem(each["detail"], each["title"])
        return [each["seq"] for each in answers]

    def _ask(self, method: str, path: str, body: bytes = b"", more: str = "") -> Any:  # noqa: ANN401 (JSON)
        deadline_s, tried, why = time.monotonic() + TIMEOUT_S, 0, ""
        while True:
            try:
                status, said = self._exchange(self.urls[tried % len(self.urls)], method, path, body, more)
            except (OSError, ValueError) as error:
                status, why = 503, f"no API server answers at {self.urls[tried % len(self.urls)]}: {error}"
            else:
                if status < 400:
                    return said
                why = str(said.get("detail", f"the API server answers with {status}"))
                if status not in (429, 503):
                    title = str(said.get("title", ""))
                    raise Problem(why + _INSIDE * (self.is_inside and title == "NotAllowed"), title)
            tried += 1
            if time.monotonic() + _PAUSE_S >= deadline_s:
                raise SlurmError(f"Unable to contact the cluster: {why}")
            time.sleep(_PAUSE_S if tried % len(self.urls) == 0 else 0)

    def _exchange(self, url: str, method: str, path: str, body: bytes, more: str) -> tuple[int, Any]:
        """The status and the JSON of an answer. Raises: OSError, ValueError if it is none."""
        connection, host, base = _connected(url)
        kind = "content-type: application/json\r\n" if body else ""
        token = f"authorization: Bearer {self.token}\r\n" if self.token else ""
        about = f"host: {host}\r\n{HEADER}: {MESSAGES}\r\n{token}{kind}{more}content-length: {len(body)}\r\n"
        head = f"{method} {base}{path} HTTP/1.0\r\n{about}\r\n"
        parts: list[bytes] = []
        with connection:
            connection.sendall(head.encode("latin-1") + body)
            while part := connection.recv(1 << 18):
                parts.append(part)
        top, blank, content = b"".join(parts).partition(b"\r\n\r\n")
        status = top.split(b" ", 2)[1:2]
        if not blank or not status or not status[0].isdigit():
            raise ValueError("the connection ended in the middle of an answer")
        return int(status[0]), json.loads(content or b"{}")


def _running(data: Path | None) -> RunningUp | None:
    """As `find_running`; in a cell the folders may be hidden."""
    try:
        return find_running(data)
    except OSError:
        if not all(name in os.environ for name in _OF_THE_APP):
            raise
        return None


def _connected(url: str) -> tuple[socket.socket, str, str]:
    """A connection, the host and the path of the server. Raises: OSError, ValueError."""
    if url.startswith(UNIX):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(TIMEOUT_S)
        connection.connect(url.removeprefix(UNIX))
        return connection, "fairlog", ""
    scheme, _, rest = url.partition("://")
    place, _, base = rest.partition("/")
    host, _, port = place.rpartition(":") if place.rpartition(":")[2].isdecimal() else (place, "", "")
    bare = host.strip("[]")
    connection = socket.create_connection((bare, int(port or (443 if scheme == "https" else 80))), TIMEOUT_S)
    if scheme == "https":
        import ssl  # noqa: PLC0415 (few need it)

        import certifi  # noqa: PLC0415 (likewise)

        trusted = ssl.create_default_context()
        trusted.load_verify_locations(cafile=certifi.where())
        connection = trusted.wrap_socket(connection, server_hostname=bare)
    return connection, place, f"/{base}".rstrip("/")


def quoted(text: str) -> str:
    """The text as a part of a URL."""
    return "".join(each if each in _SAFE else "".join(f"%{byte:02X}" for byte in each.encode()) for each in text)


class Me:
    """Who asks: the user's name here and on this machine, and the company, "" if the account has none."""

    def __init__(self, road: ApiRoad) -> None:
        self.login = login()
        said = road.get("/v1/whoami")
        company, _, user = said["account"].partition("/") if said["role"] in ("user", "admin") else ("", "", "")
        self.user = os.environ.get("FAIRLOG_USER") or user or self.login
        self.company = os.environ.get("FAIRLOG_COMPANY") or company

    def names(self, users: str) -> list[str]:
        """The users of a list, where this machine's name of the caller stands for the caller."""
        return [self.user if each == self.login else each for each in users.split(",") if each]


def login() -> str:
    """The name of this process's user on this machine."""
    import pwd  # noqa: PLC0415 (not on every system)

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
