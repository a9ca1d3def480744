"""What the API's handlers do, without HTTP."""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec import to_builtins

from fairlog.api.figures import TooLong
from fairlog.api.handlers import Handlers
from fairlog.api.pages import Viewed
from fairlog.api.past import NotReady
from fairlog.api.questions import Added, Bought, OtherRules
from fairlog.api.replica import NotThatLong
from fairlog.api.sender import TOLD_BURST, read_request
from recovery.archive.reads import recorded
from scheduler.model.commands import (
    AcceptLog,
    AddAccount,
    AddDepartment,
    Command,
    EndApp,
    EndedExecutor,
    GrantRole,
    HoldApp,
    IssueToken,
    KillApp,
    LoseOwner,
    LoseWorker,
    MoveCompany,
    RegisterCompany,
    RegisterWorker,
    RemoveAccount,
    RestoreLog,
    StartedExecutor,
    write_command,
)
from scheduler.model.errors import (
    CommandRejected,
    DuplicateApp,
    InvalidCommand,
    NotAllowed,
    NotAuthenticated,
    UnknownApp,
    UnknownCompany,
)
from scheduler.model.events import CommandRefused
from scheduler.model.sender import By, Role
from scheduler.model.staged import digest_of, script_value
from scheduler.rules.view.views import look
from scheduler.service.client import CommandClient
from scheduler.service.receipts import Receipt
from scheduler.store.estimates import kept
from scheduler.store.tails import STREAMS, Tail
from scheduler.store.transient import LaneFull
from tests.unit.fairlog.api.served import ACME, KEYS, RING, ROOT, WORKER, served, submission
from tests.waiting import HOPELESS_S

if TYPE_CHECKING:
    import fakeredis

    from scheduler.rules.entities.apps import App


@pytest.fixture
def api(fake: fakeredis.FakeRedis) -> Iterator[Handlers]:
    with served(fake) as made:
        made.sender.send(ROOT, ACME)
        yield made


def signed_in(api: Handlers, account: str, role: Role = "user") -> By:
    """A new account, which the replica knows, with a token."""
    token = f"t0{account.replace('/', '')}"
    api.sender.send(ROOT, AddAccount(account=account, role="user" if role == "user" else None))
    receipt = api.sender.send(ROOT, IssueToken(token=token, account=account, hash="ab" * 32))
    assert api.replica.wait_for(receipt.seq, HOPELESS_S)
    return By(account, token, role)


def value(viewed: Viewed) -> Any:
    return msgspec.json.decode(msgspec.json.encode(viewed.body))


def listed(viewed: Viewed) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = value(viewed)
    return found


def test_a_command_is_carried_out_once_however_often_it_is_sent(api: Handlers) -> None:
    receipt = api.sender.send(ROOT, submission("a"), command_id="once")
    assert receipt[:2] == ("once", receipt.seq)
    assert api.sender.send(ROOT, submission("a"), command_id="once") == receipt
    with pytest.raises(DuplicateApp):
        api.sender.send(ROOT, submission("a"), command_id="twice")


def test_an_account_cannot_take_the_key_of_another(api: Handlers) -> None:
    ann, bob = (signed_in(api, f"acme/{name}") for name in ("ann", "bob"))
    first = api.sender.send(ann, submission("a"), command_id="k")
    other = api.sender.send(bob, submission("b", user="bob"), command_id="k")
    assert (first.command_id, other.command_id) == ("acme/ann:k", "acme/bob:k")
    assert first.seq < other.seq
    assert api.sender.send(ann, submission("a"), command_id="k") == first
    long, longer = (
        api.sender.send(who, HoldApp(app=app), command_id="k" * 128) for who, app in ((ann, "a"), (bob, "b"))
    )
    assert len(long.command_id) == len(longer.command_id) == 64
    assert long.command_id != longer.command_id


@pytest.mark.parametrize("identity", ["x" * 129, "a\nb", "é"])
def test_an_id_that_is_long_or_not_printable_is_refused(api: Handlers, identity: str) -> None:
    with pytest.raises(InvalidCommand, match="an idempotency key has 1 to 128"):
        api.sender.send(ROOT, submission("a"), command_id=identity)


def test_each_command_of_a_batch_is_answered_in_order(api: Handlers) -> None:
    bodies = [
        write_command(submission("a")).encode(),
        b'{"type":"Fly"}',
        write_command(submission("b", company="nobody")).encode(),
        write_command(submission("c")).encode(),
    ]
    first, unread, unknown, last = api.sender.send_many(ROOT, bodies, command_id="all")
    assert isinstance(first, Receipt)
    assert isinstance(last, Receipt)
    assert (first.command_id, last.command_id) == ("all.0", "all.2")
    assert isinstance(unread, InvalidCommand)
    assert isinstance(unknown, UnknownCompany)
    assert api.sender.send_many(ROOT, bodies, command_id="all")[3] == last
    with pytest.raises(InvalidCommand, match="at most 1000"):
        api.sender.send_many(ROOT, [b"{}"] * 1001)


def test_the_log_tells_of_a_few_attempts_that_are_not_allowed(api: Handlers) -> None:
    ann, bob = (signed_in(api, f"acme/{name}") for name in ("ann", "bob"))
    receipt = api.sender.send(ann, submission("a"))
    api.replica.wait_for(receipt.seq, HOPELESS_S)
    secret = submission("b", env=("TOKEN",))
    with pytest.raises(NotAllowed):
        api.sender.send(bob, KillApp(app="a"))
    assert not [fact for fact in api.replica.log.facts() if isinstance(fact.event, CommandRefused)], "without a lease"
    api.store.set(KEYS.lease, "{}")
    for attempt in range(12):
        with pytest.raises(NotAllowed):
            api.sender.send(bob, *((KillApp(app="a"), {}) if attempt else (secret, {"TOKEN": "planted"})))
    (refusal,) = api.sender.send_many(bob, [write_command(KillApp(app="a")).encode()])
    assert isinstance(refusal, NotAllowed)
    refused = [
        (fact.by.account, fact.event.error)
        for fact in api.replica.log.facts()
        if isinstance(fact.event, CommandRefused)
    ]
    assert refused == [("acme/bob", "NotAllowed")] * int(TOLD_BURST - 1)
    assert not api.store.keys(f"{KEYS.prefix}unclaimed:*"), "who may not submit has put secrets aside"
    assert "a" in api.replica.peek(lambda state: state).apps


@contextmanager
def behind(api: Handlers) -> Iterator[threading.Event]:
    """Until the event is set, the replica folds nothing more. There is a lease, so masters hear of attempts."""
    api.store.set(KEYS.lease, "{}")
    held, goes_on = threading.Event(), threading.Event()
    follow = api.replica._follower.follow

    def hold(wait_ms: int) -> Any:
        held.set()
        assert goes_on.wait(HOPELESS_S)
        return follow(wait_ms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api.replica._follower, "follow", hold)
        try:
            assert held.wait(HOPELESS_S)
            yield goes_on
        finally:
            goes_on.set()


def alone(api: Handlers, who: By, app: str) -> Receipt | CommandRejected:
    try:
        return api.sender.send(who, submission(app, env=("TOKEN",)), {"TOKEN": "hush"}, command_id=app)
    except CommandRejected as refusal:
        return refusal


def in_a_batch(api: Handlers, who: By, app: str) -> Receipt | CommandRejected:
    body = json.dumps({**to_builtins(submission(app)), "secrets": {"TOKEN": "hush"}}).encode()
    return api.sender.send_many(who, [body, body.replace(b'"ann"', b'"nobody"')], command_id=app)[0]


WAYS = pytest.mark.parametrize("send", [alone, in_a_batch])
Way = Callable[[Handlers, By, str], Receipt | CommandRejected]


def an_admin(api: Handlers) -> By:
    """Of a company in which ann has no account yet."""
    token = "t0adminx"
    api.sender.send(ROOT, AddAccount(account="acme/amy", role="admin"))
    issued = api.sender.send(ROOT, IssueToken(token=token, account="acme/amy", hash="cd" * 32))
    assert api.replica.wait_for(issued.seq, HOPELESS_S)
    return By("acme/amy", token, "admin")


@WAYS
def test_a_server_that_is_behind_submits_with_secrets_what_was_just_allowed(api: Handlers, send: Way) -> None:
    amy = an_admin(api)
    with behind(api) as goes_on:
        api.sender.send(ROOT, AddAccount(account="acme/ann", role="user"))
        threading.Timer(0.1, goes_on.set).start()
        assert isinstance(send(api, amy, "a"), Receipt)
    assert api.work.secrets("a") == {"TOKEN": "hush"}


@WAYS
def test_a_server_that_stays_behind_says_so(api: Handlers, send: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlog.api.sender.LONG_WAIT_S", 0.1)
    amy = an_admin(api)
    with behind(api):
        end = api.sender.send(ROOT, AddAccount(account="acme/ann", role="user")).seq
        with pytest.raises(NotReady, match=f"this server is behind the log, which ends at position {end}; ask again"):
            send(api, amy, "a")


@WAYS
def test_a_submission_allowed_while_it_is_refused_never_starts_without_secrets(
    api: Handlers, send: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    amy, ask = an_admin(api), CommandClient(api.store, KEYS.cluster, keyring=RING, timeout_s=HOPELESS_S)

    def led() -> bool:
        with suppress(CommandRejected):  # there is one
            ask.send(AddAccount(account="acme/ann", role="user"), by=ROOT)
        return True

    monkeypatch.setattr(api.sender, "_is_led", led)
    refusal = send(api, amy, "a")
    assert isinstance(refusal, NotAllowed)
    assert "there is no account acme/ann" in str(refusal)
    api.replica.wait_for(api.replica.log.head().seq, HOPELESS_S)
    assert not api.replica.state.apps
    assert isinstance(send(api, amy, "b"), Receipt)
    assert api.work.secrets("b") == {"TOKEN": "hush"}


@WAYS
def test_who_may_submit_no_more_hears_what_became_of_what_was_carried_out(api: Handlers, send: Way) -> None:
    amy = an_admin(api)
    api.replica.wait_for(api.sender.send(ROOT, AddAccount(account="acme/ann", role="user")).seq, HOPELESS_S)
    api.store.set(KEYS.lease, "{}")
    receipt = send(api, amy, "a")
    assert isinstance(receipt, Receipt)
    api.replica.wait_for(api.sender.send(ROOT, RemoveAccount(account="acme/ann")).seq, HOPELESS_S)
    assert send(api, amy, "a") == receipt


ACCEPT = AcceptLog(seq=1, digest="1", known=9, known_digest="9", by="master m1")


@pytest.mark.parametrize("command", [LoseWorker(worker="w1"), LoseOwner(app="a"), RestoreLog(), ACCEPT], ids=str)
def test_nobody_sends_what_masters_and_restores_say_by_themselves(api: Handlers, command: Command) -> None:
    with pytest.raises(NotAllowed):
        api.sender.send(ROOT, command)
    (refusal,) = api.sender.send_many(ROOT, [write_command(command).encode()])
    assert isinstance(refusal, NotAllowed)


def test_secrets_travel_with_the_app_and_never_enter_the_log(api: Handlers) -> None:
    body = {"type": "SubmitApp", "app": "a", "company": "acme", "user": "ann", "tasks": 1, "command": ["true"]}
    with_secrets = json.dumps({**body, "secrets": {"TOKEN": "hush-hush"}}).encode()
    refused = json.dumps({**body, "app": "b", "company": "nobody", "secrets": {"TOKEN": "hush-hush"}}).encode()
    outcomes = api.sender.send_many(ROOT, [with_secrets, refused])
    assert [isinstance(outcome, CommandRejected) for outcome in outcomes] == [False, True]
    assert api.work.secrets("a") == {"TOKEN": "hush-hush"}
    assert not api.work.secrets("b")
    assert b"hush-hush" not in repr(api.store.xrange(KEYS.log)).encode()
    with pytest.raises(UnknownCompany):
        api.sender.send(ROOT, *read_request(refused))
    assert not api.work.secrets("b")
    assert not api.store.keys(f"{KEYS.prefix}unclaimed:*")


def test_secrets_of_an_app_that_is_never_submitted_are_in_nobodys_way(api: Handlers) -> None:
    ann, bob = (signed_in(api, f"acme/{name}") for name in ("ann", "bob"))
    api.sender._client.put_aside(submission("a", user="bob"), {"PATH": "/planted"})
    anns = submission("a", env=("PATH",))
    api.sender.send(ann, anns, {"PATH": "/bin"})
    assert api.work.secrets("a") == {"PATH": "/bin"}
    with pytest.raises(DuplicateApp):
        api.sender.send(bob, submission("a", user="bob", env=("WORD",)), {"WORD": "x"})
    api.sender._client.put_aside(submission("c"), {"PATH": "/bin"})
    body = {**to_builtins(submission("c")), "secrets": {"PATH": "/planted"}}
    refused, _ = api.sender.send_many(
        bob, [json.dumps(body).encode(), write_command(submission("d", user="bob")).encode()]
    )
    assert isinstance(refused, NotAllowed)
    api.sender.send(ann, submission("c", env=("PATH",)), {"PATH": "/bin"})
    assert api.work.secrets("c") == {"PATH": "/bin"}


def test_secrets_of_what_does_not_fit_into_the_lane_are_not_kept(
    api: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.service.client.LANE_LIMIT", 0)
    body = {**to_builtins(submission("a")), "secrets": {"WORD": "x"}}
    for ask in (
        lambda: api.sender.send(ROOT, submission("a", env=("WORD",)), {"WORD": "x"}),
        lambda: api.sender.send_many(ROOT, [json.dumps(body).encode()]),
    ):
        with pytest.raises(LaneFull):
            ask()
    assert not api.store.keys(f"{KEYS.prefix}unclaimed:*")


@pytest.mark.parametrize(
    "values",
    [
        {"secrets": ["A"]},
        {"secrets": {"A": 1}},
        {"secrets": {"A": "1"}, "env": ["B"]},
        {"secrets": {"A": "x" * 140_000}},
        {"secrets": {"FAIRLOG_SCRIPT": "no base64"}, "script": "ab" * 32},
        {"secrets": {f"A{number}": "" for number in range(1025)}},
    ],
)
def test_secrets_that_are_none_or_too_many_are_refused(api: Handlers, values: dict[str, object]) -> None:
    asked = json.dumps({"type": "SubmitApp", "app": "a", "company": "acme", "user": "ann", **values}).encode()
    with pytest.raises(InvalidCommand):
        api.sender.send(ROOT, *read_request(asked))
    (refusal,) = api.sender.send_many(ROOT, [asked])
    assert isinstance(refusal, InvalidCommand)


@pytest.mark.parametrize("told", [True, False], ids=["by the master", "by the server"])
@pytest.mark.parametrize(("company", "user"), [("globex", "eve"), ("acme", "bob"), ("nosuch", "ann")])
def test_who_may_not_submit_is_told_so_whatever_the_submission_holds(
    api: Handlers, company: str, user: str, *, told: bool
) -> None:
    api.sender.send(ROOT, RegisterCompany(company="globex"))
    ann, olga = signed_in(api, "acme/ann"), signed_in(api, "op/olga", "operator")
    signed_in(api, "acme/bob")
    signed_in(api, "globex/eve")
    if told:
        api.store.set(KEYS.lease, "{}")
    body = {"type": "SubmitApp", "company": company, "user": user, "command": ["true"]}
    script = script_value(b"true\n", "s.sh")
    secrets: list[dict[str, Any]] = [
        {},
        {"secrets": {"FAIRLOG_SCRIPT": script}, "script": digest_of(b"true\n")},
        {"secrets": {"FAIRLOG_SCRIPT": script}, "script": "ab" * 32},
        {"script": "ab" * 32},
        {"secrets": {"A": "1"}, "env": ["B"]},
        {"secrets": {"A": "x" * 140_000}},
    ]
    for who in (ann, olga):
        said = set()
        for number, more in enumerate(secrets):
            asked = json.dumps({**body, "app": f"a{number}", **more}).encode()
            (refusal,) = api.sender.send_many(who, [asked])
            said.add((type(refusal), str(refusal)))
            with pytest.raises(CommandRejected) as raised:
                api.sender.send(who, *read_request(asked))
            said.add((raised.type, str(raised.value)))
        assert len(said) == 1, said
        assert f"{who.account} acts as {who.role} and may not submit" in str(said)
    assert not api.store.keys(f"{KEYS.prefix}unclaimed:*")


def test_the_master_judges_permission_before_what_a_command_holds(api: Handlers) -> None:
    ann = signed_in(api, "acme/ann")
    client = CommandClient(api.store, KEYS.cluster, keyring=RING, timeout_s=HOPELESS_S)
    wrong: list[Command] = [
        RegisterCompany(company="a b"),
        submission("a", user="b b"),
        submission("a", company="globex", cwd="no folder"),
        submission("a", company="globex", output="x", error="x", tasks=7),
    ]
    for command in wrong:
        with pytest.raises(NotAllowed):
            client.send(command, by=ann)
    with pytest.raises(InvalidCommand):
        client.send(submission("a", cwd="no folder"), by=ann)
    assert not [fact for fact in api.replica.log.facts() if isinstance(fact.event, CommandRefused)]


def test_a_read_sees_what_was_acknowledged_before_it(api: Handlers) -> None:
    receipt = api.sender.send(ROOT, submission("a"))
    assert api.replica.wait_for(receipt.seq, HOPELESS_S)
    viewed = api.views.view(ROOT, "apps", {}, after=receipt.seq)
    assert viewed.seen.seq >= receipt.seq
    assert [app["app"] for app in listed(viewed)] == ["a"]
    with pytest.raises(NotThatLong, match="the log ends at position"):
        api.views.view(ROOT, "apps", {}, after=receipt.seq + 100)


def test_a_read_at_a_position_shows_the_state_there(api: Handlers) -> None:
    first, second = (api.sender.send(ROOT, submission(app)) for app in "ab")
    api.replica.wait_for(second.seq, HOPELESS_S)
    before = api.views.view(ROOT, "apps", {}, at=first.seq)
    assert (before.seen.seq, [app["app"] for app in listed(before)]) == (first.seq, ["a"])
    assert listed(api.views.view(ROOT, "apps", {}, at=first.seq)) == listed(before)
    assert [app["app"] for app in listed(api.views.view(ROOT, "apps", {}))] == ["a", "b"]


def test_who_reads_a_past_state_waits_for_nobody_elses(api: Handlers) -> None:
    """Whoever asks for many of them must not take the threads of those who read the present."""
    before = api.sender.send(ROOT, RegisterCompany(company="bolt")).seq
    last = api.sender.send(ROOT, RegisterCompany(company="later")).seq
    api.replica.wait_for(last, HOPELESS_S)
    with api.replica.past._turn, pytest.raises(NotReady, match="another past state is being read"):
        api.views.view(ROOT, "companies", {}, at=before)
    api.views.view(ROOT, "companies", {}, at=last)
    assert api.views.view(ROOT, "companies", {}, at=before).seen.seq == before


def test_a_view_is_that_of_the_rules(api: Handlers) -> None:
    api.replica.wait_for(api.sender.send(ROOT, WORKER).seq, HOPELESS_S)
    api.replica.wait_for(api.sender.send(ROOT, submission("a")).seq, HOPELESS_S)
    for name, arguments in {"app": {"app": "a"}, "cluster": {}, "shares": {}, "settings": {}}.items():
        _, due = api.replica.read(lambda state, of=(name, arguments): look(state, *of))  # type: ignore[misc]
        assert value(api.views.view(ROOT, name, arguments)) == json.loads(json.dumps(due))
    with pytest.raises(UnknownApp):
        api.views.view(ROOT, "app", {"app": "b"})


def test_a_list_comes_in_pages_that_go_on_where_the_last_one_ended(api: Handlers) -> None:
    apps = [f"a{number}" for number in range(7)]
    receipts = [api.sender.send(ROOT, submission(app)) for app in apps]
    api.replica.wait_for(receipts[-1].seq, HOPELESS_S)
    page = api.views.view(ROOT, "apps", {}, limit=3)
    assert [app["app"] for app in listed(page)] == apps[:3]
    api.replica.wait_for(api.sender.send(ROOT, KillApp(app="a0")).seq, HOPELESS_S)
    page = api.views.view(ROOT, "apps", {}, limit=3, cursor=str(page.next))
    assert [app["app"] for app in listed(page)] == apps[3:6]
    page = api.views.view(ROOT, "apps", {}, limit=3, cursor=str(page.next))
    assert ([app["app"] for app in listed(page)], page.next) == (apps[6:], None)
    with pytest.raises(InvalidCommand, match="cursor"):
        api.views.view(ROOT, "apps", {}, cursor="x")


def test_a_page_of_apps_costs_no_more_than_its_own_items(api: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, bob = (signed_in(api, f"acme/{name}") for name in ("ann", "bob"))
    for number in range(6):
        who = (ann, bob)[number % 2]
        receipt = api.sender.send(who, submission(f"a{number}", user=who.account[5:], hold=True))
    receipt = api.sender.send(ann, KillApp(app="a0"))
    assert api.replica.wait_for(receipt.seq, HOPELESS_S)
    rendered: list[str] = []

    def told(_: object, app: App) -> dict[str, str]:
        rendered.append(app.id)
        return {"app": app.id, "company": app.spec.company, "user": app.spec.user}

    monkeypatch.setattr("fairlog.api.views.listed", told)
    monkeypatch.setattr("scheduler.rules.view.views.SCANNED", 4)

    def pages(who: By, **arguments: object) -> list[list[str]]:
        found, cursor = [], ""
        while True:
            page = api.views.view(who, "apps", arguments, cursor=cursor, limit=2)
            found.append([app["app"] for app in listed(page)])
            if page.next is None:
                return found
            cursor = page.next

    assert pages(ann) == [["a2"], ["a4"]]
    assert rendered == ["a2", "a4"]
    assert pages(bob, everything=True) == [["a1", "a3"], ["a5"]]
    assert pages(ann, everything=True) == [["a0", "a2"], ["a4"]]


def test_an_app_is_shown_as_it_is_now_though_no_turn_has_come(api: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    api.sender.send(ROOT, submission("a", max_runtime_s=600))
    receipt = api.sender.send(ROOT, RegisterWorker(worker="w1", node="n", host="h", cores=8, memory_mb=1 << 14))
    started = api.sender.send(ROOT, StartedExecutor(executor="a.0"))
    assert api.replica.wait_for(max(receipt.seq, started.seq), HOPELESS_S)
    at = api.replica.state.at
    assert at == api.replica.state.apps["a"].running_since
    for now in (at + 1_000, at + 9_000):
        monkeypatch.setattr(api.views, "_now_ms", lambda now=now: now)
        assert value(api.views.view(ROOT, "app", {"app": "a"}))["ranMs"] == now - at
    assert value(api.views.view(ROOT, "app", {"app": "a"}, at=api.replica.head))["ranMs"] == 0


def test_the_log_comes_in_pages_with_the_private_parts_that_may_be_read(api: Handlers) -> None:
    api.replica.wait_for(api.sender.send(ROOT, submission("a")).seq, HOPELESS_S)
    whole = listed(api.log.entries(ROOT))
    assert [each["seq"] for each in whole] == list(range(1, len(whole) + 1))
    assert any("private" in each for each in whole)
    pages: list[dict[str, Any]] = []
    cursor: str | None = "0"
    while cursor is not None:
        page = api.log.entries(ROOT, after=int(cursor), limit=2)
        pages += listed(page)
        cursor = page.next
    assert pages == whole


def test_the_output_of_a_task_and_of_the_driver_is_read(api: Handlers) -> None:
    api.replica.wait_for(api.sender.send(ROOT, submission("a")).seq, HOPELESS_S)
    api.store.hset(KEYS.output("a"), "0", b"hello\n")
    api.work.keep_driver_output("a", b"driving\n")
    assert (api.apps.output(ROOT, "a", 0), api.apps.output(ROOT, "a")) == (b"hello\n", b"driving\n")
    api.store.hset(KEYS.output("a"), "1", Tail.of((0, b"out\n"), (1, b"err\n"), (0, b"end\n")).stored())
    assert [api.apps.output(ROOT, "a", 1, stream=each) for each in (None, *STREAMS)] == [
        b"out\nerr\nend\n",
        b"out\nend\n",
        b"err\n",
    ]
    apart = listed(api.apps.outputs(ROOT, "a", task="1"))
    assert [(each["task"], each["stderr"], each["written"]) for each in apart] == [(1, [[4, 8]], [8, 4])]
    assert listed(api.apps.outputs(ROOT, "a", task="driver"))[0]["task"] is None
    with pytest.raises(UnknownApp):
        api.apps.output(ROOT, "b", 0)


def test_without_a_token_only_the_unix_socket_knows_the_caller(api: Handlers) -> None:
    assert api.principal("", at_home=True).account.startswith("local/")
    with pytest.raises(NotAuthenticated, match="without a token"):
        api.principal("", at_home=False)
    with pytest.raises(NotAuthenticated):
        api.principal("fl_x", at_home=True)


def test_accounts_and_tokens_are_shown_to_whoever_manages_them(api: Handlers) -> None:
    api.sender.send(ROOT, RegisterCompany(company="bolt"))
    for account, role in (("acme/ann", "user"), ("acme/adm", "admin"), ("bolt/bob", "user"), ("op/root", None)):
        api.sender.send(ROOT, AddAccount(account=account, role=role))  # type: ignore[arg-type]
        token = f"t0{account.replace('/', '')}"
        receipt = api.sender.send(ROOT, IssueToken(token=token, account=account, hash="ab" * 32))
    api.replica.wait_for(receipt.seq, HOPELESS_S)

    def seen(account: str, role: Role, view: str) -> list[str]:
        who = By(account, f"t0{account.replace('/', '')}", role)
        return [each["account"] for each in listed(api.views.view(who, view, {}, after=receipt.seq))]

    for view in ("accounts", "tokens"):
        assert seen("acme/ann", "user", view) == ["acme/ann"]
        assert sorted(seen("acme/adm", "admin", view)) == ["acme/adm", "acme/ann"]
        assert len(seen("op/root", "operator", view)) == 4
    assert "hash" not in str(value(api.views.view(ROOT, "tokens", {})))


def test_an_admin_of_a_department_sees_what_is_in_it(api: Handlers) -> None:
    for each in (
        WORKER,
        RegisterCompany(company="globex"),
        RegisterCompany(company="lab"),
        AddDepartment(department="research"),
        MoveCompany(company="acme", department="research"),
        AddAccount(account="lab/adm", role="admin"),
        GrantRole(account="lab/adm", role="admin", department="research"),
    ):
        api.sender.send(ROOT, each)
    ann, bob = signed_in(api, "acme/ann"), signed_in(api, "globex/bob")
    api.sender.send(ann, submission("mine", company="acme", user="ann"))
    api.sender.send(bob, submission("others", company="globex", user="bob"))
    receipt = api.sender.send(ROOT, IssueToken(token="t0000lab", account="lab/adm", hash="ab" * 32, role="admin"))
    assert api.replica.wait_for(receipt.seq, HOPELESS_S)
    head = By("lab/adm", "t0000lab", "admin")
    assert [each["app"] for each in listed(api.views.view(head, "apps", {}))] == ["mine"]
    month = datetime.now(UTC).strftime("%Y-%m")
    assert value(api.log.statement(head, "acme", month=month))["company"] == "acme"
    assert value(api.log.departments_statement(head, month=month, department="research"))["rows"]
    for wrong in ("sales", ""):
        with pytest.raises(NotAllowed):
            api.log.departments_statement(head, month=month, department=wrong)
    with pytest.raises(NotAllowed):
        api.log.statement(head, "globex", month=month)
    api.sender.send(head, KillApp(app="mine"))
    with pytest.raises(NotAllowed):
        api.sender.send(head, KillApp(app="others"))


def test_whoever_reads_what_is_private_is_recorded_once(api: Handlers) -> None:
    ann, bob = (signed_in(api, f"acme/{name}") for name in ("ann", "bob"))
    root = signed_in(api, "op/root", "operator")
    receipt = api.sender.send(ann, submission("a", cwd="/srv"))
    assert api.replica.wait_for(receipt.seq, HOPELESS_S)
    for _ in range(3):
        assert value(api.views.view(ann, "app", {"app": "a"}))["cwd"] == "/srv"
        assert value(api.views.view(root, "app", {"app": "a"}))["cwd"] is None
        assert value(api.views.view(root, "app", {"app": "a"}, reason="fire"))["command"] == ["true"]
        api.apps.output(ann, "a", 0)
        api.apps.output(root, "a", 0, reason="fire")
        with pytest.raises(NotAllowed):
            api.apps.output(root, "a", 0)
        with pytest.raises(NotAllowed):
            api.apps.output(bob, "a", 0)
        for who, reason in ((ann, ""), (bob, ""), (root, ""), (root, "fire")):
            api.log.entries(who, reason=reason)
        api.log.open_stream(root, {}, "fire")
        api.log.open_stream(root, {})
    api.apps.output(root, "a", 0, reason="water")
    found = [
        (each.by.account, each.what, each.subject, each.reason)
        for _, each in recorded(api.store, KEYS, is_signed=RING.is_signed)
    ]
    assert found == [
        ("acme/ann", "app", "acme/ann", ""),
        ("op/root", "app", "a", "fire"),
        ("acme/ann", "output", "acme/ann", ""),
        ("op/root", "output", "a", "fire"),
        ("acme/ann", "log", "acme", ""),
        ("op/root", "log", f"1-{receipt.seq}", "fire"),
        ("op/root", "events", "all", "fire"),
        ("op/root", "output", "a", "water"),
    ]


def test_the_output_of_many_tasks_comes_in_pages(api: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    api.replica.wait_for(api.sender.send(ROOT, submission("a", tasks=100)).seq, HOPELESS_S)
    written = {task: b"\xff%d\n" % task for task in (*range(3, 40), 99)}
    api.store.hset(api.keys.output("a"), mapping={str(task): output for task, output in written.items()})
    monkeypatch.setattr("fairlog.api.app_calls.OUTPUTS_BYTES", 50)
    found: dict[int, bytes] = {}
    cursor: str | None = ""
    pages = 0
    while cursor is not None:
        page = api.apps.outputs(ROOT, "a", cursor=cursor, limit=20)
        found |= {each["task"]: b64decode(each["output"]) for each in listed(page)}
        cursor, pages = page.next, pages + 1
    assert found == written
    assert pages > 2
    assert api.apps.outputs(ROOT, "a", cursor="99").body == []
    with pytest.raises(UnknownApp):
        api.apps.outputs(ROOT, "b")


def test_before_there_are_accounts_no_read_is_recorded(api: Handlers) -> None:
    api.replica.wait_for(api.sender.send(ROOT, submission("a")).seq, HOPELESS_S)
    assert value(api.views.view(ROOT, "app", {"app": "a"}))["command"] == ["true"]
    api.apps.output(ROOT, "a", 0)
    api.log.entries(ROOT)
    assert not api.store.exists(KEYS.reads)


def test_the_figures_of_the_log_are_those_of_the_command_line(api: Handlers) -> None:
    api.sender.send(ROOT, WORKER)
    adm = signed_in(api, "acme/adm")
    receipt = api.sender.send(adm, submission("a", user="adm"))
    assert api.replica.wait_for(receipt.seq, HOPELESS_S)
    audited = value(api.log.audit(adm))
    assert (audited["events"], audited["verdicts"]) == (audited["endsAt"], [])
    assert audited["endsAt"] >= receipt.seq
    assert value(api.log.fairness(adm, by="user"))["rows"][0]["user"] == "adm"
    month = datetime.now(UTC).strftime("%Y-%m")
    assert value(api.log.statement(ROOT, "acme", month=month))["total"]["requestedCoreMs"] >= 0
    with pytest.raises(NotAllowed):
        api.log.statement(adm, "acme", month=month)
    with pytest.raises(UnknownCompany):
        api.log.statement(ROOT, "nobody", month=month)
    other = value(api.log.whatif(adm, OtherRules(settings={"placement": "pack"}, workers=(Added(8, 8192, 2),))))
    early = api.log.whatif(adm, OtherRules(), at=3)
    assert (early.seen.seq, value(early)["log"]["rows"]) == (3, [])
    assert early.seen == api.log.fairness(adm, at=3).seen == api.replica.read(lambda _: None, at=3)[0]
    assert early.seen.at < api.log.fairness(adm).seen.at
    assert other["log"]["rows"]
    assert other["other"]["cluster"]["cores"] == pytest.approx(other["log"]["cluster"]["cores"] + 16)
    with pytest.raises(UnknownCompany):
        api.log.whatif(adm, OtherRules(quotas={"nobody": Bought(1, 1)}))
    with pytest.raises(InvalidCommand, match="at most 1000 workers"):
        api.log.whatif(adm, OtherRules(workers=(Added(1, 1, 501), Added(2, 2, 500))))
    for wrong in ("2026-13", "26-1", "9999-01", "2026-01-01"):
        with pytest.raises(InvalidCommand, match="is not a month; write it like 2026-03"):
            api.log.statement(ROOT, "acme", month=wrong)


def test_estimates_are_told_kept_and_compared_with_what_came(api: Handlers) -> None:
    api.sender.send(ROOT, WORKER)
    for app, user in (("a", "ann"), ("b", "ann"), ("c", "bob")):
        api.sender.send(ROOT, submission(app, user=user, cores=16, executor_cores=16, max_runtime_s=600))
    receipt = api.sender.send(ROOT, StartedExecutor(executor="a.0"))
    assert api.replica.wait_for(receipt.seq, HOPELESS_S)
    before = api.log.estimates(ROOT)
    told = value(before)
    assert ([each["app"] for each in told["estimates"]], told["errors"]) == (["b", "c"], None)
    b = told["estimates"][0]
    assert b["earliest"] < b["likely"] < b["latest"]
    assert b["why"] == ""
    assert [each["app"] for each in value(api.log.estimates(ROOT, ids="c,a"))["estimates"]] == ["c"]
    story = value(api.log.explain(ROOT, "b"))["estimate"]
    assert story["earliest"] <= story["likely"] <= story["latest"]
    api.health.compare_estimates()
    assert sorted(kept(api.store, KEYS)) == ["b", "c"]
    api.sender.send(ROOT, KillApp(app="c"))
    api.sender.send(ROOT, EndedExecutor(executor="a.0", reason="exited", exit_code=0, done=True))
    receipt = api.sender.send(ROOT, EndApp(app="a", reason="finished"))
    assert api.replica.wait_for(receipt.seq, HOPELESS_S)
    assert api.replica.read(lambda state: bool(state.apps["b"].executors))[1]
    api.health.compare_estimates()
    assert kept(api.store, KEYS) == []
    compared = value(api.log.estimates(ROOT))["errors"]
    assert compared["number"] == compared["within"] == 1
    assert compared["medianMs"] == compared["p90Ms"] > 500_000
    then = value(api.log.estimates(ROOT, at=before.seen.seq))
    assert ([each["app"] for each in then["estimates"]], then["errors"]) == (["b", "c"], None)
    plan = value(api.log.plan(ROOT, submission("d", cores=16, executor_cores=16)))["estimate"]
    assert plan["errors"] == compared
    assert plan["latest"]


def test_estimates_are_told_of_apps_that_one_may_see(api: Handlers) -> None:
    api.sender.send(ROOT, WORKER)
    for app, user in (("a", "ann"), ("b", "ann"), ("c", "bob")):
        api.sender.send(ROOT, submission(app, user=user, cores=16, executor_cores=16))
    ann, bob = (signed_in(api, f"acme/{name}") for name in ("ann", "bob"))
    assert [each["app"] for each in value(api.log.estimates(ann))["estimates"]] == ["b"]
    assert [each["app"] for each in value(api.log.estimates(bob))["estimates"]] == ["c"]
    assert value(api.log.estimates(bob, ids="a,b"))["estimates"] == []


def test_one_answer_from_the_whole_log_is_made_at_a_time(api: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlog.api.log_reads.LONG_WAIT_S", 0.01)
    with api.log._long_reads["all"]:
        with pytest.raises(NotReady, match="another answer"):
            api.log.audit(ROOT)
        with pytest.raises(UnknownApp):
            api.log.explain(ROOT, "nobody")
    monkeypatch.setattr("fairlog.api.log_reads.MOST_READ", 1)
    with pytest.raises(TooLong):
        api.log.audit(ROOT)


def test_a_long_list_of_apps_is_one_answer_made_in_parts(api: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlog.api.views.PAGE", 2)
    apps = [api.sender.send(ROOT, submission(f"a{number}")) for number in range(5)]
    assert api.replica.wait_for(apps[-1].seq, HOPELESS_S)
    assert [app["app"] for app in listed(api.views.view(ROOT, "apps", {}, limit=5))] == ["a0", "a1", "a2", "a3", "a4"]
    page = api.views.view(ROOT, "apps", {}, limit=3)
    assert [app["app"] for app in listed(page)] == ["a0", "a1", "a2"]
    assert [app["app"] for app in listed(api.views.view(ROOT, "apps", {}, limit=3, cursor=str(page.next)))] == [
        "a3",
        "a4",
    ]
