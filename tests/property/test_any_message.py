"""Whatever lies in the inbox, the master answers the honest command beside it and does not fold its log again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import fakeredis
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from recovery.replay.rebuild import rebuild
from scheduler.model import commands
from scheduler.model.commands import RegisterCompany, RegisterWorker, SubmitApp, write_command
from scheduler.model.errors import CommandRejected
from scheduler.rules.command.decide import decide
from scheduler.rules.state.records import lines, restored
from scheduler.service.inbox import received
from scheduler.service.scheduler import Scheduler
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from tests.unit.scheduler.rules.command.test_permission import OPERATOR, by, inhabited

if TYPE_CHECKING:
    from scheduler.model.sender import By
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.store.eventlog import Position

KEYS = Keys("any")
Entry = list[tuple[bytes, bytes]]
DEEP = {"a": json.loads("[" * 300 + "]" * 300)}
NASTY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5),
    st.sampled_from([10**18, -(10**18), 10**400, -1, 2**63, 2**64, 1e308, -0.0]),
    st.text(max_size=8),
    st.sampled_from(
        ["", "\0", "a\nb", "\x1b]52;c;x\x07", "\u202e", "x" * 70_000, "acme", "ann", "a", "a-0", "w1", "a-d0"]
    ),
    st.lists(st.one_of(st.integers(-1, 3), st.text(max_size=4)), max_size=4),
    st.sampled_from([DEEP, [DEEP], {"gpu": 1}, {"": ""}, {"ok": ["a"]}, {"h": 10**30}, ["a"] * 20_000, [0, 10**30]]),
)
"""JSON values, of which few are right anywhere."""
RIGHT: dict[str, dict[str, Any]] = {
    "ConfigureCluster": {"settings": {"default_cores": 8}},
    "RegisterKind": {"kind": "gpu"},
    "RegisterCompany": {"company": "b", "part": "1/4"},
    "ChangeCompany": {"company": "acme", "cores": 4, "memory_mb": 4096, "resources": {}},
    "RemoveCompany": {"company": "b"},
    "SetLimit": {"scope": "user", "name": "max_cores", "value": 5, "company": "acme", "user": "ann"},
    "RegisterWorker": {"worker": "w1", "node": "n", "host": "h", "cores": 16, "memory_mb": 32768, "resources": {}},
    "DrainWorker": {"worker": "w1"},
    "DecommissionWorker": {"worker": "w1"},
    "UndrainWorker": {"worker": "w1"},
    "RemoveWorker": {"worker": "w1", "force": False},
    "LoseWorker": {"worker": "w1", "last_seen": 3},
    "SubmitApp": {
        "app": "b",
        "company": "acme",
        "user": "ann",
        "tasks": 2,
        "cores": 4,
        "command": ["x"],
        "env": [],
        "cwd": "/",
        "elastic": None,
        "after": {},
        "warn": None,
        "prefer": {},
        "executor_cores": None,
        "driver": False,
    },
    "ScaleApp": {"app": "a", "executors": 2, "prefer": {"h": 1}, "preferring_tasks": 1},
    "KillExecutors": {"app": "a", "executors": ["a-0"]},
    "KillApp": {"app": "a"},
    "SignalApp": {"app": "a", "signal": "USR1", "task": 0, "whole": True, "reason": "x"},
    "CancelTask": {"app": "a", "task": 0, "reason": "x"},
    "RequeueApp": {"app": "a", "reason": "x"},
    "ExtendApp": {"app": "a", "by_s": 5},
    "ReprioritizeApp": {"app": "a", "priority": 1},
    "HoldApp": {"app": "a"},
    "ReleaseApp": {"app": "a"},
    "EndApp": {"app": "a", "reason": "failed", "detail": "x"},
    "StartedExecutor": {"executor": "a-0", "worker": "w1"},
    "EndedExecutor": {"executor": "a-0", "worker": "w1", "reason": "failed", "exit_code": 1, "unstartable": ""},
    "ReportBacklog": {"executor": "a-0", "waiting": 1, "running": 1, "idle": False},
    "EndedDriver": {"driver": "a-d0", "worker": "w1", "reason": "failed", "exit_code": 1, "detail": "x"},
}


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A command of which some values are not right, as JSON."""
    kind = draw(st.sampled_from(sorted(RIGHT)))
    right = {
        "type": kind,
        **{name: value for name, value in RIGHT[kind].items() if name != "prefer" or kind != "SubmitApp"},
    }
    fields = sorted({*right, *getattr(commands, kind).__struct_fields__})
    wrong = draw(st.dictionaries(st.sampled_from(fields), NASTY, max_size=3))
    return json.dumps({**right, **wrong}).encode()


OF_ACCOUNTS: dict[str, dict[str, Any]] = {
    "AddAccount": {"account": "acme/new", "display": "New", "role": "user", "robot": False},
    "ChangeAccount": {"account": "acme/ann", "display": "Ann"},
    "RemoveAccount": {"account": "acme/ann"},
    "GrantRole": {"account": "acme/ann", "role": "admin"},
    "RevokeRole": {"account": "acme/ann", "role": "user"},
    "IssueToken": {"token": "new00000", "account": "acme/ann", "hash": "ab" * 32, "scopes": ["read"], "lifetime_s": 9},
    "RevokeToken": {"token": "t0000acmeann"},
    "ShowApps": {"company": "acme", "shown": True},
}
ACCOUNTS = inhabited().state
TOKEN = "t0000acmeann"


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.sampled_from(sorted(OF_ACCOUNTS)),
    st.dictionaries(
        st.sampled_from(["account", "display", "role", "token", "hash", "scopes", "lifetime_s", "once", "replaces"])
        | st.sampled_from(["host", "cores", "memory_mb", "resources", "robot", "company", "shown"]),
        NASTY | st.sampled_from(["op/root", "worker/w9", "acme/", "/", "acme/adm", "operator", ["lead"], TOKEN]),
        max_size=3,
    ),
    st.sampled_from([OPERATOR, by("acme/adm"), by("acme/ann"), by("worker/w1")]),
)
def test_a_command_on_accounts_is_carried_out_or_refused_whatever_it_says(
    kind: str, wrong: dict[str, Any], sender: By
) -> None:
    body = json.dumps({"type": kind, **OF_ACCOUNTS[kind], **wrong}).encode()
    try:
        command = received(body)
        events = decide(ACCOUNTS, command, ACCOUNTS.at, sender)
    except CommandRejected:
        return
    state = restored(list(lines(ACCOUNTS)))
    for event in events:
        state.apply(event, at=state.at, by=sender)
    assert restored(list(lines(state))).digest() == state.digest()


RAW = st.one_of(
    bodies(),
    st.lists(bodies(), max_size=4).map(lambda parts: b"[" + b",".join(parts) + b"]"),
    st.binary(max_size=20),
    st.binary(max_size=5).map(lambda tail: b"[" + tail),
    st.sampled_from(
        [
            b"[" * 100_000,
            b'{"a":' * 100_000,
            b"[" * 400 + b"]" * 400,
            b"[" + b"1," * 2_000 + b"1]",
            b"9" * 5_000,
            b"\0" * 99,
        ]
    ),
    st.sampled_from([b'{"name":"app","arguments":{"app":[]}}', b'{"name":"apps","arguments":{"x":1}}', b"[[]]"]),
)
VALUES = st.one_of(RAW, st.sampled_from([b"", b"m", b"a\nb", b"\xff\xfe", b"x" * 300, "\u202e".encode(), b"honest"]))
FIELDS = st.sampled_from([b"id", b"command", b"reply", b"view", b"by", b"sent", b"key", b"mac", b"", b"\xff", b"x"])
MESSAGES: st.SearchStrategy[Entry] = st.one_of(
    st.tuples(VALUES, VALUES, VALUES).map(
        lambda three: [(b"id", three[0]), (b"command", three[1]), (b"reply", three[2])]
    ),
    RAW.map(lambda body: [(b"id", b"m"), (b"command", body), (b"reply", b"m")]),
    RAW.map(lambda body: [(b"id", b"m"), (b"view", body), (b"reply", b"m")]),
    st.lists(st.tuples(FIELDS, VALUES), min_size=1, max_size=6),
)


class Watched:
    """A master with a company, a worker and a running app on a double of the store; `folds` counts its rebuilds."""

    def __init__(self) -> None:
        self.store = fakeredis.FakeRedis(server=fakeredis.FakeServer())
        self.log = EventLog(self.store, KEYS)
        self.folds = 0
        self.master = Scheduler(self.log, "m", self._rebuild)
        self.master.take_over()
        first: tuple[commands.Command, ...] = (
            RegisterCompany(company="acme"),
            RegisterWorker(worker="w1", node="n", host="h", cores=16, memory_mb=32768),
            SubmitApp(app="a", company="acme", user="ann", tasks=9, cores=4, driver=True, command=("x",)),
        )
        for number, command in enumerate(first):
            self.put([(b"id", b"s%d" % number), (b"command", write_command(command).encode()), (b"reply", b"")])
        self.work_off()
        self.folds = 0

    def _rebuild(self) -> tuple[ClusterState, Position]:
        self.folds += 1
        return rebuild(self.log)

    def put(self, entry: Entry) -> None:
        self.store.execute_command("XADD", KEYS.inbox, "*", *(part for pair in entry for part in pair))  # type: ignore[no-untyped-call]

    def work_off(self) -> None:
        while self.master.turn():
            pass


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(MESSAGES, max_size=4), st.lists(MESSAGES, max_size=4))
@example([[(b"id", b"m"), (b"command", b"[" * 100_000), (b"reply", b"m")]], [])
@example([[(b"id", b"m"), (b"view", b"[" * 100_000)]], [])
@example([[(b"id", b""), (b"command", b'{"type":"RegisterKind","kind":"gpu"}'), (b"reply", b"")]], [])
@example([[(b"f%d" % number, b"") for number in range(50_000)]], [])
def test_an_honest_command_is_answered_whatever_lies_beside_it(before: list[Entry], after: list[Entry]) -> None:
    watched = Watched()
    honest = write_command(RegisterCompany(company="honest")).encode()
    for entry in before:
        watched.put(entry)
    watched.put([(b"id", b"honest-1"), (b"command", honest), (b"reply", b"honest-1")])
    for entry in after:
        watched.put(entry)
    watched.work_off()
    (answer,) = watched.store.lrange(KEYS.reply("honest-1"), 0, -1)
    assert json.loads(answer)["seq"] > 0
    assert watched.folds == 0
    assert watched.store.xlen(KEYS.dead) == watched.master.put_aside
    assert not watched.store.xlen(KEYS.inbox)
    again, position = rebuild(watched.log)
    assert position == watched.master.position
    assert again.digest() == watched.master.state.digest()
    for fact in watched.log.facts():
        assert len(str(fact.event)) < 300_000


def test_a_burst_of_views_makes_no_turn_long_and_no_log_is_folded_again() -> None:
    """Views have left the inbox: what older clients ask there is put aside unread."""
    watched = Watched()
    for number in range(300):
        watched.put([(b"id", b"v%d" % number), (b"view", b'{"name":"apps"}'), (b"reply", b"v%d" % number)])
    watched.put([(b"id", b"v"), (b"view", b'{"name":"apps","everything":["poison"]}'), (b"reply", b"v")])
    honest = write_command(RegisterCompany(company="honest")).encode()
    watched.put([(b"id", b"honest"), (b"command", honest), (b"reply", b"honest")])
    watched.work_off()
    assert watched.folds == 0
    assert watched.master.put_aside == 301
    assert "seq" in str(watched.store.lrange(KEYS.reply("honest"), 0, -1))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b" " * (256 * 1024 + 1), "a command can have at most 262144 bytes, not 262145"),
        (b"[" + b" " * (16 << 20), "a batch can have at most 16777216 bytes, not 16777217"),
        (b"[" * 100_000, "a batch must be a JSON array: maximum recursion depth exceeded"),
    ],
)
def test_a_message_that_is_too_large_or_deep_is_refused_with_a_sentence(body: bytes, sentence: str) -> None:
    watched = Watched()
    watched.put([(b"id", b"m"), (b"command", body), (b"reply", b"m")])
    watched.work_off()
    (answer,) = watched.store.lrange(KEYS.reply("m"), 0, -1)
    assert json.loads(answer)["message"].startswith(sentence)


def test_a_refused_command_that_is_long_is_not_logged() -> None:
    watched = Watched()
    before = watched.master.position
    for number, size in enumerate((8_000, 9_000)):
        body = write_command(SubmitApp(app="n", company="nobody", user="x" * size, command=("x",))).encode()
        watched.put([(b"id", b"m%d" % number), (b"command", body), (b"reply", b"m%d" % number)])
    watched.work_off()
    assert [fact.type for fact in watched.log.facts(before)] == ["CommandRefused"]
    assert [watched.store.llen(KEYS.reply(f"m{number}")) for number in range(2)] == [1, 1]
