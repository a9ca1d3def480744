"""Seals outside the store, where the operator of a cluster cannot rewrite them: a file each, never replaced.

The name of a file holds the position and the digest, so a listing of the folder is enough to compare it with a log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from recovery.archive.files import make_folder, names, written
from scheduler.model.events import LogSealed

SEALS_VARIABLE = "FAIRLOG_SEALS"
"""The environment variable that names the URL of the folder to masters."""
_NAME = re.compile(r"(\d{15})-([0-9a-f]{64})\.seal")


class KeptSeal(NamedTuple):
    """What a kept seal says: the log ended a turn at `seq` with this digest."""

    seq: int
    digest: str


def keep(url: str, cluster: str, seal: LogSealed) -> None:
    """Write the seal below `url`, unless it is there. Raises: Unreachable."""
    folder = f"{url.rstrip('/')}/{cluster}"
    name = f"{seal.seq:015d}-{seal.digest}.seal"
    make_folder(folder)
    if name not in names(folder):
        with written(f"{folder}/{name}") as file:
            file.write(msgspec.json.encode(seal) + b"\n")


def kept(url: str, cluster: str) -> Iterator[KeptSeal]:
    """The seals kept below `url`, in order. Raises: Unreachable if the folder cannot be read."""
    for name in names(f"{url.rstrip('/')}/{cluster}"):
        if found := _NAME.fullmatch(name):
            yield KeptSeal(int(found[1]), found[2])
