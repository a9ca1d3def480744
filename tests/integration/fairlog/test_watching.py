"""What watches a cluster, as processes: the auditor, alerts, and `status` with and without a store."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from fairlog.watch.surroundings import audited_to
from recovery.archive.archive import open_log
from scheduler.model.events import NeedEnded
from scheduler.store.keys import Keys
from tests.integration.cli_rig import Service, Shell, scraped
from tests.unit.recorded import facts, put, without
from tests.unit.recorded import stored as records_of
from tests.unit.recovery.archive.archived import RECORDS
from tests.waiting import HOPELESS_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from redis import Redis

    from fairlog.local.store import EmbeddedStore
    from tests.integration.servers import Servers

ENDED = [fact.seq for fact in facts(RECORDS) if isinstance(fact.event, NeedEnded)][-1]
"""What the log can be applied without, though its rules derive it."""


def test_the_auditor_follows_a_log_says_what_it_finds_and_goes_on_after_a_restart(
    store: EmbeddedStore, connection: Redis, tmp_path: Path
) -> None:
    shell, keys = Shell(tmp_path / "home"), Keys("watched")
    shell.env |= {"FAIRLOG_STORE": store.url, "FAIRLOG_CLUSTER": keys.cluster, "FAIRLOG_STANDBYS": "0"}
    forged = records_of(without(facts(RECORDS), ENDED))
    log = open_log(connection, keys)
    put(log, forged[:60])
    following = ("audit", "--follow", "--checkpoints", str(tmp_path / "checkpoints"))
    with Service(shell, *following) as auditor:
        auditor.hear("READY=1")
        wait_until(lambda: (said := audited_to(connection, keys)) and said.seq == forged[59].last, "it to catch up")
        os.kill(auditor.process.pid, signal.SIGTERM)
        auditor.hear("STOPPING=1")
        assert auditor.process.wait(HOPELESS_S) == 0
    put(log, forged[60:])
    with Service(shell, *following, name="again") as auditor:
        wait_until(lambda: (said := audited_to(connection, keys)) and said.seq == forged[-1].last, "it to go on")
        os.kill(auditor.process.pid, signal.SIGTERM)
        assert auditor.process.wait(HOPELESS_S) == 1
        entries = auditor.entries()
    assert [each["after"] for each in entries if each["event"] == "auditing"] == [forged[59].last]
    alarms = [each for each in entries if each["event"] == "the log breaks its rules"]
    assert (alarms[0]["level"], alarms[0]["seq"]) == ("error", ENDED)
    status = shell.run("status", "--json")
    assert status.code == 1
    assert [each["condition"] for each in status.json()["health"]["conditions"]][:2] == ["no_master", "deviation"]


@pytest.mark.parametrize("servers", ["embedded"], indirect=True)
def test_while_the_store_is_away_status_says_so_and_what_lives_here_is_live(servers: Servers, tmp_path: Path) -> None:
    port = servers.start()
    shell = Shell(tmp_path / "home")
    shell.env |= {"FAIRLOG_STORE": f"redis://127.0.0.1:{port}/0", "XDG_RUNTIME_DIR": str(tmp_path)}
    told = tmp_path / "told.jsonl"
    tell = ("alerts", "--once", "--command", f"sh -c 'cat >> {told}; echo >> {told}'")
    with Service(shell, "master") as master:
        wait_until(lambda: shell.run("status").code == 3, "the master to serve")
        assert shell.run("status").out.startswith("health    no standby\nwarning   start a second master: ")
        shell.ok(*tell)
        servers.kill(port)
        assert shell.ok("status", "--live").endswith(f" has master (process {master.process.pid})\n")
        away = shell.run("status")
        assert (away.code, away.err) == (1, "")
        assert away.out.startswith("health    the store does not answer (")
        shell.ok(*tell)
        shell.ok(*tell)
        assert shell.run("status", "--ready").code == 1
        os.kill(master.process.pid, signal.SIGKILL)
        master.process.wait()
    gone = shell.run("status", "--live")
    assert (gone.code, gone.out) == (1, "")
    assert gone.err.startswith("not live: no master of the cluster default runs on ")
    notices = [json.loads(line) for line in told.read_text().splitlines()]
    assert [(each["condition"], each["status"]) for each in notices] == [("no_standby", "firing"), ("store", "firing")]


def test_metrics_of_a_master_are_served_by_a_process_that_ends_with_it(store: EmbeddedStore, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shell = Shell(tmp_path / "home")
    shell.env |= {"FAIRLOG_STORE": store.url, "FAIRLOG_CLUSTER": "measured"}

    def serving() -> dict[str, float]:
        said = scraped(port)
        return said if said.get("fairlog_master_serving") == 1 else {}

    with Service(shell, "master", "--metrics", str(port), "--lease", "1") as master:
        master.hear("READY=1")
        shell.ok("company", "add", "acme")
        found = wait_until(serving, "the master to say that it serves")
        assert found["fairlog_master_commands_total"] >= 1
        assert found["fairlog_master_commit_duration_seconds_count"] >= 1
        assert found["fairlog_master_log_position"] >= 3
        taken = shell.run("master", "--metrics", str(port))
        assert (taken.code, taken.err.startswith(f"Error: cannot serve metrics at 127.0.0.1:{port}: ")) == (1, True)
        os.kill(master.process.pid, signal.SIGTERM)
        assert master.process.wait(HOPELESS_S) == 0
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
