"""The folder in which the commands are, apart from all others, so that a real Slurm is not shadowed by accident."""

from __future__ import annotations

import os
import sys
from hashlib import blake2b
from pathlib import Path

from fairlog.compat.slurm.start import COMMANDS
from fairlog.folders import data_folder

_PROGRAM = """#!{python} -E
import sys

from fairlog.compat.slurm.start import main

sys.exit(main("{command}", sys.argv[1:]))
"""


def folder() -> Path:
    """The folder with the commands of this installation, made if it is not there.

    It is beside the interpreter; where that may not be written to, among this user's data. Raises: OSError.
    """
    beside = Path(sys.prefix) / "libexec" / "fairlog-slurm"
    try:
        return _made(beside)
    except OSError:
        own = blake2b(sys.prefix.encode(), digest_size=6).hexdigest()
        return _made(data_folder() / f"slurm-{own}")


def _made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for command in COMMANDS:
        text = _PROGRAM.format(python=sys.executable, command=command)
        program = path / command
        if not program.exists() or program.read_text(encoding="utf-8") != text or not os.access(program, os.X_OK):
            draft = path / f".{command}.{os.getpid()}"
            draft.write_text(text, encoding="utf-8")
            draft.chmod(0o755)
            draft.replace(program)
    for other in path.iterdir():
        if other.name not in COMMANDS and not other.name.startswith("."):
            other.unlink()
    return path
