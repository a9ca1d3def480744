"""Shared by the tests of executors and agents: a worker without an agent, and the processes of an app."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import msgspec
import psutil
import pytest
from redis import Redis

from scheduler.model.grants import Grant, Outputs
from scheduler.store.keys import Keys
from scheduler.store.task_queue import Worklist
from tests.waiting import wait_until
from workers.executor import ExecutorSpec
from workers.forkserver import Forkserver
from workers.processes import environment_value, send_signal
from workers.rundir import ExitNote, Holder, RunDir
from workers.sandbox import CellSettings
from workers.tasks import INDEX_VARIABLE

WORKER = "w1"


def processes_of(app: str) -> list[int]:
    """The processes of the tasks of `app`, anywhere in the process tree."""
    found = []
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(psutil.Error):
            ended = process.info["status"] == psutil.STATUS_ZOMBIE
            if not ended and environment_value(process.pid, "FAIRLOG_APP_ID") == app:
                found.append(process.pid)
    return found


def tasks_of(app: str) -> set[int]:
    """The tasks of `app` that have a process."""
    found = (environment_value(pid, INDEX_VARIABLE) for pid in processes_of(app))
    return {int(index) for index in found if index is not None}


ONE_STORE = pytest.mark.parametrize("store", ["embedded"], indirect=True)
"""For tests that no difference between the stores concerns."""


class Rig:
    """One worker without an agent: the test grants, launches and revokes its executors.

    Its forkserver is `shared` with other rigs, which is faster, or its own.
    """

    def __init__(
        self, url: str, folder: Path, *, shared: Forkserver | None = None, outlive_agent: bool = False
    ) -> None:
        self.url = url
        self.cluster = f"rig-{uuid4().hex[:8]}"
        self.app = f"app-{uuid4().hex[:8]}"
        self.keys = Keys(self.cluster)
        self.connection = Redis.from_url(url)
        self.work = Worklist(self.connection, self.cluster)
        self.files = RunDir(folder, WORKER)
        self.files.make()
        self.outlive_agent = outlive_agent
        self.launcher = os.environ.get("FAIRLOG_TEST_LAUNCHER", "plain")
        self.cells = CellSettings(share=(f"{folder.parent}:rw",))
        """What tasks find in a cell: the test's folder."""
        self.forkserver = shared or Forkserver(self.files, outlive_agent=outlive_agent)
        self._forkserver_is_shared = shared is not None

    def grant(
        self,
        command: Sequence[str],
        *,
        number: int = 0,
        cores: int = 2,
        tasks: int = 1,
        memory_mb: int = 512,
        cwd: str | None = None,
        retries: int = 0,
        backoff_s: int = 0,
        time_limit_s: int | None = None,
        idle_end_s: int | None = None,
        end_idle: bool = False,
        keep_going: bool = False,
        cores_per_task: int = 1,
        outputs: Outputs | None = None,
        network: Literal["none", "app", "host"] = "host",
        image: str = "",
    ) -> Grant:
        """Write the grant of an executor of the rig's app, as a commit does."""
        grant = Grant(
            executor=f"{self.app}.{number}",
            app=self.app,
            company="acme",
            user="ann",
            name="",
            cores=cores,
            memory_mb=memory_mb,
            tasks=tasks,
            command=tuple(command),
            env=(),
            cwd=cwd,
            retries=retries,
            retry_backoff_s=backoff_s,
            time_limit_s=time_limit_s,
            idle_end_s=idle_end_s,
            end_idle=end_idle,
            keep_going=keep_going,
            cores_per_task=cores_per_task,
            outputs=outputs,
            network=network,
            image=image,
        )
        self.connection.hset(self.keys.grants(WORKER), grant.executor, grant.model_dump_json())
        return grant

    def launch(self, grant: Grant, *, launcher: str | None = None, pin: bool = False, grace_s: float = 0.5) -> int:
        """Start an executor for `grant`. Returns its process id, 0 if it is running already."""
        return self.forkserver.launch(self.spec(grant, launcher=launcher, pin=pin, grace_s=grace_s)) or 0

    def spec(
        self, grant: Grant, *, launcher: str | None = None, pin: bool = False, grace_s: float = 0.5
    ) -> ExecutorSpec:
        """The spec of an executor for `grant`."""
        return ExecutorSpec(
            grant=grant,
            worker=WORKER,
            store=self.url,
            cluster=self.cluster,
            run_dir=self.files.root,
            launcher=launcher or self.launcher,
            cells=self.cells,
            pin=pin,
            outlive_agent=self.outlive_agent,
            grace_s=grace_s,
        )

    def run(self, grant: Grant, *, launcher: str | None = None, pin: bool = False) -> ExitNote:
        """Run an executor for `grant`. Returns its exit note."""
        assert self.launch(grant, launcher=launcher, pin=pin)
        return self.end_of(grant)

    def end_of(self, grant: Grant) -> ExitNote:
        """Wait for the end of the executor of `grant`. Returns its exit note."""
        executor = grant.executor
        wait_until(
            lambda: self.files.read_exit(executor) and not self.files.is_running(executor),
            f"the end of {executor}",
        )
        note = self.files.read_exit(executor)
        assert note is not None
        return note

    def inbox(self) -> list[str]:
        """The commands sent to the master, as JSON; they arrive in batches."""
        entries: Any = self.connection.xrange(self.keys.inbox)
        batches = (msgspec.json.decode(fields[b"command"], type=list[msgspec.Raw]) for _, fields in entries)
        return [bytes(command).decode() for batch in batches for command in batch]

    def close(self) -> None:
        """Stop everything."""
        if self._forkserver_is_shared:
            wait_until(lambda: not any(self._killed_now()), "the end of the executors")
        else:
            self.forkserver.close()
        self.connection.close()

    def _killed_now(self) -> Iterator[Holder]:
        """Kill the executors that are still running, and return them."""
        for holder in self.files.known():
            if self.files.is_running(holder.executor):
                send_signal([holder.pid], signal.SIGKILL)
                yield holder
