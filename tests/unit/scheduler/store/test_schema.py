"""The schema of a log is stated in the store, and who does not read it is told so by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from fairlog.api.past import NotReady
from fairlog.api.replica import Replica
from fairlog.cli.main import cli
from fairlog.watch.auditor import Auditor
from recovery.failover.master import run_master
from recovery.replay.rebuild import rebuild
from scheduler.model.errors import OtherVersion, UnsuitableStore
from scheduler.model.versions import SCHEMA
from scheduler.service.scheduler import Scheduler
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys

if TYPE_CHECKING:
    import fakeredis
    from redis import Redis

    from fairlog.local.store import EmbeddedStore

KEYS = Keys("schema")
LATER = "the log of the cluster schema has schema '3', and this fairlog reads schema 2; upgrade fairlog here"


def test_a_master_states_it_where_nobody_has(fake: fakeredis.FakeRedis) -> None:
    log = EventLog(fake, KEYS)
    log.check_schema()
    assert fake.get(KEYS.schema) is None
    log.check_schema(state=True)
    assert fake.get(KEYS.schema) == str(SCHEMA).encode()
    log.check_schema()


@pytest.mark.parametrize("stated", ["1", "x", ""])
def test_an_older_one_is_read_by_what_wrote_it(fake: fakeredis.FakeRedis, stated: str) -> None:
    fake.set(KEYS.schema, stated)
    with pytest.raises(OtherVersion, match="keep the version that wrote it to read it"):
        EventLog(fake, KEYS).check_schema(state=True)


def test_neither_api_servers_nor_auditors_read_a_later_one(fake: fakeredis.FakeRedis) -> None:
    log = EventLog(fake, KEYS)
    Scheduler(log, "m1", lambda: rebuild(log)).take_over()
    fake.set(KEYS.schema, SCHEMA + 1)
    replica = Replica(log)
    assert replica.step() > 0
    with pytest.raises(NotReady, match=LATER):
        replica.check()
    with pytest.raises(OtherVersion, match=LATER):
        Auditor(log).resume()


def test_neither_masters_nor_verbs_read_a_later_one(connection: Redis, store: EmbeddedStore) -> None:
    connection.set(KEYS.schema, SCHEMA + 1)
    try:
        with pytest.raises(UnsuitableStore, match=LATER):
            run_master(store.url, KEYS.cluster)
        answer = CliRunner().invoke(cli, ["--store", store.url, "--cluster", KEYS.cluster, "log"])
        assert (answer.exit_code, LATER in answer.output) == (1, True)
    finally:
        connection.delete(KEYS.schema)
