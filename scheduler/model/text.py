"""Text from others, made safe to show: without control characters and without characters that reorder or hide text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

MAX_NAME = 128
"""The most characters of a name."""
MAX_DETAIL = 1024
"""The most characters of a detail: why something ended, or why it cannot start."""

_HARMLESS = re.compile(r"[\t\n -~]*")
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor
    r"|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x9c|\x1b\\)?"  # OSC and its like: title, clipboard
)
_LINE_END = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_BREAKS = re.compile(r"[\t\n]+")
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    r"\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def in_bytes(text: str) -> bytes:
    """The bytes of a name, value or word of a program: UTF-8 whatever the locale, and bytes that are none as they were.

    Raises: UnicodeEncodeError for half a character, which no program can have been given.
    """
    return text.encode(errors="surrogateescape")


def of_bytes(found: bytes) -> str:
    """The text of which `in_bytes` makes these bytes."""
    return found.decode(errors="surrogateescape")


def printable(text: str) -> str:
    """The text as lines that a terminal only prints: tabs and line ends stay.

    Escape sequences, other control characters, and characters that reorder text or have no width are left out.
    """
    if _HARMLESS.fullmatch(text):
        return text
    return _UNSEEN.sub("", _LINE_END.sub("\n", _SEQUENCE.sub("", text)))


def one_line(text: str, most: int = 0) -> str:
    """The printable text on one line; at most `most` characters unless that is 0."""
    line = _BREAKS.sub(" ", printable(text))
    return line if not most or len(line) <= most else f"{line[: most - 1]}…"


def counted(number: int, what: str) -> str:
    """So many of something: "1 app", "2 apps", "3 entries"."""
    if number == 1:
        return f"1 {what}"
    return f"{number} {what[:-1]}ies" if what[-1] == "y" else f"{number} {what}{'es' if what[-1] == 's' else 's'}"


def few(names: Sequence[str], most: int) -> str:
    """The first names of a list between commas, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def cell(value: object) -> object:
    """The value for a spreadsheet: a text that would be read as a formula begins with an apostrophe."""
    if not isinstance(value, str):
        return value
    line = one_line(value)
    return f"'{line}" if line.lstrip().startswith(("=", "+", "-", "@")) else line


def in_json(text: str) -> str:
    """A JSON text of the same value in which what `printable` leaves out is escaped."""
    return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)
