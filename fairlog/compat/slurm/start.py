"""How a command is started, and the folder in which they are."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from fairlog.compat.slurm.words import SlurmError, Table, read, usage

COMMANDS = {
    "sbatch": "[OPTION]... SCRIPT [ARGUMENT]...",
    "squeue": "[OPTION]...",
    "scancel": "[OPTION]... [JOB]...",
    "sacct": "[OPTION]...",
    "srun": "[OPTION]... COMMAND [ARGUMENT]...",
    "scontrol": "[OPTION]... COMMAND...",
    "sinfo": "[OPTION]...",
    "sacctmgr": "[OPTION]... list user|account|cluster|qos [format=FIELDS]",
    "sshare": "[OPTION]...",
    "sdiag": "[OPTION]...",
}
"""The commands, and what follows their names."""
VERSION = "slurm 22.05.8"
"""The version of Slurm whose commands these stand for, as clients read it."""


def main(command: str, words: list[str]) -> int:
    """Run the command; a failure is one line on stderr. Returns the exit code."""
    from fairlog.compat.slurm import tables  # noqa: PLC0415 (so that this module alone makes folders)

    table = getattr(tables, command.upper())
    if wanted := _shown(command, table, words):
        sys.stdout.write((VERSION if wanted == "version" else usage(command, table, COMMANDS[command])) + "\n")
        return 0
    try:
        code: int = import_module(f"fairlog.compat.slurm.{command}").run(words)
        sys.stdout.flush()
    except SlurmError as refusal:
        sys.stderr.write(f"{command}: error: {' '.join(str(refusal).split())}\n")
        return refusal.code
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where stdout has failed, its end would fail again
        sys.stderr.write(f"{command}: error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _shown(command: str, table: Table, words: list[str]) -> str:
    """The option among the words by which the command only tells of itself; "" without one, and if they are wrong."""
    try:
        given, _ = read(table, words, mixed=command not in ("sbatch", "srun"))
    except SlurmError:
        return ""
    return next((option.name for option, _ in given if option.name in ("help", "usage", "version")), "")
