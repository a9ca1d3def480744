"""How much a command may name, and how many apps may be pending where no limit is set."""

from __future__ import annotations

import pytest

from scheduler.model.commands import (
    AddAccount,
    Command,
    IssueToken,
    KillApp,
    KillExecutors,
    LoseWorker,
    RegisterKind,
    RegisterWorker,
    ScaleApp,
    SetLimit,
    SubmitApp,
)
from scheduler.model.errors import InvalidCommand, LimitExceeded, NeverFits
from scheduler.model.sender import By, local
from scheduler.rules.command import limiting
from scheduler.rules.command.decide import decide
from scheduler.rules.index.claims import NEEDS
from scheduler.rules.invariants import check
from scheduler.rules.state.records import lines, restored
from tests.property.given import Cluster

OPERATOR = local(0)
ACCOUNTS: tuple[Command, ...] = (
    *(AddAccount(account=f"acme/{user}") for user in ("ann", "bob")),
    *(IssueToken(token=f"token{user}", account=f"acme/{user}", hash="ab" * 32) for user in ("ann", "bob")),
)


def submission(app: str, user: str = "ann") -> SubmitApp:
    return SubmitApp(app=app, company="acme", user=user, cores=4, command=("true",))


def submit(cluster: Cluster, app: str, user: str = "ann") -> None:
    cluster.turn(submission(app, user), by=By(account=f"acme/{user}", token=f"token{user}", role="user"))


def cluster_of(*commands: Command) -> Cluster:
    cluster = Cluster()
    cluster.company("acme")
    cluster.turn(*commands, by=OPERATOR)
    return cluster


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            KillExecutors(app="a", executors=tuple(f"a.{number}" for number in range(10_001))),
            "a command can name at most 10000 executors, not 10001",
        ),
        (KillExecutors(app="a", executors=("x" * 129,)), "the id of an executor must have at most 128 characters"),
        (KillExecutors(app="a", executors=("a\n",)), "the id of an executor must not contain control characters"),
        (
            ScaleApp(app="a", executors=1, prefer={f"h{number}": 1 for number in range(10_001)}),
            "at most 10000 hosts can be preferred, not 10001",
        ),
        (
            ScaleApp(app="a", executors=1, preferring_tasks=10**30),
            "tasks with a preference must be between 0 and 100000, not 1000000",
        ),
        (ScaleApp(app="a", executors=10**4000), "executors must be between 0 and 1000000, not 10000"),
        (LoseWorker(worker="w", last_seen=1 << 60), "when the worker was seen last, in ms, must be between 0 and"),
        (
            RegisterWorker(
                worker="v", node="n", host="h", cores=1, memory_mb=1, resources={"gpu": tuple(map(str, range(10_001)))}
            ),
            "the number of gpu addresses must be between 0 and 10000, not 10001",
        ),
        (
            IssueToken(token="t" * 8, account="acme/ann", hash="ab" * 32, scopes=("kill",) * 500),
            "a command can name at most 12 scopes, not 500",
        ),
    ],
)
def test_no_command_names_more_than_it_can(command: Command, sentence: str) -> None:
    worker = RegisterWorker(worker="w", node="n", host="h", cores=16, memory_mb=65536)
    cluster = cluster_of(RegisterKind(kind="gpu"), worker, submission("a"))
    if isinstance(command, IssueToken):
        cluster.turn(AddAccount(account="acme/ann"), by=OPERATOR)
    with pytest.raises(InvalidCommand) as raised:
        cluster.turn(command, by=OPERATOR)
    assert str(raised.value).startswith(sentence)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("again", [False, True], ids=["folded", "restored"])
def test_pending_apps_are_limited_once_there_are_accounts(*, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Semantics N1."""
    monkeypatch.setattr(limiting, "PENDING_OF_USER", 3)
    monkeypatch.setattr(limiting, "PENDING_OF_COMPANY", 4)
    cluster = cluster_of(*map(submission, "abc"), submission("d"))
    cluster.turn(KillApp(app="d"), by=OPERATOR)
    cluster.turn(*ACCOUNTS, by=OPERATOR)
    if again:
        cluster.state = restored(lines(cluster.state))
    with pytest.raises(
        LimitExceeded, match=r"^limit max_pending_apps of user ann in acme is 3, and 3 apps are pending"
    ):
        submit(cluster, "e")
    submit(cluster, "f", "bob")
    with pytest.raises(LimitExceeded, match=r"^limit max_pending_apps of company acme is 4, and 4 apps are pending"):
        submit(cluster, "g", "bob")


def test_a_limit_takes_the_place_of_the_bound_on_pending_apps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Semantics N1."""
    monkeypatch.setattr(limiting, "PENDING_OF_USER", 1)
    cluster = cluster_of(*ACCOUNTS)
    cluster.turn(SetLimit(scope="user", name="max_pending_apps", value=2, company="acme", user="*"), by=OPERATOR)
    submit(cluster, "a")
    submit(cluster, "b")
    with pytest.raises(LimitExceeded, match=r"^limit max_pending_apps of user ann in acme is 2"):
        submit(cluster, "c")


def test_without_accounts_pending_apps_are_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Semantics N1."""
    monkeypatch.setattr(limiting, "PENDING_OF_USER", 1)
    cluster = cluster_of(*map(submission, "abc"))
    assert len(cluster.state.apps) == 3


def test_submissions_that_are_refused_leave_nothing() -> None:
    cluster = cluster_of(RegisterWorker(worker="w", node="n", host="h", cores=16, memory_mb=65536), submission("a"))
    for number in range(2 * NEEDS):
        large = SubmitApp(
            app="b", company="acme", user="ann", cores=64, executor_cores=64, executor_memory_mb=1024 + number
        )
        with pytest.raises(NeverFits):
            decide(cluster.state, large, 1)
    assert len(cluster.state.claims.needs) <= NEEDS
    check(cluster.state)
