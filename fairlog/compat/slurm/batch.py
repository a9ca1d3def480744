"""The batch script of a job: how it is read, and the command that runs it in its task."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from fairlog.compat.slurm.words import SlurmError

DIRECTIVE = "#SBATCH"
MOST_BYTES = 4 * 1024 * 1024
"""The largest script of which a copy is stored."""
NAME = "slurm_script"
"""What the copy is called in the job."""
PLACE = 4
"""The place of the script in the command of a job on one node."""
NODE_PROGRAM = "fairlog.compat.slurm.node_program"
"""The module that each node of a job on several runs, and what reaches one for a step."""
VARIABLES = r"""
export SLURM_JOB_ID="$FAIRLOG_APP_NUMBER" SLURM_JOBID="$FAIRLOG_APP_NUMBER" SLURM_TASK_PID=$$
SLURMD_NODENAME=$(hostname -s 2>/dev/null || uname -n)
export SLURMD_NODENAME SLURM_JOB_NODELIST="$SLURMD_NODENAME" SLURM_NODELIST="$SLURMD_NODENAME"
export SLURM_CPUS_ON_NODE="$FAIRLOG_TASK_CORES" SLURM_JOB_CPUS_PER_NODE="$FAIRLOG_TASK_CORES"
if [ -n "$SLURM_ARRAY_TASK_COUNT" ]; then
  export SLURM_ARRAY_JOB_ID="$SLURM_JOB_ID" SLURM_ARRAY_TASK_ID="$FAIRLOG_TASK_INDEX"
fi
[ "${FAIRLOG_ATTEMPT:-1}" -le 1 ] || export SLURM_RESTART_COUNT=$((FAIRLOG_ATTEMPT - 1))
[ -w "$HOME" ] || export HOME="${FAIRLOG_SCRATCH:-/tmp}"
cd -- "$SLURM_SUBMIT_CHDIR" 2>/dev/null; unset SLURM_SUBMIT_CHDIR
export SLURM_STEPS="${FAIRLOG_SCRATCH:-/tmp}/slurm-$FAIRLOG_TASK_INDEX"
mkdir -p "$SLURM_STEPS"
if [ -n "$FAIRLOG_HOSTS" ]; then
  export SLURM_JOB_NODELIST="$FAIRLOG_HOSTS" SLURM_NODELIST="$FAIRLOG_HOSTS" SLURM_NODEID="$FAIRLOG_RANK"
  SLURMD_NODENAME=$(echo "$FAIRLOG_HOSTS" | cut -d, -f$((FAIRLOG_RANK + 1)))
  export SLURM_JOB_CPUS_PER_NODE="$FAIRLOG_TASK_CORES(x$FAIRLOG_WORLD)"
  n=$(((${FAIRLOG_EXECUTOR_ID##*.} - FAIRLOG_RANK) / FAIRLOG_WORLD))
  [ "$n" -eq 0 ] || export SLURM_RESTART_COUNT=$n
fi
"""
"""A shell's script that sets the variables of a job which its task alone knows, and goes to the job's folder."""
PRELUDE = (
    VARIABLES
    + r"""
how=${0%% *} w=${0#* } s=$1 stdin=$2
[ -x "$s" ] || chmod 700 "$s"
shift 3
steps() { n=1; for p in "$SLURM_STEPS"/step.*; do [ -e "$p" ] && kill -"$1" "${p##*.}" && n=0; done; return $n; }
script() { kill -"$1" "$c"; }
either() { steps "$1" || script "$1"; }
exec 3>&2 2>/dev/null
[ "$w" = "$how" ] || ( (sleep "${w#* }"; kill -"${w%% *}" $$) < /dev/null > /dev/null & )
set -m
( while read -r _ _ p _ < /proc/$$/stat && [ "$p" != S ]; do :; done; exec "$s" "$@" 2>&3 3>&- < "$stdin" ) &
c=$!
set +m
exec 3>&-
for n in HUP INT QUIT TERM CONT; do trap "t=1; script $n" $n; done
for n in USR1 USR2 ALRM; do trap "t=1; $how $n" $n; done
[ -z "$BASH_VERSION" ] || trap 'k=$(LC_ALL=C jobs -l); [ -z "$k" ] || j=$k' CHLD
while :; do t=; wait "$c"; r=$?; [ -n "$t" ] || break; done
set -f; set -- $j
case $3 in Done) exit 0;; Exit) exit "$4";; ""|Running|Stopped) exit $r;; esac
[ $r -gt 128 ] || exit $r
trap - CHLD $((r - 128)); kill -$((r - 128)) $$; exit $r
"""
)
"""A shell's script. $0: whom a signal that the job was to get is for: `script`, `steps` or
`either`, the script if there are no steps; in an array, also a signal and after how many seconds it comes. Then the
copy of the script, its stdin, the file of which it is a copy, and its arguments. The task's own process stays beside
the script, so that it can pass signals on; of how the script has ended, bash knows more than the exit code of a
`wait`, if it waits already: so the script begins once it does (S). A `wait` that a signal has broken off is repeated.
Programs write into their home, which a cell does not have: then the scratch folder stands for it."""


def read_script(name: str) -> bytes:
    """The script in the file; of stdin for `-`. Raises: Refused as sbatch refuses it."""
    try:
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise SlurmError(f"Unable to open file {name}: {error.strerror}") from None
    return checked(content)


def checked(content: bytes) -> bytes:
    """The script. Raises: Refused for what is no script, or cannot be run as one."""
    if not content.strip():
        raise SlurmError("Batch script is empty!")
    if not content.startswith(b"#!"):
        raise SlurmError(
            "This does not look like a batch script: the first line must start with #! followed by the path to an "
            "interpreter, for instance #!/bin/sh"
        )
    if b"\0" in content:
        raise SlurmError("The Slurm controller does not allow scripts that contain a NULL character '\\0'.")
    if b"\r\n" in content:
        raise SlurmError(r"Batch script contains DOS line breaks (\r\n) instead of expected UNIX line breaks (\n).")
    if len(content) > MOST_BYTES:
        raise SlurmError(f"the script has more than {MOST_BYTES} bytes; let it run another one that is in a file")
    return content


def wrapped(command: str) -> bytes:
    """The script that runs a command given by --wrap."""
    return os.fsencode(f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{command}\n")


def directives(script: bytes) -> list[str]:
    """The words of the lines `#SBATCH` before the first command of the script. Raises: Refused."""
    return [word for _, words in lines(os.fsdecode(script)) for word in words]


def lines(script: str) -> Iterator[tuple[int, list[str]]]:
    """The words of each line `#SBATCH` before the first command of the script, with its number from 1.

    Raises: Refused for words that cannot be told apart.
    """
    for number, line in enumerate(script.split("\n"), 1):
        if not line.strip():
            continue
        if not line.startswith("#"):
            break
        if line.startswith(DIRECTIVE) and line[len(DIRECTIVE) : len(DIRECTIVE) + 1] in (" ", "\t"):
            yield number, _words(line[len(DIRECTIVE) :], number)


def _words(line: str, number: int) -> list[str]:
    """The words of a line, quoted as in a shell; a word that begins with # ends them. Raises: Refused."""
    words: list[str] = []
    word, quote, place = None, "", 0
    while place < len(line):
        letter = line[place]
        place += 1
        if quote:
            if letter == quote:
                quote = ""
            elif letter == "\\" and quote == '"' and line[place : place + 1] in ('"', "\\"):
                word, place = (word or "") + line[place], place + 1
            else:
                word = (word or "") + letter
        elif letter.isspace():
            words += [] if word is None else [word]
            word = None
        elif letter == "#" and word is None:
            break
        elif letter in "'\"":
            word, quote = word or "", letter
        elif letter == "\\" and place < len(line):
            word, place = (word or "") + line[place], place + 1
        else:
            word = (word or "") + letter
    if quote:
        raise SlurmError(f"line {number} of the script: a quotation mark is not closed")
    return [*words, *([] if word is None else [word])]


def shell() -> str:
    """The shell of the prelude: a bash keeps functions of the environment, which sh drops."""
    return "bash" if any(os.access(f"{path}/bash", os.X_OK) for path in ("/bin", "/usr/bin")) else "sh"


def command_of(
    arguments: list[str], *, how: str, stdin: str, warn: tuple[str, int] | None = None, file: str = ""
) -> list[str]:
    """The command that runs the script in a task, a copy of the file.

    `warn`: the signal that it gets so many seconds after its start.
    """
    whom = how if warn is None else f"{how} {warn[0]} {warn[1]}"
    return [shell(), "-c", PRELUDE, whom, NAME, stdin or "/dev/null", file, *arguments]


def node_program(mode: str) -> list[str]:
    """The words that run the program of a node in that mode, without what lies in the folder where it runs."""
    return [sys.executable, "-I", "-m", NODE_PROGRAM, mode]


def on_nodes(command: list[str], outputs: list[str]) -> list[str]:
    """The command that each node of a job on several runs, the first for the sake of this one.

    `outputs` are the patterns of the job's files that are to be emptied.
    """
    return [*node_program("node"), *outputs, "--", *command]


def of_first_node(command: list[str]) -> list[str]:
    """The command of the script, whether the job is on one node or on several."""
    return command[command.index("--") + 1 :] if command[2:5] == ["-m", NODE_PROGRAM, "node"] else command


def is_of_batch(command: list[str]) -> bool:
    """Whether the command runs a script as `command_of` has it."""
    return command[2:3] == [PRELUDE] and len(command) > 6


def typed(command: list[str]) -> str:
    """The script's file and its arguments, "" if it has none; of any other command, the whole."""
    script = of_first_node(command)
    if is_of_batch(script):
        return " ".join(script[6:]) if script[6] else ""
    return " ".join(command)
