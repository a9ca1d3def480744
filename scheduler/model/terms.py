"""The terms of an app: what it asks for that its registration states as its submission did, and their ranges.

A new term is a field here: the submission, its check, the log and the log's check have it from here; its answer is a
field of `scheduler.model.answers.AppDetails` by the same name, without the unit.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, get_type_hints

from msgspec import Struct

MAX_EXECUTORS = 1_000_000
MAX_GRACE_S = 3600
"""The longest time between SIGTERM and SIGKILL that an app can ask for (semantics G5)."""


class Range(NamedTuple):
    """What a number is called, and from where to where it may be.

    A log in which it is less than `least` breaks the `rule`; `broken` says so of the `app` and the `value`. The log is
    not held to `most`: an earlier version may have allowed more.
    """

    what: str
    least: int
    most: int
    rule: str
    broken: str


ExecutorLimit = Annotated[
    int | None,
    Range("the maximum number of executors", 0, MAX_EXECUTORS, "P4", "app {app!r} may have {value} executors"),
]
Grace = Annotated[
    int | None, Range("the grace, in seconds,", 0, MAX_GRACE_S, "G5", "app {app!r} has a grace of {value} s")
]
OwnerTimeout = Annotated[
    int | None,
    Range(
        "the lease of the owner, in seconds,",
        1,
        10**6,
        "G4",
        "app {app!r} has an owner who may be silent for {value} s",
    ),
]
MinRuntime = Annotated[
    int | None,
    Range(
        "the minimum runtime, in seconds,",
        0,
        10**9,
        "H7",
        "executors of app {app!r} have a minimum runtime of {value} s",
    ),
]
MaxFailures = Annotated[
    int | None,
    Range("the failures that end an app", 1, 1_000, "W5", "app {app!r} ends with failure {value} of its programs"),
]


class AppTerms(Struct, frozen=True, kw_only=True, gc=False):
    """What `SubmitApp` and `AppRegistered` both end with: the log stores it by place, so append new fields.

    Older terms, which stand among other fields of the log, are declared by both.
    """

    no_requeue: bool = False
    """Whether it may never be put back into its queue (semantics X6)."""
    min_runtime_s: MinRuntime = None
    """How long an executor runs before it has to leave for a need; None = as the setting says (semantics H7)."""
    require: tuple[str, ...] = ()
    """The labels that its workers have, each as KEY or KEY=VALUE; likewise below (semantics P9)."""
    avoid: tuple[str, ...] = ()
    tolerate: tuple[str, ...] = ()
    """The taints that its workers may have."""
    prefer_labels: tuple[str, ...] = ()
    image: str = ""
    """Whose files its tasks find; "" = the machine's (semantics W12)."""
    gang: bool = False
    """Whether its executors start all at once or not at all (semantics G8)."""
    max_failures: MaxFailures = None
    """How many failures of its programs end it; None = as the setting says (semantics W5, G8)."""


TERMS = ("retries", "time_limit_s", "supervise", "grace_s", "owner_timeout_s", *AppTerms.__struct_fields__)
"""What a registration states as its submission did; commands change none of it."""


def ranges_of(kind: type[Any]) -> dict[str, Range]:
    """The ranges that fields of that struct declare, in the order of the fields."""
    hints = get_type_hints(kind, include_extras=True)
    declared = [(name, getattr(hints[name], "__metadata__", ())) for name in kind.__struct_fields__]
    return {name: each for name, metadata in declared for each in metadata if isinstance(each, Range)}
