"""The public API: `from fairlog import Client, SubmitApp`. No other module is public.

Names are imported on first use, so that the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlog import errors, models
    from fairlog.client import AsyncClient, AsyncJob, Client, Job
    from fairlog.engines.functions import Executor
    from fairlog.engines.mailbox import Mailbox
    from scheduler.model.commands import (
        AddDepartment,
        AddWindow,
        CancelTask,
        ChangeCompany,
        ChangeDepartment,
        ChangeEdition,
        ConfigureCluster,
        DecommissionWorker,
        DrainWorker,
        ExtendApp,
        FinishApp,
        HoldApp,
        KillApp,
        KillExecutors,
        RegisterCompany,
        ReleaseApp,
        RemoveCompany,
        RemoveDepartment,
        RemoveWindow,
        RemoveWorker,
        ReprioritizeApp,
        RequeueApp,
        ScaleApp,
        SetLimit,
        SignalApp,
        SubmitApp,
        UndrainWorker,
    )
    from scheduler.service.receipts import Receipt

    __version__: str

__all__ = [
    "AddDepartment",
    "AddWindow",
    "AsyncClient",
    "AsyncJob",
    "CancelTask",
    "ChangeCompany",
    "ChangeDepartment",
    "ChangeEdition",
    "Client",
    "ConfigureCluster",
    "DecommissionWorker",
    "DrainWorker",
    "Executor",
    "ExtendApp",
    "FinishApp",
    "HoldApp",
    "Job",
    "KillApp",
    "KillExecutors",
    "Mailbox",
    "Receipt",
    "RegisterCompany",
    "ReleaseApp",
    "RemoveCompany",
    "RemoveDepartment",
    "RemoveWindow",
    "RemoveWorker",
    "ReprioritizeApp",
    "RequeueApp",
    "ScaleApp",
    "SetLimit",
    "SignalApp",
    "SubmitApp",
    "UndrainWorker",
    "__version__",
    "errors",
    "models",
]

_ELSEWHERE = {
    "AsyncClient": ("fairlog.client", "AsyncClient"),
    "AsyncJob": ("fairlog.client", "AsyncJob"),
    "Client": ("fairlog.client", "Client"),
    "Executor": ("fairlog.engines.functions", "Executor"),
    "Job": ("fairlog.client", "Job"),
    "Mailbox": ("fairlog.engines.mailbox", "Mailbox"),
    "Receipt": ("scheduler.service.receipts", "Receipt"),
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 (imported on first use)

        return version("fairlog")
    if name not in __all__:
        raise AttributeError(f"module 'fairlog' has no attribute {name!r}")
    if name in ("errors", "models"):
        return import_module(f"fairlog.{name}")
    module, found = _ELSEWHERE.get(name, ("scheduler.model.commands", name))
    return getattr(import_module(module), found)
