"""The public API: `from fairlog import Client, SubmitApp`; nothing else is meant to be imported by users.

Names are loaded when they are asked for, so that the command line starts fast. `fairlog.cli`, `fairlog.local` and
`fairlog.demo` are programs, not API.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlog import errors
    from scheduler.model.commands import (
        ChangeCompany,
        ConfigureCluster,
        DecommissionWorker,
        DrainWorker,
        KillApp,
        KillExecutors,
        RegisterCompany,
        RemoveCompany,
        RemoveWorker,
        ScaleApp,
        SubmitApp,
        UndrainWorker,
    )
    from scheduler.service.client import Client, Receipt

    __version__: str

__all__ = [
    "ChangeCompany",
    "Client",
    "ConfigureCluster",
    "DecommissionWorker",
    "DrainWorker",
    "KillApp",
    "KillExecutors",
    "Receipt",
    "RegisterCompany",
    "RemoveCompany",
    "RemoveWorker",
    "ScaleApp",
    "SubmitApp",
    "UndrainWorker",
    "__version__",
    "errors",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 (loaded when asked for)

        return version("fairlog")
    if name not in __all__:
        raise AttributeError(f"module 'fairlog' has no attribute {name!r}")
    if name == "errors":
        return import_module("fairlog.errors")
    module = "scheduler.service.client" if name in {"Client", "Receipt"} else "scheduler.model.commands"
    found: object = getattr(import_module(module), name)
    return found
