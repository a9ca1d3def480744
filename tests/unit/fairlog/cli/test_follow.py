"""Following the log from the command line, also where a failover takes some of it away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlog.cli.follow import follow
from scheduler.model.errors import UnreadableRecord
from scheduler.model.events import CompanyRegistered
from scheduler.store.codec import encode_turn, lines_of
from scheduler.store.eventlog import GENESIS, EventLog, Position
from scheduler.store.keys import Keys

if TYPE_CHECKING:
    import fakeredis


@pytest.fixture
def log(fake: fakeredis.FakeRedis) -> EventLog:
    return EventLog(fake, Keys())


def write(log: EventLog, *companies: str) -> None:
    for company in companies:
        seq, digest = log.head()
        event = CompanyRegistered(company=company, amounts=None, part=None)
        record = encode_turn([(event, "")], first=seq + 1, at=1, previous=digest)
        log.begin_commit(Position(seq, digest), record).finish()


def lose(log: EventLog, entries: int) -> None:
    held: Any = log.store.xrange(log.keys.log)
    log.store.delete(log.keys.log)
    for entry, fields in held[:-entries]:
        log.store.xadd(log.keys.log, fields, id=entry)


@pytest.mark.parametrize("instead", [("x",), ("x", "y"), ("x", "y", "z")])
def test_what_comes_in_the_place_of_a_lost_tail_follows(
    log: EventLog, instead: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether the log is shorter than what was seen of it by now, as long, or longer."""
    write(log, "a", "b", "c", "d")
    following = follow(log, GENESIS, wait_s=0.01)
    seen = [next(following) for _ in range(5)]
    assert seen[-1] is None
    lose(log, 2)
    write(log, *instead)
    found = [lines_of(record)[0].data["company"] for record in (next(following) for _ in instead) if record]
    assert found == list(instead)
    assert (
        capsys.readouterr().err
        == "the store has lost the log after position 2; continuing with the entries that replaced it\n"
    )


def test_an_entry_that_cannot_be_read_ends_the_following(log: EventLog) -> None:
    write(log, "a", "b")
    log.store.xadd(log.keys.log, {"type": "Nonsense"}, id="3-0")
    following = follow(log, GENESIS, wait_s=0.01)
    with pytest.raises(UnreadableRecord, match=r"^log position 3: "):
        list(zip(range(9), following, strict=False))
