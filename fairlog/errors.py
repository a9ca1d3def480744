"""The errors that `fairlog.Client` raises: `FairlogError` is the root, `CommandRejected` a refusal with its reason.

A store that does not answer raises redis-py's own errors.
"""

from scheduler.model.errors import (
    AppEnded,
    CommandRejected,
    CompanyInUse,
    DuplicateApp,
    DuplicateCompany,
    FairlogError,
    InternalError,
    InvalidCommand,
    InvalidSetting,
    LimitExceeded,
    NeverFits,
    NoMaster,
    NotPending,
    QuotaExceeded,
    RuntimeTooLong,
    UnknownApp,
    UnknownCompany,
    UnknownDependency,
    UnknownExecutor,
    UnknownKind,
    UnknownWorker,
    UnsuitableStore,
)

__all__ = [
    "AppEnded",
    "CommandRejected",
    "CompanyInUse",
    "DuplicateApp",
    "DuplicateCompany",
    "FairlogError",
    "InternalError",
    "InvalidCommand",
    "InvalidSetting",
    "LimitExceeded",
    "NeverFits",
    "NoMaster",
    "NotPending",
    "QuotaExceeded",
    "RuntimeTooLong",
    "UnknownApp",
    "UnknownCompany",
    "UnknownDependency",
    "UnknownExecutor",
    "UnknownKind",
    "UnknownWorker",
    "UnsuitableStore",
]
