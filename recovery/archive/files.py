"""Files named by a URL: a path or `file://` on this machine, or any other place that fsspec knows.

A file appears all at once, when all of it was written, and what it was called before stays until then; on this machine
it is on disk by then. Whatever a place has against it is told as one sentence, `Unreachable`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Any, cast
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from scheduler.model.errors import FairlogError

DRAFT = ".draft"
_INSTALL = "pip install 'fairlog[archive]'"


class Unreachable(FairlogError):
    """A place could not be read, or not be written."""


class _Asking:
    """Whatever is raised inside is raised as `Unreachable`, since each kind of place has errors of its own."""

    def __init__(self, url: str, what: str) -> None:
        self._said = f"{_named(url)} cannot be {what}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, Exception):
            raise Unreachable(f"{self._said}: {_reason(error)}") from error


def needed(module: str, what: str) -> ModuleType:
    """A library of the extra `archive`, imported now.

    Raises: Unreachable saying `what` needs it, and how it is installed.
    """
    try:
        return import_module(module)
    except ImportError:
        raise Unreachable(f"{what} needs {module}, which is not installed; run {_INSTALL}") from None


def path_of(url: str) -> Path | None:
    """The file on this machine that `url` means, None if it is somewhere else.

    Raises: Unreachable if it means nothing.
    """
    if "://" not in url:
        return Path(url)
    with _Asking(url, "read"):
        parts = urlsplit(url)
    if parts.scheme != "file":
        return None
    if parts.netloc not in {"", "localhost"}:
        raise Unreachable(f"{url} does not name a file of this machine; write it like file:///FOLDER/FILE")
    return Path(unquote(parts.path))


@contextmanager
def written(url: str, *, private: bool = False) -> Iterator[IO[bytes]]:
    """A new file at `url`, there only once the block has ended well; if `private`, for its owner's eyes only.

    Raises: Unreachable if the place cannot be written.
    """
    path = path_of(url)
    if path is None:
        with tempfile.TemporaryFile() as copy:
            yield cast("IO[bytes]", copy)
            copy.seek(0)
            _upload(copy, url)
        return
    try:
        with whole_file(path, private=private) as draft, draft.open("wb") as file:
            yield file
    except OSError as error:
        raise Unreachable(f"{_named(url)} cannot be written: {_reason(error)}") from error


@contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Where to write what becomes the file `path` at the end, on disk by then; what it held before stays until then.

    Raises: Unreachable if it can be no file, or its folder is not there; OSError from writing it.
    """
    if not path.name:
        raise Unreachable(f"{_named('' if path == Path() else str(path))} cannot be written: it is not a file")
    if not path.parent.is_dir():
        raise Unreachable(f"{path} cannot be written: there is no folder {path.parent}")
    draft = path.with_name(f"{path.name}.{uuid4().hex[:8]}{DRAFT}")
    try:
        draft.touch(mode=0o600 if private else 0o666, exist_ok=False)
        yield draft
        _sync(draft)
        draft.replace(path)
        _sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def opened(url: str) -> Iterator[IO[bytes]]:
    """The file at `url`, to be read. Raises: Unreachable if it is not there or cannot be read."""
    path = path_of(url)
    if path is not None:
        with _Asking(url, "read"):
            file = path.open("rb")
        with file:
            yield file
        return
    with tempfile.NamedTemporaryFile() as copy:
        system, place = _elsewhere(url)
        with _Asking(url, "read"):
            system.get_file(place, copy.name)
        with Path(copy.name).open("rb") as file:
            yield file


def make_folder(url: str) -> None:
    """See to it that there is a folder at `url`. Raises: Unreachable if there can be none."""
    path = path_of(url)
    if path is not None:
        with _Asking(url, "written"):
            path.mkdir(parents=True, exist_ok=True)
        return
    system, place = _elsewhere(url)
    with _Asking(url, "written"):
        system.makedirs(place, exist_ok=True)


def names(url: str) -> list[str]:
    """The names of what is in the folder at `url`; none if there is no such folder.

    Raises: Unreachable if that cannot be told.
    """
    path = path_of(url)
    if path is not None:
        with _Asking(url, "read"):
            return sorted(os.listdir(path)) if path.exists() else []  # noqa: PTH208 (names are what is asked for)
    system, place = _elsewhere(url)
    with _Asking(url, "read"):
        system.invalidate_cache()
        try:
            found = system.ls(place, detail=False)
        except FileNotFoundError:
            found = []
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)


def remove(url: str) -> None:
    """Remove the file at `url`. Raises: Unreachable if it cannot be."""
    path = path_of(url)
    if path is not None:
        with _Asking(url, "removed"):
            path.unlink()
        return
    system, place = _elsewhere(url)
    with _Asking(url, "removed"):
        system.rm_file(place)


def _upload(file: IO[bytes], url: str) -> None:
    """Bring the file to `url` under a name of its own first: not every place takes a file whole or not at all."""
    system, place = _elsewhere(url)
    draft = f"{place}.{uuid4().hex[:8]}{DRAFT}"
    with _Asking(url, "written"):
        with system.open(draft, "wb") as there:
            while part := file.read(1 << 22):
                there.write(part)
        system.mv(draft, place)


def _elsewhere(url: str) -> tuple[Any, str]:
    """fsspec's file system for `url`, and what it calls the place."""
    fsspec = needed("fsspec", f"{url}, which is not on this machine,")
    with _Asking(url, "reached"):
        system, place = fsspec.core.url_to_fs(url)
        return system, str(place)


def _sync(path: Path) -> None:
    """Return once the file, or the names in the folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _named(url: str) -> str:
    return url or "a place without a name"


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
