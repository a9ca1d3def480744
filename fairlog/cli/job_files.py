"""Jobs in files: options in the comments of a script, in a TOML file, and variables in a file."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
from click.core import augment_usage_errors

from fairlog.cli.params import file_text

DIRECTIVE = "#FAIRLOG"
_HEAD_BYTES = 64 * 1024
_VARIABLE = re.compile(r"(?:export\s+)?([^\s=]+)=(.*)", re.DOTALL)
_OF_THE_SHELL = frozenset({"_", "PWD", "OLDPWD", "SHLVL"})


class JobCommand(click.Command):
    """A command whose options can also be written in the TOML file of `--file`, or in the script that is its CMD.

    They are read by the same options. Those of the command line are stronger than those of the script, and these than
    those of the file; what may be repeated adds up.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's, after the options of the files. Raises: click.UsageError naming what is wrong in a file."""
        return super().parse_args(ctx, args if ctx.resilient_parsing else [*self._of_files(ctx, args)])

    def _of_files(self, ctx: click.Context, args: Sequence[str]) -> Iterator[str]:
        try:
            given: dict[str, Any] = self.make_parser(ctx).parse_args(list(args))[0]
        except click.UsageError:
            yield from args  # refused again where it is reported
            return
        command, file = _words(given), given.get("file")
        job = read_job(Path(file)) if isinstance(file, str) else {}
        its = job.pop("command", None)
        options = [*self._options_of(job, f"{file}")]
        self._read(ctx, options, f"{file}")
        yield from options
        if not command and its is not None:
            command = _command_of(its, f"{file}")
            args = [*args, "--", *command]
        if command:
            for number, words in directives(command[0]):
                where = f"line {number} of {command[0]}"
                said = self._read(ctx, words, where)
                if wrong := _words(said):
                    raise click.UsageError(f"{where} has {wrong[0]!r}, which belongs to no option", ctx)
                if isinstance(said.get("file"), str):
                    raise click.UsageError(f"{where} names a --file; name it on the command line", ctx)
                if (asked := self.get_help_option(ctx)) is not None and said.get(str(asked.name)):
                    raise click.UsageError(f"{where} asks for help; give --help on the command line", ctx)
                yield from words
        yield from args

    def _read(self, ctx: click.Context, words: Sequence[str], where: str) -> dict[str, Any]:
        """What click's parser makes of the options that a file states.

        Raises: click.UsageError naming the file if there is no such option, or its value is wrong.
        """
        try:
            said: dict[str, Any] = self.make_parser(ctx).parse_args(list(words))[0]
            for option in self.params:
                if isinstance(option, click.Option) and option.name in said:
                    with augment_usage_errors(ctx, param=option):
                        option.process_value(ctx, said[option.name])
        except click.UsageError as error:
            raise click.UsageError(f"{where}: {error.format_message()}", ctx) from None
        return said

    def _options_of(self, job: Mapping[str, Any], file: str) -> Iterator[str]:
        """The options that the values of the file stand for."""
        known = {name: option for option in self.params for name in option.opts if name.startswith("--")}
        known.pop("--file", None)
        for key, value in job.items():
            name = f"--{key.replace('_', '-')}"
            option = known.get(name)
            if option is None:
                near = get_close_matches(name, known, 1)
                meant = (
                    f"did you mean {near[0][2:]}?" if near else "the names are those of the options of `fairlog submit`"
                )
                raise click.UsageError(f"{file}: there is no {key[:40]!r}; {meant}")
            if isinstance(option, click.Option) and option.is_flag:
                if not isinstance(value, bool):
                    raise click.UsageError(f"{file}: {key} is true or false, not {str(value)[:40]!r}")
                yield from [name] if value else []
                continue
            values = value if isinstance(value, list) else [value]
            if isinstance(value, dict):
                values = [f"{each}={its}" for each, its in value.items()]
            for each in values:
                if isinstance(each, (bool, dict, list)):
                    raise click.UsageError(
                        f"{file}: {key} cannot be {str(each)[:40]!r}; write it as the option {name} takes it"
                    )
                yield from (name, str(each))


def _command_of(said: object, file: str) -> list[str]:
    """The words of the command that the job file states."""
    if isinstance(said, str):
        try:
            words: list[object] = [*shlex.split(said)]
        except ValueError as error:
            raise click.UsageError(f"{file}: the command cannot be read: {error}") from None
    else:
        words = said if isinstance(said, list) else [said]
    if not words:
        raise click.UsageError(f"{file}: the command is empty")
    if not all(isinstance(word, str) for word in words):
        raise click.UsageError(f'{file}: the command is text or a list of texts, such as ["sleep", "60"]')
    return [str(word) for word in words]


def _words(given: Mapping[str, Any]) -> Sequence[str]:
    """The command among what click's parser has found, which marks what is not given in a way of its own."""
    found = given.get("command")
    return found if isinstance(found, (tuple, list)) else ()


def read_job(file: Path) -> dict[str, Any]:
    """The options of a job file. Raises: click.UsageError if it cannot be read."""
    try:
        return tomllib.loads(_text_of(file))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise click.UsageError(f"{file} is not TOML: {error}") from None


def _text_of(file: Path) -> str:
    try:
        return file_text(file)
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from None


def directives(program: str) -> Iterator[tuple[int, list[str]]]:
    """The lines `#FAIRLOG --option …` in the leading comments of a script, as words, with their numbers from 1.

    None if the program is no readable file here. Raises: click.UsageError for words that cannot be told apart.
    """
    comments = takewhile(lambda line: not line.strip() or line.startswith("#"), _head(program).splitlines())
    for number, line in enumerate(comments, 1):
        name, words = [*line.split(maxsplit=1), "", ""][:2]
        if name != DIRECTIVE:
            continue
        try:
            yield number, shlex.split(words, comments=True)
        except ValueError as error:
            raise click.UsageError(f"line {number} of {program} cannot be read: {error}") from None


def as_command(command: Sequence[str]) -> tuple[str, ...]:
    """The command to run: a script of this folder by its path, by its interpreter if it is not executable.

    Raises: click.UsageError if it is a script, NAME.sh, that is neither here nor on PATH.
    """
    program = command[0]
    if program.endswith(".sh") and not program.startswith("/") and not _is_here(program):
        where = "" if "/" in program else " and none on PATH"
        raise click.UsageError(
            f"there is no script {program!r} in {Path.cwd()}{where}; check its name, or give the absolute path of one "
            "that only the workers have"
        )
    head = _head(program)
    if not head or (shutil.which(program) is not None and "/" not in program and not any(directives(program))):
        return tuple(command)
    path = program if "/" in program else f"./{program}"
    if os.access(path, os.X_OK):
        return (path, *command[1:])
    if head.startswith("#!"):
        return (*shlex.split(head.splitlines()[0][2:]), path, *command[1:])
    return ("sh", path, *command[1:]) if any(directives(program)) or program.endswith(".sh") else tuple(command)


def _is_here(program: str) -> bool:
    return os.path.lexists(program) or shutil.which(program) is not None


def _head(program: str) -> str:
    """The beginning of a text file, in whatever encoding; "" if it is none."""
    try:
        if not os.path.isfile(program):  # noqa: PTH113 (Path.is_file raises for some names)
            return ""
        with open(program, "rb") as file:  # noqa: PTH123 (likewise)
            head = file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return ""
    return "" if b"\0" in head else head.decode(errors="surrogateescape")


def read_variables(file: Path) -> dict[str, str]:
    """The variables of a file: a line each, `NAME=VALUE`, after `export ` or not, quoted as in a shell or not.

    Raises: click.UsageError naming the line that cannot be read.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(_text_of(file).splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        said = _VARIABLE.fullmatch(text)
        if said is None:
            raise click.UsageError(f"line {number} of {file} is not of the form NAME=VALUE: {text[:40]!r}")
        found[said[1]] = _unquoted(said[2].strip(), f"line {number} of {file}")
    return found


def _unquoted(value: str, where: str) -> str:
    if value[:1] not in ("'", '"'):
        return value
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise click.UsageError(f"{where} cannot be read: {error}") from None
    if len(words) != 1:
        raise click.UsageError(f"{where}: nothing may follow the closing quote")
    return words[0]


def exported(names: Sequence[str]) -> dict[str, str]:
    """The variables of this process of those names; `ALL` = all but fairlog's own and the shell's.

    Raises: click.UsageError for one that is not set.
    """
    found: dict[str, str] = {}
    for name in names:
        if name.upper() == "ALL":
            own = {each for each in os.environ if each.startswith(("FAIRLOG_", "_FAIRLOG_"))} | _OF_THE_SHELL
            found |= {each: value for each, value in os.environ.items() if each not in own}
        elif name in os.environ:
            found[name] = os.environ[name]
        else:
            raise click.UsageError(f"the environment variable {name[:40]!r} is not set; leave it out of --export")
    return found
