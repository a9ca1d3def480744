"""Images: root folders that an operator has unpacked, which cells show in the place of the machine's system.

A cell's first process is the machine's Python, which an image need not have, nor a C library that could start it. So
what Python needs of the machine is shown below `MACHINE`, and Python is started by its own loader there.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

from scheduler.model.errors import FairlogError
from scheduler.model.grants import IMAGE_LABEL

MACHINE = Path("/run/fairlog/machine")
"""Where a cell with an image shows what the first process needs of the machine."""
OF_THE_CELL = frozenset(map(Path, ("/proc", "/dev", "/sys", "/run", "/tmp", "/var/tmp")))  # noqa: S108 - its own
"""What a cell has of its own, whatever the image has there."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,50}")
_LOADER = re.compile(r"ld(-[\w-]+)?(\.so)?\.[\w.]+")


class BadImage(FairlogError):
    """A folder that is no image, or an image without a good name."""


def read_images(named: Collection[str]) -> dict[str, Path]:
    """Name -> folder, of options such as `alpine=/srv/images/alpine`. Raises: BadImage."""
    found: dict[str, Path] = {}
    for each in named:
        name, is_, folder = each.partition("=")
        if not is_ or not _NAME.fullmatch(name):
            raise BadImage(
                f"an image is NAME=FOLDER, such as alpine=/srv/images/alpine, and its name has letters, digits and "
                f"._-, not {each[:80]!r}"
            )
        path = Path(folder).absolute()
        if not any((path / part).is_dir() for part in ("usr", "bin", "lib")):
            raise BadImage(
                f"image {name} is to be {folder or 'nothing'}, which has neither usr nor bin nor lib: name the folder "
                "into which a whole system was unpacked"
            )
        if found.setdefault(name, path) != path:
            raise BadImage(f"--image names {name} twice; name each image once")
    return found


def labels_of(images: Mapping[str, Path]) -> dict[str, str]:
    """The labels by which apps find a worker with these images (semantics P9): their digests."""
    return {f"{IMAGE_LABEL}{name}": digest_of(folder) for name, folder in images.items()}


def digest_of(folder: Path) -> str:
    """16 hexadecimal digits that tell this image from others, by its listing.

    They follow from the names, kinds, permissions and sizes of all that is in it, where links lead, and when files
    were changed (s), all of which an archive keeps. What is in files is not read.
    """
    digest = blake2b(digest_size=8)
    for path, entry in _listed(str(folder), ""):
        about = entry.stat(follow_symlinks=False)
        target = os.readlink(entry.path) if entry.is_symlink() else ""  # noqa: PTH115 - as text
        size, at = (about.st_size, int(about.st_mtime)) if stat.S_ISREG(about.st_mode) else (0, 0)
        digest.update(f"{path}\0{about.st_mode:o}\0{size}\0{at}\0{target}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _listed(folder: str, within: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All below the folder in one order, with the path from the image's root."""
    for entry in _entries(folder):
        path = f"{within}/{entry.name}"
        yield path, entry
        if entry.is_dir(follow_symlinks=False):
            yield from _listed(entry.path, path)


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """What is in the folder, by name; nothing if it cannot be read."""
    try:
        return sorted(os.scandir(str(folder)), key=lambda entry: entry.name)
    except PermissionError:
        return []


def shown(image: Path, places: Collection[Path], check: Callable[[Path], object]) -> Iterator[str]:
    """Arguments of bubblewrap that show the image as `/`, where `places` are what else will be shown.

    A folder of the image is shown whole unless such a place lies in it. `check` is told of each folder of which single
    entries are shown, before they are.
    """
    yield from _shown(image, Path("/"), {*places, *OF_THE_CELL}, check)


def _shown(folder: Path, inside: Path, places: Collection[Path], check: Callable[[Path], object]) -> Iterator[str]:
    check(folder)
    above = {each for place in places for each in place.parents}
    for entry in _entries(folder):
        path = inside / entry.name
        if path in places or (path in above and not entry.is_dir(follow_symlinks=False)):
            continue
        if path in above:
            yield from ("--perms", "0755", "--dir", str(path))
            yield from _shown(folder / entry.name, path, places, check)
        elif entry.is_symlink():
            yield from ("--symlink", os.readlink(folder / entry.name), str(path))  # noqa: PTH115 - as text
        else:
            yield from ("--ro-bind", str(folder / entry.name), str(path))


@functools.cache
def python_folders() -> tuple[Path, ...]:
    """The folders of the machine without which its Python does not start."""
    loader, libraries = _loaded()
    needed = {Path(sys.base_prefix).resolve(), *libraries, *([] if loader is None else [loader.parent])}
    return tuple(sorted(path for path in needed if not any(other in path.parents for other in needed)))


def python_command() -> list[str]:
    """How the machine's Python is started in a cell with an image."""
    python = f"{MACHINE}{os.path.realpath(sys.executable)}"
    loader, libraries = _loaded()
    if loader is None:
        return [python]
    return [
        f"{MACHINE}{loader}",
        "--library-path",
        ":".join(f"{MACHINE}{folder}" for folder in libraries),
        "--argv0",
        python,
        python,
    ]


@functools.cache
def _loaded() -> tuple[Path | None, tuple[Path, ...]]:
    """The loader of this process, None if there is none, and the folders of the libraries of the system and Python."""
    paths = dict.fromkeys(
        Path(line[line.index("/") :])
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/" in line and ".so" in line and not line.endswith("(deleted)")
    )
    loader = next((path for path in paths if _LOADER.fullmatch(path.name)), None)
    apart = {"lib-dynload", "site-packages", "dist-packages"}
    libraries = dict.fromkeys(path.parent for path in paths if not apart.intersection(path.parts))
    return loader, tuple(libraries)
