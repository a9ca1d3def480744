"""An API server has a connection to the store for each of its threads."""

from __future__ import annotations

import pytest

from fairlog.api import app
from scheduler.store.connection import connect

THREADS = app.COMMANDS_AT_ONCE + app.WORK_AT_ONCE + app.VIEWS_AT_ONCE + 2 * app.READS_AT_ONCE + app.SIGN_INS_AT_ONCE


@pytest.mark.parametrize(
    "url",
    ["unix:///nowhere", "redis://localhost:1", "redis://one:1,two:1", "redis+sentinel://one:1/fairlog"],
)
def test_no_thread_lacks_a_connection_to_the_store(url: str) -> None:
    with connect(url) as store:
        assert store.connection_pool.max_connections > 2 * THREADS
