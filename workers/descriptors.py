"""Files and folders by descriptor: no link that a program puts in a folder leads whoever works there elsewhere.

Programs may go on filling a folder, and swap what is in it, while it is emptied.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path

from scheduler.service.private import FOLDER

FOLDER_NOFOLLOW = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_NOFOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC


def make_folder(name: str, within: int) -> int:
    """Make a folder of that name, for this user alone. Returns its descriptor. Raises: OSError."""
    os.mkdir(name, FOLDER, dir_fd=within)
    return os.open(name, FOLDER_NOFOLLOW, dir_fd=within)


def remove_tree(folder: Path) -> None:
    """Delete a folder that programs have filled, as `empty` does; its parent is ours. What cannot be deleted stays."""
    with contextlib.suppress(OSError):
        within = os.open(folder.parent, FOLDER_NOFOLLOW)
        try:
            remove_folder(folder.name, within)
        finally:
            os.close(within)


def remove_folder(name: str, within: int) -> None:
    """Delete the folder of that name, as `remove_tree` does. Raises: OSError if it is none or something stays in it."""
    inner = _ready(name, within)
    try:
        empty(inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=within)


def empty(top: int, *, if_: Callable[[os.stat_result], bool] = lambda _: True) -> None:
    """Delete what is in a folder and fulfils the condition, whatever its modes and depth.

    What cannot be deleted stays. What a folder in it contains moves to its top: paths may be too long, and trees too
    deep, for any other way.
    """
    fresh = (each for each in map(".{}".format, count()) if not _exists(each, top))
    names = deque(os.listdir(top))
    while names:
        name = names.popleft()
        with contextlib.suppress(OSError):
            if _remove(name, top, if_):
                continue
            inner = _ready(name, top)
            try:
                for each in os.listdir(inner):  # noqa: PTH208 - likewise
                    if not _remove(each, inner, if_):
                        os.rename(each, moved := next(fresh), src_dir_fd=inner, dst_dir_fd=top)
                        names.append(moved)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)


def is_mount_point(about: os.stat_result) -> bool:
    """Whether it is what root leaves where it has mounted something: a folder, or an empty file, of its own."""
    return about.st_uid == 0 and (stat.S_ISDIR(about.st_mode) or (stat.S_ISREG(about.st_mode) and not about.st_size))


def _exists(name: str, within: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        os.stat(name, dir_fd=within, follow_symlinks=False)
        return True
    return False


def _remove(name: str, within: int, if_: Callable[[os.stat_result], bool]) -> bool:
    """Remove an entry of this folder, or let it be; False if it is a folder, which can then be read and moved."""
    about = os.stat(name, dir_fd=within, follow_symlinks=False)
    if not if_(about):
        return True
    if stat.S_ISDIR(about.st_mode):
        os.close(_ready(name, within))
        return False
    os.unlink(name, dir_fd=within)
    return True


def _ready(name: str, within: int) -> int:
    """The descriptor of a folder, in which its owner may do anything from then on. Raises: OSError, also for a link."""
    try:
        descriptor = os.open(name, FOLDER_NOFOLLOW, dir_fd=within)
    except PermissionError:
        _permit(name, within)
        return os.open(name, FOLDER_NOFOLLOW, dir_fd=within)
    with contextlib.suppress(OSError):  # what is not ours, and may be emptied nevertheless
        os.fchmod(descriptor, FOLDER)
    return descriptor


def _permit(name: str, within: int) -> None:
    """Give the owner all rights to a folder that cannot be opened."""
    if sys.platform != "linux":
        os.chmod(name, FOLDER, dir_fd=within, follow_symlinks=False)
        return
    place = os.open(name, FOLDER_NOFOLLOW | os.O_PATH, dir_fd=within)
    try:
        os.chmod(f"/proc/self/fd/{place}", FOLDER)  # noqa: PTH101 - what the descriptor stands for
    finally:
        os.close(place)
