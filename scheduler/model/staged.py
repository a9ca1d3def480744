"""Small files that come with an app, and lie in the scratch folder of each of its executors and of its driver.

They travel as the secret variable `FILES`, sealed as others are, which no program finds in its environment. So does the
copy of the app's script, as `SCRIPT`, with a bound of its own; its digest is in the private part of the log, so that
what runs is what was submitted.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import PurePath

from scheduler.model.errors import InvalidCommand
from scheduler.model.text import counted

FILES = "FAIRLOG_FILES"
MOST_FILES = 32
MOST_BYTES = 40 * 1024
"""Of all files of an app together; encoded, they are among its variables, which have a bound of their own."""
SCRIPT = "FAIRLOG_SCRIPT"
MOST_SCRIPT_BYTES = 4 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")


def packed(files: Mapping[str, bytes]) -> str:
    """The value of the variable. Raises: InvalidCommand for too many or too large ones, or names of no plain file."""
    if len(files) > MOST_FILES:
        raise InvalidCommand(f"at most {MOST_FILES} files can be staged, not {len(files)}; stage an archive of them")
    if sum(map(len, files.values())) > MOST_BYTES:
        raise InvalidCommand(
            f"the staged files have more than {MOST_BYTES} bytes together, which is the most; put larger ones into a "
            "folder that the workers share"
        )
    for name in files:
        _check(name)
    return json.dumps({name: b64encode(content).decode() for name, content in sorted(files.items())})


def unpacked(text: str) -> dict[str, bytes]:
    """The files of the variable's value. Raises: InvalidCommand for one that `packed` does not make."""
    try:
        said = json.loads(text)
        files = {name: b64decode(content, validate=True) for name, content in said.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidCommand(f"{FILES} holds no files: {error}; stage them with `fairlog submit --stage`") from None
    for name in files:
        _check(name)
    return files


def script_value(content: bytes, name: str) -> str:
    """The value of the variable with the script of that name. Raises: InvalidCommand if it is too large."""
    if len(content) > MOST_SCRIPT_BYTES:
        raise InvalidCommand(
            f"the script {name[:80]!r} has {counted(len(content), 'byte')}, and one of at most "
            f"{MOST_SCRIPT_BYTES} is copied; "
            "put what is larger into a file that the workers share"
        )
    return b64encode(content).decode()


def script_of_value(value: str) -> bytes:
    """The script of the variable's value. Raises: InvalidCommand if it is none, or too large."""
    try:
        content = b64decode(value, validate=True)
    except ValueError as error:
        raise InvalidCommand(f"{SCRIPT} holds no script in base64: {error}; submit it with --script") from None
    script_value(content, SCRIPT)
    return content


def digest_of(script: bytes) -> str:
    """What the log says of a script."""
    return blake2b(script, digest_size=32).hexdigest()


def script_name(word: str, others: Mapping[str, bytes]) -> str:
    """The name of the copy of the script that the command calls so, beside other files."""
    name = PurePath(word).name
    if not _NAME.fullmatch(name):
        name = "script"
    while name in others:
        name = f"script-{name[-100:]}"
    return name


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidCommand(
            f"a staged file's name has 1 to 128 letters, digits, '.', '_', '+' or '-' and does not begin with a dot or "
            f"a dash, not {name[:80]!r}; rename it"
        )
