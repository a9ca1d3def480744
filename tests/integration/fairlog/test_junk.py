"""One tenant sends as much junk as it may: nobody else is delayed, and its own lane refuses what does not fit."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlog.api.client import ApiClient
from fairlog.errors import Refused
from scheduler.model.commands import AddAccount, IssueToken, KillApp, RegisterCompany, SubmitApp, write_command
from scheduler.model.errors import DuplicateApp
from scheduler.model.sender import By
from scheduler.service.client import LANE_LIMIT, CommandClient
from scheduler.service.keyring import KEYS_FILE, Keyring
from scheduler.service.receipts import Receipt
from scheduler.service.tokens import NewToken, new_token
from tests.integration.cli_rig import Shell
from tests.waiting import HOPELESS_S

JUNK = 30_000
ANSWERED = 5
"""So many submissions of others are answered, one after another, while the junk is being refused."""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What `up.json` says of an `up` with one master."""
    shell = Shell(tmp_path / "home")
    shell.ok("up", "--detach", "--workers", "1", "--masters", "1")
    yield json.loads((shell.home / ".local/share/fairlog/up/up.json").read_text())
    shell.run("down")


def member(operator: ApiClient, company: str, user: str) -> NewToken:
    """A new token of a new user of a new company."""
    account, token = f"{company}/{user}", new_token()
    operator.send(RegisterCompany(company=company))
    operator.send(AddAccount(account=account))
    operator.send(IssueToken(token=token.id, account=account, hash=token.hash))
    return token


def elections(operator: ApiClient) -> int:
    return sum(event["type"] == "MasterElected" for event in operator.log())


def submission(company: str, user: str, app: str) -> SubmitApp:
    return SubmitApp(app=app, company=company, user=user, tasks=1, command=("true",), hold=True)


@contextmanager
def paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_who_sends_junk_delays_nobody_else(up: dict[str, Any]) -> None:
    with ApiClient(f"http+unix:{up['socket']}") as operator:
        junk, ann = member(operator, "junk", "jo"), member(operator, "acme", "ann")
        assert elections(operator) == 1
        with ApiClient(up["api"], token=junk.text) as theirs, ApiClient(up["api"], token=ann.text) as ours:
            theirs.send(submission("junk", "jo", "same"))
            answers: list[object] = []
            sending = threading.Thread(
                target=lambda: answers.extend(theirs.send_many([submission("junk", "jo", "same")] * JUNK))
            )
            sending.start()
            sent = 0
            while sending.is_alive():
                assert isinstance(ours.send(submission("acme", "ann", f"a-{sent}")), Receipt)
                sent += 1
            assert sent > ANSWERED
            assert len(answers) == JUNK
            assert all(isinstance(answer, DuplicateApp) for answer in answers)

        with paused(operator.read("/v1/status")["master"]["pid"]):
            keys = Keyring.load(Path(up["data"]) / KEYS_FILE)
            filling = CommandClient(up["url"], keyring=keys, by=By("junk/jo", junk.id, "user"))
            body = write_command(KillApp(app="nobody"))
            filling._put([part for n in range(LANE_LIMIT) for part in (f"j{n}", "command", body, "")])
            with (
                ApiClient(up["api"], token=junk.text, timeout_s=1) as theirs,
                pytest.raises(Refused, match="is full with 5,000 messages") as full,
            ):
                theirs.send(submission("junk", "jo", "b"))
            assert full.value.title == "LaneFull"
            kept: list[object] = []
            ours = ApiClient(up["api"], token=ann.text)
            waiting = threading.Thread(target=lambda: kept.append(ours.send(submission("acme", "ann", "last"))))
            waiting.start()
        waiting.join(HOPELESS_S)
        ours.close()
        assert isinstance(kept[0], Receipt)
        assert elections(operator) == 1
