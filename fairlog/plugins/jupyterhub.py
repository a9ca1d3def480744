"""The spawner of JupyterHub: each user's server is the program of an app's one executor.

While it waits, the spawn page says why.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

from jupyterhub.spawner import Spawner
from jupyterhub.traitlets import Command
from sqlalchemy.orm import object_session
from traitlets import Integer, Unicode

from fairlog.api.async_client import AsyncApiClient
from fairlog.client import AsyncClient
from fairlog.errors import NoMaster
from fairlog.models import AppDetails
from fairlog.plugins.jupyterhub_server import ADDRESS
from scheduler.model.errors import AppEnded, CommandRejected, FairlogError, UnknownApp

_LOOK_S = 0.5
_MEMORY_MB = 1024
"""The memory of a server for which the hub states none."""
_LISTEN_S = 5.0
"""How long the hub waits for a server's address before it asks whether the app goes on."""
_SHOWN = 2000
"""How much of what a server wrote the spawn page shows, in characters."""
_GRACE_S = 10
"""How long a server has between SIGTERM and SIGKILL."""


class NotSpawned(FairlogError):
    """The server was not started; the spawn page shows the sentence."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.jupyterhub_message = sentence


class FairlogSpawner(Spawner):
    """Starts users' servers on the cluster: `c.JupyterHub.spawner_class = "fairlog"`.

    `cpu_limit` is rounded up to whole cores (default 1), `mem_limit` is the memory.
    """

    api = Unicode(help="The URL of the cluster's API; by default the cluster that `fairlog` would use.").tag(
        config=True
    )
    token = Unicode(help="The token of the hub's account; by default that of `fairlog login`.").tag(config=True)
    company = Unicode(help="The company whose apps the servers are; by default FAIRLOG_COMPANY.").tag(config=True)
    fairlog_user = Unicode("{username}", help="The user whose app a server is; `{username}` is the hub's.").tag(
        config=True
    )
    max_runtime_s = Integer(0, help="After how many seconds a server is ended; 0: the company's default.").tag(
        config=True
    )
    python = Unicode(sys.executable, help="The Python on workers that has fairlog and JupyterHub.").tag(config=True)
    cmd = Command([sys.executable, "-m", "jupyterhub.singleuser"], help="The command of a server, as on workers.").tag(
        config=True
    )
    ip = Unicode("0.0.0.0", help="Where a server listens on its worker.").tag(config=True)  # noqa: S104 (to the hub)
    start_timeout = Integer(600, help="For how many seconds a server may wait and start.").tag(config=True)
    http_timeout = Integer(120, help="How many seconds after its start a server answers.").tag(config=True)

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 (JupyterHub's)
        super().__init__(**options)
        self.app = ""
        """The app of the server; "" without one."""
        self._started = False
        self._abandoned = False
        """Whether the hub that began the spawn has ended before the server had started."""
        self._speaks: AsyncClient | None = None

    def _client(self) -> AsyncClient:
        """The cluster. Raises: NotSpawned if there is none."""
        if self._speaks is None:
            try:
                self._speaks = AsyncClient(self.api or None, token=self.token or None)
            except FairlogError as error:
                raise NotSpawned(str(error)) from None
        return self._speaks

    def _mail(self) -> AsyncApiClient:
        """The way to mailboxes. Raises: NotSpawned if the cluster is named by its store."""
        through = self._client().through
        if isinstance(through, AsyncApiClient):
            return through
        raise NotSpawned("the spawner needs the cluster's API; set FairlogSpawner.api, or unset FAIRLOG_STORE")

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up the app that a hub before this one has submitted."""
        super().load_state(state)
        self.app = state.get("app", "")
        self._started = state.get("started", False)
        self._abandoned = bool(self.app) and not self._started

    def get_state(self) -> dict[str, Any]:
        """What the hub keeps of the server: its app, and whether it has started."""
        return {**super().get_state(), **({"app": self.app, "started": self._started} if self.app else {})}

    def clear_state(self) -> None:
        """Forget the app."""
        super().clear_state()
        self.app, self._started, self._abandoned = "", False, False

    async def start(self) -> tuple[str, int]:
        """Submit the app; returns the address of the server. Raises: NotSpawned, with the reason that the log has."""
        if self.internal_ssl:
            raise NotSpawned(
                "FairlogSpawner does not carry certificates to workers: set JupyterHub.internal_ssl to False"
            )
        client, _ = self._client(), self._mail()
        self.app = f"jupyter-{uuid4().hex[:12]}"
        # A hub that is killed meanwhile finds the app, and ends it.
        self.orm_spawner.state = self.get_state()
        if (session := object_session(self.orm_spawner)) is not None:
            session.commit()
        try:
            await client.submit(self._command(), env=self._environment(), **self._asked())
        except FairlogError as error:
            raise NotSpawned(str(error)) from None
        while True:
            if (address := await self._address()) is None:
                continue
            host, _, port = address.rpartition(":")
            if await _listens(host, int(port)):
                self._started = True
                return host, int(port)
            await asyncio.sleep(_LOOK_S)

    def _command(self) -> list[str]:
        return [self.python, "-m", "fairlog.plugins.jupyterhub_server", *self.cmd, *self.get_args()]

    def _environment(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.get_env().items() if value is not None}

    def _asked(self) -> dict[str, Any]:
        """The fields of the app."""
        return {
            "app": self.app,
            "name": f"jupyter-{self.name}" if self.name else "jupyter",
            "company": self.company or None,
            "user": self.format_string(self.fairlog_user),
            "cwd": self.format_string(self.notebook_dir) if self.notebook_dir else None,
            "executor_program": True,
            "executor_limit": 1,
            "executor_cores": max(1, math.ceil(self.cpu_limit or 1)),
            "executor_memory_mb": math.ceil(self.mem_limit / 2**20) if self.mem_limit else _MEMORY_MB,
            "max_runtime_s": self.max_runtime_s or None,
            "grace_s": _GRACE_S,
        }

    async def _address(self) -> str | None:
        """The address that the server has left; None if it is not there yet. Raises: NotSpawned if the app is over."""
        told = None
        try:
            # An app that has ended has no mailbox.
            with suppress(CommandRejected):
                told = await self._mail().call("message", self.app, ADDRESS, wait_s=_LISTEN_S)
            await self._check()
        except NoMaster as error:
            self.log.warning("fairlog does not say how %s is; it goes on meanwhile: %s", self.app, error)
            await asyncio.sleep(_LOOK_S)
        return told

    async def _check(self) -> None:
        """Whether the app goes on. Raises: NotSpawned, with the reason, if it does not; NoMaster."""
        found = await self._client().app(self.app)
        if found.ended:
            said = (await self._written())[-_SHOWN:]
            raise NotSpawned(f"app {self.app} {found.state}: {found.detail}\n{said}".rstrip(": \n"))

    async def _written(self) -> str:
        with suppress(FairlogError):
            output: bytes = await self._mail().call("output", self.app, 0)
            return output.decode(errors="replace")
        return ""

    async def poll(self) -> int | None:
        """None while the app goes on, or nobody says how it is; then 0 if it has finished, else 1.

        The app of a spawn that an earlier hub has begun and not ended is killed.
        """
        if not self.app:
            return 0
        try:
            if self._abandoned:
                await self.stop(now=True)
                return 1
            found = await self._client().app(self.app)
        except UnknownApp:
            return 0
        except FairlogError as error:
            self.log.warning("fairlog does not say how %s is; it goes on meanwhile: %s", self.app, error)
            return None
        if not found.ended:
            return None
        return 0 if found.state == "finished" else 1

    async def stop(self, now: bool = False) -> None:  # noqa: FBT001, FBT002 (JupyterHub's)
        """Kill the app; returns once nothing of it runs, with `now` at once."""
        if not self.app:
            return
        client = self._client()
        try:
            with suppress(AppEnded):
                await client.kill(self.app, reason="the hub has stopped the server")
            while not now and _runs(await client.app(self.app)):
                await asyncio.sleep(_LOOK_S)
        except UnknownApp:
            return

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """What the spawn page shows: why the server waits, whenever that changes, then where it starts."""
        told = ""
        while True:
            text, part = "The server is submitted", 10
            with suppress(FairlogError):
                if self.app:
                    text, part = await self._standing()
            if text != told:
                told = text
                yield {"progress": part, "message": text}
            await asyncio.sleep(2 * _LOOK_S)

    async def _standing(self) -> tuple[str, int]:
        """A sentence about the app, and how far the spawn is, of 100."""
        found = await self._client().app(self.app)
        for executor in found.executors:
            return f"The server starts on {executor.worker}, as app {self.app}", 50
        why = (await self._client().explain(self.app)).waits_for
        return (f"App {self.app} waits: {why.text} (rule {why.rule})", 20) if why else (f"App {self.app} starts", 30)


def _runs(app: AppDetails) -> bool:
    return not app.ended or bool(app.executors)


async def _listens(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _LISTEN_S)
    except OSError:  # TimeoutError is one
        return False
    writer.close()
    return True
