"""Errors as problem details (RFC 9457): every error of fairlog has a status, and its sentence is the detail."""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from fairlog.api.figures import Failed, TooLong
from fairlog.api.past import NotReady
from fairlog.api.replica import NotThatLong
from scheduler.model import errors
from scheduler.store.transient import RETRY_S as FULL_S
from scheduler.store.transient import LaneFull, in_words

MEDIA = "application/problem+json"
KIND = "urn:fairlog:error:"
"""A problem's type is this and the class of the error."""


class BadRequest(errors.FairlogError):
    """The request itself is malformed."""


class NotFound(errors.FairlogError):
    """The API has no such path."""


class NoSuchMethod(errors.FairlogError):
    """The path does not take that method."""


class WrongMedia(errors.FairlogError):
    """The body is not JSON."""


class TooLarge(errors.FairlogError):
    """The body is longer than a request may be."""


class TooMany(errors.FairlogError):
    """The caller asks more often than it may; `after_s` says when to ask again."""

    def __init__(self, why: str, after_s: float) -> None:
        super().__init__(why)
        self.after_s = after_s


class Unavailable(errors.FairlogError):
    """The server cannot answer now."""


STATUS: dict[type[Exception], int] = {
    BadRequest: 400,
    errors.NotAuthenticated: 401,
    errors.NotAllowed: 403,
    NotFound: 404,
    NotThatLong: 404,
    NoSuchMethod: 405,
    TooLarge: 413,
    WrongMedia: 415,
    TooMany: 429,
    TooLong: 422,
    NotReady: 503,
    Unavailable: 503,
    Failed: 503,
    RedisError: 503,
    LaneFull: 503,
    errors.NoMaster: 503,
    errors.UnreadableRecord: 503,
    errors.InvariantViolated: 503,
    errors.UnknownApp: 404,
    errors.UnknownCompany: 404,
    errors.UnknownUser: 404,
    errors.UnknownWorker: 404,
    errors.UnknownExecutor: 404,
    errors.UnknownDriver: 404,
    errors.UnknownAccount: 404,
    errors.UnknownToken: 404,
    errors.DuplicateApp: 409,
    errors.DuplicateCompany: 409,
    errors.DuplicateAccount: 409,
    errors.DuplicateWorker: 409,
    errors.CompanyInUse: 409,
    errors.OfferTooSmall: 409,
    errors.AddressGranted: 409,
    errors.AppEnded: 409,
    errors.NotAdmitted: 409,
    errors.NotPending: 409,
    errors.LimitExceeded: 409,
    errors.MessageTooOld: 409,
    errors.IdReused: 409,
    errors.NotSigned: 503,
    errors.OtherVersion: 426,
    errors.CommandRejected: 422,
}
"""Error -> HTTP status; one that is not listed has that of its nearest base."""
RETRY_S = 1


def status_of(error: Exception) -> int:
    """The HTTP status of the error; 503 for one that nobody foresaw."""
    return next((STATUS[each] for each in type(error).__mro__ if each in STATUS), 503)


def problem_of(error: Exception) -> dict[str, Any]:
    """The error as the body of an answer: `type`, `title`, `status`, `detail`."""
    status = status_of(error)
    if isinstance(error, LaneFull):
        kind, detail = LaneFull.__name__, str(error)
    elif isinstance(error, RedisError):
        kind, detail = Unavailable.__name__, in_words(error)
    elif isinstance(error, errors.FairlogError):
        kind, detail = type(error).__name__, str(error)
    else:
        kind, detail = Unavailable.__name__, "the server failed; its operator finds the reason in its log"
    return {"type": f"{KIND}{kind}", "title": kind, "status": status, "detail": detail}


def headers_of(error: Exception) -> dict[str, str]:
    """The headers of the answer: when to ask again, or how to authenticate."""
    status = status_of(error)
    if isinstance(error, TooMany):
        return {"retry-after": str(max(1, round(error.after_s + 0.5)))}
    if isinstance(error, LaneFull):
        return {"retry-after": str(FULL_S)}
    if status == 503:
        return {"retry-after": str(RETRY_S)}
    return {"www-authenticate": "Bearer"} if status == 401 else {}
