"""Nobody who has known a longer log serves a shorter one, until an operator has decided, as operations.md says."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from redis import Redis

from fairlog.cli.main import main
from fairlog.local.store import EmbeddedStore
from recovery.failover.lease import Member, members
from recovery.failover.master import Master
from recovery.replay.rebuild import rebuild
from scheduler.model.commands import RegisterCompany
from scheduler.model.errors import Deposed
from scheduler.service import known
from scheduler.service.client import CommandClient
from scheduler.service.known import Known, noted
from scheduler.service.scheduler import Scheduler
from scheduler.store.eventlog import CommitInFlight, EventLog, Position
from scheduler.store.keys import Keys
from tests.integration.cli_rig import Shell
from tests.integration.forked import Forked
from tests.waiting import HOPELESS_S, wait_until

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
TYPED = "not run: tests/integration/recovery/test_shorter_log.py types it"
UP = "up", "--detach", "--workers", "0", "--masters", "2"


def blocks() -> tuple[str, str]:
    """What the page types to restore a backup, and to accept what is left."""
    found = [part.partition("```")[0] for part in PAGE.read_text(encoding="utf-8").split(TYPED)[1:]]
    restoring, accepting = ("\n".join(["set -e", *re.findall(r"^\$ (.+)$", each, re.MULTILINE)]) for each in found)
    return restoring, accepting


def status(shell: Shell) -> dict[str, Any]:
    """The conditions that hold, by name."""
    answer = shell.run("status", "--json")
    return {each["condition"]: each for each in json.loads(answer.out)["health"]["conditions"]}


def emptied(data: Path) -> None:
    with Redis.from_url(json.loads((data / "up.json").read_text())["url"]) as store:
        store.flushall()


def refuses(shell: Shell) -> dict[str, Any]:
    """The condition by which the cluster says so, once it does."""
    wait_until(lambda: "shorter" in status(shell), "the masters to refuse")
    found = status(shell)
    assert "no_master" not in found, "the advice to start one would be wrong"
    return cast("dict[str, Any]", found["shorter"])


@pytest.fixture
def keys() -> Keys:
    return Keys(f"test-{uuid4().hex[:8]}")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """An `up` with two masters and the company acme, of which there is a backup, and globex, of which there is none."""
    shell = Shell(tmp_path / "home")
    shell.env["FAIRLOG_DATA"] = str(tmp_path / "data")
    try:
        shell.ok(*UP)
        shell.ok("company", "add", "acme")
        shell.ok("backup", str(tmp_path / "data" / "fairlog.gz"))
        shell.ok("company", "add", "globex")
        yield shell
    finally:
        shell.run("down")


@pytest.mark.slow
def test_an_emptied_store_stays_empty_until_a_backup_is_restored(shell: Shell) -> None:
    data = Path(shell.env["FAIRLOG_DATA"])
    emptied(data)
    condition = refuses(shell)
    assert condition["severity"] == "critical"
    assert re.search(r"ends at position 0, and (master|API server) \S+ has known it up to \d+", condition["sentence"])
    assert "fairlog restore" in condition["do"]
    assert "fairlog recover --accept 0" in condition["do"]
    shell.ok("down")
    assert shell.run(*UP).code == 1, "a restart changes nothing"
    restoring, _ = blocks()
    typed = shell.sh(f"cd {data}\n{restoring.replace('fairlog down', 'fairlog down || true')}")
    assert typed.code == 0, typed
    assert "This log follows its rules" in typed.out
    assert "shorter" not in status(shell)
    assert shell.ok("company", "list", "--json").count("acme")


@pytest.mark.slow
def test_an_emptied_store_is_begun_anew_once_that_is_accepted(shell: Shell) -> None:
    """By the newest edition of the rules: a log without settings is by none yet."""
    emptied(Path(shell.env["FAIRLOG_DATA"]))
    refuses(shell)
    shell.ok("recover", "--accept", "0")
    lost = {"rewound", "failover"}
    wait_until(lambda: not status(shell).keys() - lost, "all to be well but for what was lost")
    shell.ok("company", "add", "initech")
    assert "This log follows its rules" in shell.ok("audit")


@pytest.mark.slow
def test_an_older_file_of_the_store_is_served_once_it_is_accepted(shell: Shell, tmp_path: Path) -> None:
    data = Path(shell.env["FAIRLOG_DATA"])
    shell.ok("down")
    older = tmp_path / "older"
    shutil.copytree(data / "store", older)
    shell.ok(*UP)
    shell.ok("company", "add", "initech")
    shell.ok("down")
    shutil.rmtree(data / "store")
    shutil.copytree(older, data / "store")
    refused = shell.run(*UP)
    assert refused.code == 1
    [position] = re.findall(rf"`fairlog --data {data} recover --accept (\d+)`", refused.err)
    wrong = shell.run("recover", "--accept", str(int(position) + 1))
    assert wrong.code == 1
    assert f"the log ends at position {position}, not at" in wrong.err
    _, accepting = blocks()
    [first, second] = accepting.replace("POSITION", position).removeprefix("set -e\n").splitlines()
    typed = shell.sh(f"cd {data}\nset -e\n{first}\nfairlog {' '.join(UP)}\n{second}")
    assert typed.code == 0, typed
    assert re.search(rf"positions {int(position) + 1} to \d+ are lost, and receipts of them are broken", typed.out)
    assert f"accepted a log that ended at {position}: receipts of positions" in typed.out
    assert "shorter" not in status(shell)
    assert "initech" not in shell.ok("company", "list", "--json")
    again = shell.run("recover", "--accept", position)
    assert (again.code, "there is nothing to accept" in again.err) == (1, True)


@pytest.fixture
def start(store: EmbeddedStore, keys: Keys) -> Iterator[Callable[[], Forked]]:
    """Starts masters without a folder, which end with the test."""
    started: list[Forked] = []

    def start() -> Forked:
        command = ["master", "--store", store.url, "--cluster", keys.cluster, "--lease", "3"]
        environment = {name: value for name, value in os.environ.items() if name != "FAIRLOG_KNOWN"}
        started.append(Forked(main, *command, environment=environment, log=Path(os.devnull)))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_master_that_knows_nothing_heeds_the_one_that_has_served(
    start: Callable[[], Forked], connection: Redis, keys: Keys
) -> None:
    """Without any file, and after a promoted replica, which has lost the end of the log."""
    first = start()
    client = CommandClient(connection, keys.cluster, timeout_s=HOPELESS_S)
    for name in ("acme", "globex"):
        client.send(RegisterCompany(company=name))
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", connection.xrange(keys.log))
    with connection.pipeline(transaction=True) as together:
        together.delete(keys.log)
        for identity, fields in entries[:-1]:
            together.xadd(keys.log, cast("Any", fields), id=identity)
        together.execute()
    wait_until(lambda: noted(connection, keys) is not None, "the master to say what it has known")
    first.kill()
    first.wait()
    second = start()
    wait_until(
        lambda: second.pid in {each.pid for each in members(connection, keys)[1]} and not connection.exists(keys.lease),
        "the other one to stand by without serving",
    )
    assert connection.xlen(keys.log) == len(entries) - 1, "nothing was written"
    with connection.pipeline(transaction=True) as together:
        for identity, fields in entries[-1:]:
            together.xadd(keys.log, cast("Any", fields), id=identity)
        together.execute()
    client.send(RegisterCompany(company="initech"))
    assert noted(connection, keys) is None


def knowing(store: EmbeddedStore, keys: Keys, name: str) -> Master:
    """A master in this process that notes how far it has known the log."""
    log = EventLog(Redis.from_url(store.url), keys)
    return Master(log, Member(name, 1, "here"), known=Known(log, f"master {name}"))


def test_a_standby_knows_what_it_has_folded_however_soon_it_takes_over(
    start: Callable[[], Forked], store: EmbeddedStore, connection: Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "EVERY_S", HOPELESS_S)
    active = start()
    CommandClient(connection, keys.cluster, timeout_s=HOPELESS_S).send(RegisterCompany(company="acme"))
    standby = knowing(store, keys, "m2")
    thread = threading.Thread(target=standby.run)
    thread.start()
    try:
        wait_until(lambda: standby.follower.position == standby.log.head(), "the standby to fold the log")
        active.kill()
        connection.flushall()
        end = wait_until(lambda: noted(connection, keys), "the standby to say what it has known")
        assert end is not None
        assert end.by == "master m2"
        assert not connection.exists(keys.log), "nothing was written"
    finally:
        standby.worker.stop()
        thread.join()


def test_a_turn_that_was_refused_is_not_known(
    store: EmbeddedStore, connection: Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to the master that decided it, when another one was elected, nor to those that heed its notes."""
    monkeypatch.setattr(known, "EVERY_S", HOPELESS_S)
    deposed = knowing(store, keys, "m1")
    deposed.scheduler.take_over()
    client = CommandClient(connection, keys.cluster)
    client.notify(RegisterCompany(company="acme"))
    deposed.scheduler.turn()
    client.notify(RegisterCompany(company="globex"))
    Scheduler(EventLog(connection, keys), "m2", lambda: rebuild(EventLog(connection, keys))).take_over()
    with pytest.raises(Deposed, match="m2"):
        deposed.scheduler.turn()
    deposed._keep_what_was_folded()
    with pytest.raises(Deposed, match="m2"):
        deposed.scheduler.make_sure_of_office()
    assert noted(connection, keys) is None


def test_a_turn_whose_commit_the_store_did_not_take_is_not_known(
    store: EmbeddedStore, connection: Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "EVERY_S", HOPELESS_S)
    master = knowing(store, keys, "m1")
    master.scheduler.take_over()
    log = master.log
    begin_commit, refused = log.begin_commit, []

    def lose_the_first(*arguments: Any, **options: Any) -> CommitInFlight:
        commit = begin_commit(Position(9_999, "elsewhere"), *arguments[1:], **options)
        refused.append(commit)
        monkeypatch.setattr(log, "begin_commit", begin_commit)
        return commit

    monkeypatch.setattr(log, "begin_commit", lose_the_first)
    CommandClient(connection, keys.cluster).notify(RegisterCompany(company="acme"))
    master.scheduler.turn()
    assert len(refused) == 1
    assert "acme" in master.scheduler.state.companies, "it was decided again"
    assert noted(connection, keys) is None
