"""The sentences in which workers say why something ended, of which the log may hold what is not left out.

A part in angle brackets is what the sentence names. What was submitted is left out; what the log tells anyway, numbers
and reasons of the system stay.
"""

from __future__ import annotations

import errno
import os
import re
from signal import Signals

LEFT_OUT = ("quoted", "said", "place")
"""The parts that do not stay."""
NAMED = ("worker", "company", "owner", "executor")
"""The parts that stay if there is such a one."""
_SYSTEM = "|".join(sorted({re.escape(os.strerror(number)) for number in errno.errorcode}))
_SIGNAL = "|".join(sorted(re.escape(each.name) for each in Signals))
_PARTS = {
    "who": r"(?:task \d{1,9}|its driver|its program)",
    "code": r"\d{1,3}",
    "number": r"\d{1,12}",
    "time": r"\d{1,12}(?:\.\d{1,6})?",
    "signal": rf"(?:{_SIGNAL}|signal \d{{1,3}})",
    "why": f"(?:{_SYSTEM}|its interpreter does not exist|it is no regular file)",
    "role": "(?:executor|driver)",
    "worker": r"(?P<worker>[^\s,;:()]+)",
    "company": r"(?P<company>\S+)",
    "owner": r"(?P<owner>\S+)",
    "executor": r"(?P<executor>\S+\.(?:driver-)?\d{1,9})",
    "quoted": r"""(?:'(?=.*')|"(?=.*"))(?P<quoted>.*)['"]""",
    "said": "(?P<said>.+?)",
    "place": "(?P<place>.+?)",
}
_OF_TASKS = (
    "<who> ended with exit code <code>",
    "<who> was ended by <signal>",
    "<who> was cancelled",
    "<who> was put back",
    "<who> exceeded its time limit of <time> s",
    "<who> used nothing of its cores for <number> s",
    "<who> used nothing of its GPUs for <number> s",
    "used <number> MiB, above the <number> MiB granted",
    "the tasks of <role> <executor> used <number> MiB; <number> MiB are granted",
    "its command cannot be started",
    (
        "its program ended with exit code <code> on worker <worker>, as shells do where a command does not exist or "
        "cannot be run; its output says which"
    ),
    "command <quoted> does not exist on worker <worker>",
    "command <quoted> cannot be run on worker <worker>: <why>",
    "directory <quoted> does not exist or is not accessible on worker <worker>",
    "the staged file <quoted> could not be written on worker <worker>: <why>",
    "the file <quoted> of its output cannot be opened on worker <worker>: <why>",
    "no log file on worker <worker>: <why>",
    "worker <worker> can start nothing at present",
    "how it ended could not be kept on worker <worker>: <why>",
    (
        "worker <worker> runs tasks without cells, and those of company <company> only; start it with --launcher cell, "
        "or permit several companies with --unsafe-plain"
    ),
    "the executor's cell has ended",
)
_OF_CELLS = (
    "the stored script is not the one that was submitted; submit it again",
    "the executor's cell has ended",
    "the executor's cell has ended: <said>",
    "no cell can be started: <said>",
    "neither user <owner> nor company <company> has an account here",
    "folder <quoted> cannot be an app's: it belongs to the system or to fairlog",
    (
        "folder <quoted> cannot be an app's: it is fairlog's, or only the worker's user may read it; give every user "
        "of the machine the right to, or name it to the worker with --share"
    ),
    (
        "folder <quoted> cannot be an app's: it holds files of the worker's user; use a folder below it, or name it to "
        "the worker with --folders"
    ),
    (
        "folder <quoted> cannot be an app's: apps of another company ran on this worker first, and what its user may "
        "write is theirs; start it with --folders '/srv/{company}' to say where apps of each company may have theirs"
    ),
    "folder <quoted> cannot be an app's: this worker takes folders below <place> (--folders)",
    (
        "folder <quoted> cannot be an app's: behind '..', or in /proc, /sys or /dev, a cell may find something else; "
        "name it by its own path"
    ),
    "folder <quoted> cannot be an app's: a link on the way to it leads elsewhere; name it by its own path",
    (
        "folder <quoted> cannot be an app's: above it, below the shared <place>, others than root may put a link in "
        "the place of a folder; share that with :rw"
    ),
    (
        "the output <quoted> would end with the cell, which has a <place> of its own; name a file in the app's folder "
        "or another one"
    ),
    "the folder <quoted> was put out of its place while the cell was started: <said>",
    (
        "fairlog-launch may not share <place>; its operator adds it to `share` of [cells] in its map, and starts it "
        "again"
    ),
    "fairlog-launch does not answer at <place>: <why>",
    "user <number> is not served by fairlog-launch",
    (
        "tasks of this worker run without cells, so it cannot keep their network <quoted>; start the worker with "
        "--launcher cell"
    ),
    "no network can be made for the app: <why>",
    "this worker has no image <quoted>; its operator starts it with --image",
    "the folder of image <quoted> cannot be opened: <why>",
    "others than root can change image <quoted> on this worker; give its folders to root",
    (
        "tasks of this worker run without cells, so it cannot show them the image <quoted>; start the worker with "
        "--launcher cell"
    ),
    "bubblewrap is not installed (apt install bubblewrap)",
)
"""Of these, the worker says who it is behind them, and before them if another program has said so."""
_HELPER = "fairlog-launch starts no cell: "
_SAYS = " (worker <worker>)"


def _read(sentence: str) -> re.Pattern[str]:
    parts = re.split(r"<(\w+)>", sentence)
    return re.compile("".join(_PARTS[part] if place % 2 else re.escape(part) for place, part in enumerate(parts)))


TEMPLATES = (
    *_OF_TASKS,
    *(f"{helper}{each}{_SAYS}" for each in _OF_CELLS for helper in ("", _HELPER)),
    f"{_HELPER}<said>{_SAYS}",
    f"<said>{_SAYS}",
)
"""Each of them as it is written above; the first that fits is taken."""
SENTENCES = tuple(map(_read, TEMPLATES))
