"""The errors that `fairlog.Client` raises: `FairlogError` is the root, `CommandRejected` a refusal with its reason.

A store that does not answer raises redis-py's own errors.
"""

from scheduler.model.errors import (
    AppEnded,
    CommandRejected,
    CompanyInUse,
    DuplicateAccount,
    DuplicateApp,
    DuplicateCompany,
    FairlogError,
    IdReused,
    InternalError,
    InvalidCommand,
    InvalidSetting,
    LimitExceeded,
    MessageTooOld,
    NeverFits,
    NeverMet,
    NeverTogether,
    NoMaster,
    NotAdmitted,
    NotAllowed,
    NotAuthenticated,
    NotPending,
    NotSigned,
    OtherVersion,
    QuotaExceeded,
    RuntimeTooLong,
    TooManySizes,
    TooManyVisits,
    UnknownAccount,
    UnknownApp,
    UnknownCompany,
    UnknownDependency,
    UnknownExecutor,
    UnknownKind,
    UnknownToken,
    UnknownUser,
    UnknownWorker,
    UnsuitableStore,
)


class NoCluster(FairlogError):
    """No cluster is named and no `up` runs, or the environment names two."""


class BadCredentials(FairlogError):
    """The file of credentials cannot be used, or a token has no API to go to."""


class Unreachable(NoMaster):
    """No API server answered in time. A command may still be carried out; sending it again under its id is safe."""


class JobFailed(FairlogError):
    """An app, or a task of one, ended otherwise than well; `state` says how, and `stderr` has the end of its errors."""

    def __init__(self, job: str, state: str, why: str, stderr: str) -> None:
        said = stderr.strip().splitlines()
        last = f"; its stderr ends with {said[-1][:200]!r}" if said else ""
        super().__init__(f"{job} {state}{f': {why}' if why else ''}{last}")
        self.state, self.stderr = state, stderr


class Refused(FairlogError):
    """The API refused a request for another reason than a rule; `title` is the problem's."""

    def __init__(self, title: str, why: str) -> None:
        super().__init__(why)
        self.title = title


__all__ = [
    "AppEnded",
    "BadCredentials",
    "CommandRejected",
    "CompanyInUse",
    "DuplicateAccount",
    "DuplicateApp",
    "DuplicateCompany",
    "FairlogError",
    "IdReused",
    "InternalError",
    "InvalidCommand",
    "InvalidSetting",
    "JobFailed",
    "LimitExceeded",
    "MessageTooOld",
    "NeverFits",
    "NeverMet",
    "NeverTogether",
    "NoCluster",
    "NoMaster",
    "NotAdmitted",
    "NotAllowed",
    "NotAuthenticated",
    "NotPending",
    "NotSigned",
    "OtherVersion",
    "QuotaExceeded",
    "Refused",
    "RuntimeTooLong",
    "TooManySizes",
    "TooManyVisits",
    "UnknownAccount",
    "UnknownApp",
    "UnknownCompany",
    "UnknownDependency",
    "UnknownExecutor",
    "UnknownKind",
    "UnknownToken",
    "UnknownUser",
    "UnknownWorker",
    "Unreachable",
    "UnsuitableStore",
]
