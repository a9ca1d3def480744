"""Alerts: each condition is told when it begins and when it ends, at least once and never twice, whatever fails."""

from __future__ import annotations

import errno
import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from fairlog.watch.alerts import (
    BACK_OFF_S,
    BadBook,
    Book,
    Command,
    NoticePrinter,
    Undelivered,
    Webhook,
    partial_knowledge,
)
from fairlog.watch.conditions import Failover, Found

LOST = Found("worker_lost", "warning", "w1", "worker w1 was lost 0 s ago", "start it")
SPACE = Found("disk", "critical", "space", "the disk is full", "free space")
AWAY = Found("store", "critical", "", "the store does not answer", "see its log")


class Sink:
    """Keeps what it is told, and fails while it is `broken`."""

    def __init__(self, name: str = "sink") -> None:
        self.name, self.told, self.broken = name, list[Mapping[str, Any]](), False

    def deliver(self, message: Mapping[str, Any]) -> None:
        if self.broken:
            raise Undelivered("it is away")
        self.told.append(message)

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(each["condition"], each["status"]) for each in self.told]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "book.json"


def look(book: Book, sink: Sink, now: int, *found: Found) -> None:
    book.enter(found, now, [sink], whole=not partial_knowledge(found))
    book.deliver(now, [sink])


def test_a_condition_is_told_when_it_begins_and_when_it_ends_also_by_another_process(path: Path) -> None:
    sink = Sink()
    for now, holding in enumerate([(), (LOST,), (LOST,), (LOST, SPACE), (SPACE,), ()]):
        look(Book(path, "c"), sink, now * 1000, *holding)
    assert sink.said == [
        ("worker_lost", "firing"),
        ("disk", "firing"),
        ("worker_lost", "resolved"),
        ("disk", "resolved"),
    ]
    first, _, ended, _ = sink.told
    assert first["text"] == "fairlog c: worker w1 was lost 0 s ago"
    assert (first["since"], first["at"], ended["since"], ended["at"]) == (1000, 1000, 1000, 4000)
    assert ended["text"].endswith(" (resolved after 3 s)")
    assert first["id"].removesuffix("-firing") == ended["id"].removesuffix("-resolved")


def test_what_comes_back_is_told_anew_under_another_id(path: Path) -> None:
    book, sink = Book(path, "c"), Sink()
    for now, holding in enumerate([(LOST,), (), (LOST,)]):
        look(book, sink, now, *holding)
    assert len({each["id"] for each in sink.told}) == 3


def test_the_same_condition_of_two_workers_is_two_alerts(path: Path) -> None:
    book, sink = Book(path, "c"), Sink()
    look(book, sink, 0, LOST, LOST._replace(about="w2"))
    look(book, sink, 1, LOST._replace(about="w2", sentence="worker w2 was lost 9 min ago"))
    assert [(each["about"], each["status"]) for each in sink.told] == [
        ("w1", "firing"),
        ("w2", "firing"),
        ("w1", "resolved"),
    ]


def test_a_failed_delivery_is_repeated_after_growing_pauses_and_said_in_the_log(path: Path) -> None:
    book, sink = Book(path, "c"), Sink()
    sink.broken = True
    with capture_logs() as logs:
        look(book, sink, 0, LOST)
        look(book, sink, 999, LOST)
        look(book, sink, 1_000, LOST)
        look(Book(path, "c"), sink, 2_999, LOST)
    assert [(each["tries"], each["again_in_s"]) for each in logs] == [(1, BACK_OFF_S[0]), (2, BACK_OFF_S[1])]
    assert "it is away" in logs[0]["reason"]
    sink.broken = False
    again = Book(path, "c")
    look(again, sink, 3_000, LOST)
    look(again, sink, 3_000, LOST)
    assert sink.said == [("worker_lost", "firing")]


def test_what_began_and_ended_while_nobody_could_be_told_is_told_in_order(path: Path) -> None:
    book, sink = Book(path, "c"), Sink()
    sink.broken = True
    look(book, sink, 0, LOST)
    look(book, sink, 10, SPACE)
    sink.broken = False
    look(Book(path, "c"), sink, 10_000_000, SPACE)
    assert sorted(sink.said) == [("disk", "firing"), ("worker_lost", "firing"), ("worker_lost", "resolved")]
    assert sink.said.index(("worker_lost", "firing")) < sink.said.index(("worker_lost", "resolved"))


def test_a_sink_that_fails_does_not_keep_another_from_being_told_once(path: Path) -> None:
    book, good, bad = Book(path, "c"), Sink("good"), Sink("bad")
    bad.broken = True
    book.enter([LOST], 0, [bad, good], whole=True)
    for now in range(0, 1_000_000, 100_000):
        book.deliver(now, [bad, good])
    assert good.said == [("worker_lost", "firing")]
    bad.broken = False
    book.deliver(9_000_000, [bad, good])
    assert bad.said == good.said


def test_a_full_disk_keeps_no_alert_from_being_told_and_its_book_is_written_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, sink = Book(path, "c"), Sink()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as on_a_full_disk, capture_logs() as said:
        on_a_full_disk.setattr("fairlog.watch.alerts.drafted", full)
        look(book, sink, 0, LOST)
        look(book, sink, 1, LOST, SPACE)
    assert len(sink.told) == 2
    assert [each["event"] for each in said] == ["the book of alerts was not written"]
    look(book, sink, 2, LOST, SPACE)
    assert len(Book(path, "c").pages.holding) == 2
    monkeypatch.setattr("fairlog.watch.alerts.drafted", lambda *_: (_ for _ in ()).throw(PermissionError(13, "no")))
    with pytest.raises(PermissionError):
        look(Book(path.with_name("other"), "c"), sink, 3, LOST)


def test_while_the_state_is_unknown_nothing_ends(path: Path) -> None:
    book, sink = Book(path, "c"), Sink()
    look(book, sink, 0, LOST)
    look(book, sink, 1, AWAY)
    assert sink.said == [("worker_lost", "firing"), ("store", "firing")]
    look(book, sink, 2, LOST)
    assert sink.said[2:] == [("store", "resolved")]


def test_a_delivery_that_was_cut_off_is_repeated_under_the_same_id(path: Path) -> None:
    book, sink = Book(path, "c"), Sink()
    book.enter([LOST], 0, [sink], whole=True)
    before = path.read_bytes()
    book.deliver(0, [sink])
    path.write_bytes(before)  # killed before it was crossed out
    look(Book(path, "c"), sink, 5, LOST)
    assert [each["id"] for each in sink.told] == [sink.told[0]["id"]] * 2


@given(st.lists(st.tuples(st.sets(st.sampled_from([LOST, SPACE, AWAY])), st.booleans(), st.booleans()), max_size=12))
@settings(max_examples=25)
def test_whatever_fails_each_alert_is_told_once_and_in_order(course: list[tuple[set[Found], bool, bool]]) -> None:
    """Looks at conditions; the sink may fail, and the process may be started anew."""
    with tempfile.TemporaryDirectory() as folder, patch("os.fsync"):
        path, sink, now = Path(folder, "book"), Sink(), 0
        book = Book(path, "c")
        for holding, broken, restarted in course:
            sink.broken, now = broken, now + 400_000
            book = Book(path, "c") if restarted else book
            look(book, sink, now, *sorted(holding))
        sink.broken = False
        look(book, sink, now + 400_000)
        assert book.pages.due == []
        assert book.pages.holding == {}
        ids = [each["id"] for each in sink.told]
        assert len(set(ids)) == len(ids)
        for name in ("worker_lost", "disk", "store"):
            told = [status for condition, status in sink.said if condition == name]
            assert told == ["firing", "resolved"] * (len(told) // 2)


def test_what_was_seen_is_remembered(path: Path) -> None:
    book = Book(path, "c")
    book.pages.short_since, book.pages.master = {"acme": 5}, "m2"
    book.pages.failover = Failover("m2", "m1", 7)
    book.save()
    again = Book(path, "c").pages
    assert (again.short_since, again.master, again.failover) == ({"acme": 5}, "m2", Failover("m2", "m1", 7))
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"due": 1}'])
def test_a_file_that_is_no_book_is_named(path: Path, text: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(text)
    with pytest.raises(BadBook, match=r"holds no book of alerts: .*; remove it to begin anew"):
        Book(path, "c")


def test_the_book_of_another_cluster_is_named(path: Path) -> None:
    Book(path, "c").save()
    with pytest.raises(BadBook, match="is the book of the cluster c, not of d; give --state another FILE"):
        Book(path, "d")


@contextmanager
def answering(status: int) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """A server that answers so, and what it was sent: the idempotency key, and the JSON."""
    heard: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            heard.append((self.headers["idempotency-key"], json.loads(body)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/secret", heard
        finally:
            server.shutdown()
            thread.join()


MESSAGE = {
    "id": "7-firing",
    "condition": "disk",
    "sentence": "ä",
    "status": "firing",
    "at": 0,
    "severity": "x",
    "do": "y",
}


def test_a_webhook_is_posted_the_notice_with_its_id() -> None:
    with answering(204) as (url, heard):
        Webhook(url).deliver(MESSAGE)
    assert heard == [("7-firing", MESSAGE)]


@pytest.mark.parametrize("status", [302, 400, 404, 429, 500])
def test_any_other_answer_is_a_failure_that_does_not_tell_the_url(status: int) -> None:
    with answering(status) as (url, _), pytest.raises(Undelivered, match=f"^127.0.0.1 answered {status}") as failed:
        Webhook(url).deliver(MESSAGE)
    assert "secret" not in str(failed.value)


def test_a_webhook_that_is_away_is_a_failure() -> None:
    with pytest.raises(Undelivered, match=r"^127.0.0.1: "):
        Webhook("http://127.0.0.1:1/").deliver(MESSAGE)


def test_a_command_gets_the_notice_on_its_input_and_in_variables(tmp_path: Path) -> None:
    script = "import os, sys; open(sys.argv[1], 'w').write(sys.stdin.read() + os.environ['FAIRLOG_ALERT_CONDITION'])"
    Command(f"{sys.executable} -c {json.dumps(script)} '{tmp_path}/a file'").deliver(MESSAGE)
    text = (tmp_path / "a file").read_text()
    assert json.loads(text.removesuffix("disk")) == MESSAGE


@pytest.mark.parametrize(
    ("command", "why"),
    [("sh -c 'echo no mail >&2; exit 7'", "sh exited with 7: no mail"), ("/does/not/exist", "No such file")],
)
def test_a_command_that_fails_is_a_failure(command: str, why: str) -> None:
    with pytest.raises(Undelivered, match=why):
        Command(command).deliver(MESSAGE)


def test_without_a_sink_notices_are_lines() -> None:
    said: list[str] = []
    NoticePrinter(said.append).deliver(MESSAGE)
    NoticePrinter(said.append).deliver({**MESSAGE, "status": "resolved"})
    assert said == ["1970-01-01 00:00:00.000Z x ä; y", "1970-01-01 00:00:00.000Z x resolved: ä; y"]
