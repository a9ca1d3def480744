"""Where the output of an app's tasks goes besides the worker's own files: patterns of files, as Slurm's users know.

    %j  the task: the id of the app, and `_` and the task's index if the app has several
    %A  the id of the app
    %a  the index of the task, or of the program; `driver` for the driver
    %x  the name of the app
    %u  the user
    %N  the host, without its domain
    %%  a percent sign

A number between `%` and `a` pads the index with zeros: `%3a` is 007. `%j` and `%A` of an app that was submitted as a
number are that number, the position of its submission in the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from scheduler.model.errors import InvalidCommand

OpenMode = Literal["truncate", "append"]
MOST_PATTERN = 4096
"""The most characters of a pattern."""
NOWHERE = "/dev/null"
_NAMED = re.compile(r"%(\d{0,2})(.?)", re.DOTALL)
_LETTERS = "%j, %A, %a, %x, %u, %N or %%"
_APART = frozenset("aj")
"""The letters by which the files of an app's tasks differ."""


def check_pattern(option: str, pattern: str) -> None:
    """Raises: InvalidCommand unless the pattern of that option is an absolute path of letters that stand for something.

    "" is none.
    """
    if not pattern:
        return
    if len(pattern) > MOST_PATTERN:
        raise InvalidCommand(f"{option} can have at most {MOST_PATTERN} characters, not {len(pattern)}")
    if "\0" in pattern:
        raise InvalidCommand(f"{option} must not contain NUL characters")
    for width, letter in _NAMED.findall(pattern):
        if letter not in {*"jAaxuN%"} or not letter or (width and letter != "a"):
            raise InvalidCommand(f"{option} has '%{width}{letter}', which stands for nothing; write {_LETTERS}")
    if not pattern.startswith("/") or pattern.endswith("/"):
        raise InvalidCommand(f"{option} must be the absolute path of a file, not {pattern[:80]!r}")


def is_shared(pattern: str) -> bool:
    """Whether all tasks of an app have the same file of this pattern."""
    if pattern in {"", NOWHERE}:
        return False
    letters = [letter for _, letter in _NAMED.findall(pattern)]
    return _APART.isdisjoint(letters)


def check_apart(output: str, error: str, mode: OpenMode, *, several: bool) -> None:
    """Raises: InvalidCommand if tasks would overwrite each other's output, or the output of one its errors."""
    if not several or mode == "append":
        return
    for option, pattern in (("--output", output), ("--error", error)):
        if is_shared(pattern):
            raise InvalidCommand(
                f"all tasks of the app would write to the same file {pattern[:80]!r}; put %a into {option}, or say "
                "--open-mode append"
            )


def filled(pattern: str, values: Mapping[str, str]) -> str:
    """The file of the pattern; `values` are those of the letters. What a value names is one part of the path."""

    def value(found: re.Match[str]) -> str:
        width, letter = found.groups()
        text = "%" if letter == "%" else values[letter].replace("/", "_")
        return text.zfill(int(width)) if width else text

    return _NAMED.sub(value, pattern)


def folder_of(pattern: str) -> str:
    """The folder of the files of the pattern: as far as that is the same for all of them."""
    return pattern.partition("%")[0].rpartition("/")[0] or "/"
