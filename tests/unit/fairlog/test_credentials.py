"""Which API and token the programs of a user use."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlog import credentials
from fairlog.credentials import Credentials, credentials_file, keeping, kept, named
from fairlog.errors import BadCredentials
from fairlog.local.running import RunningUp
from scheduler.model.errors import CommandRejected, NoMaster

KEPT = Credentials("https://api", "fl_kept")
UP = RunningUp(1, "unix:///s", "default", "/data", 2, 0.0, ready=True, socket="/s.api")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(credentials, "find_running", lambda _=None: None)
    for name in ("FAIRLOG_API", "FAIRLOG_TOKEN", "FAIRLOG_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def keep(found: Credentials = KEPT) -> None:
    with keeping(found):
        pass


def test_credentials_are_kept_for_their_owner_only() -> None:
    assert kept() is None
    keep()
    assert kept() == KEPT
    assert credentials_file().stat().st_mode & 0o777 == 0o600
    assert [path.name for path in credentials_file().parent.iterdir()] == ["credentials.json"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_refused(mode: int) -> None:
    keep()
    credentials_file().chmod(mode)
    with pytest.raises(BadCredentials, match=r"holds secrets and has mode 06\d\d; run `chmod 600 "):
        kept()


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", '{"api": 1, "token": ""}', "\udcff"])
def test_a_file_of_something_else_is_refused(text: str) -> None:
    keep()
    credentials_file().write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(BadCredentials, match="holds no credentials; run `fairlog login`"):
        kept()


def test_what_was_refused_leaves_the_earlier_credentials() -> None:
    keep()

    def refused() -> None:
        with keeping(Credentials("https://other", "fl_new")):
            assert kept() == KEPT
            raise CommandRejected("no")

    with pytest.raises(CommandRejected):
        refused()
    assert kept() == KEPT
    assert len(list(credentials_file().parent.iterdir())) == 1


def test_a_token_whose_issue_is_not_confirmed_is_kept() -> None:
    def unanswered() -> None:
        with keeping(KEPT):
            raise NoMaster("away")

    with pytest.raises(NoMaster):
        unanswered()
    assert kept() == KEPT


def test_the_environment_comes_first_then_the_running_up_then_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert named() is None
    keep()
    assert named() == KEPT
    assert named(Path("data")) is None
    monkeypatch.setenv("FAIRLOG_TOKEN", "fl_told")
    assert named() == Credentials("https://api", "fl_told")
    monkeypatch.setattr(credentials, "find_running", lambda _=None: UP)
    assert named() == named(Path("data")) == Credentials("http+unix:/s.api", "fl_told")
    monkeypatch.setenv("FAIRLOG_API", "https://told")
    assert named() == Credentials("https://told", "fl_told")


def test_a_kept_token_goes_to_its_own_api_only(monkeypatch: pytest.MonkeyPatch) -> None:
    keep()
    monkeypatch.setenv("FAIRLOG_API", "https://elsewhere")
    assert named() == Credentials("https://elsewhere", "")
    monkeypatch.setenv("FAIRLOG_API", "https://api")
    assert named() == KEPT


def test_a_token_without_any_api_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLOG_TOKEN", "fl_told")
    with pytest.raises(BadCredentials, match="FAIRLOG_TOKEN is set, but no API server is named: set FAIRLOG_API"):
        named()


@pytest.mark.parametrize(
    ("held", "why"),
    [
        ("", "which has nothing in it; `fairlog token new` and `fairlog worker invite` print tokens"),
        ("\n", "which has nothing in it"),
        ("$ fairlog worker invite w7\nfl_x", "which has more than a token in it; a token is one word, and begins"),
    ],
)
def test_a_file_that_has_no_token_or_more_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, held: str, why: str
) -> None:
    (home / "token").write_text(held)
    monkeypatch.setenv("FAIRLOG_TOKEN_FILE", str(home / "token"))
    with pytest.raises(BadCredentials, match=f"FAIRLOG_TOKEN_FILE names {home}/token, {why}"):
        named()


def test_a_token_in_a_variable_is_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    keep()
    monkeypatch.setenv("FAIRLOG_TOKEN", "fl_given\n")
    assert named() == Credentials("https://api", "fl_given")
    monkeypatch.setenv("FAIRLOG_TOKEN", "fl_one\nfl_two")
    with pytest.raises(BadCredentials, match="FAIRLOG_TOKEN has more than a token in it"):
        named()
