"""Jobs in files: options in the comments of a script, in a TOML file, and variables in a file."""

from __future__ import annotations

import codecs
import os
import re
import shlex
import shutil
import stat
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import augment_usage_errors

from fairlog.cli.groups import nearest_options, unknown_option
from fairlog.cli.params import file_text, read_folder
from fairlog.cli.render import say
from scheduler.model.errors import InvalidCommand
from scheduler.model.staged import MOST_SCRIPT_BYTES, script_value
from scheduler.model.text import of_bytes

DIRECTIVE = "#FAIRLOG"
_OF_SLURM = "#SBATCH"
STDIN = "<stdin>"
"""As the name of a script: standard input."""
_STDIN_READ = "fairlog.stdin"
_HEAD_BYTES = 64 * 1024
_MOST_WORDS = 20
"""So many words of a command are looked at as files."""
_UTF_16 = "\ufffe"
"""What stands for a text in UTF-16, of which no interpreter reads anything."""
_SHELL = re.compile(r"(?:ba|da|k|z|a)?sh")
_INTERPRETERS = {
    ".py": "python3",
    ".pl": "perl",
    ".rb": "ruby",
    ".R": "Rscript",
    ".r": "Rscript",
    ".jl": "julia",
    ".js": "node",
    ".lua": "lua",
}
"""The ending of a script's name -> what runs it."""
_INTERPRETER = re.compile(rf"{_SHELL.pattern}|(?:python|pypy|perl|ruby|Rscript|julia|node|lua)[0-9.]*")
_OPTIONS = re.compile(r"#([ \t]*)(FAIRLOG|fairlog|Fairlog|SBATCH|PBS|BSUB|COBALT|MSUB|OAR|\$|flux:)[ \t]+-")
"""A line that looks as if it stated options of a scheduler."""
_VARIABLES_OF_SLURM = re.compile(r"\bSLURM_[A-Z_]+")
_VARIABLE = re.compile(r"(?:export\s+)?([^\s=]+)=(.*)", re.DOTALL)
_OF_THE_CALLER = ("file", "script", "receipt", "store", "cluster", "archive", "data", "unsafe_store")
"""Options that no script states, which may be somebody else's: where a submission goes, and what is read and written
for it here."""
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
        named = given.get("script", job.get("script"))
        if its is not None and not command:
            stated = _command_of(its, f"{file}")
            args, command = [*args, "--", *stated], stated
        if isinstance(named, str):
            args, command = _with_script(args, command, named)
        options = [*self._options_of(job, f"{file}")]
        self._read(ctx, options, f"{file}")
        yield from options
        for sentence in unheeded(command) if command else ():
            say(f"note: {sentence}")
        if command and (script := script_of(command)) is not None:
            own = [*self._directed(ctx, script)]
            yield from self._of_slurm(ctx, script, [*own, *args])
            yield from own
        yield from args

    def _of_slurm(self, ctx: click.Context, script: str, stronger: Sequence[str]) -> Sequence[str]:
        """What the lines `#SBATCH` of the script mean, besides `stronger` options.

        Raises: click.UsageError naming the line.
        """
        head = _head(script)
        if not any(_is_of_slurm(line) for line in _leading(head)):
            return ()
        from fairlog.compat.slurm.as_options import translated  # noqa: PLC0415 (few scripts have such lines)
        from fairlog.compat.slurm.words import SlurmError  # noqa: PLC0415 (likewise)

        said: dict[str, Any] = self.make_parser(ctx).parse_args([*stronger])[0]
        named = {option.name: option.opts for option in self.params}
        given = {each for name, value in said.items() if isinstance(value, str) for each in named[name]}
        try:
            words, idle = translated(head, {each for names in named.values() for each in names}, given)
        except SlurmError as refusal:
            raise click.UsageError(f"{script}, {refusal}", ctx) from None
        where = f"the lines {_OF_SLURM} of {script}"
        for taken in _taken(self._read(ctx, words, where)):
            say(f"note: {where} take {taken} along for the tasks")
        if idle:
            say(f"note: without effect in {where}: {', '.join(idle)}")
        if read := sorted(set(_VARIABLES_OF_SLURM.findall(head))):
            more = " and others" if len(read) > 3 else ""
            say(
                f"note: {script} names {', '.join(read[:3])}{more}; variables of Slurm are set for jobs of the sbatch "
                "in `fairlog slurm path`"
            )
        return words

    def _directed(self, ctx: click.Context, script: str) -> Iterator[str]:
        """The options in the leading comments of the script. Raises: click.UsageError naming the line."""
        for number, words in directives(script):
            where = f"line {number} of {script}"
            said = self._read(ctx, words, where)
            if wrong := _words(said):
                raise click.UsageError(f"{where} has {wrong[0]!r}, which belongs to no option", ctx)
            for option in _OF_THE_CALLER:
                if isinstance(said.get(option), str | bool):
                    named = option.replace("_", "-")
                    raise click.UsageError(f"{where} names a --{named}; name it on the command line", ctx)
            if (asked := self.get_help_option(ctx)) is not None and said.get(str(asked.name)):
                raise click.UsageError(f"{where} asks for help; give --help on the command line", ctx)
            for taken in _taken(said):
                say(f"note: {where} takes {taken} along for the tasks")
            yield from words

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
        except click.NoSuchOption as error:
            raise click.UsageError(f"{where}: {unknown_option(error)}", ctx) from None
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
                near = nearest_options(name, known)
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


def _with_script(args: Sequence[str], command: Sequence[str], named: str) -> tuple[list[str], list[str]]:
    """The arguments and the command, as if the script that --script names were its first word."""
    options = list(args[: len(args) - len(command)])
    if options[-1:] == ["--"]:
        del options[-1]
    words = [STDIN if named in {"-", "/dev/stdin"} else named, *command]
    return [*options, "--", *words], words


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
    for number, line in enumerate(_leading(_head(program)), 1):
        name, words = [*line.split(maxsplit=1), "", ""][:2]
        if name != DIRECTIVE:
            continue
        try:
            yield number, shlex.split(words, comments=True)
        except ValueError as error:
            raise click.UsageError(f"line {number} of {program} cannot be read: {error}") from None


def _is_of_slurm(line: str) -> bool:
    """Whether a line of the leading comments has options as sbatch reads them."""
    return line.startswith((f"{_OF_SLURM} ", f"{_OF_SLURM}\t"))


def _has_options(program: str) -> bool:
    """Whether the program is a script of the present folder with lines of options that count."""
    return any(map(_is_of_slurm, _leading(_head(program)))) or any(directives(program))


def script_of(command: Sequence[str]) -> str | None:
    """The script that the command runs, whose options count: its first word, or the one after an interpreter.

    A word is a program on PATH, unless a file of this folder has options. None if there is no such text.
    """
    program = command[0]
    if _INTERPRETER.fullmatch(os.path.basename(program)):  # noqa: PTH119 (a name may be anything)
        options = [*takewhile(lambda word: word.startswith("-"), command[1:_MOST_WORDS])]
        program = "".join(command[1 + len(options) : 2 + len(options)])
        return program if _head(program) and "-c" not in options else None
    found = None if "/" in program else shutil.which(program)
    path = program if found is None or _has_options(program) else found
    return path if _head(path) else None


def _taken(said: Mapping[str, Any]) -> Iterator[str]:
    """What the options of a script, which may be somebody else's, take from the one who submits it."""
    for names in said.get("export", ()):
        yield f"variables of your environment (--export {names})"
    for option, what in (("env_file", "the variables in your file"), ("stage", "your file")):
        for file in said.get(option, ()):
            yield f"{what} {file} (--{option.replace('_', '-')})"


def unheeded(command: Sequence[str]) -> Iterator[str]:
    """A sentence for each kind of lines in scripts of the command that look like options and do not count."""
    script = script_of(command)
    for path in dict.fromkeys([*([] if script is None else [script]), *command[:_MOST_WORDS]]):
        head = _head(path)
        leading = [*_leading(head)]
        heeded = {number for number, _ in directives(path)} if path == script else set()
        heeded |= {number for number, line in enumerate(leading, 1) if path == script and _is_of_slurm(line)}
        found: dict[str, list[int]] = {}
        for number, line in enumerate(head.splitlines(), 1):
            if number not in heeded and (said := _OPTIONS.match(line)) is not None:
                found.setdefault(_why_unheeded(said, late=number > len(leading), counts=path == script), []).append(
                    number
                )
        for why, numbers in found.items():
            lines = ", ".join(map(str, numbers[:5])) + (" …" if len(numbers) > 5 else "")
            verb = "s {} of {} do" if len(numbers) > 1 else " {} of {} does"
            yield f"line{verb.format(lines, path)} not count: {why}"


def _why_unheeded(said: re.Match[str], *, late: bool, counts: bool) -> str:
    name = said[2]
    if name.upper() not in ("FAIRLOG", "SBATCH"):
        return f"#{name} is of another scheduler; write {DIRECTIVE} and options of `fairlog submit --help`"
    if said[1] or name != name.upper():
        return f"write #{name.upper()}, in capitals and without a blank"
    if not counts:
        return "the command does not begin with this script; name it first, or give its options on the command line"
    return "options stand before the first command" if late else "its options cannot be told"


def _leading(head: str) -> Iterator[str]:
    """The leading comments of a script."""
    return takewhile(lambda line: not line.strip() or line.startswith("#"), head.splitlines())


def as_command(command: Sequence[str]) -> tuple[str, ...]:
    """The command to run: a script of this folder by its path, by its interpreter if it is not executable.

    A script without `#!` is run by sh, as a shell does.

    Raises: click.UsageError if it is a script, such as NAME.sh, that is neither here nor on PATH, or one that no
    interpreter could read or that names none.
    """
    program = command[0]
    ending = os.path.splitext(program)[1]  # noqa: PTH122 (a name may be anything)
    if (ending == ".sh" or ending in _INTERPRETERS) and not program.startswith("/") and not _is_here(program):
        where = "" if "/" in program else " and none on PATH"
        raise click.UsageError(
            f"there is no script {program!r} in {read_folder()}{where}; check its name, or give the absolute path of "
            "one that only the workers have"
        )
    _check_runnable(program)
    script = script_of(command)
    if script is None:
        return tuple(command)
    head = _head(script)
    interpreted = script != program and script in command
    runs_it = program if interpreted else head.splitlines()[0] if "#!" in head[:3] else "sh"
    if not interpreted or _is_shell(program):
        _check_readable(script, head, shell=_is_shell(runs_it))
    if script != program:  # what an interpreter reads, or what is on PATH
        as_it_is = interpreted or head.startswith("#!")
        return tuple(command) if as_it_is else ("sh", script, *command[1:])
    path = program if "/" in program else f"./{program}"
    executable = os.access(path, os.X_OK)
    if head.startswith("#!"):
        return (path, *command[1:]) if executable else (*shlex.split(head.splitlines()[0][2:]), path, *command[1:])
    if ending in _INTERPRETERS:
        by = _INTERPRETERS[ending]
        raise click.UsageError(f"{program} does not say by `#!` what runs it; type `{_verb()} -- {by} {path} …`")
    if executable or _has_options(program) or ending == ".sh":
        return ("sh", path, *command[1:])
    if program == STDIN:
        raise click.UsageError(
            "the script from standard input does not say by `#!` what runs it; begin it with `#!/bin/sh`, for example"
        )
    raise click.UsageError(
        f"{program} is a text that cannot be executed; begin it with `#!` and its interpreter, or name that: "
        f"`{_verb()} -- sh {path} …`"
    )


def _verb() -> str:
    """The verb that was typed: "fairlog run"."""
    context = click.get_current_context(silent=True)
    return "fairlog submit" if context is None else context.command_path


def in_folder(command: Sequence[str], folder: str) -> tuple[str, ...]:
    """The command with the path of its script in the folder, from which it can be found elsewhere."""
    script = script_of(command)
    if script in {None, STDIN} or script not in command or os.path.isabs(script):  # noqa: PTH117 (a name may be anything)
        return tuple(command)
    at = command.index(script)
    return (*command[:at], os.path.normpath(os.path.join(folder, script)), *command[at + 1 :])  # noqa: PTH118 (likewise)


def _check_runnable(program: str) -> None:
    """Raises: click.UsageError for a folder of here, a file without content, or standard input, as a program."""
    if program in {"-", "/dev/stdin"}:
        raise click.UsageError(
            f"{program} is no program; to run a script from standard input, type `{_verb()} --script -`"
        )
    if "/" not in program and shutil.which(program) is not None:
        return
    with suppress(OSError, ValueError):
        about = os.stat(program)  # noqa: PTH116 (a name may be anything)
        if stat.S_ISDIR(about.st_mode):
            raise click.UsageError(f"{program} is a folder; name the program or the script in it")
        if program.startswith("/"):  # the worker's file of that name may be another one
            return
        if stat.S_ISREG(about.st_mode) and not about.st_size:
            raise click.UsageError(f"{program} is empty, so there is nothing to run")


def _check_readable(script: str, head: str, *, shell: bool) -> None:
    """Raises: click.UsageError for what an editor of another system put into a script, so that it fails late."""
    if head.startswith(("\ufeff", _UTF_16)):
        if shell or head[1:3] == "#!" or head.startswith(_UTF_16):
            raise click.UsageError(
                f"{script} begins with a byte-order mark, so nothing runs it as a script; save it as UTF-8 without one"
            )
        return
    lines = head.splitlines(keepends=True)
    dos = sum(line.endswith(("\r\n", "\r")) for line in lines)
    if dos and ((head.startswith("#!") and lines[0].endswith("\r\n")) or (shell and 2 * dos > len(lines))):
        by = "tr -d '\\r'" if script == STDIN else f"sed -i 's/\\r$//' {shlex.quote(script)}"
        raise click.UsageError(
            f"{script} has the line ends of DOS (CRLF), which its interpreter takes for a part of each line; convert "
            f"it by `{by}`"
        )


def _is_shell(text: str) -> bool:
    """Whether a program, or the first line of a script, names a shell."""
    return any(_SHELL.fullmatch(os.path.basename(word)) for word in text.removeprefix("#!").split())  # noqa: PTH119


def _is_here(program: str) -> bool:
    return os.path.lexists(program) or shutil.which(program) is not None


def _head(program: str) -> str:
    """The beginning of a text file, in whatever encoding; "" if it is none."""
    try:
        if program == STDIN:
            head = _read_stdin()[:_HEAD_BYTES]
        elif not os.path.isfile(program):  # noqa: PTH113 (Path.is_file raises for some names)
            return ""
        else:
            with open(program, "rb") as file:  # noqa: PTH123 (likewise)
                head = file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return ""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return _UTF_16
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
    """The variables of this process of those names; `ALL` = all but fairlog's own and the shell's; `-NAME` = not that.

    Raises: click.UsageError for one that is not set.
    """
    found: dict[str, str] = {}
    here = {of_bytes(name): of_bytes(value) for name, value in os.environb.items()}
    without = {name[1:] for name in names if name.startswith("-")}
    for name in names:
        if name.startswith("-"):
            continue
        if name.upper() == "ALL":
            own = {each for each in here if each.startswith(("FAIRLOG_", "_FAIRLOG_"))} | _OF_THE_SHELL
            found |= {each: value for each, value in here.items() if each not in own}
        elif name in here:
            found[name] = here[name]
        else:
            raise click.UsageError(f"the environment variable {name[:40]!r} is not set; leave it out of --export")
    return {name: value for name, value in found.items() if name not in without}


class Copy(NamedTuple):
    """A script that is copied with its app: the command, of which it is the word `at`, and what is in it."""

    command: tuple[str, ...]
    at: int
    content: bytes


def with_copy(command: Sequence[str], *, asked: bool) -> Copy | tuple[str, ...]:
    """The command to run, with a copy of its script if that is `asked` for, or is a shell's and the first word.

    Raises: click.UsageError as `as_command`; click.BadParameter for a script that cannot be read or is too large.
    """
    script, stdin = command[0], command[0] == STDIN
    words = tuple(command) if asked and script_of(command) is None else as_command(command)
    path = script if script in words else f"./{script}"
    if path not in words or not (asked or (script_of(command) == script and _runs_shell(script))):
        return words
    try:
        content = _read_stdin() if stdin else Path(script).read_bytes()
        script_value(content, script)
    except (OSError, InvalidCommand) as error:
        why = f"{script} cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise click.BadParameter(why, param_hint="--script" if asked else "CMD") from None
    if not content:
        raise click.BadParameter("the script is empty", param_hint="--script")
    at = words.index(path)
    return Copy((*words[:at], "script" if stdin else path, *words[at + 1 :]), at, content)


def _runs_shell(script: str) -> bool:
    """Whether a shell runs the script, which then knows nothing of the folder that it stands in."""
    first = _head(script).split("\n", 1)[0]
    return not first.startswith("#!") or _is_shell(first)


def _read_stdin() -> bytes:
    """What comes by standard input, up to more than a script can have; it is read once for a command line."""
    told = click.get_current_context().meta
    if _STDIN_READ not in told:
        told[_STDIN_READ] = sys.stdin.buffer.read(MOST_SCRIPT_BYTES + 1)
    found: bytes = told[_STDIN_READ]
    return found
