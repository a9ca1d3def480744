"""The end of an app is told to whom it names, at an allowed place: once, through restarts, crashes and lost tails."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from fairlog.watch import endings as module
from fairlog.watch.alerts import BadBook, Book, Ending, Undelivered
from fairlog.watch.endings import GIVEN_UP_MS, MOST_DUE, Endings
from fairlog.watch.mail import MailServer
from scheduler.model.commands import (
    ConfigureCluster,
    EndApp,
    EndedExecutor,
    KillApp,
    Measured,
    SubmitApp,
    write_command,
)
from scheduler.model.errors import InvalidCommand, InvalidSetting
from scheduler.model.targets import check_places, place_of, url_at
from scheduler.rules.command.submission import with_place
from scheduler.service.inbox import received
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from tests.property.given import Cluster, shared, submission
from tests.unit.recorded import put

HOOK = "https://hooks.example.org/services/s3cret"
PLACES = "https://hooks.example.org @example.org http://10.0.0.7:8080"
KEYS = Keys("c")


def named(app: str, notify: str = HOOK, cores: int = 4) -> SubmitApp:
    """A submission whose end is told to that target."""
    return with_place(replace(submission(app, cores), notify=notify, name=f"{app}!"))


def cluster() -> Cluster:
    return shared({"notify_targets": PLACES}, w1=64)


class Told:
    """Posts that were made, as (URL, message); they fail while `why` says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.posts: list[tuple[str, dict[str, Any]]] = []
        self.why = ""
        self.before: Callable[[], None] = lambda: None
        monkeypatch.setattr(module, "post", self._post)

    def _post(self, url: str, message: dict[str, Any]) -> None:
        self.before()
        if self.why:
            raise Undelivered(self.why)
        self.posts.append((url, message))

    @property
    def apps(self) -> list[str]:
        return [message["app"] for _, message in self.posts]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


class Bench:
    """A cluster whose log is stored turn by turn, and the book of its alerts."""

    def __init__(self, folder: Path) -> None:
        self.cluster = cluster()
        self.path = folder / "book.json"
        self.log = EventLog(fakeredis.FakeRedis(), KEYS)
        self._stored = 0
        self.restart()

    def restart(self) -> None:
        """Another process goes on with the book."""
        self.book = Book(self.path, "c")
        self.endings = Endings(self.book.pages.apps, "c", self.book.save)

    def store(self) -> None:
        put(self.log, self.cluster.records[self._stored :])
        self._stored = len(self.cluster.records)

    def turn(self, *commands: Any) -> None:
        self.cluster.turn(*commands)
        self.store()

    def run(self, app: str, *, cpu_ms: int = 2000, notify: str = HOOK) -> None:
        """An app from its submission to its last executor's end."""
        self.turn(named(app, notify))
        self.turn(EndApp(app=app, reason="finished"))
        self.turn(
            EndedExecutor(executor=f"{app}.0", reason="exited", exit_code=0, done=True, used=Measured(cpu_ms, 310))
        )

    def look(self, now: int = 0) -> None:
        self.endings.look(self.log)
        self.endings.deliver(now)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.store()
    bench.look()
    return bench


def test_an_end_is_told_once_with_its_figures(bench: Bench, told: Told) -> None:
    bench.run("a")
    for _ in range(3):
        bench.look()
        bench.restart()
    ((url, message),) = told.posts
    assert url == HOOK
    assert (message["app"], message["name"], message["state"], message["company"]) == ("a", "a!", "finished", "acme")
    assert (message["cpuMs"], message["peakMemory"]) == (2000, 310)
    assert message["text"].startswith("app a! of ann at acme finished; used 0.001 of ")
    assert message["endedAt"] == bench.cluster.state.apps["a"].ended_at


def test_it_is_told_once_all_that_it_ran_has_ended(bench: Bench, told: Told) -> None:
    bench.turn(named("a"))
    bench.turn(KillApp(app="a", reason="too slow"))
    bench.look()
    assert told.posts == []
    bench.turn(EndedExecutor(executor="a.0", reason="killed"))
    bench.look()
    assert told.posts[0][1]["detail"] == "too slow"
    assert told.posts[0][1]["text"].startswith("app a! of ann at acme was killed: too slow")


def test_an_app_that_never_ran_is_told_too_and_one_that_names_nobody_is_not(bench: Bench, told: Told) -> None:
    bench.turn(replace(named("a"), hold=True))
    bench.turn(replace(submission("b"), hold=True))
    bench.turn(KillApp(app="a", reason="x"), KillApp(app="b", reason="x"))
    bench.look()
    assert told.apps == ["a"]
    assert "cpuMs" not in told.posts[0][1]


def test_what_ended_before_the_first_look_is_not_told(tmp_path: Path, told: Told) -> None:
    bench = Bench(tmp_path)
    bench.run("a")
    bench.look()
    bench.run("b")
    bench.look()
    assert told.apps == ["b"]


def test_what_ends_while_nobody_looks_is_told_at_the_next_start(bench: Bench, told: Told) -> None:
    bench.run("a")
    bench.restart()
    bench.run("b")
    bench.look()
    assert told.apps == ["a", "b"]


def test_apps_that_the_state_forgets_at_once_are_told(tmp_path: Path, told: Told) -> None:
    bench = Bench(tmp_path)
    bench.turn(ConfigureCluster(settings={"retained_apps": 0}))
    bench.look()
    bench.run("a")
    bench.look()
    assert told.apps == ["a"]


def test_what_is_due_is_on_the_disk_before_it_is_sent(bench: Bench, told: Told) -> None:
    seen: list[list[str]] = []
    told.before = lambda: seen.append(
        [each["message"]["app"] for each in json.loads(bench.path.read_text())["apps"]["due"]]
    )
    bench.run("a")
    bench.look()
    assert seen == [["a"]]
    assert json.loads(bench.path.read_text())["apps"]["due"] == []


def test_a_crash_between_delivery_and_entry_sends_it_again_under_the_same_id(bench: Bench, told: Told) -> None:
    bench.run("a")
    bench.endings.look(bench.log)
    written = bench.path.read_bytes()
    bench.endings.deliver(0)
    bench.path.write_bytes(written)
    bench.restart()
    bench.look()
    first, second = told.posts
    assert first == second


def test_what_fails_is_tried_again_and_given_up_after_three_days(bench: Bench, told: Told) -> None:
    told.why = "it is away"
    bench.run("a")
    with capture_logs() as logs:
        bench.look(now := bench.cluster.state.apps["a"].ended_at)
        bench.look(now + 500)
        assert [(each["to"], each["reason"]) for each in logs] == [("https://hooks.example.org", "it is away")]
        bench.restart()
        bench.look(now + 1_000)
        assert logs[-1]["tries"] == 2
        bench.look(now + GIVEN_UP_MS + 1)
    assert "told to nobody" in logs[-1]["event"]
    assert "s3cret" not in json.dumps(logs)
    told.why = ""
    bench.look(now + GIVEN_UP_MS + 10_000)
    assert told.posts == []


def test_a_place_that_is_away_delays_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    posts: list[str] = []

    def post(url: str, message: dict[str, Any]) -> None:
        if "10.0.0.7" in url:
            raise Undelivered("it is away")
        posts.append(message["app"])

    monkeypatch.setattr(module, "post", post)
    for number in range(3):
        bench.run(f"bad-{number}", notify="http://10.0.0.7:8080/x")
        bench.run(f"good-{number}")
    bench.look()
    assert posts == ["good-0", "good-1", "good-2"]
    assert [each.message["app"] for each in bench.endings.due] == ["bad-0", "bad-1", "bad-2"]
    assert sum(each.tries for each in bench.endings.due) == 1


def test_what_an_operator_does_not_allow_any_more_is_dropped(bench: Bench, told: Told) -> None:
    bench.turn(named("a"))
    bench.turn(ConfigureCluster(settings={"notify_targets": "@example.org"}))
    bench.turn(KillApp(app="a", reason="x"), EndedExecutor(executor="a.0", reason="killed"))
    with capture_logs() as logs:
        bench.look()
    assert told.posts == []
    assert "not in notify_targets" in logs[0]["reason"]


def test_a_flood_of_ends_is_bounded_for_each_place(bench: Bench, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_DUE", 3)
    assert MOST_DUE > 3
    told.why = "it is away"
    for number in range(5):
        bench.run(f"a{number}")
    with capture_logs() as logs:
        bench.look()
    assert [each.message["app"] for each in bench.endings.due] == ["a2", "a3", "a4"]
    assert [each["app"] for each in logs if "told to nobody" in each["event"]] == ["a0", "a1"]


def test_a_log_that_lost_its_tail_is_looked_through_again_and_nothing_is_told_twice(tmp_path: Path, told: Told) -> None:
    bench = Bench(tmp_path)
    bench.store()
    bench.look()
    bench.run("a")
    kept = len(bench.cluster.records)
    bench.run("b")
    bench.look()
    assert told.apps == ["a", "b"]
    lost = fakeredis.FakeRedis()
    bench.log = EventLog(lost, KEYS)
    put(bench.log, bench.cluster.records[:kept])
    bench.look()
    assert told.apps == ["a", "b"]
    assert bench.book.pages.apps.seq == bench.cluster.records[kept - 1].last
    bench.restart()
    put(bench.log, bench.cluster.records[kept:])
    bench.look()
    assert told.apps == ["a", "b"], "the end of b came back, and was told before"


def test_a_book_of_before_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "book.json"
    path.write_text('{"cluster":"c","holding":{},"due":[],"short_since":{},"master":""}')
    assert Book(path, "c").pages.apps.seq == 0
    path.write_text('{"cluster":"c","apps":{"seq":"x"}}')
    with pytest.raises(BadBook):
        Book(path, "c")


@pytest.mark.parametrize(
    ("target", "place"),
    [
        (HOOK, "https://hooks.example.org"),
        ("HTTPS://Hooks.Example.org:443?x=1", "https://hooks.example.org"),
        ("http://10.0.0.7:8080/x", "http://10.0.0.7:8080"),
        ("http://h:80", "http://h"),
        ("ann+x@Example.org", "@example.org"),
    ],
)
def test_a_target_has_a_place(target: str, place: str) -> None:
    assert place_of(target) == place
    check_places(place)


@pytest.mark.parametrize(
    "target",
    [
        "https://hooks.example.org@evil.example/x",
        "https://ann:pass@hooks.example.org/x",
        "https://hooks.example.org\\@evil.example/",
        "https://hooks.example.org:99999999/",
        "https://hooks.example.org /x",
        "https://hooks.example.org/\nHost: evil",
        "https://[::1]/",
        "https://evil.example#@hooks.example.org/",
        "https:///x",
        "ftp://hooks.example.org/",
        "file:///etc/passwd",
        "ann@example.org\nBcc: eve@evil.example",
        "ann@example.org,eve@evil.example",
        "<ann@example.org>",
        "@example.org",
        "ann",
        " ",
        "https://h/" + "x" * 3000,
    ],
)
def test_what_could_be_taken_for_another_place_is_no_target(target: str) -> None:
    with pytest.raises(InvalidCommand, match="is a URL like https://HOST/PATH"):
        place_of(target)


def test_what_is_asked_is_at_the_place_whatever_stands_behind_it() -> None:
    assert url_at("https://h", "https://H?x=@evil") == "https://h?x=@evil"
    assert url_at("https://h", "https://h") == "https://h/"


@pytest.mark.parametrize(
    "places",
    ["https://H", "https://h/", "https://h:443", "h", "ann@example.org", "@Example.org", "*", "https://a, https://b"],
)
def test_a_setting_that_names_no_places_is_refused(places: str) -> None:
    with pytest.raises(InvalidSetting, match="notify_targets are places like"):
        cluster().turn(ConfigureCluster(settings={"notify_targets": places}))


def test_a_place_that_no_operator_allows_is_refused_at_submission() -> None:
    bench = cluster()
    with pytest.raises(
        InvalidCommand, match=r"nobody at https://evil.example may be told .* notify_targets, which are now https"
    ):
        bench.turn(named("a", "https://evil.example/x"))
    with pytest.raises(InvalidCommand, match="which are now none"):
        shared(w1=8).turn(named("a"))


def test_a_submission_that_states_another_place_is_refused() -> None:
    text = write_command(replace(named("a", "https://evil.example/x"), notify_at="https://hooks.example.org"))
    with pytest.raises(InvalidCommand, match="notify_at of a submission follows from notify"):
        received(text.encode())
    with pytest.raises(InvalidCommand, match="notify_at"):
        received(write_command(replace(submission("a"), notify_at="https://hooks.example.org")).encode())
    stated = received(write_command(replace(submission("a"), notify=HOOK)).encode())
    assert isinstance(stated, SubmitApp)
    assert stated.notify_at == "https://hooks.example.org"


class _Smtp(socketserver.StreamRequestHandler):
    """Takes one mail and keeps what was said."""

    def handle(self) -> None:
        said: list[str] = self.server.said  # type: ignore[attr-defined]
        self.wfile.write(b"220 test\r\n")
        body = False
        for line in self.rfile:
            text = line.decode().rstrip("\r\n")
            said.append(text)
            if body:
                if text == ".":
                    body = False
                    self.wfile.write(b"250 taken\r\n")
                continue
            if text.upper() == "DATA":
                body = True
                self.wfile.write(b"354 go on\r\n")
            elif text.upper() == "QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            else:
                self.wfile.write(b"550 no\r\n" if "refused@" in text else b"250 ok\r\n")


@contextmanager
def smtp() -> Iterator[tuple[int, list[str]]]:
    """A server for mail: its port, and the lines that it was told."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Smtp) as server:
        server.said = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1], server.said  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()


def test_a_mail_has_the_figures_and_an_id(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.store()
    with smtp() as (port, said):
        mail = MailServer.of(f"smtp://127.0.0.1:{port}", "fairlog@example.org")
        bench.endings = Endings(bench.book.pages.apps, "c", bench.book.save, mail)
        bench.look()
        bench.run("a", notify="ann@example.org")
        bench.look()
        bench.run("b", notify="refused@example.org")
        with capture_logs() as logs:
            bench.look()
    text = "\n".join(said)
    (identity, *_) = bench.book.pages.apps.ids
    assert "rcpt to:<ann@example.org>" in text.lower()
    assert f"Message-ID: <{identity}@example.org>" in text
    assert "Subject: app a! of ann at acme finished" in text
    assert "cpuMs: 2000" in text
    assert "no" in logs[0]["reason"]
    assert [each.message["app"] for each in bench.endings.due] == ["b"]


def test_a_password_is_not_sent_without_tls() -> None:
    ending = Ending(id="i", target="ann@example.org", place="@example.org", message={"text": "t"}, at=0)
    with smtp() as (port, said), pytest.raises(Undelivered, match="offers no STARTTLS"):
        MailServer.of(f"smtp://ann:secret@127.0.0.1:{port}", "fairlog@example.org").deliver(ending)
    assert not [line for line in said if line.upper().startswith("AUTH")]


def test_mail_waits_where_no_server_takes_it(bench: Bench) -> None:
    bench.run("a", notify="ann@example.org")
    with capture_logs() as logs:
        bench.look()
    assert "give --smtp URL" in logs[0]["reason"]
    assert len(bench.endings.due) == 1


def test_a_server_that_is_not_there_is_said() -> None:
    ending = Ending(id="i", target="ann@example.org", place="@example.org", message={"text": "t"}, at=0)
    with socketserver.TCPServer(("127.0.0.1", 0), _Smtp) as server:
        port = server.server_address[1]
    with pytest.raises(Undelivered, match=r"127.0.0.1: .*refused"):
        MailServer.of(f"smtp://127.0.0.1:{port}", "fairlog@example.org").deliver(ending)


@pytest.mark.parametrize("url", ["http://h", "smtp://", "h", "smtp://h/path", "smtp://h?x=1", "smtp://h:x"])
def test_a_url_of_no_server_for_mail_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        MailServer.of(url, "fairlog@example.org")


class _Redirecting(BaseHTTPRequestHandler):
    asked: list[str]

    def do_POST(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_response(307)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_no_redirect_is_followed(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), _Redirecting) as server:
        server.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        place = f"http://127.0.0.1:{server.server_address[1]}"
        bench = Bench(tmp_path)
        bench.turn(ConfigureCluster(settings={"notify_targets": place}))
        bench.look()
        bench.run("a", notify=f"{place}/here")
        with capture_logs() as logs:
            bench.look()
        server.shutdown()
        thread.join()
    assert server.asked == ["/here"]  # type: ignore[attr-defined]
    assert "answered 307" in logs[0]["reason"]
