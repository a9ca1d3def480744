"""Where masters may archive, and that nobody else can read what they archive, back up and log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog

from recovery.archive.allowed import check_allowed, check_command
from recovery.archive.archive import archive
from recovery.archive.archiver import Archiver
from recovery.archive.backup import backup
from recovery.archive.files import written
from recovery.replay.rebuild import rebuild
from scheduler.model.commands import AddAccount, Command, ConfigureCluster, RegisterCompany
from scheduler.model.errors import InvalidSetting
from scheduler.model.events import ClusterConfigured, CommandRefused
from scheduler.model.sender import By
from scheduler.service.child import Child
from scheduler.service.client import CommandClient
from scheduler.service.keyring import Keyring
from scheduler.service.private import private_folder, write_private
from scheduler.service.scheduler import Scheduler
from scheduler.store.eventlog import EventLog
from tests.unit.recovery.archive.archived import KEYS, commit

if TYPE_CHECKING:
    from redis import Redis

ALLOWED = ("file:///mnt/archive", "s3://bucket/fairlog/")


@pytest.mark.parametrize(
    "url",
    ["", "file:///mnt/archive", "file:///mnt/archive/", "file:///mnt/archive/a/b", "s3://bucket/fairlog", ALLOWED[1]],
)
def test_an_allowed_folder_and_those_below_it_may_be_the_archive(url: str) -> None:
    check_allowed(url, ALLOWED)


@pytest.mark.parametrize(
    "url",
    [
        *("file:///mnt", "file:///mnt/archives", "file:///etc", "file:///mnt/archive/../../etc"),
        *("file:///mnt/archive/%2e%2e/%2e%2e/etc", "file://host/mnt/archive", "file:///"),
        *("s3://bucket/fair", "s3://bucket", "s3://other/fairlog", "s3a://bucket/fairlog", "gs://bucket/fairlog"),
        *("s3://bucket/fairlog/../other", "s3://bucket/fairlog::http://evil/x", "simplecache::s3://bucket/fairlog"),
        *("http://evil/", "memory://", "/mnt/archive", "s3://bucket/fairlog/..\\x", "s3://[bucket/fairlog"),
    ],
)
def test_any_other_place_is_refused_in_one_sentence(url: str) -> None:
    with pytest.raises(InvalidSetting, match=r"^the masters' hosts allow only file:///mnt/archive and s3://.*ALLOW$"):
        check_allowed(url, ALLOWED)
    with pytest.raises(InvalidSetting, match="allow nothing as an archive"):
        check_allowed(url, ())


def test_a_link_that_leaves_the_allowed_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "out").symlink_to(tmp_path)
    allowed = [(tmp_path / "archive").as_uri()]
    check_allowed((tmp_path / "archive" / "in").as_uri(), allowed)
    with pytest.raises(InvalidSetting):
        check_allowed((tmp_path / "archive" / "out").as_uri(), allowed)


def test_a_master_refuses_the_setting_and_logs_nothing_of_it(fake: Redis) -> None:
    log = EventLog(fake, KEYS)

    def accepts(command: Command) -> None:
        check_command(command, ["file:///mnt/archive"])

    scheduler = Scheduler(log, "m1", lambda: rebuild(log), accepts)
    scheduler.take_over()
    client, head = CommandClient(fake, KEYS.cluster), log.head()
    settings = {"archive_url": "file:///home", "archive_after_events": 1}
    client.notify(ConfigureCluster(settings=settings), ConfigureCluster(settings={"archive_url": "none://"}))
    scheduler.turn()
    assert log.head() == head
    client.notify(ConfigureCluster(settings={"archive_url": "file:///mnt/archive/a"}), RegisterCompany(company="acme"))
    scheduler.turn()
    assert [fact.type for fact in log.facts(head)] == ["ClusterConfigured", "CompanyRegistered"]


def test_who_may_not_set_it_learns_nothing_of_the_masters_host(fake: Redis) -> None:
    """The refusal is that of the rules, in the log, and names no folder of the host."""
    log, ring = EventLog(fake, KEYS), Keyring.new()
    scheduler = Scheduler(
        log, "m1", lambda: rebuild(log), lambda command: check_command(command, ["file:///home/olga"]), keyring=ring
    )
    scheduler.take_over()
    CommandClient(fake, KEYS.cluster, keyring=ring).notify(
        RegisterCompany(company="acme"), AddAccount(account="acme/ann")
    )
    scheduler.turn()
    ann = CommandClient(fake, KEYS.cluster, keyring=ring, by=By("acme/ann", "t1", "user"), timeout_s=0.01)
    ann.notify(ConfigureCluster(settings={"archive_url": "file:///etc"}))
    scheduler.turn()
    refused = [fact.event for fact in log.facts() if isinstance(fact.event, CommandRefused)]
    assert [event.error for event in refused] == ["NotAllowed"]
    assert "olga" not in refused[0].message


def test_a_master_archives_to_no_other_place_that_the_log_names(fake: Redis) -> None:
    log = commit(fake)
    settings = ClusterConfigured(archive_url="memory://archive", archive_after_events=1, archive_retain_events=1)
    archiver = Archiver(log, "unix:///nowhere", allowed=ALLOWED)
    with structlog.testing.capture_logs() as said:
        archiver.tend(settings, log.head().seq)
    assert not fake.exists(KEYS.archiving)
    assert "not memory://archive" in said[0]["reason"]


@pytest.fixture(params=[0o000, 0o022], ids=oct)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def _modes(folder: Path) -> set[tuple[bool, int]]:
    return {(path.is_dir(), path.lstat().st_mode & 0o777) for path in (folder, *folder.rglob("*"))}


@pytest.mark.usefixtures("_umask")
def test_segments_and_backups_are_their_owners_alone(fake: Redis, tmp_path: Path) -> None:
    log = commit(fake)
    assert list(archive(log, (tmp_path / "deep" / "archive").as_uri(), retain=40))
    assert _modes(tmp_path / "deep") == {(True, 0o700), (False, 0o600)}
    backup(log, str(tmp_path / "deep" / "backup.gz"))
    with written(str(tmp_path / "deep" / "other")) as file:
        file.write(b"text")
    assert _modes(tmp_path / "deep") == {(True, 0o700), (False, 0o600)}


@pytest.mark.usefixtures("_umask")
def test_logs_and_notes_of_the_program_are_their_owners_alone(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "b")
    write_private(folder / "note", "text")
    started = Child("it", ["/bin/sh", "-c", "umask; : > made"], folder / "log", cwd=folder, umask=0o077)
    started.start()
    started.wait()
    assert (folder / "log").read_text() == "0077\n"
    assert _modes(tmp_path / "a") == {(True, 0o700), (False, 0o600)}
