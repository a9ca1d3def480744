"""Answers from the whole log: what an explanation and its audit read, and what they need not read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlog.api.figures import AuditedLog, here
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from tests.docs.example import history
from tests.property.given import Cluster, recorded
from tests.unit.recorded import facts, put
from witness.audit.audit import Audited
from witness.explain import explain

if TYPE_CHECKING:
    from fakeredis import FakeRedis

NOW = 1 << 42


def log_of(fake: FakeRedis, cluster: Cluster) -> EventLog:
    """A store that holds the log of the cluster and nothing else."""
    fake.flushall()
    log = EventLog(fake, Keys("c"))
    put(log, recorded(cluster))
    return log


def verdict_of(cluster: Cluster) -> str | None:
    """What an audit of the whole log says first."""
    audited = Audited(facts(cluster))
    assert list(audited)
    return audited.verdict


@pytest.mark.parametrize("favoured", ["", "model-2"])
def test_an_explanation_is_what_the_verb_works_out_of_the_whole_log(fake: FakeRedis, favoured: str) -> None:
    cluster = history(favoured)
    log = log_of(fake, cluster)
    entries, end = facts(cluster), log.head().seq
    assert (verdict_of(cluster) is None) == (not favoured)
    make = here(log, lambda: NOW)
    for app in cluster.state.apps.values():
        asked: dict[str, Any] = {"app": app.id, "submitted": app.submitted}
        story = msgspec.json.decode(msgspec.json.encode(explain(entries, app.id, now=lambda: NOW)))
        assert msgspec.json.decode(make("explain", end, asked)) == story
        audited = msgspec.json.decode(make("explain", end, {**asked, "audited": True}))
        assert audited == {"verdict": verdict_of(cluster), **story}
        assert next(iter(audited)) == "verdict"


def test_an_audit_goes_on_with_what_it_has_not_read(fake: FakeRedis) -> None:
    cluster = history()
    log = log_of(fake, cluster)
    turns = [record.last for record in recorded(cluster)]
    checked = AuditedLog(log)
    assert checked.verdict(turns[-3]) is None
    audit = checked._audit
    assert audit.events == turns[-3]
    assert checked.verdict(turns[-1]) is None
    assert (checked._audit, audit.events) == (audit, turns[-1])
    assert checked.verdict(turns[-2]) is None
    assert checked._audit.events == turns[-2], "it was ahead, and began anew"


def test_an_audit_begins_anew_where_the_store_holds_another_log(fake: FakeRedis) -> None:
    checked = AuditedLog(log_of(fake, history()))
    assert checked.verdict(len(facts(history())) - 1) is None
    forged = history("model-2")
    end = log_of(fake, forged).head().seq
    assert checked.verdict(end) == verdict_of(forged)
    assert checked.verdict(end) is not None
