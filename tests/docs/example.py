"""Small logs that the pages show: `python -m tests.docs.example FOLDER` writes them there.

In log.jsonl two companies share two workers. In forged.jsonl the master favoured one of them once and chained the log
properly. In reclaimed.jsonl one company has borrowed what the other then asks for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

from fairlog.cli.render import log_json
from scheduler.model.commands import ChangeEdition, ConfigureCluster, EndApp, EndedExecutor
from scheduler.model.events import AppAdmitted
from scheduler.rules.checks.validate import NEW_SETTINGS
from scheduler.rules.share.entitlement import Entitlement
from scheduler.rules.stage.granting import admission
from scheduler.rules.stage.sharing import _entering as entering
from scheduler.rules.state.cluster import ClusterState
from scheduler.store.codec import lines_of
from tests.property.given import GIB, Cluster, recorded

BEGIN_S = 1_772_442_000
"""2026-03-02 09:00:00 UTC."""
_BEGINNING = (ChangeEdition(edition=3), ConfigureCluster(settings=dict(NEW_SETTINGS)))


def history(favoured: str = "") -> Cluster:
    """A morning of acme and globex; `favoured` is the app that a forging master admits out of turn, once it can."""
    cluster = Cluster(begun=False)
    cluster.turn(*_BEGINNING, after_s=BEGIN_S)
    cluster.company("acme", 24, 64 * GIB)
    cluster.company("globex", 24, 64 * GIB)
    cluster.worker("w1", 16)
    cluster.worker("w2", 16)
    cluster.submit("etl-1", 16, user="ann")
    cluster.submit("model-1", 16, company="globex", user="carol")
    cluster.submit("model-2", 8, company="globex", user="carol")
    cluster.submit("report-7", 8, user="bob")
    cluster.submit("report-8", 8, user="bob")
    for app in ("etl-1", "model-1", "report-7", "model-2", "report-8"):
        with patch("scheduler.rules.stage.sharing._entering", _favouring(favoured)):
            executors = [
                EndedExecutor(executor=each, reason="exited", exit_code=0, done=True)
                for each in sorted(cluster.state.apps[app].executors)
            ]
            cluster.turn(*executors, EndApp(app=app, reason="finished"), after_s=540)
    return cluster


def reclaimed() -> Cluster:
    """globex is lent the whole cluster; acme asks for its half, and an executor leaves for it between two tasks."""
    cluster = Cluster(begun=False)
    cluster.turn(*_BEGINNING, after_s=BEGIN_S)
    cluster.company("acme", 16, 64 * GIB)
    cluster.company("globex", 16, 64 * GIB, borrow=True)
    cluster.worker("w1", 16)
    cluster.worker("w2", 16)
    cluster.submit("model-1", 32, company="globex", user="carol")
    cluster.submit("report-7", 16, user="bob")
    cluster.turn(EndedExecutor(executor="model-1.1", reason="exited", exit_code=0), after_s=540)
    return cluster


def _favouring(app: str) -> Callable[[ClusterState, Entitlement], Iterator[AppAdmitted]]:
    def instead(state: ClusterState, entitled: Entitlement) -> Iterator[AppAdmitted]:
        if app in state.apps and state.apps[app].state == "pending":
            yield admission(state, state.apps[app])
        yield from entering(state, entitled)

    return instead


def main(folder: Path) -> None:
    """Write the logs into the folder."""
    logs = {"log.jsonl": history(), "forged.jsonl": history("model-2"), "reclaimed.jsonl": reclaimed()}
    for name, cluster in logs.items():
        lines = [f"{log_json(line)}\n" for record in recorded(cluster) for line in lines_of(record)]
        (folder / name).write_text("".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
