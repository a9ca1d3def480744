"""Where a cluster's data lies."""

from __future__ import annotations

import pytest

from scheduler.model.errors import InvalidCommand
from scheduler.store.keys import Keys


def test_every_key_has_the_clusters_name_as_its_hash_tag() -> None:
    keys = Keys("prod")
    assert keys.log == "fairlog:{prod}:log"
    assert keys.grants("w1") == "fairlog:{prod}:grants:w1"
    assert keys.secrets("a1") == "fairlog:{prod}:secrets:a1"
    assert keys.unclaimed("a1", "acme", "ann.b") == "fairlog:{prod}:unclaimed:acme/ann_2eb/a1"
    assert keys.reply("c1") == "fairlog:{prod}:reply:c1"


def test_queues_are_named_after_what_listens_on_them() -> None:
    keys = Keys()
    assert keys.master_queue == "fairlog.default.master"
    assert keys.worker_queue("w1") == "fairlog.default.worker.w1"
    assert keys.app_queue("a1") == "fairlog.default.app.a1"


def test_no_two_keys_are_the_same() -> None:
    keys = Keys()
    fixed = [keys.log, keys.inbox, keys.dead, keys.lease, keys.masters, keys.heartbeats, keys.agents]
    named = [make("x") for make in (keys.grants, keys.reply, keys.secrets, keys.tasks, keys.begun, keys.output)]
    assert len(set(fixed + named)) == len(fixed) + len(named)


@pytest.mark.parametrize("name", ["", "a b", "a}b", "a:b", "-a", "x" * 64, "a\n", "é"])
def test_a_cluster_cannot_have_a_name_that_breaks_keys(name: str) -> None:
    with pytest.raises(InvalidCommand, match=r"a cluster's name has 1 to 63 letters"):
        Keys(name)


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "x" * 63, "9"])
def test_a_cluster_can_have_any_plain_name(name: str) -> None:
    assert Keys(name).prefix == f"fairlog:{{{name}}}:"
