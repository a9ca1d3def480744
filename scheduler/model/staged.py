"""Small files that come with an app, and lie in the scratch folder of each of its executors and of its driver.

They travel as the secret variable `FILES`, sealed as others are, which no program finds in its environment.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping

from scheduler.model.errors import InvalidCommand

FILES = "FAIRLOG_FILES"
MOST_FILES = 32
MOST_BYTES = 40 * 1024
"""Of all files of an app together; encoded, they are among its variables, which have a bound of their own."""
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


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidCommand(
            f"a staged file's name has 1 to 128 letters, digits, '.', '_', '+' or '-' and does not begin with a dot or "
            f"a dash, not {name[:80]!r}; rename it"
        )
