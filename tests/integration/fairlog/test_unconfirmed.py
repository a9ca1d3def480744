"""What a command's sender is told who does not hear what became of it, and what became of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import Redis

from fairlog.cli.failures import Unconfirmed
from fairlog.cli.session import Session, opened
from fairlog.cli.target import Target
from fairlog.local.store import EmbeddedStore
from recovery.replay.rebuild import rebuild
from scheduler.model.commands import KillApp, RegisterCompany, SubmitApp
from scheduler.service.scheduler import Scheduler
from tests.integration.cli_rig import Shell
from tests.integration.servers import Servers
from tests.waiting import HOPELESS_S, wait_until

APP = SubmitApp(app="a", company="acme", user="ann", command=("true",))


@pytest.fixture
def session(store: EmbeddedStore) -> Iterator[Session]:
    """A cluster that no master serves, and little patience."""
    session = opened(Target(store=store.url))
    session.road.client.timeout_s = 0.3
    yield session
    session.close()


def test_a_command_without_an_answer_is_unconfirmed_and_the_next_master_executes_it(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    session.road.client.notify(RegisterCompany(company="acme"))
    with pytest.raises(Unconfirmed) as submitted:
        session.submit(APP, {"TOKEN": "hush"})
    assert str(submitted.value) == (
        "no master answered within 0.3 s; `fairlog status` shows whether one is active; "
        "the command is not confirmed and may still be carried out later; "
        "`fairlog app a` shows whether it was submitted; submitting again creates another app"
    )
    with pytest.raises(Unconfirmed, match="later; repeating it is safe"):
        session.send(KillApp(app="a"))
    note = "note: no master of the cluster default is active; waiting up to 0.3 s for one\n"
    assert capsys.readouterr().err == 2 * note
    master = Scheduler(session.road.log, "m", lambda: rebuild(session.road.log))
    master.take_over()
    master.turn()
    assert master.state.apps["a"].state == "killed"


def test_a_command_that_a_lost_store_has_not_answered_is_unconfirmed(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.service.client.RECONNECT_S", HOPELESS_S)
    port = servers.start("--no-appendfsync-on-rewrite", "no")
    session = opened(Target(store=f"redis://127.0.0.1:{port}/0"))
    servers.stack.callback(session.close)
    session.road.client.timeout_s = HOPELESS_S
    with Redis(port=port) as other, ThreadPoolExecutor() as threads:
        sent = threads.submit(session.submit, APP, {})
        wait_until(lambda: other.xlen(session.road.keys.inbox) == 1, "the command to be in the inbox")
        servers.kill(port)
        with pytest.raises(
            Unconfirmed, match=r"the store does not answer .*; the command is not confirmed .*`fairlog app a`"
        ):
            sent.result()


def test_interrupting_a_submission_warns_that_it_may_still_be_executed(
    store: EmbeddedStore, session: Session, tmp_path: Path
) -> None:
    shell = Shell(tmp_path)
    submitting = shell.start("--store", store.url, "submit", "--company", "acme", "--user", "ann", "--", "true")
    wait_until(lambda: session.road.store.xlen(session.road.keys.inbox) == 1, "the command to be in the inbox")
    submitting.send_signal(signal.SIGINT)
    said, _ = submitting.communicate(timeout=HOPELESS_S)
    assert submitting.returncode == 130
    assert "interrupted; the command is not confirmed" in said
