"""Tables of options, and command lines read by them as Slurm reads them: by the rules of getopt_long."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping

ACTS, IDLE, LEFT = "acts", "accepted without effect", "refused"
"""What becomes of an option."""
_TOO_MANY, _MOST_DIGITS, _MOST_WIDE = 1_000_000, 12, 9999


class SlurmError(Exception):
    """The command does nothing more: the sentence says why; `code` is its exit code."""

    def __init__(self, sentence: str, code: int = 1) -> None:
        super().__init__(sentence)
        self.code = code


class Option:
    """An option: its long name, its letter or "", what its value is called, and what becomes of it.

    `value` is "" for a flag, and in brackets if the value may be left out. `note` says what it means here. `holds` are
    the values with which an option without effect asks for what is so in any case, "" for a flag that does.
    """

    __slots__ = ("effect", "holds", "letter", "name", "note", "value")

    def __init__(self, names: str, value: str, effect: str, note: str, holds: tuple[str, ...] = ()) -> None:
        letter, _, name = names.rpartition(" ")
        self.letter, self.name = letter.lstrip("-"), name[2:]
        self.value, self.effect, self.note, self.holds = value, effect, note, holds

    def is_idle(self, value: str) -> bool:
        """Whether it changes nothing with that value, and asks for something else than what is so."""
        return self.effect == IDLE and not set(value.split(",")) & set(self.holds)

    @property
    def optional(self) -> bool:
        """Whether the value may be left out."""
        return self.value.startswith("[")


Table = tuple[Option, ...]
Given = list[tuple[Option, str]]


def read(table: Table, words: list[str], *, mixed: bool = True, code: int = 1) -> tuple[Given, list[str]]:
    """The options among the words in their order, each with its value, and the other words.

    Unless `mixed`, the first other word ends the options. Raises: Refused with that code.
    """
    given: Given = []
    rest: list[str] = []
    waiting = words[::-1]
    while waiting:
        word = waiting.pop()
        if word == "--":
            rest += waiting[::-1]
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            option = _named(table, name, code)
            if equals and not option.value:
                raise SlurmError(f"option '--{option.name}' doesn't allow an argument", code)
            if not equals and option.value and not option.optional:
                value = _next(waiting, f"--{option.name}", code)
            given.append((option, value))
        elif word.startswith("-") and word != "-":
            _read_letters(table, word[1:], waiting, given, code)
        else:
            rest.append(word)
            if not mixed:
                rest += waiting[::-1]
                break
    return given, rest


def read_variables(table: Table, variables: Mapping[str, str]) -> Given:
    """The options for which variables of this environment stand; one that is empty is no value."""
    by_name = {option.name: option for option in table}
    return [
        (by_name[name], os.environ[variable] if by_name[name].value else "")
        for variable, name in variables.items()
        if os.environ.get(variable) or (variable in os.environ and by_name[name].value[:1] in ("", "["))
    ]


def _read_letters(table: Table, letters: str, waiting: list[str], given: Given, code: int) -> None:
    while letters:
        letter, letters = letters[0], letters[1:]
        option = next((each for each in table if each.letter == letter), None)
        if option is None:
            raise SlurmError(f"invalid option -- '{letter}'; --help lists the options", code)
        if not option.value:
            given.append((option, ""))
            continue
        value = letters if letters or option.optional else _next(waiting, f"-{letter}", code)
        given.append((option, value.removeprefix("=") if letters else value))
        return


def _named(table: Table, name: str, code: int) -> Option:
    """The option of that name, or the only one that begins so."""
    found = [each for each in table if each.name == name] or [each for each in table if each.name.startswith(name)]
    if not found or not name:
        raise SlurmError(f"unrecognized option '--{name}'; --help lists the options", code)
    if len(found) > 1:
        raise SlurmError(
            f"option '--{name}' is ambiguous; it may be --{' or --'.join(each.name for each in found)}", code
        )
    return found[0]


def _next(waiting: list[str], name: str, code: int) -> str:
    if not waiting:
        raise SlurmError(f"option '{name}' requires an argument", code)
    return waiting.pop()


def usage(command: str, table: Table, synopsis: str) -> str:
    """What `--help` prints."""
    lines = [f"Usage: {command} {synopsis}", ""]
    for option in table:
        name = f"--{option.name}" + (
            f"[={option.value[1:-1]}]" if option.optional else f"={option.value}" * bool(option.value)
        )
        letter = f"-{option.letter}, " if option.letter else "    "
        lines.append(f"  {letter}{name:<32} {what_becomes_of(option)}")
    return "\n".join(lines)


def what_becomes_of(option: Option) -> str:
    """What tables say of it."""
    if option.effect == ACTS:
        return option.note
    if option.holds == ("",):
        return f"is so in any case: {option.note}"
    unless = f", and named unless it is {' or '.join(option.holds)}" if option.holds else ""
    return f"{option.effect}{unless}: {option.note}"


def with_variables(table: Table, variables: Mapping[str, str], given: Given, shapes: Collection[str]) -> Given:
    """What variables and the command line ask for: a `shape` of the output of the latter is stronger than any other."""
    chosen = {option.name for option, _ in given} & set(shapes)
    of_variables = read_variables(table, variables)
    return [*[each for each in of_variables if not chosen or each[0].name not in shapes], *given]


def without_effect(command: str, given: Given, parts: Iterable[str] = ()) -> str:
    """A sentence that names what was given and has no effect, "" for none; also parts of values.

    Raises: Refused for what is refused.
    """
    for option, _ in given:
        if option.effect == LEFT:
            raise SlurmError(f"--{option.name} is refused: {option.note}")
    idle = dict.fromkeys([*(f"--{option.name}" for option, value in given if option.is_idle(value)), *parts])
    return f"{command}: note: without effect here: {', '.join(idle)}" if idle else ""


def name_idle(command: str, given: Given) -> None:
    """Name on stderr what has no effect, unless errors alone are wanted. Raises: Refused for what is refused."""
    note = without_effect(command, given)
    if note and all(option.name != "quiet" for option, _ in given):
        sys.stderr.write(f"{note}\n")


def listed(text: str) -> list[str]:
    """The parts of a list between commas, of which those in brackets are none."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


def listed_in_quotes(text: str) -> list[str]:
    """The parts of a list between commas, of which those between quotation marks are none; the marks are kept.

    A mark that is not closed is a letter as others are.
    """
    found, place = [""], 0
    while place < len(text):
        letter = text[place]
        closed = text.find(letter, place + 1) if letter in "'\"" else -1
        if closed > 0:
            found[-1] += text[place : closed + 1]
            place = closed
        elif letter == ",":
            found.append("")
        else:
            found[-1] += letter
        place += 1
    return found


def whole(text: str) -> int | None:
    """The number that these decimal digits are; None if they are none, or more than anybody means."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


OF_TASK = 10**10
"""More than any app's number: so much of that of a task of an array is its index, counted from 1."""


def task_of(text: str) -> tuple[str, int] | None:
    """The array and the index of the task whose number this is; None if it is another's, or none."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 2 * _MOST_DIGITS and int(text) >= OF_TASK):
        return None
    place, array = divmod(int(text), OF_TASK)
    return f"{array}", place - 1


def counted(text: str, name: str) -> int:
    """The value of an option that says how many, a whole number from 1 on. Raises: Refused."""
    found = whole(text)
    if not found or found >= _TOO_MANY:
        raise SlurmError(f'Invalid numeric value "{text[:40]}" for --{name}.')
    return found


def width_of(digits: str) -> int:
    """The width of a field that these digits are, as far as anybody reads it."""
    found = whole(digits or "0")
    return _MOST_WIDE if found is None else min(found, _MOST_WIDE)


def runs(numbers: list[int]) -> list[tuple[int, int]]:
    """The first and the last number of each run of consecutive ones."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found
