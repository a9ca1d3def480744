"""Who may do what: each pair of the table, tried on what is one's own and on what is not (semantics I)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from msgspec import json, structs

from scheduler.model.commands import (
    WITH_REASON,
    AcceptLog,
    AddAccount,
    AddDepartment,
    AddWindow,
    CancelTask,
    ChangeAccount,
    ChangeCompany,
    ChangeDepartment,
    ChangeEdition,
    Command,
    ConfigureCluster,
    DecommissionWorker,
    DrainWorker,
    EndApp,
    EndedDriver,
    EndedExecutor,
    ExtendApp,
    FinishApp,
    GrantRole,
    HoldApp,
    IssueToken,
    KillApp,
    KillExecutors,
    LoseOwner,
    LoseWorker,
    MoveCompany,
    RegisterCompany,
    RegisterKind,
    RegisterWorker,
    ReleaseApp,
    RemoveAccount,
    RemoveCompany,
    RemoveDepartment,
    RemoveWindow,
    RemoveWorker,
    ReportBacklog,
    ReprioritizeApp,
    RequeueApp,
    RestoreLog,
    RevokeRole,
    RevokeToken,
    ScaleApp,
    SetLimit,
    ShowApps,
    SignalApp,
    StartedExecutor,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.errors import (
    CommandRejected,
    InvalidCommand,
    NotAllowed,
    NotAuthenticated,
    UnknownApp,
    UnknownToken,
)
from scheduler.model.events import Event, TokenIssued
from scheduler.model.sender import NOBODY, By, Role, local
from scheduler.rules.command.decide import decide
from scheduler.rules.command.permission import MATRIX, Reach, Subject, Verb, companies_of, may_read
from scheduler.rules.state.records import lines, restored
from scheduler.service.tokens import authenticate, new_token
from tests.property.given import Cluster
from tests.unit.recorded import facts
from witness.audit.audit import audit

ROOT = Path(__file__).parents[5]
OPERATOR = local(1000)
HASH = "ab" * 32


def inhabited() -> Cluster:
    """Two companies with a user and an admin each, an operator, an auditor, two workers; ann's and bob's apps run."""
    cluster = Cluster()
    for company in ("acme", "globex"):
        cluster.company(company)
    for number in (1, 2):
        cluster.turn(
            RegisterWorker(worker=f"w{number}", node="n", host=f"h{number}", cores=24 - 8 * number, memory_mb=65536)
        )
    accounts = ["acme/ann", "acme/cid", "globex/bob", "op/root", "auditor/x", "worker/w1", "worker/w2"]
    cluster.turn(
        *(AddAccount(account=account) for account in accounts),
        AddAccount(account="acme/adm", role="admin"),
        AddAccount(account="globex/adm", role="admin"),
        by=OPERATOR,
    )
    tokens = [*accounts, "acme/adm", "globex/adm"]
    cluster.turn(*(IssueToken(token=token_of(account), account=account, hash=HASH) for account in tokens), by=OPERATOR)
    for account, app in (("acme/ann", "ann-1"), ("globex/bob", "bob-1")):
        company, _, user = account.partition("/")
        held = SubmitApp(app=f"{app}-held", company=company, user=user, cores=4, hold=True, command=("true",))
        cluster.turn(SubmitApp(app=app, company=company, user=user, cores=4, command=("true",)), held, by=by(account))
    return cluster


def token_of(account: str) -> str:
    return "t0000" + re.sub("[^a-z0-9]", "", account)


def by(account: str, role: Role | None = None) -> By:
    """The sender with the token of the account."""
    kind, _, name = account.partition("/")
    usual: Role = {"op": "operator", "auditor": "auditor", "worker": "worker"}.get(kind, "user")  # type: ignore[assignment]
    return By(account, token_of(account), role or ("admin" if name == "adm" else usual), "api-1")


COMMANDS: list[tuple[Verb, str, Command]] = [
    ("submit", "acme/ann", SubmitApp(app="new", company="acme", user="ann", cores=4, command=("true",))),
    ("submit", "acme/ann", ScaleApp(app="ann-1", executors=1)),
    ("submit", "acme/ann", ReprioritizeApp(app="ann-1-held", priority=3)),
    ("submit", "acme/ann", ReleaseApp(app="ann-1-held")),
    ("submit", "acme/ann", HoldApp(app="ann-1-held")),
    ("submit", "acme/ann", KillExecutors(app="ann-1", executors=("ann-1.0",))),
    ("submit", "acme/ann", FinishApp(app="ann-1")),
    ("submit", "acme/ann", ExtendApp(app="ann-1", by_s=1)),
    ("kill", "acme/ann", SignalApp(app="ann-1", signal="USR1", reason="it hangs")),
    ("kill", "acme/ann", CancelTask(app="ann-1", task=0, reason="it hangs")),
    ("kill", "acme/ann", RequeueApp(app="ann-1", reason="it hangs")),
    ("kill", "acme/ann", KillApp(app="ann-1", reason="it hangs")),
    ("tokens", "*", IssueToken(token="new00000", account="*", hash=HASH)),
    ("tokens", "*", RevokeToken(token="*")),
    ("users", "acme", AddAccount(account="acme/new")),
    ("users", "acme", ChangeAccount(account="acme/ann", display="Ann")),
    ("users", "acme", GrantRole(account="acme/ann", role="admin")),
    ("users", "acme", RevokeRole(account="acme/ann", role="user")),
    ("users", "acme", RemoveAccount(account="acme/ann")),
    ("users", "acme", ShowApps(company="acme", shown=True)),
    ("users", "acme", SetLimit(scope="user", name="max_cores", company="acme", user="ann", value=4)),
    ("cluster", "", SetLimit(scope="company", name="max_cores", company="acme", value=4)),
    ("cluster", "", SetLimit(scope="department", name="max_cores", department="d1", value=4)),
    ("cluster", "", ConfigureCluster(settings={"placement": "pack"})),
    ("cluster", "", ChangeEdition(edition=3)),
    ("cluster", "", RegisterKind(kind="gpu")),
    ("cluster", "", RegisterCompany(company="third")),
    ("cluster", "", ChangeCompany(company="acme", part="1/2")),
    ("cluster", "", RemoveCompany(company="acme")),
    ("cluster", "", AddDepartment(department="d1")),
    ("cluster", "", ChangeDepartment(department="d1", part="1/2")),
    ("cluster", "", MoveCompany(company="acme", department="d1")),
    ("cluster", "", RemoveDepartment(department="d1")),
    ("cluster", "", DecommissionWorker(worker="w1")),
    ("cluster", "", UndrainWorker(worker="w1")),
    ("cluster", "", AddWindow(window="x1", workers=("w1",), begin=1 << 50, end=1 << 51)),
    ("cluster", "", RemoveWindow(window="x1")),
    ("cluster", "", ExtendApp(app="ann-1", by_s=1, beyond_maximum=True)),
    ("archive", "", AddAccount(account="op/new")),
    ("archive", "", RemoveAccount(account="worker/w2")),
    ("archive", "", RestoreLog()),
    ("archive", "", AcceptLog(seq=1, digest="1", known=9, known_digest="9", by="master m1")),
    ("work", "w1", RegisterWorker(worker="w1", node="n", host="h1", cores=16, memory_mb=65536)),
    ("work", "w1", StartedExecutor(executor="ann-1.0", worker="w1")),
    ("work", "w1", EndedExecutor(executor="ann-1.0", worker="w1", reason="exited")),
    ("work", "w1", EndedDriver(driver="none", worker="w1", reason="exited")),
    ("work", "w1", ReportBacklog(executor="ann-1.0", waiting=1, running=0)),
    ("work", "w1", EndApp(app="ann-1", reason="finished")),
    ("lead", "", LoseWorker(worker="w1")),
    ("lead", "", LoseOwner(app="ann-1")),
]
"""Verb, whose it is, and the command: an account's, a company's, a worker's, the sender's (*), or the cluster's."""
BOTH: list[Command] = [
    DrainWorker(worker="w1"),
    UndrainWorker(worker="w1", unwell=True),
    RemoveWorker(worker="w1"),
]
"""What an operator does, and a worker with itself."""
SENDERS = [
    "acme/ann",
    "acme/cid",
    "acme/adm",
    "globex/bob",
    "globex/adm",
    "op/root",
    "auditor/x",
    "worker/w1",
    "worker/w2",
]


def reaches(sender: By, verb: Verb, whose: str) -> bool:
    reach: Reach | None = MATRIX[verb].get(sender.role) if sender.role else None
    company, _, name = sender.account.partition("/")
    match reach:
        case None:
            return False
        case "all":
            return True
        case "company":
            return whose.partition("/")[0] == company
        case _:
            return whose in ("*", sender.account, name)


def allowed(cluster: Cluster, command: Command, sender: By) -> bool:
    try:
        decide(cluster.state, command, cluster.state.at + 1, sender)
    except NotAllowed:
        return False
    except CommandRejected:
        return True
    return True


@pytest.mark.parametrize("sender", SENDERS)
def test_each_pair_of_the_table_is_decided_as_it_says(sender: str) -> None:
    cluster, who = inhabited(), by(sender)
    on_w1 = "ann-1.0" in cluster.state.workers["w1"].executors
    assert on_w1, "the cases name an executor on w1"
    for verb, whose, command in COMMANDS:
        if isinstance(command, IssueToken):
            command = IssueToken(token="new00000", account=sender, hash=HASH)  # noqa: PLW2901
        elif isinstance(command, RevokeToken):
            command = RevokeToken(token=token_of(sender))  # noqa: PLW2901
        of_what_runs = isinstance(command, WITH_REASON) and sender == "worker/w1"  # semantics X4
        assert allowed(cluster, command, who) == (reaches(who, verb, whose) or of_what_runs), (sender, command)
    for command in BOTH:
        assert allowed(cluster, command, who) == (sender in ("op/root", "worker/w1")), (sender, command)


def test_every_command_has_a_case() -> None:
    assert {type(command) for _, _, command in COMMANDS} | {type(each) for each in BOTH} == set(get_args(Command))


def test_the_table_is_that_of_the_rules() -> None:
    """The table of I3 names each verb, and for each role how far it reaches."""
    page = (ROOT / "docs" / "security.md").read_text()
    rows = [re.split(r" *\| *", line.strip("| ")) for line in page.splitlines() if line.startswith("| `")]
    roles: list[Role] = ["user", "admin", "operator", "auditor", "worker"]
    table = {row[0].split("`")[1]: dict(zip(roles, row[1:], strict=True)) for row in rows if len(row) == 6}
    words = {"own": "own", "shown": "own, or company if it shows its apps", "all": "all"}
    stated = {
        verb: {
            role: words.get(reach, reach)
            + (", with a reason" if (verb, role) in {("kill", "operator"), ("private", "operator")} else "")
            for role, reach in reaches.items()
        }
        for verb, reaches in MATRIX.items()
        if verb != "lead"
    }
    assert {verb: {role: cell for role, cell in row.items() if cell != "-"} for verb, row in table.items()} == stated


def test_the_first_account_ends_for_ever_that_anybody_may_do_anything() -> None:
    cluster = Cluster()
    cluster.company("acme")
    cluster.turn(AddAccount(account="op/root"))
    for sender in (NOBODY, By("acme/ann", role="user"), By("op/root", role="operator"), By("local/0", role="user")):
        assert not allowed(cluster, RegisterCompany(company="b"), sender), sender
    assert allowed(cluster, RegisterCompany(company="b"), local(1000))
    cluster.turn(RemoveAccount(account="op/root"), by=local(1000))
    assert not allowed(cluster, RegisterCompany(company="b"), NOBODY), "the last account opened the cluster again"


def test_a_token_counts_only_as_what_it_is() -> None:
    cluster = inhabited()
    kill, ann = KillApp(app="ann-1"), by("acme/ann")
    assert allowed(cluster, kill, ann)
    forged = [
        By("acme/ann", "t0000globexbob", "user"),
        By("globex/bob", token_of("acme/ann"), "user"),
        By("acme/ann", token_of("acme/ann"), "admin"),
        By("acme/ann", token_of("acme/ann"), "operator"),
        By("acme/ann", "unknown0", "user"),
        By("acme/ann", "", "user"),
        By("master/m1", "", "operator"),
        By("worker/w1", "", "worker"),
    ]
    for sender in forged:
        assert not allowed(cluster, kill, sender), sender
    with pytest.raises(NotAllowed, match="has expired"):
        decide(cluster.state, kill, cluster.state.at + 12 * 3_600_000, ann)


def test_a_role_that_is_lost_and_regained_brings_no_token_back() -> None:
    cluster = inhabited()
    change = ChangeAccount(account="acme/ann", display="A")
    cluster.turn(GrantRole(account="acme/ann", role="admin"), by=OPERATOR)
    assert not allowed(cluster, change, by("acme/ann")), "the user's token has become an admin's"
    cluster.turn(RevokeRole(account="acme/adm", role="admin"), by=OPERATOR)
    assert not allowed(cluster, change, by("acme/adm"))
    cluster.turn(GrantRole(account="acme/adm", role="admin"), by=OPERATOR)
    assert not allowed(cluster, change, by("acme/adm"))


def test_a_token_issues_no_token_that_may_more() -> None:
    cluster = inhabited()
    narrow = IssueToken(token="narrow00", account="acme/adm", hash=HASH, scopes=("tokens", "read"))
    cluster.turn(narrow, by=by("acme/adm"))
    sender = By("acme/adm", "narrow00", "admin")
    for more in ({"scopes": ("tokens", "kill")}, {"role": "user"}):
        with pytest.raises(CommandRejected):
            decide(cluster.state, IssueToken(token="more0000", account="acme/adm", hash=HASH, **more), None, sender)
    [issued] = decide(cluster.state, IssueToken(token="same0000", account="acme/adm", hash=HASH), None, sender)
    assert isinstance(issued, TokenIssued)
    assert issued.scopes == ("read", "tokens")
    with pytest.raises(NotAllowed, match="has no scope kill; it has read, tokens"):
        decide(cluster.state, KillApp(app="ann-1"), None, sender)


def test_a_token_without_all_scopes_of_its_role_hands_on_only_those_that_it_has() -> None:
    cluster = inhabited()
    for account, role in (("acme/adm", "admin"), ("op/root", "operator")):
        scopes = ("users", "archive", "read") if role == "operator" else ("users", "read")
        cluster.turn(IssueToken(token=f"{role}000", account=account, hash=HASH, scopes=scopes), by=by(account))
    admin, operator = By("acme/adm", "admin000", "admin"), By("op/root", "operator000", "operator")
    for sender in (admin, operator):
        for more in (None, ("submit",), ("read", "kill")):
            issue = IssueToken(token="more0000", account="acme/ann", hash=HASH, scopes=more, once=True)
            with pytest.raises(NotAllowed, match="has no scope that it lacks"):
                decide(cluster.state, issue, None, sender)
        handed: list[Command] = [
            GrantRole(account="acme/ann", role="admin"),
            AddAccount(account="acme/new", role="admin"),
            *([AddAccount(account="op/new")] if sender is operator else []),
        ]
        for given in handed:
            with pytest.raises(NotAllowed, match="cannot give the role"):
                decide(cluster.state, given, None, sender)
        lawful: list[Command] = [
            IssueToken(token="same0000", account="acme/ann", hash=HASH, scopes=("read",)),
            AddAccount(account="acme/new"),
            RevokeRole(account="acme/ann", role="user"),
        ]
        for allowed_to in lawful:
            assert decide(cluster.state, allowed_to, None, sender)
    for whole in (by("acme/adm"), OPERATOR, by("op/root")):
        assert decide(cluster.state, IssueToken(token="more0000", account="acme/ann", hash=HASH), None, whole)


def test_a_company_has_a_bounded_number_of_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = inhabited()
    monkeypatch.setattr(
        "scheduler.rules.command.membership.MOST_ACCOUNTS", len(cluster.state.accounts.of_company("acme"))
    )
    with pytest.raises(InvalidCommand, match="accounts, the most; remove one first"):
        cluster.turn(AddAccount(account="acme/new"), by=OPERATOR)
    cluster.turn(AddAccount(account="globex/new"), by=OPERATOR)
    cluster.turn(RemoveAccount(account="acme/ann"), by=OPERATOR)
    cluster.turn(AddAccount(account="acme/new"), by=OPERATOR)


def test_an_invitation_is_good_for_one_token() -> None:
    cluster = inhabited()
    cluster.turn(IssueToken(token="invite00", account="worker/w2", hash=HASH, once=True), by=OPERATOR)
    guest = By("worker/w2", "invite00", "worker", "api-1")
    join = IssueToken(token="joined00", account="worker/w2", hash=HASH, replaces="invite00")
    register = RegisterWorker(worker="w2", node="n", host="h2", cores=8, memory_mb=65536)
    assert not allowed(cluster, register, guest)
    assert not allowed(cluster, IssueToken(token="joined00", account="worker/w2", hash=HASH), guest)
    longer = IssueToken(token="invite01", account="worker/w2", hash=HASH, once=True, replaces="invite00")
    assert not allowed(cluster, longer, guest), "an invitation would prolong itself for ever"
    cluster.turn(join, by=guest)
    assert allowed(cluster, register, By("worker/w2", "joined00", "worker"))
    with pytest.raises(NotAllowed):
        decide(
            cluster.state,
            IssueToken(token="again000", account="worker/w2", hash=HASH, replaces="invite00"),
            None,
            guest,
        )


@pytest.mark.parametrize("account", ["acme/adm", "op/root"])
def test_an_invitation_issues_no_tokens_of_other_accounts(account: str) -> None:
    cluster = inhabited()
    cluster.turn(IssueToken(token="invite00", account=account, hash=HASH, once=True), by=OPERATOR)
    guest = structs.replace(by(account), token="invite00")
    for other in ("acme/ann", "acme/adm", "op/root"):
        if other != account:
            assert not allowed(cluster, IssueToken(token="stolen00", account=other, hash=HASH), guest)
            stolen = IssueToken(token="stolen00", account=other, hash=HASH, replaces="invite00")
            assert not allowed(cluster, stolen, guest)
    cluster.turn(IssueToken(token="joined00", account=account, hash=HASH, replaces="invite00"), by=guest)


def test_a_worker_registers_where_and_with_what_it_was_invited() -> None:
    cluster = inhabited()
    cluster.turn(AddAccount(account="worker/w3", host="h3", cores=8, memory_mb=1024), by=OPERATOR)
    cluster.turn(IssueToken(token="t0000workerw3", account="worker/w3", hash=HASH), by=OPERATOR)
    fine = RegisterWorker(worker="w3", node="n", host="h3", cores=8, memory_mb=1024)
    cluster.turn(fine, by=by("worker/w3"))
    for other in ({"host": "h4"}, {"cores": 9}, {"memory_mb": 2048}):
        stated = {"worker": "w3", "node": "n", "host": "h3", "cores": 8, "memory_mb": 1024, **other}
        with pytest.raises(NotAllowed, match="was invited"):
            decide(cluster.state, RegisterWorker(**stated), None, by("worker/w3"))  # type: ignore[arg-type]


def test_the_name_of_a_company_that_had_accounts_is_not_given_to_another() -> None:
    cluster = inhabited()
    cluster.turn(*(RegisterCompany(company=name) for name in ("empty", "third")), by=OPERATOR)
    cluster.turn(AddAccount(account="third/zoe"), RemoveAccount(account="third/zoe"), by=OPERATOR)
    cluster.turn(RemoveCompany(company="third"), RemoveCompany(company="empty"), by=OPERATOR)
    with pytest.raises(InvalidCommand, match="had accounts and was removed"):
        cluster.turn(RegisterCompany(company="third"), by=OPERATOR)
    cluster.turn(RegisterCompany(company="empty"), by=OPERATOR)
    assert restored(lines(cluster.state)).digest() == cluster.state.digest()


def test_tokens_are_bounded_in_number_and_life() -> None:
    cluster = inhabited()
    with pytest.raises(InvalidCommand, match="between 1 and 43200, not 43201"):
        cluster.turn(IssueToken(token="long0000", account="acme/ann", hash=HASH, lifetime_s=43201), by=OPERATOR)
    for number in range(19):
        cluster.turn(IssueToken(token=f"many{number:04}", account="acme/ann", hash=HASH), by=OPERATOR)
    with pytest.raises(InvalidCommand, match="20 valid tokens"):
        cluster.turn(IssueToken(token="toomany0", account="acme/ann", hash=HASH), by=OPERATOR)
    cluster.turn(IssueToken(token="instead0", account="acme/ann", hash=HASH, replaces="many0000"), by=OPERATOR)
    with pytest.raises(UnknownToken):
        cluster.turn(RevokeToken(token="many0000"), by=OPERATOR)


@pytest.mark.parametrize("sender", ["acme/ann", "acme/adm", "op/root"])
def test_an_app_that_is_not_known_is_refused_as_such(sender: str) -> None:
    cluster = inhabited()
    with pytest.raises(UnknownApp):
        decide(cluster.state, KillApp(app="ghost", reason="gone"), None, by(sender))


def test_operators_state_a_reason_and_submit_nothing() -> None:
    cluster = inhabited()
    for sender in (by("op/root"), OPERATOR):
        with pytest.raises(NotAllowed, match="gives a reason"):
            decide(cluster.state, KillApp(app="ann-1"), None, sender)
        assert not allowed(cluster, COMMANDS[0][2], sender)


def test_an_admin_submits_only_for_accounts_that_exist() -> None:
    cluster = inhabited()
    submit = SubmitApp(app="x", company="acme", user="ghost", cores=4, command=("true",))
    with pytest.raises(NotAllowed, match="no account acme/ghost"):
        decide(cluster.state, submit, None, by("acme/adm"))


def test_users_see_each_others_apps_if_their_company_says_so() -> None:
    cluster = inhabited()
    subject, at = Subject("acme", "ann"), cluster.state.at
    may_read(cluster.state, by("acme/ann"), "read", subject, at)
    for sender in ("acme/cid", "globex/bob", "globex/adm"):
        with pytest.raises(NotAllowed):
            may_read(cluster.state, by(sender), "read", subject, at)
    cluster.turn(ShowApps(company="acme", shown=True), by=by("acme/adm"))
    may_read(cluster.state, by("acme/cid"), "read", subject, at)
    with pytest.raises(NotAllowed):
        may_read(cluster.state, by("acme/cid"), "private", subject, at)
    with pytest.raises(NotAllowed, match="reason"):
        may_read(cluster.state, by("op/root"), "private", subject, at)
    may_read(cluster.state, by("op/root"), "private", subject, at, reason="ticket 7")


def test_a_token_ends_at_its_last_millisecond_everywhere() -> None:
    cluster, token = inhabited(), new_token()
    issue = IssueToken(token=token.id, account="acme/ann", hash=token.hash, lifetime_s=60)
    [issued] = [event for event in cluster.turn(issue, by=OPERATOR) if isinstance(event, TokenIssued)]
    who, kill, end = By("acme/ann", token.id, "user"), KillApp(app="ann-1"), issued.expires
    assert authenticate(cluster.state, token.text, end - 1) == who
    may_read(cluster.state, who, "read", Subject("acme", "ann"), end - 1)
    assert decide(cluster.state, kill, end - 1, who)
    for late in (
        lambda: authenticate(cluster.state, token.text, end),
        lambda: may_read(cluster.state, who, "read", Subject("acme", "ann"), end),
        lambda: decide(cluster.state, kill, end, who),
    ):
        with pytest.raises((NotAllowed, NotAuthenticated), match="expired"):
            late()


def test_the_tokens_of_an_account_are_not_those_of_the_next_one_of_its_name() -> None:
    cluster = inhabited()
    cluster.turn(RemoveAccount(account="acme/ann"), by=OPERATOR)
    cluster.turn(AddAccount(account="acme/ann"), by=OPERATOR)
    assert not allowed(cluster, KillApp(app="ann-1"), by("acme/ann"))
    cluster.turn(RegisterCompany(company="third"), by=OPERATOR)
    cluster.turn(AddAccount(account="third/adm", role="admin"), by=OPERATOR)
    cluster.turn(IssueToken(token=token_of("third/adm"), account="third/adm", hash=HASH), by=OPERATOR)
    add = AddAccount(account="third/new")
    assert allowed(cluster, add, by("third/adm"))
    cluster.turn(RemoveCompany(company="third"), by=OPERATOR)
    assert not allowed(cluster, add, by("third/adm"))


@pytest.mark.parametrize(
    "name",
    [
        "acme/Ann",
        "ACME/ann",
        "acme/ann\n",
        "acme/ann ",
        "acme/\u0430nn",
        "acme/ann\u200b",
        "acme/..",
        "acme/ann/x",
        "acme/.a",
        "op/",
        "/x",
        "local/0",
        "master/m1",
        "assumed",
    ],
)
def test_a_name_that_could_pass_for_another_is_no_account(name: str) -> None:
    cluster = inhabited()
    for company in ("op", "local", "master", "assumed"):
        cluster.turn(RegisterCompany(company=company), by=OPERATOR)
    assert not _decided(cluster, AddAccount(account=name), OPERATOR)


def test_a_company_named_as_a_kind_of_accounts_has_no_users() -> None:
    """`op/eve` is an operator, whom no admin adds and who submits nothing."""
    cluster = inhabited()
    cluster.turn(RegisterCompany(company="op"), by=OPERATOR)
    for sender in (by("acme/adm"), by("globex/adm")):
        assert not allowed(cluster, AddAccount(account="op/eve"), sender)
    submit = SubmitApp(app="x", company="op", user="root", cores=4, command=("true",))
    for name in SENDERS:
        assert not allowed(cluster, submit, by(name))


@pytest.mark.parametrize(
    "command",
    [
        SetLimit(scope="user", name="max_cores", company="globex", user="*", value=0),
        SetLimit(scope="user", name="max_cores", company="*", user="*", value=0),
        ShowApps(company="globex", shown=True),
        SubmitApp(app="x", company="globex", user="bob", cores=4, command=("true",)),
        SubmitApp(app="x", company="globex", user="ann", cores=4, command=("true",)),
        AddAccount(account="globex/spy"),
        IssueToken(token="new00000", account="globex/bob", hash=HASH),
        IssueToken(token="new00000", account="op/root", hash=HASH),
        RevokeToken(token=token_of("globex/bob")),
    ],
)
def test_an_admin_has_no_power_over_another_company(command: Command) -> None:
    assert not allowed(inhabited(), command, by("acme/adm"))


def test_an_app_cannot_wait_for_one_of_another_company_nor_tell_whether_it_is_there() -> None:
    cluster, said = inhabited(), []
    for other in ("bob-1", "nope-1"):
        after = SubmitApp(app="x", company="acme", user="ann", cores=4, command=("true",), after={"ok": (other,)})
        with pytest.raises(CommandRejected) as refused:
            decide(cluster.state, after, None, by("acme/ann"))
        said.append(str(refused.value).replace(other, "it"))
    assert said[0] == said[1]


def test_a_worker_changes_nothing_on_another_worker() -> None:
    cluster = inhabited()
    before = cluster.state.digest()
    for report in (
        EndedExecutor(executor="ann-1.0", worker="w2", reason="exited"),
        StartedExecutor(executor="ann-1.0", worker="w2"),
        EndedExecutor(executor="ann-1.0", worker="w1", reason="exited"),
        EndedExecutor(executor="ann-1.0", reason="exited"),
        ReportBacklog(executor="ann-1.0", waiting=9, running=0),
        EndApp(app="ann-1", reason="failed"),
        RegisterWorker(worker="w1", node="n", host="h2", cores=1, memory_mb=1024),
        RemoveWorker(worker="w1", force=True),
    ):
        assert _decided(cluster, report, by("worker/w2")) == [], report
    assert cluster.state.digest() == before


def _decided(cluster: Cluster, command: Command, sender: By) -> list[Event]:
    """The events of the command, none if it is refused."""
    try:
        return decide(cluster.state, command, None, sender)
    except CommandRejected:
        return []


def test_the_text_of_a_token_shows_its_account_until_it_ends() -> None:
    cluster, token = inhabited(), new_token()
    cluster.turn(IssueToken(token=token.id, account="acme/ann", hash=token.hash), by=OPERATOR)
    at = cluster.state.at
    assert authenticate(cluster.state, token.text, at) == By("acme/ann", token.id, "user")
    for wrong in (
        "",
        "fl_",
        token.text[:-1],
        token.text.upper(),
        token.text.replace("fl_", "xx_"),
        "fl_a_b_c",
        "é" * 9,
    ):
        with pytest.raises(NotAuthenticated):
            authenticate(cluster.state, wrong, at)
    other = new_token()
    for text, when in ((other.text, at), (token.text, at + 12 * 3_600_000 + 1000)):
        with pytest.raises(NotAuthenticated):
            authenticate(cluster.state, text, when)
    cluster.turn(RevokeToken(token=token.id), by=by("acme/ann"))
    with pytest.raises(NotAuthenticated):
        authenticate(cluster.state, token.text, at)


def of_research() -> Cluster:
    """The same, with acme in the department physics in research, of which lab/adm is an admin; globex is elsewhere."""
    cluster = inhabited()
    cluster.turn(
        RegisterCompany(company="lab"),
        AddDepartment(department="research"),
        AddDepartment(department="physics", parent="research"),
        AddDepartment(department="sales"),
        MoveCompany(company="acme", department="physics"),
        AddAccount(account="lab/adm", role="admin"),
        GrantRole(account="lab/adm", role="admin", department="research"),
        IssueToken(token=token_of("lab/adm"), account="lab/adm", hash=HASH),
        by=OPERATOR,
    )
    return cluster


def of_globex(command: Command) -> Command | None:
    """The same about globex or bob, or None if it names nobody."""
    said = json.encode(command)
    other = said.replace(b"acme", b"globex").replace(b"ann", b"bob")
    return None if other == said else json.decode(other, type=type(command))


def test_an_admin_of_a_department_may_what_the_admins_of_its_companies_may() -> None:
    cluster, head = of_research(), by("lab/adm")
    for verb, whose, command in COMMANDS:
        if isinstance(command, IssueToken | RevokeToken):
            continue
        assert allowed(cluster, command, head) == reaches(by("acme/adm"), verb, whose), command
        other = of_globex(command)
        assert other is None or not allowed(cluster, other, head), other
    state, at = cluster.state, cluster.state.at
    for verb in ("read", "private", "statement", "users"):
        may_read(state, head, verb, Subject("acme", "ann"), at)
        with pytest.raises(NotAllowed):
            may_read(state, head, verb, Subject("globex", "bob"), at)
    for name, may in (("research", True), ("physics", True), ("sales", False), ("nowhere", False)):
        if may:
            may_read(state, head, "statement", Subject(departments=(name,)), at)
        else:
            with pytest.raises(NotAllowed, match=f"of the department {name}"):
                may_read(state, head, "statement", Subject(departments=(name,)), at)
    with pytest.raises(NotAllowed):
        may_read(state, head, "statement", Subject(), at)
    may_read(state, by("auditor/x"), "statement", Subject(departments=("sales",)), at)
    assert companies_of(state, "lab/adm") == ["acme", "lab"]


def test_who_is_put_elsewhere_is_reached_from_there() -> None:
    cluster, head = of_research(), by("lab/adm")
    add, own = AddAccount(account="acme/new"), AddAccount(account="lab/new")
    away: list[tuple[Command, Command]] = [
        (MoveCompany(company="acme", department=""), MoveCompany(company="acme", department="physics")),
        (ChangeDepartment(department="physics", parent=""), ChangeDepartment(department="physics", parent="research")),
    ]
    for gone, back in away:
        assert allowed(cluster, add, head)
        cluster.turn(gone, by=OPERATOR)
        assert not allowed(cluster, add, head)
        assert allowed(cluster, own, head)
        cluster.turn(back, by=OPERATOR)
    cluster.turn(RevokeRole(account="lab/adm", role="admin", department="research"), by=OPERATOR)
    assert (allowed(cluster, add, head), allowed(cluster, own, head)) == (False, True)


def test_a_department_that_is_made_anew_has_no_admins() -> None:
    cluster = of_research()
    cluster.turn(
        MoveCompany(company="acme", department=""),
        RemoveDepartment(department="physics"),
        RemoveDepartment(department="research"),
        AddDepartment(department="research"),
        MoveCompany(company="acme", department="research"),
        by=OPERATOR,
    )
    assert not allowed(cluster, AddAccount(account="acme/new"), by("lab/adm"))
    cluster.check_replay()
    assert [each for each in audit(facts(cluster)) if each.rule != "T3"] == []


def test_nobody_gives_to_an_account_that_reaches_further_but_takes_from_it() -> None:
    cluster = of_research()
    cluster.turn(
        AddAccount(account="acme/dora", role="admin"),
        GrantRole(account="acme/dora", role="admin", department="research"),
        GrantRole(account="acme/adm", role="admin", department="physics"),
        IssueToken(token="t0000physics", account="acme/adm", hash=HASH),
        IssueToken(token="t0000dora", account="acme/dora", hash=HASH),
        by=OPERATOR,
    )
    head, below = by("lab/adm"), By("acme/adm", "t0000physics", "admin")
    given: list[Command] = [
        IssueToken(token="stolen00", account="acme/dora", hash=HASH),
        ChangeAccount(account="acme/dora", display="D"),
        GrantRole(account="acme/dora", role="user"),
        GrantRole(account="acme/dora", role="admin", department="research"),
        GrantRole(account="acme/dora", role="admin", department="physics"),
    ]
    for command in given:
        assert allowed(cluster, command, head), command
        assert not allowed(cluster, command, below), command
    for command in taken_from("acme/dora", "t0000dora"):
        assert allowed(cluster, command, head), command
        assert allowed(cluster, command, below), command
        assert not allowed(cluster, command, by("globex/adm")), command
        assert not allowed(cluster, command, by("acme/ann")), command
    for command in (given[0], given[3]):
        with pytest.raises(NotAllowed, match=r"of acme/dora, an admin of the department research$"):
            decide(cluster.state, command, None, below)
    with pytest.raises(NotAllowed, match=r"of acme/dora, an admin of the departments research, physics$"):
        decide(cluster.state, given[4], None, below)
    for department, heads, belows in (("physics", True, True), ("research", True, False), ("sales", False, False)):
        grant = GrantRole(account="acme/ann", role="admin", department=department)
        assert (allowed(cluster, grant, head), allowed(cluster, grant, below)) == (heads, belows), department


def taken_from(account: str, token: str) -> list[Command]:
    """All that can be taken from an admin of research."""
    return [
        RevokeToken(token=token),
        RevokeRole(account=account, role="admin", department="research"),
        RevokeRole(account=account, role="admin"),
        RemoveAccount(account=account),
    ]


def test_a_company_that_left_gets_rid_of_whom_the_departments_admin_left_in_it() -> None:
    head, own = by("lab/adm"), by("acme/adm")
    mole = By("acme/mole", "t0000mole", "admin")
    for taken in taken_from("acme/mole", "t0000mole"):
        cluster = of_research()
        cluster.turn(
            AddAccount(account="acme/mole", role="admin"),
            GrantRole(account="acme/mole", role="admin", department="research"),
            IssueToken(token="t0000mole", account="acme/mole", hash=HASH),
            by=head,
        )
        cluster.turn(
            MoveCompany(company="acme", department=""),
            MoveCompany(company="globex", department="research"),
            by=OPERATOR,
        )
        assert allowed(cluster, AddAccount(account="globex/new"), mole)
        assert allowed(cluster, AddAccount(account="acme/new"), mole)
        assert not allowed(cluster, taken, head), taken
        cluster.turn(taken, by=own)
        assert not allowed(cluster, AddAccount(account="globex/new"), mole), taken
        keeps_the_role = isinstance(taken, RevokeRole) and taken.department != ""
        assert allowed(cluster, AddAccount(account="acme/new"), mole) == keeps_the_role, taken
        assert [each for each in audit(facts(cluster)) if each.rule != "T3"] == []


def test_a_token_of_before_does_not_reach_into_a_department() -> None:
    """An admin of the company may have issued it to itself."""
    cluster = of_research()
    cluster.turn(IssueToken(token="kept0000", account="globex/adm", hash=HASH), by=by("globex/adm"))
    kept = By("globex/adm", "kept0000", "admin")
    assert allowed(cluster, AddAccount(account="globex/new"), kept)
    cluster.turn(GrantRole(account="globex/adm", role="admin", department="research"), by=OPERATOR)
    for account in ("acme/new", "globex/new"):
        assert not allowed(cluster, AddAccount(account=account), kept), account


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (GrantRole(account="acme/ann", role="admin", department="physics"), "`fairlog account grant acme/ann admin` f"),
        (GrantRole(account="acme/ann", role="user", department="physics"), "a department has admins, no users"),
        (RevokeRole(account="lab/adm", role="user", department="physics"), "a department has admins, no users"),
        (GrantRole(account="lab/adm", role="admin", department="x"), "there is no department 'x'"),
        (RevokeRole(account="lab/adm", role="admin", department="x"), "there is no department 'x'"),
        (GrantRole(account="auditor/x", role="admin", department="physics"), "belongs to no company"),
    ],
)
def test_what_is_no_admin_of_a_department_is_refused(command: Command, why: str) -> None:
    cluster = of_research()
    with pytest.raises(CommandRejected, match=why):
        decide(cluster.state, command, None, OPERATOR)


def test_to_grant_or_take_a_department_twice_changes_nothing() -> None:
    cluster = of_research()
    assert (
        decide(cluster.state, GrantRole(account="lab/adm", role="admin", department="research"), None, OPERATOR) == []
    )
    assert decide(cluster.state, RevokeRole(account="lab/adm", role="admin", department="sales"), None, OPERATOR) == []
    again = restored(list(lines(cluster.state)))
    assert again.digest() == cluster.state.digest()
    assert again.accounts.known["lab/adm"].departments == ["research"]
    cluster.turn(RevokeRole(account="lab/adm", role="admin"), by=OPERATOR)
    assert cluster.state.accounts.known["lab/adm"].departments == []


def test_the_audit_finds_what_nobody_was_allowed_to_do() -> None:
    cluster = inhabited()
    cluster.turn(KillApp(app="ann-1"), by=by("acme/ann"))
    assert audit(facts(cluster)) == []
    log = facts(cluster)
    [kill] = [fact for fact in log if isinstance(fact.command, KillApp)]
    kill.by = by("globex/bob")
    first = audit(log)[0]
    assert (first.seq, first.rule) == (kill.seq, "T3")
