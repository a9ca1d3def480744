"""The log of a cluster that no master need serve: what restores it, or decides how it goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from fairlog.local import running
from fairlog.local.running import default_data, find_running

if TYPE_CHECKING:
    from fairlog.cli.target import Target
    from scheduler.service.keyring import Keyring
    from scheduler.store.eventlog import EventLog


@contextmanager
def stored_log(target: Target, *, signs: bool = True) -> Iterator[tuple[EventLog, Keyring | None]]:
    """The log and the keys of the cluster.

    Without --store and a running `up`, they are in a store started on the data of the next `up`. Raises: OtherKeys if
    FAIRLOG_KEYS names others than are there, unless nothing `signs`.
    """
    from fairlog.cli.session import opened  # noqa: PLC0415 (help needs none of it)
    from fairlog.local.store import EmbeddedStore  # noqa: PLC0415 (likewise)
    from scheduler.service.keyring import KEYS_FILE, keyring_at  # noqa: PLC0415 (likewise)
    from scheduler.store.connection import connect  # noqa: PLC0415 (likewise)
    from scheduler.store.durability import check_store  # noqa: PLC0415 (likewise)
    from scheduler.store.eventlog import EventLog  # noqa: PLC0415 (likewise)
    from scheduler.store.keys import Keys  # noqa: PLC0415 (likewise)

    if target.store is not None or find_running(target.data) is not None:
        with closing(opened(target, new=True)) as session:
            check_store(session.road.store, unsafe=target.unsafe_store)
            yield session.road.log, session.road.keyring
        return
    data = target.data or default_data()
    if signs:
        running.check_own_keys(data)
    lock = running.lock(data)
    try:
        with EmbeddedStore(data / "store") as store, connect(store.url) as connection:
            ring = keyring_at(data / KEYS_FILE)
            yield EventLog(connection, Keys(target.cluster or "default")), ring
    finally:
        os.close(lock)
