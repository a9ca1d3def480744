"""A lost worker that an operator forgets, in the log that the audit checks."""

from __future__ import annotations

import pytest

from scheduler.model.commands import LoseWorker, RemoveWorker
from scheduler.model.errors import UnknownWorker
from scheduler.model.events import LostWorkersForgotten
from tests.property.given import Cluster
from tests.unit.recorded import facts
from witness.audit.audit import audit


def test_a_lost_worker_that_is_removed_is_forgotten_and_the_audit_agrees() -> None:
    cluster = Cluster()
    cluster.company("acme")
    cluster.worker("w1", 16)
    cluster.worker("w2", 16)
    cluster.submit("a1", 8)
    cluster.turn(LoseWorker(worker="w2", last_seen=1))
    assert cluster.turn(RemoveWorker(worker="w2")) == [LostWorkersForgotten(workers=("w2",))]
    with pytest.raises(UnknownWorker):
        cluster.turn(RemoveWorker(worker="w2"))
    cluster.worker("w2", 8)
    assert (audit(facts(cluster)), cluster.state.lost) == ([], {})
