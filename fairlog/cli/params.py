"""What the verbs' options share: how values are read, and options that several verbs have."""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import partial, wraps
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import IO, Any, Literal, ParamSpec, TypeVar, cast, get_args

import click

from fairlog.cli.times import DURATIONS, TIMES_TO_COME, moment, seconds_of, time_of, time_to_come
from recovery.replay.bounds import OPEN, Bound
from scheduler.model.arrays import indexes, written
from scheduler.model.errors import InvalidCommand, InvalidSetting
from scheduler.model.resources import MAX_AMOUNT
from scheduler.model.states import Condition
from scheduler.service.folders import FolderGone, working_folder

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V")

_SIZE = re.compile(r"(-?\d{1,30}(?:\.\d{1,6})?)\s*(?:([MGT])(?:i?B)?)?", re.IGNORECASE | re.ASCII)
_UNIT_MB = {"": 1, "M": 1, "G": 1024, "T": 1024 * 1024}
_BOUNDS = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)
_MAX_FILE_BYTES = 16 * 1024 * 1024
_POINT = re.compile(r"([1-9]\d{0,17}):([0-9a-f]{64})", re.ASCII)


def matched(pattern: re.Pattern[str], text: str, what: str, example: str) -> re.Match[str]:
    """The match of the whole text. Raises: click.BadParameter saying that it is not `what`, with an example."""
    found = pattern.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{_short(text)} is not {what}; write it like {example}")
    return found


def read_size(text: str) -> int:
    """Memory in MiB, written `512M`, `2G`, `1T` or as plain MiB; may be negative, which the rules refuse.

    Raises: click.BadParameter for another form or a fraction of a MiB.
    """
    what, example = "a size in whole MiB", "512M, 2G or 512"
    found = matched(_SIZE, text, what, example)
    amount = Fraction(found[1]) * _UNIT_MB[(found[2] or "").upper()]
    if amount.denominator != 1:
        raise click.BadParameter(f"{_short(text)} is not {what}; write it like {example}")
    return int(amount)


def read_duration(text: str) -> int:
    """Seconds, written `90s`, `1h30m`, `00:10:00` or as a plain number. Raises: click.BadParameter."""
    seconds = seconds_of(text)
    if seconds is None:
        raise click.BadParameter(f"{_short(text)} is not a duration; write it like {DURATIONS}")
    return seconds


_MINUTE_MS = 60_000


def read_begin(text: str) -> int:
    """A time from which on something may begin, in ms since the epoch. Raises: click.BadParameter."""
    found = time_to_come(text)
    if found is None:
        raise click.BadParameter(f"{_short(text)} is not a time; write it like {TIMES_TO_COME}")
    return found


def read_ahead(text: str) -> int:
    """As `read_begin`, of a time that is to come; `now`, to the minute, is one, too. Raises: click.BadParameter."""
    found, now = read_begin(text), round(time.time() * 1000)
    if found < now - _MINUTE_MS:
        raise click.BadParameter(
            f"{_short(text)} is over: it is {moment(now, to='seconds')} now; give a later time, or leave the option out"
        )
    return found


def read_warning(text: str) -> tuple[str, int]:
    """A signal and a time before the end, in seconds, written `USR1@60` or `USR1@5m`. Raises: click.BadParameter."""
    name, at, before = text.partition("@")
    if not at or not name:
        raise click.BadParameter(f"{_short(text)} is not of the form SIGNAL@TIME; write it like USR1@60s")
    return read_signal(name), read_duration(before)


def check_named(text: str) -> None:
    """Raises: click.BadParameter for a text that names nothing."""
    if not text:
        raise click.BadParameter("it names nothing; give a name, or leave the option out")


def read_named(text: str) -> str:
    """A text that names something. Raises: click.BadParameter."""
    check_named(text)
    return read_text(text)


def read_signal(text: str) -> str:
    """A signal's name without SIG. Raises: click.BadParameter."""
    return read_text(text).upper().removeprefix("SIG")


def read_cores(text: str) -> int | Literal["unlimited"]:
    """A number of cores, or "unlimited". Raises: click.BadParameter."""
    return "unlimited" if text == "unlimited" else _read_number(text, "unlimited")


class Seconds(click.FloatRange):
    """A number of seconds within bounds, or a duration such as 1m30s; NaN is out of bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 (click's)
        """The number. Raises: click.BadParameter naming the bounds."""
        if isinstance(value, str) and (said := seconds_of(value)) is not None:
            value = said
        seconds: float = super().convert(value, param, ctx)
        if isnan(seconds):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return seconds


def read_limit(text: str) -> int | None:
    """A whole number, or None for "none". Raises: click.BadParameter."""
    return None if text == "none" else _read_number(text, "none")


def single(pairs: Sequence[tuple[str, V]]) -> dict[str, V]:
    """The values by name. Raises: click.UsageError if a name is given twice."""
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise click.UsageError(f"{name} is given {'twice' if times == 2 else f'{times} times'}; give it once")
    return dict(pairs)


def read_named_limit(text: str) -> tuple[str, int | None]:
    """A limit and its value, None for "none", written `NAME=VALUE`. Raises: click.BadParameter."""
    name, value = read_pair(text)
    return read_text(name), read_size(value) if name.endswith("_mb") and value != "none" else read_limit(value)


_WORDS = {"true": True, "false": False, "none": None}


def read_setting(text: str) -> tuple[str, int | str | None]:
    """A setting and its value, written `NAME=VALUE`. Raises: click.BadParameter unless the value is of its kind."""
    from msgspec.structs import asdict  # noqa: PLC0415 (few verbs need it)

    from scheduler.model.events import ClusterConfigured  # noqa: PLC0415 (likewise)
    from scheduler.rules.checks.validate import check_setting_kinds  # noqa: PLC0415 (few verbs need the rules)

    name, value = read_pair(text)
    known = asdict(ClusterConfigured())
    found = _setting_of(read_text(name), value, known.get(name))
    if name in known:
        with _refused_here():
            check_setting_kinds({name: found}, known)
    return name, found


def _setting_of(name: str, text: str, default: object) -> int | str | None:
    if name.endswith("_url") and text == "none":
        return ""
    if text in _WORDS and not isinstance(default, str):
        return _WORDS[text]
    if name.endswith("_mb"):
        return read_size(text)
    if name.endswith("_s") and (seconds := seconds_of(text)) is not None:
        return seconds
    try:
        return int(text)
    except ValueError:
        return read_text(text)


def read_part(text: str) -> str:
    """A part of the cluster, such as 25% or 1/4, or none. Raises: click.BadParameter."""
    from scheduler.rules.checks import validate  # noqa: PLC0415 (few verbs need the rules)

    if text != "none":
        with _refused_here():
            validate.read_part(text)
    return text


def read_own_limit(limit: str) -> Callable[[str], str]:
    """What reads a department's limit, a part of its quota such as 25%, or none."""

    def read(text: str) -> str:
        from scheduler.rules.state import departments  # noqa: PLC0415 (few verbs need the rules)

        with _refused_here():
            departments.read_own_limit(limit, text)
        return text

    return read


def setting_text(value: object) -> str:
    """The value in the form that `settings set` accepts."""
    if value == "":
        return "none"
    return next((word for word, meant in _WORDS.items() if meant is value), str(value))


@contextmanager
def _refused_here() -> Iterator[None]:
    """What the rules refuse of one value alone is an argument that cannot be read. Raises: click.BadParameter."""
    try:
        yield
    except (InvalidCommand, InvalidSetting) as error:
        raise click.BadParameter(str(error)) from None


def _read_number(text: str, otherwise: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f'{_short(text)} is neither a whole number nor "{otherwise}"') from None


def read_edition(text: str) -> int:
    """An edition of the rules of sharing. Raises: click.BadParameter."""
    from scheduler.rules.state.preconditions import EDITIONS  # noqa: PLC0415 (few verbs need the rules)

    if text not in map(str, EDITIONS):
        raise click.BadParameter(
            f"{text!r} is no edition of the rules of sharing; give {' or '.join(map(str, EDITIONS))}"
        )
    return int(text)


def read_pair(text: str) -> tuple[str, str]:
    """A name and a value, which may be empty, written `NAME=VALUE`. Raises: click.BadParameter."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{_short(text)} is not of the form NAME=VALUE")
    return name, value


def read_label(text: str) -> tuple[str, str]:
    """A label of a worker, written `KEY=VALUE`. Raises: click.BadParameter."""
    key, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{_short(text)} is not of the form KEY=VALUE")
    from scheduler.rules.checks.validate import check_labels  # noqa: PLC0415 (few verbs need the rules)

    with _refused_here():
        check_labels({key: value})
    return key, value


def read_terms(option: str) -> Callable[[str], tuple[str, ...]]:
    """What reads labels as `KEY` or `KEY=VALUE`, separated by commas; a comma of a value stands behind a backslash."""

    def read(text: str) -> tuple[str, ...]:
        from scheduler.rules.checks.validate import check_label_terms  # noqa: PLC0415 (few verbs need the rules)

        terms = [term.replace("\\,", ",") for term in re.split(r"(?<!\\),", text)]
        with _refused_here():
            return check_label_terms(option, terms)

    return read


def read_taint(text: str) -> str:
    """The name of a taint. Raises: click.BadParameter."""
    from scheduler.rules.checks.validate import check_taints  # noqa: PLC0415 (few verbs need the rules)

    with _refused_here():
        return check_taints("an option", (text,))[0]


def label_option(**settings: Any) -> Callable[[F], F]:  # noqa: ANN401 (click's)
    """The option --label, which may be repeated, once a key; the verb gets `labels`, a dict."""

    def by_key(_ctx: click.Context, _param: click.Parameter, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
        return single(pairs)

    return click.option(
        "--label", "labels", type=read_label, multiple=True, callback=by_key, metavar="KEY=VALUE", **settings
    )


def read_dependency(text: str) -> tuple[str, Condition]:
    """An app and what must have become of it, written `APP` or `APP:CONDITION`. Raises: click.BadParameter."""
    app, _, condition = read_text(text).partition(":")
    for known in get_args(Condition):
        if condition == known or not condition:
            return app, known
    raise click.BadParameter(f"{_short(text)} is not of the form APP[:ok|any|not-ok|began]; write it like app-1:ok")


def read_counts(text: str) -> dict[str, int]:
    """The number of tasks that prefer each host, written `HOST=TASKS`, separated by commas.

    Raises: click.BadParameter for another form, or a host that is named twice.
    """
    counts: list[dict[str, int]] = []
    for pair in text.split(","):
        host, _, tasks = pair.rpartition("=")
        if not host or not tasks.isascii() or not tasks.isdecimal():
            raise click.BadParameter(f"{_short(pair)} is not of the form HOST=TASKS; write it like h1=2")
        counts.append({read_text(host): int(tasks)})
    return merge_counts(counts)


def read_near(text: str) -> list[tuple[str, str]]:
    """Hosts and lists of tasks that prefer them, written `HOST=TASKS,…`, or the name of a file with a line for each.

    Raises: click.BadParameter for another form, or a file that cannot be read.
    """
    if "=" in text:
        return _near_of(text, "")
    try:
        lines = file_text(Path(text)).splitlines()
    except OSError as error:
        raise click.BadParameter(
            f"{_short(text)} is not of the form HOST=TASKS, nor a file that can be read: {error.strerror}; "
            "write it like h1=0-9,15"
        ) from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            found += _near_of(line.strip(), f"line {number} of {text}: ")
    return found


def _near_of(text: str, where: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for part in text.split(","):
        host, equals, tasks = part.rpartition("=")
        if (equals and not (host.strip() and tasks)) or not (equals or found):
            raise click.BadParameter(f"{where}{_short(part)} is not of the form HOST=TASKS; write it like h1=0-9,15")
        if equals:
            found.append((read_text(host.strip()), tasks.strip()))
        else:
            found[-1] = found[-1][0], f"{found[-1][1]},{part.strip()}"
    return found


def merge_near(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The tasks that prefer each host. Raises: click.BadParameter if one is named twice for a host."""
    merged: dict[str, list[int]] = {}
    for host, text in pairs:
        try:
            merged.setdefault(host, []).extend(indexes(text))
        except InvalidCommand as error:
            raise click.BadParameter(f"host {_short(host)}: {error}", param_hint="--prefer") from None
    for host, listed in merged.items():
        if twice := [index for index, number in Counter(listed).items() if number > 1]:
            raise click.BadParameter(
                f"task {twice[0]} is named twice for host {_short(host)}; name it once", param_hint="--prefer"
            )
    return {host: written(sorted(listed)) for host, listed in merged.items()}


def merge_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The counts in one dict. Raises: click.BadParameter if a host is in two of them."""
    merged: dict[str, int] = {}
    for host, tasks in (pair for each in counts for pair in each.items()):
        if host in merged:
            raise click.BadParameter(
                f"the host {_short(host)} is named twice; name it once, with the number of all its tasks"
            )
        merged[host] = tasks
    return merged


def read_offered(text: str) -> tuple[str, tuple[str, ...]]:
    """A kind of resources and its addresses, written `gpu=0,1,2,3`, or `gpu=4` for 0 to 3.

    One number is a count, but 0, by which nothing would be offered: that is the address 0.

    Raises: click.BadParameter for another form.
    """
    kind, equals, listed = text.partition("=")
    if not kind or not equals or not listed.strip(","):
        raise click.BadParameter(f"{_short(text)} names no addresses; write it like gpu=0,1 or gpu=2 for the same")
    if listed.isascii() and listed.isdecimal():
        if int(listed) > MAX_AMOUNT:
            raise click.BadParameter(
                f"{_short(text)} is not between 1 and {MAX_AMOUNT} addresses; a single address ends with a comma: "
                f"{kind}={listed},"
            )
        return read_text(kind), tuple(map(str, range(max(1, int(listed)))))
    return read_text(kind), tuple(read_text(address.strip()) for address in listed.removesuffix(",").split(","))


def read_amount(text: str) -> tuple[str, int]:
    """A kind of resources and a whole amount, written `gpu=2`. Raises: click.BadParameter for another form."""
    kind, amount = read_share(text)
    if not amount.isascii() or not amount.isdecimal():
        raise click.BadParameter(f"{_short(text)} is not of the form KIND=NUMBER; write it like gpu=2")
    return kind, int(amount)


def read_share(text: str) -> tuple[str, str]:
    """A kind of resources and an amount, written `gpu=1` or `gpu=1/4`. Raises: click.BadParameter for another form."""
    kind, equals, amount = text.partition("=")
    if not kind or not equals:
        raise click.BadParameter(f"{_short(text)} is not of the form KIND=AMOUNT; write it like gpu=1 or gpu=1/4")
    return read_text(kind), read_text(amount)


def by_kind(_ctx: click.Context, param: click.Parameter, pairs: Iterable[tuple[str, V]]) -> dict[str, V]:
    """The amounts or addresses by kind. Raises: click.BadParameter if a kind is named twice."""
    found: dict[str, V] = {}
    for kind, value in pairs:
        if kind in found:
            raise click.BadParameter(f"the kind {_short(kind)} is named twice; name each kind once", param=param)
        found[kind] = value
    return found


def kinds_option(
    name: str,
    variable: str,
    read: Callable[[str], Any] = read_amount,
    **settings: Any,  # noqa: ANN401 (click's)
) -> Callable[[F], F]:
    """An option that may be repeated, once a kind of resources."""
    return click.option(name, variable, type=read, multiple=True, callback=by_kind, **settings)


def read_names(text: str) -> tuple[str, ...]:
    """Names, separated by commas. Raises: click.BadParameter for an empty one."""
    names = tuple(read_text(name.strip()) for name in text.split(","))
    if not all(names):
        raise click.BadParameter(f"{_short(text)} has an empty name; separate names by one comma each")
    return names


def read_array(text: str) -> str:
    """A list of task indexes, `1-10,15,20-30:5`. Raises: click.BadParameter."""
    with _refused_here():
        indexes(text)
    return text


def read_words(text: str) -> tuple[str, ...]:
    """A command with its arguments, quoted as for a shell. Raises: click.BadParameter."""
    try:
        words = tuple(shlex.split(read_text(text)))
    except ValueError as error:
        raise click.BadParameter(f"{_short(text)} cannot be read as a command: {error}") from None
    if not words:
        raise click.BadParameter("a command must not be empty")
    return words


def read_bounds(text: str) -> tuple[int, int]:
    """A minimum and a maximum, written `MIN:MAX`. Raises: click.BadParameter."""
    found = matched(_BOUNDS, text, "of the form MIN:MAX", "1:8")
    return int(found[1]), int(found[2])


def read_text(text: str) -> str:
    """The text, of UTF-8 in whatever locale. Raises: click.BadParameter if it is none, which the log requires."""
    try:
        return os.fsencode(text).decode()
    except UnicodeError:
        pass  # the locale's own encoding, or no text
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{_short(text)} is not valid UTF-8") from None
    return text


def file_text(path: Path) -> str:
    """The text of a file of at most 16 MiB. Raises: OSError that says why it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {_MAX_FILE_BYTES >> 20} MiB", str(path))
        return content.decode()
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "it is not UTF-8 text", str(path)) from None
    except ValueError:
        raise OSError(errno.EINVAL, "a name has no null character", str(path)) from None


class InputFile(click.File):
    """A file to read, or - for stdin; no device, which may have no end."""

    name = "filename"

    def convert(
        self, value: str | os.PathLike[str] | IO[Any], param: click.Parameter | None, ctx: click.Context | None
    ) -> IO[Any]:
        """As click's. Raises: click.BadParameter."""
        try:
            file = super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(error.message + self._meant(value, ctx), param, ctx)
        if isinstance(value, str) and value != "-" and stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
            file.close()
            self.fail(f"{value!r} is a device; name a file, or - for stdin", param, ctx)
        return file

    @staticmethod
    def _meant(value: object, ctx: click.Context | None) -> str:
        """What who names an app to a verb that reads a file may have meant."""
        options = {name for param in ctx.command.params for name in param.opts} if ctx is not None else set()
        if ctx is None or "--app" not in options or not isinstance(value, str) or "." in value or "/" in value:
            return ""
        return f"; `{ctx.command_path} --app {value}` prints the events of an app, `fairlog logs {value}` its output"


EXPORT = InputFile("rb")
"""A log in a file, as `fairlog log --json` writes it; - is stdin."""


def read_bound(text: str) -> Bound:
    """A log position, or a time with ms precision (`fairlog.cli.times`). Raises: click.BadParameter."""
    if text.isascii() and text.isdecimal() and len(text) < 19 and int(text):
        return Bound(seq=int(text))
    at = time_of(text)
    if at is None:
        raise click.BadParameter(
            f"{_short(text)} is neither a log position (1 or more) nor a time such as 2026-03-01T12:00:00, 09:30, "
            "yesterday or -2h"
        )
    return Bound(at=at)


def read_time(text: str) -> int:
    """A time in ms since the epoch (`fairlog.cli.times`). Raises: click.BadParameter."""
    at = time_of(text)
    if at is None:
        raise click.BadParameter(
            f"{_short(text)} is not a time; write it like 2026-03-01T12:00:00, 09:30, yesterday or -2h"
        )
    return at


def read_point(text: str) -> tuple[int, str]:
    """A log position and its digest, written `SEQ:DIGEST`. Raises: click.BadParameter."""
    found = matched(_POINT, text, "of the form SEQ:DIGEST", "the line that `fairlog checkpoint` prints")
    return int(found[1]), found[2]


def span_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add `--from` and `--to` to a verb, which gets them as `first` and `last`."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        first, last = cast("Bound", kwargs["first"] or OPEN), cast("Bound", kwargs["last"] or OPEN)
        if (last.seq and last.seq < (first.seq or 1)) or (first.at and last.at and last.at < first.at):
            raise click.UsageError(f"--to {last} comes before --from {first}")
        kwargs["first"], kwargs["last"] = first, last
        return function(*args, **kwargs)

    for name, variable, text in (
        ("--to", "last", "Last log position or time of the span.  [default: the end of the log]"),
        ("--from", "first", "First log position or time of the span.  [default: 1]"),
    ):
        run = click.option(name, variable, type=read_bound, metavar="SEQ|TIME", help=text)(run)
    return run


class _PathName(click.Path):
    """A path, which is not empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 (click's)
        """The path. Raises: click.BadParameter."""
        if value == "":
            self.fail(f"the name of a {self.name} must not be empty", param, ctx)
        return super().convert(value, param, ctx)


FILE = _PathName(dir_okay=False, path_type=Path)
FOLDER = _PathName(file_okay=False, path_type=Path)
number_option = partial(click.option, type=int, metavar="N")
file_option = partial(click.option, type=FILE, metavar="FILE")
size_option = partial(click.option, type=read_size, metavar="SIZE")
text_option = partial(click.option, type=read_text)
named_option = partial(click.option, type=read_named)
flag = partial(click.option, is_flag=True)
names_argument = partial(click.argument, nargs=-1, required=True, type=read_text)
as_json = flag("--json", "as_json", help="Print JSON.")


class WholeNumber(click.IntRange):
    """A whole number within bounds."""

    name = "whole number"


def range_option(name: str, lowest: int, highest: int | None = None, **settings: Any) -> Callable[[F], F]:  # noqa: ANN401 (click's)
    """An option that takes a whole number within bounds."""
    return click.option(name, **{"type": WholeNumber(lowest, highest), "metavar": "N", **settings})


def check_extra(option: str, package: str, extra: str) -> None:
    """Raises: click.ClickException if the option's package is not installed."""
    if find_spec(package) is None:
        raise click.ClickException(f"{option} needs {package}: pip install 'fairlog[{extra}]'")


def read_output(text: str) -> str:
    """The pattern of a file to which tasks write. Raises: click.BadParameter for one that names no file."""
    if not text or text.endswith("/"):
        raise click.BadParameter(f"{_short(text)} names no file; write it like out/%a.txt")
    return read_text(text)


def read_folder() -> str:
    """The current folder. Raises: click.ClickException if it was deleted."""
    try:
        return str(working_folder())
    except FolderGone as error:
        raise click.ClickException(str(error)) from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def is_given(value: object) -> bool:
    """Whether an option that may be left out, or be repeated, is given."""
    return value is not None and not (isinstance(value, tuple | dict) and not value)


def quota_options(of_part: str) -> Callable[[F], F]:
    """The options that state a quota, with the help of that in parts."""

    def decorate(function: F) -> F:
        cores = number_option("--cores", help="Cores of the quota. Requires --memory.")
        memory = size_option(
            "--memory", "memory_mb", help="Memory of the quota: 2G, 512M or plain MiB. Requires --cores."
        )
        part = click.option("--part", type=read_part, metavar="PART", help=of_part)
        kinds = kinds_option(
            "--resource",
            "resources",
            metavar="KIND=N",
            help="Resources of a kind, such as gpu=4; kinds that are not named are not limited. Requires --cores. "
            "Repeatable.",
        )
        return cores(memory(part(kinds(function))))

    return decorate
