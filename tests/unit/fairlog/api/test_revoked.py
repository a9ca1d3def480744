"""A token that was revoked, while no master is there: every server refuses it, and so does the next master."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from fairlog.api.handlers import Handlers
from fairlog.api.replica import Replica
from recovery.replay.rebuild import rebuild
from scheduler.model.commands import (
    AddAccount,
    Command,
    IssueToken,
    KillApp,
    RegisterCompany,
    RevokeToken,
    SubmitApp,
    write_command,
)
from scheduler.model.errors import NotAllowed, NotAuthenticated
from scheduler.model.sender import By, local
from scheduler.service.client import CommandClient
from scheduler.service.scheduler import Scheduler
from scheduler.service.tokens import new_token
from scheduler.store.eventlog import EventLog
from tests.unit.fairlog.api.served import KEYS, RING
from tests.waiting import HOPELESS_S

if TYPE_CHECKING:
    import fakeredis

ROOT = local(0)


def master(fake: fakeredis.FakeRedis, name: str) -> Scheduler:
    made = Scheduler(EventLog(fake, KEYS), name, lambda: rebuild(EventLog(fake, KEYS)), keyring=RING)
    made.take_over()
    return made


def test_a_token_revoked_during_a_failover_is_refused_everywhere(fake: fakeredis.FakeRedis) -> None:
    scheduler, client = (
        master(fake, "m1"),
        CommandClient(fake, KEYS.cluster, keyring=RING, by=ROOT, timeout_s=HOPELESS_S),
    )
    token = new_token()
    ann = By("acme/ann", token.id, "user")
    told: list[Command] = [
        RegisterCompany(company="acme"),
        AddAccount(account="acme/ann"),
        IssueToken(token=token.id, account="acme/ann", hash=token.hash),
    ]
    client.notify(*told)
    scheduler.turn()
    client.notify(SubmitApp(app="a", company="acme", user="ann", cores=4, command=("true",)), by=ann)
    scheduler.turn()
    with ExitStack() as stack:
        servers = []
        for _ in range(2):
            replica = stack.enter_context(Replica(EventLog(fake, KEYS)))
            assert replica.wait_for(scheduler.position.seq, HOPELESS_S)
            servers.append(Handlers(fake, KEYS.cluster, replica, keyring=RING, timeout_s=0.1))
        assert [server.principal(token.text, at_home=False) for server in servers] == [ann] * 2
        client.notify(RevokeToken(token=token.id))
        client._put(["late", "command", write_command(KillApp(app="a")), "late"], ann)
        flat: Any = fake.xrange(KEYS.lane("company/acme"))
        fake.delete(KEYS.lane("company/acme"))
        scheduler.turn()
        del scheduler  # nobody serves now
        for server in servers:
            assert server.replica.wait_for(server.replica.log.head().seq, HOPELESS_S)
            with pytest.raises(NotAuthenticated, match="revoked"):
                server.principal(token.text, at_home=False)
            with pytest.raises(NotAllowed, match="not valid"):
                server.sender.send(ann, KillApp(app="a"))
            with pytest.raises(NotAllowed, match="not valid"):
                server.views.view(ann, "cluster", {})
            [refusal] = server.sender.send_many(ann, [write_command(KillApp(app="a")).encode()])
            assert isinstance(refusal, NotAllowed)
    for entry, fields in flat:  # what the server signed before is in the inbox when the next master begins
        fake.xadd(KEYS.lane("company/acme"), fields, id=entry)
    second = master(fake, "m2")
    second.turn()
    assert second.state.apps["a"].ended is None
    assert "NotAllowed" in str(fake.lrange(KEYS.reply("late"), 0, -1))
