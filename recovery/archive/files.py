"""Files named by a URL: a path or `file://` on this machine, or any other place that fsspec supports.

A file is replaced atomically after it is completely written, and synced on this machine. All errors of a place are
raised as `PlaceUnreachable`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any, cast
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from scheduler.model.errors import FairlogError
from scheduler.service.private import private_folder

DRAFT = ".draft"
_INSTALL = "pip install 'fairlog[archive]'"


class PlaceUnreachable(FairlogError):
    """A place cannot be read or written."""


class _Errors:
    """A context that raises every error as `PlaceUnreachable`, because each kind of place has its own."""

    def __init__(self, url: str, what: str) -> None:
        self._sentence = f"{_named(url)} cannot be {what}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, PlaceUnreachable):
            raise PlaceUnreachable(f"{self._sentence}: {_reason(error)}") from error


def needed(module: str, what: str) -> ModuleType:
    """Import a library of the extra `archive`. Raises: Unreachable with the command that installs it for `what`."""
    try:
        return import_module(module)
    except ImportError:
        raise PlaceUnreachable(f"{what} needs {module}, which is not installed; run {_INSTALL}") from None


def path_of(url: str) -> Path | None:
    """The path that `url` names on this machine, None if it is elsewhere. Raises: Unreachable if it is invalid."""
    if "://" not in url:
        return Path(url)
    with _Errors(url, "read"):
        parts = urlsplit(url)
    if parts.scheme != "file":
        return None
    if parts.netloc not in {"", "localhost"}:
        raise PlaceUnreachable(f"{url} does not name a file on this machine; write file:///FOLDER/FILE")
    return Path(unquote(parts.path))


@contextmanager
def written(url: str) -> Iterator[IO[bytes]]:
    """A new file at `url`, created when the block ends without error; on this machine, with mode 0600.

    Raises: Unreachable if it cannot be written.
    """
    path = path_of(url)
    if path is None:
        with tempfile.TemporaryFile() as copy:
            yield cast("IO[bytes]", copy)
            copy.seek(0)
            _upload(copy, url)
        return
    try:
        with whole_file(path, private=True) as draft, draft.open("wb") as file:
            yield file
    except OSError as error:
        raise PlaceUnreachable(f"{_named(url)} cannot be written: {_reason(error)}") from error


@contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[Path]:
    """A draft that replaces the file `path`, synced, when the block ends without error; if `private`, with mode 0600.

    Raises: Unreachable if `path` has no file name, is no file, or its folder does not exist; OSError if it cannot be
    written.
    """
    if not path.name:
        raise PlaceUnreachable(f"{_named('' if path == Path() else str(path))} cannot be written: it has no file name")
    if not path.parent.is_dir():
        raise PlaceUnreachable(f"{path} cannot be written: folder {path.parent} does not exist")
    if path.exists() and not path.is_file():
        raise PlaceUnreachable(f"{path} cannot be written: it is a folder or a device; name a file")
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
    """The file at `url`, opened for reading. Raises: Unreachable if it does not exist or cannot be read."""
    path = path_of(url)
    if path is not None:
        with _Errors(url, "read"):
            file = path.open("rb")
        with file:
            yield file
        return
    with tempfile.NamedTemporaryFile() as copy:
        with _Errors(url, "read"):
            system, place = _elsewhere(url)
            system.get_file(place, copy.name)
        with Path(copy.name).open("rb") as file:
            yield file


def make_folder(url: str) -> None:
    """Create the folder `url` unless it exists; on this machine, with mode 0700.

    Raises: Unreachable if it cannot be created.
    """
    with _Errors(url, "written"):
        if (path := path_of(url)) is not None:
            private_folder(path)
        else:
            system, place = _elsewhere(url)
            system.makedirs(place, exist_ok=True)


def names(url: str) -> list[str]:
    """The names in the folder `url`, sorted; empty if it does not exist. Raises: Unreachable if it cannot be read."""
    with _Errors(url, "read"):
        try:
            if (path := path_of(url)) is not None:
                return sorted(os.listdir(path))  # noqa: PTH208 - only names are needed
            system, place = _elsewhere(url)
            system.invalidate_cache()
            return sorted(str(name).rstrip("/").rpartition("/")[2] for name in system.ls(place, detail=False))
        except FileNotFoundError:
            return []


def remove(url: str) -> None:
    """Remove the file at `url`. Raises: Unreachable if it cannot be removed."""
    with _Errors(url, "removed"):
        if (path := path_of(url)) is not None:
            path.unlink()
        else:
            system, place = _elsewhere(url)
            system.rm_file(place)


def _upload(file: IO[bytes], url: str) -> None:
    """Upload the file under a temporary name first: not every place creates files atomically."""
    system, place = _elsewhere(url)
    draft = f"{place}.{uuid4().hex[:8]}{DRAFT}"
    with _Errors(url, "written"):
        moved = False
        try:
            with system.open(draft, "wb") as there:
                shutil.copyfileobj(file, there, 1 << 22)
            system.mv(draft, place)
            moved = True
        finally:
            if not moved:
                with suppress(OSError):
                    system.rm_file(draft)


def _elsewhere(url: str) -> tuple[Any, str]:
    """fsspec's file system for `url`, and the path in it."""
    fsspec = needed("fsspec", url)
    with _Errors(url, "reached"):
        system, place = fsspec.core.url_to_fs(url)
        return system, str(place)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _named(url: str) -> str:
    return url or "an empty file name"


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
