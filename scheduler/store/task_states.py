"""What is known of an app's tasks, as the task queues tell it; apart from them, so that who shows it loads no more."""

from __future__ import annotations

from typing import NamedTuple


class Progress(NamedTuple):
    """Numbers of an app's tasks by state; all zero before its first executor. `later`: wait for their next attempt.

    `cpu_ms` and `output_bytes` are the sums over the attempts that ended, `peak_mb` is the largest of them.
    """

    tasks: int = 0
    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    later: int = 0
    cpu_ms: int = 0
    peak_mb: int = 0
    output_bytes: int = 0
    cancelled: int = 0

    @property
    def left(self) -> int:
        """How many tasks nobody runs, nor stays for: queued ones, and while none runs those that wait (W10)."""
        return self.queued + (0 if self.running else self.later)


class TaskState(NamedTuple):
    """The state of a task: queued, running, succeeded, failed, cancelled, or stopped: its app ended first.

    Of a task that was stopped while it ran, executor and times are those of the attempt that was broken off.
    `attempts` counts every start. Times are ms by the store's clock; a failed task runs again at `due_at`. `tried`: the
    worker on which its command could not be started. `cpu_ms` and `output_bytes` are the sums over the attempts that
    ended, `peak_mb` is the largest of them: the CPU time of the task's process and of the processes that it waited for,
    their memory in MiB, and the length of the output. `locality`: how near its last attempt ran to a host that it
    prefers: `host`, `rack` or `any`; None if it prefers none or has not started. `worker`: the one on which it runs or
    has run.
    """

    task: int
    state: str = "queued"
    exit_code: int | None = None
    executor: str | None = None
    attempts: int = 0
    started_at: int | None = None
    ended_at: int | None = None
    message: str = ""
    due_at: int | None = None
    tried: str | None = None
    cpu_ms: int = 0
    peak_mb: int = 0
    output_bytes: int = 0
    locality: str | None = None
    worker: str | None = None
