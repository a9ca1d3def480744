"""Checks of the values of commands; each refusal is one sentence that names what was wrong and what would be right."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import Any

from msgspec import ValidationError, convert, json
from msgspec.structs import asdict, replace

from scheduler.model.arrays import indexes
from scheduler.model.commands import (
    ChangeCompany,
    Command,
    EndApp,
    EndedDriver,
    EndedExecutor,
    Private,
    RegisterCompany,
    SubmitApp,
    check_variables,
)
from scheduler.model.errors import InvalidCommand, InvalidSetting
from scheduler.model.events import ClusterConfigured
from scheduler.model.outputs import check_pattern
from scheduler.model.staged import SCRIPT
from scheduler.model.targets import check_places
from scheduler.model.terms import ranges_of
from scheduler.model.text import MAX_DETAIL, MAX_NAME, one_line
from scheduler.rules.admission.app import APP_POLICIES
from scheduler.rules.admission.company import COMPANY_POLICIES
from scheduler.rules.admission.user import USER_POLICIES
from scheduler.rules.entities.accounts import RESERVED, WORD
from scheduler.rules.entities.fleet import WORKER_SELECTIONS
from scheduler.rules.placement.executors import PLACEMENTS
from scheduler.rules.placement.sizing import MEMORY_STEP_MB

MAX_CORES = 1_000_000
MAX_MEMORY_MB = 1 << 30
MAX_LEASE_S = 3600
"""The longest lease that a master may be started with."""
MAX_TASKS = 100_000
MAX_PRIORITY = 1_000
MAX_DEPENDENCIES = 1_000
MAX_LABELS = 16
"""The most labels of a worker."""
MAX_LINE_BYTES = 128 * 1024
"""The most bytes of a command with its arguments, as JSON."""
MAX_FOLDER = 4096
MAX_NAMED = 10_000
"""The most executors that a command can name."""
MAX_HOSTS = 10_000
MAX_NEAR = 10_000
"""The most executors of an app with preferred hosts: each is a request of its own."""
MAX_MOMENT = 1 << 53
RANGES = ranges_of(SubmitApp)
"""Term of a submission -> its range."""
_EXIT_CODES = range(-(1 << 31), 1 << 31)
SIGNALS = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2")
"""The signals that apps may ask for."""
SENT_SIGNALS = (*SIGNALS, "ALRM", "CONT", "KILL", "STOP", "TSTP", "URG", "WINCH")
"""Signals that somebody may send; the others are for moments that apps name."""

_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S{1,1000}")
_PASSWORD = re.compile(r"://[^/]*:[^/]*@")
_PART = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?%?|[0-9]{1,9}/[1-9][0-9]{0,8}")

NEW_SETTINGS: Mapping[str, Any] = {"reclaim_patience_s": 3600, "backfill": True}
"""What a new log states beside the defaults of an earlier one.

What was lent comes back by a date (semantics H7); what surely ends before uses the room until then (H11).
"""
NEW_CLUSTER = ClusterConfigured(**NEW_SETTINGS)
"""The settings that the first master of a new log states."""

RETIRED = {
    "occupancy",
    "max_driver_share",
    "quota_patience_s",
    "hold_patience_s",
    "hold_limit_s",
    "reclaim",
    "max_reclaims",
    "reclaim_window_s",
}
"""What the second edition of the rules looked at: such settings stand in older logs, and nobody reads them now."""
_CHOICES: Mapping[str, Iterable[str]] = {
    "company_policy": COMPANY_POLICIES,
    "user_policy": USER_POLICIES,
    "app_policy": APP_POLICIES,
    "placement": PLACEMENTS,
    "worker_selection": WORKER_SELECTIONS,
    "admission": ("fair", "open"),
    "never_fits": ("refuse", "wait"),
    "own_sizes": ("any", "within-bounds"),
}
_OR_NONE = (
    *("max_drivers", "suspect_failures", "default_max_runtime_s", "max_max_runtime_s", "reclaim_patience_s"),
    "idle_end_s",
)
_AT_LEAST = {
    "min_executor_cores": 2,
    "min_executor_memory_mb": MEMORY_STEP_MB,
    "default_cores": 1,
    "default_memory_per_task_mb": 512,
    "max_executor_failures": 1,
    "worker_timeout_s": 1,
    "retained_apps": 0,
    "half_life_s": 1,
    "quota_patience_s": 0,
    "max_drivers": 0,
    "executor_idle_timeout_s": 1,
    "elastic_step_ms": 1,
    "locality_wait_host_ms": 0,
    "locality_wait_rack_ms": 0,
    "remember_lost_s": 0,
    "default_max_runtime_s": 1,
    "max_max_runtime_s": 1,
    "archive_after_events": 0,
    "archive_retain_events": 0,
    "hold_patience_s": 0,
    "hold_limit_s": 1,
    "min_runtime_s": 0,
    "max_min_runtime_s": 0,
    "max_reclaims": 1,
    "reclaim_window_s": 1,
    "reclaim_patience_s": 0,
    "slot_s": 0,
    "idle_end_s": 10,
    "kill_grace_s": 0,
    "priority_step_s": 0,
    "exclude_after": 0,
    "exclude_s": 1,
    "suspect_failures": 0,
    "suspect_window_s": 1,
    "suspect_s": 1,
    "retry_backoff_s": 0,
}


def check_identifier(what: str, value: str) -> None:
    """Raises: InvalidCommand unless `value` is 1 to 64 letters, digits, `_`, `.`, `-`, as keys and paths allow."""
    if not _IDENTIFIER.fullmatch(value):
        raise InvalidCommand(
            f"{what} must be 1 to 64 letters, digits, '_', '.' or '-', starting with a letter or digit, "
            f"not {shorten(value)}"
        )


def check_labels(labels: Mapping[str, str]) -> None:
    """Raises: InvalidCommand for labels that a worker cannot have: too many, or a key or a value that is no name."""
    if len(labels) > MAX_LABELS:
        raise InvalidCommand(f"a worker can have at most {MAX_LABELS} labels, not {len(labels)}")
    for key, value in labels.items():
        check_identifier("the key of a label", key)
        check_name(f"the label {key}", value)


def check_label_terms(option: str, terms: Collection[str]) -> tuple[str, ...]:
    """The terms in order, each once. Raises: InvalidCommand for one that no label can meet, or for too many."""
    if len(terms) > MAX_LABELS:
        raise InvalidCommand(f"an app can name at most {MAX_LABELS} labels with {option}, not {len(terms)}")
    for term in terms:
        key, is_, value = term.partition("=")
        check_identifier(f"the key of a label in {option}", key)
        if is_ and not value:
            raise InvalidCommand(f"{option} {shorten(term)} names no value; name {key!r} alone for any value")
        if is_:
            check_name(f"the value of {key} in {option}", value)
    return tuple(sorted(set(terms)))


def check_taints(what: str, taints: Collection[str]) -> tuple[str, ...]:
    """The taints in order, each once. Raises: InvalidCommand for one that is no identifier, or for too many."""
    if len(taints) > MAX_LABELS:
        raise InvalidCommand(f"{what} can name at most {MAX_LABELS} taints, not {len(taints)}")
    for taint in taints:
        check_identifier("a taint", taint)
    return tuple(sorted(set(taints)))


def check_number(what: str, values: Collection[object], most: int) -> None:
    """Raises: InvalidCommand for more than `most` values."""
    if len(values) > most:
        raise InvalidCommand(f"a command can name at most {most} {what}, not {len(values)}")


def check_name(what: str, value: str) -> None:
    """Raises: InvalidCommand unless `value` is 1 to 128 printable characters without blanks at its ends."""
    if not value:
        raise InvalidCommand(f"{what} must not be empty")
    if len(value) > MAX_NAME:
        raise InvalidCommand(f"{what} must have at most {MAX_NAME} characters, not {len(value)}")
    if not value.isprintable():
        raise InvalidCommand(f"{what} must not contain control characters: {shorten(value)}")
    if value != value.strip():
        raise InvalidCommand(f"{what} must not start or end with a space: {shorten(value)}")


def check_new_names(command: Command) -> None:
    """Raises: InvalidCommand for a company that could have no account, or a user that `COMPANY/USER` cannot name.

    Checked when a command arrives, never by `decide`: logs of earlier versions have such companies and users.
    """
    if isinstance(command, RegisterCompany):
        if not WORD.fullmatch(command.company):
            could_be = re.sub("[^a-z0-9._-]+", "-", command.company.lower()).strip("-_.")[:63]
            if not could_be or could_be in RESERVED:
                could_be = "acme"
            raise InvalidCommand(
                "a company's name has 1 to 63 lower-case letters, digits, '.', '_' and '-', beginning with a letter or "
                f"digit, as its accounts are named COMPANY/NAME, not {shorten(command.company)}; "
                f"`fairlog company add {could_be}`, for example"
            )
        if command.company in RESERVED:
            raise InvalidCommand(f"a company cannot be named {' or '.join(RESERVED)}")
    elif isinstance(command, SubmitApp) and re.search(r"[\s/]", command.user):
        raise InvalidCommand(f"a user's name has neither blanks nor '/'; it cannot be {shorten(command.user)}")


def check_states_a_change(command: Command) -> None:
    """Raises: InvalidCommand for a change of a company that states nothing.

    Checked when a command arrives, never by `decide`: in logs of earlier versions it takes the company's quota away.
    """
    if isinstance(command, ChangeCompany) and command == ChangeCompany(company=command.company):
        raise InvalidCommand(
            f"nothing to change of company {shorten(command.company)} is stated; state a quota, in amounts or as a "
            'part, where "none" is an equal part of the cluster, or what else is to change'
        )


def check_range(what: str, value: int | None, lowest: int, highest: int) -> None:
    """Raises: InvalidCommand unless `lowest` <= `value` <= `highest` or the value is None."""
    if value is not None and not lowest <= value <= highest:
        raise InvalidCommand(f"{what} must be between {lowest} and {highest}, not {shorten(value)}")


def check_terms(command: SubmitApp) -> None:
    """Raises: InvalidCommand for a term out of the range that it declares (`scheduler.model.terms`)."""
    for name, each in RANGES.items():
        check_range(each.what, getattr(command, name), each.least, each.most)


def check_preferences(by_host: Mapping[str, int], tasks: int | None) -> None:
    """Raises: InvalidCommand for numbers of tasks, by the host that they prefer, that no app can have (L1)."""
    check_range("tasks with a preference", tasks, 0, MAX_TASKS)
    if len(by_host) > MAX_HOSTS:
        raise InvalidCommand(f"at most {MAX_HOSTS} hosts can be preferred, not {len(by_host)}")
    for host, number in by_host.items():
        check_name("a preferred host", host)
        check_range(f"tasks that prefer {host}", number, 0, MAX_TASKS)


def check_signal(what: str, name: str) -> None:
    """Raises: InvalidCommand unless `name` is a signal that apps may ask for, without SIG."""
    if name not in SIGNALS:
        raise InvalidCommand(f"{what} must be one of {', '.join(SIGNALS)}, not {shorten(name)}")


def _check_part(private: Private) -> None:
    """Raises: InvalidCommand unless the private part of another command than a submission is valid."""
    if private.display:
        check_name("the name that is shown", private.display)
    if len(private.said) > MAX_DETAIL or not private.said.isprintable():
        raise InvalidCommand(f"a reason or a detail must be at most {MAX_DETAIL} printable characters on one line")
    if private.used is not None:
        check_range("the CPU time of what ended, in ms,", private.used.cpu_ms, 0, MAX_MOMENT)
        check_range("the peak memory of what ended, in MiB,", private.used.peak_mb, 0, MAX_MEMORY_MB)


def check_private(private: Private) -> None:
    """Raises: InvalidCommand unless the app's name is valid and a worker could run its command.

    Checked when a command arrives, never by `decide`: no decision depends on private parts, which may be withheld.
    """
    if private.display or private.said or private.used is not None:
        _check_part(private)
        return
    if private.name:
        check_name("the app's name", private.name)
    command, env = private.command, private.env
    if not command or not command[0]:
        raise InvalidCommand("an app needs a command; add it as `-- CMD ARG…`")
    size = max(len(json.encode(command)), len(json.encode(private.executor_command)))
    if size > MAX_LINE_BYTES:
        raise InvalidCommand(
            f"a command with its arguments can take at most {MAX_LINE_BYTES} bytes as JSON, not {size}; pass what is "
            "longer in a file"
        )
    for name in env:
        if not name or "=" in name or not name.isprintable():
            raise InvalidCommand(f"{shorten(name)} cannot be the name of an environment variable")
    if env:
        check_variables(dict.fromkeys(env, ""))
    _check_place(private)


def _check_place(private: Private) -> None:
    """Raises: InvalidCommand for a folder or a list of task indexes that no worker could use."""
    command, cwd = (*private.command, *private.executor_command), private.cwd
    if any("\0" in part for part in command) or (cwd is not None and "\0" in cwd):
        raise InvalidCommand("the command and its folder must not contain NUL characters")
    if cwd is not None and not cwd.startswith("/"):
        raise InvalidCommand(f"the folder to run in must be an absolute path, not {shorten(cwd)}")
    if len(private.array) > MAX_LINE_BYTES:
        raise InvalidCommand(f"a list of task indexes has at most {MAX_LINE_BYTES} characters; submit several apps")
    if private.array:
        indexes(private.array)
    check_near(private.near)
    check_pattern("--output", private.output)
    check_pattern("--error", private.error)
    if len(private.comment) > MAX_DETAIL or "\0" in private.comment:
        raise InvalidCommand(f"a comment has at most {MAX_DETAIL} characters and no NUL, not {len(private.comment)}")
    if bool(private.script) != (SCRIPT in private.env) or not 0 <= private.script_at < len(private.command):
        raise InvalidCommand(
            f"a script is copied as the variable {SCRIPT}, with its digest and its place in the command"
        )
    if cwd is not None and len(cwd) > MAX_FOLDER:
        raise InvalidCommand(f"the folder to run in can have at most {MAX_FOLDER} characters, not {len(cwd)}")


def check_near(near: Mapping[str, str]) -> None:
    """Raises: InvalidCommand if the lists of tasks that prefer hosts are too long for the log (L7)."""
    if (size := sum(len(host) + len(text) for host, text in near.items())) > MAX_LINE_BYTES:
        raise InvalidCommand(
            f"the preferred hosts of an app's tasks take at most {MAX_LINE_BYTES} characters, not {size}; give tasks "
            "that prefer the same host neighbouring indexes, or submit several apps"
        )


def check_command_id(identity: str) -> None:
    """Raises: InvalidCommand unless `identity` is 1 to 128 printable characters on one line."""
    check_name("the id of a command", identity)


def trimmed(command: Command) -> Command:
    """The command, with what a worker's report says as long as the log takes it, on one line.

    Reports are trimmed and not refused: a worker repeats one until it is in the log. Only an exit code that no program
    can have is left out.
    """
    match command:
        case EndApp(detail=said) if _needs_trim(said):
            return replace(command, detail=one_line(said, MAX_DETAIL))
        case EndedExecutor(unstartable=said, exit_code=code, detail=why) if (
            _needs_trim(said) or _needs_trim(why) or (code or 0) not in _EXIT_CODES
        ):
            said = said and (one_line(said, MAX_DETAIL) or "its command cannot be started")
            code, why = code if (code or 0) in _EXIT_CODES else None, one_line(why, MAX_DETAIL)
            return replace(command, unstartable=said, exit_code=code, detail=why)
        case EndedDriver(detail=said, exit_code=code) if _needs_trim(said) or (code or 0) not in _EXIT_CODES:
            code = code if (code or 0) in _EXIT_CODES else None
            return replace(command, detail=one_line(said, MAX_DETAIL), exit_code=code)
        case _:
            return command


def _needs_trim(detail: str) -> bool:
    return len(detail) > MAX_DETAIL or not detail.isprintable()


def read_limit(text: str) -> tuple[int, int]:
    """The two numbers of a part "n/d", as events state one (semantics H12)."""
    numerator, denominator = text.split("/")
    return int(numerator), int(denominator)


def read_part(text: str) -> str:
    """A quota's part of the cluster, given as "25%" or "1/4", as "n/d" in lowest terms (semantics C2).

    Raises: InvalidCommand unless it is above 0 and at most the whole.
    """
    if not _PART.fullmatch(text):
        raise InvalidCommand(f"a part of the cluster is written like 25% or 1/4, not {shorten(text)}")
    part = Fraction(text[:-1]) / 100 if text.endswith("%") else Fraction(text)
    if not 0 < part <= 1:
        raise InvalidCommand(f"a part of the cluster must be above 0% and at most 100%, not {shorten(text)}")
    if part.denominator > 1_000_000:
        raise InvalidCommand(f"a part of the cluster can have at most a millionth as its unit, not {shorten(text)}")
    return f"{part.numerator}/{part.denominator}"


def check_archive_url(url: str) -> None:
    """Raises: InvalidSetting unless `url` is empty or names a folder without passwords or options."""
    if "?" in url or _PASSWORD.search(url):
        raise InvalidSetting(
            "the archive's URL is written to the log; leave out passwords and options, and set them in the environment"
        )
    local = url.partition("file://")[2]
    if url and (not _URL.fullmatch(url) or (url.startswith("file://") and not local.startswith("/"))):
        raise InvalidSetting(
            "the archive's URL must name a folder, such as file:///mnt/archive or s3://bucket/folder, not "
            f"{shorten(url)}"
        )


def check_runtimes(usual_s: int | None, most_s: int | None) -> None:
    """Raises: InvalidSetting if apps get more time by default than they may have (semantics X1)."""
    if usual_s is not None and most_s is not None and usual_s > most_s:
        raise InvalidSetting(f"default_max_runtime_s must be at most max_max_runtime_s ({most_s}), not {usual_s}")


def changed_settings(current: ClusterConfigured, changes: Mapping[str, Any]) -> ClusterConfigured:
    """The settings after `changes`; they count for what is decided next (semantics Z3; Settings: checks).

    Raises: InvalidSetting for an unknown name or a value that breaks a check.
    """
    changes = _without_retired(current, changes)
    check_setting_kinds(changes, asdict(current))
    settings = replace(current, **changes)
    for name, value in asdict(settings).items():
        if name in _CHOICES and value not in _CHOICES[name]:
            raise InvalidSetting(f"{name} cannot be {shorten(value)}: {_expected(name, value)}")
        if name in _AT_LEAST and value is not None and value < _AT_LEAST[name]:
            raise InvalidSetting(f"{name} must be at least {_AT_LEAST[name]}, not {value}")
        if isinstance(value, int) and value > MAX_MEMORY_MB:
            raise InvalidSetting(f"{name} must be at most {MAX_MEMORY_MB}, not {value}")
    check_archive_url(settings.archive_url)
    check_places(settings.notify_targets)
    check_runtimes(settings.default_max_runtime_s, settings.max_max_runtime_s)
    _check_executor_sizes(settings)
    return settings


def undated(settings: ClusterConfigured) -> ClusterConfigured:
    """The settings, but that nobody has to leave by a date (semantics H7)."""
    return replace(settings, reclaim_patience_s=None)


def _without_retired(current: ClusterConfigured, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The changes, those of retired settings as what they say now: `occupancy` (O1), and `reclaim` of dates (H7)."""
    if changes.get("occupancy", "requested") != "requested":
        raise InvalidSetting(
            f"occupancy cannot be {shorten(changes['occupancy'])}: what apps request counts; leave it out"
        )
    changes = {name: value for name, value in changes.items() if name != "occupancy"}
    for name in changes:
        if name in RETIRED and name != "reclaim":
            raise InvalidSetting(f"{name} was a setting of the second edition of the rules; leave it out")
    if "reclaim" not in changes:
        return changes
    if changes["reclaim"] not in ("none", "gentle", "firm"):
        raise InvalidSetting(f"reclaim cannot be {shorten(changes['reclaim'])}: set reclaim_patience_s instead")
    others = {name: value for name, value in changes.items() if name != "reclaim"}
    if changes["reclaim"] != "firm":
        return {**others, "reclaim_patience_s": None}
    dated = current.reclaim_patience_s is not None
    return others if dated else {"reclaim_patience_s": NEW_SETTINGS["reclaim_patience_s"], **others}


def in_force(settings: ClusterConfigured) -> dict[str, Any]:
    """The settings by their names, without those that nobody reads any more."""
    return {name: value for name, value in asdict(settings).items() if name not in RETIRED}


def of_now(changes: Mapping[str, Any]) -> dict[str, Any]:
    """What is left of settings that an older log states once those are left out that nobody reads any more."""
    return {name: value for name, value in changes.items() if name not in RETIRED or name == "reclaim"}


def check_setting_kinds(changes: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raises: InvalidSetting unless each change is of a known setting, and of that one's kind of values."""
    for name, value in changes.items():
        if name not in known:
            raise InvalidSetting(f"no setting is named {shorten(name)}; `fairlog settings` lists the settings")
        try:
            convert([ClusterConfigured.__name__, *{**known, name: value}.values()], ClusterConfigured)
        except ValidationError:
            raise InvalidSetting(f"{name} cannot be {shorten(value)}: {_expected(name, known[name])}") from None


def check_said(reason: str) -> None:
    """Raises: InvalidCommand unless it is a reason in at most `MAX_DETAIL` printable characters on one line."""
    if len(reason) > MAX_DETAIL or not reason.isprintable():
        raise InvalidCommand(f"a reason must be at most {MAX_DETAIL} printable characters on one line")


def shorten(value: object) -> str:
    """The value's text for an error sentence, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _expected(name: str, current: object) -> str:
    if name in _CHOICES:
        return f"use one of {', '.join(_CHOICES[name])}"
    if isinstance(current, bool):
        return "use true or false"
    if name in _OR_NONE:
        return "use a whole number or none"
    return "use a whole number" if isinstance(current, int) else "use a text"


def _check_executor_sizes(settings: ClusterConfigured) -> None:
    least, most = settings.min_executor_cores, settings.max_executor_cores
    if least % 2:
        raise InvalidSetting(f"min_executor_cores must be an even number, not {least}")
    if most > 1 << 16:
        raise InvalidSetting(f"max_executor_cores must be at most {1 << 16}, not {most}")
    times = most // least
    if most < least or most % least or times & (times - 1):
        raise InvalidSetting(
            f"max_executor_cores must be min_executor_cores times a power of two, not {most} with {least}"
        )
    least, most = settings.min_executor_memory_mb, settings.max_executor_memory_mb
    for name, value in (("min_executor_memory_mb", least), ("max_executor_memory_mb", most)):
        if value % MEMORY_STEP_MB or not value:
            raise InvalidSetting(f"{name} must be a multiple of {MEMORY_STEP_MB} MiB, not {value}")
    if most < least:
        raise InvalidSetting(f"max_executor_memory_mb must be at least min_executor_memory_mb ({least}), not {most}")
