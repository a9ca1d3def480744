"""An exported log becomes the log of an empty cluster: the same to the byte, all of it or nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from fairlog.cli.exports import BadExport
from fairlog.cli.exports import exported as read_whole
from fairlog.cli.main import cli
from fairlog.local.store import EmbeddedStore
from recovery.archive.publish import PAGE, Draft, NotPublished, left_behind
from recovery.replay.rebuild import rebuild
from scheduler.model.commands import RegisterCompany, SubmitApp
from scheduler.model.events import CompanyRegistered, Event, ExecutorRemoved, MasterElected, WorkerRemoved
from scheduler.service.client import CommandClient
from scheduler.service.scheduler import Scheduler
from scheduler.store.codec import Fact, Record
from scheduler.store.eventlog import EventLog, Position
from scheduler.store.keys import Keys
from tests.integration.cli_rig import ROOT
from tests.property.given import Cluster
from tests.unit.recorded import exported, put, stored
from tests.waiting import wait_until
from witness.audit.audit import audit

if TYPE_CHECKING:
    from redis import Redis

FAILOVER = ROOT / "tests" / "golden" / "failover.jsonl"


@pytest.fixture
def log(connection: Redis) -> EventLog:
    return EventLog(connection, Keys("default"))


def run(store: EmbeddedStore, *arguments: object, text: str | None = None) -> Result:
    return CliRunner(env={"HOME": "/nowhere"}).invoke(cli, ["--store", store.url, *map(str, arguments)], input=text)


def chained(events: list[Event]) -> list[Record]:
    """The log of these events, a turn each."""
    return stored([Fact(seq, seq, seq, "", event) for seq, event in enumerate(events, start=1)])


def adopt(log: EventLog, records: Iterable[Record]) -> Position:
    with Draft(log) as draft:
        draft.add(records)
        draft.publish()
    return draft.end


LONG = exported(chained([MasterElected(master=f"m{number}") for number in range(2 * PAGE + 7)]))


def test_what_was_exported_is_imported_to_the_byte(store: EmbeddedStore) -> None:
    text = FAILOVER.read_text()
    answer = run(store, "import", FAILOVER, "--json")
    assert answer.exit_code == 0, answer.output
    end = json.loads(text.splitlines()[-1])
    assert json.loads(answer.output) == {
        "cluster": "default",
        "seq": end["seq"],
        "digest": end["digest"],
        "withheld": 0,
    }
    assert run(store, "log", "--json").output == text


def test_names_in_any_letters_come_through_from_standard_input(store: EmbeddedStore, log: EventLog) -> None:
    text = exported(chained([CompanyRegistered(company="Müller \\ \u2028 €")]))
    answer = run(store, "import", text=text)
    assert "1 log entries imported into the cluster default" in answer.output
    assert run(store, "log", "--json").output == text
    assert "Müller \\ \u2028 €" in rebuild(log)[0].companies


def test_a_master_takes_over_an_imported_log_and_goes_on(
    store: EmbeddedStore, log: EventLog, connection: Redis
) -> None:
    run(store, "import", FAILOVER)
    before = log.head()
    master = Scheduler(log, "next", lambda: rebuild(log))
    master.take_over()
    CommandClient(connection, "default").notify(RegisterCompany(company="newcomer"))
    master.turn()
    assert log.head().seq > before.seq
    assert "newcomer" in rebuild(log)[0].companies
    assert audit(log.facts()) == []


LINES = FAILOVER.read_text().splitlines(keepends=True)
TURNS = [json.loads(line)["turn"] for line in LINES]
CUT_SHORT = [seq for seq in range(1, len(LINES)) if TURNS[seq - 1] == TURNS[seq]][::25]


@pytest.mark.parametrize("cut", CUT_SHORT)
def test_a_log_cut_inside_a_turn_is_refused(fake: Redis, cut: int) -> None:
    """Nobody could tell whether the rest of the turn was another one."""
    log = EventLog(fake, Keys("default"))
    with pytest.raises(BadExport, match=f"the file ends within the turn that begins with entry {TURNS[cut - 1]}"):
        adopt(log, read_whole(BytesIO("".join(LINES[:cut]).encode())))
    assert fake.dbsize() == 0


def _gap(lines: list[str]) -> list[str]:
    return [*lines[:20], *lines[21:]]


def _altered(lines: list[str]) -> list[str]:
    return [*lines[:20], lines[20].replace('"turn":', '"turn":1'), *lines[21:]]


def _begun_late(lines: list[str]) -> list[str]:
    return lines[4:]


def _garbled(lines: list[str]) -> list[str]:
    return [*lines[:20], "{}\n", *lines[21:]]


def _unknown_type(_: list[str]) -> list[str]:
    (record,) = chained([CompanyRegistered(company="c")])
    return [exported([record]).replace("CompanyRegistered", "Miracle")]


def _older(_: list[str]) -> list[str]:
    return ['{"seq":1,"type":"MasterElected","v":1,"at":5,"turn":1,"cause":"","data":{"master":"m"},"digest":"14"}\n']


def _contradicting(_: list[str]) -> list[str]:
    gone = ExecutorRemoved(app="a", executor="a.0", worker="w", reason="exited")
    return exported(chained([CompanyRegistered(company="c"), gone])).splitlines(keepends=True)


def _without_a_worker(_: list[str]) -> list[str]:
    return [exported(chained([WorkerRemoved(worker="w", reason="removed")]))]


def _nothing(_: list[str]) -> list[str]:
    return []


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_gap, "log position 21: the entry is missing; the next one in the log is 22"),
        (_altered, "log position 12: entries 12 to 22 were altered"),
        (_begun_late, "log position 1: the entry is missing; the next one in the log is 5"),
        (_garbled, "log position 21: "),
        (_unknown_type, "log position 1: "),
        (_older, "log position 1: the log has schema 1, .* fairlog 0.1 can"),
        (_contradicting, "log position 2: ExecutorRemoved: no executor 'a.0' is granted"),
        (_without_a_worker, "log position 1: WorkerRemoved: worker 'w' is not registered"),
        (_nothing, "contains no log"),
    ],
)
def test_a_file_that_is_no_whole_log_is_refused_and_changes_nothing(
    store: EmbeddedStore, connection: Redis, damage: Callable[[list[str]], list[str]], sentence: str
) -> None:
    text = "".join(damage(FAILOVER.read_text().splitlines(keepends=True)))
    answer = run(store, "import", "-", text=text)
    assert (answer.exit_code, answer.output.count("\n")) == (1, 1)
    assert re.search(sentence, answer.output)
    assert connection.dbsize() == 0
    assert run(store, "import", "-", text=FAILOVER.read_text()).exit_code == 0


def test_a_cluster_that_has_a_log_keeps_it(store: EmbeddedStore, log: EventLog) -> None:
    run(store, "import", FAILOVER)
    head = log.head()
    answer = run(store, "import", "-", text=LONG)
    assert answer.exit_code == 1
    assert f"the cluster default has a log already, up to position {head.seq}" in answer.output
    assert log.head() == head
    assert run(store, "--cluster", "second", "import", "-", text=LONG).exit_code == 0


def test_an_import_that_was_killed_left_no_log_and_is_noticed_by_the_next(
    store: EmbeddedStore, log: EventLog, connection: Redis
) -> None:
    lines = LONG.splitlines(keepends=True)
    killed = subprocess.Popen(
        [sys.executable, "-m", "fairlog", "--store", store.url, "import"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert killed.stdin is not None
    killed.stdin.write("".join(lines[: PAGE + PAGE // 2]))
    killed.stdin.flush()
    wait_until(lambda: left_behind(log) is not None, "the first page to be gathered")
    killed.kill()
    killed.wait()
    killed.stdin.close()
    assert not connection.exists(log.keys.log)
    answer = run(store, "import", "-", text=LONG)
    assert f"An earlier import stopped at position {PAGE}; this one starts from the beginning." in answer.stderr
    assert answer.exit_code == 0
    assert run(store, "log", "--json").output == LONG
    assert connection.keys("*draft*") == []
    assert connection.ttl(log.keys.log) == -1


def test_of_two_imports_the_last_wins_and_the_other_is_told(log: EventLog, connection: Redis) -> None:
    records = chained([MasterElected(master=f"m{number}") for number in range(2 * PAGE)])

    def interrupted() -> Iterator[Record]:
        for number, record in enumerate(records):
            if number == PAGE + 1:
                assert adopt(log, records[:5]).seq == 5
            yield record

    with pytest.raises(NotPublished, match="another import or restore into this cluster has started"):
        adopt(log, interrupted())
    assert log.head().seq == 5
    assert connection.keys("*draft*") == []


def test_a_file_that_is_not_there_is_wrong_usage(store: EmbeddedStore, tmp_path: Path) -> None:
    answer = run(store, "import", tmp_path / "nothing.jsonl")
    assert answer.exit_code == 2
    assert "nothing.jsonl" in answer.output


def test_a_public_log_is_the_same_log_without_what_is_private(store: EmbeddedStore, log: EventLog) -> None:
    cluster = Cluster()
    cluster.company("acme")
    cluster.worker("w1", 16)
    cluster.turn(SubmitApp(app="a", company="acme", user="ann", name="secret", command=("true", "--key", "hidden")))
    put(log, cluster.records)
    full, public = (run(store, "log", "--json", *options).output for options in ((), ("--public",)))
    assert "hidden" in full
    assert "salt" in full
    assert [word for word in ("hidden", "secret", "salt", "private") if word in public] == []
    digests = [[json.loads(line).get("digest") for line in text.splitlines()] for text in (full, public)]
    assert digests[0] == digests[1]
    answer = run(store, "--cluster", "second", "import", "-", text=public)
    assert answer.exit_code == 0
    assert "The commands of 1 unfinished app are not in this public log" in answer.stderr
    second = EventLog(log.store, Keys("second"))
    assert second.head() == log.head()
    assert rebuild(second)[0].digest() == rebuild(log)[0].digest()
    assert run(store, "--cluster", "second", "log", "--json").output == public
    assert run(store, "--cluster", "second", "audit").exit_code == 0
