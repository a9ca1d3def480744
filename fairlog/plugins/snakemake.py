"""The executor plugin of Snakemake: each job is an app of one task, and while it waits the workflow's log says why."""

import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Optional
from uuid import uuid4

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from fairlog.client import Client
from fairlog.errors import NoMaster
from scheduler.model.errors import AppEnded, CommandRejected, DuplicateApp, FairlogError

AGAIN_S = 120.0
"""For how long a submission without an answer is sent again, under the same id."""
_PAUSE_S = 0.5
_ASKED = 200
"""The most apps that one request asks for: their ids are in its URL."""
_SHOWN_LINES = 20
"""How much of a failed job's output the workflow's log shows."""

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
)
"""What Snakemake is told of this executor: jobs share its files, and have its `envvars` as secrets of their apps."""


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """The options `--fairlog-…` of Snakemake."""

    api: Optional[str] = field(  # noqa: UP045 (Snakemake reads the type, and knows no `|`)
        default=None,
        metadata={"help": "The URL of the cluster's API; by default the cluster that `fairlog` would use."},
    )
    token: Optional[str] = field(  # noqa: UP045 (Snakemake reads the type, and knows no `|`)
        default=None,
        metadata={"help": "The token of your account; by default that of `fairlog login`.", "env_var": True},
    )
    company: Optional[str] = field(  # noqa: UP045 (Snakemake reads the type, and knows no `|`)
        default=None,
        metadata={"help": "The company whose apps the jobs are; by default FAIRLOG_COMPANY, or your account's."},
    )
    user: Optional[str] = field(  # noqa: UP045 (Snakemake reads the type, and knows no `|`)
        default=None,
        metadata={"help": "The user whose apps the jobs are; by default FAIRLOG_USER, or your account's."},
    )
    overhead_mb: int = field(
        default=256,
        metadata={"help": "The MiB that each job has beside its `mem_mb`, for the Snakemake that runs it."},
    )


class Executor(RemoteExecutor):
    """Submits jobs, asks how they are, and kills them."""

    def __post_init__(self) -> None:
        """Find the cluster. Raises: WorkflowError if there is none."""
        settings = self.workflow.executor_settings or ExecutorSettings()
        try:
            self._client = Client(settings.api, token=settings.token)
        except FairlogError as error:
            raise WorkflowError(str(error)) from None
        self._whose = {"company": settings.company, "user": settings.user}
        self._overhead_mb = settings.overhead_mb
        self._told: dict[str, str] = {}
        """App -> the cause of waiting that the log has named last."""
        self._deaf = False

    def run_job(self, job: JobExecutorInterface) -> None:
        """Submit an app for the job. Raises: WorkflowError if the cluster refuses it."""
        app = f"snakemake-{uuid4().hex[:12]}"
        try:
            fields = asked(job, self._overhead_mb)
            self._submit(app, job, fields)
        except FairlogError as error:
            raise WorkflowError(f"{job}: {error}") from None
        self._say(f"Job {job.jobid} is app {app} of fairlog")
        self.report_job_submission(SubmittedJobInfo(job, external_jobid=app))

    def _say(self, sentence: str) -> None:
        """Write a line to the workflow's log, whose formatter takes no arguments."""
        self.logger.info(sentence)

    def _submit(self, app: str, job: JobExecutorInterface, fields: dict[str, Any]) -> None:
        """Submit the app once, also if answers are lost. Raises: CommandRejected, NoMaster."""
        script = f"#!/bin/sh\n{self.format_job_exec(job)}\n"
        deadline_s = time.monotonic() + AGAIN_S
        tried = False
        while True:
            try:
                self._client.submit(
                    [f"{job.name}.sh"], app=app, script=script, env=self.envvars(), **self._whose, **fields
                )
            except DuplicateApp:
                if not tried:
                    raise
            except NoMaster:
                if time.monotonic() > deadline_s:
                    raise
                tried = True
                time.sleep(_PAUSE_S)
                continue
            return

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report jobs that have ended, say why others wait, and yield those that go on.

        While no API server answers, all of them go on.
        """
        if not active_jobs:  # Snakemake asks before it has made the rest of its executor
            return
        async with self.status_rate_limiter:
            try:
                found = self._found([str(info.external_jobid) for info in active_jobs])
                self._tell(active_jobs, found)
            except FairlogError as error:
                if not self._deaf:
                    self._say(f"fairlog does not say how the jobs are; they go on meanwhile: {error}")
                self._deaf = True
                found = None
            else:
                self._deaf = False
        for info in active_jobs:
            if found is None or self._goes_on(info, found.get(str(info.external_jobid))):
                yield info

    def _found(self, apps: list[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for begin in range(0, len(apps), _ASKED):
            ids = ",".join(apps[begin : begin + _ASKED])
            found |= {each["app"]: each for each in self._client.view("apps", everything=True, ids=ids)}
        return found

    def _goes_on(self, info: SubmittedJobInfo, app: dict[str, Any] | None) -> bool:
        """Whether the job goes on; one that has ended is reported."""
        if app is not None and app["endedAt"] is None:
            return True
        self._told.pop(str(info.external_jobid), None)
        if app is not None and app["state"] == "finished":
            self.report_job_success(info)
        else:
            why = "the log no longer knows it" if app is None else f"{app['state']}: {app['detail']}".rstrip(": ")
            self.report_job_error(info, msg=f"App {info.external_jobid} {why}.\n{self._written(info)}")
        return False

    def _written(self, info: SubmittedJobInfo) -> str:
        """The end of what the job has written, as lines."""
        with suppress(FairlogError):
            lines = self._client.logs(str(info.external_jobid)).splitlines()[-_SHOWN_LINES:]
            return "".join(f"{line}\n" for line in lines)
        return ""

    def _tell(self, active_jobs: list[SubmittedJobInfo], found: dict[str, dict[str, Any]]) -> None:
        """Say why jobs wait: a sentence for those that wait for the same cause, when it has become theirs."""
        waiting: dict[str, list[SubmittedJobInfo]] = {}
        for info in active_jobs:
            app = found.get(str(info.external_jobid))
            cause = str((app or {}).get("reason") or "")
            if cause and cause != self._told.get(str(info.external_jobid)):
                waiting.setdefault(cause, []).append(info)
            self._told[str(info.external_jobid)] = cause
        for infos in waiting.values():
            why = self._client.explain(str(infos[0].external_jobid)).waits_for
            if why is not None:
                jobs = ", ".join(str(info.job.jobid) for info in infos)
                self._say(f"Job {jobs} waits: {why.text} (rule {why.rule})")

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Kill the apps of these jobs, each as far as the cluster answers."""
        for info in active_jobs:
            try:
                with suppress(AppEnded):
                    self._client.kill(str(info.external_jobid), reason="the workflow was cancelled")
            except (CommandRejected, NoMaster) as error:
                self._say(f"App {info.external_jobid} goes on; `fairlog kill` ends it: {error}")


def asked(job: JobExecutorInterface, overhead_mb: int) -> dict[str, Any]:
    """The fields of the app, by the job's threads and resources: `mem_mib`, `runtime` in minutes, `gpu`."""
    resources, cores = job.resources, max(1, job.threads)
    fields: dict[str, Any] = {"name": job.name, "cores": cores, "cores_per_task": cores}
    if resources.get("mem_mib"):  # which Snakemake works out from whatever the job states of its memory
        fields["memory_per_task_mb"] = resources["mem_mib"] + overhead_mb
    if resources.get("runtime"):
        fields["max_runtime_s"] = 60 * resources["runtime"]
    if resources.get("gpu"):
        fields["task_resources"] = {"gpu": str(resources["gpu"])}
    return fields
