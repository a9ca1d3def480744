"""What visits may take of the store's memory, whoever their visitors and executors are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scheduler.model.errors import InvalidCommand
from scheduler.store.keys import Keys
from scheduler.store.visits import MOST_CHUNKS, MOST_VISITS, Call, Report, VisitCommand, Visits

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis
    from redis.client import Pipeline

KEYS = Keys("visited")
CAT = VisitCommand(("cat",))
FULL_CALL = tuple(b"%d" % number for number in range(MOST_CHUNKS))


@pytest.fixture
def visits(fake: Redis) -> Visits:
    return Visits(fake, KEYS)


def test_input_that_nobody_reads_does_not_fill_the_store(visits: Visits, fake: Redis) -> None:
    visit = visits.begin(CAT, "w1", "a.0", "acme/ann")
    replies = [
        visits.call(visit, "acme/ann", Call(first=number * MOST_CHUNKS, chunks=FULL_CALL)) for number in range(9)
    ]
    assert all(reply.full for reply in replies)
    assert fake.llen(f"{KEYS.visit(visit)}:in") == MOST_CHUNKS


def test_output_that_nobody_takes_does_not_fill_the_store(visits: Visits, fake: Redis) -> None:
    visit = visits.begin(CAT, "w1", "a.0", "acme/ann")
    for number in range(9):
        assert visits.attend("a.0", Report(visit, number * MOST_CHUNKS, FULL_CALL)).full
    assert fake.llen(f"{KEYS.visit(visit)}:out") == MOST_CHUNKS


def test_who_waits_while_told_full_loses_nothing_and_may_repeat_a_call(visits: Visits) -> None:
    visit = visits.begin(CAT, "w1", "a.0", "acme/ann")
    sent, taken = 0, list[bytes]()
    while len(taken) < 10 * MOST_CHUNKS:
        chunks = tuple(b"%d" % (sent + number) for number in range(MOST_CHUNKS))
        reply = visits.call(visit, "acme/ann", Call(first=sent, chunks=chunks))
        assert visits.call(visit, "acme/ann", Call(first=sent, chunks=chunks)) == reply
        sent += len(chunks)
        while reply.full:
            taken += visits.attend("a.0", Report(visit, after=len(taken))).chunks
            visits.attend("a.0", Report(visit, after=len(taken)))
            reply = visits.call(visit, "acme/ann", Call(first=sent))
    assert taken == [b"%d" % number for number in range(len(taken))]


def meanwhile(fake: Redis, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have `act` happen once, within the next call: before its pipeline, if it has one."""
    pipeline = fake.pipeline

    def acts() -> Pipeline:
        monkeypatch.setattr(fake, "pipeline", pipeline)
        act()
        return pipeline()

    monkeypatch.setattr(fake, "pipeline", acts)


def test_who_is_told_of_the_end_has_all_of_the_output(
    visits: Visits, fake: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = visits.begin(CAT, "w1", "a.0", "acme/ann")
    meanwhile(fake, monkeypatch, lambda: visits.attend("a.0", Report(visit, chunks=(b"1all of it",), exit_code=7)))
    replies = [visits.call(visit, "acme/ann", Call())]
    if replies[0].exit_code is None:
        replies.append(visits.call(visit, "acme/ann", Call()))
    assert [chunk for reply in replies for chunk in reply.chunks] == [b"1all of it"]
    assert replies[-1].exit_code == 7


def test_who_is_told_that_the_input_ends_has_all_of_it(
    visits: Visits, fake: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = visits.begin(CAT, "w1", "a.0", "acme/ann")
    meanwhile(fake, monkeypatch, lambda: visits.call(visit, "acme/ann", Call(chunks=(b"all of it",), ended=True)))
    orders = [visits.attend("a.0", Report(visit))]
    if not orders[0].ended:
        orders.append(visits.attend("a.0", Report(visit)))
    assert [chunk for order in orders for chunk in order.chunks] == [b"all of it"]
    assert orders[-1].ended


def test_a_company_runs_so_many_commands_at_once_and_no_more(visits: Visits, fake: Redis) -> None:
    begun = [visits.begin(CAT, "w1", "a.0", f"acme/user{number}") for number in range(MOST_VISITS)]
    with pytest.raises(InvalidCommand, match="acme runs 32 commands by `fairlog exec` already; end one of them first"):
        visits.begin(CAT, "w1", "a.0", "acme/ann")
    visits.begin(CAT, "w1", "b.0", "globex/gil")
    visits.call(begun[0], "acme/user0", Call(leaves=True))
    visits.begin(CAT, "w1", "a.0", "acme/ann")
    fake.delete(KEYS.visit(begun[1]))
    visits.begin(CAT, "w1", "a.0", "acme/ann")
