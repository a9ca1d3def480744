"""What the agent's user can read and others of the machine cannot, in folders of which cells show all.

Tasks in cells run as that user, so the modes of these files keep nothing from them: cells hide them.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

SEARCHED = (Path("/opt"), Path("/usr/local"))
"""The system's folders in which people keep files of their own."""
SELDOM = 100
"""A search that took so long is not repeated within so many times as long."""
MANY = 20
"""A folder with more entries that are to be hidden is hidden as a whole."""


class PrivateFiles:
    """Files and folders to be hidden, looked for again now and then; what is at or below `shown` is not."""

    def __init__(self, shown: Iterable[Path], *, searched: Iterable[Path] = SEARCHED) -> None:
        self._searched = tuple(searched)
        self._shown = frozenset(shown) - frozenset(self._searched)
        self._found: tuple[Path, ...] = ()
        self._due_s = 0.0

    def paths(self) -> tuple[Path, ...]:
        """What is to be hidden, none of it below another one."""
        began_s = time.monotonic()
        if began_s >= self._due_s:
            self._found = tuple(path for folder in self._searched for path in unreadable(folder, self._shown))
            ended_s = time.monotonic()
            self._due_s = ended_s + SELDOM * (ended_s - began_s)
        return self._found


def unreadable(root: Path, shown: frozenset[Path] = frozenset()) -> tuple[Path, ...]:
    """What this process can read below `root` and others cannot, without what is `shown`; links are not followed."""
    found: list[str] = []
    folders = [str(root)]
    kept = set(map(str, shown))
    above = {str(folder) for path in shown for folder in path.parents} | {str(root)}
    for folder in folders:
        try:
            entries = [entry for entry in os.scandir(folder) if entry.path not in kept]
        except OSError:
            continue
        here: list[str] = []
        below: list[str] = []
        for entry in entries:
            try:
                mode = entry.stat(follow_symlinks=False).st_mode
            except OSError:
                continue
            if _hides(entry.path, mode) and entry.path not in above:
                here.append(entry.path)
            elif stat.S_ISDIR(mode):
                below.append(entry.path)
        if len(here) > MANY and folder not in above:
            found.append(folder)
            continue
        found += here
        folders += below
    return tuple(map(Path, found))


def _hides(path: str, mode: int) -> bool:
    """Whether this process can read the file or folder, and not everybody."""
    needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
    kind = stat.S_ISDIR(mode) or stat.S_ISREG(mode)
    return kind and mode & needed != needed and os.access(path, os.R_OK)
