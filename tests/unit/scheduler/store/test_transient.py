"""What the store says when it cannot do as it is told, and what is made of it."""

from __future__ import annotations

import pytest
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import ResponseError
from redis.sentinel import MasterNotFoundError, Sentinel
from structlog.testing import capture_logs

from scheduler.service.outage import Outage
from scheduler.store.transient import BACK_OFF_S, in_words, is_there, passes


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("LOADING Redis is loading the dataset in memory", "the store is still reading its data from disk (Redis"),
        (
            "READONLY You can't write against a read only replica.",
            "the server is a replica, not the store's primary",
        ),
        ("MASTERDOWN Link with MASTER is down", "the server is a replica that has lost its primary"),
        (
            "NOREPLICAS Not enough good replicas to write.",
            "fewer replicas than its setting min-replicas-to-write requires",
        ),
        (
            "OOM command not allowed when used memory > 'maxmemory'.",
            "out of memory and refuses writes: raise its max",
        ),
        (
            "MISCONF Errors writing to the AOF file: No space left",
            "the store cannot write to its disk: free disk space",
        ),
        ("UNBLOCKED force unblock from blocking operation", "the server has become a replica"),
    ],
)
def test_what_passes_is_waited_for_and_said_in_words(answer: str, words: str) -> None:
    error = BaseParser.parse_error(answer)  # type: ignore[no-untyped-call]
    assert passes(error)
    assert is_there(error)
    assert words in in_words(error)


def test_sentinels_that_do_not_answer_are_no_dump_of_clients() -> None:
    with pytest.raises(MasterNotFoundError) as raised:
        Sentinel([("127.0.0.1", 1)]).discover_master("main")  # type: ignore[no-untyped-call]
    assert in_words(raised.value) == "the store does not answer (No master found for 'main')"


def test_a_server_that_does_not_answer_is_away_and_a_wrong_command_is_no_outage() -> None:
    gone = StoreConnectionError("Connection refused")
    assert (passes(gone), is_there(gone)) == (True, False)
    assert in_words(gone) == "the store does not answer (Connection refused)"
    wrong = ResponseError("WRONGTYPE Operation against a key")
    assert not passes(wrong)
    assert in_words(wrong) == "unexpected answer from the store: WRONGTYPE Operation against a key"
    piped = ResponseError("Command # 1 (SET a b) of pipeline caused error: MISCONF Errors writing to the AOF file")
    assert passes(piped)


def test_an_outage_is_said_once_however_long_it_is_and_its_end_once() -> None:
    outage = Outage(master="m1")
    with capture_logs() as logged:
        outage.is_over()
        pauses = [outage.goes_on(StoreConnectionError("gone")) for _ in range(8)]
        assert outage
        outage.is_over()
        outage.is_over()
        assert not outage
        outage.goes_on(StoreConnectionError("gone again"))
    away, back = "the store is unavailable", "the store is available again"
    assert [entry["event"] for entry in logged] == [away, back, away]
    assert {entry["master"] for entry in logged} == {"m1"}
    assert pauses == [*BACK_OFF_S, *(BACK_OFF_S[-1],) * 3]
