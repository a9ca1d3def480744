"""The log of a cluster that no master need serve: what restores it, or decides how it goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fairlog.local import running
from fairlog.local.running import default_data, find_running

if TYPE_CHECKING:
    from fairlog.cli.target import Target
    from scheduler.service.keyring import Keyring
    from scheduler.store.eventlog import EventLog


class StoredLog(NamedTuple):
    """The log of a cluster, its keys, and the data folder of the `up` that it is in; None = in another store."""

    log: EventLog
    ring: Keyring | None
    data: Path | None


@contextmanager
def stored_log(target: Target, *, signs: bool = True) -> Iterator[StoredLog]:
    """The log and the keys of the cluster.

    Without --store and a running `up`, they are in a store started on the data of the next `up`; if the block fails,
    what was not in that folder before is removed from it. Raises: OtherKeys if FAIRLOG_KEYS names others than are
    there, unless nothing `signs`.
    """
    from fairlog.cli.session import opened  # noqa: PLC0415 (help needs none of it)
    from fairlog.local.store import EmbeddedStore  # noqa: PLC0415 (likewise)
    from scheduler.service.keyring import KEYS_FILE, keyring_at  # noqa: PLC0415 (likewise)
    from scheduler.store.connection import connect  # noqa: PLC0415 (likewise)
    from scheduler.store.durability import check_store  # noqa: PLC0415 (likewise)
    from scheduler.store.eventlog import EventLog  # noqa: PLC0415 (likewise)
    from scheduler.store.keys import Keys  # noqa: PLC0415 (likewise)

    up = None if target.store is not None else find_running(target.data)
    if target.store is not None or up is not None:
        with closing(opened(target, new=True)) as session:
            check_store(session.road.store, unsafe=target.unsafe_store)
            yield StoredLog(session.road.log, session.road.keyring, None if up is None else Path(up.data))
        return
    data = (target.data or default_data()).absolute()
    running.advise_for(data)
    if signs:
        running.check_own_keys(data)
    missing = [folder for folder in (data, *data.parents) if not folder.exists()]
    made = [path for name in ("store", KEYS_FILE, running.LOCK) if not (path := data / name).exists()]
    lock, well = running.lock(data), False
    try:
        with EmbeddedStore(data / "store") as store, connect(store.url) as connection:
            ring = keyring_at(data / KEYS_FILE)
            yield StoredLog(EventLog(connection, Keys(target.cluster or "default")), ring, data)
        well = True
    finally:
        if not well:
            _remove(made, missing)
        os.close(lock)


def _remove(made: Iterable[Path], folders: Iterable[Path]) -> None:
    """Remove what is there of these, and of the folders those that hold nothing else."""
    for path in made:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()
